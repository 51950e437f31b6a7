"""What every algorithm must do: the checks of `rl_training.testing` on each spec."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import munchausen_dqn
import rl_training.runtime.train
from rl_training import testing
from rl_training.config.loading import packaged_configs
from rl_training.errors import IncompatibleEnv
from rl_training.experiment.registry import get_spec, resolve_config
from rl_training.experiment.registry import train_config as train
from rl_training.fast.accelerate import learns_with_kernels
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.training_run import TrainingRun
from training import (
    ALGORITHMS,
    COMPILED,
    ONE_OF_EACH_FAMILY,
    TINY,
    WITH_KERNELS,
    compile_without_code,
    tiny_config,
)

# An update computes with kernels, on tensors, or in compiled functions of tensors.
WAYS: dict[str, dict[str, Any]] = {
    "kernels": {"threads": 1},
    "tensors": {"threads": 2},
    "compiled": {"execution": "compiled"},
}
OF_SOME = {"tensors": WITH_KERNELS, "compiled": COMPILED}  # other algorithms have tensors anyway
PAIRS = [(algo, way) for algo in ALGORITHMS for way in WAYS if algo in OF_SOME.get(way, ALGORITHMS)]

resume_from_one_cut = partial(testing.resume_is_exact, cuts=1)


# The algorithms of a family differ in their updates; the rest is checked on one of each.
ABOUT_UPDATES = (
    testing.updates_learn,
    testing.acting_is_valid,
    testing.ends_are_told_apart,
    testing.other_spaces_are_refused,
)


def cases() -> Iterator[Any]:
    for algo in ALGORITHMS:
        for check in testing.CHECKS if algo in ONE_OF_EACH_FAMILY else ABOUT_UPDATES:
            yield pytest.param(check, algo, WAYS["kernels"], id=f"{check.__name__}-{algo}")
        several = {"num_envs": 3}
        yield pytest.param(resume_from_one_cut, algo, several, id=f"resume_is_exact-{algo}-several")
    for algo, way in PAIRS:
        if way != "kernels" and algo in WITH_KERNELS & {*ONE_OF_EACH_FAMILY}:
            name = f"resume_is_exact-{algo}-{way}"
            yield pytest.param(resume_from_one_cut, algo, WAYS[way], id=name)
    for algo in sorted(COMPILED - WITH_KERNELS):  # the others' are compared in test_execution
        name = f"updates_learn-{algo}-compiled"
        yield pytest.param(testing.updates_learn, algo, WAYS["compiled"], id=name)


@pytest.mark.parametrize(("check", "algo", "changes"), list(cases()))
def test_packaged_algorithms_conform(
    check: testing.Check,
    algo: str,
    changes: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_without_code(monkeypatch)
    check(get_spec(algo), {**TINY[algo], **changes}, tmp_path)


@pytest.mark.parametrize("check", testing.CHECKS)
def test_an_algorithm_declared_outside_the_package_conforms(
    check: testing.Check, tmp_path: Path
) -> None:
    check(munchausen_dqn.SPEC, TINY["dqn"], tmp_path)


@pytest.mark.parametrize(("algo", "way"), PAIRS)
def test_updates_compute_as_requested(
    algo: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_without_code(monkeypatch)
    ways: list[tuple[bool, str]] = []

    class Watch(Callback):
        def on_start(self, run: TrainingRun) -> None:
            ways.append((learns_with_kernels(run.algorithm), run.algorithm.execution))

    train(tiny_config(algo, tmp_path, total_timesteps=1, **WAYS[way]), callbacks=[Watch()])
    kernels, compiled = (
        algo in WITH_KERNELS and way == "kernels",
        algo in COMPILED and way == "compiled",
    )
    assert ways == [(kernels, "compiled" if compiled else "eager")]


@pytest.mark.parametrize("algo", ONE_OF_EACH_FAMILY)
def test_without_its_random_generators_a_resumed_run_differs(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the comparison of resumed runs can fail."""
    restore = rl_training.runtime.train.restore_run

    def forgetful(run: TrainingRun, checkpoint: Any) -> None:
        # Every generator that an algorithm or a buffer owns stays as it was when it was built.
        before = generators(run)
        restore(run, checkpoint)
        for generator, state in before:
            generator.bit_generator.state = state

    monkeypatch.setattr(rl_training.runtime.train, "restore_run", forgetful)
    with pytest.raises(AssertionError, match=r"cut at step .* ended with another \['agent'"):
        resume_from_one_cut(get_spec(algo), TINY[algo], tmp_path)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_packaged_configurations_parse_and_name_this_algorithm(algo: str) -> None:
    names = [name for name in packaged_configs() if name.startswith(f"{algo}/")]
    assert names
    for name in names:
        assert resolve_config(name).config.algo == algo


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_refusal_names_algorithms_that_would_work(algo: str) -> None:
    spec, box = get_spec(algo), gym.spaces.Box(-1, 1, (3,))
    if "continuous" not in spec.actions:
        with pytest.raises(IncompatibleEnv, match=r"Algorithms that would work: .*ppo"):
            check_spaces(spec, "odd", box, box)


def generators(run: TrainingRun) -> list[tuple[np.random.Generator, Any]]:
    """The NumPy generators that the algorithm's parts and the buffer hold, with their states."""
    parts = [getattr(run.algorithm, name) for name in run.algorithm.state_names()]
    held = [v for owner in (run.buffer, *parts) for v in getattr(owner, "__dict__", {}).values()]
    found = [value for value in held if isinstance(value, np.random.Generator)]
    assert found
    return [(generator, generator.bit_generator.state) for generator in found]
