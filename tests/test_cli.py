"""`rl-training` as it is typed: what it prints, what it leaves behind, and how it exits."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pty
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

import rl_training
from processes import CommandLine, Gate, GateEnv, wait_until, wait_until_noted
from rl_training import train_dqn
from rl_training.cli import app
from rl_training.config.loading import dump_yaml, packaged_configs
from rl_training.runtime.agent import Agent
from rl_training.runtime.console import ConsoleProgress, sparkline
from rl_training.runtime.result import command_line
from rl_training.storage.checkpoints import find_checkpoint, write_checkpoint
from rl_training.storage.metrics_log import read_metrics
from rl_training.tools.show import tensorboard_hint
from training import final_state, tiny_config

QUICK = (
    "total_timesteps=120",
    "eval_interval=50",
    "eval_episodes=2",
    "final_eval_episodes=3",
    "log_interval=40",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.learning_starts=20",
    "algo_kwargs.batch_size=8",
)


def invoke(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def settings(*pairs: str) -> list[str]:
    return [word for pair in (*QUICK, *pairs) for word in ("--set", pair)]


def train(*arguments: object, config: str = "dqn/cartpole") -> Result:
    return invoke("train", "--config", config, *arguments)


@pytest.mark.extra("video")
def test_train_with_report_leaves_a_video_and_a_page_that_shows_it(tmp_path: Path) -> None:
    result = train(*settings("total_timesteps=60"), "--output-dir", tmp_path, "--report")
    assert result.exit_code == 0, result.output
    (run,) = tmp_path.iterdir()
    assert result.stdout.splitlines()[-1] == f"report: {run / 'report.html'}"
    assert (run / "video.mp4").stat().st_size > 1_000
    assert 'src="data:video/mp4;base64,' in (run / "report.html").read_text()


def failure(result: Result, code: int) -> str:
    """What a failed command said: one paragraph on standard error, and no traceback."""
    assert result.exit_code == code, result.output
    message = result.stderr[result.stderr.index("error: ") :]
    assert message.count("error: ") == 1
    assert "\n\n" not in message
    assert "Traceback" not in result.output
    assert "not expected" not in message, message
    return message


def only_run(folder: Path) -> Path:
    (run_dir,) = folder.iterdir()
    return run_dir


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; the tests that use it leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    result = train(*settings(), "--seed", 4, "--output-dir", folder)
    assert result.exit_code == 0, result.output
    return only_run(folder)


# Starting up.


def fresh(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A command in a new interpreter, and the processor time it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return result, used


def test_help_answers_at_once() -> None:
    script = Path(sys.executable).with_name("rl-training")
    result, seconds = fresh(str(script), "--help")
    assert result.returncode == 0
    for command in ("train", "eval", "resume", "predict", "list", "config"):
        assert re.search(rf"\b{command}\b", result.stdout)
    assert seconds < 1.0


def test_the_command_line_does_not_import_torch_before_it_must() -> None:
    heavy = "{'torch', 'gymnasium', 'numpy', 'pydantic', 'yaml'}"
    code = f"import sys, rl_training.cli; print(sorted({heavy} & set(sys.modules)))"
    result, _ = fresh(sys.executable, "-c", code)
    assert result.stdout.strip() == "[]"


IMPORTS_SHOWN = """
import atexit, sys
atexit.register(lambda: print({"torch", "gymnasium"} & set(sys.modules), file=sys.stderr))
from rl_training.cli import main
main()
"""


@pytest.mark.parametrize(
    ("command", "exit_code", "words"),
    [
        ("--help", 0, "Train, evaluate, resume"),
        ("list", 0, "Quantile-regression DQN"),
        ("config dqn/cartpole", 0, "env_id: CartPole-v1"),
        ("config dqn/cartpol", 2, "did you mean 'dqn/cartpole'"),
        ("config dqn/cartpole --set algo=dqnn", 2, "did you mean 'dqn'"),
        ("train --config dqn/cartpole --set algo=dqnn", 2, "did you mean 'dqn'"),
        (
            "train --config dqn/cartpole --set algo_kwargs.gama=1",
            2,
            "did you mean 'algo_kwargs.gamma'?",
        ),
    ],
)
def test_names_and_typos_are_answered_without_torch_in_a_second(
    command: str, exit_code: int, words: str
) -> None:
    times = []
    for _ in range(3):  # other processes on the machine only ever add to the time
        result, seconds = fresh(sys.executable, "-c", IMPORTS_SHOWN, *command.split())
        assert result.returncode == exit_code, result.stderr
        assert words in (result.stderr if exit_code else result.stdout)
        assert result.stderr.endswith("set()\n")
        times.append(seconds)
        if seconds < 1.0:
            break
    assert min(times) < 1.0, times


def test_python_m_shows_the_version() -> None:
    result, _ = fresh(sys.executable, "-m", "rl_training", "--version")
    assert result.stdout == f"rl-training {rl_training.__version__}\n"


def test_without_arguments_the_help_is_shown() -> None:
    assert "Usage" in invoke().output
    assert invoke("trian").exit_code == 2


# train


def on_path() -> str:
    """A PATH on which there is an `rl-training`."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def test_train_prints_the_result_the_directory_and_what_to_try_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", on_path())
    result = train(*settings(), "--seed", 5, "--output-dir", tmp_path)
    assert result.exit_code == 0, result.output
    run_dir = only_run(tmp_path)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["seed"], summary["global_step"], summary["eval_episodes"]) == (5, 120, 3)
    mean, best = summary["eval_return_mean"], summary["best_eval_return_mean"]
    lines = result.stdout.splitlines()
    assert lines[0].startswith("finished at step 120 in ")
    assert lines[1].startswith(f"evaluation return {mean:.2f} ± ")
    assert lines[1].endswith(f"over 3 episodes (best on the curve {best:.2f})")
    assert lines[2:] == [
        f"run directory: {run_dir}",
        "next:",
        f"  rl-training eval {run_dir}",
        f"  tensorboard --logdir {run_dir}",
        f"see it: rl-training report {run_dir} --open",
    ]


