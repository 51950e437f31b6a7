"""`--auto-resume`: one call that starts a run, goes on with it, or has nothing left to do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rl_training import DQN
from rl_training.cli import app
from rl_training.config.loading import dump_yaml
from rl_training.config.train_config import TrainConfig
from rl_training.errors import CheckpointError, ConfigError, RunError, RunInUse, UsageError
from rl_training.experiment.registry import train_config
from rl_training.runtime.result import TrainingInterrupted, TrainResult
from rl_training.storage.metrics_log import read_metrics
from rl_training.storage.runs import RunLock, create_run_directory
from training import StopAt, final_state, tiny_config

NAME = "dqn-CartPole-v1-seed3"


def config_of(tmp_path: Path, **changes: Any) -> TrainConfig:
    return tiny_config("dqn", tmp_path, checkpoint_interval=50, **changes)


def interrupted(config: TrainConfig, env_steps: int) -> TrainResult:
    with pytest.raises(TrainingInterrupted) as caught:
        train_config(config, callbacks=[StopAt(env_steps)], auto_resume=True)
    return caught.value.result


def rows(run_dir: Path) -> list[int]:
    return [row["global_step"] for row in read_metrics(run_dir)]


def test_the_same_call_starts_goes_on_and_ends_as_if_never_stopped(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    straight = train_config(config_of(tmp_path / "straight"))
    for env_steps in (60, 130, 199):
        assert interrupted(config, env_steps).global_step == env_steps
    result = train_config(config, auto_resume=True)
    assert result.run_dir == tmp_path / NAME
    assert os.listdir(tmp_path / "straight") != [NAME]  # elsewhere the time is part of the name
    assert final_state(result.run_dir) == final_state(straight.run_dir)
    assert rows(result.run_dir) == rows(straight.run_dir)


def test_a_finished_run_gives_its_result_again_without_training(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    first = train_config(config, auto_resume=True)
    before = {path: path.stat().st_mtime_ns for path in first.run_dir.rglob("*") if path.is_file()}
    again = train_config(config, auto_resume=True)
    assert again == first
    del before[first.run_dir / ".lock"]
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_a_larger_budget_extends_a_finished_run(tmp_path: Path) -> None:
    train_config(config_of(tmp_path), auto_resume=True)
    result = train_config(config_of(tmp_path, total_timesteps=300), auto_resume=True)
    assert result.global_step == 300
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert metadata["resumed_from"][0]["extended"] == {"from": 240, "to": 300}


def test_a_run_with_another_configuration_is_neither_gone_on_with_nor_shown(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    changed = config_of(tmp_path, algo_kwargs={"gamma": 0.5})
    interrupted(config, 60)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"algo_kwargs\.gamma: saved 0\.99, given 0\.5"):
            train_config(changed, auto_resume=True)
        train_config(config, auto_resume=True)  # and then of the finished run


def test_a_directory_without_a_checkpoint_starts_from_0_in_it(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    straight = train_config(config_of(tmp_path / "straight"))
    directory = create_run_directory(tmp_path, name=NAME)
    (directory / "config.yaml").write_text("algo: dqn\n")
    (directory / "metrics.jsonl").write_text('{"global_step": 7}\n{"glob')
    left = interrupted(config, 110).checkpoint_path  # an evaluation has left a best one
    assert left is not None
    for step in left.parent.glob("step_*"):
        step.rename(tmp_path / step.name)
    result = train_config(config, auto_resume=True)
    assert result.run_dir == directory
    assert final_state(directory) == final_state(straight.run_dir)
    assert rows(directory) == rows(straight.run_dir)
    assert [path.name for path in (directory / "abandoned").iterdir()] == ["best_000000000000.1"]


def damage(path: Path) -> None:
    content = bytearray((path / "agent.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "agent.safetensors").write_bytes(content)


def test_a_damaged_checkpoint_is_passed_over_aloud_and_never_for_step_0(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path)
    straight = train_config(config_of(tmp_path / "straight"))
    newest = interrupted(config, 130).checkpoint_path
    assert newest is not None
    damage(newest)
    assert final_state(train_config(config, auto_resume=True).run_dir) == final_state(
        straight.run_dir
    )
    assert "passed over a damaged checkpoint: " in caplog.text
    assert "step_000000000130" in caplog.text
    (tmp_path / NAME / "summary.json").unlink()
    for path in (tmp_path / NAME / "checkpoints").glob("step_*"):
        damage(path)
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        train_config(config, auto_resume=True)


def test_a_damaged_summary_leads_to_the_checkpoint(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    first = train_config(config, auto_resume=True)
    summary = first.run_dir / "summary.json"
    for text in ("{", "[]", '{"status": "finished"}', '{"status": "finished", "global_step": "x"}'):
        summary.write_text(text)
        again = train_config(config, auto_resume=True)
        assert again.eval_returns == first.eval_returns
        assert json.loads(summary.read_text())["status"] == "finished"


# The command


def command(config: TrainConfig, folder: Path, *words: str) -> Result:
    path = folder / "config.yaml"
    path.write_text(dump_yaml(config.to_plain()))
    return CliRunner().invoke(app, ["train", "--config", str(path), "--auto-resume", *words])


def test_a_run_that_is_live_elsewhere_exits_with_4_and_is_left_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path / "out")
    interrupted(config, 60)
    with RunLock(tmp_path / "out" / NAME):
        result = command(config, tmp_path)
    assert result.exit_code == 4
    assert f"{NAME} is in use by another process (pid {os.getpid()} on host" in result.output
    assert command(config, tmp_path).exit_code == 0
    again = command(config, tmp_path)
    assert (again.exit_code, "finished at step 240" in again.output) == (0, True)


def test_of_two_that_begin_at_once_one_gets_the_directory(tmp_path: Path) -> None:
    create_run_directory(tmp_path, name="run", only=True)
    with pytest.raises(RunInUse, match="another process has just begun"):
        create_run_directory(tmp_path, name="run", only=True)
    assert os.listdir(tmp_path) == ["run"]


def test_other_files_are_not_taken_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(RunError, match="found other files"):
        train_config(config_of(tmp_path, run_name="mine"), auto_resume=True)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="lies outside"):
        train_config(config_of(tmp_path / "runs", run_name="link"), auto_resume=True)
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]
    with pytest.raises(UsageError, match="not both"):
        train_config(config_of(tmp_path), resume=tmp_path, auto_resume=True)


def test_learn_goes_on_too(tmp_path: Path) -> None:
    config = config_of(tmp_path, run_name="mine")
    interrupted(config, 60)
    result = DQN(config).learn(auto_resume=True)
    assert result.run_dir == tmp_path / "mine"
    loaded = DQN(config)
    assert loaded.learn(auto_resume=True) == result
    assert loaded.evaluate(2).returns == DQN.load(result.run_dir).evaluate(2).returns
