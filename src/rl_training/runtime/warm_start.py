"""What another run has learned as the beginning of a new one: `init_from`.

Read is data alone: tensors and numbers, into networks that this run's own configuration builds, so
that nothing the other run names is needed, neither its environment nor trust in it. Random
generators and counters are always the new run's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor, nn

from rl_training.algorithms.optimization import Optimizer, TargetNetwork
from rl_training.config.hyper_parameters import OffPolicyHyperParameters
from rl_training.config.train_config import TrainConfig
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError
from rl_training.runtime.agent import Agent, saved_adapter
from rl_training.runtime.assembly import Components
from rl_training.runtime.saved_info import saved_info
from rl_training.runtime.zoo import find_agent
from rl_training.storage.checkpoints import Checkpoint, find_checkpoint
from rl_training.storage.state import Stateful, load_into

logger = logging.getLogger("rl_training")


class SavedBuffer(Protocol):
    """Any buffer, as far as it is saved."""

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved buffer."""

    def __len__(self) -> int:
        """How much is in it."""


_ASK = "init_parts does not ask for it"


@dataclass(frozen=True)
class WarmStart:
    """What a new run takes from a checkpoint; `taken` and `left` list it, by part."""

    checkpoint: Checkpoint
    parts: tuple[str, ...]
    settings: Mapping[str, Any]
    taken: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, config: TrainConfig) -> WarmStart | None:
        """The checkpoint that `init_from` names, verified; None if it names none."""
        if config.init_from is None:
            return None
        needed = ["agent", "spaces", *(["replay"] if "replay" in config.init_parts else [])]
        with _named(config.init_from):
            checkpoint = find_checkpoint(find_agent(config.init_from), parts=needed)
        return cls(checkpoint, config.init_parts, config.to_plain()["algo_kwargs"])

    def into_agent(self, agent: Agent) -> None:
        """Take over weights, optimisers and the statistics of observations."""
        with _named(self.checkpoint.path):
            self._check_spaces(agent)
            saved = self.checkpoint.read("agent")
            if not isinstance(saved, dict) or not {"algorithm", "normalizer"} <= saved.keys():
                raise CheckpointError("expected an agent of algorithm and normalizer, found others")
            self._normalizer(agent, saved["normalizer"])
            try:
                self._algorithm(agent.algorithm, saved["algorithm"], "")
            except CheckpointError as error:
                raise CheckpointError(f"{self._origin}: {error}; {self._advice(agent)}") from error

    def into_buffer(self, agent: Agent, buffer: SavedBuffer) -> None:
        """Take over the replay, and the statistics of rewards."""
        with _named(self.checkpoint.path):
            if isinstance(buffer, RolloutBuffer):
                self._reward_statistics(buffer)
            if "replay" not in self.parts:
                if issubclass(agent.spec.loop.hyper, OffPolicyHyperParameters):
                    self.left["replay"] = _ASK
                return
            if not issubclass(agent.spec.loop.hyper, OffPolicyHyperParameters):
                raise ConfigError(
                    f"init_parts: {agent.spec.name} learns from its latest rollout and keeps no "
                    "replay; leave out replay"
                )
            saved = self.checkpoint.read("replay")
            if isinstance(saved, dict) and "rng" in saved:
                saved = {**saved, "rng": buffer.state_dict()["rng"]}  # runs with other seeds differ
            # A custom buffer need not know how to take over one of another shape.
            take_over = getattr(buffer, "take_over", buffer.load_state_dict)
            try:
                take_over(saved)
            except CheckpointError as error:
                raise CheckpointError(
                    f"replay: {error}. Or leave replay out of init_parts"
                ) from error
            self.taken["replay"] = f"{len(buffer):,} entries"

    def lines(self) -> list[str]:
        """The list for people to read."""
        return [
            f"begins with {self._origin}",
            *(f"  {part}: taken ({what})" for part, what in self.taken.items()),
            *(f"  {part}: not taken, {why}" for part, why in self.left.items()),
            "  random generators and counters: this run's own",
        ]

    def record(self) -> dict[str, Any]:
        """The list for the run's metadata."""
        info = saved_info(self.checkpoint)
        return {
            "checkpoint": str(self.checkpoint.path),
            "algo": info.algo,
            "env_id": info.env_id,
            "env_steps": self.checkpoint.env_steps,
            "taken": dict(self.taken),
            "not_taken": dict(self.left),
        }

    @property
    def _origin(self) -> str:
        info, steps = saved_info(self.checkpoint), self.checkpoint.env_steps
        return f"the {info.algo} agent of {self.checkpoint.path} ({info.env_id}, {steps:,} steps)"

    def _advice(self, agent: Agent) -> str:
        theirs = saved_info(self.checkpoint).config.get("algo_kwargs")
        theirs = theirs if isinstance(theirs, dict) else {}
        differing = [
            f"{key} {theirs[key]} (here {value})"
            for key, value in self.settings.items()
            if key in theirs and theirs[key] != value
        ]
        settings = f": it has {', '.join(differing)}" if differing else ""
        return f"give this {agent.spec.name} the network of that agent{settings}"

    def _check_spaces(self, agent: Agent) -> None:
        saved, adapter = saved_adapter(self.checkpoint, agent.spec), agent.adapter
        fits = replace(saved.spec, env_id=adapter.spec.env_id) == adapter.spec
        for name in ("observation", "action"):
            theirs, ours = getattr(saved, name), getattr(adapter, name)
            if theirs == ours:
                continue
            if not fits:
                raise CheckpointError(
                    f"{self._origin}: {name} space: expected {ours} as in {adapter.spec.env_id}, "
                    f"found {theirs}; weights go on only in an environment with spaces of the same "
                    "shape: choose another agent, or wrap the environment"
                )
            logger.warning(
                "init_from: the %s spaces have the same shape but other bounds: %s then, %s now",
                name,
                theirs,
                ours,
            )

    def _normalizer(self, agent: Agent, saved: object) -> None:
        wanted, normalizes = agent.normalizer.state_dict(), bool(saved)
        if normalizes and not wanted and "weights" in self.parts:
            raise ConfigError(
                "normalize_observations: expected true, as the weights are of a network that was "
                "trained on normalised observations, found false; set it"
            )
        if not wanted:
            return
        if not normalizes:
            self.left["normalizer"] = "that run did not normalise observations"
        elif "normalizer" not in self.parts:
            self.left["normalizer"] = _ASK
        else:
            load_into(agent.normalizer, saved, "normalizer")
            self.taken["normalizer"] = "statistics of the observations"

    def _reward_statistics(self, buffer: RolloutBuffer) -> None:
        saved = self.checkpoint.read("replay") if self.checkpoint.has("replay") else {}
        saved = saved.get("reward_normalizer") if isinstance(saved, dict) else None
        if "normalizer" in self.parts and saved is not None and buffer.take_reward_moments(saved):
            self.taken["reward normalizer"] = "statistics of the returns"

    def _algorithm(self, live: Stateful, saved: object, path: str) -> None:
        """Walk through the stateful parts: networks and what belongs to them, by kind."""
        if not isinstance(saved, dict):
            raise CheckpointError(f"{path or 'algorithm'}: expected a mapping, found another value")
        for key, part in live.state_parts().items():
            where, theirs = f"{path}.{key}" if path else key, saved.get(key)
            kind = _kind(part)
            if kind is None:
                continue
            if theirs is None and isinstance(part, TargetNetwork) and "weights" in self.parts:
                part.copy_source()
                self.taken[where] = "a copy of the weights, as that agent has none"
            elif isinstance(part, Stateful) and not isinstance(part, Optimizer):
                self._algorithm(part, theirs, where)
            elif kind not in self.parts:
                self.left[where] = _ASK
            elif theirs is None:
                raise CheckpointError(f"{where}: expected {kind} of this name, found none")
            else:
                load_into(part, theirs, where)
                self.taken[where] = _described(part)
        parts = live.state_parts()
        for key, theirs in saved.items():
            if theirs is not None and parts.get(key) is None:
                self.left[f"{path}.{key}" if path else key] = "this run has no such part"


