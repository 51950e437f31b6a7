"""DrQ-v2's registry entry."""

from dataclasses import replace

from rl_training.algorithms.drqv2 import DrQv2
from rl_training.algorithms.drqv2_config import DrQv2Config
from rl_training.models.cnn.drqv2 import CNNDrQv2Model
from rl_training.runtime import drq_trainer
from rl_training.runtime.train import trainer

SPEC = replace(
    drq_trainer.SPEC,
    name="drqv2",
    title="Data-regularised Q, version 2",
    paper="Yarats et al., 2021",
    hyper=DrQv2Config,
    model=CNNDrQv2Model.build,
    algorithm=DrQv2,
)

train_drqv2 = trainer(SPEC)
