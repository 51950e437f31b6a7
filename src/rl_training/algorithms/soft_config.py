"""Hyper-parameters that SAC, TQC, REDQ and DrQ share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from rl_training.data.types import EnvSpec
from rl_training.experiment.config import (
    HiddenSizes,
    LearningRate,
    TransitionHyperParameters,
    check,
)

Auto = Literal["auto"]


class SoftActorCriticConfig(TransitionHyperParameters):
    """Hyper-parameters of every algorithm with a soft actor and critics."""

    learning_rate: LearningRate = Field(3e-4, description="step size of all optimisers")
    batch_size: int = Field(256, ge=1, le=1_000_000, description="transitions in one gradient step")
    critic_hidden_sizes: HiddenSizes | None = Field(
        None, description="width of the critics' hidden layers; null takes hidden_sizes"
    )
    num_critics: int = Field(2, ge=1, le=1000, description="critics in the ensemble")
    tau: float = Field(0.005, gt=0, le=1, description="how far the target critics move per update")
    policy_delay: int = Field(
        1, ge=1, le=100_000, description="updates of the critics for one of the actor"
    )
    alpha: Auto | Annotated[float, Field(ge=0, le=1e6)] = Field(
        "auto", description="weight of the entropy; auto learns it to reach target_entropy"
    )
    initial_alpha: float = Field(1.0, gt=0, le=1e6, description="where alpha: auto starts")
    target_entropy: Auto | Annotated[float, Field(ge=-1e6, le=1e6)] = Field(
        "auto", description="entropy to keep; auto is minus the number of action dimensions"
    )
    optimizer_eps: float = Field(
        1e-8, gt=0, le=1, description="Adam's epsilon, for actor and critics"
    )
    max_grad_norm: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="bound on the norm of the actor's gradient, and of all critics' together",
    )
    xavier: ClassVar[bool] = False
    """Whether networks start as Glorot & Bengio (2010) have it, and not as PyTorch does."""

    shaping: ClassVar[tuple[str, ...]] = ("critic_hidden_sizes",)

    @model_validator(mode="after")
    def _what_is_said_of_a_learned_alpha_is_for_one(self) -> Self:
        defaults = type(self).model_fields
        names = ("initial_alpha", "target_entropy")
        found = [name for name in names if getattr(self, name) != defaults[name].default]
        check(
            self.alpha == "auto" or not found,
            f"{' and '.join(found)} would have no effect beside a fixed alpha, {self.alpha}; leave "
            "it out or set alpha: auto",
        )
        return self

    @property
    def critic_sizes(self) -> HiddenSizes:
        """The critics' hidden layers."""
        own = self.critic_hidden_sizes
        return self.hidden_sizes if own is None else own

    @property
    def critic_outputs(self) -> int:
        """Numbers each critic gives for an action."""
        return 1

    @property
    def actor_interval(self) -> int:
        """Updates of the critics for one of the actor."""
        return self.policy_delay

    def entropy_for(self, spec: EnvSpec) -> float:
        """The entropy to keep in an environment."""
        return -float(spec.action_dim) if self.target_entropy == "auto" else self.target_entropy


class VectorCriticsConfig(SoftActorCriticConfig):
    """Those whose critics see vectors."""

    layer_norm: bool = Field(False, description="normalises the critics' hidden layers")
    dropout: float = Field(0.0, ge=0, lt=1, description="share of the critics' units left out")
    shaping: ClassVar[tuple[str, ...]] = ("layer_norm", "dropout", "critic_hidden_sizes")

    @model_validator(mode="after")
    def _there_are_layers_to_normalise(self) -> Self:
        check(
            not (self.layer_norm or self.dropout) or len(self.critic_sizes) > 0,
            "layer_norm and dropout go into the critics' hidden layers; give at least one",
        )
        return self
