"""Hyper-parameters that DrQ and DrQ-v2 share."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_training.experiment.config import HiddenSizes, TransitionHyperParameters


class ShiftedImagesConfig(TransitionHyperParameters):
    """Hyper-parameters of every algorithm that sees shifted images."""

    hidden_sizes: HiddenSizes = Field((1024, 1024), description="layers behind the features")
    encoder: Literal["drq", "nature"] = Field(
        "drq", description="four small convolutions as in the paper, or the three of Mnih et al."
    )
    feature_size: int = Field(50, ge=1, le=65_536, description="features behind the convolutions")
    pad: int = Field(4, ge=0, le=1000, description="how far an image is shifted at most; 0 is none")