@pytest.mark.parametrize(
    ("called", "program"),
    [
        (".venv/bin/rl-training", ".venv/bin/rl-training"),
        ("mine/train.py", f"{sys.executable} -m rl_training"),
    ],
)
def test_the_commands_to_try_next_can_be_typed_where_the_script_is_not_on_the_path(
    called: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [called, "train"])
    monkeypatch.setenv("PATH", "")
    assert command_line("eval", "--checkpoint", "a b") == f"{program} eval --checkpoint 'a b'"
    monkeypatch.setenv("PATH", on_path())
    assert command_line("list") == "rl-training list"


def test_where_there_is_no_terminal_progress_is_plain_lines(tmp_path: Path) -> None:
    result = train(*settings(), "--output-dir", tmp_path)
    assert "\x1b" not in result.output
    assert "\r" not in result.output
    said = result.stderr.splitlines()
    assert said[0] == "dqn on CartPole-v1, seed 0"
    assert "resume level: exact" in said
    assert any(line.startswith("replay memory: ") for line in said)
    steps = [line for line in said if re.match(r"step \d+ of 120, [\d,]+ steps/s, ", line)]
    assert len(steps) == 10  # a line for each tenth of the run
    figures = r"training [\d.]+, evaluation [\d.]+, best [\d.]+"
    assert re.search(rf"[\d.]+ s left, {figures}$", steps[-1])
    assert len([line for line in said if "evaluation return" in line]) == 4


def test_the_command_line_beats_the_file_and_the_file_beats_the_default(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "algo: dqn\nenv_id: CartPole-v1\nseed: 7\ntotal_timesteps: 30\nfinal_eval_episodes: 1\n"
        "algo_kwargs: {gamma: 0.9, batch_size: 8, hidden_sizes: [8]}\n"
    )
    out = tmp_path / "out"
    words = ("--set", "algo_kwargs.gamma=0.8", "--set", "seed=8", "--seed", 9, "--output-dir", out)
    result = train(*words, config=str(path))
    assert result.exit_code == 0, result.output
    used = find_checkpoint(only_run(out)).info["config"]
    assert used["seed"] == 9  # the option is written last, so it counts
    assert used["algo_kwargs"]["gamma"] == 0.8
    assert used["algo_kwargs"]["batch_size"] == 8
    assert used["algo_kwargs"]["learning_starts"] == 1_000
    assert used["total_timesteps"] == 30


