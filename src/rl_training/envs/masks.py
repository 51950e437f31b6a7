"""Action masks of environments: where they are found, and what is wrong with one.

An environment says which actions are legal in `info["action_mask"]`, at every reset and step, as
Gymnasium's do. One that has a method `action_masks()` instead, as sb3-contrib asks for, is wrapped
so that its infos hold what the method gives. A mask has a true or 1 for each legal choice; of a
MultiDiscrete action the parts' masks lie side by side, or in a tuple.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv, VectorEnv

from rl_training.data.masks import some_legal
from rl_training.data.types import EnvSpec

KEY = "action_mask"
METHOD = "action_masks"


class MaskProblem(ValueError):
    """An environment's mask cannot be used: of which environment, and why."""

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index, self.text = index, text


class ActionMaskInfo(gym.Wrapper[Any, Any, Any, Any]):
    """Puts what the environment's method `action_masks()` gives into each info, as `action_mask`.

    An environment with that method is wrapped in it by itself; a vector environment that is passed
    already built needs it around each of its environments.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation, and its mask in the info."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, self._with_mask(info)

    def step(self, action: object) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """The environment's answer, and the mask of its observation in the info."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, self._with_mask(info)

    def _with_mask(self, info: dict[str, Any]) -> dict[str, Any]:
        if KEY in info:
            return info
        return info | {KEY: np.array(self.env.get_wrapper_attr(METHOD)())}


class HideActionMask(gym.Wrapper[Any, Any, Any, Any]):
    """Takes `action_mask` out of every info: all actions count as legal, as if there were no masks.

    For comparisons. What an illegal action then does is up to the environment.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The first observation."""
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, _without_mask(info)

    def step(self, action: object) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """The environment's answer."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, _without_mask(info)


def _without_mask(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != KEY}


def with_mask_info(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """The environment, with the masks of its method in its infos if it has one."""
    layer = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, (ActionMaskInfo, HideActionMask)):
            return env
        layer = layer.env
    return ActionMaskInfo(env) if env.has_wrapper_attr(METHOD) else env


def method_out_of_reach(venv: VectorEnv[Any, Any, Any]) -> bool:
    """Whether the environments of a vector environment have masks that their infos do not show."""
    base = venv.unwrapped
    return isinstance(base, SyncVectorEnv) and any(
        with_mask_info(env) is not env for env in base.envs
    )


def single_mask(spec: EnvSpec, info: Mapping[str, Any]) -> np.ndarray:
    """The mask [A] in the info of one environment."""
    if KEY not in info:
        raise MaskProblem(0, f"expected info[{KEY!r}], as at other steps, found none")
    mask: np.ndarray = _checked(spec, _flat(info[KEY])[None], np.ones(1, np.bool_))[0]
    return mask


def vector_masks(spec: EnvSpec, info: Mapping[str, Any], rows: np.ndarray) -> np.ndarray:
    """The masks [N, A] in the info of a vector environment; all true outside of `rows` [N]."""
    if not rows.any():
        return np.ones((len(rows), spec.policy_outputs), np.bool_)
    present = rows & info.get(f"_{KEY}", KEY in info)
    if np.count_nonzero(present) < np.count_nonzero(rows):
        index = int(np.flatnonzero(rows & ~present)[0])
        raise MaskProblem(index, f"expected info[{KEY!r}], as at other steps, found none")
    masks = np.asarray(info[KEY])
    if masks.dtype == object:  # tuples: a mask for each part of a MultiDiscrete action
        masks = _joined(masks, rows)
    if len(masks) != len(rows):
        text = f"expected masks of {len(rows)} environments, found {_described(masks)}"
        raise MaskProblem(0, text)
    return _checked(spec, masks, rows)


def predicted_masks(spec: EnvSpec, given: object, rows: int, *, single: bool) -> np.ndarray:
    """A user's mask of one observation, or of each of a batch, as [B, A]."""
    masks = _flat(given)
    masks = masks[None] if single else masks
    if not single and len(masks) != rows:
        raise MaskProblem(0, f"expected a mask for each of {rows} rows, found {_described(masks)}")
    return _checked(spec, masks, np.ones(rows, np.bool_))


def legal_action(space: spaces.Space[Any], action: object, info: Mapping[str, Any]) -> Any:
    """An action, or actions of a vector environment, with other choices where they are illegal.

    `info` belongs to the observation that is acted on. Where it has no mask, or one that does not
    fit, the choice stays.
    """
    if KEY not in info or not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return action
    try:
        mask, start = _flat(info[KEY]).astype(np.bool_), np.ravel(space.start)
    except (TypeError, ValueError):
        return action
    vector = isinstance(space, spaces.MultiDiscrete)
    sizes = np.ravel(space.nvec) if isinstance(space, spaces.MultiDiscrete) else [int(space.n)]
    if mask.shape != (sum(sizes),):
        return action
    choices = np.array(action).ravel()
    for part, legal in enumerate(np.split(mask, np.cumsum(sizes)[:-1])):
        number = int(choices[part] - start[part])
        if not legal[number] and legal.any():
            known = np.flatnonzero(legal)
            choices[part] = start[part] + known[number % len(known)]
    return choices if vector else choices[0]


def _flat(mask: object) -> np.ndarray:
    """A mask as one array; the parts of a tuple lie side by side."""
    if isinstance(mask, tuple):
        return np.concatenate([np.asarray(part) for part in mask], -1)
    return np.asarray(mask)


def _joined(masks: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Masks that came as objects; where none is looked at, that of another row stands in."""
    try:
        flat = [_flat(masks[row]) if rows[row] else None for row in range(len(rows))]
        known = next(mask for mask in flat if mask is not None)
        return np.stack([known if mask is None else mask for mask in flat])
    except ValueError as error:
        index = int(np.flatnonzero(rows)[0])
        raise MaskProblem(index, f"expected masks of one shape, found others ({error})") from None


def _checked(spec: EnvSpec, masks: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Masks as booleans, if they fit the actions and allow one in each of `rows`."""
    first = int(np.flatnonzero(rows)[0])
    choices, found = spec.policy_outputs, _described(masks)
    if masks.shape[1:] != (choices,):
        parts = f", {' + '.join(map(str, spec.action_sizes))}" if spec.action_sizes else ""
        text = f"expected a mask of {choices} choices, as many as the action space has{parts}"
        raise MaskProblem(first, f"{text}, found {found}")
    if masks.dtype.kind not in "biu":
        raise MaskProblem(first, f"expected bool or integers 0 and 1, found {found}")
    legal = masks.astype(np.bool_)
    if masks.dtype.kind != "b" and (wrong := ((masks != legal).any(1) & rows)).any():
        index = int(np.flatnonzero(wrong)[0])
        raise MaskProblem(index, f"expected 0 and 1 alone, found {masks[index].tolist()!s:.80}")
    if np.count_nonzero(rows) < len(rows):
        legal[~rows] = True
    allowed = some_legal(spec, legal)
    if np.count_nonzero(allowed) < len(rows):
        part = "choice in each part" if spec.action_sizes else "action"
        text = f"expected at least one legal {part} where the episode goes on, found none"
        raise MaskProblem(int(np.flatnonzero(~allowed)[0]), text)
    return legal


def _described(masks: np.ndarray) -> str:
    return f"{masks.dtype} of shape {masks.shape[1:]}"
