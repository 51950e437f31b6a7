"""Hyper-parameters of DrQ-v2."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rl_training.algorithms.image_config import ShiftedImagesConfig
from rl_training.experiment.config import (
    Interval,
    LearningRate,
    Schedule,
    Scheduled,
    bounded_schedule,
)


class DrQv2Config(ShiftedImagesConfig):
    """Hyper-parameters of DrQ-v2."""

    learning_rate: LearningRate = Field(1e-4, description="step size of all optimisers")
    batch_size: int = Field(256, ge=1, le=1_000_000, description="transitions in one gradient step")
    n_step: int = Field(
        3, ge=1, le=1000, description="rewards summed before the value of what follows"
    )
    replay_ratio: float = Field(
        0.5, gt=0, le=1000, description="gradient steps per environment transition"
    )
    learning_starts: Interval = Field(
        2_000, description="environment transitions of random play before the first update"
    )
    num_critics: int = Field(2, ge=1, le=1000, description="critics in the ensemble")
    tau: float = Field(0.01, gt=0, le=1, description="how far the target critics move per update")
    noise: Annotated[Scheduled, bounded_schedule(0, 100)] = Field(
        Schedule(initial=1.0, final=0.1, fraction=0.2),
        description="standard deviation of the noise on actions",
    )
    noise_clip: float = Field(
        0.3, gt=0, le=100, description="bound on the noise in targets and in the actor's loss"
    )
    shaping: ClassVar[tuple[str, ...]] = ("encoder", "feature_size")
