"""An agent: an algorithm with the spaces it was built for, ready to act."""

from __future__ import annotations

import logging
import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from rl_training.algorithms.base import ActResult, Algorithm
from rl_training.config.base import is_placeholder
from rl_training.config.hyper_parameters import HyperParameters
from rl_training.config.imports import import_factory
from rl_training.config.train_config import TrainConfig
from rl_training.data.normalization import NoNormalizer, Normalizer, observation_normalizer
from rl_training.data.types import Clock, EnvSpec, PolicyState
from rl_training.envs.masks import MaskProblem, predicted_masks
from rl_training.envs.spaces import SpaceAdapter, action_kind, space_from_plain, space_to_plain
from rl_training.errors import (
    CheckpointError,
    ConfigError,
    IncompatibleEnv,
    NonFiniteError,
    RLTrainingError,
    UsageError,
    described,
)
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.policy import completed, policy_state
from rl_training.runtime.saved_info import saved_info
from rl_training.runtime.seeding import derive_seed
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.trust import refuse_untrusted
from rl_training.storage.checkpoints import Checkpoint, loading_part

logger = logging.getLogger("rl_training")

MAX_FRAMES = 10_000
LARGE_TENSOR = 64 << 20
"""Bytes that a network loaded from any checkpoint may take for one tensor."""

_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)


