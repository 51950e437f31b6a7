"""The package as it is installed: what it costs to import, needs, and leaves behind."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import rl_training

ROOT = Path(__file__).parents[1]

QUICK = """
config = dict(
    output_dir="runs", total_timesteps=60, eval_interval=0, final_eval_episodes=1, log_interval=20,
    algo_kwargs={"hidden_sizes": [8], "batch_size": 8, "learning_starts": 20},
)
"""


def isolated(code: str, directory: Path) -> str:
    """What code prints in a fresh interpreter that sees only what is installed."""
    result = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", code],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_importing_the_package_imports_nothing_heavy(tmp_path: Path) -> None:
    code = """
import sys, rl_training
rl_training.__version__, dir(rl_training)
print(sorted({"torch", "gymnasium", "pydantic", "numpy", "yaml", "rich"} & set(sys.modules)))
"""
    assert isolated(code, tmp_path) == "[]"


def test_the_command_and_the_version_are_those_of_the_distribution() -> None:
    assert version("rl-training") == rl_training.__version__
    (script,) = entry_points(group="console_scripts", name="rl-training")
    assert script.value == "rl_training.cli:main"


def test_from_any_directory_it_trains_and_finds_its_configurations(tmp_path: Path) -> None:
    """In one process, as importing torch takes seconds: imports, configurations, no leftovers."""
    code = f"""
import os, threading
from rl_training import DQN, TrainConfig, train_dqn
from rl_training.config.loading import packaged_configs
from rl_training.experiment.registry import resolve_config

names = packaged_configs()
assert "dqn/cartpole" in names
for name in names:
    assert isinstance(resolve_config(name).config, TrainConfig)
{QUICK}
def open_files():
    return {{os.readlink(f"/proc/self/fd/{{n}}") for n in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{{n}}")}}

before = open_files()
result = train_dqn(TrainConfig(algo="dqn", env_id="CartPole-v1", **config))
assert result.global_step == 60
agent = DQN.load(result.run_dir)
assert agent.evaluate(1).returns == result.eval_returns
left = open_files() - before
assert not left, left
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
with open("/proc/self/net/tcp") as sockets:
    inodes = {{line.split()[9] for line in sockets.readlines()[1:] if line.split()[3] == "0A"}}
mine = {{name[8:-1] for name in open_files() if name.startswith("socket:[")}}
assert not mine & inodes, "it listens"
print(result.run_dir)
"""
    run_dir = isolated(code, tmp_path)
    assert (tmp_path / run_dir / "summary.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_without_the_extras_it_works_and_names_what_is_missing(tmp_path: Path) -> None:
    code = f"""
import sys

class Blocked:
    names = ("Box2D", "box2d", "mujoco", "matplotlib", "pygame", "ale_py")

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
from rl_training import DQN
from rl_training.errors import MissingExtra
{QUICK}
assert DQN("CartPole-v1", **config).learn().global_step == 60
for env_id in ("LunarLander-v3", "Ant-v5"):
    try:
        DQN(env_id, **config).learn()
    except MissingExtra as error:
        print(error.exit_code, error)
    else:
        raise AssertionError(env_id)
"""
    lunar, ant = isolated(code, tmp_path).splitlines()
    assert lunar.startswith("2 ")
    assert "rl-training[box2d]" in lunar
    assert "rl-training[mujoco]" in ant


def test_the_documentation_has_every_command_and_names_no_other_option() -> None:
    from typer.main import get_command

    from rl_training.cli import app

    commands = get_command(app).commands  # type: ignore[attr-defined]
    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    shown = [line.split() for line in re.findall(r"`rl-training (\w[^`]*)`", page)]
    assert {words[0] for words in shown} == set(commands)
    for words in shown:
        command = commands[words[0]]
        if hasattr(command, "commands"):  # such as `evidence run`
            assert words[1] in command.commands, words
            command = command.commands[words[1]]
        known = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert set(re.findall(r"--[a-z-]+", " ".join(words))) <= known, words


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name]


# Put together here, so that this file does not hold what it looks for.
MACHINE = re.compile(
    r"(?<![\w.])/(?:" + "|".join(["home", "root", "Users", "work", "mnt", "workspace"]) + r")/\w"
)


def test_no_text_names_a_place_on_somebodys_machine() -> None:
    binary = {".png", ".gif", ".xz", ".safetensors"}
    files = [path for path in tracked() if path.is_file() and path.suffix not in binary]
    assert len(files) > 80
    found = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if MACHINE.search(line) or "shared" + "/" in line:
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []


@pytest.mark.parametrize("text", ["see /ho" + "me/me/x", "'/wo" + "rk/main'", "(/ro" + "ot/a)"])
def test_the_search_for_places_can_find_one(text: str) -> None:
    assert MACHINE.search(text)


def test_nothing_that_a_program_left_behind_is_tracked() -> None:
    leftovers = re.compile(r"\.(log|tmp|pyc|orig|rej|bak)$|LOG\.TXT$|^events\.|\.DS_Store")
    assert [path.name for path in tracked() if leftovers.search(path.name)] == []
