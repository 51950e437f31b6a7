"""Environments by their Gymnasium ids, and the extras that bring them."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rl_training.envs.imports import import_module
from rl_training.errors import ConfigError, EnvError, MissingExtra, RLTrainingError

_EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}
_MODULES = {"popgym": "popgym", "ale_py": "atari", "shimmy": "dmc"}  # register when imported
_NAMESPACES = {"ALE": "ale_py", "dm_control": "shimmy"}  # which of them an id's prefix means

_T = TypeVar("_T")


def registering_module(name: str) -> Any:
    """Import a module that registers environments."""
    try:
        return import_module(name)
    except ConfigError as error:
        if name in _MODULES and isinstance(error.__cause__, ModuleNotFoundError):
            raise MissingExtra(
                f"env_id: {error}: pip install 'rl-training[{_MODULES[name]}]'"
            ) from error
        raise


def make_registered(env_id: str, kwargs: Mapping[str, Any]) -> object:
    """The environment of that id."""
    return _made(env_id, kwargs, lambda: gym.make(env_id, **kwargs))


def make_native(env_id: str, num_envs: int, kwargs: Mapping[str, Any]) -> VectorEnv[Any, Any, Any]:
    """The vector implementation that comes with the environment of that id."""

    def make() -> Any:
        spec = gym.registry.get(env_id)  # none if no version was said
        if spec is not None and spec.vector_entry_point is None:
            raise ConfigError(
                f"vectorization: {env_id} has no vector implementation of its own; use sync or "
                "async"
            )
        mode = gym.VectorizeMode.VECTOR_ENTRY_POINT
        return gym.make_vec(env_id, num_envs, vectorization_mode=mode, **kwargs)

    venv: VectorEnv[Any, Any, Any] = _made(env_id, kwargs, make)
    return venv


def _made(env_id: str, kwargs: Mapping[str, Any], make: Callable[[], _T]) -> _T:
    if kwargs.get("render_mode") == "rgb_array":
        _render_without_a_screen()
    if env_id not in gym.registry:
        _find(env_id)
    try:
        return make()
    except RLTrainingError:
        raise
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise _missing_extra(env_id, error) from error
    except TypeError as error:
        if kwargs and "unexpected keyword argument" in str(error):
            raise ConfigError(f"env_kwargs: {error}") from error
        raise build_error(env_id, error) from error
    except Exception as error:
        raise build_error(env_id, error) from error


def _find(env_id: str) -> None:
    """Import what registers an id, or say that there is none."""
    namespace = env_id.partition("/")[0]
    if namespace in _NAMESPACES:
        registering_module(_NAMESPACES[namespace])
    try:
        gym.spec(env_id)
    except gym.error.Error as error:
        if any(known.rpartition("-v")[0] == env_id for known in gym.registry):
            return  # no version said: gym.make takes the latest, with a warning
        close = difflib.get_close_matches(env_id, gym.registry, n=3, cutoff=0.5)
        # Gymnasium's own words are of use if it is the version or the package that is missing.
        detail = "" if isinstance(error, gym.error.NameNotFound) else f" {error}"
        hint = f" Near it: {', '.join(close)}." if close else ""
        raise ConfigError(f"env_id: there is no environment {env_id!r}.{detail}{hint}") from error


def _missing_extra(env_id: str, error: Exception) -> RLTrainingError:
    entry_point = gym.spec(env_id).entry_point if env_id in gym.registry else None
    for package, extra in _EXTRAS.items():
        if isinstance(entry_point, str) and entry_point.startswith(package):
            return MissingExtra(
                f"{env_id} needs a package that is not installed ({error}): "
                f"pip install 'rl-training[{extra}]'"
            )
    return MissingExtra(f"{env_id} needs a package that is not installed: {error}")


def build_error(name: str, error: Exception) -> EnvError:
    """That something could not be built."""
    return EnvError(f"{name} could not be built: {type(error).__name__}: {error}")


def _render_without_a_screen() -> None:
    """Have MuJoCo and pygame draw into memory where no screen is connected."""
    screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform == "linux" and not screen:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if "MUJOCO_GL" not in os.environ:
            os.environ["MUJOCO_GL"] = "egl"
            # Gymnasium may have imported dm_control already, which chose a window then.
            if "dm_control._render" in sys.modules:
                importlib.reload(sys.modules["dm_control._render"])
