"""PPO's registry entry."""

from rl_training.config.ppo import PPOConfig
from rl_training.runtime.on_policy import ON_POLICY
from rl_training.runtime.spec import AlgorithmSpec, Lazy, trainer

PPO_SPEC = AlgorithmSpec(
    name="ppo",
    title="Proximal policy optimisation",
    paper="Schulman et al., 2017",
    hyper=PPOConfig,
    model=Lazy("rl_training.models.cnn.image_networks:actor_critic"),
    algorithm=Lazy("rl_training.algorithms.ppo:PPO"),
    buffer=Lazy("rl_training.data.rollout_buffer:RolloutBuffer"),
    loop=ON_POLICY,
    observations=frozenset({"vector", "image", "parts"}),
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

train_ppo = trainer(PPO_SPEC)
