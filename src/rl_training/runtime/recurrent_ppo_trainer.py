"""Recurrent PPO's registry entry."""

from rl_training.config.ppo import RecurrentPPOConfig
from rl_training.runtime.on_policy import ON_POLICY
from rl_training.runtime.spec import AlgorithmSpec, Lazy, trainer

RECURRENT_PPO_SPEC = AlgorithmSpec(
    name="recurrent_ppo",
    title="Recurrent proximal policy optimisation",
    paper="Schulman et al., 2017",
    hyper=RecurrentPPOConfig,
    model=Lazy("rl_training.models.recurrent.actor_critic:RecurrentActorCritic.build"),
    algorithm=Lazy("rl_training.algorithms.recurrent_ppo:RecurrentPPO"),
    buffer=Lazy("rl_training.data.rollout_buffer:RolloutBuffer"),
    loop=ON_POLICY,
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

train_recurrent_ppo = trainer(RECURRENT_PPO_SPEC)
