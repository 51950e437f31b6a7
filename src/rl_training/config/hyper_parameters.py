"""The hyper-parameters that families of algorithms share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from rl_training.config.base import ConfigModel, check
from rl_training.config.schedule import LearningRate
from rl_training.config.types import HiddenSizes, Interval, Memory, Network

ROLLOUT = 2048
"""Transitions of a rollout when `num_steps` is not given, shared among the environments."""

LEAST_ROLLOUT_STEPS = 32
"""Steps of each environment in such a rollout, however many there are."""


def buffer_size_text(size: str, source: str) -> str:
    """The description of `buffer_size`: its default, whose that is, and what limits it."""
    return (
        f"transitions; null is {size} ({source}), or as many as half of the available memory "
        "holds, unless replay_memory is given"
    )


class HyperParameters(ConfigModel):
    """The base of every algorithm's hyper-parameters."""

    learning_rate: LearningRate = Field(
        1e-3, description="step size of the optimiser (PyTorch's for Adam)"
    )
    gamma: float = Field(
        0.99, ge=0, le=1, description="discount of rewards per step (Mnih et al., 2015)"
    )
    network: Network = Field(None, description="a custom network in place of the default one")
    hidden_sizes: HiddenSizes = Field(
        (256, 256), description="width of each hidden layer (Haarnoja et al., 2018)"
    )
    batch_size: int = Field(
        64, ge=1, le=1_000_000, description="transitions in one gradient step (this package's)"
    )
    default_network_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that configure the default network, which a custom one would ignore."""

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Sizes of the parts of the policy state; a feed-forward policy has none."""
        return ()

    def _changed(self, names: Iterable[str]) -> list[str]:
        """Those of the fields whose values are not their defaults."""
        fields = type(self).model_fields
        return [name for name in names if getattr(self, name) != fields[name].default]

    @model_validator(mode="after")
    def _check_default_network_keys(self) -> Self:
        ignored = self._changed(self.default_network_keys)
        check(
            self.network is None or not ignored,
            f"{', '.join(ignored)} configure the default network and have no effect on a custom "
            "one; leave them out",
        )
        return self


class OffPolicyHyperParameters(HyperParameters):
    """Hyper-parameters of every algorithm that learns from replay."""

    buffer_size: int | None = Field(
        None, ge=1, le=10**10, description=buffer_size_text("1,000,000", "Mnih et al., 2015")
    )
    replay_memory: Memory = Field(
        None, description="size of the replay buffer in bytes, in place of buffer_size"
    )
    replay_ratio: float = Field(
        1.0,
        gt=0,
        le=1000,
        description="gradient steps per environment transition (Haarnoja et al., 2018)",
    )
    learning_starts: Interval = Field(
        1_000,
        description="environment transitions of random play before the first update (this "
        "package's)",
    )
    reward_scale: float = Field(
        1.0,
        gt=0,
        le=1e6,
        description="factor of the rewards learned from, not of those reported (1 is none)",
    )
    default_buffer_size: ClassVar[int] = 1_000_000
    """Transitions kept if memory allows, when neither of the two says how many."""

    @model_validator(mode="after")
    def _check_buffer_size(self) -> Self:
        both = self.buffer_size is not None and self.replay_memory is not None
        check(not both, "give buffer_size or replay_memory, not both")
        return self


class TransitionHyperParameters(OffPolicyHyperParameters):
    """Hyper-parameters of every algorithm that replays single transitions."""

    n_step: int = Field(
        1, ge=1, le=1000, description="rewards summed before bootstrapping (Mnih et al., 2015)"
    )


class OnPolicyHyperParameters(HyperParameters):
    """Hyper-parameters of every algorithm that learns from its latest rollout."""

    num_steps: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description=f"steps of each environment between two updates; null is {ROLLOUT} (Schulman "
        f"et al., 2017) divided by num_envs, and at least {LEAST_ROLLOUT_STEPS}",
    )
    batch_size: int = Field(
        64,
        ge=2,
        le=100_000_000,
        description="transitions in one gradient step (Schulman et al., 2017)",
    )
    epochs: int = Field(
        10, ge=1, le=1000, description="passes over each rollout (Schulman et al., 2017)"
    )
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="trace of the advantage estimate (Schulman et al., 2017)"
    )

    def rollout_steps(self, num_envs: int) -> int:
        """Steps of each environment between two updates."""
        return self.num_steps or max(LEAST_ROLLOUT_STEPS, ROLLOUT // num_envs)


class RecurrentConfig(HyperParameters):
    """Hyper-parameters of every recurrent policy."""

    core: Literal["lstm", "gru"] = Field("lstm", description="the recurrent layer")
    core_size: int = Field(
        128, ge=1, le=65_536, description="width of the recurrent layer (this package's)"
    )

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Sizes of the parts of the policy state."""
        return (self.core_size,) * (2 if self.core == "lstm" else 1)