def test_on_a_terminal_there_is_a_live_bar(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    command = CommandLine(
        *("train", "--config", "dqn/cartpole", *settings(), "--output-dir", str(tmp_path)),
        output=os.ttyname(slave),
    )
    shown = b""
    while command.process.is_alive():
        shown += _read(master)
        time.sleep(0.01)
    shown += _read(master)
    assert command.wait() == 0, shown.decode()
    for descriptor in (master, slave):
        os.close(descriptor)
    text = shown.decode()
    assert "━" in text
    assert "120/120" in text
    assert re.search(r"\d+ steps/s", text)
    assert re.search(r"\d:\d\d:\d\d", text)  # time left
    assert re.search(r"evaluation [\d.]+, best", text)
    assert "step 120 of 120" not in text  # the plain line
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is shown again
    assert "finished at step 120" in text


def _read(descriptor: int) -> bytes:
    data = b""
    while True:
        try:
            data += os.read(descriptor, 65536)
        except BlockingIOError:
            return data


def test_the_bar_shows_steps_speed_time_left_and_returns(tmp_path: Path) -> None:
    screen = StringIO()
    console = Console(force_terminal=True, file=screen, width=120, color_system=None)
    result = train_dqn(tiny_config("dqn", tmp_path), callbacks=[ConsoleProgress(console)])
    last = next(line for line in reversed(screen.getvalue().splitlines()) if "240/240" in line)
    assert re.search(r"[\d,]+ steps/s 0:00:0\d ", last)
    best = result.best_eval_return_mean
    # Both of the first two episodes, those of the curve.
    assert f"evaluation {np.mean(result.eval_returns[:2]):.1f}, best {best:.1f}" in last
    rows = read_metrics(result.run_dir)
    returns = [row["rollout/episode_return"] for row in rows if "rollout/episode_return" in row]
    assert f" training {returns[-1]:.1f}, " in last  # the last row was written at step 240
    assert "no evaluation yet" in screen.getvalue()
    shown = screen.getvalue()
    assert re.search(r"0/240 .* evaluating, no evaluation yet", shown)
    assert re.search(r"100/240 .* evaluating, training [\d.]+, evaluation [\d.]+, best", shown)
    assert "evaluating" not in last
    curve = re.search(r"best [\d.]+ ([▁▂▃▄▅▆▇█]+)", last)
    assert curve
    assert len(curve[1]) == 4  # at 0, at 100, at 200 and at the end


def test_a_curve_reaches_from_the_lowest_to_the_highest_value() -> None:
    assert sparkline([-7.0, 0.0, 7.0, 3.5]) == "▁▅█▆"  # heights 0, 3.5 to even, 7 and 5.25
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([-1e308, 1e308]) == "▄▄"  # further apart than a float can say


# eval


def test_eval_gives_the_mean_of_the_runs_own_evaluation(finished: Path) -> None:
    before = contents(finished)
    summary = json.loads((finished / "summary.json").read_text())
    plain = invoke("eval", "--checkpoint", finished, "--episodes", 3)
    mean, std = summary["eval_return_mean"], summary["eval_return_std"]
    assert plain.exit_code == 0
    assert plain.stdout.startswith(f"return {mean:.2f} ± {std:.2f} over 3 episodes (lowest ")
    as_json = invoke("eval", "--checkpoint", finished, "--episodes", 3, "--json")
    values = json.loads(as_json.stdout)
    assert values["returns"] == summary["eval_returns"]
    assert values["eval_return_mean"] == mean
    assert (values["algo"], values["env_id"], values["eval_episodes"]) == ("dqn", "CartPole-v1", 3)
    assert [float(length) for length in values["lengths"]] == values["returns"]
    assert contents(finished) == before


def test_eval_takes_a_seed_and_one_checkpoint_and_the_best_one(finished: Path) -> None:
    def evaluate(*words: object, path: Path = finished) -> dict[str, Any]:
        result = invoke("eval", "--checkpoint", path, "--json", *words)
        assert result.exit_code == 0, result.output
        values: dict[str, Any] = json.loads(result.stdout)
        return values

    usual = evaluate("--episodes", 12)
    other = evaluate("--episodes", 12, "--seed", 3)
    assert other["seed"] == 3
    assert other["returns"] != usual["returns"]
    assert other == evaluate("--episodes", 12, "--seed", 3)
    latest = find_checkpoint(finished).path
    assert evaluate("--episodes", 12, path=latest) == usual
    best = find_checkpoint(finished, best=True)
    episodes = 3 if best.env_steps == 120 else 2
    values = evaluate("--episodes", episodes, "--best")
    assert values["eval_return_mean"] == best.info["eval_return_mean"]
    assert evaluate("--episodes", episodes, path=best.path) == values


def test_eval_of_nothing_is_a_failure(tmp_path: Path) -> None:
    message = failure(invoke("eval", "--checkpoint", tmp_path / "none"), 1)
    assert str(tmp_path / "none") in message
    empty = failure(invoke("eval", "--checkpoint", tmp_path), 1)
    assert "holds no step_* checkpoint" in empty
    assert invoke("eval", "--checkpoint", tmp_path, "--episodes", 0).exit_code == 2


def test_every_damaged_file_of_a_checkpoint_is_found(finished: Path, tmp_path: Path) -> None:
    names = [path.name for path in find_checkpoint(finished).path.iterdir()]
    # A manifest, two files each for agent, spaces, replay, loop and transcript, a segment of rows.
    assert len(names) == 12
    for name in names:
        folder = tmp_path / name / "step_000000000120"
        shutil.copytree(find_checkpoint(finished).path, folder)
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        assert name in failure(invoke("resume", "--checkpoint", folder), 1)
        unread_to_act = "replay", "loop", "transcript"
        if not name.startswith(unread_to_act):
            assert name in failure(invoke("eval", "--checkpoint", folder), 1)


# resume and signals


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


def gated_config(tmp_path: Path, *, at: int = 130, **changes: Any) -> Any:
    """A run that waits before step 130 as long as the gate is closed."""
    return tiny_config(
        "dqn",
        tmp_path / "runs",
        env_id=GateEnv,
        env_kwargs={"gate": str(tmp_path / "gate"), "at": at},
        checkpoint_interval=50,
        **changes,
    )


def write_config(tmp_path: Path, config: Any) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config.to_plain()))
    return path


def start_gated(tmp_path: Path, gate: Gate, **changes: Any) -> CommandLine:
    gate.close()
    path = write_config(tmp_path, gated_config(tmp_path, **changes))
    command = CommandLine("train", "--config", str(path), output=tmp_path / "output.txt")
    gate.wait_until_reached()
    return command


def test_a_run_ended_by_sigterm_is_resumed_to_the_same_end(tmp_path: Path, gate: Gate) -> None:
    config = gated_config(tmp_path, run_name="straight")
    straight = final_state(train_dqn(config).run_dir)
    path = write_config(tmp_path, gated_config(tmp_path))
    gate.close()
    command = (sys.executable, "-m", "rl_training", "train", "--config", str(path))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "PATH": on_path()}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        gate.wait_until_reached()
        (run_dir,) = (d for d in (tmp_path / "runs").iterdir() if d.name != "straight")
        assert read_metrics(run_dir)
        process.send_signal(signal.SIGTERM)
        gate.open()
        stdout, stderr = process.communicate()
    assert process.returncode == 143
    assert "interrupted at step 130" in stdout
    # Its environment is a class of the tests, which nobody else's command would import unasked.
    assert f"  rl-training resume {run_dir} --trust" in stdout.splitlines()
    assert f"saved {run_dir}/checkpoints/step_000000000130" in stderr
    assert "Traceback" not in stderr
    assert find_checkpoint(run_dir).env_steps == 130
    resumed = invoke("resume", "--checkpoint", run_dir, "--trust")
    assert resumed.exit_code == 0, resumed.output
    assert "resumed at step 130" in resumed.stderr
    assert "finished at step 240" in resumed.stdout
    assert final_state(run_dir) == straight


