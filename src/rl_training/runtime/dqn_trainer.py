"""The registry entries of DQN, QR-DQN and C51, which differ in network and loss."""

from dataclasses import replace

from rl_training.config.value_based import C51Config, DQNConfig, QRDQNConfig
from rl_training.runtime.off_policy import OFF_POLICY
from rl_training.runtime.spec import AlgorithmSpec, Lazy, trainer

DQN_SPEC = AlgorithmSpec(
    name="dqn",
    title="Deep Q-network",
    paper="Mnih et al., 2015",
    hyper=DQNConfig,
    model=Lazy("rl_training.models.cnn.image_networks:q_network"),
    algorithm=Lazy("rl_training.algorithms.dqn:DQN"),
    buffer=Lazy("rl_training.data.prioritized_replay:OptionallyPrioritized"),
    loop=OFF_POLICY,
    observations=frozenset({"vector", "image", "parts"}),
    actions=frozenset({"discrete"}),
)
QR_DQN_SPEC = replace(
    DQN_SPEC,
    name="qr_dqn",
    title="Quantile-regression DQN",
    paper="Dabney et al., 2018",
    hyper=QRDQNConfig,
    model=Lazy("rl_training.models.cnn.image_networks:quantile_network"),
    algorithm=Lazy("rl_training.algorithms.qr_dqn:QRDQN"),
)
C51_SPEC = replace(
    DQN_SPEC,
    name="c51",
    title="Categorical DQN",
    paper="Bellemare et al., 2017",
    hyper=C51Config,
    model=Lazy("rl_training.models.cnn.image_networks:categorical_network"),
    algorithm=Lazy("rl_training.algorithms.c51:C51"),
)

train_dqn = trainer(DQN_SPEC, QR_DQN_SPEC, C51_SPEC)
