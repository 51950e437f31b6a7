"""The registry entries of DQN, QR-DQN and C51, which differ in network and loss."""

from dataclasses import replace

from rl_training.algorithms.c51 import C51, C51Config
from rl_training.algorithms.dqn import DQN, DQNConfig
from rl_training.algorithms.qr_dqn import QRDQN, QRDQNConfig
from rl_training.data.prioritized_replay import replay_buffer
from rl_training.models.cnn.image_networks import q_network
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.runtime.off_policy import run_off_policy
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.train import trainer

DQN_SPEC = AlgorithmSpec(
    name="dqn",
    title="Deep Q-network",
    paper="Mnih et al., 2015",
    hyper=DQNConfig,
    model=q_network(MLPQNetwork.build),
    algorithm=DQN,
    buffer=replay_buffer,
    loop=run_off_policy,
    observations=frozenset({"vector", "image"}),
    actions=frozenset({"discrete"}),
)
QR_DQN_SPEC = replace(
    DQN_SPEC,
    name="qr_dqn",
    title="Quantile-regression DQN",
    paper="Dabney et al., 2018",
    hyper=QRDQNConfig,
    model=q_network(MLPQRQNetwork.build),
    algorithm=QRDQN,
)
C51_SPEC = replace(
    DQN_SPEC,
    name="c51",
    title="Categorical DQN",
    paper="Bellemare et al., 2017",
    hyper=C51Config,
    model=q_network(MLPCategoricalQNetwork.build),
    algorithm=C51,
)

train_dqn = trainer(DQN_SPEC, QR_DQN_SPEC, C51_SPEC)
