"""The public names: one table, importable from their packages on first use, seen by mypy."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import rl_training
from rl_training.api.managed import ManagedAlgorithm
from rl_training.exports import EXPORTS
from rl_training.runtime.spec_table import packaged_specs

ROOT = Path(__file__).resolve().parents[1]

every_package = pytest.mark.parametrize("package", EXPORTS)


@every_package
def test_every_name_is_importable_and_listed(package: str) -> None:
    module, names = import_module(package), EXPORTS[package]
    assert names
    assert sorted(module.__all__) == sorted(names)
    assert set(names) <= set(dir(module))
    missing = [
        f"{home}: {name}"
        for name, home in names.items()
        if find_spec(home) is None or not hasattr(import_module(home), name)
    ]
    assert missing == [], "these entries of exports.py lead nowhere"
    for name, home in names.items():
        value = getattr(module, name)
        assert value is getattr(import_module(home), name)
        assert not isinstance(value, type) or value.__module__ == home


@every_package
def test_no_name_is_hidden_by_a_module(package: str) -> None:
    assert [name for name in EXPORTS[package] if find_spec(f"{package}.{name}")] == []


@every_package
def test_a_wrong_name_is_an_attribute_error_with_the_right_one(package: str) -> None:
    module, name = import_module(package), next(iter(EXPORTS[package]))
    with pytest.raises(AttributeError) as caught:
        getattr(module, f"{name}x")
    expected = f"module '{package}' has no attribute '{name}x'; did you mean '{name}'?"
    assert str(caught.value) == expected
    assert not hasattr(module, "__wrapped__")


def test_a_star_import_takes_every_name() -> None:
    names: dict[str, object] = {}
    exec("from rl_training.data import *", names)
    assert set(names) >= set(EXPORTS["rl_training.data"])


def test_packages_import_nothing_until_a_name_is_used() -> None:
    code = f"""
import sys
from importlib import import_module

def heavy():
    return [m for m in ("torch", "gymnasium", "numpy", "pydantic", "yaml") if m in sys.modules]

for package in {[package for package in EXPORTS if package != "rl_training.envs"]}:
    dir(import_module(package))
print(heavy())
from rl_training.config import TrainConfig, DQNConfig
print(heavy())
from rl_training.models.cnn import NatureCNN
assert "torch" in heavy()
assert "rl_training.models.cnn.drq" not in sys.modules
assert "gymnasium" not in sys.modules
import rl_training.envs
from gymnasium.envs.registration import registry
assert "PointPixels-v0" in registry
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["[]", "['pydantic']"]


def test_every_algorithm_exports_its_classes_configuration_and_training_function() -> None:
    managed = {
        kind.algo_name: kind
        for name in EXPORTS["rl_training.api"]
        if isinstance(kind := getattr(rl_training.api, name), type)
        and issubclass(kind, ManagedAlgorithm)
        and kind is not ManagedAlgorithm
    }
    assert set(managed) == set(packaged_specs())
    for name, spec in packaged_specs().items():
        kind, update = managed[name], spec.component("algorithm")
        assert getattr(rl_training, kind.__name__) is kind
        assert getattr(rl_training.algorithms, update.__name__) is update
        for package in (rl_training.algorithms, rl_training.config):
            assert getattr(package, spec.hyper.__name__) is spec.hyper
    functions = {name for name in EXPORTS["rl_training"] if name.startswith("train_")}
    trainers = {path.stem for path in (ROOT / "src/rl_training/runtime").glob("*_trainer.py")}
    assert functions == {f"train_{stem.removesuffix('_trainer')}" for stem in trainers}


def test_every_module_of_models_exports_its_networks() -> None:
    folder = ROOT / "src/rl_training/models"
    modules = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }
    assert modules == set(EXPORTS["rl_training.models"].values())


def generate() -> object:
    spec = spec_from_file_location("generate_stubs", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stubs_follow_the_table() -> None:
    generator = generate()
    stubs = {package: generator.stub_path(package) for package in EXPORTS}  # type: ignore[attr-defined]
    stale = [
        package
        for package, path in stubs.items()
        if not path.exists() or path.read_text() != generator.stub(package)  # type: ignore[attr-defined]
    ]
    assert stale == [], "run python docs/generate.py"
    assert sorted((ROOT / "src").rglob("*.pyi")) == sorted(stubs.values())


def test_mypy_sees_every_name_and_no_other(tmp_path: Path) -> None:
    imports = [
        f"from {package} import {name} as n{number}_{name}"
        for number, (package, names) in enumerate(EXPORTS.items())
        for name in names
    ]
    script = tmp_path / "user.py"
    script.write_text("\n".join([*imports, "from rl_training import DQNN"]))
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "pyproject.toml", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line for line in result.stdout.splitlines() if ": error:" in line]
    (error,) = errors
    assert 'Module "rl_training" has no attribute "DQNN"' in error


def test_the_package_is_typed() -> None:
    assert files("rl_training").joinpath("py.typed").is_file()
