"""The typed configuration of a run: what to train, on what, for how long, and how it learns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.config.base import ConfigModel, check
from rl_training.config.hyper_parameters import HyperParameters, OffPolicyHyperParameters
from rl_training.config.messages import (
    Expects,
    KeyPath,
    Mistake,
    legal_paths,
    list_mistakes,
    read_mistakes,
)
from rl_training.config.types import (
    ActionName,
    CallbackName,
    CheckpointPath,
    Directory,
    EnvSource,
    Episodes,
    EvalEnvSource,
    Interval,
    Steps,
    Wrapper,
)

COMPILE_FROM_UPDATES = 500_000
"""Updates from which `execution: auto` compiles: enough to repay the time compiling takes."""

EVALUATIONS = 10
"""How often `eval_interval: auto` evaluates after the beginning of a run."""
SHORTEST_EVAL_INTERVAL = 1_000
"""What `eval_interval: auto` is at least: in shorter ones evaluations take longer than training."""

WATCH_KEYS = frozenset(
    {
        "output_dir",
        "run_name",
        "eval_interval",
        "checkpoint_minutes",
        "keep_checkpoints",
        "on_save_error",
        "log_interval",
        "env_timeout",
        "action_names",
    }
)
"""Keys that say how a run is watched and kept, and change nothing that it learns or reaches."""

LIFTED_KEYS = ("learning_starts", "target_update_interval")
"""Keys of `algo_kwargs` that may also stand at the top level."""

GIVEN_TWICE = "given here and in algo_kwargs; keep one of them"


class TrainConfig(ConfigModel):
    """One training run; the loader checks `algo_kwargs` against the algorithm's model.

    Totals and intervals count environment transitions. Mistakes raise one `ConfigError` that lists
    them all.
    """

    algo: Annotated[str, Expects("the name of an algorithm or package.module:SPEC")] = Field(
        max_length=500, min_length=1, description="the algorithm: a name, or package.module:SPEC"
    )
    env_id: EnvSource = Field(
        description="environment id, package.module:Class, a callable, or an environment"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, description="seed of every random number of the run")
    device: Annotated[str, Expects("auto, cpu, cuda, cuda:N or mps")] = Field(
        "auto",
        pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,3})?)$",
        description="device of the networks; auto is CUDA if available, else the CPU",
    )
    output_dir: Directory = Field(
        "runs",
        pattern=r"^[^\x00-\x1f]*[^\x00-\x20][^\x00-\x1f]*$",
        max_length=4096,
        description="parent of the run directories",
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
    num_envs: int = Field(1, ge=1, le=4096, description="environments stepped in parallel")
    vectorization: Literal["sync", "async", "native"] = Field(
        "sync",
        description="async runs the environments in as many processes as there are cores, native "
        "uses the vector implementation that the environment comes with, such as Atari's",
    )
    env_timeout: float = Field(
        600.0,
        gt=0,
        le=1e6,
        description="seconds an environment may take to answer before the run is saved and ended: "
        "in a worker process (async) always, in this process after a signal",
    )
    total_timesteps: Steps = Field(50_000, description="environment transitions of the whole run")
    eval_interval: Literal["auto"] | Interval = Field(
        "auto",
        description="environment transitions between two evaluations, the first of which precedes "
        f"training; auto is a tenth of total_timesteps, at least {SHORTEST_EVAL_INTERVAL:_}; 0 "
        "evaluates only at the end",
    )
    eval_episodes: Episodes = Field(
        10, description="episodes of each point of the curve, the same ones every time"
    )
    final_eval_episodes: int = Field(
        100,
        ge=0,
        le=1_000_000,
        description="episodes of the evaluation at the end, which begin with those of the curve; 0 "
        "skips it",
    )
    max_eval_steps: Steps = Field(
        100_000,
        description="steps after which an evaluation episode is cut, with a warning; a training "
        "episode that exceeds them is warned of",
    )
    checkpoint_interval: Interval = Field(
        50_000, description="environment transitions between two checkpoints; 0 for none by steps"
    )
    checkpoint_minutes: float = Field(
        5.0,
        ge=0,
        le=100_000,
        description="minutes without a checkpoint after which one is due as well; 0 for none by "
        "time",
    )
    keep_checkpoints: int = Field(
        2, ge=1, le=1000, description="newest checkpoints kept; the best is kept too"
    )
    on_save_error: Literal["stop", "warn"] = Field(
        "stop",
        description="whether a run goes on, with a warning, when a checkpoint or a row of its log "
        "cannot be written; the last checkpoint and the result are always reported",
    )
    log_interval: Steps = Field(
        1_000, description="environment transitions between two rows of the log"
    )
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = Field(
        "auto",
        description="CPU threads; with one, packaged networks are computed by NumPy, with more by "
        "torch; auto takes one where more would not help, and torch's default for custom networks",
    )
    execution: Literal["eager", "compiled", "auto"] = Field(
        "eager",
        description="compiled runs the gradient steps through torch.compile; auto does so for runs "
        f"of {COMPILE_FROM_UPDATES} updates and more, unless NumPy computes them, which is faster",
    )
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="keyword arguments of the environment"
    )
    eval_env: EvalEnvSource = Field(
        None,
        description="environment of evaluations: an id, package.module:Class or a callable; by "
        "default a second one of env_id",
    )
    eval_env_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="keyword arguments that differ in evaluations, or those of eval_env",
    )
    wrappers: tuple[Wrapper, ...] = Field((), description="Gymnasium wrappers, the innermost first")
    action_names: tuple[ActionName, ...] = Field(
        (),
        max_length=10_000,
        description="names of the actions for pictures and tables, one for each choice, or each "
        "dimension; by default the environment's attribute action_names, if it has one",
    )
    callbacks: tuple[CallbackName, ...] = Field(
        (), description="callbacks of the run: QBias, StopOnReturn, Video, or package.module:Class"
    )
    normalize_observations: bool = Field(
        False, description="to mean 0 and standard deviation 1, by running statistics"
    )
    normalize_rewards: bool = Field(
        False, description="by the running standard deviation of the return; on-policy only"
    )
    init_from: CheckpointPath = Field(
        None,
        max_length=4096,
        description="a run, checkpoint or saved agent that this run begins with",
    )
    init_parts: tuple[Literal["weights", "normalizer", "optimizer", "replay"], ...] = Field(
        ("weights", "normalizer"), min_length=1, description="what is taken from init_from"
    )
    algo_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="the algorithm's hyper-parameters, see below"
    )

    def __init__(self, /, **values: object) -> None:
        values, mistakes = lift_keys(values)
        try:
            super().__init__(**values)
        except ValidationError as error:
            mistakes += read_mistakes(error, type(self), values)
        if mistakes:
            raise list_mistakes(mistakes, config_paths(OffPolicyHyperParameters))

    @model_validator(mode="after")
    def _check_init_parts(self) -> Self:
        parts = type(self).model_fields["init_parts"].default
        check(
            self.init_from is not None or self.init_parts == parts,
            "init_parts: has no effect without init_from; leave it out",
        )
        return self

    @property
    def effective_eval_interval(self) -> int:
        """The environment transitions between two evaluations; 0 if there are none before the end.

        What `auto` stands for follows the budget, so that a curve has ten points after its first.
        """
        if self.eval_interval == "auto":
            return max(SHORTEST_EVAL_INTERVAL, -(-self.total_timesteps // EVALUATIONS))
        return self.eval_interval

    def with_changes(self, **changes: object) -> TrainConfig:
        """A copy with the given fields replaced; a lifted key changes one of `algo_kwargs`."""
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
        mistakes = read_mistakes(error, model, values, ("algo_kwargs",))
    raise list_mistakes(mistakes, config_paths(model))