def test_ctrl_c_saves_and_exits_with_130(tmp_path: Path, gate: Gate) -> None:
    command = start_gated(tmp_path, gate)
    command.signal(signal.SIGINT)
    gate.open()
    assert command.wait() == 130
    assert "interrupted at step 130" in command.text()
    assert "Traceback" not in command.text()
    assert find_checkpoint(only_run(tmp_path / "runs")).env_steps == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_a_second_signal_ends_it_at_once(
    number: signal.Signals, code: int, tmp_path: Path, gate: Gate
) -> None:
    command = start_gated(tmp_path, gate)
    command.signal(signal.SIGTERM)
    run_dir = only_run(tmp_path / "runs")
    # The first is only noted, as the environment does not return; the second does not wait.
    wait_until_noted(command.pid)
    command.signal(number)
    assert command.wait() == code
    assert gate.path.exists()
    assert "Traceback" not in command.text()
    assert find_checkpoint(run_dir).env_steps == 100  # the last one at the interval, intact


def test_a_run_in_progress_is_shown_as_running_and_cannot_be_resumed(
    tmp_path: Path, gate: Gate
) -> None:
    command = start_gated(tmp_path, gate)
    run_dir = only_run(tmp_path / "runs")
    listed = invoke("list", tmp_path / "runs")
    message = failure(invoke("resume", "--checkpoint", run_dir, "--trust"), 4)
    gate.open()
    assert command.wait() == 0, command.text()
    assert re.search(r"running +dqn +processes:GateEnv +100 ", listed.stdout)
    assert str(run_dir) in message
    assert f"in use by another process (pid {command.pid} on " in message


