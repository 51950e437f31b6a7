"""What every reference script must be: short, runnable, repeatable, and it learns."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"

# A task of images that is learned in a few hundred steps.
GLOW = {"ENV_ID": "toy_envs:GlowEnv", "ENV": {}, "WARM_UP": 100}
GLOW_LEARNED = 8.5  # of 10; a random policy gets about 3.3
PENDULUM_LEARNED = -400.0  # a random policy reaches about -1,200


@dataclass(frozen=True, kw_only=True)
class Case:
    """A script, the steps in which it reaches more than `learned`, and steps that show nothing.

    Where the script's agent would take minutes, `smaller` replaces hyper-parameters and
    `constants` names of the module.
    """

    name: str
    learning_steps: int
    short_steps: int
    command_line_steps: int = 300
    learned: float = 100.0  # a random policy on CartPole lasts about 22 steps
    smaller: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return EXAMPLES / f"{self.name}.py"

    def load(self) -> ModuleType:
        spec = importlib.util.spec_from_file_location(self.name, self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in list(vars(module).items()):
            if self.smaller and name.endswith("Config"):
                setattr(module, name, partial(self._build_smaller, value))
        vars(module).update(self.constants)
        return module

    def _build_smaller(self, config: type[Any], **given: Any) -> Any:
        return config(**given | self.smaller)


class ReferenceScriptTests:
    """Subclass it as `Test...` under `@cases(...)`."""

    @pytest.fixture
    def script(self, case: Case) -> ModuleType:
        return case.load()

    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A script may leave files in the working directory."""
        monkeypatch.chdir(tmp_path)

    @pytest.fixture(autouse=True)
    def _threads(self) -> Iterator[None]:
        """The script sets the number of threads for the whole process."""
        before = torch.get_num_threads()
        yield
        torch.set_num_threads(before)

    def test_it_is_short_enough_to_read(self, case: Case) -> None:
        assert len(case.path.read_text().splitlines()) < 100

    def test_it_learns_within_a_few_thousand_steps(self, case: Case, script: ModuleType) -> None:
        assert script.main(case.learning_steps, 1) > case.learned

    def test_it_gives_the_same_result_for_the_same_seed(
        self, case: Case, script: ModuleType, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first, again, other = (script.main(case.short_steps, seed) for seed in (1, 1, 2))
        assert first == again
        assert first != other
        assert capsys.readouterr().out.count(f"final policy: {first:.1f} ± ") >= 2

    def test_it_runs_from_the_command_line(
        self, case: Case, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """As `python SCRIPT` does, without the seconds that another process needs to begin."""
        words = [str(case.path), "--steps", str(case.command_line_steps), "--seed", "3"]
        monkeypatch.setattr(sys, "argv", words)
        runpy.run_path(str(case.path), run_name="__main__")
        printed = capfd.readouterr()
        assert "final policy: " in printed.out
        assert printed.err == ""


def cases(*given: Case) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", given, ids=lambda case: case.name)
