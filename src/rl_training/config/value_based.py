"""Hyper-parameters of the value-based algorithms."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self, TypedDict

from rl_training.config.base import check
from rl_training.config.hyper_parameters import (
    OffPolicyHyperParameters,
    RecurrentConfig,
    TransitionHyperParameters,
)
from rl_training.config.schedule import LearningRate, Probability, Schedule
from rl_training.config.types import HiddenSizes

OptimizerName = Literal["adam", "rmsprop"]
TARGET_UPDATE_INTERVAL = 500


class ActionLayerOptions(TypedDict, total=False):
    """Options of the default network's layers."""

    dueling: bool
    noisy: bool
    layer_norm: bool


class ValueBasedConfig(OffPolicyHyperParameters):
    """Hyper-parameters of every value-based algorithm."""

    learning_rate: LearningRate = Field(2.5e-4, description="step size of the optimiser")
    replay_ratio: float = Field(
        0.25, gt=0, le=1000, description="gradient steps per environment transition"
    )
    epsilon: Probability = Field(
        Schedule(initial=1.0, final=0.05, fraction=0.1),
        description="probability of a random action while training",
    )
    double: bool = Field(
        False, description="double Q-learning: the online network selects the next action"
    )
    temperature: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="soft Q-learning: targets add this times the entropy of the next action, whose "
        "probabilities are the softmax of Q / temperature; 0 takes the best action alone",
    )
    dueling: bool = Field(
        False,
        description="dueling network: separate streams for state value and action advantages",
    )
    noisy: bool = Field(
        False,
        description="noisy last layers explore with learned noise; set epsilon to 0",
    )
    layer_norm: bool = Field(
        False,
        description="layer normalisation before each activation; keeps values from running away",
    )
    ema_decay: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="evaluation and predict act with a running average of the weights, of which "
        "this share stays at each update, such as 0.999; null acts with the weights themselves",
    )
    optimizer: OptimizerName = Field("adam", description="rmsprop is centred, as in the 2015 paper")
    optimizer_eps: float = Field(
        1e-8, gt=0, le=1, description="added to the optimiser's denominator"
    )
    max_grad_norm: float | None = Field(
        10.0, gt=0, le=1e6, description="bound on the gradient norm; null for none"
    )
    tau: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Polyak coefficient of the target network; 1 copies it every "
        "target_update_interval",
    )
    target_update_interval: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description=f"environment transitions between copies; null is {TARGET_UPDATE_INTERVAL}",
    )
    default_network_keys: ClassVar[tuple[str, ...]] = ("dueling", "noisy", "layer_norm")

    def layer_options(self) -> ActionLayerOptions:
        """The options of the default network's layers."""
        return {"dueling": self.dueling, "noisy": self.noisy, "layer_norm": self.layer_norm}

    @model_validator(mode="after")
    def _check_target_update(self) -> Self:
        check(
            self.tau == 1.0 or self.target_update_interval is None,
            "tau < 1 moves the target network at every update; leave target_update_interval out",
        )
        return self

    @model_validator(mode="after")
    def _check_normalized_layers(self) -> Self:
        activated = len(self.hidden_sizes) > 0 or self.dueling
        check(
            not self.layer_norm or self.network is not None or activated,
            "layer_norm needs a hidden layer to normalise, found none; give hidden_sizes",
        )
        return self


class TransitionValueBasedConfig(ValueBasedConfig, TransitionHyperParameters):
    """Hyper-parameters of the value-based algorithms that replay single transitions.

    DRQN replays sequences.
    """

    prioritized: bool = Field(
        False, description="samples transitions in proportion to a power of their last TD error"
    )
    priority_exponent: float = Field(
        0.6,
        gt=0,
        le=1,
        description="the paper's alpha, exponent of the TD error; 0 would be uniform",
    )
    priority_correction: Probability = Field(
        Schedule(initial=0.4, final=1.0),
        description="the paper's beta, importance-sampling exponent; 1 corrects the bias in full",
    )

    @model_validator(mode="after")
    def _check_priorities(self) -> Self:
        for name in self._changed(("priority_exponent", "priority_correction")):
            check(
                self.prioritized,
                f"expected prioritized: true beside {name}, which has no effect without it, found "
                f"{name} {getattr(self, name)}; set prioritized, or leave {name} out",
            )
        return self

    @model_validator(mode="after")
    def _check_dueling_layers(self) -> Self:
        check(
            not self.dueling or self.network is not None or len(self.hidden_sizes) > 0,
            "dueling gives each stream the last of hidden_sizes; give at least one",
        )
        return self


class DQNConfig(TransitionValueBasedConfig):
    """Hyper-parameters of DQN."""

    loss: Literal["huber", "mse"] = Field(
        "huber", description="loss of the temporal-difference error; mse is half its square"
    )


class QRDQNConfig(TransitionValueBasedConfig):
    """Hyper-parameters of QR-DQN."""

    num_quantiles: int = Field(200, ge=1, le=10_000, description="quantiles of each action")


class C51Config(TransitionValueBasedConfig):
    """Hyper-parameters of C51."""

    num_atoms: int = Field(51, ge=2, le=10_000, description="atoms of the return distribution")
    v_min: float = Field(-10.0, ge=-1e6, le=1e6, description="lowest atom")
    v_max: float = Field(10.0, ge=-1e6, le=1e6, description="highest atom")

    @model_validator(mode="after")
    def _check_support(self) -> Self:
        spacing = (self.v_max - self.v_min) / (self.num_atoms - 1)
        # Closer atoms have a distance that float32 knows to less than two digits.
        check(
            spacing > 1e-5 * max(abs(self.v_min), abs(self.v_max)),
            f"expected v_min below v_max, far enough for {self.num_atoms} distinct atoms, "
            f"found {self.v_min} and {self.v_max}; widen the range, or lower num_atoms",
        )
        return self


class DRQNConfig(ValueBasedConfig, RecurrentConfig):
    """Hyper-parameters of DRQN."""

    batch_size: int = Field(32, ge=1, le=1_000_000, description="sequences in one gradient step")
    hidden_sizes: HiddenSizes = Field((128,), description="hidden layers before the recurrent one")
    sequence_length: int = Field(
        16, ge=1, le=100_000, description="transitions of a sequence in the loss"
    )
    burn_in: int = Field(
        0, ge=0, le=100_000, description="steps before them that only warm up the recurrent state"
    )
    overlap: int = Field(
        0, ge=0, le=100_000, description="transitions a sequence shares with the next one"
    )
    initial_state: Literal["stored", "zero"] = Field(
        "stored",
        description="recurrent state a sequence starts from: the one it was played with, or zero",
    )
    n_step: int = Field(1, ge=1, le=1000, description="rewards summed before bootstrapping")
    loss: Literal["huber", "mse"] = Field(
        "huber", description="loss of the temporal-difference error; mse is half its square"
    )

    @model_validator(mode="after")
    def _check_sequence_length(self) -> Self:
        length = self.sequence_length
        check(
            self.overlap < length,
            f"overlap must be less than sequence_length, {length}; found {self.overlap}",
        )
        check(
            self.n_step <= length,
            f"n_step must be at most sequence_length, {length}; found {self.n_step}",
        )
        return self
