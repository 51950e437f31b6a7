"""PPO's registry entry."""

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.ppo_config import PPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.models.cnn.image_networks import actor_critic
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.runtime.on_policy import run_on_policy
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import trainer

SPEC = AlgorithmSpec(
    name="ppo",
    title="Proximal policy optimisation",
    paper="Schulman et al., 2017",
    hyper=PPOConfig,
    model=actor_critic(MLPActorCritic.build),
    algorithm=PPO,
    buffer=RolloutBuffer.build,
    loop=run_on_policy,
    observations=frozenset({"vector", "image"}),
    actions=frozenset(
        {
            "discrete",
            "continuous",
            "continuous_array",
            "unbounded",
            "multi_discrete",
            "multi_binary",
        }
    ),
    normalizes_rewards=True,
)

train_ppo = trainer(SPEC)
