"""`train_dqn` learns what it should, writes what it promises, and stops where it must."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rl_training import C51, DQN, QRDQN, Callback, StopOnReturn, TrainConfig, train_dqn
from rl_training.api import ManagedAlgorithm
from rl_training.errors import (
    ConfigError,
    EnvError,
    IncompatibleEnv,
    NonFiniteError,
    ReplayTooLarge,
    SaveError,
    UsageError,
)
from rl_training.runtime.progress import Every, Progress
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from rl_training.storage.runs import list_runs
from toy_envs import ChainEnv, CountingEnv, NaNEnv, RaisingEnv, TimedChain
from training import KeepModel, StopAt, tiny_config

GAMMA = 0.8


def values_learned(env: Any, num_envs: int, tmp_path: Path) -> Any:
    keep = KeepModel()
    config = TrainConfig(
        algo="dqn",
        env_id=env,
        num_envs=num_envs,
        output_dir=tmp_path,
        total_timesteps=2_500,
        eval_interval=0,
        final_eval_episodes=1,
        algo_kwargs={
            "gamma": GAMMA,
            "hidden_sizes": [32],
            "learning_rate": {"initial": 1e-2, "final": 1e-4},
            "learning_starts": 50,
            "replay_ratio": 1.0,
            "batch_size": 32,
            "tau": 0.1,
        },
    )
    train_dqn(config, callbacks=[keep])
    return keep.model


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_time_limit_that_truncates_bootstraps(num_envs: int, tmp_path: Path) -> None:
    model = values_learned(partial(ChainEnv, 4, "truncation"), num_envs, tmp_path)
    value = float(model(torch.ones(1, 1)).detach().mean())
    assert value == pytest.approx(1 / (1 - GAMMA), abs=0.1)  # 5, not the finite sum 2.952


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_limit_that_terminates_ends_the_sum(num_envs: int, tmp_path: Path) -> None:
    model = values_learned(partial(TimedChain, 4), num_envs, tmp_path)
    values = model(torch.eye(5)[:4]).detach().mean(1)
    # One step before the end 1, then 1 + 0.8, 1 + 0.8 + 0.64, and 2.952 at the start.
    expected = [sum(GAMMA**k for k in range(left)) for left in (4, 3, 2, 1)]
    np.testing.assert_allclose(values.numpy(), expected, atol=0.1)


def test_train_dqn_writes_checkpoint_metrics_and_summary(tmp_path: Path) -> None:
    result = train_dqn(tiny_config("dqn", tmp_path))
    names = {path.name.split(".")[0] for path in result.run_dir.iterdir()} - {""}
    assert names >= {"config", "metadata", "metrics", "checkpoints", "summary", "events"}
    summary = json.loads((result.run_dir / "summary.json").read_text())
    for key in ("algo", "env_id", "seed", "eval_return_std", "best_eval_return_mean"):
        assert key in summary
    assert summary["global_step"] == result.global_step == 240
    assert summary["updates"] == result.updates == (240 - 20) // 2
    assert summary["eval_return_mean"] == np.mean(result.eval_returns)
    assert summary["eval_episodes"] == len(result.eval_returns) == 3
    assert summary["steps_per_second"] == pytest.approx(240 / summary["wall_time_s"])
    assert summary["status"] == "finished"
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    logged = [row for row in rows if "train/loss" in row]
    assert [row["global_step"] for row in logged] == [50, 100, 150, 200]
    assert [row["global_step"] for row in rows if "eval/return_mean" in row] == [0, 100, 200, 240]
    wanted = {"train/q_value_mean", "train/target_mean", "train/td_error_mean", "train/epsilon"}
    assert wanted <= set(logged[-1])
    assert {"rollout/episode_return", "time/steps_per_second"} <= set(logged[-1])
    # The default exploration schedule ends after a tenth of the run.
    assert logged[-1]["train/epsilon"] == pytest.approx(0.05)
    checkpoint = find_checkpoint(result.run_dir)
    assert checkpoint.path == result.checkpoint_path
    assert checkpoint.env_steps == 240
    assert checkpoint.info["resume_level"] == "exact"


def assert_trained(kind: type[ManagedAlgorithm], tmp_path: Path) -> ManagedAlgorithm:
    """A run of the algorithm leaves what it should; the agent that is loaded from it."""
    result = train_dqn(tiny_config(kind.algo_name, tmp_path))
    names = {path.name.split(".")[0] for path in result.run_dir.iterdir()}
    assert names >= {"config", "metadata", "metrics", "checkpoints", "summary", "events"}
    assert result.updates == (240 - 20) // 2
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    logged = [row for row in rows if "train/loss" in row]
    assert [row["global_step"] for row in logged] == [50, 100, 150, 200]
    names = {"train/loss", "train/q_value_mean", "train/target_mean", "train/td_error_mean"}
    assert all(math.isfinite(row[name]) for row in logged for name in names)
    assert all(row["train/loss"] > 0 for row in logged)
    assert rows[-1]["eval/return_mean"] == np.mean(result.eval_returns[:2])  # as every evaluation
    assert rows[-1]["eval/final_return_mean"] == result.eval_return_mean
    assert result.eval_return_mean == np.mean(result.eval_returns)
    assert find_checkpoint(result.run_dir).env_steps == result.global_step == 240
    loaded = kind.load(result.run_dir)
    assert loaded.evaluate(3).returns == result.eval_returns
    return loaded


OBSERVATIONS = np.random.default_rng(0).normal(0, 10, (50, 4)).astype(np.float32)


def test_train_qr_dqn_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    agent = assert_trained(QRDQN, tmp_path)
    quantiles = agent._current_agent().algorithm.networks()["model"](torch.tensor(OBSERVATIONS))
    assert quantiles.shape == (50, 2, 7)
    best = quantiles.sum(-1).argmax(-1).tolist()
    assert set(best) == {0, 1}  # or the comparison would say little
    assert agent.predict(OBSERVATIONS)[0].tolist() == best


def test_train_c51_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    agent = assert_trained(C51, tmp_path)
    logits = agent._current_agent().algorithm.networks()["model"](torch.tensor(OBSERVATIONS))
    assert logits.shape == (50, 2, 11)
    powers = logits.exp()
    best = (powers @ torch.arange(0.0, 21.0, 2.0) / powers.sum(-1)).argmax(-1).tolist()
    assert set(best) == {0, 1}
    assert agent.predict(OBSERVATIONS)[0].tolist() == best


def test_checkpoints_are_kept_as_many_as_asked_and_the_best_stays(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, checkpoint_interval=50, keep_checkpoints=2)
    result = train_dqn(config)
    names = sorted(path.name for path in (result.run_dir / "checkpoints").iterdir())
    assert [n for n in names if n.startswith("step")] == ["step_000000000200", "step_000000000240"]
    best = find_checkpoint(result.run_dir, best=True)
    assert best.info["eval_return_mean"] == result.best_eval_return_mean


def test_two_runs_never_share_a_directory(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, run_name="same", total_timesteps=30)
    assert train_dqn(config).run_dir.name == "same"
    assert train_dqn(config).run_dir.name == "same-2"


def test_replay_ratio_is_exact_for_odd_fractions() -> None:
    for ratio, steps, owed in ((0.1, 30, 3), (0.3, 10, 3), (2.5, 3, 7), (1 / 3, 9, 2)):
        progress = Progress(1_000, learning_starts=100, replay_ratio=ratio)
        made = 0
        for step in range(1, 100 + steps + 1):
            progress.env_steps = step
            made += progress.updates_owed()
            progress.updates = made
        assert made == owed, ratio


def test_intervals_fire_once_for_each_multiple_passed() -> None:
    every = Every(10)
    fired = [step for step in (3, 9, 12, 15, 19, 20, 45, 46, 50) if every.due(step)]
    assert fired == [12, 20, 45, 50]
    assert not Every(0).due(1_000)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"action": Box(-2, 2, (1,))}, "dqn takes Discrete actions; .* has Box"),
        (
            {"observation": Box(0, 255, (8, 8, 8), np.uint8)},
            "images, Dict or Tuple of them observations; .* has Box",
        ),
        ({"observation": gym.spaces.Text(3)}, r"takes Box vectors, .* observations; .* has Text"),
        ({"action": gym.spaces.MultiBinary(3)}, r"has MultiBinary\(3\)"),
    ],
)
def test_spaces_dqn_does_not_take_are_refused_by_name(
    space: dict[str, Any], message: str, tmp_path: Path
) -> None:
    class Odd(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space.get("observation", self.observation_space)
            self.action_space = space.get("action", self.action_space)

    with pytest.raises(IncompatibleEnv, match=message):
        train_dqn(TrainConfig(algo="dqn", env_id=Odd, output_dir=tmp_path))


def test_actions_that_do_not_start_at_zero_reach_the_environment_as_it_counts_them(
    tmp_path: Path,
) -> None:
    taken: set[int] = set()

    class FromFive(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = Discrete(2, start=5)

        def step(self, action: int) -> Any:
            taken.add(int(action))
            return super().step(action)

    train_dqn(tiny_config("dqn", tmp_path, env_id=FromFive, total_timesteps=60))
    assert taken == {5, 6}


def test_a_built_vector_environment_can_be_passed_in(tmp_path: Path) -> None:
    venv = gym.make_vec("CartPole-v1", num_envs=3)  # native, NEXT_STEP
    result = train_dqn(tiny_config("dqn", tmp_path, env_id=venv))
    assert 240 <= result.global_step < 243
    assert result.updates == (result.global_step - 20) // 2
    venv.reset()  # still open: it is the caller's
    venv.close()


def test_a_built_environment_that_cannot_be_built_again_needs_no_evaluation(
    tmp_path: Path,
) -> None:
    config = tiny_config("dqn", tmp_path, env_id=CountingEnv())
    with pytest.raises(ConfigError, match=r"it is not registered\. Give eval_env"):
        train_dqn(config)
    result = train_dqn(config.with_changes(eval_interval=0, final_eval_episodes=0))
    assert result.eval_return_mean is None
    assert result.global_step == 240


def test_the_wrong_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="algo: expected dqn or qr_dqn or c51, found 'ppo'"):
        train_dqn(TrainConfig(algo="ppo", env_id="CartPole-v1", output_dir=tmp_path))


def test_an_unknown_hyper_parameter_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("an environment was built")

    config = TrainConfig(algo="dqn", env_id=never, output_dir=tmp_path, algo_kwargs={"gama": 0.9})
    with pytest.raises(ConfigError, match=r"algo_kwargs.gama.*algo_kwargs.gamma"):
        train_dqn(config)
    assert list(tmp_path.iterdir()) == []


def test_a_replay_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, algo_kwargs={"buffer_size": 10**10})
    with pytest.raises(ReplayTooLarge, match="buffer_size"):
        train_dqn(config)


@pytest.mark.parametrize("where", ["reward", "obs"])
def test_nan_from_the_environment_stops_training_and_loses_nothing_of_it(
    where: str, tmp_path: Path
) -> None:
    config = tiny_config(
        "dqn", tmp_path, env_id=partial(NaNEnv, 120, where), checkpoint_interval=50, eval_interval=0
    )
    with pytest.raises(NonFiniteError, match="environment 0 at vector step 120") as caught:
        train_dqn(config)
    (run_dir,) = tmp_path.iterdir()
    checkpoint = find_checkpoint(run_dir)
    assert checkpoint.env_steps == 119  # the last step that was good
    assert checkpoint.info["exact"] is False
    assert checkpoint.info["updates"] == (119 - 20) // 2
    assert f"step 119 of the run is saved in {checkpoint.path}. " in str(caught.value)
    # No command could name the function that makes this environment.
    assert str(caught.value).endswith("go on in Python: load(path, env=...).resume()")


@pytest.mark.parametrize("algo", ["dqn", "qr_dqn", "c51"])
def test_non_finite_weights_are_never_saved(algo: str, tmp_path: Path) -> None:
    class Break(Callback):
        def on_step(self, run: TrainingRun) -> None:
            if run.env_steps == 120:
                next(run.algorithm.networks()["model"].parameters()).data[0] = float("inf")

    config = tiny_config(algo, tmp_path, checkpoint_interval=50, log_interval=1000)
    with pytest.raises(
        NonFiniteError, match=r"at step 122 .*nothing non-finite was saved"
    ) as caught:
        train_dqn(config, callbacks=[Break()])
    (run_dir,) = tmp_path.iterdir()
    assert find_checkpoint(run_dir).env_steps == 100
    assert "step 100 of the run is saved in" in str(caught.value)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["error"]) == ("failed", str(caught.value))


def test_weights_that_are_not_finite_from_the_start_leave_no_checkpoint(tmp_path: Path) -> None:
    class Break(Callback):
        def on_step(self, run: TrainingRun) -> None:
            next(run.algorithm.networks()["model"].parameters()).data[0] = float("nan")

    with pytest.raises(NonFiniteError) as caught:
        train_dqn(tiny_config("dqn", tmp_path, eval_interval=0), callbacks=[Break()])
    (run_dir,) = tmp_path.iterdir()
    assert f"The run directory is {run_dir}; it holds no checkpoint." in str(caught.value)


def test_an_environment_that_raises_ends_the_run_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(
        EnvError, match=r"RuntimeError in step at vector step 7: the robot fell over"
    ):
        train_dqn(tiny_config("dqn", tmp_path, env_id=partial(RaisingEnv, 7)))
    (run_dir,) = tmp_path.iterdir()
    assert find_checkpoint(run_dir).env_steps == 6
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["global_step"]) == ("failed", 6)
    assert summary["checkpoint_path"] == "checkpoints/step_000000000006"
    assert "the robot fell over" in summary["error"]
    (listed,) = list_runs(tmp_path)
    assert (listed.status, listed.env_steps) == ("failed", 6)


class PanicError(BaseException):
    """No Exception, as what libraries written in Rust panic with."""


class ExitingEnv(CountingEnv):
    """A counting env that ends the process in its 7th step, or when it is built or reset."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__()
        self.where, self.error, self.calls = where, error, 0
        self._exit("built")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._exit("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        self.calls += 1
        if self.calls == 7:
            self._exit("step")
        return super().step(action)

    def _exit(self, where: str) -> None:
        if where == self.where:
            raise self.error


@pytest.mark.parametrize("error", [SystemExit("enough"), PanicError("enough")], ids=repr)
@pytest.mark.parametrize("where", ["built", "reset", "step"])
def test_an_environment_that_exits_ends_the_run_as_one_that_raises(
    where: str, error: BaseException, tmp_path: Path
) -> None:
    make = partial(ExitingEnv, where, error)
    with pytest.raises(EnvError, match=rf"{type(error).__name__}.*: enough"):
        train_dqn(tiny_config("dqn", tmp_path, env_id=make, eval_interval=0))
    if where == "step":
        (run_dir,) = tmp_path.iterdir()
        assert find_checkpoint(run_dir).env_steps == 6


def test_an_environment_that_exits_ends_an_evaluation_as_one_that_raises() -> None:
    for error in (SystemExit("enough"), PanicError("enough")):
        agent = DQN(partial(ExitingEnv, "reset", error))
        with pytest.raises(EnvError, match=rf"{type(error).__name__} in reset.*: enough"):
            agent.evaluate(3)


def test_a_run_whose_environment_was_mended_goes_on_where_it_failed(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, env_id=MendedEnv, eval_interval=0)
    MendedEnv.broken = True
    with pytest.raises(EnvError, match="the robot fell over"):
        train_dqn(config)
    (run_dir,) = tmp_path.iterdir()
    MendedEnv.broken = False
    result = train_dqn(config, resume=run_dir)
    assert (result.status, result.global_step) == ("finished", 240)
    assert result.updates == (240 - 20) // 2
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "finished"
    (resumed,) = json.loads((run_dir / "metadata.json").read_text())["resumed_from"]
    assert (resumed["checkpoint"], resumed["exact"]) == ("step_000000000089", False)


class MendedEnv(RaisingEnv):
    """Raises in its 90th step until somebody mends it."""

    broken = True

    def __init__(self) -> None:
        super().__init__(90)

    def step(self, action: int) -> Any:
        self.at = 90 if self.broken else -1
        return super().step(action)


def test_an_environment_that_raises_in_the_last_evaluation_costs_only_that(tmp_path: Path) -> None:
    made: list[RaisingEnv] = []

    def make() -> RaisingEnv:
        made.append(RaisingEnv(-1))
        return made[-1]

    class BreakAtTheEnd(Callback):
        def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
            for env in made:
                env.at = 3

    config = tiny_config("dqn", tmp_path, env_id=make, eval_interval=0)
    with pytest.raises(EnvError, match="step 240 of the run is saved in"):
        train_dqn(config, callbacks=[BreakAtTheEnd()])
    (run_dir,) = tmp_path.iterdir()
    assert find_checkpoint(run_dir).info["exact"] is True  # not written again without its envs
    assert train_dqn(config, resume=run_dir).status == "finished"


def test_the_evaluation_before_training_is_made_up_for_where_it_failed(tmp_path: Path) -> None:
    made: list[RaisingEnv] = []

    def make() -> RaisingEnv:
        made.append(RaisingEnv(3))
        return made[-1]

    config = tiny_config("dqn", tmp_path, eval_env=make, env_id=CountingEnv)
    with pytest.raises(EnvError, match="the robot fell over"):
        train_dqn(config)
    (run_dir,) = tmp_path.iterdir()
    repaired = config.with_changes(eval_env=lambda: RaisingEnv(-1))
    assert train_dqn(repaired, resume=run_dir).status == "finished"
    steps = [row["global_step"] for row in read_metrics(run_dir) if "eval/return_mean" in row]
    assert steps == [0, 100, 200, 240]


def test_an_older_evaluation_is_not_reported_as_that_of_the_final_policy(tmp_path: Path) -> None:
    result = train_dqn(tiny_config("dqn", tmp_path, final_eval_episodes=0))
    assert result.best_eval_return_mean is not None  # at step 0, 100 or 200
    assert (result.eval_return_mean, result.eval_return_std, result.eval_returns) == (
        None,
        None,
        (),
    )
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(tiny_config("dqn", tmp_path), callbacks=[StopAt(130)])
    assert caught.value.result.eval_return_mean is None

    class StopAfterEvaluation(Callback):
        def on_evaluation(self, run: TrainingRun, evaluation: Any) -> None:
            if run.env_steps:
                run.interrupts.received = signal.SIGTERM

    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(tiny_config("dqn", tmp_path), callbacks=[StopAfterEvaluation()])
    assert caught.value.result.global_step == 100
    assert len(caught.value.result.eval_returns) == 2  # of this very policy


@pytest.mark.parametrize(
    ("learning_starts", "replay_ratio", "first", "said"),
    [
        (239, 1.0, 240, False),
        (240, 1.0, 241, True),
        (1000, 1.0, 1001, True),
        (230, 0.1, 240, False),
        (231, 0.1, 241, True),
    ],
)
def test_a_budget_that_ends_before_the_first_update_is_said(
    learning_starts: int,
    replay_ratio: float,
    first: int,
    said: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kwargs = {"learning_starts": learning_starts, "replay_ratio": replay_ratio}
    result = train_dqn(tiny_config("dqn", tmp_path, eval_interval=0, algo_kwargs=kwargs))
    assert (result.updates == 0) is said
    text = f"the first update would follow step {first}, and total_timesteps is 240"
    assert (text in caplog.text) is said


def test_a_name_in_place_of_a_configuration_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"expected a TrainConfig, found 'dqn/cartpole'; .*class"):
        train_dqn("dqn/cartpole")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2]
)
def test_a_signal_saves_then_stops_and_handlers_are_put_back(number: int, tmp_path: Path) -> None:
    class Signal(Callback):
        def on_step(self, run: TrainingRun) -> None:
            if run.env_steps == 77:
                os.kill(os.getpid(), number)

    usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, usual)  # a background job starts with SIGINT ignored
    try:
        with pytest.raises(TrainingInterrupted) as caught:
            train_dqn(tiny_config("dqn", tmp_path), callbacks=[Signal()])
        assert signal.getsignal(number) == usual
    finally:
        signal.signal(number, before)
    assert caught.value.signal_number == number
    result = caught.value.result
    assert result.status == "interrupted"
    assert find_checkpoint(result.run_dir).env_steps == result.global_step in (77, 78)
    assert json.loads((result.run_dir / "summary.json").read_text())["status"] == "interrupted"


