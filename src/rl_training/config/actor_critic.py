"""Hyper-parameters of the off-policy actor-critics."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from rl_training.config.base import check
from rl_training.config.hyper_parameters import TransitionHyperParameters, buffer_size_text
from rl_training.config.schedule import LearningRate, Schedule, Scheduled, bounded_schedule
from rl_training.config.types import HiddenSizes, Interval

Auto = Literal["auto"]


class SoftActorCriticConfig(TransitionHyperParameters):
    """Hyper-parameters of every algorithm with a soft actor and critics."""

    learning_rate: LearningRate = Field(
        3e-4, description="step size of all optimisers (Haarnoja et al., 2018)"
    )
    batch_size: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="transitions in one gradient step (Haarnoja et al., 2018)",
    )
    buffer_size: int | None = Field(
        None, ge=1, le=10**10, description=buffer_size_text("1,000,000", "Haarnoja et al., 2018")
    )
    critic_hidden_sizes: HiddenSizes | None = Field(
        None, description="width of the critics' hidden layers; null takes hidden_sizes"
    )
    num_critics: int = Field(
        2, ge=1, le=1000, description="critics in the ensemble (Haarnoja et al., 2018)"
    )
    tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Polyak coefficient of the target critics (Haarnoja et al., 2018)",
    )
    policy_delay: int = Field(
        1, ge=1, le=100_000, description="critic updates per actor update (Haarnoja et al., 2018)"
    )
    alpha: Auto | Annotated[float, Field(ge=0, le=1e6)] = Field(
        "auto",
        description="weight of the entropy; auto adapts it to target_entropy (Haarnoja et al., "
        "2018)",
    )
    initial_alpha: float = Field(
        1.0, gt=0, le=1e6, description="first value of alpha: auto (the authors' code of SAC)"
    )
    target_entropy: Auto | Annotated[float, Field(ge=-1e6, le=1e6)] = Field(
        "auto",
        description="entropy of the policy; auto is minus the number of action dimensions "
        "(Haarnoja et al., 2018)",
    )
    optimizer_eps: float = Field(
        1e-8, gt=0, le=1, description="Adam's epsilon, for actor and critics (PyTorch's)"
    )
    max_grad_norm: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="bound on the gradient norm: one for the actor, one for all critics jointly",
    )
    xavier: ClassVar[bool] = False
    """Whether networks are initialised as in Glorot & Bengio (2010), not by PyTorch's default."""

    default_network_keys: ClassVar[tuple[str, ...]] = ("critic_hidden_sizes",)

    @model_validator(mode="after")
    def _check_learned_alpha(self) -> Self:
        ignored = self._changed(("initial_alpha", "target_entropy"))
        check(
            self.alpha == "auto" or not ignored,
            f"{' and '.join(ignored)} would have no effect beside a fixed alpha, {self.alpha}; "
            "leave it out or set alpha: auto",
        )
        return self

    @property
    def critic_sizes(self) -> HiddenSizes:
        """The critics' hidden layers."""
        sizes = self.critic_hidden_sizes
        return self.hidden_sizes if sizes is None else sizes

    @property
    def critic_outputs(self) -> int:
        """Outputs of each critic per action."""
        return 1

    @property
    def has_dropout(self) -> bool:
        """Whether the critics have dropout."""
        return False

    @property
    def effective_policy_delay(self) -> int:
        """`policy_delay`; REDQ derives it from the replay ratio if it is not given."""
        return self.policy_delay

    def target_entropy_for(self, action_dim: int) -> float:
        """The target entropy of a policy with `action_dim` action dimensions."""
        return -float(action_dim) if self.target_entropy == "auto" else self.target_entropy


class VectorCriticsConfig(SoftActorCriticConfig):
    """Hyper-parameters of the soft actor-critics of vector observations."""

    layer_norm: bool = Field(False, description="layer normalisation in the critics")
    dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout probability in the critics (Haarnoja et al., 2018)"
    )
    default_network_keys: ClassVar[tuple[str, ...]] = (
        "layer_norm",
        "dropout",
        "critic_hidden_sizes",
    )

    @property
    def has_dropout(self) -> bool:
        """Whether the critics have dropout."""
        return self.dropout > 0

    @model_validator(mode="after")
    def _check_critic_layers(self) -> Self:
        check(
            not (self.layer_norm or self.dropout) or len(self.critic_sizes) > 0,
            "layer_norm and dropout need a hidden layer in the critics, found none; give "
            "critic_hidden_sizes",
        )
        return self


class SACConfig(VectorCriticsConfig):
    """Hyper-parameters of SAC."""


