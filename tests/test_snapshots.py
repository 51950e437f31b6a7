"""States of environments: what is saved, what a restore gives back, and which level that earns."""

from __future__ import annotations

import json
import random
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import IntFlag
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import toy_envs
from rl_training.envs.factory import make_vector_env
from rl_training.envs.snapshots import objects, probe
from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.vector import (
    load_env_state,
    load_vector_state,
    resume_level,
    save_env_state,
    save_vector_state,
)
from rl_training.errors import CheckpointError
from rl_training.storage.tree import join, split
from toy_envs import Cell, CountingEnv, Heading, Monster, RandomWalkEnv, Slotted, ZooEnv

CLASSIC = ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"]
TOY_TEXT = ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"]
MUJOCO = ["InvertedPendulum-v5", "Hopper-v5", "Humanoid-v5"]


def maker(
    source: Any, num_envs: int = 2, kind: str = "sync", wrappers: tuple[Any, ...] = ()
) -> Callable[[], VectorEnv]:
    return lambda: make_vector_env(
        source, num_envs=num_envs, vectorization=kind, env_kwargs={}, wrappers=wrappers
    )


def through_a_file(state: Any) -> Any:
    """What a checkpoint makes of a state: JSON text and tensors, and back."""
    structure, tensors = split(state)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    return join(json.loads(json.dumps(structure, allow_nan=False)), copies)


def replays_exactly(
    make: Callable[[], VectorEnv],
    *,
    steps: int = 23,
    more: int = 60,
    tamper: Callable[[Any], None] = lambda state: None,
) -> bool:
    """Whether an env that takes over a state after `steps` goes on like the one it came from."""
    first, second = make(), make()
    try:
        actions = probe.random_actions(first, steps + more, seed=0)
        first.reset(seed=0)
        second.reset(seed=99)
        probe.play(first, actions[:steps])
        state = through_a_file(save_vector_state(first))
        tamper(state)
        load_vector_state(second, state)
        return probe.bitwise_equal(
            probe.play(first, actions[steps:]), probe.play(second, actions[steps:])
        )
    finally:
        first.close()
        second.close()


class TestLevel:
    @pytest.mark.parametrize("env_id", CLASSIC + TOY_TEXT)
    def test_gymnasiums_small_envs_are_exact(self, env_id: str) -> None:
        assert resume_level(maker(env_id), seed=1).level == "exact"

    @pytest.mark.extra("mujoco")
    @pytest.mark.parametrize("env_id", MUJOCO)
    def test_gymnasiums_mujoco_envs_are_exact(self, env_id: str) -> None:
        assert resume_level(maker(env_id), seed=1).level == "exact"

    @pytest.mark.parametrize("source", ["CartPole-v1", "Taxi-v4", "toy_envs:ZooEnv"])
    def test_envs_in_workers_are_exact_too(self, source: str) -> None:
        assert resume_level(maker(source, kind="async"), seed=1).level == "exact"

    def test_native_vector_env_is_exact(self) -> None:
        make = maker(lambda: gym.make_vec("CartPole-v1", num_envs=3), 3)
        assert resume_level(make, seed=1).level == "exact"

    @pytest.mark.parametrize(
        "name", ["RandomWalkEnv", "ZooEnv", "OwnStateEnv", "NaNEnv", "ClosureEnv"]
    )
    def test_plain_attributes_and_own_state_are_exact(self, name: str) -> None:
        assert resume_level(maker(f"toy_envs:{name}"), seed=1).level == "exact"

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("toy_envs:FileEnv", r"FileEnv\.log is a _io\.TextIOWrapper"),
            ("toy_envs:GeneratorEnv", r"GeneratorEnv\.stream is a builtins\.generator"),
            ("toy_envs:HiddenStateEnv", r"outside the environment has changed: toy_envs:_HIDDEN"),
            ("toy_envs:SetOrderEnv", r"went another way"),
            pytest.param(
                "LunarLander-v3",
                r"LunarLander\.world.*SwigPyObject",
                marks=pytest.mark.extra("box2d"),
            ),
        ],
    )
    def test_unsaved_but_fixed_by_the_seed_is_boundary(
        self, source: str, reason: str, kind: str
    ) -> None:
        level = resume_level(maker(source, 1, kind), seed=1)
        assert level.level == "boundary"
        assert re.search(reason, level.reason)

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("GlobalRandomEnv", "global random generator"),
            ("LeakyEnv", "different answers"),
            ("RaisingEnv", "RuntimeError in step: the robot fell over"),
        ],
    )
    def test_everything_else_is_statistical(self, name: str, reason: str) -> None:
        level = resume_level(maker(f"toy_envs:{name}"), seed=1)
        assert level.level == "statistical"
        assert reason in level.reason

    def test_worker_that_raises_is_statistical(self) -> None:
        level = resume_level(maker("toy_envs:RaisingEnv", kind="async"), seed=1)
        reason = "the environment raised RuntimeError in step: the robot fell over"
        assert level == ("statistical", reason)

    def test_env_that_cannot_be_built_is_statistical(self) -> None:
        assert resume_level(maker("CartPol-v1"), seed=1).level == "statistical"

    def test_built_env_is_statistical_and_says_what_to_pass(self) -> None:
        level = resume_level(None, seed=1)
        assert level.level == "statistical"
        assert "pass a callable" in level.reason

    @pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
    def test_every_autoreset_mode_of_a_sync_env_is_exact(self, mode: str) -> None:
        def make() -> VectorEnv:
            return SyncVectorEnv([lambda: CountingEnv(length=4)] * 2, autoreset_mode=mode)

        assert resume_level(make, seed=1).level == "exact"

    def test_a_state_lost_between_episodes_is_not_boundary(self) -> None:
        # The running mean survives a reset, so no reset seed brings it back.
        level = resume_level(maker("toy_envs:FileEnv", wrappers=("NormalizeObservation",)), seed=1)
        assert level.level == "statistical"

    def test_the_global_generators_are_left_alone(self) -> None:
        before = probe.global_generators()
        resume_level(maker("toy_envs:GlobalRandomEnv"), seed=1)
        assert probe.bitwise_equal(before, probe.global_generators())

    def test_all_envs_are_closed(self) -> None:
        built = []

        def make() -> VectorEnv:
            built.append(maker("toy_envs:FileEnv", 1)())
            return built[-1]

        resume_level(make, seed=1)
        assert len(built) == 3
        assert all(envs.envs[0].unwrapped.log.closed for envs in built)


