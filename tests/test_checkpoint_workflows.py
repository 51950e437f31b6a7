"""Runs that are killed, damaged, misused and resumed: what comes out is right, or a clear error."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from gymnasium.spaces import Box
from typer.testing import CliRunner

from processes import CommandLine, Gate, GateEnv, wait_until
from rl_training import DQN, Callback, TrainConfig, train_dqn
from rl_training.cli import app
from rl_training.config.loading import dump_yaml
from rl_training.errors import CheckpointError, ConfigError, UsageError
from rl_training.experiment.registry import get_spec
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.resume import check_same_run
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint, has_checkpoint, write_checkpoint
from rl_training.storage.metrics_log import read_metrics
from toy_envs import CountingEnv, GeneratorEnv, LeakyEnv
from training import Crash, StopAt, final_state, tiny_config


def crashed(config: TrainConfig, env_steps: int) -> Path:
    """The directory of a run that crashed."""
    before = set(Path(config.output_dir).glob("*"))
    with pytest.raises(KeyboardInterrupt):
        train_dqn(config, callbacks=[Crash(env_steps)])
    (run_dir,) = set(Path(config.output_dir).glob("*")) - before
    return run_dir


def interrupted(config: TrainConfig, env_steps: int) -> Path:
    """The directory of a run that a signal stopped."""
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[StopAt(env_steps)])
    return caught.value.result.run_dir


def damage(checkpoint: Path, name: str = "agent.safetensors") -> None:
    content = bytearray((checkpoint / name).read_bytes())
    content[-1] ^= 1
    (checkpoint / name).write_bytes(content)


def metadata(run_dir: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return values


def resumes(run_dir: Path) -> list[dict[str, Any]]:
    """The entries of the resumes, of each verification only its verdict."""
    entries = metadata(run_dir)["resumed_from"]
    return [entry | {"verification": entry["verification"]["verdict"]} for entry in entries]


def logged(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of the log without what the clock says."""
    clocks = {"wall_time_s", "time/steps_per_second"}
    return [
        {key: value for key, value in row.items() if key not in clocks}
        for row in read_metrics(run_dir)
    ]


# Killed


def test_a_run_that_is_killed_three_times_ends_as_if_never_killed(tmp_path: Path) -> None:
    gate = Gate(tmp_path / "gate")
    config = tiny_config(
        "dqn",
        tmp_path / "runs",
        env_id=GateEnv,
        # The gate near the end keeps the run from ending before it is killed.
        env_kwargs={"gate": str(gate.path), "at": 595},
        total_timesteps=600,
        checkpoint_interval=40,
        run_name="run",
    )
    reference = train_dqn(config.with_changes(output_dir=str(tmp_path / "straight"))).run_dir
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config.to_plain()))
    gate.close()
    run_dir = tmp_path / "runs" / "run"
    words, seen = ["train", "--config", str(path)], 0
    for moment in np.random.default_rng(0).uniform(0.0, 0.2, 3):
        command = CommandLine(*words, output=tmp_path / "output.txt")
        wait_until(lambda known=seen: newest(run_dir) > known or newest(run_dir) == 560)
        time.sleep(moment)
        command.signal(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
        seen = newest(run_dir)
        words = ["resume", "--checkpoint", str(run_dir), "--trust"]
    gate.open()
    assert CommandLine(*words, output=tmp_path / "output.txt").wait() == 0
    assert final_state(run_dir) == final_state(reference)
    assert logged(run_dir) == logged(reference)
    assert len(metadata(run_dir)["resumed_from"]) == 3
    assert [p.name for p in run_dir.rglob(".rl-training-tmp-*")] == []


def newest(run_dir: Path) -> int:
    names = sorted(path.name for path in run_dir.glob("checkpoints/step_*"))
    return int(names[-1][5:17]) if names else 0


def test_the_log_of_a_resumed_run_has_every_row_once(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, checkpoint_interval=70, log_interval=20)
    straight = logged(train_dqn(config).run_dir)
    rows = [row["global_step"] for row in straight if "train/epsilon" in row]
    assert rows == list(range(20, 241, 20))
    run_dir = crashed(config, 195)
    # Rows of steps that are done again: those after the checkpoint of step 140.
    assert [row["global_step"] for row in logged(run_dir)][-2:] == [160, 180]
    assert find_checkpoint(run_dir).env_steps == 140
    train_dqn(config, resume=run_dir)
    assert logged(run_dir) == straight


def test_a_signal_during_the_last_evaluation_loses_nothing(tmp_path: Path) -> None:
    class StopAtTheEnd(Callback):
        def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
            run.interrupts.received = signal.SIGTERM if run.env_steps == 240 else None

    config = tiny_config("dqn", tmp_path)
    straight = train_dqn(config)
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[StopAtTheEnd()])
    run_dir = caught.value.result.run_dir
    assert caught.value.result.global_step == 240
    resumed = train_dqn(config, resume=run_dir)
    assert resumed.status == "finished"
    assert resumed.eval_returns == straight.eval_returns
    assert final_state(run_dir) == final_state(straight.run_dir)
    assert logged(run_dir) == logged(straight.run_dir)


