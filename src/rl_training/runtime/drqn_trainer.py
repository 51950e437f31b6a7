"""DRQN's registry entry."""

from rl_training.config.value_based import DRQNConfig
from rl_training.runtime.off_policy import OFF_POLICY
from rl_training.runtime.spec import AlgorithmSpec, Lazy, trainer

DRQN_SPEC = AlgorithmSpec(
    name="drqn",
    title="Deep recurrent Q-network",
    paper="Hausknecht & Stone, 2015",
    hyper=DRQNConfig,
    model=Lazy("rl_training.models.cnn.image_networks:recurrent_q_network"),
    algorithm=Lazy("rl_training.algorithms.drqn:DRQN"),
    buffer=Lazy("rl_training.data.recurrent_replay_buffer:RecurrentReplayBuffer"),
    loop=OFF_POLICY,
    observations=frozenset({"vector", "image", "parts"}),
    actions=frozenset({"discrete"}),
)

train_drqn = trainer(DRQN_SPEC)
