"""Arrays that are views of one memory: saved once, and views of one memory when restored."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.envs.factory import make_vector_env
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.shared_memory import Claims
from rl_training.envs.snapshots.vector import load_env_state, resume_level, save_env_state
from rl_training.errors import CheckpointError
from rl_training.storage.tree import join, split

TABLE = np.arange(12.0).reshape(4, 3)
COLUMNS = np.zeros((20_000, 10))
PRICES = COLUMNS[:, 0]


class Holder(gym.Env[Any, Any]):
    """An env that is nothing but its attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def restored(saved: Holder, fresh: Holder | None = None) -> Holder:
    """What a checkpoint of one makes of the other, by default of one without attributes."""
    fresh = Holder() if fresh is None else fresh
    structure, tensors = split(save_env_state(saved))
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    load_env_state(fresh, join(json.loads(json.dumps(structure, allow_nan=False)), copies))
    return fresh


def assert_same_memory(saved: list[np.ndarray], result: list[np.ndarray]) -> None:
    """Equal arrays, and a write through any of them shows in the others alike, to the bit."""
    for round_ in range(len(saved) + 1):
        for before, after in zip(saved, result, strict=True):
            assert (before.dtype, before.shape) == (after.dtype, after.shape)
            if before.size:
                assert before.strides == after.strides
                assert before.flags.writeable == after.flags.writeable
            assert before.tobytes() == after.tobytes()
        if round_ < len(saved) and saved[round_].flags.writeable:
            for arrays in (saved, result):
                arrays[round_][...] += np.array(round_ + 1).astype(arrays[round_].dtype)


def read_only(array: np.ndarray) -> np.ndarray:
    view = array[:]
    view.flags.writeable = False
    return view


