"""Random shifts of images on a CPU: copies of whole rows, many times as fast as an index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def random_shift(images: Tensor, offsets: Tensor, pad: int) -> Tensor:
    """Kernel of `functional.random_shift.random_shift`, for images in host memory."""
    if not pad:
        return images
    shifted = _shifted(images.numpy(), offsets.tolist(), pad)
    return torch.from_numpy(shifted).permute(0, 3, 1, 2)


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