def test_resuming_a_finished_run_changes_nothing_that_matters(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    first = train_dqn(config)
    state, rows = final_state(first.run_dir), logged(first.run_dir)
    again = train_dqn(config, resume=first.run_dir)
    assert again.run_dir == first.run_dir
    assert again.eval_returns == first.eval_returns
    for part in ("agent", "replay"):  # the loop now knows the last evaluation
        assert final_state(first.run_dir)[part] == state[part]
    assert logged(first.run_dir) == rows


# Damaged


def test_a_damaged_checkpoint_is_passed_over_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config("dqn", tmp_path, checkpoint_interval=50)
    straight = final_state(train_dqn(config).run_dir)
    run_dir = interrupted(config, 130)
    damage(run_dir / "checkpoints" / "step_000000000130")
    for command in (["eval", "--episodes", "1"], ["resume"]):
        caplog.clear()
        result = CliRunner().invoke(app, [*command, "--checkpoint", str(run_dir)])
        assert result.exit_code == 0, result.output
        (said,) = (text for text in caplog.messages if "damaged checkpoint" in text)
        assert said.startswith("passed over a damaged checkpoint: ")
        assert "step_000000000130/agent.safetensors" in said
    assert "resumed at step 100" in result.stderr
    assert final_state(run_dir) == straight
    assert [entry["checkpoint"] for entry in metadata(run_dir)["resumed_from"]] == [
        "step_000000000100"
    ]


def test_if_all_are_damaged_each_is_listed(tmp_path: Path) -> None:
    run_dir = interrupted(tiny_config("dqn", tmp_path, checkpoint_interval=50), 130)
    damage(run_dir / "checkpoints" / "step_000000000100", "agent.json")
    damage(run_dir / "checkpoints" / "step_000000000130", "manifest.json")
    with pytest.raises(CheckpointError) as caught:
        DQN.load(run_dir)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"no usable checkpoint in {run_dir}:"
    assert "step_000000000130/manifest.json" in lines[1]
    assert "step_000000000100/agent.json" in lines[2]
    assert len(lines) == 3
    result = CliRunner().invoke(app, ["resume", "--checkpoint", str(run_dir)])
    assert result.exit_code == 1
    assert "\nerror: no usable checkpoint" in result.stderr


def test_a_damaged_replay_stops_a_resume_and_not_a_prediction(tmp_path: Path) -> None:
    run_dir = interrupted(tiny_config("dqn", tmp_path), 130)
    damage(run_dir / "checkpoints" / "step_000000000130", "replay.safetensors")
    agent = DQN.load(run_dir)  # reads and verifies what acting needs
    assert agent.predict([0.0, 0.0, 0.0, 0.0])[0] in (0, 1)
    with pytest.raises(CheckpointError, match=r"replay\.safetensors"):
        agent.resume()


# Of something else


def test_a_checkpoint_of_another_algorithm_is_refused(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path / "runs", total_timesteps=40)
    source = find_checkpoint(train_dqn(config).run_dir)
    forged = write_checkpoint(
        tmp_path / "forged",
        kind="step",
        env_steps=40,
        parts={part: source.read(part) for part in source.parts},
        info={**source.info, "algo": "ppo"},
    )
    with pytest.raises(CheckpointError, match="was trained with ppo, not dqn"):
        DQN.load(forged)


def test_a_checkpoint_of_other_spaces_is_refused(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    run_dir = interrupted(config, 60)
    with pytest.raises(CheckpointError, match="the observation spaces differ") as caught:
        DQN.load(run_dir, env=CountingEnv)
    assert "(4,)" in str(caught.value)  # CartPole's
    assert "(2,)" in str(caught.value)
    with pytest.raises(ConfigError, match="env_id: saved 'CartPole-v1', given 'toy_envs:Counting"):
        train_dqn(config.with_changes(env_id=CountingEnv), resume=run_dir)


class ChangingEnv(CountingEnv):
    """An environment that somebody edits between two sessions."""

    most = 1e6

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(-1.0, self.most, (2,), np.float32)


def test_an_environment_that_changed_its_spaces_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("dqn", tmp_path, env_id=ChangingEnv)
    run_dir = interrupted(config, 60)
    monkeypatch.setattr(ChangingEnv, "most", 5e5)
    with pytest.raises(CheckpointError, match="the observation spaces differ"):
        train_dqn(config, resume=run_dir)
    assert find_checkpoint(run_dir).env_steps == 60


def test_a_resumed_run_keeps_its_configuration(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    run_dir = interrupted(config, 60)
    changed = config.with_changes(
        seed=9, log_interval=10, algo_kwargs={**config.algo_kwargs, "gamma": 0.5}
    )
    with pytest.raises(ConfigError) as caught:
        train_dqn(changed, resume=run_dir)
    assert str(caught.value).splitlines()[1:] == [
        "  algo_kwargs.gamma: saved 0.99, given 0.5",
        "  seed: saved 3, given 9",
    ]  # how often it logs may change


def test_a_policy_without_its_training_state_cannot_be_resumed(tmp_path: Path) -> None:
    run_dir = train_dqn(tiny_config("dqn", tmp_path)).run_dir
    best = find_checkpoint(run_dir, best=True).path
    result = CliRunner().invoke(app, ["resume", "--checkpoint", str(best)])
    assert result.exit_code == 1
    assert "can be evaluated but not resumed" in result.stderr


# Levels


def test_the_level_and_every_resume_are_recorded(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    run_dir = interrupted(config, 60)
    assert metadata(run_dir)["resume_level"] == "exact"
    assert "resumed_from" not in metadata(run_dir)
    with pytest.raises(TrainingInterrupted):
        train_dqn(config, callbacks=[StopAt(110)], resume=run_dir)
    train_dqn(config, resume=run_dir)
    longer = config.with_changes(total_timesteps=300)
    train_dqn(longer, resume=run_dir)
    assert resumes(run_dir) == [
        {"checkpoint": "step_000000000060", "exact": True, "verification": "verified"},
        {"checkpoint": "step_000000000110", "exact": True, "verification": "verified"},
        {
            "checkpoint": "step_000000000240",
            "exact": False,
            "extended": {"from": 240, "to": 300},
            "verification": "verified",
        },
    ]
    details = [entry["verification"]["detail"] for entry in metadata(run_dir)["resumed_from"]]
    assert [detail.split(" with")[0] for detail in details] == [
        "60 transitions from step 0",
        "50 transitions from step 60",
        "130 transitions from step 110",
    ]
    # What comes after a resume that is no exact continuation is none either.
    assert find_checkpoint(run_dir).info["exact"] is False


def test_at_level_boundary_a_run_is_exact_from_the_checkpoints_at_the_interval(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config("dqn", tmp_path, env_id=GeneratorEnv, checkpoint_interval=50)
    straight = train_dqn(config).run_dir
    assert metadata(straight)["resume_level"] == "boundary"
    assert "generator" in metadata(straight)["resume_level_reason"]
    (said,) = (r for r in caplog.records if r.getMessage().startswith("resume level: boundary"))
    assert said.levelno == logging.WARNING
    for moment in (101, 149):
        run_dir = crashed(config, moment)
        assert find_checkpoint(run_dir).env_steps == 100
        train_dqn(config, resume=run_dir)
        assert final_state(run_dir) == final_state(straight)
        assert logged(run_dir) == logged(straight)
        assert resumes(run_dir) == [
            {"checkpoint": "step_000000000100", "exact": True, "verification": "verified"}
        ]


def test_at_level_boundary_a_signal_at_the_interval_is_exact_and_between_is_not(
    tmp_path: Path,
) -> None:
    config = tiny_config("dqn", tmp_path, env_id=GeneratorEnv, checkpoint_interval=50)
    straight = final_state(train_dqn(config).run_dir)
    for moment, exact in ((100, True), (130, False)):
        run_dir = interrupted(config, moment)
        train_dqn(config, resume=run_dir)
        assert resumes(run_dir) == [
            {
                "checkpoint": f"step_000000000{moment}",
                "exact": exact,
                "verification": "verified",
            }
        ]
        assert (final_state(run_dir) == straight) is exact


def test_the_statistical_level_is_declared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config("dqn", tmp_path, env_id=LeakyEnv, checkpoint_interval=50)
    run_dir = crashed(config, 120)
    assert metadata(run_dir)["resume_level"] == "statistical"
    assert "different answers" in metadata(run_dir)["resume_level_reason"]
    assert [r.getMessage() for r in caplog.records if "resume level: statistical" in r.getMessage()]
    checkpoint = find_checkpoint(run_dir)
    assert checkpoint.info["resume_level"] == "statistical"
    assert checkpoint.info["exact"] is False
    result = train_dqn(config, resume=run_dir)
    assert result.global_step == 240
    assert resumes(run_dir) == [
        {"checkpoint": "step_000000000100", "exact": False, "verification": "none"}
    ]


def test_the_command_line_says_a_lower_level_once(tmp_path: Path) -> None:
    words = ["total_timesteps=30", "final_eval_episodes=1", "algo_kwargs.hidden_sizes=[8]"]
    words += ["env_id=toy_envs:GeneratorEnv"]
    command = CommandLine(
        *("train", "--config", "dqn/cartpole", "--output-dir", str(tmp_path / "runs")),
        *(word for pair in words for word in ("--set", pair)),
        output=tmp_path / "output.txt",
    )
    assert command.wait() == 0, command.text()
    (line,) = (line for line in command.text().splitlines() if "resume level" in line)
    assert line.startswith("resume level: boundary (")


# The format


def test_a_checkpoint_is_plain_data_that_other_programs_read(tmp_path: Path) -> None:
    checkpoint = find_checkpoint(train_dqn(tiny_config("dqn", tmp_path)).run_dir)
    manifest = json.loads((checkpoint.path / "manifest.json").read_text())
    assert manifest["env_steps"] == 240
    weights: dict[str, set[tuple[int, ...]]] = {}
    for path in checkpoint.path.iterdir():
        if path.suffix == ".safetensors":
            with safetensors.safe_open(path, framework="numpy") as file:
                shapes = [file.get_tensor(name).shape for name in file.keys()]  # noqa: SIM118
                weights[path.stem] = set(shapes)
        else:
            assert path.suffix == ".json"
            json.loads(path.read_text())
    replay = {"replay", "replay.000000000000"}
    assert set(weights) == {"agent", "loop", "spaces", "transcript"} | replay
    assert {(16, 4), (16,), (2, 16), (2,)} <= weights["agent"]


def test_going_on_from_an_older_checkpoint_sets_the_newer_ones_aside(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, checkpoint_interval=50, keep_checkpoints=1)
    run_dir = train_dqn(config.with_changes(keep_checkpoints=9)).run_dir
    with pytest.raises(TrainingInterrupted):
        train_dqn(
            config, callbacks=[StopAt(165)], resume=run_dir / "checkpoints" / "step_000000000150"
        )
    assert find_checkpoint(run_dir).env_steps == 165
    aside = sorted(path.name for path in (run_dir / "abandoned").iterdir())
    assert [name for name in aside if name.startswith("step")] == [
        "step_000000000200.1",
        "step_000000000240.1",
    ]
    train_dqn(config, resume=run_dir)
    assert find_checkpoint(run_dir).env_steps == 240


# Sessions


def test_how_a_run_began_stays_known_over_its_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("dqn", tmp_path)
    monkeypatch.setattr("sys.argv", ["first", "call"])
    run_dir = interrupted(config, 60)
    first = metadata(run_dir)
    monkeypatch.setattr("sys.argv", ["second", "call"])
    train_dqn(config.with_changes(threads=2), resume=run_dir)
    second = metadata(run_dir)
    kept = {k: v for k, v in second.items() if k not in ("sessions", "resumed_from")}
    assert kept == {k: v for k, v in first.items() if k != "sessions"}
    assert [s["command"] for s in second["sessions"]] == [["first", "call"], ["second", "call"]]
    assert [s["threads"] for s in second["sessions"]] == [1, 2]
    assert {"started_at", "packages", "device"} <= second["sessions"][1].keys()


def test_a_run_that_crashes_while_it_is_extended_is_not_called_finished(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    run_dir = train_dqn(config).run_dir

    class Look(Callback):
        def on_start(self, run: TrainingRun) -> None:
            self.summary = (run_dir / "summary.json").exists()

    look = Look()
    longer = config.with_changes(total_timesteps=400)
    with pytest.raises(ZeroDivisionError):
        train_dqn(longer, callbacks=[look, Crash(300, ZeroDivisionError)], resume=run_dir)
    assert not look.summary  # a kill now leaves none
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["eval_return_mean"]) == ("failed", None)
    # The extension is known although no checkpoint was taken since.
    assert DQN.load(run_dir).resume().global_step == 400


def test_a_resume_that_fails_leaves_the_log_and_the_records_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(
        "dqn", tmp_path, env_id=ChangingEnv, checkpoint_interval=50, log_interval=20
    )
    run_dir = crashed(config, 190)
    assert find_checkpoint(run_dir).env_steps == 150
    assert [row["global_step"] for row in logged(run_dir)][-2:] == [160, 180]
    names = ("metrics.jsonl", "config.yaml", "metadata.json")
    before = {name: (run_dir / name).read_bytes() for name in names}
    monkeypatch.setattr(ChangingEnv, "most", 5e5)
    with pytest.raises(CheckpointError, match="the observation spaces differ"):
        train_dqn(config, resume=run_dir)
    assert {name: (run_dir / name).read_bytes() for name in names} == before


@pytest.mark.parametrize("path", [".", "step_000000000060"])
def test_a_run_is_resumed_in_place_from_inside_its_checkpoints(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("dqn", tmp_path / "runs")
    run_dir = interrupted(config, 60)
    monkeypatch.chdir(run_dir / "checkpoints")
    result = train_dqn(config, resume=path)
    assert result.run_dir == run_dir
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [run_dir.name]


def test_a_copy_that_is_interrupted_at_once_has_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path / "runs")
    copy = tmp_path / "copy"
    shutil.copytree(find_checkpoint(interrupted(config, 60)).path, copy)
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[StopAtOnce()], resume=copy)
    result = caught.value.result
    assert find_checkpoint(result.run_dir).env_steps == 60
    assert result.checkpoint_path == find_checkpoint(result.run_dir).path


class StopAtOnce(Callback):
    """A signal before the first step."""

    def on_start(self, run: TrainingRun) -> None:
        run.interrupts.received = signal.SIGTERM


def test_a_damaged_checkpoint_is_named_in_python_and_resume_falls_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config("dqn", tmp_path, checkpoint_interval=50)
    straight = final_state(train_dqn(config).run_dir)
    run_dir = interrupted(config, 130)
    damage(run_dir / "checkpoints" / "step_000000000130", "replay.safetensors")
    agent = DQN.load(run_dir)  # acting does not need the replay
    assert "passed over" not in caplog.text
    agent.resume()
    assert "passed over a damaged checkpoint: " in caplog.text
    assert "step_000000000130/replay.safetensors" in caplog.text
    assert final_state(run_dir) == straight
    assert [entry["checkpoint"] for entry in metadata(run_dir)["resumed_from"]] == [
        "step_000000000100"
    ]
    caplog.clear()
    damage(find_checkpoint(run_dir).path)
    DQN.load(run_dir)
    assert "step_000000000240/agent.safetensors" in caplog.text


def test_a_run_that_ended_past_its_budget_can_be_resumed_with_it(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, num_envs=7)
    first = train_dqn(config)
    assert first.global_step == 245  # 35 steps of 7 environments
    assert train_dqn(config, resume=first.run_dir).global_step == 245
    with pytest.raises(UsageError, match="at least the 245 steps that are done"):
        train_dqn(config.with_changes(total_timesteps=244), resume=first.run_dir)


def test_a_run_from_before_an_option_existed_goes_on_with_its_default(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    run_dir = interrupted(config, 130)
    checkpoint = find_checkpoint(run_dir)
    saved = json.loads(json.dumps(checkpoint.info["config"]))
    del saved["algo_kwargs"]["dueling"], saved["execution"]
    older = replace(checkpoint, info=checkpoint.info | {"config": saved})
    check_same_run(older, config, get_spec("dqn"))
    asked = config.with_changes(algo_kwargs=config.algo_kwargs | {"dueling": True})
    with pytest.raises(ConfigError, match=r"algo_kwargs.dueling: saved False, given True"):
        check_same_run(older, asked, get_spec("dqn"))


def test_a_run_in_progress_is_loaded_while_it_prunes_its_checkpoints(tmp_path: Path) -> None:
    config = tiny_config(
        "dqn",
        tmp_path,
        run_name="live",
        total_timesteps=60,
        checkpoint_interval=2,
        keep_checkpoints=1,
        eval_interval=0,
        final_eval_episodes=0,
    )
    training = threading.Thread(target=train_dqn, args=(config,))
    training.start()
    loads = 0
    while training.is_alive():
        if has_checkpoint(tmp_path / "live"):
            DQN.load(tmp_path / "live")
            loads += 1
    training.join()
    assert loads > 3
