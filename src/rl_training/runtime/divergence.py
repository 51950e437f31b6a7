"""Divergence: the batch dumped at the first non-finite value, and warnings before it comes to that.

A loss, gradient or weight that is not finite ends a run, and what was learned from then is written
to its `divergence` directory, as data. Signs of trouble are warnings, each once a session.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.types import EnvSpec
from rl_training.runtime.callbacks import Callback
from rl_training.storage.files import make_directory, save_error, write_atomic, write_json
from rl_training.storage.runs import DIVERGENCE_DIR_NAME
from rl_training.storage.tensor_file import STORABLE, file_chunks

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")

VALUE_LIMIT_FACTOR = 10.0  # of what the rewards allow
COLLAPSED_SHARE = 0.01  # of the highest entropy, or standard deviation, left to a policy
ACTION_LIMIT = 0.99  # of actions in [-1, 1]
SATURATED_SHARE = 0.95  # of the actions, at their limits

_VALUES = ("train/q_value_mean", "train/target_mean", "train/target_q_mean")


def batch_tensors(batch: object) -> dict[str, Tensor]:
    """The tensors and arrays of a batch, a NamedTuple or mapping, by name, on the host."""
    fields = batch._asdict() if hasattr(batch, "_asdict") else batch
    if not isinstance(fields, Mapping):
        return {}
    found = {}
    for name, value in _flat(fields):
        tensor = torch.as_tensor(value).detach().cpu().contiguous()
        if tensor.dtype in STORABLE:
            found[name] = tensor
    return found


def _flat(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, tuple):
            yield from _flat({f"{name}.{index}": part for index, part in enumerate(value)})
        elif isinstance(value, Tensor | np.ndarray):
            yield name, value


def non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a NaN or an infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None


def write_dump(run_dir: Path, batch: object, report: Mapping[str, Any]) -> Path:
    """Write a batch and what is known of it to `divergence/`; gives the path of the batch."""
    tensors = batch_tensors(batch)
    folder = run_dir / DIVERGENCE_DIR_NAME
    path = folder / f"step_{report['env_steps']:012d}.safetensors"
    try:
        make_directory(folder)
    except OSError as error:
        raise save_error(folder, error) from error
    write_atomic(path, b"".join(file_chunks(tensors)))
    described = {name: _described(tensor) for name, tensor in tensors.items()}
    write_json(path.with_suffix(".json"), {**report, "batch": described})
    return path


def _described(tensor: Tensor) -> dict[str, Any]:
    finite = torch.isfinite(tensor)
    known = tensor[finite].double()
    return {
        "shape": list(tensor.shape),
        "lowest": float(known.min()) if known.numel() else None,
        "highest": float(known.max()) if known.numel() else None,
        "non_finite": int((~finite).sum()),
    }


class WatchLearning(Callback):
    """Warns of exploding values, a collapsed policy, saturated actions and what algorithms find.

    Each once a session. Looks at what is logged and at the latest batch, at log intervals only.
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._largest_reward = 0.0

    def on_log(self, run: TrainingRun, values: dict[str, float]) -> None:
        """Look for each sign."""
        if run.batch is not None:
            self._check_values(run, values)
            self._check_entropy(run, values)
            self._check_actions(run)
            self._ask_algorithm(run)

    def _check_values(self, run: TrainingRun, values: dict[str, float]) -> None:
        reward = _field(run.batch, "reward")
        if reward is None:
            return
        self._largest_reward = max(self._largest_reward, float(reward.abs().max()))
        largest = max((abs(values[name]) for name in _VALUES if name in values), default=0.0)
        limit = VALUE_LIMIT_FACTOR * self._value_limit(run, values)
        if largest > limit > 0:
            self._warn(
                run,
                "values",
                f"values have grown to {largest:.3g}, beyond {VALUE_LIMIT_FACTOR:g} times what "
                f"rewards of up to {self._largest_reward:.3g} and gamma {run.hyper.gamma:g} allow; "
                "learning probably diverges. ",
                ("learning_rate", "lower"),
                ("tau", "lower"),
                ("target_update_interval", "raise"),
                ("max_grad_norm", "set"),
                ("layer_norm", "set"),
            )

    def _value_limit(self, run: TrainingRun, values: dict[str, float]) -> float:
        """The largest return, soft if entropy counts, that what was observed makes likely."""
        scale = run.agent.spec.loop.reward_scale(run.hyper)  # batches are scaled, episodes are not
        returns = [abs(episode.episode_return) * scale for episode in run.collector.episodes]
        bonus = abs(values.get("train/alpha", 0.0) * values.get("train/entropy", 0.0))
        horizon = 1 / max(1 - run.hyper.gamma, 1e-9)
        return float(max([(self._largest_reward + bonus) * horizon, *returns]))

    def _check_entropy(self, run: TrainingRun, values: dict[str, float]) -> None:
        entropy = values.get("train/entropy")
        if entropy is None or run.env_steps > run.progress.horizon / 2:
            return  # late in a run a nearly deterministic policy is what was to be learned
        lowest = collapsed_entropy(run.agent.adapter.spec, _field(run.batch, "legal"))
        if entropy < lowest:
            self._warn(
                run,
                "entropy",
                f"the policy hardly explores any more: its entropy is {entropy:.3g}, below "
                f"{lowest:.3g}. If returns are still low, it has collapsed. ",
                ("entropy_coef", "raise"),
                ("target_entropy", "raise"),
                ("learning_rate", "lower"),
            )

    def _check_actions(self, run: TrainingRun) -> None:
        action = _field(run.batch, "action")
        if action is None or not action.is_floating_point():
            return
        share = float((action.abs() >= ACTION_LIMIT).float().mean())
        if share > SATURATED_SHARE:
            self._warn(
                run,
                "actions",
                f"{share:.0%} of the latest batch's actions are at their limits: the actor is "
                "saturated and hardly learns, often because rewards or observations are large. ",
                ("reward_scale", "lower"),
                ("learning_rate", "lower"),
                ("normalize_observations", "set"),
            )

    def _ask_algorithm(self, run: TrainingRun) -> None:
        if "algorithm" in self._warned:
            return
        if text := run.algorithm.trouble(run.batch, run.collector.episodes):
            self._warned.add("algorithm")
            logger.warning("step %d: %s.", run.env_steps, text)

    def _warn(self, run: TrainingRun, sign: str, text: str, *settings: tuple[str, str]) -> None:
        """Warn once, with those settings that the run has."""
        if sign in self._warned:
            return
        self._warned.add(sign)
        known = {name: f"algo_kwargs.{name}" for name in type(run.hyper).model_fields}
        known |= {name: name for name in type(run.config).model_fields}
        advice = [f"{verb} {known[name]}" for name, verb in settings if name in known]
        logger.warning("step %d: %sTry to %s.", run.env_steps, text, " or ".join(advice))


def collapsed_entropy(spec: EnvSpec, legal: Tensor | None = None) -> float:
    """The entropy below which a policy hardly explores.

    Discrete: 1 % of that of uniform choices, of the legal ones if there are masks [..., A].
    Continuous: that of a normal distribution with 1 % of the actions' half range as its standard
    deviation.
    """
    if spec.action_kind == "continuous":
        return spec.action_dim * math.log(COLLAPSED_SHARE * math.sqrt(2 * math.pi * math.e))
    sizes = spec.action_sizes or (
        (spec.num_actions,) if spec.num_actions else (2,) * spec.action_dim
    )
    if legal is not None:
        counts = [part.sum(-1).double() for part in torch.split(legal, list(sizes), -1)]
        return COLLAPSED_SHARE * sum(float(count.log().mean()) for count in counts)
    return COLLAPSED_SHARE * sum(map(math.log, sizes))


def _field(batch: object, name: str) -> Tensor | None:
    value = getattr(batch, name, None)
    return value.detach() if isinstance(value, Tensor) and value.numel() else None
