"""Every space the package takes, and every one it refuses: encoding, actions, and whole runs."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector.utils import concatenate, create_empty_array

from rl_training.config.train_config import TrainConfig
from rl_training.envs.spaces import (
    SpaceAdapter,
    action_codec,
    action_kind,
    observation_kind,
    space_from_plain,
    space_to_plain,
)
from rl_training.errors import CheckpointError, EnvError, IncompatibleEnv, UsageError
from rl_training.experiment.registry import load_agent, open_checkpoint
from rl_training.experiment.registry import train_config as train

VECTOR = Box(-1.0, 1.0, (2,), np.float32)
COIN = Discrete(2)

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "number": Box(-5.0, 5.0, (), np.float32),
    "vector": Box(-np.inf, np.inf, (3,), np.float64),
    "matrix": Box(-9, 9, (2, 3), np.int32),
    "bytes": Box(0, 255, (4,), np.uint8),
    "flags": Box(0, 1, (2,), np.bool_),
    "choice": Discrete(3, start=5),
    "dict": Dict(OrderedDict(z=Box(0.0, 1.0, (2,), np.float32), a=Discrete(2, start=-1))),
    "nested": Dict(a=spaces.Tuple([Discrete(2), Dict(x=Box(0.0, 1.0, (1,), np.float32))])),
    "choices": MultiDiscrete([2, 3]),
    "switches": MultiBinary(2),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "choice": Discrete(3, start=-2),
    "choices": MultiDiscrete([3, 2], start=[10, -1]),
    "small choices": MultiDiscrete([3, 2], dtype=np.int32),
    "switches": MultiBinary(3),
    "box": Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32)),
    "matrix": Box(-3.0, 1.0, (2, 2), np.float64),
    "number": Box(-1.0, 3.0, (), np.float32),
    "unbounded": Box(-np.inf, np.inf, (1,), np.float32),
}


class AnySpaces(gym.Env[Any, Any]):
    """Observes samples of one space, takes only what is in the other; episodes of five steps."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space = observation
        self.action_space = action

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # Gymnasium hands over the parts of a batch of numbers as scalars, and warns of them here.
        taken = np.asarray(action) if isinstance(self.action_space, Box) else action
        assert self.action_space.contains(taken), action
        self.t += 1
        return self.observation_space.sample(), float(np.sum(action)), False, self.t == 5, {}


def adapter(observation: spaces.Space[Any] = VECTOR, action: spaces.Space[Any] = COIN) -> Any:
    return SpaceAdapter("toy", observation, action)


# Observations.


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_become_float32_vectors(name: str) -> None:
    space = OBSERVATIONS[name]
    assert observation_kind(space) == "vector"
    mine = adapter(space)
    sizes = {"number": 1, "vector": 3, "matrix": 6, "bytes": 4, "flags": 2, "choice": 3, "dict": 4}
    sizes |= {"nested": 3, "choices": 5, "switches": 2}
    assert mine.spec.obs_shape == (sizes[name],)
    space.seed(0)
    row = space.sample()
    encoded = mine.encode_one(row)
    assert encoded.dtype == np.float32
    assert encoded.shape == (sizes[name],)
    if isinstance(space, Box):
        np.testing.assert_array_equal(encoded, np.asarray(row, np.float32).reshape(-1))


def test_numbers_are_flattened_row_by_row_into_fresh_arrays() -> None:
    matrix = np.arange(6, dtype=np.int32).reshape(2, 3)
    batch = np.stack([matrix, 10 * matrix])
    mine = adapter(OBSERVATIONS["matrix"])
    encoded = mine.encode(batch)
    assert encoded.tolist() == [[0, 1, 2, 3, 4, 5], [0, 10, 20, 30, 40, 50]]
    assert adapter(OBSERVATIONS["number"]).encode(np.array([1.5, 2.5])).tolist() == [[1.5], [2.5]]
    floats = np.ones((1, 2), np.float32)
    assert not np.shares_memory(adapter().encode(floats), floats)
    assert adapter().encode_any(np.zeros((0, 2)))[0].shape == (0, 2)


