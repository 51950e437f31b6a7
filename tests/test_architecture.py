"""Rules about the source itself: sizes, layering, and what a trainer module may hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rl_training.runtime.spec import AlgorithmSpec, all_specs

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rl_training"
MODULES = sorted(SOURCE.rglob("*.py"))
TRAINERS = sorted((SOURCE / "runtime").glob("*_trainer.py"))
ALGORITHMS = sorted((SOURCE / "algorithms").glob("*.py"))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def test_no_source_file_is_over_300_lines() -> None:
    assert len(MODULES) > 30
    assert [path.name for path in MODULES if lines(path) > 300] == []


def test_no_function_is_over_60_lines() -> None:
    long = [
        f"{path.name}:{function.name}"
        for path in MODULES
        for function in functions(ast.parse(path.read_text()))
        if (function.end_lineno or 0) - function.lineno + 1 > 60
    ]
    assert long == []


def test_algorithm_files_stay_readable_in_one_sitting() -> None:
    assert [path.name for path in ALGORITHMS if lines(path) > 180] == []


@pytest.mark.parametrize("path", TRAINERS, ids=lambda path: path.stem)
def test_trainer_modules_are_declarations_only(path: Path) -> None:
    module = import_module(f"rl_training.runtime.{path.stem}")
    specs = [value for value in vars(module).values() if isinstance(value, AlgorithmSpec)]
    assert specs
    assert lines(path) < 30 + 10 * len(specs)
    control = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.FunctionDef, ast.IfExp)
    control += (ast.Lambda, ast.comprehension)
    found = [
        type(node).__name__
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, control)
    ]
    assert found == []


def test_there_is_a_trainer_module() -> None:
    assert [path.stem for path in TRAINERS][:1] == ["dqn_trainer"]


def test_import_rules_hold() -> None:
    tool = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([tool], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 kept, 0 broken" in result.stdout


def test_nothing_unpickles() -> None:
    """The default load path holds data only: no pickle, no torch.load."""
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names}
                names.add((getattr(node, "module", "") or "").split(".")[0])
                assert not names & forbidden, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("torch", "load"), path


def test_configs_exist_once_under_two_names() -> None:
    assert (ROOT / "configs").is_symlink()
    assert (ROOT / "configs").resolve() == (SOURCE / "assets" / "configs").resolve()


def test_every_algorithm_has_its_six_kinds_of_file() -> None:
    for name in all_specs():
        stem = {"drq_v2": "drqv2"}.get(name, name)
        assert (SOURCE / "algorithms" / f"{stem}.py").exists()
        assert list((SOURCE / "assets" / "configs" / name).glob("*.yaml"))
        assert list((ROOT / "examples").glob(f"{stem}_*_reference.py"))
        assert (ROOT / "tests" / f"test_{stem}_update.py").exists()
