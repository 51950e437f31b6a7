"""What every reference script must be: short, runnable, repeatable, and it learns."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


class ReferenceScriptTests:
    """Subclass it as `Test...`, name the script and the steps that show learning."""

    name: str
    learning_steps: int
    short_steps: int
    few_steps = "300"
    learned = 100.0  # a random policy on CartPole lasts about 22 steps
    smaller: ClassVar[dict[str, Any]] = {}
    """Hyper-parameters that make the script's agent quick, where its own take minutes."""
    constants: ClassVar[dict[str, Any]] = {}
    """Of the script, likewise."""

    @pytest.fixture
    def script(self) -> ModuleType:
        path = EXAMPLES / f"{self.name}.py"
        spec = importlib.util.spec_from_file_location(self.name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in list(vars(module).items()):
            if self.smaller and name.endswith("Config"):
                setattr(module, name, partial(self._made_smaller, value))
        vars(module).update(self.constants)
        return module

    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A script may leave files in the working directory."""
        monkeypatch.chdir(tmp_path)

    @pytest.fixture(autouse=True)
    def _threads(self) -> object:
        """The script sets the number of threads for the whole process."""
        before = torch.get_num_threads()
        yield
        torch.set_num_threads(before)

    def _made_smaller(self, config: type[Any], **given: Any) -> Any:
        return config(**given | self.smaller)

    def test_it_is_short_enough_to_read(self) -> None:
        assert len((EXAMPLES / f"{self.name}.py").read_text().splitlines()) < 100

    def test_it_learns_within_a_few_thousand_steps(self, script: ModuleType) -> None:
        assert script.main(self.learning_steps, 1) > self.learned

    def test_it_gives_the_same_result_for_the_same_seed(
        self, script: ModuleType, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first, again, other = (script.main(self.short_steps, seed) for seed in (1, 1, 2))
        assert first == again
        assert first != other
        assert capsys.readouterr().out.count(f"final policy: {first:.1f} ± ") >= 2

    def test_it_runs_from_the_command_line(self) -> None:
        result = subprocess.run(
            [
                sys.executable,
                EXAMPLES / f"{self.name}.py",
                "--steps",
                self.few_steps,
                "--seed",
                "3",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        assert "final policy: " in result.stdout
        assert result.stderr == ""
