"""The state of a MuJoCo simulation, for Gymnasium's MuJoCo environments."""

from __future__ import annotations

from typing import Any

import mujoco  # type: ignore[import-untyped,import-not-found,unused-ignore]  # no stubs, optional
import numpy as np

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
# Results of the last forward pass, which lag one step behind the state and which environments read
# before they step (the x position of the torso, for instance).
_DERIVED = ("xpos", "xquat", "xmat", "xipos", "ximat", "geom_xpos", "site_xpos", "subtree_com")


def save_simulation(env: Any) -> dict[str, np.ndarray]:
    """What the next steps depend on: MuJoCo's integration state and the derived positions."""
    state = np.empty(mujoco.mj_stateSize(env.model, _STATE))
    mujoco.mj_getState(env.model, env.data, state, _STATE)
    return {"state": state} | {name: getattr(env.data, name).copy() for name in _DERIVED}


def load_simulation(env: Any, saved: dict[str, np.ndarray]) -> None:
    """Put a simulation of the same model into a saved state."""
    mujoco.mj_setState(env.model, env.data, saved["state"], _STATE)
    for name in _DERIVED:
        getattr(env.data, name)[...] = saved[name]