def test_resume_with_a_new_budget_extends_a_finished_run(finished: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "copy"
    shutil.copytree(finished, run_dir)
    result = invoke("resume", "--checkpoint", run_dir, "--total-timesteps", 160)
    assert result.exit_code == 0, result.output
    assert "finished at step 160" in result.stdout
    (resumed,) = json.loads((run_dir / "metadata.json").read_text())["resumed_from"]
    assert resumed.pop("verification")["verdict"] == "verified"
    assert resumed == {
        "checkpoint": "step_000000000120",
        "exact": False,
        "extended": {"from": 120, "to": 160},
    }
    assert json.loads((run_dir / "summary.json").read_text())["global_step"] == 160


def test_a_run_with_an_environment_from_python_is_resumed_in_python(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, env_id=lambda: GateEnv(), total_timesteps=40)
    run_dir = train_dqn(config).run_dir
    message = failure(invoke("resume", "--checkpoint", run_dir), 2)
    assert "env_id: this run was given an object here (<callable " in message
    assert "pass it again: load(path, env=...)" in message
    message = failure(invoke("eval", "--checkpoint", run_dir), 2)
    assert "pass it again: load(path, env=...)" in message


def test_a_budget_below_the_steps_already_done_is_refused(finished: Path) -> None:
    before = contents(finished)
    message = failure(invoke("resume", "--checkpoint", finished, "--total-timesteps", 119), 2)
    assert "expected at least the 120 steps that are done already, found 119" in message
    assert contents(finished) == before


def test_a_killed_extension_is_not_forgotten(finished: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "copy"
    shutil.copytree(finished, run_dir)
    text = (run_dir / "config.yaml").read_text()
    # What a session of `resume --total-timesteps 160` leaves if it is killed at once.
    (run_dir / "config.yaml").write_text(
        text.replace("total_timesteps: 120", "total_timesteps: 160")
    )
    (run_dir / "summary.json").unlink()
    result = invoke("resume", "--checkpoint", run_dir)
    assert result.exit_code == 0, result.output
    assert "finished at step 160" in result.stdout
    assert rl_training.DQN.load(run_dir).config.total_timesteps == 160


def test_the_device_can_be_chosen_and_a_missing_one_is_replaced_for_acting(
    tmp_path: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    source = find_checkpoint(finished)
    forged = write_checkpoint(
        tmp_path / "forged",
        kind="step",
        env_steps=120,
        parts={part: source.read(part) for part in source.parts},
        info={**source.info, "config": {**source.info["config"], "device": "cuda"}},
    )
    observation = ("--observation", "[0, 0, 0, 0]")
    for words in (("eval", "--episodes", 1), ("predict", *observation)):
        caplog.clear()
        replaced = invoke(*words, "--checkpoint", forged)
        assert replaced.exit_code == 0, replaced.output
        assert "sees 0 CUDA devices; the agent acts on the CPU" in caplog.text
        assert replaced.stdout == invoke(*words, "--checkpoint", finished).stdout
        caplog.clear()
        assert invoke(*words, "--checkpoint", forged, "--device", "cpu").exit_code == 0
        assert "CUDA" not in caplog.text
        message = failure(invoke(*words, "--checkpoint", finished, "--device", "cuda"), 2)
        assert "sees 0 CUDA devices" in message
    assert "sees 0 CUDA devices" in failure(invoke("resume", "--checkpoint", forged), 2)
    assert "device" in failure(invoke("resume", "--checkpoint", forged, "--device", "gpu"), 2)
    source_config = source.info["config"]
    assert source_config["device"] == "auto"
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    resumed = invoke("resume", "--checkpoint", copy, "--device", "cpu", "--total-timesteps", 130)
    assert resumed.exit_code == 0, resumed.output
    assert find_checkpoint(copy).info["config"]["device"] == "cpu"


def test_predict_uses_the_threads_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = train_dqn(tiny_config("dqn", tmp_path, total_timesteps=40, threads=3)).run_dir
    used = []
    act = Agent.act

    def noted(self: Agent, *arguments: Any, **keys: Any) -> Any:
        used.append(torch.get_num_threads())
        return act(self, *arguments, **keys)

    monkeypatch.setattr(Agent, "act", noted)
    before = torch.get_num_threads()
    assert predict(run_dir, "--observation", "[0, 0, 0, 0]").exit_code == 0
    assert invoke("eval", "--checkpoint", run_dir, "--episodes", 1).exit_code == 0
    assert set(used) == {3}
    assert torch.get_num_threads() == before


# predict


def predict(run_dir: Path, *words: object, stdin: str | bytes | None = None) -> Result:
    return invoke("predict", "--checkpoint", run_dir, *words, stdin=stdin)


def test_predict_answers_one_observation_or_a_batch(finished: Path) -> None:
    before = contents(finished)
    rows = [[0.0, 1.0, 0.1, -0.2], [0.0, -1.0, -0.1, 2.0], [1, 2, 3, 4]]
    batch = json.loads(predict(finished, "--observation", json.dumps(rows)).stdout)["action"]
    assert len(batch) == 3
    singles = [
        json.loads(predict(finished, "--observation", json.dumps(row)).stdout)["action"]
        for row in rows
    ]
    assert singles == batch
    assert set(batch) <= {0, 1}
    agent = rl_training.DQN.load(finished)
    assert batch == agent.predict(rows)[0].tolist()
    assert contents(finished) == before


def test_predict_reads_standard_input_line_by_line(finished: Path) -> None:
    lines = [
        "[0.0, 1.0, 0.1, -0.2]",
        "",
        '{"observation": [0.0, -1.0, -0.1, 2.0], "episode_start": true}',
        '{"observation": [[0, 0, 0, 0], [1, 1, 1, 1]], "episode_start": [true, false]}',
    ]
    process = subprocess.run(
        [sys.executable, "-m", "rl_training", "predict", "--checkpoint", str(finished)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    actions = [json.loads(line)["action"] for line in process.stdout.splitlines()]
    agent = rl_training.DQN.load(finished)
    assert actions[:2] == agent.predict([[0.0, 1.0, 0.1, -0.2], [0.0, -1.0, -0.1, 2.0]])[0].tolist()
    assert actions[2] == agent.predict([[0, 0, 0, 0], [1, 1, 1, 1]])[0].tolist()


def test_a_line_that_is_wrong_ends_prediction_after_the_answers_before_it(finished: Path) -> None:
    result = predict(finished, stdin="[0, 0, 0, 0]\n[0, 0]\n[0, 0, 0, 0]\n")
    assert len(result.stdout.splitlines()) == 1
    assert "found (2,)" in failure(result, 2)
    binary = predict(finished, stdin=b"\xff\xfe\n")
    assert "expected UTF-8 text" in failure(binary, 2)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[0, 0]", r"shape \(4,\), or .* for a batch, found \(2,\)"),
        ("[]", r"found \(0,\)"),
        ("7", r"found \(\)"),
        ("null", "expected numbers, found None"),
        ("cart", "expected JSON .* found 'cart'"),
        ("[" * 100_000, "expected JSON"),
        ("[0, NaN, 0, 0]", "expected finite numbers"),
        ("[0, 1e999, 0, 0]", "expected finite numbers"),
        ("[0, 1e39, 0, 0]", "too large for float32"),
        ('["1", "2", "3", "4"]', r"expected numbers, found \['1'"),
        ("[null, 0, 0, 0]", "expected numbers, found"),
        ("[{}, 0, 0, 0]", "expected numbers, found"),
        (f"[1{'0' * 400}, 0, 0, 0]", "expected numbers, found"),
        ("[[0, 0, 0, 0], [1]]", "lists of equal length"),
        (
            '{"obs": [0, 0, 0, 0]}',
            "the keys observation, episode_start and action_mask, found 'obs'",
        ),
        ('{"episode_start": true}', 'expected a key "observation"'),
        ('{"observation": [0, 0, 0, 0], "episode_start": "yes"}', "true, false, .* found yes"),
        ('{"observation": [[0, 0, 0, 0]], "episode_start": [true, false]}', "episode_start"),
        ('{"observation": [0, 0, 0, 0], "episode_start": [true]}', "episode_start"),
    ],
)
def test_what_is_no_observation_is_refused(text: str, words: str, finished: Path) -> None:
    result = predict(finished, "--observation", text)
    assert re.search(words, failure(result, 2)), result.stderr
    assert result.stdout == ""


# list and config


def test_list_shows_algorithms_configurations_and_runs(finished: Path, tmp_path: Path) -> None:
    result = invoke("list", finished.parent)
    assert result.exit_code == 0
    text = result.stdout
    assert re.search(
        r"dqn +Deep Q-network \(Mnih et al., 2015\)\n +observations: Box vectors", text
    )
    assert set(packaged_configs()) <= set(text.split())
    (row,) = (line for line in text.splitlines() if finished.name in line)
    mean = json.loads((finished / "summary.json").read_text())["eval_return_mean"]
    cells = ["finished", "dqn", "CartPole-v1", "120", f"{mean:.1f}"]
    assert row.split()[:5] == cells
    assert row.split()[-1] == finished.name
    assert max(map(len, invoke("list", tmp_path / "none").stdout.splitlines()[:-1])) <= 80
    assert f"no runs under {tmp_path}" in invoke("list", tmp_path).stdout


def test_runs_are_a_table_or_json_with_the_newest_first(finished: Path, tmp_path: Path) -> None:
    later = shutil.copytree(finished, tmp_path / "later")
    metadata = json.loads((later / "metadata.json").read_text())
    (later / "metadata.json").write_text(json.dumps(metadata | {"started_at": "2999-01-01"}))
    shutil.copytree(finished, tmp_path / "earlier")
    first, second = json.loads(invoke("runs", tmp_path, "--json").stdout)
    assert (first["path"], second["path"]) == (str(later), str(tmp_path / "earlier"))
    assert first["age_s"] is None  # not begun yet, by the clock here
    assert 0 < second["age_s"] < 3600
    assert (second["status"], second["algo"], second["env_steps"]) == ("finished", "dqn", 120)
    lines = invoke("runs", tmp_path).stdout.splitlines()
    assert re.fullmatch(r"status +algorithm +environment +steps +return +age +run *", lines[0])
    assert [line.split()[-1] for line in lines[1:]] == ["later", "earlier"]
    assert invoke("runs", finished.parent / "none").exit_code == 2


def test_a_strangers_directory_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    run = tmp_path / "evil\x1b[2Jname"
    run.mkdir()
    evil = "\x1b]0;mine\x07dqn[red]"
    metadata = {"algo": evil, "env_id": "a\u202eb", "started_at": evil, "seed": evil}
    (run / "metadata.json").write_text(json.dumps(metadata))
    row = {"global_step": 10, "eval/return_mean": "\x1b[1m", "rollout/episode_return": 3}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    os.mkfifo(tmp_path / "pipe")
    for command in ("runs", "list"):
        text = invoke(command, tmp_path).stdout
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        assert "[red]" in text
        assert "killed" in text
        assert "training 3.0" in text
    (found,) = json.loads(invoke("runs", tmp_path, "--json").stdout)
    assert (found["seed"], found["eval_return_mean"], found["started_at"]) == (None, None, None)


def test_two_hundred_runs_are_listed_in_a_second(finished: Path, tmp_path: Path) -> None:
    for number in range(200):
        run = tmp_path / f"run-{number}"
        run.mkdir()
        for name in ("metadata.json", "config.yaml", "metrics.jsonl"):  # killed: the longest way
            shutil.copy(finished / name, run)
    result, seconds = fresh(sys.executable, "-c", IMPORTS_SHOWN, "runs", str(tmp_path))
    assert result.stdout.count("killed") == 200
    assert result.stderr.strip() == "set()"
    assert seconds < 1.0


# An algorithm and an environment without a file


def test_an_algorithm_and_an_environment_need_no_file(tmp_path: Path) -> None:
    words = ("CartPole-v1", "--steps", 60, "--set", "final_eval_episodes=2", "--seed", 3)
    path = tmp_path / "mine.yaml"
    result = invoke(
        *("train", "ppo", "--env", *words, "--set", "algo_kwargs.hidden_sizes=[8]"),
        *("--set", "algo_kwargs.num_steps=30", "--output-dir", tmp_path / "a"),
        *("--save-config", path),
    )
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[0] == "ppo on CartPole-v1, seed 3"
    summary = json.loads((only_run(tmp_path / "a") / "summary.json").read_text())
    assert (summary["algo"], summary["global_step"], summary["seed"]) == ("ppo", 60, 3)
    assert path.read_text().count(":") == 9  # no default stands in it
    again = invoke("train", path, "--output-dir", tmp_path / "b")
    assert again.exit_code == 0, again.output
    assert final_state(only_run(tmp_path / "a")) == final_state(only_run(tmp_path / "b"))
    assert "exists already" in failure(train("--save-config", path), 2)


def test_a_custom_algorithm_and_another_environment_go_without_a_file() -> None:
    text = invoke("config", "munchausen_dqn:SPEC", "--env", "toy_envs:CountingEnv").stdout
    assert "algo: 'munchausen_dqn:SPEC' " in text
    assert "env_id: 'toy_envs:CountingEnv' " in text
    text = invoke("config", "dqn/cartpole", "--env", "Acrobot-v1", "--steps", 7).stdout
    assert "env_id: Acrobot-v1 " in text
    assert "total_timesteps: 7 " in text


def test_another_algorithm_keeps_what_fits_of_a_configuration_and_names_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    text = invoke("config", "ppo/pendulum", "--set", "algo=sac", "--set", "algo_kwargs.tau=0.5")
    assert text.exit_code == 0, text.output
    (said,) = caplog.messages
    assert said == (
        "algo=sac does not take these keys of pendulum.yaml, which are left out: "
        "algo_kwargs.num_steps, algo_kwargs.epochs, algo_kwargs.gae_lambda, normalize_rewards"
    )
    origins = dict(re.findall(r"^ *(\w+): .*# (.+)$", text.stdout, re.MULTILINE))
    assert origins["batch_size"].startswith("pendulum.yaml:")
    assert origins["tau"] == "command line"
    assert origins["normalize_rewards"] == "default"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "expected a configuration or an algorithm with --env, found neither"),
        (["train", "ppo"], "ppo is an algorithm: name its environment with --env, or take a"),
        (["train", "ppo", "--config", "dqn/cartpole"], "not both: found ppo and --config dqn"),
        (["train", "ppoo", "--env", "CartPole-v1"], "did you mean 'ppo'"),
        (["train", "zzz"], "found the text 'zzz'; `rl-training list` shows them"),
        (["train", "ppo", "--env", "CartPool-v1"], "CartPole-v1"),
        (["eval"], "expected a run directory, found none; `rl-training runs` lists them"),
        (["resume", "a", "--checkpoint", "b"], "give one run, not both a and --checkpoint b"),
    ],
)
def test_what_a_command_is_missing_is_said_in_one_line(words: list[str], message: str) -> None:
    text = failure(invoke(*words), 2)
    assert message in text
    assert text.count("\n") == 1


