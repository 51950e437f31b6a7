"""DrQ's registry entry: SAC's with images."""

from dataclasses import replace

from rl_training.algorithms.drq import DrQ, DrQConfig
from rl_training.models.cnn.drq import CNNDrQModel
from rl_training.runtime import sac_trainer
from rl_training.runtime.train import trainer

SPEC = replace(
    sac_trainer.SPEC,
    name="drq",
    title="Data-regularised Q",
    paper="Kostrikov et al., 2020",
    hyper=DrQConfig,
    model=CNNDrQModel.build,
    algorithm=DrQ,
    observations=frozenset({"image"}),
    actions=frozenset({"continuous"}),
)

train_drq = trainer(SPEC)