class TestReplay:
    @pytest.mark.parametrize("steps", [1, 37])
    @pytest.mark.parametrize("source", ["CartPole-v1", "Blackjack-v1", "toy_envs:ZooEnv"])
    def test_goes_on_through_a_file_as_if_never_stopped(self, source: str, steps: int) -> None:
        assert replays_exactly(maker(source), steps=steps, more=120)

    def test_a_lost_generator_is_noticed(self) -> None:
        def tamper(state: Any) -> None:
            node = state["envs"][0].node["layers"][-1]["attributes"]["_np_random"]
            inner = node["generator"]["dict"]["state"]["dict"]["state"]
            inner["int"] = hex(int(inner["int"], 16) + 1)

        assert not replays_exactly(maker("toy_envs:RandomWalkEnv"), tamper=tamper)

    @pytest.mark.parametrize(
        "wrapper",
        [
            {"TimeLimit": {"max_episode_steps": 30}},
            {"FrameStackObservation": {"stack_size": 4}},
            {"DelayObservation": {"delay": 2}},
            {"StickyAction": {"repeat_action_probability": 0.3}},
            "NormalizeObservation",
            "NormalizeReward",
            "RecordEpisodeStatistics",
            "TimeAwareObservation",
        ],
    )
    def test_wrappers_go_along(self, wrapper: Any) -> None:
        assert replays_exactly(maker("CartPole-v1", wrappers=(wrapper,)))

    def test_time_limit_counts_on(self) -> None:
        make = maker(CountingEnv, 1, wrappers=({"TimeLimit": {"max_episode_steps": 4}},))
        first, second = make(), make()
        first.reset(seed=0)
        second.reset(seed=0)
        for _ in range(3):
            first.step(np.zeros(1, np.int64))
        load_vector_state(second, save_vector_state(first))
        assert second.step(np.zeros(1, np.int64))[3].tolist() == [True]

    @pytest.mark.parametrize("name", ["RecordEpisodeStatistics", "NormalizeObservation"])
    def test_vector_wrappers_go_along(self, name: str) -> None:
        wrapper = getattr(gym.wrappers.vector, name)
        make = maker(lambda: wrapper(gym.make_vec("CartPole-v1", num_envs=3)), 1)
        assert replays_exactly(make)

    def test_pending_reset_of_next_step_mode_goes_along(self) -> None:
        def make() -> VectorEnv:
            return SyncVectorEnv([lambda: CountingEnv(length=3)])

        first, second = make(), make()
        first.reset(seed=0)
        second.reset(seed=0)
        for _ in range(3):
            first.step(np.zeros(1, np.int64))
        load_vector_state(second, through_a_file(save_vector_state(first)))
        obs, reward, *_ = second.step(np.zeros(1, np.int64))
        assert (obs.tolist(), reward.tolist()) == ([[1, 0]], [0.0])  # the row that only resets

    @pytest.mark.extra("mujoco")
    def test_positions_of_the_last_pass_go_along(self) -> None:
        # Humanoid reads its centre of mass before it steps; without these arrays it differs.
        def tamper(state: Any) -> None:
            node, arrays = state["envs"][0]
            arrays[node["layers"][-1]["mujoco"]["dict"]["xipos"]["array"]] += 1e-9

        assert replays_exactly(maker("Humanoid-v5", 1), steps=10, more=5)
        assert not replays_exactly(maker("Humanoid-v5", 1), steps=10, more=5, tamper=tamper)

    def test_own_state_takes_the_generator_along(self) -> None:
        assert replays_exactly(maker("toy_envs:OwnStateEnv"))


