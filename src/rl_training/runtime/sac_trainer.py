"""SAC's registry entry."""

from rl_training.config.actor_critic import SACConfig
from rl_training.runtime.off_policy import OFF_POLICY
from rl_training.runtime.spec import AlgorithmSpec, Lazy, trainer

SAC_SPEC = AlgorithmSpec(
    name="sac",
    title="Soft actor-critic",
    paper="Haarnoja et al., 2018",
    hyper=SACConfig,
    model=Lazy("rl_training.models.cnn.image_networks:actor_q_ensemble"),
    algorithm=Lazy("rl_training.algorithms.sac:SAC"),
    buffer=Lazy("rl_training.data.replay_buffer:ReplayBuffer"),
    loop=OFF_POLICY,
    observations=frozenset({"vector", "image", "parts"}),
    actions=frozenset({"continuous", "continuous_array"}),
)

train_sac = trainer(SAC_SPEC)
