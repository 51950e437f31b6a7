"""The algorithms by name or import path, and what can be done with one: train, load, resume.

Finding an algorithm or completing a configuration imports no torch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.hyper_parameters import HyperParameters
from rl_training.config.imports import import_object
from rl_training.config.loading import LoadedConfig, load_config, packaged_configs
from rl_training.config.messages import show_value
from rl_training.config.train_config import TrainConfig, check_hyper_parameters
from rl_training.errors import (
    CheckpointError,
    ConfigError,
    TrustError,
    UsageError,
    described,
    did_you_mean,
)
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import (
    add_spec,
    all_specs,
    find_spec,
    import_path,
    portable_name,
    register,
)

if TYPE_CHECKING:
    from rl_training.runtime.agent import Agent
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.result import TrainResult
    from rl_training.storage.checkpoints import Checkpoint

ACTING_PARTS = ("agent", "spaces")
"""The parts of a checkpoint that acting needs."""

logger = logging.getLogger("rl_training")


def get_spec(algo: str) -> AlgorithmSpec:
    """The algorithm of that name, or the one at `package.module:NAME`.

    One found by its path is known by its name from then on.
    """
    if ":" in algo:
        return _import_spec(algo)
    spec = find_spec(algo)
    if spec is None:
        names = all_specs()
        raise ConfigError(
            f"expected one of {', '.join(names)}, or package.module:SPEC, found {algo!r}"
            + did_you_mean(algo, names)
        )
    return spec


def resolve_config(
    source: str | Path | Mapping[str, Any] | TrainConfig | None,
    *,
    overrides: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
) -> LoadedConfig:
    """A complete configuration from a file, packaged name or mapping, with what overrides it.

    Its `algo` leads to the algorithm from any process, if anything does.
    """

    def hyper_model(algo: str) -> type[HyperParameters]:
        return get_spec(algo).hyper

    loaded = load_config(source, overrides=overrides, arguments=arguments, hyper_model=hyper_model)
    algo = _reference(get_spec(loaded.config.algo))
    return replace(loaded, config=loaded.config.with_changes(algo=algo))


def resolve_command(
    name: str | None, env: str | None = None, settings: Sequence[str] = ()
) -> LoadedConfig:
    """The configuration that a command names: a packaged one, a file, or an algorithm with `env`.

    `env` also replaces the environment of a configuration.
    """
    overrides = [*settings, *([] if env is None else [f"env_id={json.dumps(env)}"])]
    if name is None:
        raise UsageError(
            "expected a configuration or an algorithm with --env, found neither; such as "
            "dqn/cartpole, or ppo --env CartPole-v1: `rl-training list` shows them"
        )
    if name in packaged_configs() or _is_file(name):
        return resolve_config(name, overrides=overrides)
    if ":" in name or name in all_specs():
        if not any(setting.partition("=")[0].strip() == "env_id" for setting in overrides):
            known = [config for config in packaged_configs() if config.startswith(f"{name}/")]
            ready = f", or take a packaged configuration: {', '.join(known)}" if known else ""
            raise UsageError(f"{name} is an algorithm: name its environment with --env{ready}")
        # On top of nothing, so that its values count as those of the command line.
        return resolve_config(None, overrides=[f"algo={json.dumps(name)}", *overrides])
    hint = did_you_mean(name, [*all_specs(), *packaged_configs()], count=3)
    raise UsageError(
        "expected a packaged configuration, a file or an algorithm, found "
        f"{show_value(name)}{hint or '; `rl-training list` shows them'}"
    )


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False


def train_config(
    config: TrainConfig,
    *,
    callbacks: Sequence[Callback] = (),
    resume: str | Path | None = None,
    auto_resume: bool = False,
    stop_at: int | None = None,
) -> TrainResult:
    """Train with the algorithm the configuration names."""
    from rl_training.runtime.train import train

    return train(
        get_spec(config.algo),
        config,
        callbacks=callbacks,
        resume=resume,
        auto_resume=auto_resume,
        stop_at=stop_at,
    )


def open_checkpoint(
    path: str | Path,
    *,
    best: bool = False,
    algo: AlgorithmSpec | None = None,
    parts: Collection[str] | None = ACTING_PARTS,
    trust: bool = False,
) -> tuple[Checkpoint, TrainConfig]:
    """A checkpoint and its configuration; `algo` refuses any other algorithm's.

    Acting needs only small parts, so only those are verified; None verifies the replay too. The
    budget is the one the run directory plans, which may be an extension since the checkpoint. A
    new run directory would lie beside the run's, never where the file says. Unless the checkpoint
    is trusted, placeholders stand where it names code (`runtime.trust`).
    """
    from rl_training.runtime.resume import located, run_directory_of
    from rl_training.runtime.saved_info import saved_info
    from rl_training.runtime.trust import without_beginning, without_untrusted
    from rl_training.storage.checkpoints import find_checkpoint

    checkpoint = located(find_checkpoint(Path(path), best=best, parts=parts))
    spec = saved_spec(checkpoint, algo, trust=trust)
    saved = without_beginning(saved_info(checkpoint).config)
    try:
        config = _saved_config(saved if trust else without_untrusted(saved), spec)
    except ConfigError as error:
        raise CheckpointError(
            f"{checkpoint.path}: its configuration cannot be used: {error}"
        ) from error
    run_directory = run_directory_of(checkpoint)
    home = TrainConfig.model_fields["output_dir"].default
    changes: dict[str, Any] = {"output_dir": str(run_directory.parent) if run_directory else home}
    total = None if run_directory is None else _planned_total(run_directory, spec)
    if total is not None and total >= checkpoint.env_steps:
        changes["total_timesteps"] = total
    return checkpoint, config.with_changes(**changes)


def saved_spec(
    checkpoint: Checkpoint, given: AlgorithmSpec | None = None, *, trust: bool = False
) -> AlgorithmSpec:
    """The algorithm of a checkpoint: the given one, or the one known by its name.

    One that is not known is imported from its path if the checkpoint is trusted. Nothing else turns
    what a checkpoint says of its algorithm into code.
    """
    from rl_training.runtime.saved_info import saved_info

    info = saved_info(checkpoint)
    name, path = info.algo, info.algo_path
    if given is not None:
        if given.name != name:
            raise CheckpointError(
                f"{checkpoint.path} was trained with {name}, not {given.name}; load it with the "
                f"class or command for {name}"
            )
        register(given)
        return _known_by_name(checkpoint, given, path)
    try:
        known = find_spec(name)
        if known is not None:
            return _known_by_name(checkpoint, known, path)
        if path is not None and not trust:
            raise TrustError(
                f"{checkpoint.path} was trained with the algorithm {name!r} at {path!r}, which is "
                "neither part of rl_training nor known here, and was not imported. In Python, pass "
                "it yourself: rl_training.algorithm_class(SPEC).load(path). If you trust whoever "
                "wrote the run, add --trust, or trust=True in Python"
            )
        if path is not None:
            imported = _import_spec(path)
            if imported.name == name:
                return imported
            raise ConfigError(f"{path} is now named {imported.name!r}")
    except ConfigError as error:
        raise CheckpointError(
            f"{checkpoint.path} was trained with the algorithm {name!r}, which cannot be loaded: "
            f"{error}"
        ) from error
    raise CheckpointError(
        f"{checkpoint.path} was trained with the algorithm {name!r}, which is not known here and "
        "was not stored with an import path; in Python, call rl_training.register(SPEC) first, or "
        "load it with rl_training.algorithm_class(SPEC)"
    )


def _known_by_name(checkpoint: Checkpoint, spec: AlgorithmSpec, path: str | None) -> AlgorithmSpec:
    """The spec; a warning if the checkpoint's was another, or the same at another place."""
    here = import_path(spec)
    if path is not None and here is not None and here != path:
        logger.warning(
            "%s was trained with the algorithm at %s; here %r is the one at %s, which is used",
            checkpoint.path,
            path,
            spec.name,
            here,
        )
    return spec


