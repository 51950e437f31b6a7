"""Rollout storage: the vector steps since the last update, in order, and then forgotten."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from rl_training.config.hyper_parameters import OnPolicyHyperParameters
from rl_training.data.masks import check_stored, packed, unpacked
from rl_training.data.normalization import RewardNormalizer
from rl_training.data.types import EnvSpec, Rollout, Transitions
from rl_training.errors import CheckpointError
from rl_training.storage.checks import saved_array, saved_count, saved_value

_FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "first", "valid")
_STATES = ("state", "next_state")


class RolloutBuffer:
    """`num_steps` vector steps of every environment, kept in host memory until taken."""

    memory_name = "rollout memory"

    def __init__(
        self,
        spec: EnvSpec,
        *,
        num_steps: int,
        num_envs: int = 1,
        state_size: int = 0,
        reward_normalizer: RewardNormalizer | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.spec = spec
        self.num_steps = num_steps
        self._reward_normalizer = reward_normalizer
        self.device = torch.device(device)
        rows = (num_steps, num_envs)
        self._obs = np.zeros((*rows, *spec.obs_shape), spec.obs_dtype)
        self._next_obs = np.zeros_like(self._obs)
        self._action = np.zeros((*rows, *spec.action_shape), spec.action_dtype)
        self._reward = np.zeros(rows, np.float32)
        self._terminated, self._truncated = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        self._first, self._valid = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        self._state = np.zeros((*rows, state_size), np.float32)
        self._next_state = np.zeros_like(self._state)
        self._illegal = np.zeros((*rows, spec.mask_bytes), np.uint8)
        self._names = _FIELDS + _STATES + ("illegal",) * spec.masked
        self._filled = 0

    @classmethod
    def build(
        cls,
        spec: EnvSpec,
        hyper: OnPolicyHyperParameters,
        *,
        num_envs: int,
        seed: int,  # noqa: ARG003 - a rollout is not sampled
        device: torch.device,
        normalize_rewards: bool = False,
    ) -> RolloutBuffer:
        """The buffer the hyper-parameters ask for."""
        normalizer = RewardNormalizer(num_envs, hyper.gamma) if normalize_rewards else None
        return cls(
            spec,
            num_steps=hyper.rollout_steps(num_envs),
            num_envs=num_envs,
            state_size=sum(hyper.state_sizes),
            reward_normalizer=normalizer,
            device=device,
        )

    @staticmethod
    def needed_bytes(spec: EnvSpec, hyper: OnPolicyHyperParameters, num_envs: int) -> int:
        """Memory the buffer will take, known before anything is allocated."""
        obs = math.prod(spec.obs_shape) * np.dtype(spec.obs_dtype).itemsize
        action = math.prod(spec.action_shape) * np.dtype(spec.action_dtype).itemsize
        flags_and_reward = 4 * 1 + 4
        row = 2 * (obs + 4 * sum(hyper.state_sizes)) + action + flags_and_reward + spec.mask_bytes
        return hyper.rollout_steps(num_envs) * num_envs * row

    @property
    def nbytes(self) -> int:
        """Memory the buffer takes."""
        return sum(int(getattr(self, f"_{name}").nbytes) for name in self._names)

    def __len__(self) -> int:
        return int(np.count_nonzero(self._valid[: self._filled]))

    @property
    def full(self) -> bool:
        """Whether an update is due."""
        return self._filled == self.num_steps

    def add(self, step: Transitions) -> None:
        """Store one vector step; rows that only reset are stored as not valid, if any row is."""
        if not step.valid.any():
            return
        for name in _FIELDS:
            getattr(self, f"_{name}")[self._filled] = getattr(step, name)
        if step.state:
            for name in _STATES:
                np.concatenate(getattr(step, name), 1, out=getattr(self, f"_{name}")[self._filled])
        if self.spec.masked:
            self._illegal[self._filled] = packed(step.legal, slice(None))
        # No one vouches for the reward of a row that only resets.
        self._reward[self._filled][~step.valid] = 0.0
        self._filled += 1

    def take(self) -> Rollout:
        """The full rollout on the device; the buffer is empty afterwards."""
        assert self.full, f"{self._filled} of {self.num_steps} steps are filled"
        ended = self._terminated | self._truncated
        # Where an episode was cut without an end of its own, the next row starts another.
        ended[:-1] |= self._first[1:]
        open_ended = ended & ~self._terminated
        open_ended[-1] = ~self._terminated[-1]
        rows = np.flatnonzero(open_ended)
        obs_shape = self._obs.shape[2:]
        reward = self._reward
        if self._reward_normalizer is not None:
            reward = self._reward_normalizer(reward, self._first, self._valid)
        rollout = Rollout(
            obs=self.spec.named(self._tensor(self._obs)),
            action=self._tensor(self._action),
            reward=self._tensor(reward),
            terminated=self._tensor(self._terminated),
            ended=self._tensor(ended),
            first=self._tensor(self._first),
            valid=self._tensor(self._valid),
            bootstrap_rows=self._tensor(rows),
            bootstrap_obs=self.spec.named(
                self._tensor(self._next_obs.reshape(-1, *obs_shape)[rows])
            ),
            **self._states(rows),
            **self._masks(),
        )
        self._filled = 0
        return rollout

    def _states(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        """The policy states before all rows and after those to bootstrap, if there are any."""
        if not self._state.size:
            return {}
        after = self._next_state[np.divmod(rows, self._state.shape[1])]
        return {"state": self._tensor(self._state), "bootstrap_state": self._tensor(after)}

    def _masks(self) -> dict[str, torch.Tensor]:
        """The masks of all rows, if the environment gives any."""
        if not self.spec.masked:
            return {}
        return {"legal": self._tensor(unpacked(self._illegal, self.spec.policy_outputs))}

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """The rows stored so far."""
        rows = {name: getattr(self, f"_{name}")[: self._filled].copy() for name in self._names}
        state = {"num_steps": self.num_steps, "rows": rows}
        if self._reward_normalizer is not None:
            state["reward_normalizer"] = self._reward_normalizer.state_dict()
        return state

    def take_reward_moments(self, saved: dict[str, Any]) -> bool:
        """Go on with the reward statistics of another run; False if rewards are not normalised."""
        if self._reward_normalizer is None:
            return False
        self._reward_normalizer.take_moments(saved)
        return True

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved, half-filled rollout of the same shape."""
        rows, steps = saved_value(state, "rows"), saved_count(state, "num_steps")
        reward = saved_value(rows, "reward")
        if not isinstance(reward, np.ndarray) or reward.ndim != 2 or len(reward) > steps:
            raise CheckpointError(f"rows.reward: expected at most {steps} rows of each environment")
        saved, mine = (steps, reward.shape[1]), self._reward.shape
        if saved != mine:
            raise CheckpointError(
                f"the saved rollout is of {saved[0]} steps in {saved[1]} environments, this one of "
                f"{mine[0]} in {mine[1]}; resume with num_steps and num_envs of the saved run"
            )
        states = rows.get("state")
        saved_states = states.shape[-1] if isinstance(states, np.ndarray) and states.ndim else 0
        if saved_states != self._state.shape[2]:
            raise CheckpointError(
                f"the saved rollout has policy states of {saved_states} numbers, this one of "
                f"{self._state.shape[2]}; resume with the network of the saved run"
            )
        self._filled = len(reward)
        if self._reward_normalizer is not None:
            self._reward_normalizer.load_state_dict(saved_value(state, "reward_normalizer"))
        for name in self._names:
            if name in _STATES and "state" not in rows:
                continue
            choice = self.spec.max_discrete_action if name == "action" else None
            low = None if choice is None else 0
            part = getattr(self, f"_{name}")[: self._filled]
            part[:] = saved_array(rows, name, part, low=low, high=choice)
        if self.spec.masked:
            check_stored(self.spec, self._illegal[: self._filled])
