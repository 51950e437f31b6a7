"""Builds environments from whatever names or makes one, and vector environments of them."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes.util import find_library
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any, TypeAlias, TypeVar

import gymnasium as gym
import gymnasium.wrappers
from gymnasium.vector import VectorEnv

from rl_training.config.imports import import_factory, import_module
from rl_training.envs.async_vector_env import DEFAULT_TIMEOUT, QuickAsyncVectorEnv
from rl_training.envs.masks import with_mask_info
from rl_training.envs.snapshots.vector import SnapshotEnvMaker
from rl_training.envs.vector_envs import EnvFailure, OneOfVector, QuickSyncVectorEnv
from rl_training.errors import (
    ConfigError,
    EnvError,
    MissingExtra,
    RLTrainingError,
    did_you_mean,
)

Env: TypeAlias = gym.Env[Any, Any]
Venv: TypeAlias = VectorEnv[Any, Any, Any]
EnvSource: TypeAlias = str | Callable[..., Env] | Env | Venv
Wrapper: TypeAlias = str | Mapping[str, Mapping[str, Any]]

T = TypeVar("T")

_EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
_MODULES = {"popgym": "popgym", "ale_py": "atari", "shimmy": "dmc"}  # register when imported
_NAMESPACES = {"ALE": "ale_py", "dm_control": "shimmy"}  # which of them an id's prefix means
_WRAPPERS = "rl_training.envs.wrappers"

VECTORIZATIONS = ("sync", "async", "native")
NOTHING: Mapping[str, Any] = MappingProxyType({})


class _MadeVectorEnv(ConfigError):
    """A source made a vector environment where a single one was asked for."""

    def __init__(self, source: EnvSource, venv: Venv) -> None:
        super().__init__(
            f"{_name(source)} made a vector environment; expected a single one here. For "
            "evaluations give eval_env, an id or a callable that builds one"
        )
        self.venv = venv


def make_env(
    source: EnvSource,
    *,
    env_kwargs: Mapping[str, Any] = NOTHING,
    wrappers: Sequence[Wrapper] = (),
    vectorization: str = "sync",
) -> Env:
    """One environment: from a Gymnasium id, `package.module:Class`, a callable, or already built.

    A time limit is applied only if the id was registered with one. Wrappers go on in their order,
    the last one outermost; around an environment with a method `action_masks()`, `ActionMaskInfo`
    is. With `native` vectorization it is one of the vector implementation that the id comes with.
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
    return with_mask_info(env)


