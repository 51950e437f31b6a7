"""Hyper-parameters that the value-based algorithms share."""

from __future__ import annotations

from pydantic import Field, model_validator
from typing_extensions import Self

from rl_training.algorithms.optimization import OptimizerName
from rl_training.experiment.config import (
    LearningRate,
    OffPolicyHyperParameters,
    Probability,
    Schedule,
    TransitionHyperParameters,
    check,
)

TARGET_UPDATE_INTERVAL = 500


class QLearningConfig(OffPolicyHyperParameters):
    """Hyper-parameters of every algorithm that acts greedily on values."""

    learning_rate: LearningRate = Field(2.5e-4, description="step size of the optimiser")
    replay_ratio: float = Field(
        0.25, gt=0, le=1000, description="gradient steps per environment transition"
    )
    epsilon: Probability = Field(
        Schedule(initial=1.0, final=0.05, fraction=0.1),
        description="share of random actions while training",
    )
    double: bool = Field(False, description="choose the next action with the online network")
    dueling: bool = Field(False, description="separate streams for values and advantages")
    optimizer: OptimizerName = Field(
        "adam", description="rmsprop is the centred one of the 2015 paper"
    )
    optimizer_eps: float = Field(
        1e-8, gt=0, le=1, description="added to the denominator of the optimiser"
    )
    max_grad_norm: float | None = Field(
        10.0, gt=0, le=1e6, description="bound on the norm of the gradient; null for none"
    )
    tau: float = Field(1.0, gt=0, le=1, description="1 copies the target network, less follows it")
    target_update_interval: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description=f"environment transitions between copies; null is {TARGET_UPDATE_INTERVAL}",
    )

    @model_validator(mode="after")
    def _one_way_to_update_the_target(self) -> Self:
        check(
            self.tau == 1.0 or self.target_update_interval is None,
            "tau < 1 moves the target network at every update; leave target_update_interval out",
        )
        return self

    @model_validator(mode="after")
    def _streams_are_of_the_default_network(self) -> Self:
        check(
            not (self.dueling and self.network is not None),
            "dueling shapes the default network; leave it out with a network of your own",
        )
        return self


class ValueBasedConfig(QLearningConfig, TransitionHyperParameters):
    """Those that learn from single transitions."""

    prioritized: bool = Field(False, description="replay what was predicted worst more often")
    priority_exponent: float = Field(
        0.6, gt=0, le=1, description="0 would replay uniformly, 1 in proportion to the error"
    )
    priority_correction: Probability = Field(
        Schedule(initial=0.4, final=1.0),
        description="exponent of the importance weights; 1 undoes the bias in full",
    )

    @model_validator(mode="after")
    def _priorities_are_used(self) -> Self:
        for name in ("priority_exponent", "priority_correction"):
            value = getattr(self, name)
            untouched = value == type(self).model_fields[name].default
            check(
                self.prioritized or untouched,
                f"expected prioritized: true beside {name}, which has no effect without it, found "
                f"{name} {value}; set prioritized, or leave {name} out",
            )
        return self

    @model_validator(mode="after")
    def _streams_have_a_layer(self) -> Self:
        check(
            not self.dueling or self.network is not None or len(self.hidden_sizes) > 0,
            "dueling gives each stream the last of hidden_sizes; give at least one",
        )
        return self
