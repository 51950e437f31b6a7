"""Builds environments from whatever names or makes one, and vector environments of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, TypeAlias

import gymnasium as gym
import gymnasium.wrappers
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from rl_training.envs.imports import import_module, import_object, nearest
from rl_training.envs.native_vector_env import OneOfVector
from rl_training.envs.registered import (
    build_error,
    make_native,
    make_registered,
    registering_module,
)
from rl_training.envs.snapshots import SnapshotEnvMaker
from rl_training.envs.sync_vector_env import QuickSyncVectorEnv
from rl_training.errors import ConfigError, EnvError, MissingExtra, RLTrainingError

Env: TypeAlias = gym.Env[Any, Any]
Venv: TypeAlias = VectorEnv[Any, Any, Any]
EnvSource: TypeAlias = str | Callable[..., Env] | Env | Venv
Wrapper: TypeAlias = str | Mapping[str, Mapping[str, Any]]

_OWN_WRAPPERS = "rl_training.envs.wrappers"

VECTORIZATIONS = ("sync", "async", "native")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class _MadeVectorEnv(ConfigError):
    """A source made a vector environment where a single one was asked for."""

    def __init__(self, source: EnvSource, venv: Venv) -> None:
        super().__init__(f"{_name(source)} made a vector environment; expected a single one here")
        self.venv = venv


def make_env(
    source: EnvSource,
    *,
    env_kwargs: Mapping[str, Any] = NOTHING,
    wrappers: Sequence[Wrapper] = (),
    vectorization: str = "sync",
) -> Env:
    """One environment: from a Gymnasium id, `package.module:Class`, a callable, or as it was given.

    A time limit is applied only if the id was registered with one. Wrappers go on in their order,
    the last one outermost. With `native` vectorization it is one of the id's own vector
    implementation.
    """
    if vectorization == "native":
        return OneOfVector(_native(source, 1, env_kwargs, wrappers))
    if isinstance(source, (gym.Env, VectorEnv)):
        _refuse_options(source, env_kwargs, wrappers)
        env: object = source
    else:
        env = _build(source, dict(env_kwargs))
    if isinstance(env, VectorEnv):
        raise _MadeVectorEnv(source, env)
    if not isinstance(env, gym.Env):
        raise ConfigError(
            f"{_name(source)} made a {type(env).__module__}.{type(env).__qualname__}; expected a "
            "gymnasium.Env"
        )
    for wrapper in wrappers:
        env = _wrap(env, wrapper)
    return env


def make_vector_env(
    source: EnvSource,
    *,
    num_envs: int,
    vectorization: str = "sync",
    env_kwargs: Mapping[str, Any] = NOTHING,
    wrappers: Sequence[Wrapper] = (),
) -> Venv:
    """Environments stepped together, reset within the step that ends an episode (SAME_STEP).

    `native` takes the vector implementation that an environment comes with, as it resets. An
    environment that is already built counts as one. A vector environment, built or made by a
    callable, is taken as it is; `num_envs` must then be its number, or 1 for "not said".
    """
    if isinstance(source, VectorEnv):
        _refuse_options(source, env_kwargs, wrappers)
        return _checked_number(source, num_envs)
    if isinstance(source, gym.Env) and num_envs != 1:
        raise ConfigError(
            f"num_envs: {_name(source)} is one built environment, so num_envs must be 1, found "
            f"{num_envs}; pass a callable that builds it"
        )
    if vectorization not in VECTORIZATIONS:
        raise ConfigError(
            f"vectorization: expected one of {', '.join(VECTORIZATIONS)}, found {vectorization!r}"
        )
    if vectorization == "native":
        return _native(source, num_envs, env_kwargs, wrappers)
    make = partial(make_env, source, env_kwargs=env_kwargs, wrappers=wrappers)
    makers = [SnapshotEnvMaker(make, index) for index in range(num_envs)]
    try:
        if vectorization == "async":
            return AsyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
        return QuickSyncVectorEnv(makers)
    except _MadeVectorEnv as made:
        _refuse_options(made.venv, {}, wrappers)
        return _checked_number(made.venv, num_envs)
    except RLTrainingError:
        raise
    except (EOFError, ConnectionError) as error:
        # Without its traceback, which would keep the half-built vector env and its workers alive.
        raise EnvError(
            f"{_name(source)} could not be built in a worker process, which ended; its error is "
            "printed above. vectorization: sync builds all environments in this process."
        ) from error.with_traceback(None)
    except Exception as error:
        raise build_error(_name(source), error) from error


def _native(
    source: EnvSource, num_envs: int, env_kwargs: Mapping[str, Any], wrappers: Sequence[Wrapper]
) -> Venv:
    if not isinstance(source, str):
        raise ConfigError(
            f"vectorization: native is for ids of Gymnasium, found {_name(source)}; use sync or "
            "async"
        )
    if wrappers:
        raise ConfigError(
            f"wrappers: expected none with vectorization native, found {list(wrappers)}; the "
            "environment's own preprocessing is set by env_kwargs"
        )
    module, colon, name = source.partition(":")
    if colon:
        registering_module(module)
    return make_native(name if colon else source, num_envs, env_kwargs)


def _build(source: str | Callable[..., Env], kwargs: dict[str, Any]) -> object:
    if not isinstance(source, str):
        return _call(source, _name(source), kwargs)
    module_name, colon, name = source.partition(":")
    if not colon:
        return make_registered(source, kwargs)
    module = registering_module(module_name)
    if name in gym.registry and not hasattr(module, name):
        return make_registered(name, kwargs)  # Gymnasium's own `module:Env-v0`
    return _call(import_object(source), source, kwargs)


def _call(make: Any, name: str, kwargs: dict[str, Any]) -> object:
    if not callable(make):
        raise ConfigError(
            f"env_id: {name} is a {type(make).__name__}; expected a class or function"
        )
    _check_arguments(make, name, kwargs)
    try:
        return make(**kwargs)
    except RLTrainingError:
        raise
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise MissingExtra(f"{name} needs a package that is not installed: {error}") from error
    except Exception as error:
        raise build_error(name, error) from error


def _check_arguments(make: Callable[..., Any], name: str, kwargs: dict[str, Any]) -> None:
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):  # some callables written in C have none
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise ConfigError(f"env_kwargs: {name}: {error}; its arguments are: {takes}") from error


def _wrap(env: Env, wrapper: Wrapper) -> Env:
    name, kwargs = (wrapper, {}) if isinstance(wrapper, str) else _only_item(wrapper)
    try:
        make = import_object(name) if ":" in name else _wrapper_class(name)
        wrapped = make(env, **kwargs)
    except RLTrainingError:
        raise
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise MissingExtra(f"the wrapper {name} needs a package: {error}") from error
    except Exception as error:
        raise ConfigError(
            f"wrappers: {name} with arguments {dict(kwargs)} cannot wrap {env}: {error}"
        ) from error
    if not isinstance(wrapped, gym.Env):
        raise ConfigError(f"wrappers: {name} made a {type(wrapped).__name__}, not a gymnasium.Env")
    return wrapped


def _only_item(wrapper: Mapping[str, Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    if len(wrapper) != 1:
        raise ConfigError(f"wrappers: expected one name with its arguments, found {dict(wrapper)}")
    ((name, kwargs),) = wrapper.items()
    return name, kwargs


def _wrapper_class(name: str) -> Callable[..., object]:
    known = dict.fromkeys(gymnasium.wrappers.__all__, gymnasium.wrappers)
    known.pop("vector", None)  # the package of wrappers for vector environments
    try:
        own = import_module(_OWN_WRAPPERS)
        known |= dict.fromkeys((n for n, v in vars(own).items() if _is_wrapper(v)), own)
    except ConfigError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
    if name not in known:
        close = nearest(name, list(known))
        hint = f" (did you mean {close!r}?)" if close else ""
        raise ConfigError(
            f"wrappers: there is no wrapper {name!r} in {_OWN_WRAPPERS} or gymnasium.wrappers{hint}"
            "; one of your own is written package.module:Class"
        )
    wrapper: Callable[..., object] = getattr(known[name], name)
    return wrapper


def _is_wrapper(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, gym.Wrapper)


def _refuse_options(
    built: Env | Venv, env_kwargs: Mapping[str, Any], wrappers: Sequence[Wrapper]
) -> None:
    for option, value in {"env_kwargs": env_kwargs, "wrappers": wrappers}.items():
        if value:
            raise ConfigError(
                f"{option}: {_name(built)} is already built, so {value!r} would have no effect; "
                "apply it yourself, or pass an id or a callable"
            )


def _checked_number(venv: Venv, num_envs: int) -> Venv:
    if num_envs not in (1, venv.num_envs):
        raise ConfigError(
            f"num_envs: the vector environment has {venv.num_envs} environments, found num_envs="
            f"{num_envs}; leave it out or set it to {venv.num_envs}"
        )
    return venv


def _name(source: object) -> str:
    return source if isinstance(source, str) else getattr(source, "__qualname__", repr(source))
