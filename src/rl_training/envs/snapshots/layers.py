"""The state of one environment: its wrappers and itself, layer by layer."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.vector import VectorWrapper

from rl_training.envs.snapshots.classes import SnapshotUnavailable
from rl_training.envs.snapshots.objects import ObjectDecoder, ObjectEncoder
from rl_training.errors import CheckpointError
from rl_training.storage.tree import MISSING, Encoded, Node

SKIPPED = frozenset(
    {"spec", "_cached_spec", "metadata", "_metadata", "render_mode"}
    | {"_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"}
)
"""Attributes that say how an environment was built; a fresh one has them already."""
SPACES = ("action_space", "observation_space")
"""May be attributes of a class; their generators are saved with each of its environments."""
_PYGAME = ("Surface", "Clock", "Font")  # other things of pygame's may say where something is
_MUJOCO = ("model", "data", "mujoco_renderer")
# Results of MuJoCo's last forward pass, which lag one step behind the state and which environments
# read before they step (the x position of the torso, for instance).
_DERIVED = ("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "site_xpos", "subtree_com")


def layers_of(env: object) -> list[Any]:
    """The wrappers from the outside in, then the environment they wrap."""
    layers = [env]
    while isinstance(env, (gym.Wrapper, VectorWrapper)):
        env = env.env
        layers.append(env)
    return layers


def save_layers(layers: Sequence[Any], skipped: frozenset[str] = frozenset()) -> Encoded:
    """The state of the layers, without the `skipped` attributes of the innermost.

    Raises SnapshotUnavailable with the path of the first attribute that cannot be saved.
    """
    encoder = ObjectEncoder(layers)
    try:
        saved = [_save_layer(encoder, layer, SKIPPED) for layer in layers[:-1]]
        saved.append(_save_layer(encoder, layers[-1], SKIPPED | skipped))
        for layer, node in zip(layers, saved, strict=True):
            if spaces := _class_spaces(layer):
                node["spaces"] = encoder.encode(spaces, type(layer).__qualname__)
    except SnapshotUnavailable:
        raise
    except Exception as error:  # nested too deep, or an object that does not stand being looked at
        raise SnapshotUnavailable(f"its attributes could not be walked: {error!r}") from error
    return encoder.finish(layers=saved)


def load_layers(
    layers: Sequence[Any], state: Encoded, skipped: frozenset[str] = frozenset()
) -> None:
    """Write a state of `save_layers` into layers that were built in the same way and reset once."""
    saved_names = [saved["class"] for saved in state.node["layers"]]
    names = [type(layer).__qualname__ for layer in layers]
    if saved_names != names:
        raise CheckpointError(
            f"the state was saved from the layers {', '.join(saved_names)} and the environment "
            f"now has {', '.join(names)}: build it with the same id, arguments and wrappers"
        )
    decoder = ObjectDecoder(layers, state)
    for layer, saved in zip(layers, state.node["layers"], strict=True):
        left_out = SKIPPED | skipped if layer is layers[-1] else SKIPPED
        _load_layer(decoder, layer, saved, left_out)
        if "spaces" in saved:
            decoder.decode(saved["spaces"], _class_spaces(layer), type(layer).__qualname__)


def _save_layer(encoder: ObjectEncoder, layer: object, skipped: frozenset[str]) -> dict[str, Node]:
    path = type(layer).__qualname__
    if has_state_methods(layer):
        try:
            state = layer.get_state()
        except Exception as error:
            raise SnapshotUnavailable(f"{path}.get_state() raised {error!r}") from error
        # In addition all that can be saved without it: a get_state rarely thinks of the generator,
        # and may forget an attribute whose effect shows late.
        left = [name for name, value in _held(layer).items() if not encoder.takes(value)]
        return {
            "class": path,
            "state": encoder.encode(state, f"{path}.get_state()"),
            "attributes": encoder.attributes(layer, path, skipped.union(left)),
            "left": left,
        }
    if _is_mujoco(layer):
        attributes = encoder.attributes(layer, path, skipped.union(_MUJOCO))
        simulation = encoder.encode(_save_simulation(layer), f"{path}.data")
        return {"class": path, "attributes": attributes, "mujoco": simulation}
    drawn = _drawn(layer)
    attributes = encoder.attributes(layer, path, skipped.union(drawn))
    return {"class": path, "attributes": attributes, "drawn": drawn}


def _load_layer(
    decoder: ObjectDecoder, layer: object, saved: dict[str, Node], skipped: frozenset[str]
) -> None:
    path = type(layer).__qualname__
    own = layer if has_state_methods(layer) else None
    kind = "attributes" if own is None else "state"
    simulated = kind == "attributes" and _is_mujoco(layer)
    if kind not in saved or ("mujoco" in saved) != simulated:
        raise CheckpointError(f"{path} was saved in another way: expected its {kind}")
    if own is not None:
        own.set_state(decoder.decode(saved["state"], MISSING, f"{path}.get_state()"))
        skipped = skipped.union(_names(saved["left"]))
    if "mujoco" in saved:
        _load_simulation(layer, decoder.decode(saved["mujoco"]))
        skipped = skipped.union(_MUJOCO)
    skipped = skipped.union(_names(saved.get("drawn", [])))
    decoder.attributes(layer, saved["attributes"], path, skipped)


def _names(node: Node) -> list[str]:
    """Attributes that stay as they are, which a saved layer lists."""
    if not isinstance(node, list) or not all(isinstance(name, str) for name in node):
        raise CheckpointError(f"expected names of attributes, found {node!r:.80}")
    return node


def _drawn(layer: object) -> list[str]:
    """Attributes that hold what is drawn on: a drawing follows from the rest of the state."""
    kinds = {name: type(value) for name, value in _held(layer).items()}
    return [
        name
        for name, kind in kinds.items()
        if kind.__module__.partition(".")[0] == "pygame" and kind.__name__ in _PYGAME
    ]


def _class_spaces(layer: object) -> dict[str, Space[Any]]:
    found = {name: inspect.getattr_static(type(layer), name, None) for name in SPACES}
    return {
        name: space
        for name, space in found.items()
        if isinstance(space, Space) and name not in _held(layer)
    }


def _held(layer: object) -> dict[str, object]:
    return dict(getattr(layer, "__dict__", {}))


class StateMethods(Protocol):
    """A layer that saves and restores itself."""

    def get_state(self) -> object:
        """Data that `set_state` takes."""

    def set_state(self, state: object) -> None:
        """Go on from a saved state."""


def has_state_methods(layer: object) -> TypeGuard[StateMethods]:
    """Whether the layer itself offers `get_state()` and `set_state(state)`."""
    getter, setter = (getattr(layer, name, None) for name in ("get_state", "set_state"))
    if not (callable(getter) and callable(setter)):
        return False
    try:
        inspect.signature(getter).bind()
        inspect.signature(setter).bind(None)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _is_mujoco(layer: object) -> bool:
    return type(layer).__module__.startswith("gymnasium.envs.mujoco.")


def _save_simulation(env: Any) -> dict[str, np.ndarray]:
    """What the next steps depend on: MuJoCo's integration state and the derived positions."""
    mujoco = import_module("mujoco")  # optional; whoever has such an environment has it
    integration = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(env.model, integration))
    mujoco.mj_getState(env.model, env.data, state, integration)
    return {"state": state} | {name: getattr(env.data, name).copy() for name in _DERIVED}


def _load_simulation(env: Any, saved: dict[str, np.ndarray]) -> None:
    """Put a simulation of the same model into a saved state."""
    mujoco = import_module("mujoco")
    integration = mujoco.mjtState.mjSTATE_INTEGRATION
    mujoco.mj_setState(env.model, env.data, saved["state"], integration)
    for name in _DERIVED:
        getattr(env.data, name)[...] = saved[name]
