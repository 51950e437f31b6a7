"""What a checkpoint holds of an object follows from the fields its class declares."""

from __future__ import annotations

import copy
import random
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.errors import CheckpointError, UsageError
from rl_training.runtime.seeding import global_generator_state, restore_global_generators
from rl_training.storage.generators import generator_state, set_generator_state
from rl_training.storage.state import Stateful
from rl_training.storage.tree import join, split


class Pair(NamedTuple):
    mean: np.ndarray
    count: int


class Counter(Stateful):
    state_fields = ("_count",)

    def __init__(self) -> None:
        self._count = 0


class Everything(Stateful):
    state_fields = (
        "weights",
        "_array",
        "_rng",
        "network",
        "counter",
        "pair",
        "parts",
        "recent",
        "names",
        "best",
        "hidden",
    )

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.weights = torch.from_numpy(rng.random((2, 3))).requires_grad_()
        self._array = rng.random(4)
        self._rng = rng
        self.network = nn.Linear(2, 2)
        self.counter = Counter()
        self.pair = Pair(rng.random(2), 0)
        self.parts: dict[str, Any] = {"counter": Counter(), "bias": rng.random(1)}
        self.recent: deque[float] = deque(maxlen=3)
        self.names: dict[str, list[int]] = {}
        self.best: float | None = None
        self.hidden: tuple[np.ndarray, ...] = (rng.random(2), rng.random(2))

    def live_on(self) -> None:
        self._array[:] = self._rng.random(4)
        with torch.no_grad():
            self.weights += 1
            self.network.weight += 1
        self.counter._count += 1
        self.pair = Pair(self.pair.mean + 1, self.pair.count + 1)
        self.parts["counter"]._count += 2
        self.recent.extend([1.0, 2.0])
        self.names["a"] = [1, 2]
        self.best = 3.5


def from_disk(state: dict[str, Any]) -> dict[str, Any]:
    return join(*split(copy.deepcopy(state)))


def test_a_state_goes_through_a_checkpoint_and_into_another_object_exactly() -> None:
    source, target = Everything(0), Everything(1)
    source.live_on()
    target.load_state_dict(from_disk(source.state_dict()))
    assert torch.equal(target.weights, source.weights)
    assert torch.equal(target.network.weight, source.network.weight)
    assert np.array_equal(target._array, source._array)
    assert (target.counter._count, target.parts["counter"]._count) == (1, 2)
    assert isinstance(target.pair, Pair)
    assert target.pair.count == 1
    assert np.array_equal(target.pair.mean, source.pair.mean)
    assert np.array_equal(target.parts["bias"], source.parts["bias"])
    assert target.recent == deque([1.0, 2.0])
    assert target.recent.maxlen == 3
    assert target.names == {"a": [1, 2]}
    assert target.best == 3.5
    assert np.array_equal(target.hidden, source.hidden)
    assert np.array_equal(target._rng.random(5), source._rng.random(5))


def test_keys_are_the_names_without_underscores() -> None:
    assert list(Everything(0).state_dict())[:3] == ["weights", "array", "rng"]
    assert Counter().state_dict() == {"count": 0}


def test_arrays_tensors_and_parts_are_written_in_place() -> None:
    source, target = Everything(0), Everything(1)
    kept = [target.weights, target._array, target._rng, target.network.weight, target.counter]
    held = [*target.hidden, target.pair.mean, target.parts["bias"], target.recent, target.names]
    target.load_state_dict(from_disk(source.state_dict()))
    now = [target.weights, target._array, target._rng, target.network.weight, target.counter]
    inner = [*target.hidden, target.pair.mean, target.parts["bias"], target.recent, target.names]
    assert all(a is b for a, b in zip(kept + held, now + inner, strict=True))
    assert target.weights.requires_grad


def test_nothing_is_shared_with_a_loaded_state() -> None:
    source, target = Everything(0), Everything(1)
    source.live_on()
    state = from_disk(source.state_dict())
    target.load_state_dict(state)
    before = split(copy.deepcopy(target.state_dict()))
    state["array"][:] = 0
    state["names"]["a"].append(7)
    state["recent"].append(9.0)
    after = split(target.state_dict())
    assert after[0] == before[0]
    assert all(torch.equal(after[1][name], before[1][name]) for name in before[1])


def test_a_subclass_adds_to_the_fields_of_its_bases() -> None:
    class Second(Counter):
        state_fields = ("total",)

        def __init__(self) -> None:
            super().__init__()
            self.total = 5.0

    target = Second()
    assert target.state_dict() == {"count": 0, "total": 5.0}
    target.load_state_dict({"count": 3, "total": 1.5})
    assert (target._count, target.total) == (3, 1.5)


