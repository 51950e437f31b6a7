"""Images shifted by random numbers of an algorithm's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.algorithms.functional.random_shift import random_shift
from rl_training.algorithms.generators import NumpyGenerator
from rl_training.errors import ConfigError


class RandomShifts(NumpyGenerator):
    """Shifts by up to `pad` pixels along each axis, for each image anew."""

    def __init__(self, seed: int, pad: int, shape: Sequence[int]) -> None:
        super().__init__(seed)
        if pad >= min(shape[1:]):
            raise ConfigError(
                f"algo_kwargs.pad: expected less than the {shape[1]} x {shape[2]} pixels of an "
                f"image, found {pad}: nothing would be left of it"
            )
        self._pad = pad

    def __call__(self, images: Tensor, times: int = 1) -> Tensor:
        """Each image so many times, one after the other, each time shifted anew."""
        images = images.repeat(times, 1, 1, 1) if times > 1 else images
        offsets = self.numpy.integers(0, 2 * self._pad + 1, (len(images), 2))
        return random_shift(images, torch.from_numpy(offsets).to(images.device), self._pad)
