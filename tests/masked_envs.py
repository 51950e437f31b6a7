"""Environments with action masks, each a function of its observation: a test can tell it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

DISCRETE = (5,)
MULTI = (2, 4)

Reset = tuple[np.ndarray, dict[str, Any]]
Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


def mask_of(obs: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """The mask of an observation [env, episode, step]: random, a legal choice in each part."""
    rng = np.random.default_rng([int(x) for x in obs])
    parts = [rng.random(size) < 0.3 for size in sizes]
    for part in parts:
        part[rng.integers(len(part))] = True
    return np.concatenate(parts)


class IllegalAction(Exception):
    """The environment was given an action that its mask excludes."""


class MaskedEnv(gym.Env[np.ndarray, Any]):
    """Observes [env, episode, step], ends after 1 to 4 steps, and raises if an action is illegal.

    Episodes terminate and are truncated in turn. A terminated state allows no action. Rewards
    depend on the action. With `all_legal` every mask is of ones and nothing is refused.
    """

    def __init__(
        self,
        number: int = 0,
        multi: bool = False,
        all_legal: bool = False,
        spoil: str = "",
    ) -> None:
        self.sizes = MULTI if multi else DISCRETE
        self.number, self.all_legal, self.spoil = number, all_legal, spoil
        self.observation_space = spaces.Box(0.0, 1e6, (3,), np.float32)
        self.action_space: Any = spaces.MultiDiscrete(MULTI) if multi else spaces.Discrete(5)
        self.episode, self.t, self.over = -1, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.t, self.over = 0, False
        return self.observe(), self.info()

    def step(self, action: Any) -> Step:
        choices = np.atleast_1d(action)
        starts = np.cumsum((0, *self.sizes[:-1]))
        if not self.mask()[starts + choices].all():
            raise IllegalAction(f"{action} in {self.observe()}")
        self.t += 1
        ends = self.t >= 1 + (3 * self.number + 2 * self.episode) % 4
        self.over = ends and self.episode % 2 == 0
        return self.observe(), float(choices.sum()), self.over, ends and not self.over, self.info()

    def observe(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.t], np.float32)

    def mask(self) -> np.ndarray:
        if self.all_legal:
            return np.ones(sum(self.sizes), np.bool_)
        return mask_of(self.observe(), self.sizes)

    def info(self) -> dict[str, Any]:
        mask: Any = self.mask() & (not self.over)
        if self.episode == 1 and self.t == 0 and self.spoil:
            if self.spoil == "missing":
                return {}
            mask = {
                "none": np.zeros_like(mask),
                "size": mask[1:],
                "float": mask.astype(np.float32),
                "two": mask.astype(np.int8) * 2,
            }[self.spoil]
        return {"action_mask": mask}


class MethodEnv(MaskedEnv):
    """The same with sb3-contrib's method in place of Gymnasium's key."""

    def info(self) -> dict[str, Any]:
        return {}

    def action_masks(self) -> np.ndarray:
        return self.mask()


class TupleEnv(MaskedEnv):
    """Masks as MultiDiscrete.sample takes them: a tuple of int8 arrays."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number, multi=True)

    def info(self) -> dict[str, Any]:
        mask = super().info()["action_mask"].astype(np.int8)
        return {"action_mask": (mask[:2], mask[2:])}


class NativeMasked(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """A vector implementation of `MaskedEnv` that fills in arrays itself and resets in any mode."""

    def __init__(self, num_envs: int = 3, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> None:
        self.num_envs, self.autoreset_mode = num_envs, mode
        self.metadata = {"autoreset_mode": mode}
        self.envs = [MaskedEnv(number) for number in range(num_envs)]
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = gym.vector.utils.batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.done = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        rows = np.ones(self.num_envs, np.bool_) if not options else options["reset_mask"]
        masks = np.zeros((self.num_envs, 5), np.int8)
        for row in np.flatnonzero(rows):
            masks[row] = self.envs[row].reset(seed=seed)[1]["action_mask"]
        self.done[rows] = False
        return np.stack([env.observe() for env in self.envs]), {"action_mask": masks}

    def step(self, actions: np.ndarray) -> Any:
        obs, masks = np.zeros((self.num_envs, 3), np.float32), np.zeros((self.num_envs, 5), np.int8)
        final = np.zeros_like(masks)
        final_obs: Any = np.full(self.num_envs, None, object)
        reward, terminated, truncated = (np.zeros(self.num_envs, t) for t in (float, bool, bool))
        for row, env in enumerate(self.envs):
            if self.done[row] and self.autoreset_mode is AutoresetMode.NEXT_STEP:
                obs[row], info = env.reset()
                self.done[row] = False
            else:
                obs[row], reward[row], terminated[row], truncated[row], info = env.step(
                    actions[row]
                )
                self.done[row] = terminated[row] | truncated[row]
                if self.done[row] and self.autoreset_mode is AutoresetMode.SAME_STEP:
                    final[row], final_obs[row] = info["action_mask"], obs[row].copy()
                    obs[row], info = env.reset()
            masks[row] = info["action_mask"]
        infos: dict[str, Any] = {"action_mask": masks}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            infos |= {"final_obs": final_obs, "final_info": {"action_mask": final}}
        return obs, reward, terminated, truncated, infos
