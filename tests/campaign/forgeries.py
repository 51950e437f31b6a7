"""Forgeries with valid checksums through load and resume: every error must be a typed one.

    python -m campaign.forgeries --number 2000 [--seed 0] [--control]

Each takes a real run, changes one thing in the manifest, in the JSON of a part or in one of its
tensors, and signs it again. It may be accepted (not every change is wrong) or refused with one of
the package's errors. With `--control` some of the checks are taken away, and the campaign has to
find what then gets through.
"""

from __future__ import annotations

import argparse
import copy
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from campaign.forging import SMALL, Forgery, honest_run
from rl_training.api.managed import load as load_managed
from rl_training.errors import RLTrainingError
from rl_training.experiment.registry import open_checkpoint, train_config

PATIENCE_S = 20
MEMORY_BYTES = 6 << 30
PARTS = ("info", "agent", "spaces", "replay", "segment", "loop", "transcript")
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        7,
        10**6,
        2**31,
        2**53,
        10**15,
        -(10**15),
        10**30,
        0.5,
        1e300,
    ),
    *("", "x", "nan", "rl_training", "../..", "\0", [], {}, [[]], [None], ["x"], [1, 2, 3]),
    *({"list": []}, {"dict": {}}, {"set": [1]}, {"int": "0x10"}, {"float": "7ff8000000000000"}),
    *({"dict": {"a": 1}}, {"x": 1}, {"list": [1, "a"]}, {"map": []}, {"bytes": "x"}),
)


UNCHECKED = (
    "rl_training.data.prioritized_replay",
    "rl_training.data.recurrent_replay_buffer",
    "rl_training.data.replay_buffer",
    "rl_training.data.rollout_buffer",
    "rl_training.runtime.collector",
)


class Hang(BaseException):
    """Something took longer than `PATIENCE_S`."""


def forge(
    run: Path, folder: Path, rng: random.Random, parts: Sequence[str] = PARTS
) -> tuple[Path, str]:
    """One forged copy of the run, and what was changed."""
    forgery = Forgery(run, folder)
    part = rng.choice(parts)
    if part == "info":
        if rng.random() < 0.05:
            forgery.env_steps = rng.choice([0, 23, 25, 10**9, 10**17])
            return forgery.sign(), f"env_steps = {forgery.env_steps}"
        change = change_json(forgery.info, rng)
    elif part == "segment":
        part = rng.choice(forgery.segments() or ["replay"])  # a rollout has none
        tensors = forgery.tensors(part)
        change = change_tensor(tensors, rng)
        forgery.write_tensors(part, tensors)
    else:
        structure, tensors = forgery.structure(part), forgery.tensors(part)
        if tensors and rng.random() < 0.4:
            change = change_tensor(tensors, rng)
        else:
            holder = {"root": structure}
            change = change_json(holder, rng)
            structure = holder.get("root")
        forgery.write(part, structure, tensors)
    return forgery.sign(), f"{part}: {change}"


def change_json(root: Any, rng: random.Random) -> str:
    """Delete, replace, duplicate or swap one value somewhere in a JSON tree."""
    places = list(_places(root, ""))
    holder, key, path = rng.choice(places)
    kind = rng.choice(["delete", "replace", "replace", "rename", "swap"])
    if kind == "delete":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        holder["renamed"] = holder.pop(key)
    elif kind == "swap":
        other, other_key, _ = rng.choice(places)
        holder[key] = copy.deepcopy(other[other_key])
    else:
        holder[key] = value = copy.deepcopy(rng.choice(VALUES))
        return f"{path} = {value!r:.40}"
    return f"{kind} {path}"


