"""`rl-training new`: files that train, pass their test, and never replace anything."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from rl_training import testing
from rl_training.algorithms.dqn import DQN
from rl_training.assets.templates.dqn import MyAlgo, MyAlgoConfig
from rl_training.cli import app
from rl_training.config.value_based import DQNConfig
from rl_training.experiment.registry import get_spec
from rl_training.runtime import spec_table
from rl_training.tools.new_algorithm import BEGINNINGS, write_algorithm
from value_batches import SPEC, make_batch, set_outputs


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(spec_table, "_known", {})
    return tmp_path


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("like", BEGINNINGS)
def test_the_files_train_and_conform(like: str, folder: Path) -> None:
    name = f"mine_{like}"  # a module of this process: another name for each
    result = invoke("new", name, "--like", like)
    assert result.exit_code == 0, result.output
    files = [f"{name}.py", f"{name}.yaml", f"test_{name}.py"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    assert [line for line in result.stdout.splitlines() if line.startswith("written: ")] == [
        f"written: {file}" for file in files
    ]
    assert f"train --config {name}.yaml" in result.stdout
    assert f"python -m pytest test_{name}.py" in result.stdout
    spec = get_spec(f"{name}:SPEC")
    assert spec.name == name
    assert spec.hyper.__name__ == f"Mine{like.capitalize()}Config"
    budget = ("total_timesteps=200", "eval_interval=0", "final_eval_episodes=1")
    small = BEGINNINGS[like].small.items()
    settings = [*budget, *(f"algo_kwargs.{key}={value}" for key, value in small)]
    words = [word for setting in settings for word in ("--set", setting)]
    trained = invoke("train", "--config", f"{name}.yaml", *words)
    assert trained.exit_code == 0, trained.output
    checks = importlib.import_module(f"test_{name}")
    for check in (testing.updates_learn, testing.resume_is_exact):
        check(spec, checks.CONFIG, folder / check.__name__)


def test_the_test_runs_every_check(folder: Path) -> None:
    write_algorithm("brand_new", "dqn", folder)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    done = subprocess.run(
        [*command, "test_brand_new.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert f"{len(testing.CHECKS)} passed" in done.stdout


def test_the_loss_to_begin_with_is_dqns_plus_a_penalty() -> None:
    batch = make_batch(action=[0, 1], reward=[1.0, 0.0], discount=[0.0, 0.0])
    network = torch.nn.Linear(1, 2)
    set_outputs(network, [0.0, 0.0])
    plain = DQN(network, DQNConfig(), SPEC).loss(batch).value
    assert MyAlgo(network, MyAlgoConfig(), SPEC).loss(batch).value == plain
    # Two actions of value 0: log(1 + 1) - 0 in each row.
    penalised = MyAlgo(network, MyAlgoConfig(conservatism=2.0), SPEC).loss(batch).value
    assert (penalised - plain).item() == pytest.approx(2 * math.log(2))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("My-Algo",), 2, "name: expected at most 50 lower-case letters.*found 'My-Algo'"),
        (("2fast",), 2, "found '2fast'"),
        (("../up",), 2, "found '../up'"),
        (("lambda",), 2, "no word of Python, found 'lambda'"),
        (("dqn",), 2, "name: dqn is an algorithm already; choose another name"),
        (("json",), 2, "name: there is a module json already, which would be imported in place"),
        (("fine", "--like", "dqm"), 2, "--like: expected dqn or sac or ppo, found 'dqm'"),
        (("there",), 3, "there.yaml exists already; choose another name or directory"),
    ],
)
def test_what_cannot_be_begun_is_refused_and_nothing_is_written(
    words: tuple[str, ...], code: int, message: str, folder: Path
) -> None:
    (folder / "there.yaml").write_text("mine")
    result = invoke("new", *words)
    assert result.exit_code == code, result.output
    assert re.search(rf"^error: .*{message}", result.stderr), result.stderr
    assert [path.name for path in folder.iterdir()] == ["there.yaml"]
    assert (folder / "there.yaml").read_text() == "mine"


def test_the_files_may_go_to_another_directory(folder: Path) -> None:
    result = invoke("new", "elsewhere", "--directory", "my work")
    assert result.exit_code == 0, result.output
    assert (folder / "my work" / "elsewhere.py").exists()
    assert "  cd 'my work'\n" in result.stdout
