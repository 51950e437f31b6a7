from __future__ import annotations

import json
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from io import BufferedReader, BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load, save

from rl_training.errors import CheckpointError, UsageError
from rl_training.storage.tensor_file import file_chunks, read_tensors, tensor_bytes
from rl_training.storage.tree import MAX_DEPTH, Encoded, join, split, tree_hash


def round_trip(tree: Any) -> Any:
    """Through JSON text and the bytes of a tensor file, as a checkpoint does it."""
    structure, tensors = split(tree)
    data = b"".join(file_chunks(tensors))
    read = read_tensors(BufferedReader(BytesIO(data)), len(data))
    return join(json.loads(json.dumps(structure, allow_nan=False)), read)


def assert_same(a: Any, b: Any) -> None:
    """Equal to the bit, in type, dtype, shape and order of keys."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert_same(list(a), list(b))
        assert_same(list(a.values()), list(b.values()))
        if isinstance(a, defaultdict):
            assert a.default_factory is b.default_factory
    elif isinstance(a, list | tuple | deque):
        assert len(a) == len(b)
        assert getattr(a, "maxlen", None) == getattr(b, "maxlen", None)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bytes(tensor_bytes(a)) == bytes(tensor_bytes(b))
    elif isinstance(a, np.ndarray | np.generic):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, float | complex):
        assert struct.pack("2d", a.real, a.imag) == struct.pack("2d", b.real, b.imag)
    else:
        assert a == b


dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.unicode_string_dtypes(max_len=3),
    hnp.byte_string_dtypes(max_len=3),
)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=2**53 - 2, max_value=2**130),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.builds(range, st.integers(), st.integers(), st.integers(1, 9)),
    st.sets(st.text(max_size=2) | st.integers() | st.binary(max_size=2), max_size=4),
    st.frozensets(st.tuples(st.integers(), st.text(max_size=2)), max_size=3),
    arrays,
    arrays.filter(lambda a: a.ndim == 0 and a.dtype.kind not in "US").map(lambda a: a[()]),
    hnp.arrays(st.sampled_from(["?", "u1", "i8", "f4", "f8"]), (2, 3)).map(torch.from_numpy),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=3)),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.integers() | st.binary(max_size=3), inner, max_size=3),
        st.dictionaries(st.tuples(st.integers()), inner, max_size=2).map(OrderedDict),
        st.dictionaries(st.text(max_size=2), inner, max_size=2).map(
            lambda items: defaultdict(list, items)
        ),
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(trees)
def test_any_tree_comes_back_equal_to_the_bit(tree: Any) -> None:
    restored = round_trip(tree)
    assert_same(tree, restored)
    assert tree_hash(tree) == tree_hash(restored)


@pytest.mark.parametrize(
    "leaf",
    [
        np.random.PCG64(1).state["state"]["state"],
        -(2**200),
        -0.0,
        math.nan,
        -math.inf,
        struct.unpack("d", struct.pack("Q", 0x7FF8_0000_DEAD_BEEF))[0],
        np.float32(1.5),
        np.bool_(True),
        np.uint64(2**64 - 1),
        np.str_("a\0b"),
        np.bytes_(b"a\0b"),
        np.datetime64("2026-01-01"),
        np.array(2**32 - 1, np.uint32),
        torch.tensor(2**16 - 1, dtype=torch.uint16),
        torch.tensor([[1 + 2j]], dtype=torch.complex128),
        torch.tensor([1.0, 3.0]).bfloat16(),
        torch.zeros(2, 0, 3),
        torch.ones(1).as_strided((1,), (0,)),
        np.random.MT19937(3).state["state"]["key"],
        Counter("abca"),
        defaultdict(None, a=1),
        {b"x" * 50 + b"1": b"1", b"x" * 50 + b"2": b"2"},
        {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}, "~1": b"", "": [], "__metadata__": b"x"},
    ],
    ids=repr,
)
def test_awkward_leaves_come_back(leaf: Any) -> None:
    assert_same(leaf, round_trip(leaf))


def test_a_restored_pcg64_continues_the_same_sequence() -> None:
    generator = np.random.default_rng(7)
    generator.random(11)
    twin = np.random.default_rng(0)
    twin.bit_generator.state = round_trip(generator.bit_generator.state)
    assert generator.random(5).tolist() == twin.random(5).tolist()


def test_generators_come_back_and_go_on() -> None:
    generators = [np.random.default_rng(1), np.random.RandomState(2), random.Random(3)]
    for generator, twin in zip(generators, round_trip(generators), strict=True):
        assert type(twin) is type(generator)
        assert [twin.random() for _ in range(5)] == [generator.random() for _ in range(5)]


def test_a_generator_that_spawned_children_goes_on_to_spawn_others() -> None:
    generator = np.random.default_rng(1)
    generator.spawn(2)
    twin = round_trip(generator)
    assert twin.spawn(1)[0].random() == generator.spawn(1)[0].random()


def test_memory_order_is_kept() -> None:
    wide = np.asfortranarray(np.arange(6, dtype=np.uint64).reshape(2, 3))
    for array in (wide, wide.astype(np.float32)):
        restored = round_trip(array)
        assert restored.flags.f_contiguous
        assert np.array_equal(restored, array)


def test_what_is_encoded_stays_encoded() -> None:
    encoded = Encoded({"list": [{"array": "0"}, 1]}, {"0": np.arange(3, dtype=np.uint16)})
    restored = round_trip({"env": encoded})["env"]
    assert type(restored) is Encoded
    assert restored.node == encoded.node
    assert_same(restored.arrays, encoded.arrays)


def test_views_into_one_flat_buffer_are_saved_apart() -> None:
    flat = torch.arange(6.0)
    tree = {"flat": flat, "head": flat[:2], "column": flat.view(2, 3).T, "again": flat}
    restored = round_trip(tree)
    assert restored["head"].tolist() == [0.0, 1.0]
    assert restored["column"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    restored["flat"].zero_()
    assert restored["again"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_contiguous_memory_is_not_copied() -> None:
    tensor, array, wide = torch.ones(4), np.ones(4), np.ones(4, np.uint32)
    _, tensors = split([tensor, array, wide, torch.nn.Parameter(tensor)])
    assert tensors["/0"].data_ptr() == tensors["/3"].data_ptr() == tensor.data_ptr()
    assert tensors["/1"].data_ptr() == array.ctypes.data
    assert tensors["/2"].data_ptr() == wide.ctypes.data
    assert not tensors["/3"].requires_grad


def test_read_only_and_strided_arrays_are_saved() -> None:
    array = np.arange(6, dtype=np.int16)
    array.flags.writeable = False
    assert_same(round_trip(array[::-2]), np.array([5, 3, 1], np.int16))


def test_a_dict_of_another_class_comes_back_as_a_dict_in_order() -> None:
    class Derived(dict[str, Any]):
        pass

    assert_same(round_trip(Derived(b=1, a=True)), {"b": 1, "a": True})


Pair = namedtuple("Pair", "x y")
cycle: list[Any] = []
cycle.append(cycle)


@pytest.mark.parametrize(
    ("tree", "where", "found"),
    [
        ({"state": {object: 1}}, "at /state/<class 'object'> as key ", "builtins.type"),
        ({"a": [1, {2, ...}]}, "at /a/1/1 ", "builtins.ellipsis"),
        ([defaultdict(lambda: 0)], "at /0 ", "a defaultdict with the factory <function"),
        ([np.array([object()])], "at /0 ", "dtype object"),
        ([np.zeros(1, [("x", "f4")])], "at /0 ", "dtype"),
        (Pair(1, 2), "at / ", "Pair"),
        (torch.ones(2).to_sparse(), "at / ", "layout torch.sparse_coo"),
        (torch.ones(2, device="meta"), "at / ", "on meta"),
        (["\ud800"], "at /0 ", "not valid Unicode"),
        (lambda: None, "at / ", "function"),
        (cycle, "at /0/0/0 ", f"more than {MAX_DEPTH} levels"),
    ],
)
def test_what_cannot_be_saved_is_named(tree: Any, where: str, found: str) -> None:
    with pytest.raises(UsageError) as error:
        split(tree)
    assert where in str(error.value)
    assert found in str(error.value)


@pytest.mark.parametrize(
    "structure",
    [
        {"unknown": 1},
        {},
        {"tensor": "/x", "more": 1},
        {"tensor": "/y"},
        [{"tensor": "/x"}, {"tensor": "/x"}],
        None,  # the tensor is not used
        {"dict": []},
        {"list": {"a": 1}},
        {"list": "ab"},
        {"list": [], "maxlen": 3},
        {"deque": [1], "maxlen": "3"},
        {"deque": [1]},
        {"set": [{"list": []}]},
        {"map": [[1]]},
        {"map": [[{"dict": {}}, 1]]},
        {"map": {"a": 1}},
        {"dict": {}, "class": "UserDict"},
        {"dict": {}, "class": "defaultdict"},
        {"dict": {}, "class": "defaultdict", "factory": "eval"},
        {"complex": [1.0]},
        {"complex": ["1", "2"]},
        {"range": [0, 1, 0]},
        {"range": [0.5, 1, 1]},
        {"generator": 3},
        {"generator": {"dict": {"bit_generator": "seed"}}},
        {"generator": {"dict": {"bit_generator": "PCG64"}}},
        {"random_state": {"dict": {}}},
        {"random": {"dict": {"version": 3}}},
        {"encoded": 1},
        {"encoded": 1, "arrays": {"dict": {"x": 3}}},
        {"encoded": 1, "arrays": {"dict": {"x": {"tensor": "/x"}}}},
        {"array": "/x", "order": "K"},
        {"int": 3},
        {"int": "zz"},
        {"float": "00"},
        {"bytes": "/x"},
        {"scalar": "O", "hex": "00"},
        {"scalar": "<f4", "hex": "0000"},
        {"scalar": "<f4", "hex": "00" * 8},
        {"scalar": "U", "hex": "ff"},
        {"array": "/x", "dtype": "<U1", "shape": [1]},
        {"tensor": "/x", "dtype": "uint16", "shape": [2]},
        json.loads("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2)),
    ],
)
def test_a_malformed_structure_is_refused(structure: Any) -> None:
    with pytest.raises(CheckpointError, match="malformed"):
        join(structure, {"/x": torch.ones(2)})


def test_a_seed_sequence_cannot_ask_for_memory() -> None:
    generator = np.random.default_rng(1)
    generator.spawn(1)
    structure, tensors = split(generator)
    structure["seed"]["dict"]["pool_size"] = 10**15
    with pytest.raises(CheckpointError, match="pool of that size"):
        join(structure, tensors)


@pytest.mark.parametrize("shape", [[3], [-4], [2**70], [0, 2**62], [1] * 40, ["4"], "4", [4.0]])
def test_raw_bytes_need_the_right_shape(shape: Any) -> None:
    with pytest.raises(CheckpointError):
        join({"array": "/x", "dtype": "<u4", "shape": shape}, {"/x": torch.zeros(16).byte()})


def test_the_hash_sees_every_bit_and_type_but_not_the_order_of_keys() -> None:
    base = {"w": torch.tensor([1.0, 0.0]), "n": 1}
    different = [
        {"w": torch.tensor([1.0, -0.0]), "n": 1},
        {"w": torch.tensor([[1.0, 0.0]]), "n": 1},
        {"w": torch.tensor([1.0, 0.0]).double(), "n": 1},
        {"w": np.array([1.0, 0.0], np.float32), "n": 1},
        {"w": torch.tensor([1.0, 0.0]), "n": 1.0},
        {"w": torch.tensor([1.0, 0.0]), "n": True},
        {"v": torch.tensor([1.0, 0.0]), "n": 1},
    ]
    assert tree_hash(base) == tree_hash({"n": 1, "w": torch.tensor([1.0, 0.0])})
    assert len({tree_hash(tree) for tree in [base, *different]}) == 8


def test_the_files_are_ordinary_safetensors_files_both_ways() -> None:
    tensors = {
        "/half": torch.ones(3).half(),
        "/double": torch.arange(4.0).double(),
        "/mask": torch.tensor([True, False]),
        "/scalar": torch.tensor(5),
    }
    theirs = load(b"".join(file_chunks(tensors)))
    assert {name: t.tolist() for name, t in theirs.items()} == {
        name: t.tolist() for name, t in tensors.items()
    }
    data = save(tensors)
    ours = read_tensors(BufferedReader(BytesIO(data)), len(data))
    assert {name: (t.dtype, t.tolist()) for name, t in ours.items()} == {
        name: (t.dtype, t.tolist()) for name, t in tensors.items()
    }
