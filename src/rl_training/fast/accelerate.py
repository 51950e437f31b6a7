"""Puts kernels in place of definitions, where device, threads, network and loss allow.

Only `runtime/execution.py`, `experiment/registry.py` and the reference scripts import `fast`; an
algorithm that is not accelerated computes the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.algorithms.base import Algorithm, Recurrent
from rl_training.algorithms.c51 import C51
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.functional.random_shift import RandomShifts
from rl_training.algorithms.optimization import AveragedNetwork, Optimizer, TargetNetwork
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.redq import REDQ
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.soft_actor_critic import SoftActorCritic, Temperature
from rl_training.algorithms.tqc import TQC
from rl_training.algorithms.value_based import ValueBased
from rl_training.data.types import PolicyState
from rl_training.fast import images
from rl_training.fast.autograd import attach_kernels
from rl_training.fast.networks import KERNELS, ActorCriticKernel, Buffers, has_kernel
from rl_training.fast.recurrent import RECURRENT, RecurrentKernel
from rl_training.fast.updates import PPOKernel, SoftKernel, ValueKernel
from rl_training.models.mlp_actor_critic import MLPActorCritic

Function = Callable[..., Any]


@dataclass(frozen=True)
class Kernels:
    """What there is for an algorithm: methods for acting and for learning, and losses."""

    acting: dict[str, Function] = field(default_factory=dict)
    learning: dict[str, Function] = field(default_factory=dict)
    losses: list[tuple[Optimizer, Function, Function]] = field(default_factory=list)
    """The optimiser, the loss of a packaged class, and the kernel that stands for it."""


def accelerate(algorithm: Algorithm) -> None:
    """Make an algorithm act with kernels, and learn with them too if there is one thread.

    With several threads torch learns: it splits matrix products among them. Compiled losses stay
    compiled. A loss without a kernel still gets those of its network's building blocks.
    """
    if algorithm.device.type != "cpu":
        return
    kernels = _find(algorithm)
    learns = _one_thread() and algorithm.execution == "eager"
    methods = kernels.acting | (kernels.learning if learns else {})
    for name, method in methods.items():
        setattr(algorithm, name, method)
    for optimizer, loss, kernel in kernels.losses if learns else ():
        optimizer.kernels[loss] = kernel
    for part in (getattr(algorithm, name) for name in algorithm.state_names()):
        if isinstance(part, RandomShifts):
            part.shift = images.random_shift
        by_autograd = isinstance(part, Optimizer) and not part.kernels
        if learns and (by_autograd or isinstance(part, TargetNetwork)):
            attach_kernels(part.module, part.flat)


def learns_with_kernels(algorithm: Algorithm) -> bool:
    """Whether an accelerated algorithm computes gradients of its losses with kernels."""
    parts = (getattr(algorithm, name) for name in algorithm.state_names())
    return any(isinstance(part, Optimizer) and part.kernels for part in parts)


def has_loss_kernels(algorithm: Algorithm) -> bool:
    """Whether the algorithm would learn with kernels of its losses."""
    return algorithm.device.type == "cpu" and _one_thread() and bool(_find(algorithm).losses)


def _one_thread() -> bool:
    return torch.get_num_threads() == 1


def _find(algorithm: Algorithm) -> Kernels:
    if isinstance(algorithm, Recurrent):  # before the families that these are of as well
        return _recurrent(algorithm)
    if isinstance(algorithm, ValueBased):
        return _value_based(algorithm)
    if isinstance(algorithm, SoftActorCritic):
        return _soft(algorithm)
    return _ppo(algorithm) if isinstance(algorithm, PPO) else Kernels()


def _value_based(algorithm: ValueBased) -> Kernels:
    found = Kernels()
    if algorithm.model is not algorithm.optimizer.module:
        return found
    model, target = _trained(algorithm.optimizer), _followed(algorithm.target)
    average = None if algorithm.average is None else _followed(algorithm.average)
    if algorithm.average is not None and average is None:
        return found
    for home in (DQN, QRDQN, C51):
        if model is None or target is None or not isinstance(algorithm, home):
            continue
        kernel = ValueKernel(algorithm, model, target, average)
        if _unchanged(algorithm, home, "greedy", "q_values"):
            found.acting["greedy"] = kernel.greedy
        if _unchanged(algorithm, home, "loss", "selector", "q_values"):
            found.losses.append((algorithm.optimizer, home.loss, kernel.differentiate))
    return found


def _soft(algorithm: SoftActorCritic) -> Kernels:
    found = Kernels()
    modules = (algorithm.actor_optimizer.module, algorithm.critic_optimizer.module)
    if algorithm.actor is not modules[0] or algorithm.critics is not modules[1]:
        return found
    actor = _trained(algorithm.actor_optimizer)
    critics, target = _trained(algorithm.critic_optimizer), _followed(algorithm.target)
    for home in (SAC, TQC, REDQ):
        if actor is None or not isinstance(algorithm, home):
            continue
        if not _unchanged(algorithm, home, "policy", "next_action"):
            continue
        if type(algorithm.temperature) is not Temperature:
            continue
        kernel = SoftKernel(algorithm, actor, critics, target)
        if _unchanged(algorithm, home, "actions"):
            found.acting["actions"] = kernel.actions
        if critics is None or target is None:
            continue
        if _unchanged(algorithm, home, "critic_loss"):
            loss = (algorithm.critic_optimizer, home.critic_loss, kernel.differentiate_critics)
            found.losses.append(loss)
        if _unchanged(algorithm, home, "actor_loss", "actor_value"):
            loss = (algorithm.actor_optimizer, home.actor_loss, kernel.differentiate_actor)
            found.losses.append(loss)
    return found


def _ppo(algorithm: PPO) -> Kernels:
    found = Kernels()
    optimizer, names = algorithm.optimizer, ("policy", "policy_and_value", "actions_from")
    packaged = _is_whole(optimizer) and has_kernel(optimizer.module, {MLPActorCritic})
    packaged = packaged and algorithm.model is optimizer.module
    if not packaged or not _unchanged(algorithm, PPO, *names):
        return found
    kernel = PPOKernel(algorithm, ActorCriticKernel(algorithm.model, _buffers(optimizer)))
    if _unchanged(algorithm, PPO, "actions"):
        found.acting["actions"] = kernel.actions
    learning = ("update", "loss", "samples", "observations", "minibatches", "evaluate_rollout")
    if _unchanged(algorithm, PPO, *learning):
        found.learning.update(samples=kernel.samples, minibatches=kernel.minibatches)
        found.losses.append((optimizer, PPO.loss, kernel.differentiate))
    return found


def _recurrent(algorithm: Any) -> Kernels:
    optimizer = algorithm.optimizer
    packaged = _is_whole(optimizer) and has_kernel(optimizer.module, RECURRENT)
    packaged = packaged and algorithm.model is optimizer.module
    if not packaged or not _unchanged(algorithm, Recurrent, "output_and_state"):
        return Kernels()
    kernels = {optimizer.module: RecurrentKernel(optimizer.module, _buffers(optimizer))}
    average = getattr(algorithm, "average", None)
    if average is not None:
        buffers = Buffers(average.flat.detach().numpy())
        kernels[average.module] = RecurrentKernel(average.module, buffers)

    def output_and_state(
        obs: np.ndarray, state: PolicyState, first: np.ndarray, network: nn.Module | None = None
    ) -> tuple[np.ndarray, PolicyState]:
        chosen = optimizer.module if network is None else network
        return kernels[chosen].output_and_state(obs, state, first)

    return Kernels(acting={"output_and_state": output_and_state})


def _buffers(optimizer: Optimizer) -> Buffers:
    assert optimizer.flat.grad is not None
    return Buffers(optimizer.flat.detach().numpy(), optimizer.flat.grad.numpy())


def _trained(optimizer: Optimizer) -> Any:
    """The kernel of a trained network, or None."""
    module = optimizer.module
    if not has_kernel(module) or not _is_whole(optimizer):
        return None
    return KERNELS[type(module)](module, _buffers(optimizer))


def _followed(target: TargetNetwork) -> Any:
    """The kernel of a target network, or None."""
    module = target.module
    known = type(target) in (TargetNetwork, AveragedNetwork) and has_kernel(module)
    if not known or not _is_whole(target):
        return None
    return KERNELS[type(module)](module, Buffers(target.flat.detach().numpy()))


def _is_whole(part: Optimizer | TargetNetwork) -> bool:
    """Whether all parameters of a network lie in its flat buffer and none was frozen since."""
    parameters = list(part.module.parameters())
    alike = all(p.requires_grad == part.flat.requires_grad for p in parameters)
    return alike and sum(p.numel() for p in parameters) == part.flat.numel()


def _unchanged(algorithm: Algorithm, home: type[Any], *names: str) -> bool:
    """Whether methods that a kernel stands for, or relies on, are those of the packaged class."""
    return all(
        getattr(type(algorithm), name) is getattr(home, name) and name not in vars(algorithm)
        for name in names
    )
