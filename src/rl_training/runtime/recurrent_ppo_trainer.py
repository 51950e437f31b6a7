"""Recurrent PPO's registry entry."""

from rl_training.algorithms.recurrent_ppo import RecurrentPPO, RecurrentPPOConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.runtime.on_policy import run_on_policy
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import trainer

SPEC = AlgorithmSpec(
    name="recurrent_ppo",
    title="Proximal policy optimisation with a memory",
    paper="Schulman et al., 2017",
    hyper=RecurrentPPOConfig,
    model=RecurrentActorCritic.build,
    algorithm=RecurrentPPO,
    buffer=RolloutBuffer.build,
    loop=run_on_policy,
    observations=frozenset({"vector"}),
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

train_recurrent_ppo = trainer(SPEC)
