"""TQC's registry entry: SAC's with other critics."""

from dataclasses import replace

from rl_training.algorithms.tqc import TQC, TQCConfig
from rl_training.runtime import sac_trainer
from rl_training.runtime.train import trainer

SPEC = replace(
    sac_trainer.SPEC,
    name="tqc",
    title="Truncated quantile critics",
    paper="Kuznetsov et al., 2020",
    hyper=TQCConfig,
    algorithm=TQC,
)

train_tqc = trainer(SPEC)