VIEWS: dict[str, Callable[[np.ndarray], list[np.ndarray]]] = {
    "overlapping": lambda a: [a[:10], a[5:]],
    "base": lambda a: [a, a[2:4]],
    "base last": lambda a: [a[2:4], a],
    "steps": lambda a: [a[::2], a[3::3], a[::-1]],
    "transposed": lambda a: [a.reshape(4, 6), a.reshape(4, 6).T],
    "columns": lambda a: [a.reshape(4, 6)[:, 1:3], a.reshape(4, 6)[1]],
    "another dtype": lambda a: [a, a.view(np.int32), a.view(np.uint8)[5:9]],
    "unaligned": lambda a: [a.view(np.uint8)[3:19].view(np.float64), a],
    "read-only": lambda a: [read_only(a[:4]), a],
    "broadcast": lambda a: [np.broadcast_to(a[1], (3, 5)), a[:2]],
    "windows": lambda a: [np.lib.stride_tricks.sliding_window_view(a, 5), a],
    "empty": lambda a: [a[3:3], a, a[:0].reshape(0, 4)],
    "number": lambda a: [a[2:3].reshape(()), a],
    "base unseen": lambda a: [a[::-2]],
    "read-only alone": lambda a: [read_only(a)],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_views_of_one_memory_again(name: str) -> None:
    saved = VIEWS[name](np.arange(24.0))
    result = restored(Holder(views=list(saved)))
    assert_same_memory(saved, result.views)


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_restored_in_the_memory_of_live_ones_alike(name: str) -> None:
    live = np.full(24, 7.0)
    saved, fresh = VIEWS[name](np.arange(24.0)), VIEWS[name](live)
    result = restored(Holder(views=list(saved)), Holder(views=list(fresh)))
    if any(view.flags.writeable and view.size for view in saved[:1]):
        assert all(now is before for now, before in zip(result.views, fresh, strict=True))
    assert_same_memory(saved, result.views)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_slices_over_any_live_ones(data: st.DataObject) -> None:
    index = st.slices(12)

    def views() -> list[np.ndarray]:
        arrays = [np.arange(12.0) + 100 * number for number in range(2)]
        slices = data.draw(st.lists(st.tuples(st.sampled_from([0, 1]), index), max_size=4))
        return [arrays[number][part] for number, part in slices]

    saved, fresh = views(), views()
    kept = [array.copy() for array in saved]
    result = restored(Holder(views=list(saved)), Holder(views=list(fresh)))
    assert all(map(np.array_equal, result.views, kept))
    for number, array in enumerate(saved):
        for other in range(len(saved)):
            shared = np.shares_memory(array, saved[other])
            assert np.shares_memory(result.views[number], result.views[other]) == shared


def test_separate_arrays_are_not_written_into_one_memory() -> None:
    memory = np.zeros(4)
    saved = Holder(now=np.full(4, 1.0), before=np.full(2, 2.0))
    result = restored(saved, Holder(now=memory, before=memory[:2]))
    assert result.now is memory
    assert (result.now.tolist(), result.before.tolist()) == ([1] * 4, [2] * 2)


def test_a_view_of_a_table_of_the_module_does_not_write_to_it() -> None:
    before = TABLE.copy()
    for view in (lambda row: TABLE[row], lambda row: TABLE.T[row % 3]):
        result = restored(Holder(row=view(3)), Holder(row=view(1)))
        assert np.array_equal(result.row, view(3))
        assert np.array_equal(TABLE, before)


def test_memory_around_live_views_is_left_alone() -> None:
    live = np.full(6, 7.0)
    result = restored(Holder(even=np.arange(6.0)[::2]), Holder(even=live[::2]))
    assert live.tolist() == [0, 7, 2, 7, 4, 7]
    assert np.shares_memory(result.even, live)


def test_memory_is_stored_once_and_columns_of_a_large_table_without_it() -> None:
    array = np.arange(1000.0)
    _, arrays = save_env_state(Holder(views=[array, array[1:], array[::3]]))
    assert sum(held.nbytes for held in arrays.values()) == array.nbytes
    table = np.arange(400_000.0).reshape(4000, 100)
    saved = Holder(price=table[:, 3], volume=table[:, 9])
    _, arrays = save_env_state(saved)
    assert sum(held.nbytes for held in arrays.values()) == 2 * 4000 * 8
    fresh = np.zeros_like(table)
    result = restored(saved, Holder(price=fresh[:, 3], volume=fresh[:, 9]))
    assert np.array_equal(fresh[:, 3], saved.price)
    assert result.volume.tolist() == saved.volume.tolist()


def test_columns_of_a_large_table_are_side_by_side_again() -> None:
    table = np.random.default_rng(0).normal(size=(20_000, 10))
    views = [table[:, 0], table[:, 1], table[::-1, 3], table[:, 4][None]]
    with_a_gap = np.zeros((20_000, 10))
    gap = with_a_gap[:, 5]
    for fresh in (
        Holder(),
        Holder(views=[np.zeros(20_000)] * 2),
        Holder(views=[with_a_gap[:, 0], with_a_gap[:, 1]], gap=gap),
    ):
        result = restored(Holder(views=list(views)), fresh).views
        assert_same_memory([view.copy() for view in views], [view.copy() for view in result])
        assert [view.strides for view in result] == [view.strides for view in views]
        assert not any(np.shares_memory(*pair) for pair in combinations(result, 2))
    assert np.shares_memory(result[0], with_a_gap)
    assert np.shares_memory(result[1], with_a_gap)
    assert not gap.any()


def test_new_columns_share_a_table_that_a_save_can_take_again() -> None:
    table = np.arange(150.0 * 2000).reshape(2000, 150)
    saved = Holder(views=[table[:, index] for index in range(60)])
    other = Holder(views=[*saved.views, *(table.copy()[:, index] for index in range(60))])
    result = restored(restored(other))
    assert all(map(np.array_equal, result.views, other.views))
    assert len({id(view.base) for view in result.views}) == 2


def test_columns_are_not_written_over_the_columns_of_a_module() -> None:
    before = COLUMNS.copy()
    saved = Holder(a=np.ones_like(COLUMNS)[:, 0], b=np.ones_like(COLUMNS)[:, 1])
    for live in (
        Holder(a=COLUMNS[:, 0], b=COLUMNS[:, 1]),
        Holder(a=COLUMNS[:, 1:][:, 0], b=PRICES.base[:, 0]),
    ):
        result = restored(saved, live)
        assert (result.a.strides, result.b.strides) == (PRICES.strides, PRICES.strides)
        assert result.a.all()
        assert result.b.all()
        assert np.array_equal(COLUMNS, before)


class Market(gym.Env[np.ndarray, int]):
    """Sums along the columns of a table round in another way than along contiguous arrays."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        table = self.np_random.normal(size=(20_000, 10))
        self.price, self.volume = table[:, 0], table[:, 1]
        self.weights = self.np_random.normal(size=20_000)
        return self.seen(), {}

    def seen(self) -> np.ndarray:
        return np.array([self.volume @ self.weights + self.price @ self.weights])

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.price *= 1.001
        self.volume += 1e-3 * action
        return self.seen(), 0.0, False, False, {}


def test_columns_of_a_table_sum_alike_after_a_restore() -> None:
    env = Market()
    env.reset(seed=0)
    env.step(1)
    state = save_env_state(env)
    expected = [env.step(action % 2)[0].item() for action in range(20)]
    fresh, unlike = Market(), Market()
    fresh.reset(seed=5)
    unlike.reset(seed=5)
    unlike.price = unlike.volume = np.zeros(3)
    for other in (env, fresh, unlike):
        load_env_state(other, state)
        assert [other.step(action % 2)[0].item() for action in range(20)] == expected


@pytest.mark.parametrize(
    ("forged", "refused"),
    [
        ([-80], False),
        ([8], False),
        ([0], True),
        ([4], True),
        ([2**40], True),
        ([-(2**62)], True),
        ([2**70], True),
        ([], True),
        ([80, 80], True),
        (80, True),
        ([80.0], False),
        ([80.5], True),
        ([True], True),
        (["80"], True),
        (None, True),
    ],
    ids=str,
)
def test_forged_strides_are_refused_or_harmless(forged: Any, refused: bool) -> None:
    table = np.zeros((4, 10))
    for live in (Holder(a=table[:, 1]), Holder(a=None)):
        state = save_env_state(Holder(a=np.arange(1.0, 5.0)))
        state.node["layers"][0]["attributes"]["a"]["strides"] = forged
        if refused or (forged == [80.0] and live.a is None):
            with pytest.raises(CheckpointError):
                load_env_state(live, state)
        else:
            load_env_state(live, state)
            assert live.a.tolist() == [1, 2, 3, 4]
    assert not np.delete(table, 1, axis=1).any()


def test_many_forged_strides_make_no_huge_memory_together() -> None:
    state = save_env_state(Holder(a=[np.arange(2.0 + index) for index in range(4)]))
    for index, node in enumerate(state.node["layers"][0]["attributes"]["a"]["list"]):
        node["strides"] = [(1 << 28) // (index + 1)]
    with pytest.raises(CheckpointError, match="columns of large tables need"):
        load_env_state(Holder(a=None), state)


def test_what_cannot_be_stored_is_not_claimed(tmp_path: Path) -> None:
    table = np.zeros((4000, 100))
    with pytest.raises(SnapshotUnavailable, match=r"Holder\.a is one of several small views"):
        save_env_state(Holder(a=table[:, 3], b=table[5:3000, 3]))
    path = tmp_path / "file"
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file:
        array = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
    with pytest.raises(SnapshotUnavailable, match=r"Holder\.a is an array in a mapped file"):
        save_env_state(Holder(a=array))
    tensor = torch.zeros(4)
    with pytest.raises(SnapshotUnavailable, match=r"Holder\.a is a torch\.Tensor"):
        save_env_state(Holder(a=tensor, b=tensor[:2], c=tensor.numpy()))


class Walker(gym.Env[np.ndarray, int]):
    """Its position is a view that every episode makes anew: without it, it stands still."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.state = self.np_random.normal(size=4)
        self.place, self.velocity = self.state[:2], self.state[2:]
        return self.place.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.state = self.state + 0.1 * action
        self.place, self.velocity = self.state[:2], self.state[2:]
        self.place += self.velocity
        done = bool(self.np_random.random() < 0.05)
        return self.state[:2].copy(), float(self.place[0]), done, False, {}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_environment_of_views_is_exact(kind: str) -> None:
    def make() -> gym.vector.VectorEnv[Any, Any, Any]:
        return make_vector_env(Walker, num_envs=2, vectorization=kind, env_kwargs={}, wrappers=())

    assert resume_level(make, seed=0).level == "exact"


GOOD = {
    "view": "0",
    "dtype": "<f8",
    "start": 0,
    "offset": 0,
    "shape": [4],
    "strides": [8],
    "writeable": True,
}


@pytest.mark.parametrize(
    "forged",
    [
        {"offset": 8},
        {"offset": -8},
        {"offset": 2**63},
        {"offset": True},
        {"offset": 0.0},
        {"strides": [16]},
        {"strides": [-8]},
        {"strides": [2**62]},
        {"strides": [8, 8]},
        {"strides": 8},
        {"shape": [5]},
        {"shape": [0]},
        {"shape": [-4]},
        {"shape": [2**32, 2**32], "strides": [2**32, 2**32]},
        {"shape": [2**62], "strides": [0]},
        {"shape": [1] * 65, "strides": [8] * 65},
        {"dtype": "|O8"},
        {"dtype": "<f16"},
        {"dtype": 3},
        {"start": 16},
        {"start": -1},
        {"writeable": 1},
        {"view": "1"},
        {"view": "floats"},
        {"view": ["0"]},
        {"surplus": 1},
    ],
    ids=str,
)
def test_forged_views_never_leave_their_buffer(forged: dict[str, Any]) -> None:
    def load(node: dict[str, Any]) -> Holder:
        state = save_env_state(Holder(a=None))
        state.arrays.update({"0": np.zeros(32, np.uint8), "floats": np.zeros(4)})
        state.node["layers"][0]["attributes"]["a"] = node
        load_env_state(fresh := Holder(a=np.zeros(4)), state)
        return fresh

    assert load(GOOD).a.tolist() == [0] * 4
    with pytest.raises(CheckpointError):
        load(GOOD | forged)


def test_claimed_memory_grows_together() -> None:
    memory = np.zeros(10, np.uint8)
    claims = Claims([memory[0:2], memory[4:6], memory[8:9]])
    claims.add(memory[1:5])
    claims.add(memory[5:5])
    free = [claims.free(memory[index : index + 1]) for index in range(10)]
    assert free == [False] * 6 + [True, True, False, True]
