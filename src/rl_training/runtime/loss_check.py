"""Tries an algorithm's losses before a run, so that a mistake in one is met at its start."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Loss
from rl_training.algorithms.optimization import Optimizer
from rl_training.data.examples import ROWS
from rl_training.errors import UsageError
from rl_training.runtime.seeding import global_generator_state, restore_global_generators

_TORCH = str(Path(torch.__file__).parent)


def check_losses(algorithm: Algorithm, *, priorities: bool = False) -> None:
    """Refuse an algorithm if one of its losses raises, gives no loss or has no gradient.

    With `priorities`, also if none of them gives a priority for each row.
    Each is called once with the algorithm's `example_inputs`, and nothing of that remains. Those
    are what `update` would give it, so a class that has another `update` than the class of its
    `example_inputs` is not tried.
    """
    if not _examples_match_update(type(algorithm)):
        return
    kind = type(algorithm).__name__
    for name, value in vars(algorithm).items():
        if isinstance(value, torch.nn.Parameter):
            raise UsageError(
                f"{kind}.{name} is a parameter that nothing trains: {kind}.update trains its "
                "networks; make it a parameter of the network, or give it an Optimizer in an update"
            )
    with _state_restored(algorithm):
        examples = _call(f"{kind}.example_inputs", algorithm.example_inputs)
        for network in algorithm.networks().values():
            network.train()
        for name, inputs in examples.items():
            title = f"{kind}.{name}"
            result = _call(title, getattr(algorithm, name), *inputs)
            _check_result(title, result)
            priorities = priorities and getattr(result, "priority", None) is None
            value = result.value if isinstance(result, Loss) else result
            trained, leaves = _trained_by(algorithm, name)
            grads = _call(f"the gradient of {title}", _differentiate, value, leaves)
            if all(grad is None for grad in grads):
                raise UsageError(
                    f"{title}: expected a loss that depends on {trained}, which it trains, found "
                    "one that does not; compute it from that network's output"
                )
    if priorities:
        raise UsageError(
            f"prioritized: expected {' or '.join(f'{kind}.{name}' for name in examples)} to give a "
            "priority for each row, Loss(value, metrics, priority), found none; give one, or leave "
            "prioritized out"
        )


def _trained_by(algorithm: Algorithm, name: str) -> tuple[str, Sequence[Tensor]]:
    """What `critic_loss` trains is what `critic_optimizer` holds; without one, every network."""
    optimizer = getattr(algorithm, name.removesuffix("loss") + "optimizer", None)
    if isinstance(optimizer, Optimizer):
        names = [name for name, part in vars(algorithm).items() if part is optimizer.module]
        network = ".".join([type(algorithm).__name__, *names[:1]])
        return network, optimizer.leaves
    networks = algorithm.networks().values()
    leaves = [p for network in networks for p in network.parameters() if p.requires_grad]
    return f"a network of {type(algorithm).__name__}", leaves


def _examples_match_update(kind: type[Algorithm]) -> bool:
    examples, update = (
        next(base for base in kind.__mro__ if name in vars(base))
        for name in ("example_inputs", "update")
    )
    return issubclass(examples, update)


@contextmanager
def _state_restored(algorithm: Algorithm) -> Iterator[None]:
    """Context after which the algorithm and the global generators are as before, bit for bit."""
    attributes, state = dict(vars(algorithm)), copy.deepcopy(algorithm.state_dict())
    modules = [m for network in algorithm.networks().values() for m in network.modules()]
    training = [module.training for module in modules]
    generators = global_generator_state()
    try:
        yield
    finally:
        vars(algorithm).clear()
        vars(algorithm).update(attributes)
        algorithm.load_state_dict(state)
        for module, flag in zip(modules, training, strict=True):
            module.training = flag
        restore_global_generators(generators)


def _call(title: str, function: Callable[..., Any], *inputs: object) -> Any:
    """What it gives; if it raises, that is reported with the last line of code outside torch."""
    try:
        return function(*inputs)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = [frame for frame in frames if not frame.filename.startswith(_TORCH)][-1]
        raise UsageError(
            f"{title} raised {type(error).__name__}: {error} ({Path(last.filename).name}, line "
            f"{last.lineno}: {last.line}); losses are tried before training, on a made-up batch of "
            f"{ROWS} rows"
        ) from error


def _differentiate(value: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
    return torch.autograd.grad(value, leaves, allow_unused=True)


def _check_result(title: str, result: object) -> None:
    value, metrics, priority = result if isinstance(result, Loss) else (result, {}, None)
    for expected, found in (_value_mistake(value), *_metric_mistakes(metrics)):
        if found:
            raise UsageError(f"{title}: expected {expected}, found {found}")
    if priority is not None and (not isinstance(priority, Tensor) or priority.shape != (ROWS,)):
        raise UsageError(
            f"{title}: expected no priority or one for each row, a tensor of shape ({ROWS},), "
            f"found {_described(priority)}"
        )
    if priority is not None and priority.requires_grad:
        raise UsageError(f"{title}: expected a detached priority, found one with a gradient")


def _value_mistake(value: object) -> tuple[str, str]:
    """What is expected, and what was found if it is something else."""
    found = ""
    if not isinstance(value, Tensor):
        found = _described(value)
    elif value.ndim:
        found = f"{_described(value)}; reduce it, for example with mean()"
    elif not value.requires_grad:
        found = "one without a gradient; compute it from a network's output, without no_grad()"
    return "a scalar tensor that requires grad, or Loss(value, metrics) with one", found


def _metric_mistakes(metrics: object) -> Iterator[tuple[str, str]]:
    if not isinstance(metrics, Mapping):
        yield "metrics by name", _described(metrics)
        return
    for name, number in metrics.items():
        if not isinstance(name, str):
            yield "names of metrics to be text", _described(name)
        if not isinstance(number, Tensor) or number.ndim:
            yield f"the metric {name!r} to be a tensor without dimensions", _described(number)


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"{type(value).__name__} {str(value)[:60]}"