def make_single_env(
    source: EnvSource,
    *,
    env_kwargs: Mapping[str, Any] = NOTHING,
    wrappers: Sequence[Wrapper] = (),
) -> Env:
    """One environment for evaluations; a source may also make a vector environment of one."""
    try:
        return make_env(source, env_kwargs=env_kwargs, wrappers=wrappers)
    except _MadeVectorEnv as made:
        if made.venv.num_envs != 1:
            made.venv.close()
            raise ConfigError(
                f"eval_env: {_name(source)} made a vector of {made.venv.num_envs} environments; "
                "expected a single one, or a vector of one: make it with num_envs=1"
            ) from None
        env: Env = OneOfVector(made.venv)
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
    env_timeout: float = DEFAULT_TIMEOUT,
) -> Venv:
    """Environments stepped together, reset within the step that ends an episode (SAME_STEP).

    `async` puts them into worker processes, which have `env_timeout` seconds for each answer.
    `native` takes the vector implementation that an environment comes with, as it resets. An
    environment that is already built counts as one. A vector environment, built or made by a
    callable, is taken unchanged; `num_envs` must then be its number, or 1, the default.
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
            return QuickAsyncVectorEnv(makers, timeout=env_timeout)
        return QuickSyncVectorEnv(makers)
    except _MadeVectorEnv as made:
        _refuse_options(made.venv, {}, wrappers)
        return _checked_number(made.venv, num_envs)
    except EnvFailure as error:
        raise EnvError(
            f"{_name(source)} could not be built in a worker process: {error}\n"
            "vectorization: sync builds all environments in this process."
        ) from None
    except (RLTrainingError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise _build_error(_name(source), error) from error


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
            "environment's preprocessing is set by env_kwargs"
        )
    module, colon, name = source.partition(":")
    if colon:
        _import_registering(module, name)
    return _make_native(name if colon else source, num_envs, env_kwargs)


def _build(source: str | Callable[..., Env], kwargs: dict[str, Any]) -> object:
    if not isinstance(source, str):
        return _call(source, _name(source), kwargs)
    module_name, colon, name = source.partition(":")
    if not colon:
        return _make_registered(source, kwargs)
    if not _is_attribute(name):  # Gymnasium's own `module:Env-v0`
        _import_registering(module_name, name)
        return _make_registered(name, kwargs)
    module = _registering_module(module_name)
    if name in gym.registry and not hasattr(module, name):
        return _make_registered(name, kwargs)
    return _call(import_factory("env_id", source, gym.Env, VectorEnv), source, kwargs)


def is_registered_id(module: str, name: str) -> bool:
    """Whether `module:Env-v0` is an id of a module that is known, or was imported by the caller.

    A name that could be an attribute of the module is none.
    """
    if _is_attribute(name):
        return False
    return module in _MODULES or (module in sys.modules and name in gym.registry)


def _is_attribute(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _import_registering(module: str, name: str) -> None:
    """Import a module unless it has registered the id already."""
    if module in _MODULES or not is_registered_id(module, name):
        _registering_module(module)


def _registering_module(name: str) -> ModuleType:
    """Import a module that registers environments."""
    try:
        # One that is known is an installed package; a file of its name here must not take its part.
        return import_module(name, local=name not in _MODULES)
    except ConfigError as error:
        if name in _MODULES and isinstance(error.__cause__, ModuleNotFoundError):
            raise MissingExtra(
                f"env_id: {error}: pip install 'rl-training[{_MODULES[name]}]'"
            ) from error
        raise


def _make_registered(env_id: str, kwargs: Mapping[str, Any]) -> object:
    """The environment of that id."""
    return _made(env_id, kwargs, lambda: gym.make(env_id, **kwargs))


def _make_native(env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """The vector implementation that comes with the environment of that id."""

    def make() -> Any:
        spec = gym.registry.get(env_id)  # none if the id lacks a version
        if spec is not None and spec.vector_entry_point is None:
            raise ConfigError(
                f"vectorization: {env_id} has no vector implementation; use sync or async"
            )
        mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
        return gym.make_vec(env_id, num_envs, vectorization_mode=mode, **kwargs)

    venv: VectorEnv[Any, Any, Any] = _made(env_id, kwargs, make)
    return venv


def _made(env_id: str, kwargs: Mapping[str, Any], make: Callable[[], T]) -> T:
    if kwargs.get("render_mode") == "rgb_array":
        render_without_a_screen(env_id)
    if env_id not in gym.registry:
        _find(env_id)
    try:
        return make()
    except (RLTrainingError, KeyboardInterrupt):
        raise
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise _missing_extra(env_id, error) from error
    except TypeError as error:
        if kwargs and "unexpected keyword argument" in str(error):
            raise ConfigError(f"env_kwargs: {error}") from error
        raise _build_error(env_id, error) from error
    except BaseException as error:
        raise _build_error(env_id, error) from error


def _find(env_id: str) -> None:
    """Import what registers an id, or say that there is none."""
    namespace = env_id.partition("/")[0]
    if namespace in _NAMESPACES:
        _registering_module(_NAMESPACES[namespace])
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        if any(known.rpartition("-v")[0] == env_id for known in gym.registry):
            return  # an id without version: gym.make takes the latest, with a warning
        # Gymnasium's message helps if it is the version or the package that is missing.
        detail = "" if isinstance(error, gym.error.NameNotFound) else f" {error}"
        hint = did_you_mean(env_id, gym.registry, count=3) or "."
        raise ConfigError(f"env_id: there is no environment {env_id!r}{hint}{detail}") from error


def _missing_extra(env_id: str, error: Exception) -> RLTrainingError:
    entry_point = gym.spec(env_id).entry_point if env_id in gym.registry else None
    for package, extra in _EXTRAS.items():
        if isinstance(entry_point, str) and entry_point.startswith(package):
            return MissingExtra(
                f"{env_id} needs a package that is not installed ({error}): "
                f"pip install 'rl-training[{extra}]'"
            )
    return MissingExtra(f"{env_id} needs a package that is not installed: {error}")


def _build_error(name: str, error: BaseException) -> EnvError:
    """That something could not be built."""
    return EnvError(f"{name} could not be built: {type(error).__name__}: {error}")


def has_screen() -> bool:
    """Whether a screen is connected, as far as the environment variables tell."""
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return sys.platform != "linux" or bool(screen)


def _has_only_osmesa(env_id: str) -> bool:
    spec = gym.registry.get(env_id)
    uses_mujoco = "mujoco" in str(spec and spec.entry_point) or env_id.startswith("dm_control/")
    # Looking for a library takes a process, so only where one is needed.
    return uses_mujoco and not find_library("EGL") and bool(find_library("OSMesa"))


def render_without_a_screen(env_id: str) -> None:
    """Have MuJoCo and pygame draw into memory where no screen is connected."""
    if not has_screen():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if "MUJOCO_GL" not in os.environ:
            os.environ["MUJOCO_GL"] = "osmesa" if _has_only_osmesa(env_id) else "egl"
            # Gymnasium may have imported dm_control already, which chose a window then.
            if "dm_control._render" in sys.modules:
                importlib.reload(sys.modules["dm_control._render"])


def _call(make: object, name: str, kwargs: dict[str, Any]) -> object:
    if not callable(make):
        raise ConfigError(
            f"env_id: {name} is a {type(make).__name__}; expected a class or function"
        )
    _check_arguments(make, name, kwargs)
    try:
        return make(**kwargs)
    except (RLTrainingError, KeyboardInterrupt):
        raise
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise MissingExtra(f"{name} needs a package that is not installed: {error}") from error
    except BaseException as error:
        raise _build_error(name, error) from error


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
        path = ":" in name
        make = import_factory("wrappers", name, gym.Wrapper) if path else _wrapper_class(name)
        wrapped = make(env, **kwargs)
    except (RLTrainingError, KeyboardInterrupt):
        raise
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise MissingExtra(f"the wrapper {name} needs a package: {error}") from error
    except BaseException as error:
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
        module = import_module(_WRAPPERS)
        known |= dict.fromkeys((n for n, v in vars(module).items() if _is_wrapper(v)), module)
    except ConfigError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
    if name not in known:
        raise ConfigError(
            f"wrappers: there is no wrapper {name!r} in {_WRAPPERS} or gymnasium.wrappers (a "
            f"custom one is written package.module:Class){did_you_mean(name, known)}"
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
