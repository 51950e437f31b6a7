"""Random shifts of images, the augmentation of DrQ (Kostrikov et al., 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.functional.shapes import expect_shapes


def random_shift(images: Tensor, offsets: Tensor, pad: int) -> Tensor:
    """Crops of images whose borders were repeated `pad` times: [B, C, H, W] gives the same shape.

    `offsets` [B, 2] has a row and a column from 0 to 2 * pad for each image, where its crop begins:
    `pad` leaves it where it was. All channels of an image move together, and so do the images that
    are stacked in them.
    """
    expect_shapes("B C H W, B 2", images, offsets)
    if not pad:
        return images
    if images.device.type == "cpu":  # copies of whole rows, many times as fast as an index
        shifted = _shifted(images.numpy(), offsets.tolist(), pad)
        return torch.from_numpy(shifted).permute(0, 3, 1, 2)
    return _indexed(images, offsets, pad)


def _indexed(images: Tensor, offsets: Tensor, pad: int) -> Tensor:
    """The crops, on a device."""
    height, width = images.shape[2:]
    padded = images.index_select(2, _repeated(height, pad, images))
    padded = padded.index_select(3, _repeated(width, pad, images))
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    row, column = offsets.long().unbind(1)
    return crops[torch.arange(len(images), device=images.device), :, row, column]


def _shifted(images: np.ndarray, offsets: Sequence[Sequence[int]], pad: int) -> np.ndarray:
    """The crops, with their channels last, as convolutions on a CPU want them."""
    count, channels, height, width = images.shape
    padded = np.empty((count, channels, height + 2 * pad, width + 2 * pad), images.dtype)
    inside = padded[:, :, pad : pad + height]
    inside[..., pad : pad + width] = images
    inside[..., :pad] = images[..., :1]
    inside[..., pad + width :] = images[..., -1:]
    padded[:, :, :pad] = inside[:, :, :1]
    padded[:, :, pad + height :] = inside[:, :, -1:]
    shifted = np.empty((count, height, width, channels), images.dtype)
    for number, (row, column) in enumerate(offsets):
        crop = padded[number, :, row : row + height, column : column + width]
        shifted[number] = np.moveaxis(crop, 0, -1)
    return shifted


def _repeated(size: int, pad: int, like: Tensor) -> Tensor:
    """The rows of a padded image among those of the image."""
    return (torch.arange(size + 2 * pad, device=like.device) - pad).clamp_(0, size - 1)
