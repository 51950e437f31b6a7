"""SAC's registry entry."""

from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.models.mlp_actor_critics import MLPActorCritics
from rl_training.runtime.off_policy import run_off_policy
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import trainer

SPEC = AlgorithmSpec(
    name="sac",
    title="Soft actor-critic",
    paper="Haarnoja et al., 2018",
    hyper=SACConfig,
    model=MLPActorCritics.build,
    algorithm=SAC,
    buffer=ReplayBuffer.build,
    loop=run_off_policy,
    observations=frozenset({"vector"}),
    actions=frozenset({"continuous", "continuous_array"}),
)

train_sac = trainer(SPEC)
