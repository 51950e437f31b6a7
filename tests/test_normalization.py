"""Running statistics of observations and rewards: right, saved, and frozen where they must be."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.api import managed
from rl_training.config.train_config import TrainConfig
from rl_training.data.normalization import (
    NoNormalizer,
    ObservationNormalizer,
    RewardNormalizer,
    RunningMoments,
)
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.types import Batch, EnvSpec, Transitions
from rl_training.errors import ConfigError
from rl_training.experiment.registry import load_agent, open_checkpoint
from rl_training.experiment.registry import train_config as train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.tree import tree_hash


@settings(max_examples=50, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 60), max_size=6),
    seed=st.integers(0, 1000),
    offset=st.sampled_from([0.0, 1e3, -1e6]),
)
def test_moments_equal_numpys_over_any_split(cuts: list[int], seed: int, offset: float) -> None:
    rows = np.random.default_rng(seed).normal(offset, 2.0, (60, 3)).astype(np.float32)
    moments = RunningMoments((3,))
    for part in np.split(rows, sorted(cuts)):  # some parts are empty
        moments.add(part)
    assert moments.count == 60
    # Sums of 60 numbers in double precision, one of them over up to 7 parts, each of which is added
    # with four more roundings.
    rounding = (60 + 7 * 4) * np.finfo(np.float64).eps * np.abs(rows).max()
    np.testing.assert_allclose(moments.mean, rows.mean(0, np.float64), rtol=0, atol=rounding)
    np.testing.assert_allclose(moments.variance, rows.var(0, np.float64), rtol=1e-6)


def test_observations_are_shifted_scaled_and_clipped() -> None:
    normalizer = ObservationNormalizer((2,))
    fresh = np.array([[3.0, -40.0]], np.float32)
    assert normalizer.array(fresh).tolist() == [[3.0, -10.0]]  # mean 0, deviation 1, the clip
    # Means 2 and 0; deviations 1 and 10.
    normalizer.observe(
        np.array([[1.0, 10.0], [3.0, -10.0], [1e6, 1e6]], np.float32), np.array([True, True, False])
    )
    seen = np.array([[2.0, 5.0], [0.0, 0.0], [500.0, -500.0]], np.float32)
    expected = [[0.0, 0.5], [-2.0, 0.0], [10.0, -10.0]]
    rows = normalizer.array(seen)
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    assert rows.dtype == np.float32
    batch = Batch(
        obs=torch.from_numpy(seen),
        action=torch.zeros(3),
        reward=torch.full((3,), 7.0),
        next_obs=torch.from_numpy(seen[::-1].copy()),
        discount=torch.ones(3),
        weight=torch.ones(3),
        slots=np.arange(3),
    )
    normalized = normalizer.batch(batch)
    np.testing.assert_allclose(normalized.obs, expected, rtol=1e-6)
    np.testing.assert_allclose(normalized.next_obs, expected[::-1], rtol=1e-6)
    assert torch.equal(batch.obs, torch.from_numpy(seen))  # the raw batch is left alone
    assert normalized.reward is batch.reward
    other = ObservationNormalizer((2,))
    other.load_state_dict(normalizer.state_dict())
    assert np.array_equal(other.array(seen), rows)
    normalizer.observe(np.array([[9.0, 9.0]], np.float32), np.array([True]))
    assert np.array_equal(other.array(seen), rows)  # a saved state is not a view


def test_without_normalisation_rows_pass_as_they_are() -> None:
    rows = np.ones((2, 3), np.float32)
    normalizer = NoNormalizer()
    normalizer.observe(rows, np.ones(2, np.bool_))
    assert normalizer.array(rows) is rows
    assert normalizer.state_dict() == {}


def test_rewards_are_divided_by_the_deviation_of_the_return_and_no_mean_is_taken() -> None:
    # gamma 0.5. Env 0: rewards 4, 4, then a new episode with 4: returns 4, 6, 4.
    # Env 1: rewards 8, a row that only resets, 2 in a new episode: returns 8, 2.
    normalizer = RewardNormalizer(2, 0.5)
    reward = np.array([[4, 8], [4, 99], [4, 2]], np.float32)
    first = np.array([[1, 1], [0, 0], [1, 1]], np.bool_)
    valid = np.array([[1, 1], [1, 0], [1, 1]], np.bool_)
    returns = [4.0, 8.0, 6.0, 4.0, 2.0]
    scaled = normalizer(reward, first, valid)
    np.testing.assert_allclose(scaled[:, 0], np.full(3, 4 / np.std(returns)), rtol=1e-6)
    # Their mean is 4.8 and their variance (0.64 + 10.24 + 1.44 + 0.64 + 7.84) / 5 = 4.16.
    assert scaled[0, 0] == pytest.approx(4 / 4.16**0.5)
    np.testing.assert_allclose(scaled[2, 1], 2 / np.std(returns), rtol=1e-6)
    # The episodes go on in the next rollout: 0.5 * 4 + 1 and 0.5 * 2 + 1.
    off, on = np.zeros((1, 2), np.bool_), np.ones((1, 2), np.bool_)
    scaled = normalizer(np.ones((1, 2), np.float32), off, on)
    np.testing.assert_allclose(scaled, 1 / np.std([*returns, 3.0, 2.0]), rtol=1e-6)
    # Unless they were cut in between.
    scaled = normalizer(np.ones((1, 2), np.float32), on, on)
    np.testing.assert_allclose(scaled, 1 / np.std([*returns, 3.0, 2.0, 1.0, 1.0]), rtol=1e-6)
    assert normalizer(np.full((1, 2), 1e9, np.float32), on, on).max() <= 10.0
    other = RewardNormalizer(2, 0.5)
    other.load_state_dict(normalizer.state_dict())
    again = np.full((1, 2), 3.0, np.float32)
    assert np.array_equal(other(again, off, on), normalizer(again, off, on))


def test_a_rollout_carries_scaled_rewards() -> None:
    spec = EnvSpec(env_id="toy", obs_shape=(1,), action_kind="discrete", num_actions=2)
    normalizer = RewardNormalizer(1, 0.0)  # without a discount the returns are the rewards
    store = RolloutBuffer(spec, num_steps=2, reward_normalizer=normalizer)
    for reward in (1.0, 5.0):  # standard deviation 2
        none = np.zeros(1, np.bool_)
        zeros = np.zeros((1, 1), np.float32)
        store.add(
            Transitions(
                obs=zeros,
                action=np.zeros(1, np.int64),
                reward=np.array([reward], np.float32),
                next_obs=zeros,
                terminated=none,
                truncated=none,
                first=none,
                valid=~none,
            )
        )
    np.testing.assert_allclose(store.take().reward[:, 0], [0.5, 2.5], rtol=1e-6)


class Wide(gym.Env[np.ndarray, int]):
    """Observations of very different sizes around (1000, -2); rewards tell the action and state."""

    def __init__(self) -> None:
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        self.x = self.np_random.normal()
        return np.array([1000 + 30 * self.x, -2 + 0.01 * self.np_random.normal()], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(self.x) * (1 if action else -1)
        self.t += 1
        return self.observe(), reward, False, self.t == 12, {}


def config(algo: str, tmp_path: Path, **changes: Any) -> TrainConfig:
    own: dict[str, Any] = {"num_steps": 16, "batch_size": 16, "epochs": 2}
    if algo == "dqn":
        own = {"batch_size": 16, "learning_starts": 20, "replay_ratio": 0.5, "buffer_size": 500}
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": Wide,
        "num_envs": 2,
        "output_dir": tmp_path,
        "total_timesteps": 300,
        "eval_interval": 100,
        "eval_episodes": 2,
        "final_eval_episodes": 5,
        "normalize_observations": True,
        "algo_kwargs": {"hidden_sizes": [16], **own},
    }
    return TrainConfig(**(values | changes))


class Watch(Callback):
    """Compares the statistics before and after each evaluation, and keeps the run's parts."""

    def __init__(self) -> None:
        self.evaluations: list[tuple[str, str]] = []

    def on_start(self, run: TrainingRun) -> None:
        evaluate = run.evaluate

        def watched(*args: Any, **options: Any) -> Any:
            before = tree_hash(run.agent.normalizer.state_dict())
            evaluation = evaluate(*args, **options)
            self.evaluations.append((before, tree_hash(run.agent.normalizer.state_dict())))
            return evaluation

        run.evaluate = watched  # type: ignore[method-assign]

    def on_end(self, run: TrainingRun, result: Any) -> None:
        self.run = run


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_statistics_are_those_of_training_and_frozen_elsewhere(algo: str, tmp_path: Path) -> None:
    watch = Watch()
    rewards = {"normalize_rewards": True} if algo == "ppo" else {}
    result = train(config(algo, tmp_path, **rewards), callbacks=[watch])
    assert [before == after for before, after in watch.evaluations] == [True] * 4
    assert len(set(watch.evaluations)) == 4
    state = watch.run.agent.normalizer.state_dict()
    moments = state["moments"]
    # PPO observes whole rollouts: 9 of 32 rows in 300; DQN every row.
    assert moments["count"] == (288 if algo == "ppo" else 300)
    np.testing.assert_allclose(moments["mean"], [1000, -2], rtol=0.01)
    np.testing.assert_allclose(np.sqrt(moments["variance"]), [30, 0.01], rtol=0.2)

    # A fresh agent plays the run's own evaluation again, episode by episode.
    kind = type("Managed", (managed.ManagedAlgorithm,), {"algo_name": algo})
    loaded = kind.load(result.run_dir, env=Wide)
    assert loaded.evaluate(5).returns == result.eval_returns
    assert len(set(result.eval_returns)) == 5

    agent = load_agent(*open_checkpoint(result.run_dir))
    before = tree_hash(agent.normalizer.state_dict())
    assert before == tree_hash(state)
    rows = np.array([[1000, -2], [1030, -2.01], [970, -1.99]], np.float32)
    actions = agent.predict(rows)[0]
    agent.predict(rows[0], deterministic=False)
    assert tree_hash(agent.normalizer.state_dict()) == before
    # The statistics are used: what is fed to the network is of size 1.
    seen: list[np.ndarray] = []
    act = agent.algorithm.act

    def watched(obs: np.ndarray, *args: Any, **kwargs: Any) -> Any:
        seen.append(obs)
        return act(obs, *args, **kwargs)

    agent.algorithm.act = watched  # type: ignore[method-assign]
    assert np.array_equal(agent.predict(rows)[0], actions)
    assert np.abs(seen[0]).max() < 3
    np.testing.assert_allclose(seen[0], agent.normalizer.array(rows))


