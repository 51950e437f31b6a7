"""Hyper-parameters of PPO, with a memory or without."""

from __future__ import annotations

from pydantic import Field

from rl_training.experiment.config import (
    HiddenSizes,
    LearningRate,
    OnPolicyHyperParameters,
    Probability,
)


class PPOConfig(OnPolicyHyperParameters):
    """Hyper-parameters of PPO."""

    learning_rate: LearningRate = Field(3e-4, description="step size of the optimiser")
    hidden_sizes: HiddenSizes = Field((64, 64), description="width of each hidden layer")
    clip_range: Probability = Field(0.2, description="how far the probability ratio may leave 1")
    value_clip_range: float | None = Field(None, gt=0, le=1e6, description="the same for values")
    value_coef: float = Field(0.5, ge=0, le=1e6, description="weight of the value loss")
    entropy_coef: float = Field(0.0, ge=0, le=1e6, description="weight of the entropy bonus")
    normalize_advantages: bool = Field(True, description="in each minibatch, to mean 0 and std 1")
    target_kl: float | None = Field(None, gt=0, le=1e6, description="updates end at 1.5 times it")
    max_grad_norm: float | None = Field(
        0.5, gt=0, le=1e6, description="bound on the norm of the gradient; null for none"
    )
    optimizer_eps: float = Field(1e-5, gt=0, le=1, description="Adam's epsilon")
    log_std_init: float = Field(0.0, ge=-20, le=2, description="of continuous actions, at first")
