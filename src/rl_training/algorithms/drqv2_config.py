"""Hyper-parameters of DrQ-v2."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from rl_training.experiment.config import (
    HiddenSizes,
    Interval,
    LearningRate,
    Schedule,
    Scheduled,
    TransitionHyperParameters,
    bounded_schedule,
    check,
)


class DrQv2Config(TransitionHyperParameters):
    """Hyper-parameters of DrQ-v2."""

    learning_rate: LearningRate = Field(1e-4, description="step size of all optimisers")
    hidden_sizes: HiddenSizes = Field((1024, 1024), description="layers behind the features")
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
    encoder: Literal["drq", "nature"] = Field(
        "drq", description="four small convolutions as in the paper, or the three of Mnih et al."
    )
    feature_size: int = Field(50, ge=1, le=65_536, description="features behind the convolutions")
    pad: int = Field(4, ge=0, le=1000, description="how far an image is shifted at most; 0 is none")
    noise: Annotated[Scheduled, bounded_schedule(0, 100)] = Field(
        Schedule(initial=1.0, final=0.1, fraction=0.2),
        description="standard deviation of the noise on actions",
    )
    noise_clip: float = Field(
        0.3, gt=0, le=100, description="bound on the noise in targets and in the actor's loss"
    )

    @model_validator(mode="after")
    def _what_shapes_the_default_network_is_for_it(self) -> Self:
        fields = type(self).model_fields
        shaping = ("encoder", "feature_size")
        found = [name for name in shaping if getattr(self, name) != fields[name].default]
        check(
            self.network is None or not found,
            f"{', '.join(found)} would shape the default network; leave it out with a network of "
            "your own",
        )
        return self