def test_replay_keeps_raw_observations_and_updates_see_normalised_ones(tmp_path: Path) -> None:
    seen: list[Batch] = []

    class Spy(Callback):
        def on_start(self, run: TrainingRun) -> None:
            update = run.algorithm.update

            def watched(batch: Batch, clock: Any) -> Any:
                seen.append(batch)
                return update(batch, clock)

            run.algorithm.update = watched  # type: ignore[method-assign]

        def on_end(self, run: TrainingRun, result: Any) -> None:
            self.raw = run.buffer.sample(64)

    spy = Spy()
    train(config("dqn", tmp_path, eval_interval=0), callbacks=[spy])
    assert (spy.raw.obs[:, 0] > 800).all()
    assert (spy.raw.next_obs[:, 0] > 800).all()
    assert len(seen) > 50
    for batch in seen:
        assert batch.obs.abs().max() < 5
        assert batch.next_obs.abs().max() <= 10


def test_normalised_rewards_are_refused_where_rewards_are_kept_in_replay(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="normalize_rewards: dqn stores raw rewards"):
        train(config("dqn", tmp_path, normalize_rewards=True))
    assert not list(tmp_path.iterdir())


def test_within_a_rollout_acting_and_updating_use_the_same_statistics(tmp_path: Path) -> None:
    counts: list[int] = []

    class Counts(Callback):
        def on_step(self, run: TrainingRun) -> None:
            counts.append(run.agent.normalizer.state_dict()["moments"]["count"])

    make = partial(config, "ppo", tmp_path, eval_interval=0, final_eval_episodes=0)
    train(make(total_timesteps=70), callbacks=[Counts()])
    assert counts == [0] * 15 + [32] * 16 + [64] * 4
