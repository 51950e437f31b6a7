"""TD3's registry entry."""

from dataclasses import replace

from rl_training.config.actor_critic import TD3Config
from rl_training.runtime import sac_trainer
from rl_training.runtime.spec import Lazy, trainer

TD3_SPEC = replace(
    sac_trainer.SAC_SPEC,
    name="td3",
    title="Twin delayed deterministic policy gradient",
    paper="Fujimoto et al., 2018",
    hyper=TD3Config,
    model=Lazy("rl_training.models.cnn.image_networks:deterministic_actor_q_ensemble"),
    algorithm=Lazy("rl_training.algorithms.td3:TD3"),
)

train_td3 = trainer(TD3_SPEC)
