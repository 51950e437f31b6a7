"""Random shifts of images, the augmentation of DrQ (Kostrikov et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.data.generators import NumpyGenerator
from rl_training.data.observations import Part, part_tensor
from rl_training.data.types import expect_shapes
from rl_training.errors import ConfigError


def random_shift(images: Tensor, offsets: Tensor, pad: int) -> Tensor:
    """Crops of images whose borders were repeated `pad` times: [B, C, H, W] gives the same shape.

    `offsets` [B, 2] has a row and a column from 0 to 2 * pad for each image, where its crop begins:
    `pad` leaves it where it was. All channels of an image move together, and so do the images that
    are stacked in them.
    """
    expect_shapes("B C H W, B 2", images, offsets)
    if not pad:
        return images
    height, width = images.shape[2:]
    padded = images.index_select(2, _repeated(height, pad, images))
    padded = padded.index_select(3, _repeated(width, pad, images))
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    row, column = offsets.long().unbind(1)
    return crops[torch.arange(len(images), device=images.device), :, row, column]


def _repeated(size: int, pad: int, like: Tensor) -> Tensor:
    """The rows of a padded image among those of the image."""
    return (torch.arange(size + 2 * pad, device=like.device) - pad).clamp_(0, size - 1)


class RandomShifts(NumpyGenerator):
    """Shifts by up to `pad` pixels along each axis, for each image anew.

    Observations are images of that shape, or rows of `parts`, of which the images are shifted.
    """

    def __init__(
        self, seed: int, pad: int, shape: Sequence[int], parts: Sequence[Part] = ()
    ) -> None:
        super().__init__(seed)
        self._images = [part for part in parts if part.is_image]
        for _, height, width in [part.shape for part in self._images] or [tuple(shape)]:
            if pad >= min(height, width):
                raise ConfigError(
                    f"algo_kwargs.pad: expected less than the {height} x {width} pixels of an "
                    f"image, found {pad}: nothing would be left of it"
                )
        self._pad = pad
        self.shift = random_shift

    def __call__(self, obs: Tensor, times: int = 1) -> Tensor:
        """The observations `times` times, one round after the other, each image shifted anew."""
        if not self._images:
            return self._shifted(obs.repeat(times, 1, 1, 1) if times > 1 else obs)
        rows = obs.repeat(times, 1)
        for part in self._images:
            images = part_tensor(rows, part)
            images.copy_(self._shifted(images))
        return rows

    def _shifted(self, images: Tensor) -> Tensor:
        offsets = self.numpy.integers(0, 2 * self._pad + 1, (len(images), 2))
        return self.shift(images, torch.from_numpy(offsets).to(images.device), self._pad)
