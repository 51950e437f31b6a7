"""The typed configuration of a run: what to train, on what, for how long, and how it learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.experiment.config_base import ConfigModel, is_placeholder
from rl_training.experiment.config_mistakes import (
    ConfigMistakes,
    Mistake,
    check,
    listed,
    mistakes_in,
)
from rl_training.experiment.config_schedule import (
    LearningRate,
    Probability,
    Schedule,
    Scheduled,
    bounded_schedule,
    scheduled_value,
)
from rl_training.experiment.config_types import (
    CallbackName,
    Directory,
    EnvSource,
    Episodes,
    HiddenSizes,
    Interval,
    Memory,
    Network,
    Steps,
    Wrapper,
    parse_memory,
)
from rl_training.experiment.config_words import Expects, KeyPath, legal_paths

__all__ = [
    "COMPILE_FROM_UPDATES",
    "DEFAULT_BUFFER_SIZE",
    "GIVEN_TWICE",
    "LIFTED_KEYS",
    "ConfigMistakes",
    "ConfigModel",
    "HiddenSizes",
    "HyperParameters",
    "Interval",
    "LearningRate",
    "OffPolicyHyperParameters",
    "OnPolicyHyperParameters",
    "Probability",
    "Schedule",
    "Scheduled",
    "TrainConfig",
    "bounded_schedule",
    "check",
    "check_hyper_parameters",
    "config_paths",
    "is_placeholder",
    "lift_keys",
    "parse_memory",
    "scheduled_value",
]

DEFAULT_BUFFER_SIZE = 100_000
"""Transitions kept when neither `buffer_size` nor `replay_memory` is given."""

COMPILE_FROM_UPDATES = 500_000
"""Updates from which `execution: auto` compiles: by then compiling has repaid its start."""

LIFTED_KEYS = ("learning_starts", "target_update_interval")
"""Keys of `algo_kwargs` that may also stand at the top level."""

GIVEN_TWICE = "given here and in algo_kwargs; keep one of them"


class HyperParameters(ConfigModel):
    """What every algorithm has; the base of each algorithm's own model."""

    learning_rate: LearningRate = Field(1e-3, description="step size of the optimiser")
    gamma: float = Field(0.99, ge=0, le=1, description="discount of rewards per step")
    network: Network = Field(None, description="the user's own network in place of the default")
    hidden_sizes: HiddenSizes = Field((256, 256), description="width of each hidden layer")
    shaping: ClassVar[tuple[str, ...]] = ()
    """Options that shape the default network and would not shape another."""

    @model_validator(mode="after")
    def _options_shape_the_default_network(self) -> Self:
        defaults = type(self).model_fields
        found = [name for name in self.shaping if getattr(self, name) != defaults[name].default]
        check(
            self.network is None or not found,
            f"{', '.join(found)} would shape the default network; leave it out with a network of "
            "your own",
        )
        return self


class OffPolicyHyperParameters(HyperParameters):
    """What every algorithm that learns from replay has."""

    batch_size: int = Field(64, ge=1, le=1_000_000, description="transitions in one gradient step")
    buffer_size: int | None = Field(
        None, ge=1, le=10**10, description="transitions; 100000 unless replay_memory is given"
    )
    replay_memory: Memory = Field(
        None, description="size of the replay buffer in bytes, in place of buffer_size"
    )
    replay_ratio: float = Field(
        1.0, gt=0, le=1000, description="gradient steps per environment transition"
    )
    learning_starts: Interval = Field(
        1_000, description="environment transitions of random play before the first update"
    )
    reward_scale: float = Field(
        1.0, gt=0, le=1e6, description="factor of the rewards learned from, not of those reported"
    )

    @model_validator(mode="after")
    def _one_size_of_buffer(self) -> Self:
        both = self.buffer_size is not None and self.replay_memory is not None
        check(not both, "give buffer_size or replay_memory, not both")
        return self


class TransitionHyperParameters(OffPolicyHyperParameters):
    """What every algorithm that replays single transitions has."""

    n_step: int = Field(
        1, ge=1, le=1000, description="rewards summed before the value of what follows"
    )


class OnPolicyHyperParameters(HyperParameters):
    """What every algorithm that learns from its latest rollout has."""

    num_steps: int = Field(
        128, ge=1, le=1_000_000, description="steps of each environment between two updates"
    )
    batch_size: int = Field(
        256, ge=2, le=100_000_000, description="transitions in one gradient step"
    )
    epochs: int = Field(4, ge=1, le=1000, description="passes over each rollout")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="trace of the advantage estimate")


