"""`AlgorithmSpec`: the record through which the package knows an algorithm."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rl_training.config.hyper_parameters import HyperParameters
from rl_training.config.imports import import_object
from rl_training.config.train_config import TrainConfig
from rl_training.errors import ConfigError, described

if TYPE_CHECKING:
    from torch import nn

    from rl_training.algorithms.base import Algorithm
    from rl_training.data.types import EnvSpec
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.result import TrainResult
    from rl_training.runtime.training_run import TrainingRun

OBSERVATIONS = frozenset({"vector", "image", "parts"})
ACTIONS = frozenset(
    {"discrete", "continuous", "continuous_array", "unbounded", "multi_discrete", "multi_binary"}
)
"""The kinds of spaces that a spec may take; `envs.spaces` gives the kind of a space."""

NAME = re.compile(r"[a-z][a-z0-9_]{0,49}")
_COMPONENTS = ("model", "algorithm", "buffer")
_PLAIN = {"title": str, "paper": str, "normalizes_rewards": bool}
_BUFFER_KIND = ("build", "needed_bytes", "memory_name")


@dataclass(frozen=True)
class Lazy:
    """A component by its import path, imported when it is first used.

    Specs are declared with it, so that names, typos and lists of algorithms do not wait for torch.
    """

    path: str

    def load(self) -> Any:
        """The component itself."""
        return import_object(self.path)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Import and call."""
        return self.load()(*args, **kwargs)


_TRAIN = Lazy("rl_training.runtime.train:train_one_of")


class BufferKind(Protocol):
    """What builds a run's buffer, as a rule the buffer's class."""

    memory_name: str

    def build(self, spec: EnvSpec, hyper: Any, **options: Any) -> Any:
        """The buffer the hyper-parameters ask for; the options are num_envs, seed and device."""

    def needed_bytes(self, spec: EnvSpec, hyper: Any, num_envs: int) -> int:
        """Memory of that buffer, known before anything is allocated."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """How to train, and what the rest of a run must know of it.

    `hyper` has the hyper-parameters that the loop reads; those of an algorithm derive from it.
    `learning_starts` counts the transitions of random play, `first_update` those before anything
    is learned, and `planned_updates` the gradient steps of a whole run. `reward_scale` multiplies
    the rewards of a batch. `short_run(hyper, images)` gives the transitions and the
    hyper-parameters of a run just long enough to be timed: in its second half updates are as
    frequent as in a long run.
    """

    run: Callable[[TrainingRun], None]
    hyper: type[HyperParameters]
    learning_starts: Callable[[Any], int]
    replay_ratio: Callable[[Any], float]
    reward_scale: Callable[[Any], float]
    first_update: Callable[[Any, int], int]
    planned_updates: Callable[[Any, int, int], int]
    short_run: Callable[[Any, bool], tuple[int, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class AlgorithmSpec:
    """An algorithm's name, paper, components and the spaces it takes.

    Training, resuming, loading, evaluation, prediction, the command line, the documentation's
    table and the conformance tests are functions of this record.
    """

    name: str
    title: str
    paper: str
    hyper: type[HyperParameters]
    model: Callable[[EnvSpec, Any], nn.Module]
    algorithm: Callable[..., Algorithm]
    buffer: BufferKind | Lazy
    loop: Loop
    observations: frozenset[str]
    actions: frozenset[str]
    normalizes_rewards: bool = False

    def __post_init__(self) -> None:
        if mistakes := list(_mistakes_in(vars(self))):
            raise ConfigError(f"the algorithm {self.name!r}: {'; '.join(mistakes)}")

    def component(self, name: str) -> Any:
        """The model, algorithm or buffer itself, whichever way it was declared."""
        declared = getattr(self, name)
        if not isinstance(declared, Lazy):
            return declared
        try:
            return declared.load()
        except ConfigError as error:
            raise ConfigError(f"the algorithm {self.name!r}: {name}: {error}") from error

    def check_components(self) -> None:
        """Import the components, and refuse those that are not what they stand for."""
        checked = (_component_mistake(name, self.component(name)) for name in _COMPONENTS)
        if mistakes := [mistake for mistake in checked if mistake]:
            raise ConfigError(f"the algorithm {self.name!r}: {'; '.join(mistakes)}")


class Train(Protocol):
    """A training function such as `train_dqn`."""

    def __call__(
        self,
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] = (),
        resume: str | Path | None = None,
    ) -> TrainResult:
        """Train as `config` says; `resume` continues a run from its directory or a checkpoint."""


def trainer(*specs: AlgorithmSpec) -> Train:
    """The training function of some specs; `config.algo` names the one it takes."""

    def train_one(
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] = (),
        resume: str | Path | None = None,
    ) -> TrainResult:
        result: TrainResult = _TRAIN(specs, config, callbacks=callbacks, resume=resume)
        return result

    train_one.__name__ = train_one.__qualname__ = f"train_{specs[0].name}"
    names = " or ".join(spec.name for spec in specs)
    train_one.__doc__ = f"Train {names} as the configuration says."
    return train_one


def _mistakes_in(given: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a spec's fields, as far as it shows without importing its components."""
    name, hyper, loop = given["name"], given["hyper"], given["loop"]
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        yield (
            "name: expected at most 50 lower-case letters, digits and '_', beginning with a "
            f"letter, found {name!r}"
        )
    for key, kind in _PLAIN.items():
        if not isinstance(given[key], kind):
            yield f"{key}: expected {kind.__name__}, found {described(given[key])}"
    base = loop.hyper if isinstance(loop, Loop) else HyperParameters
    if not (isinstance(hyper, type) and issubclass(hyper, base)):
        yield f"hyper: expected a class derived from {base.__name__}, found {described(hyper)}"
    elif required := [key for key, field in hyper.model_fields.items() if field.is_required()]:
        yield f"hyper: expected a default for every key, found none for {', '.join(required)}"
    for key in _COMPONENTS:
        component = given[key]
        if not isinstance(component, Lazy) and (mistake := _component_mistake(key, component)):
            yield mistake
    if not isinstance(loop, Loop):
        yield f"loop: expected a Loop such as OFF_POLICY or ON_POLICY, found {described(loop)}"
    yield from _space_mistakes(given)


def _space_mistakes(given: Mapping[str, Any]) -> Iterator[str]:
    for key, kinds in (("observations", OBSERVATIONS), ("actions", ACTIONS)):
        taken, names = given[key], ", ".join(sorted(kinds))
        if not (isinstance(taken, frozenset) and taken and taken <= kinds):
            yield f"{key}: expected a frozenset of {names}, found {described(taken)}"


def _component_mistake(name: str, component: object) -> str | None:
    expected = "a callable, or its import path in Lazy(...)"
    fine = callable(component)
    if name == "buffer":
        expected = f"a class with {', '.join(_BUFFER_KIND)}, or its import path in Lazy(...)"
        fine = all(hasattr(component, attribute) for attribute in _BUFFER_KIND)
    elif name == "algorithm" and isinstance(component, type):
        expected = "a class derived from rl_training.algorithms.base.Algorithm"
        # Before that module is imported, which imports torch, no class can be derived from it.
        base = sys.modules.get("rl_training.algorithms.base")
        fine = base is not None and issubclass(component, base.Algorithm)
    return None if fine else f"{name}: expected {expected}, found {described(component)}"
