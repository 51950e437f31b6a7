"""Random shifts equal padding and cropping by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rl_training.algorithms.functional.random_shift import RandomShifts, random_shift
from rl_training.fast import images as kernel


def images(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def test_a_shift_by_hand() -> None:
    image = torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8)
    # Padded by one: 1 1 2 2 / 1 1 2 2 / 3 3 4 4 / 3 3 4 4.
    for offset, expected in {
        (0, 0): [[1, 1], [1, 1]],
        (1, 1): [[1, 2], [3, 4]],
        (2, 0): [[3, 3], [3, 3]],
        (1, 2): [[2, 2], [4, 4]],
        (2, 1): [[3, 4], [3, 4]],
    }.items():
        found = random_shift(image, torch.tensor([offset]), 1)
        assert found.tolist() == [[expected]], offset


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("pad", [1, 4])
def test_it_is_padding_and_cropping(pad: int, dtype: torch.dtype) -> None:
    batch = images(20, 6, 12, 10, dtype=dtype)
    offsets = torch.randint(0, 2 * pad + 1, (20, 2), generator=torch.Generator().manual_seed(1))
    padded = F.pad(batch.float(), (pad,) * 4, mode="replicate")
    found = random_shift(batch, offsets, pad)
    assert found.dtype == dtype
    fast = kernel.random_shift(batch, offsets, pad)
    assert torch.equal(fast, found)
    assert fast.is_contiguous(memory_format=torch.channels_last)  # as convolutions want it
    for number, (row, column) in enumerate(offsets.tolist()):
        crop = padded[number, :, row : row + 12, column : column + 10]
        assert torch.equal(found[number].float(), crop)


def test_images_move_on_their_own_and_stacked_ones_together() -> None:
    one = images(1, 3, 9, 9)
    batch = one.repeat(4, 3, 1, 1)  # four times the same, each a stack of three
    found = random_shift(batch, torch.tensor([[0, 0], [4, 8], [8, 1], [4, 8]]), 4)
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])
    for shifted in found:
        assert torch.equal(shifted[:3], shifted[3:6])
        assert torch.equal(shifted[:3], shifted[6:])


def test_without_padding_nothing_moves() -> None:
    batch = images(3, 3, 8, 8)
    assert torch.equal(random_shift(batch, torch.zeros(3, 2, dtype=torch.long), 0), batch)
    np.testing.assert_array_equal(random_shift(batch, torch.full((3, 2), 2), 2), batch)


def test_offsets_for_another_number_of_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \[B 2\] with B = 3, found \(2, 2\)"):
        random_shift(images(3, 3, 8, 8), torch.zeros(2, 2, dtype=torch.long), 4)
    with pytest.raises(ValueError, match=r"expected \[B 2\], found \(3, 3\)"):
        random_shift(images(3, 3, 8, 8), torch.zeros(3, 3, dtype=torch.long), 4)


def test_every_round_shifts_each_image_anew_and_rounds_follow_each_other() -> None:
    batch = images(4, 3, 9, 9)
    offsets = np.random.default_rng(7).integers(0, 2 * 2 + 1, (3 * 4, 2))
    found = RandomShifts(7, 2, (3, 9, 9))(batch, 3)
    expected = [
        random_shift(batch, torch.from_numpy(offsets[4 * k : 4 * k + 4]), 2) for k in range(3)
    ]
    assert torch.equal(found, torch.cat(expected))
    assert len({tuple(offset) for offset in offsets.tolist()}) > 4
