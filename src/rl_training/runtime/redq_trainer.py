"""REDQ's registry entry: SAC's with other critics."""

from dataclasses import replace

from rl_training.config.actor_critic import REDQConfig
from rl_training.runtime import sac_trainer
from rl_training.runtime.spec import Lazy, trainer

REDQ_SPEC = replace(
    sac_trainer.SAC_SPEC,
    name="redq",
    title="Randomised ensembled double Q-learning",
    paper="Chen et al., 2021",
    hyper=REDQConfig,
    algorithm=Lazy("rl_training.algorithms.redq:REDQ"),
)

train_redq = trainer(REDQ_SPEC)
