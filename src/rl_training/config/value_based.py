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
    buffer_size_text,
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

    learning_rate: LearningRate = Field(
        2.5e-4, description="step size of the optimiser (Mnih et al., 2015)"
    )
    replay_ratio: float = Field(
        0.25,
        gt=0,
        le=1000,
        description="gradient steps per environment transition (Mnih et al., 2015)",
    )
    hidden_sizes: HiddenSizes = Field(
        (256, 256), description="width of each hidden layer (this package's)"
    )
    epsilon: Probability = Field(
        Schedule(initial=1.0, final=0.05, fraction=0.1),
        description="probability of a random action while training (this package's; Mnih et al., "
        "2015, end at 0.1)",
    )
    double: bool = Field(
        False, description="double Q-learning: the online network selects the next action"
    )
    temperature: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="soft Q-learning: targets add this times the entropy of the next action, whose "
        "probabilities are the softmax of Q / temperature; 0 takes the best action alone (Mnih et "
        "al., 2015)",
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
    optimizer: OptimizerName = Field(
        "adam",
        description="rmsprop is PyTorch's, centred and with decay 0.95; unlike that of Mnih et al. "
        "(2015) it adds optimizer_eps outside the root",
    )
    optimizer_eps: float = Field(
        1e-8, gt=0, le=1, description="added to the optimiser's denominator (PyTorch's for Adam)"
    )
    max_grad_norm: float | None = Field(
        10.0,
        gt=0,
        le=1e6,
        description="bound on the gradient norm; null for none (Stable-Baselines3)",
    )
    tau: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Polyak coefficient of the target network; 1 copies it every "
        "target_update_interval (Mnih et al., 2015)",
    )
    target_update_interval: int | None = Field(
        None,
        ge=1,
        le=10**12,
        description=f"environment transitions between copies; null is {TARGET_UPDATE_INTERVAL} "
        "(CleanRL, for CartPole)",
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
        description="alpha of Schaul et al. (2016), exponent of the TD error; 0 would be uniform",
    )
    priority_correction: Probability = Field(
        Schedule(initial=0.4, final=1.0),
        description="beta of Schaul et al. (2016), importance-sampling exponent; 1 corrects the "
        "bias in full",
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

    num_quantiles: int = Field(
        200, ge=1, le=10_000, description="quantiles of each action (Dabney et al., 2018)"
    )


class C51Config(TransitionValueBasedConfig):
    """Hyper-parameters of C51."""

    num_atoms: int = Field(
        51,
        ge=2,
        le=10_000,
        description="atoms of the return distribution (Bellemare et al., 2017)",
    )
    v_min: float = Field(
        -10.0,
        ge=-1e6,
        le=1e6,
        description="lowest atom (Bellemare et al., 2017, with rewards clipped to [-1, 1])",
    )
    v_max: float = Field(10.0, ge=-1e6, le=1e6, description="highest atom, of the same source")

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

    buffer_size: int | None = Field(
        None, ge=1, le=10**10, description=buffer_size_text("100,000", "this package's")
    )
    default_buffer_size: ClassVar[int] = 100_000
    batch_size: int = Field(
        32, ge=1, le=1_000_000, description="sequences in one gradient step (this package's)"
    )
    hidden_sizes: HiddenSizes = Field(
        (128,), description="hidden layers before the recurrent one (this package's)"
    )
    sequence_length: int = Field(
        16, ge=1, le=100_000, description="transitions of a sequence in the loss (this package's)"
    )
    burn_in: int = Field(
        0,
        ge=0,
        le=100_000,
        description="steps before them that only warm up the recurrent state (Hausknecht & Stone, "
        "2015)",
    )
    overlap: int = Field(
        0,
        ge=0,
        le=100_000,
        description="transitions a sequence shares with the next one (Hausknecht & Stone, 2015)",
    )
    initial_state: Literal["stored", "zero"] = Field(
        "stored",
        description="recurrent state a sequence starts from: the one it was played with, or zero",
    )
    n_step: int = Field(
        1, ge=1, le=1000, description="rewards summed before bootstrapping (Mnih et al., 2015)"
    )
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