class TQCConfig(VectorCriticsConfig):
    """Hyper-parameters of TQC."""

    num_critics: int = Field(
        5, ge=1, le=1000, description="critics in the ensemble (Kuznetsov et al., 2020)"
    )
    num_quantiles: int = Field(
        25, ge=1, le=10_000, description="quantiles of each critic (Kuznetsov et al., 2020)"
    )
    dropped_quantiles: int = Field(
        2,
        ge=0,
        le=10_000,
        description="highest quantiles dropped from a target, per critic (Kuznetsov et al., 2020)",
    )

    @property
    def critic_outputs(self) -> int:
        """Outputs of each critic per action."""
        return self.num_quantiles

    @model_validator(mode="after")
    def _check_dropped_quantiles(self) -> Self:
        check(
            self.dropped_quantiles < self.num_quantiles,
            f"dropped_quantiles must be less than num_quantiles, {self.num_quantiles}; found "
            f"{self.dropped_quantiles}",
        )
        return self


class REDQConfig(VectorCriticsConfig):
    """Hyper-parameters of REDQ."""

    num_critics: int = Field(
        10, ge=1, le=1000, description="critics in the ensemble (Chen et al., 2021)"
    )
    subset_size: int = Field(
        2,
        ge=1,
        le=1000,
        description="random critics in the minimum of a target (Chen et al., 2021)",
    )
    replay_ratio: float = Field(
        20.0,
        gt=0,
        le=1000,
        description="gradient steps per environment transition (Chen et al., 2021)",
    )
    policy_delay: int | None = Field(  # type: ignore[assignment]
        None,
        ge=1,
        le=100_000,
        description="critic updates per actor update; null is replay_ratio (Chen et al., 2021)",
    )
    learning_starts: Interval = Field(
        5_000,
        description="environment transitions of random play before the first update (Chen et al., "
        "2021)",
    )

    xavier: ClassVar[bool] = True

    @model_validator(mode="after")
    def _check_subset_size(self) -> Self:
        check(
            self.subset_size <= self.num_critics,
            f"subset_size must be at most num_critics, {self.num_critics}; found "
            f"{self.subset_size}",
        )
        return self

    @property
    def effective_policy_delay(self) -> int:
        """`policy_delay`; by default one actor update per transition."""
        return self.policy_delay or max(1, round(self.replay_ratio))


class ShiftedImagesConfig(TransitionHyperParameters):
    """Hyper-parameters of every algorithm that augments images by random shifts."""

    hidden_sizes: HiddenSizes = Field(
        (1024, 1024), description="hidden layers after the encoder (Kostrikov et al., 2020)"
    )
    encoder: Literal["drq", "nature"] = Field(
        "drq", description="the four convolutions of the paper, or the three of Mnih et al."
    )
    feature_size: int = Field(
        50, ge=1, le=65_536, description="outputs of the encoder (Kostrikov et al., 2020)"
    )
    pad: int = Field(
        4,
        ge=0,
        le=1000,
        description="largest shift of an image in pixels; 0 is none (Kostrikov et al., 2020)",
    )


class DrQConfig(ShiftedImagesConfig, SoftActorCriticConfig):
    """Hyper-parameters of DrQ."""

    buffer_size: int | None = Field(
        None, ge=1, le=10**10, description=buffer_size_text("100,000", "Kostrikov et al., 2020")
    )
    default_buffer_size: ClassVar[int] = 100_000
    learning_rate: LearningRate = Field(
        1e-3, description="step size of all optimisers (Kostrikov et al., 2020)"
    )
    batch_size: int = Field(
        128,
        ge=1,
        le=1_000_000,
        description="transitions in one gradient step (the authors' code)",
    )
    policy_delay: int = Field(
        2, ge=1, le=100_000, description="critic updates per actor update (Kostrikov et al., 2020)"
    )
    alpha: Auto | Annotated[float, Field(ge=0, le=1e6)] = Field(
        0.1,
        description="weight of the entropy (this package's); auto adapts it to target_entropy, as "
        "Kostrikov et al. do",
    )
    initial_alpha: float = Field(
        0.1, gt=0, le=1e6, description="first value of alpha: auto (Kostrikov et al., 2020)"
    )
    tied_convolutions: bool = Field(
        False,
        description="the actor uses the critics' convolutions and does not train them",
    )
    default_network_keys: ClassVar[tuple[str, ...]] = (
        "critic_hidden_sizes",
        "encoder",
        "feature_size",
        "tied_convolutions",
    )
    num_augmentations: int = Field(
        2,
        ge=1,
        le=100,
        description="augmented copies of an observation in the critics' loss (Kostrikov et al., "
        "2020)",
    )
    num_target_augmentations: int = Field(
        2,
        ge=1,
        le=100,
        description="augmented copies of the next observation that a target averages (Kostrikov "
        "et al., 2020)",
    )


