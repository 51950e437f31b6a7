"""TQC's registry entry."""

from rl_training.algorithms.tqc import TQC, TQCConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.models.mlp_actor_critics import MLPActorCritics
from rl_training.runtime.off_policy import run_off_policy
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import trainer

SPEC = AlgorithmSpec(
    name="tqc",
    title="Truncated quantile critics",
    paper="Kuznetsov et al., 2020",
    hyper=TQCConfig,
    model=MLPActorCritics.build,
    algorithm=TQC,
    buffer=ReplayBuffer.build,
    loop=run_off_policy,
    observations=frozenset({"vector"}),
    actions=frozenset({"continuous"}),
)

train_tqc = trainer(SPEC)
