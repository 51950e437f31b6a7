"""What each algorithm makes of an environment: whether it takes it, and what it would need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rl_training.data.memory import available_memory, format_bytes
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import IncompatibleEnv
from rl_training.experiment.config import OffPolicyHyperParameters
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.env_play import Finding
from rl_training.runtime.learning_speed import seconds_per_step
from rl_training.runtime.spec import all_specs

PLANNED_STEPS = (50_000, 100_000)


@dataclass(frozen=True, kw_only=True)
class AlgorithmFit:
    """Whether an algorithm takes an environment, and what training would need.

    `replay_bytes` is for the default buffer size, None without replay. `env_seconds` is the time
    the environment alone takes for so many steps, empty if its speed is not known;
    `own_seconds` is what the algorithm itself takes per step with default settings.
    """

    name: str
    refusal: str = ""
    replay_bytes: int | None = None
    env_seconds: dict[int, float]
    own_seconds: float = 0.0


def algorithm_fits(
    observation: spaces.Space[Any],
    action: spaces.Space[Any],
    *,
    steps_per_second: float,
    frames: int = 1,
) -> list[AlgorithmFit]:
    """What every algorithm of the package makes of these spaces."""
    seconds = {steps: steps / steps_per_second for steps in PLANNED_STEPS if steps_per_second}
    fits = []
    for name, spec in all_specs().items():
        try:
            check_spaces(spec, "the environment", observation, action)
        except IncompatibleEnv as error:
            fits.append(AlgorithmFit(name=name, refusal=str(error), env_seconds=seconds))
            continue
        needed = None
        if isinstance(hyper := spec.hyper(), OffPolicyHyperParameters):
            env_spec = SpaceAdapter("the environment", observation, action, frames=frames).spec
            buffer = getattr(spec.buffer, "__self__", ReplayBuffer)  # the class that builds it
            needed = int(buffer.needed_bytes(env_spec, hyper, 1))
        own = seconds_per_step(spec, observation, action)
        fits.append(
            AlgorithmFit(name=name, replay_bytes=needed, env_seconds=seconds, own_seconds=own)
        )
    return fits


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
        too_large = fit.replay_bytes is not None and fit.replay_bytes > (available or np.inf)
        text = f"{fit.name}: {_memory(fit)}; predicted training time {_time(fit)}"
        findings.append(Finding("warning" if too_large else "ok", "algorithms", text))
    if refused:
        names = ", ".join(fit.name for fit in refused)
        findings.append(Finding("note", "algorithms", f"not for these spaces: {names}"))
    return findings


def _memory(fit: AlgorithmFit) -> str:
    if fit.replay_bytes is None:
        return "keeps no replay"
    return f"{format_bytes(fit.replay_bytes)} of replay at the default size"


def _time(fit: AlgorithmFit) -> str:
    if not fit.env_seconds:
        return "unknown"
    totals = {steps: env + steps * fit.own_seconds for steps, env in fit.env_seconds.items()}
    words = ", ".join(f"{seconds:.3g} s for {steps:,} steps" for steps, seconds in totals.items())
    share = sum(fit.env_seconds.values()) / sum(totals.values())
    return f"{words} with default settings, {share:.0%} of it the environment's"