def test_a_directory_that_cannot_be_written_is_a_save_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SaveError, match="file"):
        train_dqn(tiny_config("dqn", tmp_path / "file"))


class Recorder(Callback):
    """Notes what happens, adds a value to the log, and has a state of its own."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.steps_seen = 0

    def on_start(self, run: TrainingRun) -> None:
        self.events.append(f"start {run.env_steps}")

    def on_step(self, run: TrainingRun) -> None:
        self.steps_seen += 1
        run.log("mine/steps_seen", self.steps_seen)

    def on_log(self, run: TrainingRun, values: dict[str, float]) -> None:
        values["mine/twice"] = 2.0 * run.env_steps

    def on_evaluation(self, run: TrainingRun, evaluation: Any) -> None:
        self.events.append(f"evaluation {run.env_steps} of {len(evaluation.returns)}")

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        self.events.append(f"checkpoint {path.name[-3:]}")

    def on_end(self, run: TrainingRun, result: Any) -> None:
        self.events.append(f"end {result.global_step} {result.status}")

    def state_dict(self) -> dict[str, Any]:
        return {"steps_seen": self.steps_seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps_seen = state["steps_seen"]


def test_callbacks_see_the_run_and_keep_their_state_over_a_resume(tmp_path: Path) -> None:
    first = Recorder()
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(tiny_config("dqn", tmp_path), callbacks=[first, StopAt(130)])
    run_dir = caught.value.result.run_dir
    assert first.events == [
        "start 0",
        "evaluation 0 of 2",
        "evaluation 100 of 2",
        "checkpoint 130",
        "end 130 interrupted",
    ]
    second = Recorder()
    train_dqn(tiny_config("dqn", tmp_path), callbacks=[second], resume=run_dir)
    assert second.events == [
        "start 130",
        "evaluation 200 of 2",
        "checkpoint 240",
        "evaluation 240 of 3",
        "end 240 finished",
    ]
    assert second.steps_seen == 240
    logged = [r for r in read_metrics(run_dir / "metrics.jsonl") if "mine/twice" in r]
    assert [(r["mine/steps_seen"], r["mine/twice"]) for r in logged] == [
        (50, 100),
        (100, 200),
        (150, 300),
        (200, 400),
    ]


class GrowingEnv(CountingEnv):
    """An episode returns 15 times the number of episodes so far."""

    episodes = 0

    def __init__(self) -> None:
        super().__init__(5)

    def reset(self, **options: Any) -> Any:
        self.episodes += 1
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, self.episodes * reward, *rest


def test_a_run_can_stop_early_when_it_is_good_enough(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, env_id=GrowingEnv)
    result = train_dqn(config, callbacks=[StopOnReturn(30.0)])  # 15 at step 0, twice that at 100
    assert result.global_step == 100
    assert result.status == "finished"
    assert result.eval_return_mean is not None


def test_a_run_that_begins_good_enough_ends_before_its_first_step(tmp_path: Path) -> None:
    result = train_dqn(tiny_config("dqn", tmp_path), callbacks=[StopOnReturn(5.0)])
    assert (result.global_step, result.updates, result.status) == (0, 0, "finished")
    assert "reached 5.0" in str(result.stop_reason)
    assert DQN.load(result.run_dir).evaluate(3).returns == result.eval_returns


class BeyondEnv(CountingEnv):
    """Its space says at most 3, and from the fourth step of an episode on that is exceeded."""

    def __init__(self) -> None:
        super().__init__(6)
        self.observation_space = Box(np.float32([0, 0]), np.float32([1e6, 3]))


def test_an_observation_outside_its_space_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_dqn(tiny_config("dqn", tmp_path, env_id=BeyondEnv))
    (said,) = (message for message in caplog.messages if "bound" in message)
    assert re.search(
        r"BeyondEnv: observation\[1\] is [456]\.0, above the upper bound 3\.0 of its space",
        said,
    )
    caplog.clear()
    train_dqn(tiny_config("dqn", tmp_path))
    assert "bound" not in caplog.text


def test_before_anything_is_learned_no_resume_is_suggested(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, env_id="toy_envs:RaisingEnv", env_kwargs={"at": 1})
    with pytest.raises(EnvError, match="fell over") as caught:
        train_dqn(config.with_changes(eval_interval=0))
    assert str(caught.value).endswith("fix the environment and start again.")


def test_a_resumed_run_keeps_its_replay_capacity_whatever_memory_allows_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kwargs = {"buffer_size": None}
    first = train_dqn(tiny_config("dqn", tmp_path, algo_kwargs=kwargs))
    info = find_checkpoint(first.run_dir).info
    assert info["replay_capacity"] == 1_000_000
    assert info["config"]["algo_kwargs"]["buffer_size"] is None
    available = 40_000_000  # half of it holds fewer
    monkeypatch.setattr("rl_training.data.memory.available_memory", lambda: available)
    longer = tiny_config("dqn", tmp_path, algo_kwargs=kwargs, total_timesteps=260)
    assert train_dqn(longer, resume=first.run_dir).global_step == 260
