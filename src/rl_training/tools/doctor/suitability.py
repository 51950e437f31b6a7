"""What each algorithm makes of an environment: whether it takes it, and what it would need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.data.memory import available_memory, format_bytes
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import IncompatibleEnv
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import all_specs
from rl_training.tools.doctor.report import Finding
from rl_training.tools.doctor.update_time import seconds_per_step

PLANNED_STEPS = (50_000, 100_000)


@dataclass(frozen=True, kw_only=True)
class AlgorithmFit:
    """Whether an algorithm takes an environment, and what training would need.

    `refusal` says why the spaces do not fit, and `failure` what a short run of the algorithm
    raised. `memory_bytes` is what its `memory` (replay or rollout) takes with default settings.
    `env_seconds` is the time the environment alone takes for that many steps, empty if its speed
    is not known; `own_seconds` is what the algorithm takes per step with default settings.
    """

    name: str
    refusal: str = ""
    failure: str = ""
    memory: str = ""
    memory_bytes: int = 0
    env_seconds: dict[int, float]
    own_seconds: float = 0.0


def algorithm_fits(
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    *,
    steps_per_second: float,
    frames: int = 1,
) -> list[AlgorithmFit]:
    """What every known algorithm makes of these spaces."""
    seconds = {steps: steps / steps_per_second for steps in PLANNED_STEPS if steps_per_second}
    fits = []
    for name, spec in all_specs().items():
        try:
            needs = _needs(spec, observation, action, frames)
        except IncompatibleEnv as error:
            needs = {"refusal": str(error)}
        except Exception as error:  # in somebody's algorithm; the table still has the others
            needs = {"failure": f"{type(error).__name__}: {error}"}
        fits.append(AlgorithmFit(name=name, env_seconds=seconds, **needs))
    return fits


def _needs(
    spec: AlgorithmSpec, observation: spaces.Space[Any], action: spaces.Space[Any], frames: int
) -> dict[str, Any]:
    check_spaces(spec, "the environment", observation, action)
    spec.check_components()
    env_spec = SpaceAdapter("the environment", observation, action, frames=frames).spec
    buffer = spec.component("buffer")
    return {
        "memory": buffer.memory_name,
        "memory_bytes": int(buffer.needed_bytes(env_spec, spec.hyper(), 1)),
        "own_seconds": seconds_per_step(spec, observation, action),
    }


def fit_findings(fits: Sequence[AlgorithmFit]) -> list[Finding]:
    """A line per algorithm that takes the environment, and one for the others."""
    refused = [fit for fit in fits if fit.refusal]
    if len(refused) == len(fits):
        return [Finding("error", "algorithms", refused[0].refusal)]
    available = available_memory()
    findings = []
    for fit in fits:
        if fit.refusal:
            continue
        if fit.failure:
            text = f"{fit.name}: a short run of it raised {fit.failure}"
            findings.append(Finding("warning", "algorithms", text))
            continue
        too_large = fit.memory_bytes > (available or np.inf)
        memory = f"{format_bytes(fit.memory_bytes)} of {fit.memory} with default settings"
        text = f"{fit.name}: {memory}; predicted training time {_time(fit)}"
        findings.append(Finding("warning" if too_large else "ok", "algorithms", text))
    if refused:
        names = ", ".join(fit.name for fit in refused)
        findings.append(Finding("note", "algorithms", f"not for these spaces: {names}"))
    return findings


def _time(fit: AlgorithmFit) -> str:
    if not fit.env_seconds:
        return "unknown"
    totals = {steps: env + steps * fit.own_seconds for steps, env in fit.env_seconds.items()}
    words = ", ".join(f"{seconds:.3g} s for {steps:,} steps" for steps, seconds in totals.items())
    share = sum(fit.env_seconds.values()) / sum(totals.values())
    return f"{words}, {share:.0%} of it the environment's"
