"""Hyper-parameters of PPO, feed-forward and recurrent."""

from __future__ import annotations

from pydantic import Field, model_validator
from typing_extensions import Self

from rl_training.config.base import check
from rl_training.config.hyper_parameters import OnPolicyHyperParameters, RecurrentConfig
from rl_training.config.schedule import LearningRate, Probability
from rl_training.config.types import HiddenSizes


class PPOConfig(OnPolicyHyperParameters):
    """Hyper-parameters of PPO; defaults follow Schulman et al. (2017), Table 3."""

    learning_rate: LearningRate = Field(
        3e-4, description="step size of the optimiser (Schulman et al., 2017)"
    )
    hidden_sizes: HiddenSizes = Field(
        (64, 64), description="width of each hidden layer (Schulman et al., 2017)"
    )
    clip_range: Probability = Field(
        0.2,
        description="bound on the distance of the probability ratio from 1 (Schulman et al., 2017)",
    )
    value_clip_range: float | None = Field(
        None, gt=0, le=1e6, description="bound on the change of values; null for none"
    )
    value_coef: float = Field(
        0.5, ge=0, le=1e6, description="weight of the value loss (OpenAI Baselines)"
    )
    entropy_coef: float = Field(
        0.0, ge=0, le=1e6, description="weight of the entropy bonus (Schulman et al., 2017)"
    )
    normalize_advantages: bool = Field(
        True, description="in each minibatch, to mean 0 and standard deviation 1"
    )
    target_kl: float | None = Field(
        None, gt=0, le=1e6, description="the epochs of a rollout end at 1.5 times this divergence"
    )
    max_grad_norm: float | None = Field(
        0.5,
        gt=0,
        le=1e6,
        description="bound on the gradient norm; null for none (OpenAI Baselines)",
    )
    optimizer_eps: float = Field(1e-5, gt=0, le=1, description="Adam's epsilon (OpenAI Baselines)")
    log_std_init: float = Field(
        0.0,
        ge=-20,
        le=2,
        description="initial log standard deviation of continuous actions (OpenAI Baselines)",
    )


class RecurrentPPOConfig(PPOConfig, RecurrentConfig):
    """Hyper-parameters of recurrent PPO."""

    hidden_sizes: HiddenSizes = Field(
        (64,), description="hidden layers before the recurrent one (this package's)"
    )
    batch_size: int = Field(
        128,
        ge=2,
        le=100_000_000,
        description="transitions in one gradient step (sb3-contrib's RecurrentPPO)",
    )
    shared_core: bool = Field(False, description="one recurrent layer for policy and value")
    sequence_length: int = Field(
        32,
        ge=1,
        le=1_000_000,
        description="longest sequence that a rollout is cut into (this package's)",
    )

    @property
    def state_sizes(self) -> tuple[int, ...]:
        """Sizes of the parts of the policy state: the policy's, then the value's."""
        return super().state_sizes * (1 if self.shared_core else 2)

    @model_validator(mode="after")
    def _check_batch_size(self) -> Self:
        length = min(self.sequence_length, self.num_steps or self.sequence_length)
        check(
            self.batch_size >= length,
            f"batch_size must be at least the length of a sequence, {length}; found "
            f"{self.batch_size}",
        )
        return self