class Agent:
    """A policy on an environment's own observations and actions."""

    def __init__(
        self,
        spec: AlgorithmSpec,
        adapter: SpaceAdapter,
        algorithm: Algorithm,
        normalizer: Normalizer,
        action_names: tuple[str, ...] = (),
    ) -> None:
        self.spec = spec
        self.action_names = action_names
        self.normalizer = normalizer
        self.adapter = adapter
        self.algorithm = algorithm
        self._warned_of_masks = False
        self.clock = Clock(0, 1)  # where its training stands; sets the exploration of `predict`

    def set_progress(self, env_steps: int, horizon: int) -> None:
        """Say where the agent's training stands."""
        self.clock = self.clock._replace(env_steps=env_steps, horizon=horizon)

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        legal: np.ndarray | None = None,
        *,
        explore: bool,
    ) -> ActResult:
        """Actions for encoded observations, of the legal ones if there is a mask [B, A]."""
        normalized = self.normalizer.array(obs)
        # Algorithms of continuous actions have no such argument.
        masks: dict[str, Any] = {} if legal is None else {"legal": legal}
        return self.algorithm.act(normalized, state, first, self.clock, explore=explore, **masks)

    def greedy(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        legal: np.ndarray | None = None,
    ) -> ActResult:
        """Deterministic actions for encoded observations."""
        return self.act(obs, state, first, legal, explore=False)

    def predict(
        self,
        obs: object,
        state: PolicyState | None = None,
        episode_start: object = None,
        deterministic: bool = True,
        action_mask: object = None,
    ) -> tuple[Any, PolicyState]:
        """Action and new policy state for one observation or a batch of them.

        `state` None, and rows where `episode_start` is true, begin a new episode. `action_mask` has
        a true or 1 for each legal choice, as in the environment's `info["action_mask"]`, and a row
        for each observation of a batch; without it all choices count as legal.
        """
        encoded, single = self.adapter.encode_any(obs)
        first = _episode_starts(episode_start, len(encoded), single) | (state is None)
        initial = self.algorithm.initial_state(len(encoded))
        state = initial if state is None else _checked_state(state, initial)
        legal = self.masks(action_mask, len(encoded), single=single)
        result = self.act(encoded, state, first, legal, explore=not deterministic)
        action = self.adapter.decode(result.action)
        return (action[0] if single else action), result.state

    def masks(self, given: object, rows: int, *, single: bool) -> np.ndarray | None:
        """A user's action mask as [B, A], checked; None if there is none."""
        spec = self.adapter.spec
        if given is None:
            if spec.masked and not self._warned_of_masks:
                self._warned_of_masks = True
                logger.warning(
                    "%s gives action masks, and predict was called without one: all actions count "
                    'as legal. Pass action_mask=info["action_mask"].',
                    spec.env_id,
                )
            return None
        if not (spec.maskable and self.algorithm.takes_masks):
            raise UsageError(
                f"action_mask: expected none, as {self.spec.name} on {spec.env_id} does not choose "
                "among discrete actions with one; leave it out"
            )
        try:
            return predicted_masks(spec, given, rows, single=single)
        except (MaskProblem, ValueError) as error:
            raise UsageError(f"action_mask: {error}") from None

    def check_spaces(self, observation: gym.Space[Any], action: gym.Space[Any]) -> None:
        """Refuse to be used with spaces that are not this agent's."""
        for name, given, expected in (
            ("observation", observation, self.adapter.observation),
            ("action", action, self.adapter.action),
        ):
            if given != expected:
                raise CheckpointError(
                    f"the {name} spaces differ: the agent's is {expected}, the other is {given}; "
                    "a checkpoint goes with the environment it was trained on"
                )

    def parts(self) -> dict[str, Any]:
        """The parts of a checkpoint that acting needs: the algorithm and its spaces."""
        spaces = {
            "observation": space_to_plain(self.adapter.observation),
            "action": space_to_plain(self.adapter.action),
            "frames": self.adapter.spec.frames,
        }
        if self.adapter.spec.masked:
            spaces["masked"] = True
        agent = {
            "algorithm": self.algorithm.state_dict(),
            "normalizer": self.normalizer.state_dict(),
        }
        return {"agent": agent, "spaces": spaces}

    def policy_parts(self) -> dict[str, Any]:
        """The same without what only learning needs, which is most of it."""
        parts = self.parts()
        agent = {**parts["agent"], "algorithm": policy_state(self.algorithm)}
        return {**parts, "agent": agent}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint's algorithm; its spaces must be this agent's."""
        observation, action, _, masked = _saved_spaces(checkpoint)
        self.check_spaces(observation, action)
        if masked != self.adapter.spec.masked:
            raise CheckpointError(
                f"{checkpoint.path}: expected an agent trained "
                f"{'without' if masked else 'with'} action masks, as the environment gives "
                f"{'none' if masked else 'some'}, found one trained "
                f"{'with' if masked else 'without'} them"
            )
        agent = checkpoint.read("agent")
        try:
            saved = agent["algorithm"]
            if not checkpoint.has("loop"):  # without which nobody goes on learning
                saved = completed(self.algorithm, saved)
            self.algorithm.load_state_dict(saved)
            self.normalizer.load_state_dict(agent["normalizer"])
        except CheckpointError as error:
            raise CheckpointError(f"{checkpoint.path}: agent: {error}") from error
        except Exception as error:  # of a custom network, or of a part that was forged
            raise CheckpointError(
                f"{checkpoint.path}: the checkpoint does not fit this {self.spec.name} agent: "
                f"{error!r}. Load it with the network and hyper-parameters it was trained with."
            ) from error


def build_agent(
    spec: AlgorithmSpec,
    config: TrainConfig,
    hyper: HyperParameters,
    adapter: SpaceAdapter,
    checkpoint: Checkpoint | None = None,
) -> Agent:
    """A new agent, initialised from the configuration's seed.

    One that is to take over a checkpoint gets no larger tensors than the checkpoint can fill.
    """
    spec.check_components()
    device = resolve_device(config.device)
    with torch.random.fork_rng(), _TensorLimit(checkpoint):
        torch.manual_seed(derive_seed(config.seed, "model"))
        model = _build_network(spec, hyper, adapter.spec)
    seed = derive_seed(config.seed, "algorithm")
    try:
        algorithm = spec.algorithm(model, hyper, adapter.spec, seed=seed, device=device)
    except TypeError as error:  # an abstract method, or other arguments
        raise UsageError(
            f"{spec.name}: expected algorithm(model, hyper, spec, seed=, device=) to build the "
            f"algorithm, but it raised TypeError: {error}"
        ) from error
    if not isinstance(algorithm, Algorithm):
        raise UsageError(
            f"{spec.name}: expected an object of a class derived from rl_training.algorithms."
            f"Algorithm as the algorithm, found {described(algorithm)}"
        )
    if adapter.spec.masked and not algorithm.takes_masks:
        raise IncompatibleEnv(
            f"{adapter.spec.env_id} gives action masks, and {spec.name} does not take them: "
            f"{type(algorithm).__name__}.act has no argument legal. Give it one, or hide the masks "
            "with the wrapper HideActionMask."
        )
    normalizer: Normalizer = NoNormalizer()
    if config.normalize_observations:
        if not adapter.spec.vector_dim:
            raise ConfigError(
                f"normalize_observations: expected vectors, found the images of "
                f"{adapter.spec.env_id}; networks of images scale them themselves: leave it out"
            )
        normalizer = observation_normalizer(adapter.spec)
    expected = adapter.spec.named_actions
    if config.action_names and len(config.action_names) != expected:
        each = "choice" if adapter.spec.action_kind == "discrete" else "dimension"
        raise ConfigError(
            f"action_names: expected {expected}, one for each {each} of an action of "
            f"{adapter.spec.env_id}, found {len(config.action_names)}"
        )
    agent = Agent(spec, adapter, algorithm, normalizer, config.action_names)
    agent.clock = Clock(0, config.total_timesteps, spec.loop.learning_starts(hyper))
    return agent


def saved_adapter(checkpoint: Checkpoint, spec: AlgorithmSpec) -> SpaceAdapter:
    """The spaces a checkpointed agent was built for; the algorithm must take them."""
    observation, action, frames, masked = _saved_spaces(checkpoint)
    env_id = saved_info(checkpoint).env_id
    try:
        check_spaces(spec, env_id, observation, action)
    except IncompatibleEnv as error:
        raise CheckpointError(f"{checkpoint.path}: spaces: {error}") from error
    return SpaceAdapter(env_id, observation, action, frames=frames, masked=masked)


def _episode_starts(given: object, rows: int, single: bool) -> np.ndarray:
    """A flag per row: none, one for all, or one for each observation of a batch."""
    flags = np.asarray(False if given is None else given)
    if flags.dtype != np.bool_ or flags.shape not in ((), () if single else (rows,)):
        raise UsageError(
            "episode_start: expected true, false, or one of them for each observation of a batch, "
            f"found {str(given)[:80]}"
        )
    return np.broadcast_to(flags, rows)


def _checked_state(state: PolicyState, initial: PolicyState) -> PolicyState:
    """The state, if it is one like the initial one; arrays with a row for each observation."""
    expected = [part.shape for part in initial]
    is_state = isinstance(state, tuple) and all(isinstance(part, np.ndarray) for part in state)
    found = [part.shape for part in state] if is_state else str(state)[:80]
    if found != expected:
        raise UsageError(
            f"state: expected arrays of the shapes {expected}, a row for each observation, found "
            f"{found}; pass the state that the last predict gave for them, or None at the start"
        )
    if not all(np.isfinite(part).all() for part in state):
        raise NonFiniteError("state: expected finite numbers, found others; begin again with None")
    return tuple(state)


def _saved_spaces(checkpoint: Checkpoint) -> tuple[gym.Space[Any], gym.Space[Any], int, bool]:
    """The spaces of a checkpoint's agent, its stacked images, and whether it has masks."""
    saved = checkpoint.read("spaces")
    with loading_part(checkpoint, "spaces"):
        observation, action = (space_from_plain(saved[name]) for name in ("observation", "action"))
        frames = saved.get("frames", 1)
        if type(frames) is not int or not 1 <= frames <= MAX_FRAMES:
            raise CheckpointError(f"frames: expected from 1 to {MAX_FRAMES}, found {frames!r:.80}")
        masked = saved.get("masked", False)
        choices = action_kind(action) in ("discrete", "multi_discrete")
        if type(masked) is not bool or (masked and not choices):
            raise CheckpointError(
                f"masked: expected true or false, and masks of discrete actions alone, found "
                f"{masked!r:.80}"
            )
    return observation, action, frames, masked


