"""Hyper-parameters of PPO, feed-forward and recurrent."""

from __future__ import annotations

from pydantic import Field, model_validator
from typing_extensions import Self

from rl_training.config.base import check
from rl_training.config.hyper_parameters import OnPolicyHyperParameters, RecurrentConfig
from rl_training.config.schedule import LearningRate, Probability
from rl_training.config.types import HiddenSizes


class PPOConfig(OnPolicyHyperParameters):
    """Hyper-parameters of PPO."""

    learning_rate: LearningRate = Field(3e-4, description="step size of the optimiser")
    hidden_sizes: HiddenSizes = Field((64, 64), description="width of each hidden layer")
    clip_range: Probability = Field(
        0.2, description="bound on the distance of the probability ratio from 1"
    )
    value_clip_range: float | None = Field(
        None, gt=0, le=1e6, description="bound on the change of values; null for none"
    )
    value_coef: float = Field(0.5, ge=0, le=1e6, description="weight of the value loss")
    entropy_coef: float = Field(0.0, ge=0, le=1e6, description="weight of the entropy bonus")
    normalize_advantages: bool = Field(
        True, description="in each minibatch, to mean 0 and standard deviation 1"
    )
    target_kl: float | None = Field(
        None, gt=0, le=1e6, description="the epochs of a rollout end at 1.5 times this divergence"
    )
    max_grad_norm: float | None = Field(
        0.5, gt=0, le=1e6, description="bound on the gradient norm; null for none"
    )
    optimizer_eps: float = Field(1e-5, gt=0, le=1, description="Adam's epsilon")
    log_std_init: float = Field(
        0.0, ge=-20, le=2, description="initial log standard deviation of continuous actions"
    )


class RecurrentPPOConfig(PPOConfig, RecurrentConfig):
    """Hyper-parameters of recurrent PPO."""

    hidden_sizes: HiddenSizes = Field((64,), description="hidden layers before the recurrent one")
    shared_core: bool = Field(False, description="one recurrent layer for policy and value")
    sequence_length: int = Field(
        32, ge=1, le=1_000_000, description="longest sequence that a rollout is cut into"
    )

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Sizes of the parts of the policy state: the policy's, then the value's."""
        return super().state_sizes * (1 if self.shared_core else 2)

    @model_validator(mode="after")
    def _check_batch_size(self) -> Self:
        length = min(self.sequence_length, self.num_steps)
        check(
            self.batch_size >= length,
            f"batch_size must be at least the length of a sequence, {length}; found "
            f"{self.batch_size}",
        )
        return self
