"""Replay of stacked images: each stored once, and every batch as if whole stacks were kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.config.actor_critic import DrQConfig
from rl_training.data.prioritized_replay import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import Batch, EnvSpec, Transitions
from rl_training.errors import ConfigError, EnvError

CHANNELS, SIDE = 2, 3


def spec(frames: int) -> EnvSpec:
    return EnvSpec(
        env_id="toy",
        obs_shape=(frames * CHANNELS, SIDE, SIDE),
        obs_dtype="uint8",
        frames=frames,
        action_kind="continuous",
        action_dim=1,
    )


class Play:
    """Episodes of random images and lengths; remembers every transition by its reward."""

    def __init__(self, frames: int, num_envs: int, seed: int) -> None:
        self.frames, self.num_envs = frames, num_envs
        self.rng = np.random.default_rng(seed)
        self.obs = np.stack([self.reset() for _ in range(num_envs)])
        self.first = np.ones(num_envs, np.bool_)
        self.number = 0
        self.truth: dict[int, tuple[np.ndarray, np.ndarray, bool, int]] = {}
        self.successor: dict[int, int] = {}  # of a transition that its episode goes on after
        self.last: list[int | None] = [None] * num_envs

    def image(self) -> np.ndarray:
        return self.rng.integers(0, 256, (CHANNELS, SIDE, SIDE), dtype=np.uint8)

    def reset(self) -> np.ndarray:
        """The first observation repeats an image, or holds images from before the start."""
        if self.rng.random() < 0.5:
            return np.concatenate([self.image()] * self.frames)
        return np.concatenate([self.image() for _ in range(self.frames)])

    def step(self) -> Transitions:
        valid = self.rng.random(self.num_envs) < 0.9
        following = np.concatenate(
            [self.obs[:, CHANNELS:], np.stack([self.image() for _ in range(self.num_envs)])], 1
        )
        terminated = self.rng.random(self.num_envs) < 0.1
        truncated = self.rng.random(self.num_envs) < 0.1
        numbers = self.number + np.arange(self.num_envs)
        step = Transitions(
            obs=self.obs.copy(),
            action=numbers[:, None].astype(np.float32),
            reward=numbers.astype(np.float32),
            next_obs=following,
            terminated=terminated,
            truncated=truncated,
            first=self.first.copy(),
            valid=valid,
            state=(),
            next_state=(),
        )
        self.number += self.num_envs
        for env in np.flatnonzero(valid):
            number = int(numbers[env])
            ends = bool(terminated[env])
            self.truth[number] = (self.obs[env].copy(), following[env].copy(), ends, int(env))
            if (before := self.last[env]) is not None and not self.first[env]:
                self.successor[before] = number
            self.last[env] = number
            over = terminated[env] or truncated[env]
            self.obs[env] = self.reset() if over else following[env]
            self.first[env] = over
        return step

    def expected(self, number: int, n_step: int, gamma: float) -> tuple[float, float, np.ndarray]:
        """Summed reward, discount and last successor of a transition."""
        total, factor, current = 0.0, 1.0, number
        for count in range(n_step):
            _, following, ends, _ = self.truth[current]
            total += factor * current
            factor *= 0.0 if ends else gamma
            if count + 1 == n_step or current not in self.successor:
                break
            current = self.successor[current]
        return total, factor, following


def build(frames: int, num_envs: int, **options: Any) -> ReplayBuffer:
    kind = PrioritizedReplayBuffer if options.pop("prioritized", False) else ReplayBuffer
    return kind(spec(frames), capacity=24 * num_envs, num_envs=num_envs, gamma=0.5, **options)


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("frames", [1, 2, 4])
def test_every_batch_is_as_if_whole_stacks_were_kept(
    frames: int, num_envs: int, n_step: int, prioritized: bool
) -> None:
    buffer = build(frames, num_envs, n_step=n_step, prioritized=prioritized)
    play = Play(frames, num_envs, seed=frames)
    seen: set[int] = set()

    def check(batch: Batch) -> None:
        for row, number in enumerate(batch.action[:, 0].int().tolist()):
            seen.add(number)
            obs, _, _, _ = play.truth[number]
            total, factor, following = play.expected(number, n_step, 0.5)
            assert np.array_equal(batch.obs[row], obs), number
            assert np.array_equal(batch.next_obs[row], following), number
            assert float(batch.reward[row]) == pytest.approx(total)
            assert float(batch.discount[row]) == pytest.approx(factor)

    for _ in range(100):  # several times round the rings
        buffer.add(play.step())
        if len(buffer):
            check(buffer.sample(8))
    assert len(seen) > 0.8 * len(play.truth)
    other = build(frames, 5 - num_envs, n_step=n_step, prioritized=prioritized)
    other.take_over(buffer.state_dict())
    assert len(other) > 8
    check(other.sample(32))


@pytest.mark.parametrize("frames", [2, 4])
def test_a_transition_goes_when_its_oldest_image_is_overwritten(frames: int) -> None:
    """In one long episode, of 24 + `frames` rows as many as `frames` hold no transition."""
    buffer, play = build(frames, 1), Play(frames, 1, seed=0)
    for _ in range(60):
        step = play.step()
        quiet = np.zeros(1, np.bool_)
        buffer.add(step._replace(valid=~quiet, terminated=quiet, truncated=quiet))
        play.obs, play.first = step.next_obs.copy(), quiet.copy()
    assert len(buffer) == 24
    drawn = {int(x) for _ in range(50) for x in buffer.sample(32).action[:, 0]}
    assert drawn == set(range(60 - 24, 60))


def test_memory_is_that_of_single_images() -> None:
    for num_envs in (1, 4):
        buffer = ReplayBuffer(spec(4), capacity=1000, num_envs=num_envs)
        image, rest = CHANNELS * SIDE * SIDE, 4 + 4 + 4 + 1
        assert buffer.nbytes == (1000 + 4 * num_envs) * (image + rest)
        assert buffer.nbytes == ReplayBuffer.predicted_bytes(spec(4), 1000, num_envs)


@pytest.mark.parametrize("num_envs", [1, 16, 64])
def test_a_replay_memory_is_filled_but_not_exceeded(num_envs: int) -> None:
    hyper = DrQConfig(replay_memory="1MiB")
    found = ReplayBuffer.needed_bytes(spec(4), hyper, num_envs)
    row = ReplayBuffer.bytes_per_row(spec(4))
    assert 2**20 - num_envs * row < found <= 2**20


def test_a_replay_memory_without_room_for_a_transition_is_refused() -> None:
    smallest = 3 * (4 + 1) * ReplayBuffer.bytes_per_row(spec(4))  # of three environments
    hyper = DrQConfig(replay_memory=f"{smallest}B")
    assert ReplayBuffer.capacity_for(spec(4), hyper, 3) == 3
    assert ReplayBuffer.needed_bytes(spec(4), hyper, 3) == smallest
    hyper = DrQConfig(replay_memory=f"{smallest - 1}B")
    wanted = f"replay_memory: expected at least {smallest:,} bytes, .*, found {smallest - 1:,}"
    with pytest.raises(ConfigError, match=wanted):
        ReplayBuffer.capacity_for(spec(4), hyper, 3)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_saved_buffer_goes_on_as_if_never_stopped(num_envs: int) -> None:
    for cut in (5, 40, 90):
        straight, stopped = (build(3, num_envs, seed=1) for _ in range(2))
        resumed = build(3, num_envs, seed=2)
        play = Play(3, num_envs, seed=cut)
        for count in range(120):
            step = play.step()
            straight.add(step)
            (stopped if count < cut else resumed).add(step)
            if count == cut - 1:
                resumed.load_state_dict(stopped.state_dict())
        for _ in range(3):
            mine, other = straight.sample(16), resumed.sample(16)
            assert all(np.array_equal(a, b) for a, b in zip(mine, other, strict=True))


def test_observations_that_are_no_stacks_are_refused() -> None:
    play = Play(3, 1, seed=0)
    buffer, step = build(3, 1), play.step()
    changed = step.next_obs.copy()
    changed[0, 0, 0, 0] ^= 1
    with pytest.raises(EnvError, match=r"toy: expected observations of 3 stacked images"):
        buffer.add(step._replace(next_obs=changed, valid=np.ones(1, np.bool_)))