def begin_with(config: TrainConfig, components: Components) -> WarmStart | None:
    """Take over what the configuration asks for, and log it; None if it asks for nothing."""
    start = WarmStart.find(config)
    if start is not None:
        start.into_agent(components.agent)
        start.into_buffer(components.agent, components.buffer)
        for line in start.lines():
            logger.info(line)
    return start


@contextmanager
def _named(source: object) -> Iterator[None]:
    """Context whose errors say that they are about `init_from`; none gets out as another kind."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"init_from: {error}") from error
    except RLTrainingError:
        raise
    except Exception as error:  # a forged part may fail in any way that Python knows
        raise CheckpointError(
            f"init_from: {source} does not fit ({type(error).__name__}: {error}); it was written "
            "by another version, or changed since"
        ) from error


def _kind(part: object) -> str | None:
    """To which of `init_parts` a part of an algorithm belongs; None for generators and counters."""
    if isinstance(part, Optimizer):
        return "optimizer"
    if isinstance(part, nn.Module | Tensor):
        return "weights"
    if isinstance(part, Stateful) and any(map(_kind, part.state_parts().values())):
        return "weights"
    return None


def _described(part: object) -> str:
    if isinstance(part, nn.Module):
        return f"{sum(tensor.numel() for tensor in part.state_dict().values()):,} numbers"
    return "its moments" if isinstance(part, Optimizer) else "1 number"