def load_agent(checkpoint: Checkpoint, config: TrainConfig) -> Agent:
    """The agent a checkpoint holds, built for the spaces it was saved with.

    It acts on the CPU where the device of its training is missing.
    """
    from rl_training.fast.accelerate import accelerate
    from rl_training.runtime.agent import build_agent, resolve_device, saved_adapter
    from rl_training.runtime.execution import threads
    from rl_training.runtime.saved_info import saved_info
    from rl_training.storage.checkpoints import loading_part

    spec, info = get_spec(config.algo), saved_info(checkpoint)
    hyper = check_hyper_parameters(spec.hyper, config.algo_kwargs)
    adapter = saved_adapter(checkpoint, spec)
    try:
        resolve_device(config.device)
    except ConfigError as error:
        logger.warning("%s; the agent acts on the CPU", error)
        config = config.with_changes(device="cpu")
    with threads(config, info.threads):
        with loading_part(checkpoint, "agent"):
            agent = build_agent(spec, config, hyper, adapter, checkpoint)
        agent.restore(checkpoint)
        # As in its run: what is compiled, or has several threads, rounds in other places.
        agent.algorithm.execution = info.execution
        accelerate(agent.algorithm)
    agent.set_progress(checkpoint.env_steps, config.total_timesteps)
    return agent


def _import_spec(path: str) -> AlgorithmSpec:
    """The spec at an import path, whose name is known from then on."""
    try:
        spec = import_object(path)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(spec, AlgorithmSpec):
        raise ConfigError(
            f"{path}: expected an AlgorithmSpec, found {described(spec)}; declare one, such as "
            "SPEC = dataclasses.replace(DQN_SPEC, name=..., algorithm=...)"
        )
    add_spec(spec, path)
    return spec


def _reference(spec: AlgorithmSpec) -> str:
    return portable_name(spec) or spec.name


def _saved_config(source: Mapping[str, Any] | Path, spec: AlgorithmSpec) -> TrainConfig:
    """A saved configuration, whose `algo` is not looked up: its spec is known."""
    return load_config(
        source, arguments={"algo": _reference(spec)}, hyper_model=lambda _: spec.hyper
    ).config


def _planned_total(run_directory: Path, spec: AlgorithmSpec) -> int | None:
    path = run_directory / "config.yaml"
    try:
        if path.is_symlink():
            raise ConfigError(f"{path} is a symbolic link, which may lead out of the run")
        return _saved_config(path, spec).total_timesteps
    except ConfigError as error:
        logger.warning("the configuration of the checkpoint is used: %s", error)
        return None