def resolve_device(name: str) -> torch.device:
    """The device a configuration names; `auto` takes CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    number = int(name.partition(":")[2] or 0)
    if name.startswith("cuda") and number >= torch.cuda.device_count():
        raise ConfigError(
            f"device: {name} was asked for, and PyTorch sees {torch.cuda.device_count()} CUDA "
            "devices"
        )
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device: mps was asked for, and this PyTorch has no MPS device")
    return torch.device(name)


class _TensorLimit(TorchFunctionMode):
    """Refuses tensors that the weights in a checkpoint cannot fill, before they take memory.

    The sizes of networks come from the checkpoint's configuration, and a few digits there could ask
    for all the memory of a machine.
    """

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        super().__init__()
        weights = None if checkpoint is None else checkpoint.files.get("agent.safetensors")
        self._limit = math.inf if weights is None else max(weights.size, LARGE_TENSOR)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _FACTORIES:
            size = (kwargs or {}).get("size", args[0] if args else ())
            shape = size if isinstance(size, (tuple, list)) else args
            numbers = [number for number in shape if isinstance(number, int)]
            if 4 * math.prod(numbers) > self._limit:
                raise CheckpointError(
                    f"the configuration asks for a tensor of {numbers}, and the weights in the "
                    "checkpoint cannot fill it"
                )
        return func(*args, **(kwargs or {}))


def _build_network(spec: AlgorithmSpec, hyper: HyperParameters, env_spec: EnvSpec) -> nn.Module:
    if hyper.network is None:
        try:
            model = spec.model(env_spec, hyper)
        except (AttributeError, TypeError) as error:
            raise ConfigError(
                f"the algorithm {spec.name!r}: its model cannot be built from a "
                f"{type(hyper).__name__}: {error}"
            ) from error
        if not isinstance(model, nn.Module):
            raise ConfigError(
                f"the algorithm {spec.name!r}: model: expected a callable that gives a "
                f"torch.nn.Module, found one that gives {type(model).__name__}"
            )
        return model
    refuse_untrusted({"algo_kwargs": {"network": hyper.network}})
    if is_placeholder(hyper.network):
        raise ConfigError(
            f"algo_kwargs.network: this agent's network was passed as an object ({hyper.network}); "
            "pass it again: load(path, network=...)"
        )
    wanted = "expected a callable (env_spec, hyper_parameters) that gives a torch.nn.Module"
    make: Any = hyper.network
    if isinstance(make, str):
        make = import_factory("algo_kwargs.network", make, nn.Module)
    try:
        network = make(env_spec, hyper)
    except RLTrainingError:
        raise
    except Exception as error:
        raise ConfigError(
            f"algo_kwargs.network: {wanted}; calling {make!r} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"algo_kwargs.network: {wanted}, found one that gives {type(network).__name__}"
        )
    return network
