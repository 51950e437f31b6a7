"""The specs by name: packaged ones, those registered, and those that installed packages offer."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from rl_training.errors import ConfigError, described
from rl_training.runtime.spec import AlgorithmSpec

ENTRY_POINTS = "rl_training.algorithms"
"""The group of entry points in which an installed package offers specs, by their names."""

# Names of a script or notebook that is running, by which nobody else can import it.
_SCRIPTS = ("__main__", "__mp_main__")

logger = logging.getLogger("rl_training")


class _Known(NamedTuple):
    """A spec from outside, where it can be imported from, and whether it has an entry point."""

    spec: AlgorithmSpec
    path: str | None
    installed: bool


_known: dict[str, _Known] = {}


@cache
def packaged_specs() -> dict[str, AlgorithmSpec]:
    """The algorithms that come with this package: those its `*_trainer` modules declare."""
    package = importlib.import_module("rl_training.runtime")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [
        importlib.import_module(f"rl_training.runtime.{name}")
        for name in names
        if name.endswith("_trainer")
    ]
    declared = (value for module in modules for value in vars(module).values())
    return {spec.name: spec for spec in declared if isinstance(spec, AlgorithmSpec)}


def all_specs() -> dict[str, AlgorithmSpec]:
    """Every algorithm that this process knows, by name.

    An entry point that fails is left out, and logged the first time.
    """
    _load_entry_points()
    return packaged_specs() | {name: known.spec for name, known in sorted(_known.items())}


def find_spec(name: str) -> AlgorithmSpec | None:
    """The algorithm of that name; ConfigError if it has an entry point that fails."""
    if name in packaged_specs():
        return packaged_specs()[name]
    if name not in _known:
        for entry in entry_points(group=ENTRY_POINTS, name=name):
            _load(entry)
    return _known[name].spec if name in _known else None


def register(spec: AlgorithmSpec) -> None:
    """Make an algorithm known by its name to everything in this process.

    It may be registered again, and redefined where it was defined, but its name is not another's.
    """
    if not isinstance(spec, AlgorithmSpec):
        raise ConfigError(f"register: expected an AlgorithmSpec, found {described(spec)}")
    add_spec(spec, _path_of(spec))


def add_spec(spec: AlgorithmSpec, path: str | None, *, installed: bool = False) -> None:
    """Add a spec that was found at an import path; its name must not be taken."""
    packaged, other = packaged_specs().get(spec.name), _known.get(spec.name)
    if spec == packaged or (other is not None and other.spec == spec):
        return
    if packaged is None and (other is None or (path is not None and path == other.path)):
        _known[spec.name] = _Known(spec, path, installed)
        return
    owner = "a packaged algorithm" if other is None else f"the algorithm {_origin(other.path)}"
    raise ConfigError(
        f"the algorithm {_origin(path)} is named {spec.name!r}, which is the name of {owner}; give "
        "it another: dataclasses.replace(SPEC, name=...)"
    )


def import_path(spec: AlgorithmSpec) -> str | None:
    """`package.module:NAME` of a spec that is not packaged; None if no import leads to it."""
    if spec == packaged_specs().get(spec.name):
        return None
    known = _known.get(spec.name)
    path = known.path if known is not None and known.spec == spec else _path_of(spec)
    return None if path is None or path.partition(":")[0] in _SCRIPTS else path


def portable_name(spec: AlgorithmSpec) -> str | None:
    """What leads to the spec in every process: its name or its import path; None if nothing does.

    The name does if the algorithm is packaged or has an entry point.
    """
    known = _known.get(spec.name)
    has_entry_point = known is not None and known.installed and known.spec == spec
    if spec == packaged_specs().get(spec.name) or has_entry_point:
        return spec.name
    return import_path(spec)


def saved_algorithm(spec: AlgorithmSpec) -> dict[str, str | None]:
    """What a checkpoint stores of its algorithm; `experiment.registry` finds the spec again."""
    return {"algo": spec.name, "algo_path": import_path(spec)}


def _path_of(spec: AlgorithmSpec) -> str | None:
    """The global variable that holds this very spec, first of all where its parts are defined."""
    homes = [getattr(part, "__module__", "") for part in (spec.hyper, spec.algorithm)]
    others = sorted(sys.modules, key=_SCRIPTS.__contains__)
    for module in dict.fromkeys([*homes, *others]):
        for name, value in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            if value is spec:
                return f"{module}:{name}"
    return None


@cache
def _load_entry_points() -> None:
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            _load(entry)
        except ConfigError as error:
            logger.warning("%s", error)


def _load(entry: EntryPoint) -> None:
    """Add the spec of an entry point; whatever goes wrong is a ConfigError."""
    owner = f" of {entry.dist.name}" if entry.dist else ""
    origin = f"the algorithm {entry.name!r} (entry point {entry.value}{owner}) cannot be used"
    try:
        spec = entry.load()
    except (Exception, SystemExit) as error:  # a module that exits must not end the listing
        raise ConfigError(f"{origin}: {type(error).__name__}: {error}") from error
    if not isinstance(spec, AlgorithmSpec):
        raise ConfigError(f"{origin}: expected an AlgorithmSpec, found {described(spec)}")
    if spec.name != entry.name:
        raise ConfigError(f"{origin}: the entry point's name is not the spec's, {spec.name!r}")
    try:
        add_spec(spec, f"{entry.module}:{entry.attr}", installed=True)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error


def _origin(path: str | None) -> str:
    return "registered in Python" if path is None else f"at {path}"
