"""DrQ's registry entry: SAC's with images."""

from dataclasses import replace

from rl_training.config.actor_critic import DrQConfig
from rl_training.runtime import sac_trainer
from rl_training.runtime.spec import Lazy, trainer

DRQ_SPEC = replace(
    sac_trainer.SAC_SPEC,
    name="drq",
    title="Data-regularised Q",
    paper="Kostrikov et al., 2020",
    hyper=DrQConfig,
    model=Lazy("rl_training.models.cnn.drq:CNNDrQModel.build"),
    algorithm=Lazy("rl_training.algorithms.drq:DrQ"),
    observations=frozenset({"image", "parts"}),
    actions=frozenset({"continuous"}),
)

train_drq = trainer(DRQ_SPEC)
