"""REDQ's registry entry."""

from rl_training.algorithms.redq import REDQ, REDQConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.models.mlp_actor_critics import MLPActorCritics
from rl_training.runtime.off_policy import run_off_policy
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import trainer

SPEC = AlgorithmSpec(
    name="redq",
    title="Randomised ensembled double Q-learning",
    paper="Chen et al., 2021",
    hyper=REDQConfig,
    model=MLPActorCritics.build,
    algorithm=REDQ,
    buffer=ReplayBuffer.build,
    loop=run_off_policy,
    observations=frozenset({"vector"}),
    actions=frozenset({"continuous"}),
)

train_redq = trainer(SPEC)