def test_eval_predict_and_resume_take_a_run_by_its_place(finished: Path, tmp_path: Path) -> None:
    mean = json.loads(invoke("eval", finished, "--episodes", 3, "--json").stdout)
    assert mean == json.loads(
        invoke("eval", "--checkpoint", finished, "--episodes", 3, "--json").stdout
    )
    assert invoke("predict", finished, "--observation", "[0, 0, 0, 0]").exit_code == 0
    run = shutil.copytree(finished, tmp_path / "run")
    result = invoke("resume", run, "--total-timesteps", 130)
    assert result.exit_code == 0, result.output
    assert f"opening {run}" in result.stderr.splitlines()


def test_the_curves_are_shown_by_a_command_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    command = tensorboard_hint(Path("a b"))
    assert command == f"{Path(sys.executable).with_name('tensorboard')} --logdir 'a b'"
    assert Path(command.split()[0]).is_file()
    monkeypatch.setattr("sys.executable", "/elsewhere/python")
    assert tensorboard_hint(Path("a")) == "/elsewhere/python -m tensorboard.main --logdir a"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert tensorboard_hint(Path("a")) == "/elsewhere/python -m pip install tensorboard"


def test_train_says_what_it_does_before_torch_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"  # an import of it raises
        "from rl_training.cli import main\nmain()"
    )
    words = ("train", "dqn/cartpole", *settings(), "--output-dir", str(tmp_path))
    for more, said in (((), "seed 0"), (("--seeds", "0-1"), "seeds 0-1")):
        result, seconds = fresh(sys.executable, "-c", code, *words, *more)
        assert result.stderr.splitlines()[0] == f"dqn on CartPole-v1, {said}"
        assert seconds < 1.0


