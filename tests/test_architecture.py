"""Rules about the source itself: sizes, layering, and what a trainer module may hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from rl_training.runtime.spec import AlgorithmSpec, Lazy
from rl_training.runtime.spec_table import packaged_specs

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rl_training"
MODULES = sorted(SOURCE.rglob("*.py"))
TRAINERS = sorted((SOURCE / "runtime").glob("*_trainer.py"))


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def test_no_function_is_over_60_lines() -> None:
    assert len(MODULES) > 30
    long = [
        f"{path.name}:{function.name}"
        for path in MODULES
        for function in functions(ast.parse(path.read_text()))
        if (function.end_lineno or 0) - function.lineno + 1 > 60
    ]
    assert long == []


# The model each update is read with: the packaged one for vectors, or the only one.
MODELS = {
    "dqn": "mlp_q_network",
    "qr_dqn": "mlp_qr_q_network",
    "c51": "mlp_categorical_q_network",
    "drqn": "recurrent.lstm_q_network",
    "sac": "mlp_actor_q_ensemble",
    "tqc": "mlp_actor_q_ensemble",
    "redq": "mlp_actor_q_ensemble",
    "td3": "mlp_actor_q_ensemble",
    "drq": "cnn.drq",
    "drqv2": "cnn.drqv2",
    "ppo": "mlp_actor_critic",
    "recurrent_ppo": "recurrent.actor_critic",
}


def module_file(name: str) -> Path:
    return (SOURCE.parent / name.replace(".", "/")).with_suffix(".py")


def imported_modules(name: str) -> set[str]:
    """The modules of the package that a module imports, packages' `__init__` files left out."""
    found = set()
    for node in ast.walk(ast.parse(module_file(name).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl_training"):
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in found if module is not None and module_file(module).is_file()}


def import_closure(*names: str) -> set[str]:
    closure: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in closure:
            closure.add(name)
            waiting += imported_modules(name)
    return closure


def test_every_algorithm_has_a_model_to_be_read_with() -> None:
    assert set(MODELS) == set(packaged_specs())


@pytest.mark.parametrize("algo", MODELS)
def test_an_update_is_understood_from_at_most_eight_files(algo: str) -> None:
    algorithm = packaged_specs()[algo].algorithm
    assert isinstance(algorithm, Lazy)
    start = algorithm.path.partition(":")[0], f"rl_training.models.{MODELS[algo]}"
    rooms = ("rl_training.algorithms.", "rl_training.models.")
    files = sorted(module for module in import_closure(*start) if module.startswith(rooms))
    assert len(files) <= 8, files
    assert set(start) <= set(files)


def test_definitions_know_no_kernel() -> None:
    for path in MODULES:
        if path.relative_to(SOURCE).parts[0] in ("algorithms", "models", "data", "envs"):
            assert "rl_training.fast" not in path.read_text(), path


def test_models_compute_on_tensors_alone() -> None:
    for path in sorted((SOURCE / "models").rglob("*.py")):
        tree = ast.parse(path.read_text())
        top = [node for node in tree.body if isinstance(node, ast.Import)]
        allowed = "core.py"  # cuts sequences at the starts of episodes, which are host data
        assert path.name == allowed or not any(
            alias.name == "numpy" for node in top for alias in node.names
        ), path


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
    """Nothing that comes from a file: no pickle, no torch.load.

    Only a run and the worker processes it has started itself exchange pickled messages.
    """
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for path in MODULES:
        if path.name in ("async_vector_env.py", "worker_process.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names}
                names.add((getattr(node, "module", "") or "").split(".")[0])
                assert not names & forbidden, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("torch", "load"), path


@pytest.mark.parametrize("name", ["configs", "evidence"])
def test_assets_exist_once_under_two_names(name: str) -> None:
    assert (ROOT / name).is_symlink()
    assert (ROOT / name).resolve() == (SOURCE / "assets" / name).resolve()


def test_every_algorithm_has_its_six_kinds_of_file() -> None:
    for name in packaged_specs():
        stem = {"drq_v2": "drqv2"}.get(name, name)
        assert (SOURCE / "algorithms" / f"{stem}.py").exists()
        assert list((SOURCE / "assets" / "configs" / name).glob("*.yaml"))
        assert list((ROOT / "examples").glob(f"{stem}_*_reference.py"))
        assert (ROOT / "tests" / f"test_{stem}_update.py").exists()
