"""TQC's registry entry: SAC's with other critics."""

from dataclasses import replace

from rl_training.config.actor_critic import TQCConfig
from rl_training.runtime import sac_trainer
from rl_training.runtime.spec import Lazy, trainer

TQC_SPEC = replace(
    sac_trainer.SAC_SPEC,
    name="tqc",
    title="Truncated quantile critics",
    paper="Kuznetsov et al., 2020",
    hyper=TQCConfig,
    algorithm=Lazy("rl_training.algorithms.tqc:TQC"),
)

train_tqc = trainer(TQC_SPEC)
