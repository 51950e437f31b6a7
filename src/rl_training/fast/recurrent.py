"""One step of a recurrent network on NumPy arrays, for acting on a CPU.

It costs a fifth of a call of torch's kernel for sequences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from rl_training.data.types import PolicyState
from rl_training.fast.networks import Buffers, DuelingKernel, MLPKernel
from rl_training.models.blocks import MLP, DuelingMLP
from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.models.recurrent.core import RecurrentCore
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork

Array = np.ndarray


class CoreKernel:
    """Kernel of `RecurrentCore`, after its encoder."""

    def __init__(self, encoder: MLP | None, core: RecurrentCore, buffers: Buffers) -> None:
        self._encoder = None if encoder is None else MLPKernel(encoder, buffers)
        self._gru = core.kind == "gru"
        weight_input, weight_state, bias_input, bias_state = core.layer.parameters()
        layers = [(weight_input, bias_input), (weight_state, bias_state)]
        self._weights = buffers.views(layers, buffers.values)

    def step(self, obs: Array, state: PolicyState, first: Array) -> PolicyState:
        """The state after one step, whose first part is the output."""
        features = obs if self._encoder is None else self._encoder.forward(obs)
        if first.any():
            state = tuple(np.where(first[:, None], np.float32(0), part) for part in state)
        (weight_input, bias_input), (weight_state, bias_state) = self._weights
        from_input = features @ weight_input.T + bias_input
        from_state = state[0] @ weight_state.T + bias_state
        if self._gru:
            return (_gru_step(from_input, from_state, state[0]),)
        return _lstm_step(from_input + from_state, state[1])


class RecurrentKernel:
    """Kernel of `LSTMQNetwork` and `RecurrentActorCritic`: first output and the state after it."""

    def __init__(self, module: Any, buffers: Buffers) -> None:
        if isinstance(module, LSTMQNetwork):
            cores, head = [(module.encoder, module.core)], module.head
        else:
            cores = [(memory.encoder, memory.core) for memory in module.memories]
            head = module.actor
        self._cores = [CoreKernel(encoder, core, buffers) for encoder, core in cores]
        self._head: DuelingKernel | MLPKernel
        if isinstance(head, DuelingMLP):
            self._head = DuelingKernel(head, buffers)
        else:
            assert isinstance(head, MLP)
            self._head = MLPKernel(head, buffers)

    def output_and_state(
        self, obs: Array, state: PolicyState, first: Array
    ) -> tuple[Array, PolicyState]:
        """The network's output for one step, and its state after it."""
        each = len(state) // len(self._cores)
        with np.errstate(all="ignore"):
            parts = [
                core.step(obs, state[each * k : each * (k + 1)], first)
                for k, core in enumerate(self._cores)
            ]
            output: Array = self._head.forward(parts[0][0])
        return output, tuple(part for core in parts for part in core)


RECURRENT: tuple[type[nn.Module], ...] = (LSTMQNetwork, RecurrentActorCritic)


def _lstm_step(gates: Array, cell: Array) -> PolicyState:
    """Output and cell state from the sums before the four gates, in torch's order."""
    size = cell.shape[1]
    new = np.tanh(gates[:, 2 * size : 3 * size])
    gates = _sigmoid(gates)
    after = gates[:, size : 2 * size] * cell + gates[:, :size] * new
    return gates[:, 3 * size :] * np.tanh(after), after


def _gru_step(from_input: Array, from_state: Array, hidden: Array) -> Array:
    """Output from the sums over the input and over the state, in torch's order of gates."""
    size = hidden.shape[1]
    gates = _sigmoid(from_input[:, : 2 * size] + from_state[:, : 2 * size])
    reset, update = gates[:, :size], gates[:, size:]
    new = np.tanh(from_input[:, 2 * size :] + reset * from_state[:, 2 * size :])
    after: Array = new + update * (hidden - new)
    return after


def _sigmoid(x: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-x))
    return result