def test_a_field_may_be_a_property() -> None:
    class Clock(Stateful):
        state_fields = ("elapsed",)

        def __init__(self) -> None:
            self._before, self._now = 2.0, 3.0

        @property
        def elapsed(self) -> float:
            return self._before + self._now

        @elapsed.setter
        def elapsed(self, value: float) -> None:
            self._before, self._now = value, 0.0

    clock = Clock()
    assert clock.state_dict() == {"elapsed": 5.0}
    clock.load_state_dict({"elapsed": 7.0})
    assert clock.elapsed == 7.0


def wrong(**changes: Any) -> dict[str, Any]:
    return from_disk(Everything(0).state_dict()) | changes


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (wrong(array=np.zeros(3)), r"array: expected an array float64\[4\], found .*\[3\]"),
        (wrong(array=np.zeros(4, np.float32)), r"array: expected .*float64.*found.*float32"),
        (wrong(array=torch.zeros(4)), r"array: expected an array .* found a tensor"),
        (wrong(array=1.0), "array: expected an array"),
        (wrong(weights=torch.zeros(2, 3)), r"weights: expected .*float64.*found.*float32"),
        (wrong(weights=torch.zeros(3, 2, dtype=torch.float64)), r"weights: .*\[2, 3\].*\[3, 2\]"),
        (wrong(best=np.zeros(2)), "best: expected None, found an array"),
        (wrong(counter={"count": 1.5}), "counter.count: expected int, found float '1.5'"),
        (wrong(counter={"count": True}), "counter.count: expected int, found bool"),
        (wrong(counter={}), "counter: count is missing"),
        (wrong(counter={"count": 1, "more": 2}), "counter: more is unknown"),
        (wrong(counter=3), "counter: expected a dict"),
        (wrong(parts={"counter": {"count": 1}}), "parts: bias is missing"),
        (wrong(parts={"counter": {"count": ""}, "bias": np.zeros(1)}), "parts.counter.count: exp"),
        (wrong(pair={"mean": np.zeros(2)}), "pair: count is missing"),
        (wrong(pair=(np.zeros(2), 1)), "pair: expected a dict of mean, count, found a tuple"),
        (wrong(recent=[1.0] * 4), "recent: expected at most 3 items"),
        (wrong(recent=[np.zeros(2)]), r"recent\[0\]: expected numbers and text, found an array"),
        (wrong(names=[1]), "names: expected a dict"),
        (wrong(names={"a": torch.zeros(1)}), "names.a: expected numbers and text"),
        (wrong(hidden=(np.zeros(2),)), "hidden: expected 2 items"),
        (wrong(hidden=[np.zeros(2)] * 2), "hidden: expected a tuple, found a list"),
        (wrong(network={"weight": torch.zeros(2, 2)}), "network: bias is missing"),
        (
            wrong(network={"weight": torch.zeros(2, 2), "bias": torch.zeros(2).double()}),
            "network.bias: expected a tensor torch.float32",
        ),
        (wrong(rng={}), "rng: the state of a random generator is malformed"),
        (wrong(rng=generator_state(np.random.Generator(np.random.MT19937(0)))), "rng: .*malformed"),
        ([], "expected a dict of weights, array"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_its_field(state: Any, message: str) -> None:
    target = Everything(0)
    with pytest.raises(CheckpointError, match=f"^{message}"):
        target.load_state_dict(state)


def test_missing_and_unknown_fields_are_named() -> None:
    state = wrong(more=1)
    del state["array"]
    with pytest.raises(CheckpointError, match=r"^array is missing, more is unknown: "):
        Everything(0).load_state_dict(state)


def test_whole_numbers_are_numbers_and_numpy_numbers_count_by_their_kind() -> None:
    class Sum(Stateful):
        state_fields = ("total", "count")

        def __init__(self) -> None:
            self.total: float = 0.0
            self.count = 0

    target = Sum()
    target.load_state_dict({"total": 3, "count": np.int64(4)})
    assert (type(target.total), target.total, target.count) == (float, 3.0, 4)
    target.load_state_dict({"total": np.float32(0.5), "count": 1})
    assert type(target.total) is np.float32


def test_an_error_of_a_foreign_part_names_the_field() -> None:
    class Foreign:
        def state_dict(self) -> dict[str, Any]:
            return {"x": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("y")

    class Holder(Stateful):
        state_fields = ("part",)

        def __init__(self) -> None:
            self.part = Foreign()

    with pytest.raises(CheckpointError, match=r"^part: KeyError\('y'\)"):
        Holder().load_state_dict({"part": {"x": 1}})


def test_what_cannot_be_saved_is_named() -> None:
    class Odd(Stateful):
        state_fields = ("items",)

        def __init__(self) -> None:
            self.items = [{1, 2}]

    with pytest.raises(UsageError, match=r"Odd.items\[0\] cannot be saved: .* found builtins.set"):
        Odd().state_dict()


def test_fields_are_declared_as_a_tuple_and_once() -> None:
    with pytest.raises(TypeError, match="expected a tuple of names"):

        class Text(Stateful):
            state_fields = "mean"  # type: ignore[assignment]

    with pytest.raises(TypeError, match="declared twice"):

        class Twice(Counter):
            state_fields = ("count",)


def test_a_read_only_array_is_replaced() -> None:
    class Frozen(Stateful):
        state_fields = ("flags",)

        def __init__(self) -> None:
            self.flags = np.broadcast_to(False, 2)

    target = Frozen()
    target.load_state_dict({"flags": np.array([True, False])})
    assert target.flags.tolist() == [True, False]


KINDS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


def generators(seed: int) -> list[Any]:
    numpy = [np.random.Generator(getattr(np.random, kind)(seed)) for kind in KINDS]
    return [*numpy, np.random.RandomState(seed), random.Random(seed)]


def draw(generator: Any) -> list[float]:
    if isinstance(generator, np.random.Generator):
        return generator.standard_normal(7, np.float32).tolist() + generator.random(3).tolist()
    gauss = generator.gauss if isinstance(generator, random.Random) else generator.normal
    return [gauss(0, 1) for _ in range(5)] + [generator.random() for _ in range(3)]


@pytest.mark.parametrize("index", range(len(KINDS) + 2))
def test_a_generator_goes_on_from_its_state(index: int) -> None:
    source, target = generators(0)[index], generators(1)[index]
    draw(source)
    state = join(*split(generator_state(source)))
    set_generator_state(target, state)
    assert draw(target) == draw(source)


@pytest.mark.parametrize("index", range(len(KINDS) + 2))
def test_every_number_of_a_generator_s_state_is_checked(index: int) -> None:
    # NumPy itself would take a position behind its buffer, and read there.
    generator = generators(0)[index]
    positions = {"pos": 625, "buffer_pos": 5}

    def forged(state: dict[str, Any]) -> list[dict[str, Any]]:
        found = [{key: v for key, v in state.items() if key != gone} for gone in state]
        for key, value in state.items():
            bad: list[Any] = [b"x", [1], {}, positions.get(key, -1)]
            if isinstance(value, np.ndarray):
                bad += [value[:-1], value.astype(np.float64), -1]
            elif isinstance(value, dict):
                bad += forged(value)
            elif isinstance(value, int):
                bad += [-1, 1.5, 2**130]
            found += [state | {key: b} for b in bad]
        return found

    states = forged(generator_state(generator))
    assert len(states) > 10
    for state in states:
        with pytest.raises(CheckpointError, match="random generator is malformed"):
            set_generator_state(generator, state)


def global_draws() -> list[float]:
    return [random.gauss(0, 1), np.random.normal(), float(torch.rand(())), random.random()]


def test_the_global_generators_go_on_from_their_saved_state() -> None:
    before = global_generator_state()
    random.seed(1)
    random.gauss(0, 1)  # keeps a second number for the next call
    state = join(*split(copy.deepcopy(global_generator_state())))
    expected = global_draws()
    global_draws()
    restore_global_generators(state)
    assert global_draws() == expected
    state["numpy"]["state"]["pos"] = 10**6
    with pytest.raises(CheckpointError, match="random generator is malformed"):
        restore_global_generators(state)
    with pytest.raises(CheckpointError, match="torch's generators"):
        restore_global_generators(before | {"torch": torch.zeros(3, dtype=torch.uint8)})
    restore_global_generators(before)


def test_tensors_of_a_state_carry_no_gradient() -> None:
    weights = Everything(0).state_dict()["weights"]
    assert isinstance(weights, Tensor)
    assert not weights.requires_grad


def test_a_subclass_adds_to_what_counts() -> None:
    class Base(Stateful):
        state_fields = ("passed",)
        state_counts = ("passed",)

        def __init__(self) -> None:
            self.passed = self.updates = 0

    class More(Base):
        state_fields = ("updates",)
        state_counts = ("updates",)

    More().load_state_dict({"passed": 3, "updates": 2})
    for name in ("passed", "updates"):
        with pytest.raises(CheckpointError, match=f"{name}: expected a natural number"):
            More().load_state_dict({"passed": 3, "updates": 2} | {name: -1})
