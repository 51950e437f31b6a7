"""REDQ's registry entry: SAC's with other critics."""

from dataclasses import replace

from rl_training.algorithms.redq import REDQ, REDQConfig
from rl_training.runtime import sac_trainer
from rl_training.runtime.train import trainer

SPEC = replace(
    sac_trainer.SPEC,
    name="redq",
    title="Randomised ensembled double Q-learning",
    paper="Chen et al., 2021",
    hyper=REDQConfig,
    algorithm=REDQ,
)

train_redq = trainer(SPEC)
