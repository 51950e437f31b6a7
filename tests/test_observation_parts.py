"""Observations with parts: packed into one row, read by name, stored once, resumed exactly."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.wrappers import FrameStackObservation
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rl_training import DQN
from rl_training.algorithms.functional.random_shift import RandomShifts
from rl_training.config.actor_critic import SACConfig
from rl_training.data.normalization import observation_normalizer
from rl_training.data.observations import NamedParts, part_array, part_tensor
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import EnvSpec, Transitions
from rl_training.envs.factory import make_vector_env
from rl_training.envs.pixels import stacked_frames
from rl_training.envs.point_pixels import PointPixelsTarget
from rl_training.envs.spaces import (
    SpaceAdapter,
    observation_kind,
    observation_leaves,
    space_from_plain,
    space_to_plain,
)
from rl_training.errors import IncompatibleEnv, NonFiniteError, UsageError
from rl_training.experiment.registry import get_spec
from rl_training.experiment.registry import train_config as train
from rl_training.models.cnn.encoders import Convolutions, PartConvolutions
from rl_training.runtime.collector import Collector
from rl_training.testing import acting_is_valid, resume_is_exact, short_config
from rl_training.tools.doctor.environment import observation_findings
from training import TINY

COIN = Discrete(2)
JOINTS = Box(-9.0, 9.0, (2,), np.float32)
CAMERA = Box(0, 255, (4, 3, 2), np.uint8)  # height, width, channels
ROBOT = Dict(camera=CAMERA, joints=JOINTS)


def adapter(space: spaces.Space[Any], frames: int = 1) -> SpaceAdapter:
    return SpaceAdapter("toy", space, COIN, frames=frames)


def row_of(space: spaces.Space[Any], obs: Any) -> Tensor:
    mine = adapter(space)
    return mine.spec.named(torch.from_numpy(mine.encode_one(obs)[None]))


# Packing and unpacking.

sizes = st.integers(1, 4)
leaves: Any = st.one_of(
    st.lists(sizes, max_size=2).map(lambda shape: Box(-5.0, 5.0, tuple(shape), np.float32)),
    st.integers(2, 4).flatmap(lambda n: st.integers(-3, 3).map(lambda s: Discrete(n, start=s))),
    st.lists(st.integers(2, 3), min_size=1, max_size=3).map(MultiDiscrete),
    sizes.map(MultiBinary),
    st.tuples(
        st.booleans(), st.booleans(), st.integers(0, 2), st.integers(1, 3), st.tuples(sizes, sizes)
    ).map(lambda options: image(*options)),
)
keys = st.text("abc_.", min_size=1, max_size=3)
any_space: Any = st.recursive(
    st.dictionaries(keys, leaves, min_size=1, max_size=4).map(Dict),
    lambda inner: st.one_of(
        st.dictionaries(keys, inner | leaves, min_size=1, max_size=3).map(Dict),
        st.lists(inner | leaves, min_size=1, max_size=3).map(spaces.Tuple),
    ),
    max_leaves=5,
)


def image(
    last: bool, floats: bool, stack: int, channels: int, room: tuple[int, int]
) -> spaces.Space[Any]:
    """Fewer channels than rows and columns; with `stack`, several images with an axis more."""
    height, width = channels + room[0], channels + room[1]
    shape = (height, width, channels) if last else (channels, height, width)
    shape = (stack, *shape) if stack else shape
    return Box(0.0, 1.0, shape, np.float32) if floats else Box(0, 255, shape, np.uint8)


def expected_numbers(space: spaces.Space[Any], value: Any) -> np.ndarray:
    """What a network should see of a part, worked out from its definition."""
    if isinstance(space, Discrete):
        return np.eye(space.n)[int(value) - int(space.start)]
    if isinstance(space, MultiDiscrete):
        return np.concatenate([np.eye(n)[i] for n, i in zip(space.nvec, value, strict=True)])
    if len(space.shape or ()) < 3:
        return np.asarray(value).reshape(-1)
    images = value if value.ndim == 4 else value[None]
    if images.shape[3] < min(images.shape[1:3]):
        images = np.stack([np.stack([i[:, :, c] for c in range(i.shape[2])]) for i in images])
    return images.reshape(-1, *images.shape[2:])


@settings(max_examples=60, deadline=None)
@given(any_space, st.integers(1, 3))
def test_what_is_packed_is_unpacked_unchanged(space: spaces.Space[Any], rows: int) -> None:
    space.seed(0)
    samples = [space.sample() for _ in range(rows)]
    mine, loaded = adapter(space), adapter(space_from_plain(space_to_plain(space)))
    encoded = np.stack([mine.encode_one(sample) for sample in samples])
    named = mine.spec.named(torch.from_numpy(encoded))
    assert isinstance(named, NamedParts)
    assert sorted(named.keys()) == sorted({part.name for part in mine.spec.parts})
    for path, leaf in observation_leaves(space):
        name = "/".join(map(str, path))
        part = mine.spec.part(name)
        for number, sample in enumerate(samples):
            value = sample
            for key in path:
                value = value[key]
            wanted = expected_numbers(leaf, value)
            assert part.shape == wanted.shape
            assert np.array_equal(part_array(encoded, part)[number], wanted)
            assert np.array_equal(named[name][number], wanted)
            assert np.array_equal(named[None][name][0, number], wanted)  # sequences alike
    assert np.array_equal(encoded, [loaded.encode_one(sample) for sample in samples])
    batch = gym.vector.utils.create_empty_array(space, n=rows)
    batch = gym.vector.utils.concatenate(space, samples, batch)
    assert np.array_equal(encoded, mine.encode(batch))
    assert mine.encode_any(batch)[1] is False
    assert np.array_equal(mine.encode_any(samples[0])[0][0], encoded[0])


def test_channels_that_come_last_are_moved_to_the_front() -> None:
    """Two pixels beside each other, three above each other, one channel and then its double."""
    ones = np.array([[1, 2], [3, 4], [5, 6]], np.uint8)
    obs = np.stack([ones, 2 * ones], axis=2)[:, :, :1]
    assert obs.shape == (3, 2, 1)
    mine = adapter(Box(0, 255, (3, 2, 1), np.uint8))
    assert mine.spec.obs_shape == (1, 3, 2)
    assert mine.encode_one(obs).tolist() == [[[1, 2], [3, 4], [5, 6]]]
    colours = np.arange(18, dtype=np.uint8).reshape(3, 3, 2)  # the channel changes first
    encoded = adapter(Box(0, 255, (3, 3, 2), np.uint8)).encode_one(colours)
    assert encoded[0].tolist() == [[0, 2, 4], [6, 8, 10], [12, 14, 16]]
    assert encoded[1].tolist() == [[1, 3, 5], [7, 9, 11], [13, 15, 17]]


def test_a_row_has_numbers_first_and_is_filled_up_to_whole_floats() -> None:
    spec = adapter(Dict(b=Box(0, 255, (1, 2, 3), np.uint8), z=JOINTS, a=Discrete(3))).spec
    places = [(part.name, part.slice) for part in spec.parts]
    assert places == [("a", slice(0, 12)), ("z", slice(12, 20)), ("b", slice(20, 26))]
    assert (spec.obs_shape, spec.obs_dtype) == ((28,), "uint8")
    assert (spec.vector_dim, spec.float_bytes) == (5, 20)


def test_float_images_stay_floats_and_are_not_scaled() -> None:
    space = Box(0.0, 1.0, (1, 36, 36), np.float32)
    spec = adapter(space).spec
    assert (spec.obs_shape, spec.obs_dtype, spec.vector_dim) == ((1, 36, 36), "float32", 0)
    assert observation_kind(Box(0.0, 255.0, (1, 36, 36), np.float32)) == "other image"
    torch.manual_seed(0)
    convolutions = Convolutions((1, 36, 36), ((2, 3, 2),))
    bytes_ = torch.randint(0, 256, (2, 1, 36, 36), dtype=torch.uint8)
    floats = bytes_ / 255
    torch.testing.assert_close(convolutions(floats), convolutions(bytes_))
    with pytest.raises(UsageError, match="floats from 0 to 1, found numbers from 0 to 7"):
        adapter(space).encode_any(np.eye(36)[None] * 7)


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(IncompatibleEnv, match="found two parts 'a/b'; rename a key"):
        adapter(Dict({"a/b": JOINTS, "a": Dict(b=JOINTS)}))


def test_an_observation_of_a_user_with_other_keys_is_refused() -> None:
    mine = adapter(Dict(arm=spaces.Tuple([JOINTS, JOINTS]), camera=CAMERA))
    good: Any = {"arm": ([0, 1], [2, 3]), "camera": np.zeros((4, 3, 2))}
    assert mine.encode_any(good)[1] is True
    for wrong, why in (
        ({"arm": good["arm"]}, r"observation: expected the keys \['arm', 'camera'\]"),
        ({**good, "arm": ([0, 1],)}, r"observation\['arm'\]: expected a tuple of 2, found a tuple"),
        ({**good, "arm": {"x": 1}}, r"observation\['arm'\]: expected a tuple of 2, found a dict"),
        ({**good, "camera": np.zeros((2, 4, 3))}, r"expected shape \(4, 3, 2\)"),
    ):
        with pytest.raises(UsageError, match=why):
            mine.encode_any(wrong)


def test_it_is_said_what_was_found() -> None:
    camera = Box(0, 255, (64, 64, 3), np.uint8)
    described = adapter(Dict(camera=camera, joints=Box(-1.0, 1.0, (7,)))).described()
    assert described == "camera: image 3 x 64 x 64 (transposed from 64 x 64 x 3), joints: 7 numbers"
    (finding,) = observation_findings(PointPixelsTarget(size=36))
    assert finding.mark == "ok"
    assert "camera: image 3 x 36 x 36 (transposed from 36 x 36 x 3), target: 2" in finding.text


# Rows as tensors.


def test_rows_keep_their_names_and_what_is_computed_from_them_does_not() -> None:
    obs = {"camera": np.full((4, 3, 2), 7, np.uint8), "joints": np.float32([1.5, -2])}
    rows = row_of(ROBOT, obs)
    pairs = torch.cat([rows, rows])
    for kept in (pairs, pairs[1:], pairs[torch.tensor([0, 1])], pairs.unsqueeze(0).flatten(0, 1)):
        assert kept["joints"][-1].tolist() == [1.5, -2]
        assert kept["camera"].shape == (len(kept), 2, 4, 3)
    assert type(rows["joints"]) is Tensor
    vectors = row_of(Dict(x=JOINTS), {"x": np.float32([3, 4])})
    assert type(vectors * 2) is type(nn.Linear(2, 1)(vectors)) is Tensor
    with pytest.raises(KeyError, match="hand: expected one of joints, camera"):
        rows["hand"]


def test_only_numbers_are_normalised() -> None:
    """Joints 0 and 2 have mean 1 and deviation 1; the other joint and all pixels are alike."""
    mine = adapter(ROBOT)
    obs = [
        mine.encode_one({"camera": np.full((4, 3, 2), 9), "joints": [x, 5.0]}) for x in (0.0, 2.0)
    ]
    rows = np.stack(obs)
    normalizer = observation_normalizer(mine.spec)
    normalizer.observe(rows, np.ones(2, np.bool_))
    found = normalizer.array(rows)
    assert part_array(found, mine.spec.part("camera")).tolist() == np.full((2, 2, 4, 3), 9).tolist()
    np.testing.assert_allclose(
        part_array(found, mine.spec.part("joints")), [[-1, 0], [1, 0]], rtol=0, atol=1e-6
    )
    assert np.array_equal(rows, obs)
    buffer = ReplayBuffer(mine.spec, capacity=4)
    no = np.zeros(1, np.bool_)
    buffer.add(Transitions(rows[:1], no.astype(int), np.zeros(1), rows[1:], no, no, ~no, ~no))
    batch = normalizer.batch(buffer.sample(1))
    assert np.array_equal(batch.next_obs, found[1:])
    assert np.array_equal(batch.obs["joints"], part_array(found[:1], mine.spec.part("joints")))


def test_only_images_are_shifted() -> None:
    mine = adapter(Dict(camera=Box(0, 255, (1, 9, 9), np.uint8), joints=JOINTS))
    camera = np.arange(81, dtype=np.uint8).reshape(1, 9, 9)
    rows = torch.from_numpy(mine.encode_one({"camera": camera, "joints": [1, 2]})[None])
    shifted = RandomShifts(1, 2, mine.spec.obs_shape, mine.spec.parts)(rows, 3)
    alone = RandomShifts(1, 2, (1, 9, 9))(torch.from_numpy(camera)[None], 3)
    assert torch.equal(part_tensor(shifted, mine.spec.part("camera")), alone)
    assert part_tensor(shifted, mine.spec.part("joints")).tolist() == [[1, 2]] * 3
    assert np.array_equal(rows[0], mine.encode_one({"camera": camera, "joints": [1, 2]}))


def test_an_encoder_gives_features_of_each_image_and_then_the_numbers() -> None:
    torch.manual_seed(0)
    space = Dict(a=Box(0, 255, (6, 6, 1), np.uint8), b=Box(0.0, 1.0, (1, 5, 5)), x=JOINTS)
    mine, layers = adapter(space), ((2, 3, 2),)
    encoder = PartConvolutions(mine.spec.parts, layers, centered=False)
    space.seed(0)
    obs = space.sample()
    found = encoder(mine.spec.named(torch.from_numpy(mine.encode_one(obs)[None])))
    names = [part.name for part in mine.spec.parts if part.is_image]
    by_name = dict(zip(names, encoder.convolutions, strict=True))
    wanted = {
        "a": by_name["a"](torch.from_numpy(obs["a"]).permute(2, 0, 1)[None]),
        "b": by_name["b"](torch.from_numpy(obs["b"])[None]),
    }
    features = [wanted[name] for name in names]
    torch.testing.assert_close(found, torch.cat([*features, torch.from_numpy(obs["x"])[None]], 1))
    assert (encoder.size, encoder.beside) == (2 * 4 + 2 * 4 + 2, 2)


# Replay.


class Stacks:
    """Endless play of one environment: a stack of three images beside a number that counts."""

    def __init__(self) -> None:
        self.space = Dict(camera=Box(0, 255, (3, 4, 5, 2), np.uint8), count=Box(0.0, 1e6, (1,)))
        self.adapter = adapter(self.space, frames=3)
        self.rng = np.random.default_rng(0)
        self.images = [self.rng.integers(0, 256, (4, 5, 2), dtype=np.uint8) for _ in range(300)]

    def obs(self, number: int) -> np.ndarray:
        camera = np.stack(self.images[number : number + 3])
        return self.adapter.encode_one({"camera": camera, "count": [number]})[None]

    def step(self, number: int, *, ends: bool) -> Transitions:
        no = np.zeros(1, np.bool_)
        return Transitions(
            obs=self.obs(number),
            action=np.array([0]),
            reward=np.array([number], np.float32),
            next_obs=self.obs(number + 1),
            terminated=no,
            truncated=no | ends,
            first=no | (number % 10 == 0),
            valid=~no,
        )


def test_each_frame_of_a_dict_is_stored_once_and_every_batch_is_whole() -> None:
    play = Stacks()
    spec = play.adapter.spec
    camera = spec.part("camera")
    assert (camera.shape, camera.frames, spec.frames) == ((6, 4, 5), 3, 3)
    frame, number = 2 * 4 * 5, 4
    buffer = ReplayBuffer(spec, capacity=40)
    rest = 8 + 4 + 4 + 1  # action, reward, discount, valid
    assert buffer.nbytes == (40 + 3) * (frame + number + rest)
    assert buffer.nbytes == ReplayBuffer.needed_bytes(spec, SACConfig(buffer_size=40), 1)
    seen = set()
    for count in range(100):  # twice round the ring, in episodes of ten steps
        buffer.add(play.step(count, ends=count % 10 == 9))
        batch = buffer.sample(8)
        for row in range(8):
            drawn = int(batch.reward[row])
            seen.add(drawn)
            assert np.array_equal(batch.obs[row], play.obs(drawn)[0])
            assert np.array_equal(batch.next_obs[row], play.obs(drawn + 1)[0])
            assert float(batch.obs["count"][row]) == drawn
    assert len(seen) > 80


def test_a_buffer_of_parts_goes_on_as_if_never_stopped() -> None:
    play = Stacks()
    straight, resumed = (ReplayBuffer(play.adapter.spec, capacity=20, seed=s) for s in (1, 2))
    for count in range(25):
        straight.add(play.step(count, ends=count % 10 == 9))
    resumed.load_state_dict(straight.state_dict())
    for buffer in (straight, resumed):
        for count in range(25, 40):
            buffer.add(play.step(count, ends=count % 10 == 9))
    mine, other = straight.sample(16), resumed.sample(16)
    assert all(np.array_equal(a, b) for a, b in zip(mine, other, strict=True))


class Camera(gym.Env[Any, Any]):
    """A camera and a nested tuple of numbers; the reward is up to the action."""

    action_space = Discrete(2)

    def __init__(self, *, broken: bool = False) -> None:
        self.observation_space = Dict(
            camera=Box(0, 255, (5, 4, 1), np.uint8),
            body=spaces.Tuple([Box(-np.inf, np.inf, (1,), np.float32), Discrete(3)]),
        )
        self.broken = broken

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observe(), float(action), False, self.t == 4, {}

    def observe(self) -> Any:
        number = np.nan if self.broken and self.t == 3 else self.np_random.normal()
        return {
            "camera": self.np_random.integers(0, 256, (5, 4, 1), dtype=np.uint8),
            "body": (np.array([number], np.float32), self.np_random.integers(3)),
        }


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_the_collector_hands_over_true_transitions_of_parts(vectorization: str) -> None:
    envs = make_vector_env(Camera, num_envs=2, vectorization=vectorization)
    spaces_of = envs.single_observation_space, envs.single_action_space
    mine = SpaceAdapter("camera", *spaces_of, frames=stacked_frames(envs))
    collector, alone = Collector(envs, mine), Camera()
    collector.reset([3, 4], ())
    wanted = [mine.encode_one(alone.reset(seed=4)[0])]
    wanted += [mine.encode_one(alone.step(0)[0]) for _ in range(4)]
    first_of_next = mine.encode_one(alone.reset()[0])
    act: Any = lambda obs, *_: type("Acted", (), {"action": np.zeros(2, int), "state": ()})  # noqa: E731
    for number in range(4):
        step = collector.step(act)
        assert np.array_equal(step.obs[1], wanted[number])
        assert np.array_equal(step.next_obs[1], wanted[number + 1])
    assert np.array_equal(collector.step(act).obs[1], first_of_next)
    collector.close()


def test_a_number_that_is_none_in_a_row_of_bytes_is_refused(tmp_path: Path) -> None:
    config = {
        "env_id": partial(Camera, broken=True),
        "eval_interval": 0,
        "final_eval_episodes": 0,
        "algo_kwargs": {"network": SmallNetwork},
    }
    with pytest.raises(NonFiniteError, match="non-finite observation in environment 0 at vector"):
        train(short_config(get_spec("dqn"), config, tmp_path))


def test_gymnasiums_stacks_of_colour_images_are_stored_once() -> None:
    make = lambda: FrameStackObservation(PointPixelsTarget(size=36), 3)  # noqa: E731
    envs = make_vector_env(make, num_envs=1)
    mine = SpaceAdapter("stacks", envs.single_observation_space, COIN, frames=stacked_frames(envs))
    assert mine.spec.part("camera").shape == (9, 36, 36)
    assert mine.spec.part("camera").frames == mine.spec.frames == 3
    assert mine.spec.part("target").shape == (6,)
    assert mine.spec.frame_shape == (math.ceil((3 * 36 * 36 + 6 * 4) / 4) * 4,)


# Whole runs.


class SmallNetwork(nn.Module):
    """A custom network that reads its parts by name."""

    def __init__(self, spec: EnvSpec, hyper: Any) -> None:
        super().__init__()
        self.size = math.prod(spec.part("camera").shape)
        self.layers = nn.Linear(self.size + 1 + 3, spec.num_actions)

    def forward(self, obs: Tensor) -> Tensor:
        camera = obs["camera"].flatten(1) / 255
        inputs = torch.cat([camera, obs["body/0"], obs["body/1"]], 1)
        q_values: Tensor = self.layers(inputs)
        return q_values


def test_a_custom_network_reads_named_parts_and_learns(tmp_path: Path) -> None:
    """The action is the reward, so its value is higher whatever is observed."""
    config = {
        "env_id": Camera,
        "num_envs": 2,
        "total_timesteps": 400,
        "algo_kwargs": TINY["dqn"]["algo_kwargs"]
        | {"hidden_sizes": [256, 256], "network": SmallNetwork, "learning_rate": 1e-2, "gamma": 0},
    }
    result = train(short_config(get_spec("dqn"), config, tmp_path))
    assert result.eval_return_mean == 4
    agent = DQN.load(result.run_dir, network=SmallNetwork)
    obs = Camera().reset(seed=0)[0]
    assert agent.predict(obs)[0] == 1
    many = {"camera": obs["camera"][None], "body": tuple(np.array([x]) for x in obs["body"])}
    assert agent.predict(many)[0].tolist() == [1]


@pytest.mark.parametrize("algo", ["dqn", "drqn", "sac", "drq", "ppo"])
def test_an_image_beside_numbers_resumes_to_the_bit_and_acts(algo: str, tmp_path: Path) -> None:
    spec = get_spec(algo)
    small = {"batch_size": 8, "hidden_sizes": [8]}
    config = {
        **TINY[algo],
        "env_id": "PointPixelsTarget-v0",
        "env_kwargs": {"size": 20 if algo == "drq" else 36, "discrete": algo in ("dqn", "drqn")},
        "total_timesteps": 70,
        "eval_interval": 0,
        "final_eval_episodes": 1,
        "normalize_observations": True,
        "algo_kwargs": TINY[algo]["algo_kwargs"] | small,
    }
    resume_is_exact(spec, config, tmp_path / "resume", cuts=1)
    if algo == "dqn":
        acting_is_valid(spec, config, tmp_path / "acting")
