"""The measured bias of the critics: returns worked out by hand, and critics that are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from rl_training.errors import ConfigError, UsageError
from rl_training.experiment.logging import read_metrics
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.q_bias import Episode, QBias, bias_of, soft_returns
from rl_training.runtime.training_run import TrainingRun
from training import final_state, tiny_config


def test_soft_returns_by_hand() -> None:
    rewards, costs = np.array([1.0, 2.0, 4.0]), np.array([9.0, 0.5, 1.0])
    # 4;  2 + 0.5 * (4 - 1);  1 + 0.5 * (3.5 - 0.5). The first action's own cost is not in it.
    assert soft_returns(rewards, costs, 0.5).tolist() == [2.5, 3.5, 4.0]


def test_the_bias_is_taken_over_the_steps_whose_return_is_known() -> None:
    over = Episode(np.array([1.0, 2.0]), np.zeros(2), np.array([3.0, 4.0]), terminated=True)
    cut = Episode(np.full(4, 1.0), np.zeros(4), np.full(4, 5.0), terminated=False)
    # Returns 2, 2 of the first; of the second, cut after four steps, two are within its horizon:
    # 1.875 and 1.75.
    found = bias_of([over, cut], 0.5, states=10, horizon=2)
    biases = np.array([3 - 2, 4 - 2, 5 - 1.875, 5 - 1.75])
    mean = (2 + 2 + 1.875 + 1.75) / 4
    assert found["q_bias_mean"] == pytest.approx(biases.mean())
    assert found["q_bias_std"] == pytest.approx(biases.std())
    assert found["q_return_mean"] == pytest.approx(mean)
    assert found["q_bias_normalized_mean"] == pytest.approx(biases.mean() / mean)
    assert found["q_bias_normalized_std"] == pytest.approx(biases.std() / mean)
    assert bias_of([over, cut], 0.5, states=1, horizon=2)["q_bias_mean"] == pytest.approx(
        (1 + 3.125) / 2
    )
    with pytest.raises(UsageError, match="cut off within 4 steps"):
        bias_of([cut], 0.5, states=10, horizon=4)


class Steady(gym.Env[np.ndarray, np.ndarray]):
    """A reward of 1 for ever; a time limit cuts episodes if it is registered with one."""

    observation_space = Box(-1, 1, (2,))
    action_space = Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.fixture
def steady() -> Any:
    gym.register("Steady-v0", Steady, max_episode_steps=5)
    yield "Steady-v0"
    gym.registry.pop("Steady-v0")


class KnowAllBut(Callback):
    """Sets the critics to a constant at the end, when the last evaluation is due."""

    def __init__(self, value: float) -> None:
        self.value = value

    def on_step(self, run: TrainingRun) -> None:
        with torch.no_grad():
            for parameter in run.algorithm.critics.parameters():  # type: ignore[attr-defined]
                parameter.zero_()
            run.algorithm.critics.layers.bias1.fill_(self.value)  # type: ignore[attr-defined]


@pytest.mark.parametrize("algo", ["sac", "tqc", "redq"])
def test_critics_that_are_right_have_no_bias_and_a_time_limit_ends_no_value(
    algo: str, steady: str, tmp_path: Path
) -> None:
    """A reward of 1 is worth 1 / (1 - gamma) = 2; the time limit of 5 steps is extended."""
    hyper = {"gamma": 0.5, "alpha": 0.0, "critic_hidden_sizes": [4], "learning_starts": 500}
    config = tiny_config(
        algo, tmp_path, env_id=steady, callbacks=[{"QBias": {"episodes": 2}}], algo_kwargs=hyper
    )
    for known, bias in ((2.0, 0.0), (3.5, 1.5)):
        result = train_config(config, callbacks=[KnowAllBut(known)])
        row = next(r for r in reversed(read_metrics(result.run_dir)) if "eval/q_bias_mean" in r)
        # A return is counted until its rewards weigh less than a hundredth: 7 steps at least.
        assert row["eval/q_bias_mean"] == pytest.approx(bias, abs=2 * 0.01)
        assert row["eval/q_return_mean"] == pytest.approx(2.0, abs=2 * 0.01)
        assert row["eval/q_bias_std"] < 0.01


def test_measuring_happens_with_each_evaluation_and_touches_nothing(tmp_path: Path) -> None:
    plain = train_config(tiny_config("redq", tmp_path))
    named = [{"QBias": {"episodes": 2, "states": 5}}]
    watched = train_config(tiny_config("redq", tmp_path, callbacks=named))
    assert final_state(watched.run_dir) == final_state(plain.run_dir)
    rows = [row for row in read_metrics(watched.run_dir) if "eval/q_bias_mean" in row]
    assert [row["global_step"] for row in rows] == [100, 200, 240]
    again = train_config(tiny_config("redq", tmp_path, callbacks=named))
    repeated = [row for row in read_metrics(again.run_dir) if "eval/q_bias_mean" in row]
    key = "eval/q_bias_mean"
    assert [row[key] for row in rows] == [row[key] for row in repeated]


def test_what_cannot_be_measured_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="QBias measures critics of sac, tqc and redq, not of dqn"
    ):
        train_config(tiny_config("dqn", tmp_path, callbacks=["QBias"]))
    with pytest.raises(ConfigError, match=r"QBias needs algo_kwargs\.gamma below 1"):
        train_config(tiny_config("sac", tmp_path, callbacks=["QBias"], algo_kwargs={"gamma": 1}))
    with pytest.raises(ValueError, match="expected at least 1"):
        QBias(episodes=0)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("QBiass", r"expected QBias, StopOnReturn or package.module:Class.*did you mean 'QBias'"),
        ({"QBias": {"episode": 3}}, "QBias with arguments {'episode': 3} cannot be made"),
        ({"QBias": {"states": 0}}, "cannot be made: expected at least 1 of each"),
        ("builtins:dict", "made a dict, not an rl_training.Callback"),
        ("no_such_module:Thing", "no module 'no_such_module'"),
    ],
)
def test_callbacks_that_cannot_be_made_are_refused(
    named: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train_config(tiny_config("sac", tmp_path, callbacks=[named]))
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_names_callbacks_with_their_arguments(tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, callbacks=[{"StopOnReturn": {"threshold": -1e9}}])
    result = train_config(config)
    assert result.global_step == 100  # the first evaluation
    assert "reached -1000000000.0" in str(result.stop_reason)
    assert resolve_config("redq/inverted_pendulum").config.callbacks == ("QBias",)