def test_choices_are_one_hot_counted_from_their_start() -> None:
    mine = adapter(Discrete(3, start=5))
    assert mine.encode(np.array([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert mine.encode_one(np.int64(6)).tolist() == [0, 1, 0]
    for wrong in (4, 8):  # 4 would be the last choice if the index went below zero
        with pytest.raises(EnvError, match=f"expected integers from 5 to 7, found .*{wrong}"):
            mine.encode(np.array([5, wrong]))


def test_dictionaries_are_side_by_side_in_sorted_order_whatever_order_they_came_in() -> None:
    parts = [("z", Box(0.0, 9.0, (2,), np.float32)), ("a", Discrete(2, start=-1))]
    row = {"z": np.array([3.0, 4.0], np.float32), "a": -1}
    for space in (Dict(OrderedDict(parts)), Dict(parts[::-1]), Dict(dict(parts))):
        mine = adapter(space)
        assert mine.encode_one(row).tolist() == [1, 0, 3, 4]
        assert mine.encode_any(row)[0].tolist() == [[1, 0, 3, 4]]
        batch = {"z": [[3.0, 4.0], [5.0, 6.0]], "a": [-1, 0]}
        assert mine.encode(batch).tolist() == [[1, 0, 3, 4], [0, 1, 5, 6]]
        # The order is in the checkpoint, and is that of the space restored from it.
        plain = space_to_plain(space)
        assert [key for key, _ in plain["spaces"]] == ["a", "z"]
        restored = adapter(space_from_plain(plain))
        assert restored.encode_one(row).tolist() == [1, 0, 3, 4]


REFUSED: dict[str, spaces.Space[Any]] = {
    "other image": Box(0, 255, (8, 8, 8), np.uint8),
    "Text": spaces.Text(5),
    "Graph": spaces.Graph(VECTOR, None),
    "Sequence": spaces.Sequence(VECTOR),
    "OneOf": spaces.OneOf([VECTOR, COIN]),
    "empty Dict": Dict(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_observations_are_refused_by_name(name: str, tmp_path: Path) -> None:
    space = REFUSED[name]
    assert observation_kind(space) == name
    if name == "empty Dict":
        return  # Gymnasium cannot batch it
    assert observation_kind(Dict(x=VECTOR, inner=spaces.Tuple([COIN, space]))) == name
    env = partial(AnySpaces, space, COIN)
    with pytest.raises(IncompatibleEnv) as refusal:
        train(tiny(env, tmp_path))
    words = str(refusal.value)
    assert type(space).__name__ in words
    assert "Box vectors, Discrete, images, Dict or Tuple of them" in words
    assert "TransformObservation" in words  # what to do
    assert not list(tmp_path.iterdir())


def test_observations_of_a_user_are_single_or_batches_or_refused() -> None:
    mine = adapter(OBSERVATIONS["dict"])
    assert mine.encode_any({"z": [0, 1], "a": 0})[1] is True
    assert mine.encode_any({"z": [[0, 1]], "a": [0]})[1] is False
    for wrong, why in (
        ({"z": [0, 1]}, r"expected the keys \['a', 'z'\], found \['z'\]"),
        ([0, 1], "expected the keys .* found list"),
        ({"z": [[0, 1]], "a": 0}, "some entries are batches and some are not"),
        ({"z": [[0, 1]] * 3, "a": [0, 0]}, r"batches of \[2, 3\] rows"),
        ({"z": [0, 1, 2], "a": 0}, "expected shape"),
        ({"z": [0, 1], "a": 1}, "expected integers from -1 to 0, found 1"),
        ({"z": [0, 1], "a": -0.5}, "expected integers"),
        ({"z": [0, np.nan], "a": 0}, "finite"),
        ({"z": ["x", "y"], "a": 0}, "expected numbers"),
    ):
        with pytest.raises(UsageError, match=why):
            mine.encode_any(wrong)


# Actions.


def test_choices_are_shifted_to_their_start() -> None:
    assert adapter(action=Discrete(3, start=-2)).decode(np.array([0, 2])).tolist() == [-2, 0]
    mine = adapter(action=ACTIONS["choices"])
    assert mine.decode(np.array([[0, 0], [2, 1]])).tolist() == [[10, -1], [12, 0]]
    assert mine.spec.action_sizes == (3, 2)
    switches = adapter(action=MultiBinary(3)).decode(np.array([[1, 0, 1]]))
    assert switches.tolist() == [[1, 0, 1]]
    assert switches.dtype == np.int8


def test_boxes_are_scaled_and_clipped_dimension_by_dimension() -> None:
    low = np.array([-2.0, 0.0, -np.inf, 5.0, -np.inf], np.float32)
    high = np.array([2.0, 10.0, np.inf, np.inf, 1.0], np.float32)
    mine = adapter(action=Box(low, high))
    rows = np.array([[0] * 5, [1] * 5, [-1] * 5, [0.5] * 5, [7] * 5, [-7] * 5], np.float32)
    assert mine.decode(rows).tolist() == [
        [0, 5, 0, 6, 0],  # half-bounded ones: from 5 upwards, and up to 1
        [2, 10, 1, 7, 1],
        [-2, 0, -1, 5, -1],
        [1, 7.5, 0.5, 6.5, 0.5],
        [2, 10, 7, 13, 1],  # clipped where there is a bound
        [-2, 0, -7, 5, -7],
    ]
    matrix = adapter(action=Box(-3.0, 1.0, (2, 2), np.float64))
    assert matrix.spec.action_dim == 4
    assert matrix.decode(np.array([[-1.0, 0.0, 1.0, 9.0]])).tolist() == [[[-3, -1], [1, 1]]]
    assert matrix.decode(np.zeros((1, 4))).dtype == np.float64
    assert adapter(action=ACTIONS["number"]).decode(np.array([[0.0]])).shape == (1,)


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 5, (2,), np.int32),
        MultiDiscrete(np.array([[2, 2], [2, 2]])),
        MultiBinary([2, 2]),
        spaces.Tuple([COIN, COIN]),
        Dict(x=COIN),
    ],
)
def test_other_actions_are_refused_by_name(space: spaces.Space[Any], tmp_path: Path) -> None:
    assert action_kind(space) == type(space).__name__
    with pytest.raises(IncompatibleEnv) as refusal:
        train(tiny(partial(AnySpaces, VECTOR, space), tmp_path))
    assert f"has {space}." in str(refusal.value)
    taken = "Box of floats, Discrete, one-dimensional MultiBinary, one-dimensional MultiDiscrete"
    assert f"{taken} actions" in str(refusal.value)


# Whole runs, checkpoints and predictions.


def tiny(env: Any, tmp_path: Path) -> TrainConfig:
    return TrainConfig(
        algo="ppo",
        env_id=env,
        num_envs=2,
        output_dir=tmp_path,
        total_timesteps=48,
        eval_interval=0,
        final_eval_episodes=2,
        algo_kwargs={"num_steps": 8, "batch_size": 8, "epochs": 2, "hidden_sizes": [8]},
    )


def check_run(observation: spaces.Space[Any], action: spaces.Space[Any], tmp_path: Path) -> None:
    """Train, load, and predict for one observation and for several."""
    result = train(tiny(partial(AnySpaces, observation, action), tmp_path))
    assert result.updates == 3 * 2 * 2
    agent = load_agent(*open_checkpoint(result.run_dir))
    assert agent.adapter.observation == observation
    assert agent.adapter.action == action
    observation.seed(1)
    singles = [observation.sample() for _ in range(4)]
    batch: Any = concatenate(observation, singles, create_empty_array(observation, 4))
    together = agent.predict(batch)[0]
    assert len(together) == 4
    for row, expected in zip(singles, together, strict=True):
        alone = agent.predict(row)[0]
        np.testing.assert_allclose(alone, expected, rtol=1e-5, atol=1e-7)
        for taken in (alone, agent.predict(row, deterministic=False)[0]):
            assert action.contains(np.asarray(taken) if isinstance(action, Box) else taken)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_ppo_trains_on_every_kind_of_observation(name: str, tmp_path: Path) -> None:
    check_run(OBSERVATIONS[name], COIN, tmp_path)


@pytest.mark.parametrize("name", ACTIONS)
def test_ppo_trains_with_every_kind_of_action(name: str, tmp_path: Path) -> None:
    check_run(VECTOR, ACTIONS[name], tmp_path)


@pytest.mark.parametrize(
    "space",
    [
        *OBSERVATIONS.values(),
        *ACTIONS.values(),
        MultiBinary([3]),
        Dict(b=Dict(c=COIN), a=MultiBinary(2)),
        Box(np.array([-np.inf, 0]), np.array([np.inf, 1]), dtype=np.float64),
    ],
)
def test_spaces_survive_a_checkpoint(space: spaces.Space[Any]) -> None:
    restored = space_from_plain(space_to_plain(space))
    assert restored == space
    assert restored.dtype == space.dtype
    assert repr(restored) == repr(space) or isinstance(space, Dict)


def test_empty_boxes_are_refused_and_the_largest_float_is_no_bound() -> None:
    assert observation_kind(Box(-1, 1, (0,))) == "empty Box"
    assert action_kind(Box(-1, 1, (0,))) == "empty Box"
    largest = float(np.finfo(np.float32).max)
    codec = action_codec(Box(-largest, largest, (1,)))
    assert codec.decode(np.array([[0.5]])).tolist() == [[0.5]]


@pytest.mark.parametrize(
    "plain",
    [
        {},
        None,
        {"type": "Discrete", "n": -1, "start": 0, "dtype": "int64"},
        {"type": "MultiBinary", "n": "three"},
        {"type": "Box", "shape": [2], "low": np.zeros(3), "high": np.ones(3), "dtype": "float32"},
        {"type": "Dict", "spaces": [["a", {"type": "Box"}]]},
    ],
)
def test_what_is_no_saved_space_is_refused(plain: Any) -> None:
    with pytest.raises(CheckpointError, match="expected a space, found"):
        space_from_plain(plain)