class TrainConfig(ConfigModel):
    """One training run; `algo_kwargs` is checked against the algorithm's own model by the loader.

    Totals and intervals count environment transitions. Mistakes raise one `ConfigError` that lists
    them all.
    """

    algo: Annotated[str, Expects("the name of an algorithm")] = Field(
        max_length=100, min_length=1, description="the algorithm"
    )
    env_id: EnvSource = Field(description="an id, package.module:Class, a callable, or an env")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="fixes every random number of the run")
    device: Annotated[str, Expects("auto, cpu, cuda, cuda:N or mps")] = Field(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$",
        description="where the networks are; auto takes CUDA where there is one",
    )
    output_dir: Directory = Field(
        "runs",
        pattern=r"^[^\x00-\x1f]*[^\x00-\x20][^\x00-\x1f]*$",
        max_length=4096,
        description="run directories are made in it",
    )
    run_name: Annotated[
        str | None,
        Expects(
            "up to 100 letters, digits, '.', '_' or '-', not starting with '.' or '-', or null"
        ),
    ] = Field(
        None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,99}$",
        description="name of the run directory; by default algorithm, environment, seed and time",
    )
    num_envs: int = Field(1, ge=1, le=4096, description="environments stepped together")
    vectorization: Literal["sync", "async", "native"] = Field(
        "sync",
        description="async runs each environment in a process of its own, native uses the vector "
        "implementation that the environment comes with, such as Atari's",
    )
    total_timesteps: Steps = Field(50_000, description="environment transitions of the whole run")
    eval_interval: Interval = Field(10_000, description="0 evaluates only at the end")
    eval_episodes: Episodes = Field(10, description="episodes of each evaluation but the last")
    final_eval_episodes: int = Field(100, ge=0, le=1_000_000, description="0 leaves it out")
    checkpoint_interval: Interval = Field(
        50_000, description="0 saves only at the end or when interrupted"
    )
    keep_checkpoints: int = Field(2, ge=1, le=1000, description="newest ones; the best stays too")
    log_interval: Steps = Field(
        1_000, description="environment transitions between two rows of the log"
    )
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        "auto",
        description="CPU threads; with one, packaged networks are computed by NumPy, with more by "
        "torch; auto takes one where more would not help, and for your own network torch's default",
    )
    execution: Literal["eager", "compiled", "auto"] = Field(
        "eager",
        description="compiled runs the gradient steps through torch.compile; auto does so for runs "
        f"of {COMPILE_FROM_UPDATES} updates and more, unless NumPy computes them, which is faster",
    )
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the environment"
    )
    eval_env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="those that differ in evaluations"
    )
    wrappers: tuple[Wrapper, ...] = Field(
        (), description="Gymnasium wrappers, the first one innermost"
    )
    callbacks: tuple[CallbackName, ...] = Field(
        (), description="what watches the run: QBias, StopOnReturn, or package.module:Class"
    )
    normalize_observations: bool = Field(
        False, description="to mean 0 and standard deviation 1, by running statistics"
    )
    normalize_rewards: bool = Field(
        False, description="by the running standard deviation of the return; on-policy only"
    )
    algo_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="the algorithm's hyper-parameters, see below"
    )

    def __init__(self, /, **values: Any) -> None:
        values, mistakes = lift_keys(values)
        try:
            super().__init__(**values)
        except ValidationError as error:
            mistakes += mistakes_in(error, type(self), values)
        if mistakes:
            raise listed(mistakes, config_paths(OffPolicyHyperParameters))

    def with_changes(self, **changes: Any) -> TrainConfig:
        """A copy with the given fields replaced; a lifted key changes only its own value."""
        lifted = {key: changes.pop(key) for key in LIFTED_KEYS if key in changes}
        values = {name: getattr(self, name) for name in self.model_fields_set} | changes
        if lifted:
            values["algo_kwargs"] = {**values.get("algo_kwargs", {}), **lifted}
        return TrainConfig(**values)


def lift_keys(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Mistake]]:
    """The values with the lifted keys inside `algo_kwargs`, and the keys given in both places."""
    lifted = {key: values[key] for key in LIFTED_KEYS if key in values}
    top = {key: value for key, value in values.items() if key not in lifted}
    inner = top.get("algo_kwargs", {})
    if not lifted or not isinstance(inner, Mapping):
        return top, []
    mistakes = [Mistake((key,), GIVEN_TWICE) for key in lifted if key in inner]
    top["algo_kwargs"] = {**lifted, **inner}
    return top, mistakes


def config_paths(model: type[HyperParameters]) -> list[KeyPath]:
    """Every legal key path of a configuration whose `algo_kwargs` are of the given model."""
    return [*legal_paths(TrainConfig), *legal_paths(model, ("algo_kwargs",))]


_Model = TypeVar("_Model", bound=HyperParameters)


def check_hyper_parameters(model: type[_Model], values: Mapping[str, Any]) -> _Model:
    """The `algo_kwargs` as the algorithm's model, or a `ConfigError` with every mistake."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        mistakes = mistakes_in(error, model, values, ("algo_kwargs",))
    raise listed(mistakes, config_paths(model))
