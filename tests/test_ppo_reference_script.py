"""The reference script: short, runnable, repeatable, and it learns."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[1] / "examples" / "ppo_cartpole_reference.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_cartpole_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def threads() -> object:
    """The script sets the number of threads for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_it_is_short_enough_to_read() -> None:
    assert len(SCRIPT.read_text().splitlines()) < 100


def test_it_learns_to_balance_within_a_few_thousand_steps(script: ModuleType) -> None:
    # A random policy lasts about 22 steps; so does this one at the start.
    assert script.main(8_000, 1) > 100


def test_it_gives_the_same_result_for_the_same_seed(
    script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again, other = (script.main(1_100, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    printed = capsys.readouterr().out
    assert printed.count(f"final policy: {first:.1f} ± ") >= 2


def test_it_runs_from_the_command_line() -> None:
    result = subprocess.run(
        [sys.executable, SCRIPT, "--steps", "300", "--seed", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "final policy: " in result.stdout
    assert result.stderr == ""