def _places(value: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key, f"{path}/{key}"
        if isinstance(inner, dict | list):
            yield from _places(inner, f"{path}/{key}")


def change_tensor(tensors: dict[str, torch.Tensor], rng: random.Random) -> str:
    """Another shape, another type, fewer rows, or values that cannot be."""
    name = rng.choice(sorted(tensors))
    old = tensors[name]
    changes: dict[str, Callable[[], torch.Tensor]] = {
        "flattened": lambda: old.reshape(-1),
        "an axis more": lambda: old.unsqueeze(0),
        "halved": lambda: old.reshape(-1)[: old.numel() // 2],
        "empty": lambda: old.reshape(-1)[:0],
        "float64": lambda: old.double(),
        "int64": lambda: old.nan_to_num().long(),
        "bool": lambda: old.bool(),
        "zeros": lambda: torch.zeros_like(old),
        "ones": lambda: torch.ones_like(old),
        "huge": lambda: torch.full_like(old, 1 if old.dtype == torch.bool else 100),
        "negative": lambda: torch.full_like(old, -1) if old.dtype.is_signed else ~old,
        "nan": lambda: torch.full_like(old, torch.nan) if old.is_floating_point() else old + 1,
        "max": lambda: torch.full_like(old, _largest(old.dtype)),
    }
    kind = rng.choice(list(changes))
    tensors[name] = changes[kind]()
    return f"{name} {kind}"


def _largest(dtype: torch.dtype) -> float:
    if dtype == torch.bool:
        return 1
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max


def load(run: Path) -> None:
    """What `predict` and `eval` do."""
    agent = load_managed(run)
    agent.evaluate(1)


def resume(run: Path) -> None:
    """What `resume` does."""
    checkpoint, config = open_checkpoint(run, parts=None)
    # A forged budget may ask for any number of steps, which is no error.
    if config.total_timesteps > 64 or config.final_eval_episodes > 3:
        config = config.with_changes(
            total_timesteps=min(config.total_timesteps, 64), final_eval_episodes=1
        )
    train_config(config, resume=checkpoint.path)


ENTRIES: dict[str, Callable[[Path], None]] = {"load": load, "resume": resume}


def outcome(entry: Callable[[Path], None], run: Path) -> str:
    """`accepted`, the name of a typed error, or `UNTYPED ...` with where it came from."""
    try:
        with _patience():
            entry(run)
    except RLTrainingError as error:
        return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__[0] != "_")
    except Hang:
        return "UNTYPED hang"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return f"UNTYPED {type(error).__name__} at {where}: {error!s:.120}"
    return "accepted"


@contextmanager
def _patience() -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def campaign(
    number: int,
    seed: int,
    folder: Path,
    parts: Sequence[str] = PARTS,
    report: Callable[[str], None] = print,
) -> Counter[str]:
    """The outcomes of so many forgeries, each through load or resume in turn."""
    rng = random.Random(seed)
    runs = [honest_run(algo, folder / "honest") for algo in SMALL]
    outcomes: Counter[str] = Counter()
    for index in range(number):
        run, change = forge(runs[index // 2 % len(runs)], folder / "forged", rng, parts)
        name = ("load", "resume")[index % 2]
        result = outcome(ENTRIES[name], run)
        if result.startswith("UNTYPED"):
            report(f"{index} {name}, {run.name}, {change}: {result}")
            result = "UNTYPED"
        outcomes[result] += 1
        shutil.rmtree(folder / "forged")
    return outcomes


@contextmanager
def without_checks() -> Iterator[None]:
    """The package without the checks of saved values, and without the net under them."""
    with ExitStack() as stack:
        for module in UNCHECKED:
            for name in ("saved_value", "saved_count", "saved_number", "saved_array"):
                if hasattr(import_module(module), name):
                    stack.enter_context(mock.patch(f"{module}.{name}", _unchecked))
            if hasattr(import_module(module), "check_bounds"):
                stack.enter_context(mock.patch(f"{module}.check_bounds"))
        loading = "rl_training.runtime.resume.loading_part"
        stack.enter_context(mock.patch(loading, return_value=nullcontext()))
        yield


def _unchecked(state: Any, name: str, *_: Any, **__: Any) -> Any:
    return state[name]


def main() -> int:
    """Run the campaign; the exit code is 0 if it went as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--control", action="store_true")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    checks = without_checks() if options.control else nullcontext()
    parts = ("replay",) if options.control else PARTS
    with tempfile.TemporaryDirectory() as folder, checks:
        outcomes = campaign(options.number, options.seed, Path(folder), parts)
    listed = ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    print(f"{options.number} forgeries: {listed}")
    return int(bool(outcomes["UNTYPED"]) != options.control)


if __name__ == "__main__":
    sys.exit(main())
