"""DrQ-v2's registry entry."""

from dataclasses import replace

from rl_training.config.actor_critic import DrQv2Config
from rl_training.runtime import drq_trainer
from rl_training.runtime.spec import Lazy, trainer

DRQV2_SPEC = replace(
    drq_trainer.DRQ_SPEC,
    name="drqv2",
    title="Data-regularised Q, version 2",
    paper="Yarats et al., 2021",
    hyper=DrQv2Config,
    model=Lazy("rl_training.models.cnn.drqv2:CNNDrQv2Model.build"),
    algorithm=Lazy("rl_training.algorithms.drqv2:DrQv2"),
)

train_drqv2 = trainer(DRQV2_SPEC)