class Holder(gym.Env[Any, Any]):
    """An env that is nothing but its attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Flags(IntFlag):
    A = 1
    B = 2


class WithDel:
    def __del__(self) -> None:
        """Does nothing, but could."""


def restored(saved: Holder, fresh: Holder) -> Holder:
    load_env_state(fresh, through_a_file(save_env_state(saved)))
    return fresh


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**130), 2**130),
        st.floats(allow_nan=False),
        st.complex_numbers(allow_nan=False),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.sampled_from([Heading.UP, Flags.A | Flags.B, Cell(1, 2), range(1, 9, 3)]),
        st.builds(np.float32, st.floats(width=32, allow_nan=False)),
        st.builds(np.str_, st.text("ab", max_size=3)),
        st.frozensets(st.integers(), max_size=4),
        st.sets(st.text(max_size=2) | st.integers(), max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda items: deque(items, maxlen=3)),
        st.dictionaries(st.integers() | st.text(max_size=3) | st.tuples(st.integers()), inner),
        st.dictionaries(st.text(max_size=2), inner).map(OrderedDict),
    ),
    max_leaves=8,
)
ARRAYS = hnp.arrays(
    st.sampled_from(["f4", "f8", ">f4", "i8", "u1", "?", "c8", "S3", "U2", "M8[s]"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


class TestValues:
    @settings(max_examples=150, deadline=None)
    @given(saved=VALUES, fresh=VALUES)
    def test_any_value_comes_back_over_any_other(self, saved: Any, fresh: Any) -> None:
        result = restored(Holder(a=saved, b=[saved]), Holder(a=fresh, b=[fresh]))
        assert repr(sorted_sets(result.a)) == repr(sorted_sets(saved))
        assert repr(sorted_sets(result.b)) == repr(sorted_sets([saved]))

    @settings(max_examples=60, deadline=None)
    @given(saved=ARRAYS, fresh=ARRAYS)
    def test_any_array_comes_back_to_the_bit(self, saved: np.ndarray, fresh: np.ndarray) -> None:
        result = restored(Holder(a=saved), Holder(a=fresh)).a
        assert (result.dtype, result.shape) == (saved.dtype, saved.shape)
        assert result.tobytes() == saved.tobytes()

    def test_memory_order_is_kept(self) -> None:
        saved = np.asfortranarray(np.arange(6.0).reshape(2, 3))
        result = restored(Holder(a=saved), Holder(a=None)).a
        assert result.flags.f_contiguous
        assert np.array_equal(result, saved)

    def test_a_state_is_json_and_arrays(self) -> None:
        envs = maker("toy_envs:ZooEnv")()
        envs.reset(seed=0)
        probe.play(envs, probe.random_actions(envs, 20, seed=0))
        state = save_vector_state(envs)
        for node, arrays in [state["vector"], *state["envs"]]:
            assert json.loads(json.dumps(node, allow_nan=False)) == node
            assert {type(array) for array in arrays.values()} == {np.ndarray}
            assert all(array.dtype.kind in "biuf" for array in arrays.values())

    def test_a_state_can_be_restored_twice(self) -> None:
        state = save_env_state(Holder(a=np.zeros(2)))
        first, second = Holder(a=None), Holder(a=None)
        for env in (first, second):
            load_env_state(env, state)
        first.a += 1
        assert second.a.tolist() == [0, 0]

    def test_shared_and_cyclic_objects_stay_shared_and_cyclic(self) -> None:
        items: list[Any] = [1]
        items.append(items)
        result = restored(Holder(a=items, b=items), Holder(a=[], b=[0]))
        assert result.a is result.b
        assert result.a[1] is result.a
        assert result.a[0] == 1

    def test_separate_objects_do_not_become_one(self) -> None:
        one = np.zeros(2)
        result = restored(Holder(a=np.ones(2), b=np.full(2, 2.0)), Holder(a=one, b=one))
        assert (result.a.tolist(), result.b.tolist()) == ([1, 1], [2, 2])

    def test_restores_in_place(self) -> None:
        array, items, rng = np.zeros(2), [0], np.random.default_rng(0)
        fresh = Holder(array=array, view=array[:1], items=items, rng=rng)
        saved_rng = np.random.default_rng(5)
        saved_array = np.ones(2)
        saved = Holder(array=saved_array, view=saved_array[:1], items=[1, 2], rng=saved_rng)
        result = restored(saved, fresh)
        assert result.array is array
        assert result.items is items
        assert items == [1, 2]
        assert rng.random() == saved_rng.random()
        array[0] = 9
        assert result.view[0] == 9

    def test_attributes_that_were_not_there_go_away(self) -> None:
        result = restored(Holder(a=1), Holder(a=2, later=3))
        assert vars(result) == {"a": 1}

    def test_constants_of_a_module_are_not_written_to(self) -> None:
        before = [level.copy() for level in toy_envs.LEVELS]
        saved, fresh = ZooEnv(), ZooEnv()
        for env in (saved, fresh):
            env.reset(seed=0)
        saved.level = toy_envs.LEVELS[2]
        load_env_state(fresh, save_env_state(saved))
        assert fresh.level.tolist() == [2, 2, 2]
        assert all(map(np.array_equal, toy_envs.LEVELS, before))

    def test_objects_of_own_classes_are_made_anew_where_they_are_missing(self) -> None:
        rng = np.random.default_rng(3)
        monsters = [Monster(Cell(1, 1), rng), Monster(Cell(2, 2), rng)]
        monsters[0].target, monsters[1].target = monsters[1], monsters[0]
        result = restored(Holder(rng=rng, monsters=monsters), Holder(rng=None, monsters=[]))
        first, second = result.monsters
        assert (type(first), first.cell, second.cell) == (Monster, Cell(1, 1), Cell(2, 2))
        assert first.target is second
        assert second.target is first
        assert first.rng is second.rng is result.rng

    def test_slots(self) -> None:
        saved, fresh = Slotted(), Slotted()
        saved.count = 4
        fresh.unused = 1
        result = restored(Holder(s=saved), Holder(s=fresh)).s
        assert result.count == 4
        assert not hasattr(result, "unused")

    @pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
    def test_generators_of_every_kind(self, bits: str) -> None:
        saved = np.random.Generator(getattr(np.random, bits)(1))
        saved.random(3, dtype=np.float32)  # leaves half a word in the generator
        fresh = Holder(rng=np.random.default_rng(2))
        result = restored(Holder(rng=saved), fresh).rng
        assert (
            result.random(5, dtype=np.float32).tobytes()
            == saved.random(5, dtype=np.float32).tobytes()
        )

    def test_spawned_generators_go_on_spawning_new_ones(self) -> None:
        saved = np.random.default_rng(1)
        saved.spawn(2)
        result = restored(Holder(rng=saved), Holder(rng=np.random.default_rng(1))).rng
        assert result.spawn(1)[0].random() == saved.spawn(1)[0].random()

    def test_other_generators(self) -> None:
        python, legacy = random.Random(1), np.random.RandomState(1)
        python.gauss(0, 1)
        legacy.normal()
        result = restored(
            Holder(p=python, n=legacy), Holder(p=random.Random(2), n=np.random.RandomState(2))
        )
        assert result.p.gauss(0, 1) == python.gauss(0, 1)
        assert result.n.normal() == legacy.normal()

    def test_generators_inside_spaces(self) -> None:
        def space() -> gym.Space:
            return gym.spaces.Dict({"a": gym.spaces.Discrete(99), "b": gym.spaces.Box(0, 1)})

        saved, fresh = Holder(space=space()), Holder(space=space())
        saved.space.seed(4)
        saved.space.sample()
        restored(saved, fresh)
        assert fresh.space.sample() == saved.space.sample()

    def test_deep_chains_fit_a_checkpoint(self) -> None:
        chain: Any = None
        for _ in range(60):
            chain = [chain]
        depth, node = 0, restored(Holder(a=chain), Holder(a=None)).a
        while node is not None:
            depth, node = depth + 1, node[0]
        assert depth == 60


def sorted_sets(value: Any) -> Any:
    """The value with its sets in a fixed order, as their own order is not kept."""
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(map(repr, value))
    if type(value) in (list, tuple):
        return type(value)(map(sorted_sets, value))
    if isinstance(value, deque):
        return deque(map(sorted_sets, value), value.maxlen)
    if isinstance(value, dict):
        return type(value)((key, sorted_sets(item)) for key, item in value.items())
    return value


class TestUnavailable:
    def local_object() -> Any:
        class Local:
            pass

        return Local()

    def endless() -> Any:
        items: list[Any] = []
        endless = (items,)
        items.append(endless)
        return endless

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (threading.Lock(), "Holder.a is a _thread.lock"),
            (np.array([None]), "Holder.a is an array of dtype object"),
            ([iter([1])], r"Holder.a\[0\] is a builtins.list_iterator"),
            ({"key": memoryview(b"")}, r"Holder.a\['key'\] is a builtins.memoryview"),
            (local_object(), "Holder.a is a .*Local"),
            (WithDel(), "Holder.a is a .*WithDel"),
            (random.SystemRandom(), "Holder.a is a random.SystemRandom"),
            (torch.zeros(1), "Holder.a is a torch.Tensor"),
            (endless(), "contains itself"),
            ("\ud800", "not valid Unicode"),
        ],
    )
    def test_names_the_attribute_and_its_type(self, value: Any, reason: str) -> None:
        with pytest.raises(SnapshotUnavailable, match=reason):
            save_env_state(Holder(a=value))

    def test_too_many_values(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(objects, "MAX_VALUES", 1000)
        with pytest.raises(SnapshotUnavailable, match="beyond the first 1,000 values"):
            save_env_state(Holder(a=list(range(1000))))

    def test_endlessly_nested(self) -> None:
        chain: Any = None
        for _ in range(5000):
            chain = [chain]
        with pytest.raises(SnapshotUnavailable, match="recursion"):
            save_env_state(Holder(a=chain))

    def test_get_state_that_raises(self) -> None:
        class Broken(RandomWalkEnv):
            def get_state(self) -> None:
                raise ValueError("not now")

            def set_state(self, state: Any) -> None:
                pass

        with pytest.raises(SnapshotUnavailable, match=r"get_state.* raised .*not now"):
            save_env_state(Broken())

    def test_async_next_step_keeps_its_flags_in_the_workers(self) -> None:
        envs = maker(CountingEnv, kind="async")()
        makers = envs.env_fns
        envs.close()
        envs = AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
        try:
            with pytest.raises(SnapshotUnavailable, match="NEXT_STEP"):
                save_vector_state(envs)
        finally:
            envs.close()

    @pytest.mark.parametrize("source", [CountingEnv, None], ids=["not ours", "file"])
    def test_workers_survive_a_save_that_fails(self, source: Any) -> None:
        if source:
            envs = AsyncVectorEnv([source], autoreset_mode=AutoresetMode.SAME_STEP)
        else:
            envs = maker("toy_envs:FileEnv", 1, "async")()
        try:
            envs.reset(seed=0)
            with pytest.raises(SnapshotUnavailable):
                save_vector_state(envs)
            assert envs.step(np.zeros(1, np.int64))[2].tolist() == [False]
        finally:
            envs.close()


DEEP: Any = []
for _ in range(100):
    DEEP = [DEEP]


class TestMisfit:
    def state(self) -> Any:
        env = CountingEnv()
        env.reset(seed=0)
        return save_env_state(env)

    def test_other_wrappers(self) -> None:
        env = gym.wrappers.TimeLimit(CountingEnv(), 5)
        with pytest.raises(CheckpointError, match=r"layers CountingEnv .* TimeLimit, CountingEnv"):
            load_env_state(env, self.state())

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_other_number_of_envs(self, kind: str) -> None:
        two, three = maker(CountingEnv, 2)(), maker(CountingEnv, 3, kind)()
        two.reset(seed=0)
        try:
            with pytest.raises(CheckpointError, match="of 2 environments, expected 3"):
                load_vector_state(three, save_vector_state(two))
        finally:
            three.close()

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_other_code(self, kind: str) -> None:
        def reward_a(reward: float) -> float:
            return reward

        def reward_b(reward: float) -> float:
            return -reward

        def make(function: Any, kind: str) -> VectorEnv:
            return maker(CountingEnv, 1, kind, ({"TransformReward": {"func": function}},))()

        saved, fresh = make(reward_a, "sync"), make(reward_b, kind)
        try:
            with pytest.raises(CheckpointError, match=r"reward_a when saved and is .*reward_b now"):
                load_vector_state(fresh, save_vector_state(saved))
        finally:
            fresh.close()

    @pytest.mark.parametrize(
        "node",
        [
            {},
            {"what": 1},
            {"ref": "77"},
            {"ref": "loop"},
            {"ref": "deep"},
            {"layer": 9},
            {"array": "77"},
            {"generator": {"dict": {"bit_generator": "__import__"}}},
            {"scalar": "O", "hex": "00"},
            {"object": "tempfile:_TemporaryFileCloser", "attributes": {}},
            {"object": "string:Template", "attributes": {}},
            {"object": "test_snapshots:WithDel", "attributes": {}},
            {"object": "numpy:ndarray", "attributes": {}},
            {"object": "no_such_module:Thing", "attributes": {}},
            {"enum": "toy_envs:Cell", "member": "UP"},
            {"named": "toy_envs:Monster", "items": []},
            {"list": [{"const": "os:system"}]},
            {"list": [{"space": []}]},
        ],
    )
    def test_forged_nodes_are_refused(self, node: Any) -> None:
        state = self.state()
        state.node["layers"][0]["attributes"]["rewards"] = node
        state.node["shared"] |= {"loop": {"frozenset": [{"ref": "loop"}]}, "deep": DEEP}
        with pytest.raises(CheckpointError):
            load_env_state(CountingEnv(), state)

    @pytest.mark.parametrize("state", [None, {}, [], {"envs": [], "vector": 3}])
    def test_nonsense_is_refused(self, state: Any) -> None:
        with pytest.raises(CheckpointError):
            load_vector_state(gym.make_vec("CartPole-v1", num_envs=1), state)


def test_a_record_keeps_arrays_that_the_env_reuses() -> None:
    envs = SyncVectorEnv([CountingEnv], copy=False)
    envs.reset(seed=0)
    record = probe.play(envs, [np.zeros(1, np.int64)] * 3)
    assert [step[0].tolist() for step in record] == [[[0, 1]], [[0, 2]], [[0, 3]]]


def test_a_record_is_compared_to_the_bit() -> None:
    nan = np.array([np.nan, 1.0])
    assert probe.bitwise_equal([nan, {"a": (1, nan)}], [nan.copy(), {"a": (1, nan.copy())}])
    assert not probe.bitwise_equal(np.zeros(2, np.float32), np.zeros(2, np.float64))
    assert not probe.bitwise_equal(np.array([0.0]), np.array([-0.0]))
    assert not probe.bitwise_equal([nan], [nan, nan])
    finals = np.array([None, nan], dtype=object)
    assert probe.bitwise_equal(finals, finals.copy())
    assert not probe.bitwise_equal(finals, np.array([None, nan + 1], dtype=object))


def test_a_record_of_a_single_env_holds_the_resets_between_its_episodes() -> None:
    record = probe.play_episode(CountingEnv(length=2), [0, 0, 0], seed=4)
    assert [np.asarray(row[0] if isinstance(row, list) else row).tolist() for row in record] == [
        [0, 0],
        [0, 1],
        [0, 2],
        [1, 0],
        [1, 1],
    ]
    assert [row[1:] for row in record if isinstance(row, list)] == [
        [1.0, False, False],
        [2.0, True, False],
        [1.0, False, False],
    ]
    random_actions = probe.random_actions(CountingEnv(), 40, seed=4)
    assert random_actions == probe.random_actions(CountingEnv(), 40, seed=4)
    assert set(random_actions) == {0, 1}