class DeterministicConfig(TransitionHyperParameters):
    """Hyper-parameters of every algorithm with a deterministic actor."""

    learning_rate: LearningRate = Field(
        3e-4, description="step size of all optimisers (the authors' code of TD3)"
    )
    batch_size: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="transitions in one gradient step (the authors' code of TD3)",
    )
    buffer_size: int | None = Field(
        None, ge=1, le=10**10, description=buffer_size_text("1,000,000", "the authors' code")
    )
    num_critics: int = Field(
        2, ge=1, le=1000, description="critics in the ensemble (Fujimoto et al., 2018)"
    )
    tau: float = Field(
        0.005,
        gt=0,
        le=1,
        description="Polyak coefficient of the target networks (Fujimoto et al., 2018)",
    )
    noise: Annotated[Scheduled, bounded_schedule(0, 100)] = Field(
        0.1,
        description="standard deviation of the exploration noise on actions in [-1, 1] (Fujimoto "
        "et al., 2018)",
    )
    noise_clip: float = Field(
        0.5, gt=0, le=100, description="bound on the noise in targets (Fujimoto et al., 2018)"
    )


class TD3Config(DeterministicConfig):
    """Hyper-parameters of TD3; defaults follow the authors' code (Fujimoto et al., 2018)."""

    critic_hidden_sizes: HiddenSizes | None = Field(
        None, description="width of the critics' hidden layers; null takes hidden_sizes"
    )
    learning_starts: Interval = Field(
        25_000,
        description="environment transitions of random play before the first update (the authors' "
        "code)",
    )
    policy_delay: int = Field(
        2,
        ge=1,
        le=100_000,
        description="updates of the critics for one of actor and targets (Fujimoto et al., 2018)",
    )
    target_noise: float = Field(
        0.2,
        ge=0,
        le=100,
        description="standard deviation of the noise that smooths target actions (Fujimoto et al., "
        "2018)",
    )
    layer_norm: bool = Field(False, description="normalises the critics' hidden layers")
    default_network_keys: ClassVar[tuple[str, ...]] = ("critic_hidden_sizes", "layer_norm")
    dropout: ClassVar[float] = 0.0

    @model_validator(mode="after")
    def _check_critic_layers(self) -> Self:
        check(
            not self.layer_norm or len(self.critic_sizes) > 0,
            "layer_norm needs a hidden layer in the critics, found none; give critic_hidden_sizes",
        )
        return self

    @property
    def critic_sizes(self) -> HiddenSizes:
        """The critics' hidden layers."""
        return self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes

    @property
    def critic_outputs(self) -> int:
        """Numbers each critic gives for an action."""
        return 1


class DrQv2Config(ShiftedImagesConfig, DeterministicConfig):
    """Hyper-parameters of DrQ-v2."""

    learning_rate: LearningRate = Field(
        1e-4, description="step size of all optimisers (Yarats et al., 2021)"
    )
    batch_size: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="transitions in one gradient step (Yarats et al., 2021)",
    )
    n_step: int = Field(
        3, ge=1, le=1000, description="rewards summed before bootstrapping (Yarats et al., 2021)"
    )
    replay_ratio: float = Field(
        0.5,
        gt=0,
        le=1000,
        description="gradient steps per environment transition (Yarats et al., 2021)",
    )
    learning_starts: Interval = Field(
        2_000,
        description="environment transitions of random play before the first update (Yarats et "
        "al., 2021)",
    )
    num_critics: int = Field(
        2, ge=1, le=1000, description="critics in the ensemble (Yarats et al., 2021)"
    )
    tau: float = Field(
        0.01,
        gt=0,
        le=1,
        description="Polyak coefficient of the target critics (Yarats et al., 2021)",
    )
    noise: Annotated[Scheduled, bounded_schedule(0, 100)] = Field(
        Schedule(initial=1.0, final=0.1, fraction=0.2),
        description="standard deviation of the exploration noise (Yarats et al., 2021, for tasks "
        "of medium difficulty)",
    )
    noise_clip: float = Field(
        0.3,
        gt=0,
        le=100,
        description="bound on the noise in the target and in the actor's loss (Yarats et al., "
        "2021)",
    )
    default_network_keys: ClassVar[tuple[str, ...]] = ("encoder", "feature_size")
