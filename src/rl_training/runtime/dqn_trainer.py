"""DQN's registry entry."""

from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.runtime.off_policy import run_off_policy
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import trainer

SPEC = AlgorithmSpec(
    name="dqn",
    title="Deep Q-network, `double` as an option",
    paper="Mnih et al., 2015",
    hyper=DQNConfig,
    model=MLPQNetwork.build,
    algorithm=DQN,
    buffer=ReplayBuffer.build,
    loop=run_off_policy,
    observations=frozenset({"vector"}),
    actions=frozenset({"discrete"}),
)

train_dqn = trainer(SPEC)
