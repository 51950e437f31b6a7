"""What is released: the files and metadata of every artefact, and a wheel used elsewhere.

The wheel is installed into an empty environment outside the checkout, and its dependencies are lent
to it: a .pth file adds the site-packages of the environment the tests run in. Commands, training
and a user's type check are thus those of the installed files. This does not prove that the declared
dependencies suffice or can be installed, and mypy takes torch for Any, because reading its types
takes half a minute. `make test-release` runs the same tests with a complete install and without
that exception; it needs a network and minutes, so it is no part of `make test`.
"""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

import rl_training
from rl_training.config.loading import packaged_configs
from test_docs import LINK, blocks, without_code

ROOT = Path(__file__).resolve().parents[1]
COMPLETE = os.environ.get("RELEASE_INSTALL") == "complete"
LARGEST_WHEEL = 15_000_000  # most of it are trained agents
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

TYPED = """\
from pathlib import Path

import numpy as np

from rl_training import DQN, RLTrainingError, StopOnReturn, TrainConfig, TrainResult, train_dqn


def mean_of(result: TrainResult) -> float:
    return 0.0 if result.eval_return_mean is None else result.eval_return_mean


def main(runs: Path) -> float:
    agent = DQN("CartPole-v1", total_timesteps=2_000, output_dir=str(runs))
    try:
        result = agent.learn(callbacks=[StopOnReturn(475.0)])
    except RLTrainingError as error:
        raise SystemExit(str(error)) from error
    loaded = DQN.load(result.run_dir)
    action, state = loaded.predict(np.zeros(4, np.float32))
    print(action, state)
    config: TrainConfig = loaded.config
    return mean_of(train_dqn(config)) + loaded.evaluate(3).mean
"""
MISTYPED = """\
from rl_training import DQN

agent = DQN.from_config("dqn/cartpole")
agent.lern()
steps: str = agent.learn().global_step
"""
WITHOUT_TORCH = "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n"


class Artefacts(NamedTuple):
    sdist: Path
    from_sdist: Path
    from_tree: Path


def answered(*command: object, cwd: Path) -> tuple[int, str]:
    """Exit code and output of a command that sees no path of the checkout."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env | {"COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return result.returncode, result.stdout


def ran(*command: object, cwd: Path) -> str:
    """What a command that must succeed prints."""
    code, output = answered(*command, cwd=cwd)
    assert code == 0, output
    return output


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", ROOT, "--outdir"]
    ran(*build, folder / "released", cwd=folder)  # the sdist, and from it the wheel
    ran(*build, folder / "tree", "--wheel", cwd=folder)
    (sdist,) = folder.glob("released/*.tar.gz")
    (from_sdist,) = folder.glob("released/*.whl")
    (from_tree,) = folder.glob("tree/*.whl")
    return Artefacts(sdist, from_sdist, from_tree)


@pytest.fixture(scope="module")
def installed(artefacts: Artefacts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the commands of an environment that has the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("elsewhere")
    programs = folder / "venv" / "bin"
    if COMPLETE:
        ran(sys.executable, "-m", "venv", "venv", cwd=folder)
        pins = ROOT / "constraints.txt"
        ran(programs / "pip", "install", "-c", pins, artefacts.from_sdist, "mypy", cwd=folder)
        return programs
    ran(sys.executable, "-m", "venv", "--without-pip", "venv", cwd=folder)
    pip = [sys.executable, "-m", "pip", "--python", programs / "python"]
    ran(*pip, "install", "--no-deps", "--no-index", artefacts.from_sdist, cwd=folder)
    # Python follows no .pth file in a directory that a .pth file names, so that of the editable
    # install of the checkout has no effect.
    lent = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (site_packages,) = folder.glob("venv/lib/*/site-packages")
    (site_packages / "lent.pth").write_text("\n".join(lent))
    return programs


def source_files() -> set[str]:
    files = (ROOT / "src" / "rl_training").rglob("*")
    found = {path for path in files if path.is_file() and "__pycache__" not in path.parts}
    return {path.relative_to(ROOT / "src").as_posix() for path in found}


def files_of(artefact: Path) -> set[str]:
    """The package's files in an artefact, as paths from `rl_training` on."""
    if artefact.suffix == ".whl":
        names = zipfile.ZipFile(artefact).namelist()
        return {name for name in names if name.startswith("rl_training/")}
    with tarfile.open(artefact) as archive:
        parts = (member.name.split("/", 2) for member in archive.getmembers())
        return {part[2] for part in parts if part[1] == "src"}