def test_config_shows_where_each_value_comes_from() -> None:
    result = invoke("config", "dqn/cartpole", "--set", "algo_kwargs.gamma=0.98")
    origins = dict(
        re.findall(r"^ *(\w+): .*# (.+)$", result.stdout, re.MULTILINE)  # key: value  # origin
    )
    assert origins["gamma"] == "command line"
    assert origins["seed"] == "default"
    path = Path(rl_training.__file__).parent / "assets" / "configs" / "dqn" / "cartpole.yaml"
    lines = path.read_text().splitlines()
    for key in ("algo", "env_id", "total_timesteps", "batch_size"):
        (number,) = (n for n, line in enumerate(lines, 1) if line.strip().startswith(f"{key}:"))
        assert origins[key] == f"cartpole.yaml:{number}"


def test_what_config_prints_is_a_configuration(tmp_path: Path) -> None:
    text = invoke("config", "dqn/cartpole", "--set", "algo_kwargs.gamma=0.98").stdout
    (tmp_path / "all.yaml").write_text(text)
    again = invoke("config", tmp_path / "all.yaml").stdout

    def values(described: str) -> list[str]:
        return [line.partition("#")[0].rstrip() for line in described.splitlines()]

    assert values(again) == values(text)


# Exit codes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "dqn/cartpol"], "did you mean 'dqn/cartpole'"),
        (["--config", "dqn/cartpole", "--set", "algo_kwargs.gama=0.9"], "algo_kwargs.gamma"),
        (["--config", "dqn/cartpole", "--set", "gamma"], "expected KEY=VALUE"),
        (["--config", "dqn/cartpole", "--set", "env_id=CartPool-v1"], "CartPole-v1"),
        (["--config", "dqn/cartpole", "--seed", "-1"], "seed"),
        (["--config", "dqn/cartpole", "--seed", "1", "--seeds", "0-2"], "not both"),
        (["--config", "dqn/cartpole", "--set", "seed=1", "--seeds", "0-2"], "not both"),
        (["--config", "dqn/cartpole", "--seeds", "2-0"], "0-4 or 0,3,7"),
        (["--config", "dqn/cartpole", "--seeds", "a"], "0-4 or 0,3,7"),
        (["--config", "dqn/cartpole", "--seeds", "9999999999"], "seed"),
        (["--config", "dqn/cartpole", "--jobs", "2"], "--jobs goes with --seeds"),
    ],
)
def test_wrong_usage_exits_with_2_before_anything_is_built(
    words: list[str], message: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = invoke("train", *words, "--output-dir", out)
    assert message in failure(result, 2)
    assert not out.exists()


def test_typer_refuses_what_is_no_option_or_number() -> None:
    for words in (["--sed", "1"], ["--seed", "x"], ["--seeds", "0", "--jobs", "0"]):
        result = train(*words)
        assert result.exit_code == 2
        assert "Traceback" not in result.output
    assert invoke("train").exit_code == 2


def test_several_mistakes_are_listed_at_once() -> None:
    result = invoke("config", "dqn/cartpole", "--set", "sed=1", "--set", "algo_kwargs.gamma=2")
    message = failure(result, 2)
    assert "did you mean 'seed'" in message
    assert "algo_kwargs.gamma" in message


def test_an_environment_that_gives_nan_exits_with_1(tmp_path: Path) -> None:
    words = settings("env_id=toy_envs:NaNEnv", "env_kwargs.at=60", "eval_interval=0")
    message = failure(train(*words, "--output-dir", tmp_path), 1)
    assert "toy_envs:NaNEnv gave a non-finite reward in environment 0 at vector step 60" in message


def test_an_environment_that_raises_exits_with_1(tmp_path: Path) -> None:
    words = settings("env_id=toy_envs:RaisingEnv", "env_kwargs.at=60", "eval_interval=0")
    message = failure(train(*words, "--output-dir", tmp_path), 1)
    assert "RuntimeError in step at vector step 60: the robot fell over" in message
    run_dir = only_run(tmp_path)
    assert f"The run directory is {run_dir}; step 59 of the run is saved in " in message
    assert message.rstrip().endswith(f" resume {run_dir} --trust")  # its own class
    (row,) = json.loads(invoke("runs", tmp_path, "--json").stdout)
    assert (row["env_steps"], row["status"]) == (59, "failed")


@pytest.mark.parametrize("seeds", [(), ("--seeds", "0-1")])
def test_an_output_directory_that_is_a_file_exits_with_3(
    seeds: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    message = failure(train(*settings(), *seeds, "--output-dir", tmp_path / "file"), 3)
    assert f"could not write {tmp_path / 'file'}" in message
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_exits_with_3_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full_after_the_first_checkpoint(descriptor: int, data: Any) -> int:
        on_disk = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if on_disk and (only_run(tmp_path) / "checkpoints" / "step_000000000050").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data)

    monkeypatch.setattr("os.write", full_after_the_first_checkpoint)
    words = settings("checkpoint_interval=50", "eval_interval=0", "log_interval=1000")
    result = train(*words, "--output-dir", tmp_path)
    monkeypatch.undo()
    run_dir = only_run(tmp_path)
    message = failure(result, 3)
    assert f"could not write {run_dir / 'checkpoints' / 'step_000000000100'}" in message
    assert "No space left on device" in message
    assert "bytes needed" in message
    assert find_checkpoint(run_dir).env_steps == 50
    assert invoke("resume", "--checkpoint", run_dir).exit_code == 0


def test_a_limit_on_file_sizes_exits_with_3(tmp_path: Path, gate: Gate) -> None:
    command = start_gated(tmp_path, gate, algo_kwargs={"hidden_sizes": [64, 64]})
    run_dir = only_run(tmp_path / "runs")
    wait_until((run_dir / "checkpoints" / "step_000000000100").exists)  # written in the background
    resource.prlimit(command.pid, resource.RLIMIT_FSIZE, (20_000, 20_000))
    gate.open()
    assert command.wait() == 3
    message = command.text()[command.text().index("error: ") :]
    assert f"could not write {run_dir / 'checkpoints' / 'step_000000000150'}" in message
    assert "File too large" in message
    assert "Traceback" not in command.text()
    assert find_checkpoint(run_dir).env_steps == 100


def test_debug_shows_the_traceback_and_keeps_the_exit_code(tmp_path: Path) -> None:
    result = train("--set", "algo_kwargs.gama=0.9", "--debug")
    assert result.exit_code == 2
    assert "Traceback (most recent call last)" in result.stderr
    assert "did you mean 'algo_kwargs.gamma'" in result.stderr
    missing = invoke("eval", "--checkpoint", tmp_path / "none", "--debug")
    assert missing.exit_code == 1
    assert "Traceback (most recent call last)" in missing.stderr


def test_what_nobody_expected_says_so_in_one_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("rl_training.experiment.registry.resolve_config", broken)
    result = invoke("config", "dqn/cartpole")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ZeroDivisionError: division by zero\n")
    assert "--debug" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_reader_that_goes_away_is_no_error(finished: Path) -> None:
    command = f"{sys.executable} -m rl_training list {finished.parent} | true"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.stderr == ""
