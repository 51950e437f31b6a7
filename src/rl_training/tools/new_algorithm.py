"""The command `new`: files to begin an algorithm with, which train and pass their test at once."""

from __future__ import annotations

import keyword
import shlex
from collections.abc import Iterator, Sequence
from importlib import resources, util
from pathlib import Path
from typing import NamedTuple

from rl_training.config.loading import find_config
from rl_training.errors import SaveError, UsageError
from rl_training.runtime.result import command_line
from rl_training.runtime.spec import NAME
from rl_training.runtime.spec_table import all_specs
from rl_training.storage.files import save_error


class Beginning(NamedTuple):
    """A packaged configuration to begin with, and settings for the conformance checks."""

    config: str
    env_id: str
    small: dict[str, object]


_SMALL_REPLAY = {
    "hidden_sizes": [16],
    "batch_size": 16,
    "learning_starts": 20,
    "replay_ratio": 0.5,
    "buffer_size": 150,
}
_SMALL_ROLLOUT = {"hidden_sizes": [16], "num_steps": 10, "batch_size": 8, "epochs": 2}
BEGINNINGS = {
    "dqn": Beginning("dqn/cartpole", "CartPole-v1", _SMALL_REPLAY),
    "sac": Beginning("sac/pendulum", "Pendulum-v1", _SMALL_REPLAY),
    "ppo": Beginning("ppo/cartpole", "CartPole-v1", _SMALL_ROLLOUT),
}

_TEST = '''\
"""The conformance checks of rl_training: resume, seeds, ends of episodes, loading, ..."""

import pytest
from {name} import SPEC

from rl_training.testing import CHECKS

# Small enough for 240 steps, after which the replay has wrapped around.
CONFIG = {{
    "env_id": "{env_id}",
    "algo_kwargs": {{
{settings}
    }},
}}


@pytest.mark.parametrize("check", CHECKS)
def test_conformance(check, tmp_path):
    check(SPEC, CONFIG, tmp_path)
'''


def write_algorithm(name: str, like: str, directory: Path) -> list[Path]:
    """Write NAME.py, NAME.yaml and test_NAME.py; files that exist are never overwritten."""
    _check_name(name, directory)
    if like not in BEGINNINGS:
        raise UsageError(f"--like: expected {' or '.join(BEGINNINGS)}, found {like!r}")
    files = {directory / file: text for file, text in _files(name, like)}
    if existing := [str(path) for path in files if path.exists()]:
        raise SaveError(f"{', '.join(existing)} exists already; choose another name or directory")
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise save_error(path, error) from error
    return list(files)


def show_next(paths: Sequence[Path]) -> None:
    """The files that were written, and the commands to try next."""
    for path in paths:
        print(f"written: {path}")
    code, config, test = paths
    print("next:")
    if code.parent != Path():
        print(f"  cd {shlex.quote(str(code.parent))}")
    print(f"  {command_line('train', '--config', config.name)}")
    print(f"  python -m pytest {test.name}")


def _check_name(name: str, directory: Path) -> None:
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            "name: expected at most 50 lower-case letters, digits and '_', beginning with a "
            f"letter, and no word of Python, found {name!r}"
        )
    if name in all_specs():
        raise UsageError(f"name: {name} is an algorithm already; choose another name")
    if util.find_spec(name) is not None and not (directory / f"{name}.py").exists():
        raise UsageError(
            f"name: there is a module {name} already, which would be imported in place of yours; "
            "choose another name"
        )


def _files(name: str, like: str) -> Iterator[tuple[str, str]]:
    begin, class_name = BEGINNINGS[like], "".join(word.capitalize() for word in name.split("_"))
    template = (resources.files("rl_training.assets") / "templates" / f"{like}.py").read_text()
    yield f"{name}.py", template.replace("my_algo", name).replace("MyAlgo", class_name)
    _, _, config = find_config(begin.config).read_text(encoding="utf-8").partition(f"algo: {like}")
    yield f"{name}.yaml", f"# rl-training train --config {name}.yaml\nalgo: {name}:SPEC{config}"
    settings = "\n".join(f'        "{key}": {value},' for key, value in begin.small.items())
    yield f"test_{name}.py", _TEST.format(name=name, env_id=begin.env_id, settings=settings)