def metadata(wheel: Path) -> Message:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(archive.read(name))


def test_every_artefact_carries_the_whole_package(artefacts: Artefacts) -> None:
    complete = source_files()
    assert complete >= {
        "rl_training/py.typed",
        "rl_training/assets/published.yaml",
        "rl_training/assets/evidence/dqn/cartpole.json",
        "rl_training/assets/zoo/dqn/cartpole/agent.safetensors",
        *(f"rl_training/assets/configs/{name}.yaml" for name in packaged_configs()),
    }
    pictures = {name for name in complete if re.search(r"/assets/evidence/.*\.png$", name)}
    assert pictures  # which `evidence plot` draws anew from the cards
    assert files_of(artefacts.sdist) == complete
    for wheel in (artefacts.from_sdist, artefacts.from_tree):
        assert files_of(wheel) == complete - pictures
        assert wheel.stat().st_size < LARGEST_WHEEL


def test_an_index_can_show_the_metadata(artefacts: Artefacts) -> None:
    fields = metadata(artefacts.from_sdist)
    assert fields["Version"] == rl_training.__version__
    assert fields["Author"] == "The rl_training authors"
    assert fields["License-Expression"] == "MIT"
    classifiers = fields.get_all("Classifier") or []
    named = [text.rpartition(" :: ")[2] for text in classifiers if ":: Python :: 3." in text]
    assert tuple(named) == PYTHONS
    page = fields.get_payload()
    assert isinstance(page, str)
    links = LINK.findall(without_code(page))
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    users = set(fields.get_all("Provides-Extra") or []) - {"dev"}
    assert users <= set(re.findall(r"`(\w+)`", page))


def test_the_installed_wheel_lists_trains_and_evaluates(installed: Path, tmp_path: Path) -> None:
    code = "import rl_training, sys; print(rl_training.__file__, *sys.path, sep='\\n')"
    file, *path = ran(installed / "python", "-c", code, cwd=tmp_path).splitlines()
    homes = [entry for entry in path if (Path(entry or tmp_path) / "rl_training").exists()]
    assert [Path(file).parents[1]] == [Path(home) for home in homes]
    assert Path(file).is_relative_to(installed.parent)
    program = installed / "rl-training"
    assert ran(program, "--version", cwd=tmp_path) == f"rl-training {rl_training.__version__}\n"
    listed = ran(program, "list", cwd=tmp_path)
    assert [name for name in packaged_configs() if name not in listed] == []
    short = ("--set", "total_timesteps=2000", "--set", "final_eval_episodes=5")
    ran(program, "train", "--config", "dqn/cartpole", *short, cwd=tmp_path)
    (run_dir,) = (tmp_path / "runs").iterdir()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["global_step"] == 2000
    evaluate = (program, "eval", "--checkpoint", run_dir, "--episodes", "5", "--json")
    assert json.loads(ran(*evaluate, cwd=tmp_path))["returns"] == summary["eval_returns"]
    assert "dqn/cartpole " in ran(program, "zoo", cwd=tmp_path)
    cards = ran(program, "evidence", "list", cwd=tmp_path)
    row = next(line for line in cards.splitlines() if line.startswith("dqn/cartpole "))
    assert re.search(r" 50,000 +100 +\d+ +\d+\.\d\d \[", row), cards


def test_a_users_script_is_type_checked(installed: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "package_index.md").read_text(encoding="utf-8")
    (example,) = ("\n".join(block.lines) for block in blocks(page) if block.language == "python")
    scripts = {"typed.py": TYPED, "mistyped.py": MISTYPED, "example.py": f"{example}\n"}
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "mypy.ini").write_text("[mypy]\n" if COMPLETE else WITHOUT_TORCH)
    mypy = [installed / "python", "-m", "mypy", "--strict", "--no-error-summary"]
    assert ran(*mypy, "typed.py", "example.py", cwd=tmp_path) == ""
    code, errors = answered(*mypy, "mistyped.py", cwd=tmp_path)
    assert (code, [line.rpartition("  ")[2] for line in errors.splitlines()]) == (
        1,
        ["[attr-defined]", "[assignment]"],
    )
