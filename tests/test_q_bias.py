"""The measured bias of the critics: returns worked out by hand, and critics that are right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.metrics_log import read_metrics
from rl_training.tools.q_bias import Episode, QBias, bias_of, soft_returns
from training import final_state, tiny_config


def test_soft_returns_by_hand() -> None:
    rewards, alpha_log_probs = np.array([1.0, 2.0, 4.0]), np.array([9.0, 0.5, 1.0])
    # 4;  2 + 0.5 * (4 - 1);  1 + 0.5 * (3.5 - 0.5). The first entropy term is not in it.
    assert soft_returns(rewards, alpha_log_probs, 0.5).tolist() == [2.5, 3.5, 4.0]


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
    # An episode cut before one of its returns is known: the others would be chosen by their end.
    assert bias_of([over, cut], 0.5, states=10, horizon=4) == {}


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


def last_bias(run_dir: Path) -> dict[str, float]:
    return next(r for r in reversed(read_metrics(run_dir)) if "eval/q_bias_mean" in r)


def test_rewards_are_measured_as_they_are_learned_from(steady: str, tmp_path: Path) -> None:
    """Ten times a reward of 1 is worth 20."""
    hyper = {"gamma": 0.5, "alpha": 0.0, "critic_hidden_sizes": [4], "learning_starts": 500}
    named = [{"QBias": {"episodes": 2}}]
    config = tiny_config(
        "sac", tmp_path, env_id=steady, callbacks=named, algo_kwargs=hyper | {"reward_scale": 10.0}
    )
    result = train_config(config, callbacks=[KnowAllBut(21.0)])
    row = last_bias(result.run_dir)
    assert row["eval/q_bias_mean"] == pytest.approx(1.0, abs=20 * 0.01)
    assert row["eval/q_return_mean"] == pytest.approx(20.0, abs=20 * 0.01)


@pytest.mark.parametrize("source", ["id", "callable", "built", "wrappers"])
@pytest.mark.parametrize("algo", ["sac", "tqc", "redq"])
def test_critics_that_are_right_have_no_bias_and_a_time_limit_ends_no_value(
    algo: str, source: str, steady: str, tmp_path: Path
) -> None:
    """A reward of 1 is worth 1 / (1 - gamma) = 2; the time limit of 5 steps is lifted."""
    hyper = {"gamma": 0.5, "alpha": 0.0, "critic_hidden_sizes": [4], "learning_starts": 500}
    sources: dict[str, dict[str, Any]] = {
        "id": {"env_id": steady},
        "callable": {"env_id": lambda: gym.make(steady)},
        "built": {"env_id": gym.make(steady)},
        "wrappers": {"env_id": Steady, "wrappers": [{"TimeLimit": {"max_episode_steps": 5}}]},
    }
    named = [{"QBias": {"episodes": 2}}]
    config = tiny_config(algo, tmp_path, callbacks=named, algo_kwargs=hyper, **sources[source])
    for known, bias in ((2.0, 0.0), (3.5, 1.5)):
        result = train_config(config, callbacks=[KnowAllBut(known)])
        row = last_bias(result.run_dir)
        # A return is counted until its rewards weigh less than a hundredth: 7 steps at least.
        assert row["eval/q_bias_mean"] == pytest.approx(bias, abs=2 * 0.01)
        assert row["eval/q_return_mean"] == pytest.approx(2.0, abs=2 * 0.01)
        assert row["eval/q_bias_std"] < 0.01


def test_the_entropy_of_what_follows_is_part_of_a_return(steady: str, tmp_path: Path) -> None:
    """With alpha 0.5 a step is worth 1 and half the entropy of the next action."""
    hyper = {"gamma": 0.5, "alpha": 0.5, "critic_hidden_sizes": [4], "learning_starts": 500}
    named = [{"QBias": {"episodes": 50, "states": 40}}]
    config = tiny_config("sac", tmp_path, env_id=steady, callbacks=named, algo_kwargs=hyper)

    class Entropy(KnowAllBut):
        """A normal of standard deviation 1 before the squashing, in every state."""

        def on_step(self, run: TrainingRun) -> None:
            super().on_step(run)
            with torch.no_grad():
                for parameter in run.algorithm.actor.parameters():  # type: ignore[attr-defined]
                    parameter.zero_()

    result = train_config(config, callbacks=[Entropy(0.0)])
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)).double()
    log_prob = torch.distributions.Normal(0.0, 1.0).log_prob(x) - torch.log(1 - x.tanh() ** 2)
    # 2 rewards' worth, and 0.5 * entropy * (gamma + gamma^2 + ...) = 0.5 * entropy.
    expected = 2 - 0.5 * float(log_prob.mean())
    assert last_bias(result.run_dir)["eval/q_return_mean"] == pytest.approx(expected, abs=0.03)


class Cut(Steady):
    """Cuts its episodes itself, after three steps."""

    steps = 0

    def reset(self, **kwargs: Any) -> Any:
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action: np.ndarray) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 1.0, False, self.steps == 3, {}


def test_where_the_environment_cuts_episodes_itself_nothing_is_measured_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config("sac", tmp_path, env_id=Cut, callbacks=["QBias"])
    result = train_config(config)
    assert result.status == "finished"
    assert not [row for row in read_metrics(result.run_dir) if "eval/q_bias_mean" in row]
    told = [record.getMessage() for record in caplog.records if "QBias" in record.getMessage()]
    assert len(told) == 1
    assert "cut an episode within 459 steps" in told[0]


class Breaks(Steady):
    def step(self, action: np.ndarray) -> Any:
        if Breaks.broken:
            raise RuntimeError("it broke")
        return super().step(action)

    broken = False


def test_an_environment_that_raises_ends_the_run_with_what_was_learned_saved(
    tmp_path: Path,
) -> None:
    class Break(Callback):
        """Before the callback that measures, which is given after it."""

        def on_evaluation(self, run: TrainingRun, evaluation: Any) -> None:
            Breaks.broken = run.env_steps == 100

    wrappers = [{"TimeLimit": {"max_episode_steps": 5}}]
    config = tiny_config("sac", tmp_path, env_id=Breaks, wrappers=wrappers)
    try:
        with pytest.raises(EnvError, match=r"(?s)it broke.*step 100 of the run is saved"):
            train_config(config, callbacks=[Break(), QBias(episodes=1)])
    finally:
        Breaks.broken = False


def test_a_measurement_that_a_signal_broke_off_is_made_up_for(tmp_path: Path) -> None:
    class Signal(Callback):
        def on_evaluation(self, run: TrainingRun, evaluation: Any) -> None:
            if run.env_steps == 100 and not self.sent:
                self.sent = True
                run.interrupts.received = 15

        sent = False

    named = [{"QBias": {"episodes": 1, "states": 3}}]
    config = tiny_config("sac", tmp_path, callbacks=named)
    straight = train_config(config)

    class Both(Signal, QBias):
        """A signal that arrives while it measures."""

        def on_evaluation(self, run: TrainingRun, evaluation: Any) -> None:
            Signal.on_evaluation(self, run, evaluation)
            QBias.on_evaluation(self, run, evaluation)

    plain = tiny_config("sac", tmp_path)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_config(plain, callbacks=[Both(episodes=1, states=3)])
    run_dir = interruption.value.result.run_dir
    resumed = Both(episodes=1, states=3)
    resumed.sent = True
    train_config(plain, resume=run_dir, callbacks=[resumed])
    rows = [
        [(row["global_step"], row[key]) for row in read_metrics(path) if key in row]
        for path in (straight.run_dir, run_dir)
        for key in ("eval/q_bias_mean",)
    ]
    assert rows[0] == rows[1]
    assert [step for step, _ in rows[0]] == [0, 100, 200, 240]


def test_measuring_happens_with_each_evaluation_and_touches_nothing(tmp_path: Path) -> None:
    plain = train_config(tiny_config("redq", tmp_path))
    named = [{"QBias": {"episodes": 2, "states": 5}}]
    watched = train_config(tiny_config("redq", tmp_path, callbacks=named))
    states = final_state(watched.run_dir), final_state(plain.run_dir)
    assert {name for name in states[0] if states[0][name] != states[1][name]} == {"callbacks"}
    rows = [row for row in read_metrics(watched.run_dir) if "eval/q_bias_mean" in row]
    assert [row["global_step"] for row in rows] == [0, 100, 200, 240]
    again = train_config(tiny_config("redq", tmp_path, callbacks=named))
    repeated = [row for row in read_metrics(again.run_dir) if "eval/q_bias_mean" in row]
    key = "eval/q_bias_mean"
    assert [row[key] for row in rows] == [row[key] for row in repeated]


def test_what_cannot_be_measured_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"QBias asks .* which dqn does not define"):
        train_config(tiny_config("dqn", tmp_path, callbacks=["QBias"]))
    with pytest.raises(ConfigError, match=r"QBias needs algo_kwargs\.gamma below 1"):
        train_config(tiny_config("sac", tmp_path, callbacks=["QBias"], algo_kwargs={"gamma": 1}))
    never = {"eval_interval": 0, "final_eval_episodes": 0}
    with pytest.raises(ConfigError, match="eval_interval and final_eval_episodes are 0"):
        train_config(tiny_config("sac", tmp_path, callbacks=["QBias"], **never))
    with pytest.raises(ConfigError, match=r"needs algo_kwargs\.n_step 1.*found 3"):
        train_config(tiny_config("sac", tmp_path, callbacks=["QBias"], algo_kwargs={"n_step": 3}))
    with pytest.raises(ValueError, match="expected at least 1"):
        QBias(episodes=0)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            "QBiass",
            r"expected QBias, StopOnReturn, Video or package.module:Class.*did you mean 'QBias'",
        ),
        ({"QBias": {"episode": 3}}, "QBias with arguments {'episode': 3} cannot be made"),
        ({"QBias": {"states": 0}}, "cannot be made: expected at least 1 of each"),
        ("builtins:dict", "is the class dict; expected a class derived from rl_training.Callback"),
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
    assert result.global_step == 0  # the first evaluation
    assert "reached -1000000000.0" in str(result.stop_reason)
    assert resolve_config("redq/inverted_pendulum").config.callbacks == ("QBias",)
