"""Which runs are compiled, what they compute, and what happens where nothing can be compiled."""

from __future__ import annotations

import copy
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium.spaces import MultiDiscrete
from torch import nn
from torch.testing import assert_close

from rl_training.algorithms.base import Algorithm
from rl_training.config.ppo import PPOConfig
from rl_training.config.train_config import COMPILE_FROM_UPDATES
from rl_training.config.value_based import DQNConfig
from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_spec, open_checkpoint
from rl_training.experiment.registry import train_config as train
from rl_training.runtime import execution
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.off_policy import OFF_POLICY
from rl_training.runtime.on_policy import ON_POLICY
from rl_training.runtime.progress import Progress
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.training_run import TrainingRun
from rounding import EPS, rounding
from toy_envs import CountingEnv
from training import (
    ALGORITHMS,
    OPTIONS,
    WITH_KERNELS,
    StopAt,
    compile_without_code,
    final_state,
    tiny_config,
)


def test_planned_updates_of_replay_by_hand() -> None:
    hyper = DQNConfig(replay_ratio=0.25, learning_starts=1000)
    assert OFF_POLICY.planned_updates(hyper, 9000, 1) == 2000
    assert OFF_POLICY.planned_updates(hyper, 9003, 1) == 2000
    assert OFF_POLICY.planned_updates(hyper, 9004, 1) == 2001
    assert OFF_POLICY.planned_updates(hyper, 9000, 8) == 2000
    assert OFF_POLICY.planned_updates(hyper, 999, 1) == 0
    assert OFF_POLICY.planned_updates(DQNConfig(replay_ratio=3, learning_starts=0), 7, 1) == 21


def test_planned_updates_are_exact_where_floating_point_is_not() -> None:
    assert int(0.29 * 100) == 28
    hyper = DQNConfig(replay_ratio=0.29, learning_starts=0)
    assert OFF_POLICY.planned_updates(hyper, 100, 1) == 29
    progress = Progress(100, replay_ratio=0.29)
    progress.env_steps = 100
    assert progress.updates_owed() == 29


@pytest.mark.parametrize(
    ("ratio", "first"), [(20.0, 1001), (1.0, 1001), (0.5, 1002), (0.3, 1004), (0.01, 1100)]
)
def test_the_first_planned_update_is_owed_at_that_transition_and_not_before(
    ratio: float, first: int
) -> None:
    hyper = DQNConfig(replay_ratio=ratio, learning_starts=1000)
    assert OFF_POLICY.first_update(hyper, 1) == first
    assert OFF_POLICY.planned_updates(hyper, first - 1, 1) == 0
    assert OFF_POLICY.planned_updates(hyper, first, 1) == max(1, int(ratio))


