"""DRQN's registry entry."""

from rl_training.algorithms.drqn import DRQN, DRQNConfig
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from rl_training.runtime.off_policy import run_off_policy
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import trainer

SPEC = AlgorithmSpec(
    name="drqn",
    title="Deep recurrent Q-network",
    paper="Hausknecht & Stone, 2015",
    hyper=DRQNConfig,
    model=LSTMQNetwork.build,
    algorithm=DRQN,
    buffer=RecurrentReplayBuffer.build,
    loop=run_off_policy,
    observations=frozenset({"vector"}),
    actions=frozenset({"discrete"}),
)

train_drqn = trainer(SPEC)