def test_planned_updates_of_rollouts_by_hand() -> None:
    # A rollout of 128 * 8 = 1024 rows is 4 minibatches of 256, and 4 epochs make 16 updates of it.
    hyper = PPOConfig(num_steps=128, batch_size=256, epochs=4)
    assert ON_POLICY.planned_updates(hyper, 10_240, 8) == 160
    assert ON_POLICY.planned_updates(hyper, 11_263, 8) == 160  # the last rollout is not full
    assert ON_POLICY.planned_updates(hyper, 1023, 8) == 0
    # 128 rows fit in one minibatch; 129 rows would take two.
    assert ON_POLICY.planned_updates(hyper, 1280, 1) == 40
    uneven = PPOConfig(num_steps=129, batch_size=128, epochs=3)
    assert ON_POLICY.planned_updates(uneven, 129, 1) == 6


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_plan_is_what_a_run_does(algo: str, tmp_path: Path) -> None:
    planned: list[int] = []

    class Plan(Callback):
        def on_start(self, run: TrainingRun) -> None:
            steps, num_envs = run.config.total_timesteps, run.collector.num_envs
            loop = get_spec(algo).loop
            planned.append(loop.planned_updates(run.hyper, steps, num_envs))

    assert train(tiny_config(algo, tmp_path), callbacks=[Plan()]).updates == planned[0] > 0


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling takes no time and changes nothing."""

    def pretend(algorithm: Algorithm) -> None:
        algorithm.execution = "compiled"

    monkeypatch.setattr(Algorithm, "compile", pretend)
    monkeypatch.setattr(execution, "_compiler_error", lambda device: None)


def recorded(run_dir: Path) -> str:
    found: str = json.loads((run_dir / "metadata.json").read_text())["execution"]
    return found


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("algo", ["dqn", "ppo", "sac"])
def test_auto_compiles_from_a_number_of_planned_updates_on(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(algo, tmp_path, execution="auto", threads=2)
    assert recorded(train(config).run_dir) == "eager"
    updates = train(tiny_config(algo, tmp_path)).updates
    assert updates < COMPILE_FROM_UPDATES
    for threshold, expected in ((updates, "compiled"), (updates + 1, "eager")):
        monkeypatch.setattr(execution, "COMPILE_FROM_UPDATES", threshold)
        assert recorded(train(config).run_dir) == expected
        for changes in ({"execution": "eager"}, {"threads": 1}):  # one thread computes on arrays
            assert recorded(train(config.with_changes(**changes)).run_dir) == "eager"


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize(("threshold", "mode"), [(1, "compiled"), (10**9, "eager")])
def test_a_resumed_run_keeps_its_mode_however_long_it_becomes(
    threshold: int, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("dqn", tmp_path, execution="auto", threads=2)
    monkeypatch.setattr(execution, "COMPILE_FROM_UPDATES", threshold)
    with pytest.raises(TrainingInterrupted) as stopped:
        train(config, callbacks=[StopAt(100)])
    run_dir = stopped.value.result.run_dir
    # Decided anew, the mode would be the other one.
    monkeypatch.setattr(execution, "COMPILE_FROM_UPDATES", 1 if mode == "eager" else 10**9)
    train(config.with_changes(total_timesteps=300), resume=run_dir)
    checkpoint, _ = open_checkpoint(run_dir)
    assert checkpoint.env_steps == 300
    assert checkpoint.info["execution"] == mode
    sessions = json.loads((run_dir / "metadata.json").read_text())["sessions"]
    assert [session["execution"] for session in sessions] == [mode, mode]


def test_a_resumed_run_is_not_given_another_mode(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    with pytest.raises(TrainingInterrupted) as stopped:
        train(config, callbacks=[StopAt(100)])
    with pytest.raises(ConfigError, match="execution: saved 'eager', given 'compiled'"):
        train(config.with_changes(execution="compiled"), resume=stopped.value.result.run_dir)


class NoCompiler(RuntimeError):
    """What torch raises has many lines."""


@pytest.mark.parametrize("mode", ["compiled", "auto"])
def test_without_a_compiler_a_run_is_eager_and_says_so_in_one_line(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise NoCompiler("\n  No C++ compiler was found.\n  Many more lines\n  of advice.\n")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(execution, "COMPILE_FROM_UPDATES", 1)
    caplog.set_level(logging.WARNING)
    config = tiny_config("dqn", tmp_path, execution=mode, threads=2)
    run_dir = train(config).run_dir
    (record,) = caplog.records
    assert record.getMessage() == (
        "execution: eager, for torch.compile does not work here (No C++ compiler was found.)"
    )
    assert recorded(run_dir) == "eager"
    eager = train(config.with_changes(execution="eager")).run_dir
    assert final_state(run_dir)["agent"] == final_state(eager)["agent"]


@pytest.mark.parametrize("algo", ["drqn", "recurrent_ppo"])
def test_what_learns_with_kernels_that_are_not_compiled_says_so(
    algo: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    run_dir = train(tiny_config(algo, tmp_path, execution="compiled")).run_dir
    (record,) = caplog.records
    assert record.getMessage().startswith("execution: eager; torch.compile does not ")
    assert recorded(run_dir) == "eager"


@pytest.mark.usefixtures("pretended")
def test_a_compiled_run_that_goes_on_without_a_compiler_is_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("dqn", tmp_path, execution="compiled")
    with pytest.raises(TrainingInterrupted) as stopped:
        train(config, callbacks=[StopAt(100)])
    run_dir = stopped.value.result.run_dir
    assert recorded(run_dir) == "compiled"
    monkeypatch.setattr(execution, "_compiler_error", lambda device: "no compiler")
    train(config, resume=run_dir)
    (entry,) = json.loads((run_dir / "metadata.json").read_text())["resumed_from"]
    assert entry.pop("verification")["verdict"] == "verified"
    assert entry == {
        "checkpoint": "step_000000000100",
        "exact": False,
        "changed": {"execution": {"from": "compiled", "to": "eager"}},
    }


def test_an_error_without_words_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise NoCompiler

    monkeypatch.setattr(torch, "compile", broken)
    assert execution._compiler_error(torch.device("cpu")) == "NoCompiler"


# Adam divides a gradient by its size plus an epsilon. With an epsilon of 1 a step is no further off
# than the gradient is, times the learning rate; with 1e-8 a gradient near zero that is rounded
# differently could be followed by a whole step in the other direction.
EVEN_STEPS = {"optimizer_eps": 1.0}


class Last(Callback):
    """Keeps the last update of a run: the state before and after it, and what it was given."""

    def on_start(self, run: TrainingRun) -> None:
        self.algorithm, self.update = run.algorithm, run.algorithm.update
        run.algorithm.update = self.watched  # type: ignore[method-assign]

    def watched(self, batch: Any, clock: Any) -> Any:
        self.before = copy.deepcopy(self.algorithm.state_dict())
        self.given = copy.deepcopy(batch), clock
        self.result = self.update(batch, clock)
        self.after = copy.deepcopy(self.algorithm.state_dict())
        return self.result


@pytest.mark.parametrize(
    ("algo", "options"),
    [
        *(pytest.param(algo, {}, id=algo) for algo in sorted(WITH_KERNELS)),
        pytest.param("dqn", OPTIONS, id="dqn-all options"),
    ],
)
def test_a_compiled_update_is_the_eager_one(
    algo: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if options or algo != "dqn":
        compile_without_code(monkeypatch)
    compiled, eager = Last(), Last()
    config = tiny_config(algo, tmp_path, algo_kwargs=options | EVEN_STEPS)
    run_dir = train(config.with_changes(execution="compiled"), callbacks=[compiled]).run_dir
    assert recorded(run_dir) == "compiled"
    train(config, callbacks=[eager])
    assert compiled.algorithm.execution == "compiled"
    assert eager.algorithm.execution == "eager"
    eager.algorithm.load_state_dict(compiled.before)
    again = eager.update(*compiled.given)
    assert again.gradient_steps == compiled.result.gradient_steps
    assert_close(again.metrics, compiled.result.metrics, atol=1e-5, rtol=1e-4)
    mine, other = eager.algorithm.state_dict()["model"], compiled.after["model"]
    assert_close(mine, other, atol=1e-5, rtol=0)
    assert any(not torch.equal(x, compiled.before["model"][name]) for name, x in mine.items())


class TwoChoices(CountingEnv):
    """Takes two choices at a time; the reward depends on both."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space: Any = MultiDiscrete([3, 2])

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(0)
        return obs, float(action[0] - action[1]), *rest


def sequential(env_spec: Any, hyper: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))


class OwnActorCritic(nn.Module):
    """A policy of one continuous action and its values."""

    def __init__(self, env_spec: Any, hyper: Any) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(3, 1), nn.Linear(3, 1)
        self.log_std = nn.Parameter(torch.zeros(1))

    def policy(self, obs: torch.Tensor) -> Any:
        return self.actor(obs)

    def value(self, obs: torch.Tensor) -> Any:
        return self.critic(obs)[:, 0]


PENDULUM = {"env_id": "Pendulum-v1"}


@pytest.mark.parametrize(
    ("algo", "changes"),
    [
        pytest.param("dqn", {"algo_kwargs": {"network": sequential}}, id="own network"),
        pytest.param("ppo", PENDULUM, id="continuous"),
        pytest.param("ppo", {"env_id": TwoChoices}, id="multi-discrete"),
        pytest.param(
            "ppo", PENDULUM | {"algo_kwargs": {"network": OwnActorCritic}}, id="own actor-critic"
        ),
        pytest.param("sac", {"algo_kwargs": {"layer_norm": True}}, id="normalised critics"),
    ],
)
def test_a_compiled_run_ends_with_the_parameters_of_an_eager_one(
    algo: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 updates and more, with a learning rate of 2.5e-4 or 3e-4.

    Compiled code adds up in another order. A gradient is a mean over at most 16 rows, of a size up
    to 20, and a step differs by the learning rate times its rounding; so does the parameter, below
    2, which either run rounds by EPS / 2. Of 20 updates these are 3e-6; gradients that are wrong by
    a thousandth move a parameter twice as far. Nothing is compiled twice, which would cost seconds
    whenever it happened.
    """
    compile_without_code(monkeypatch)
    quick: dict[str, Any] = {"total_timesteps": 60, "eval_interval": 0, "final_eval_episodes": 0}
    kwargs = changes.get("algo_kwargs", {}) | EVEN_STEPS
    compiled, eager = Last(), Last()
    for mode, last in (("compiled", compiled), ("eager", eager)):
        run = tiny_config(
            algo, tmp_path, execution=mode, **quick, **(changes | {"algo_kwargs": kwargs})
        )
        with torch._dynamo.config.patch(error_on_recompile=True):
            result = train(run, callbacks=[last])
        assert recorded(result.run_dir) == mode
        assert result.updates >= 20
    mine, other = eager.after["model"], compiled.after["model"]
    atol = result.updates * (3e-4 * rounding(16, 20) + EPS)
    assert_close(mine, other, atol=atol, rtol=0)
    assert all(not torch.equal(x, compiled.before["model"][name]) for name, x in other.items())


def test_what_was_compiled_is_kept_where_the_next_start_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert execution._compiler_error(torch.device("cpu")) is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] != str(tmp_path / "rl_training" / "inductor")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert execution._compiler_error(torch.device("cpu")) is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "rl_training" / "inductor")
