"""The memory of recurrent models: an LSTM or GRU over sequences in which episodes may start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from rl_training.models.blocks import ArrayViews

CoreKind = Literal["lstm", "gru"]
MOST_PADDING = 4  # times the rows of a sequence, beyond which its pieces are packed, not padded
State = tuple[Tensor, ...]
"""Hidden state, and for an LSTM its cell state, each (batch, size)."""
Arrays = tuple[np.ndarray, ...]
"""The same on the host."""


class RecurrentCore(nn.Module):
    """One recurrent layer. Sequences are (time, batch, ...); states are (batch, size).

    Where `first` is set, an episode starts and what came before is forgotten. A sequence is cut
    there, and all pieces go through torch's fused kernel at once. `step` is for acting on a CPU:
    one row of a sequence, on arrays, which costs a fifth of a call of the kernel.
    """

    def __init__(self, input_size: int, size: int, kind: CoreKind = "lstm") -> None:
        super().__init__()
        self.size = size
        self.kind = kind
        self.layer = (nn.LSTM if kind == "lstm" else nn.GRU)(input_size, size)
        by_input, by_state, bias_input, bias_state = self.layer.parameters()
        self._weights = [(by_input, bias_input), (by_state, bias_state)]
        self._views = ArrayViews()

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode: zeros."""
        weight = next(self.layer.parameters())
        parts = 2 if self.kind == "lstm" else 1
        return tuple(weight.new_zeros(batch_size, self.size) for _ in range(parts))

    def forward(self, inputs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """Outputs (time, batch, size) and the state after the last row.

        `inputs` is (time, batch, features) and `first` (time, batch).
        """
        state = reset_state(state, first[0])
        if bool(first[1:].any()):
            return self._in_pieces(inputs, state, first)
        outputs, after = self.layer(inputs, self._to_layer(state))
        return outputs, self._from_layer(after)

    def outputs(self, inputs: Tensor, state: State, first: Tensor) -> Tensor:
        """The outputs alone; where the state after them is not needed, pieces can be padded.

        The kernel for pieces of equal length is twice as fast as the one for packed ones.
        """
        pieces = Pieces(first.cpu().numpy())
        if len(pieces.row) == first.shape[1] or pieces.padding > MOST_PADDING:
            outputs: Tensor = self(inputs, state, first)[0]
            return outputs
        there, back = (torch.from_numpy(x).to(first.device) for x in pieces.indices())
        begin = torch.from_numpy(np.flatnonzero(pieces.row == 0)).to(first.device)
        before = [part.new_zeros(len(pieces.row), self.size) for part in state]
        for mine, part in zip(before, reset_state(state, first[0]), strict=True):
            mine[begin] = part
        padded = self.layer(inputs.flatten(0, 1)[there], self._to_layer(before))[0]
        rows: Tensor = padded.flatten(0, 1)[back]
        return rows

    def step(self, inputs: np.ndarray, state: Arrays, first: np.ndarray) -> Arrays:
        """The state after one step, whose first part is the output: `inputs` (batch, features)."""
        before = state
        if first.any():
            before = tuple(np.where(first[:, None], np.float32(0), part) for part in state)
        (by_input, bias_input), (by_state, bias_state) = self._views.of(self._weights)
        seen, kept = inputs @ by_input.T + bias_input, before[0] @ by_state.T + bias_state
        if self.kind == "gru":
            return (_gru_step(seen, kept, before[0]),)
        return _lstm_step(seen + kept, before[1])

    def _in_pieces(self, inputs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """The same for a sequence with episodes that start inside it."""
        steps, batch = first.shape
        starts = first.T.clone()
        starts[:, 0] = True
        begins = starts.reshape(-1).nonzero().squeeze(-1)  # in rows laid out column by column
        lengths = torch.diff(begins, append=begins.new_tensor([steps * batch]))
        columns = inputs.transpose(0, 1).reshape(steps * batch, -1)
        pieces = list(torch.split(columns, lengths.tolist()))
        packed = pack_sequence(pieces, enforce_sorted=False)
        goes_on = begins % steps == 0  # pieces that start with the sequence, in column order
        before = [part.new_zeros(len(begins), self.size) for part in state]
        for mine, part in zip(before, state, strict=True):
            mine[goes_on] = part
        outputs, after = self.layer(packed, self._to_layer(before))
        rows = _unpacked(outputs, lengths).reshape(batch, steps, self.size).transpose(0, 1)
        last = goes_on.roll(-1)  # the piece before one that starts a column ends the column before
        return rows, tuple(part[last] for part in self._from_layer(after))

    def _to_layer(self, state: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        layered = tuple(part.unsqueeze(0) for part in state)
        return layered if self.kind == "lstm" else layered[0]

    def _from_layer(self, state: Tensor | tuple[Tensor, ...]) -> State:
        parts = state if isinstance(state, tuple) else (state,)
        return tuple(part.squeeze(0) for part in parts)


class Pieces:
    """Where sequences are cut: a piece for each column and one more for each start inside it.

    `first` is (time, batch). The pieces are in the order of columns, and in each in that of time;
    `row`, `column` and `length` say where each starts and how long it is.
    """

    def __init__(self, first: np.ndarray) -> None:
        self.shape = first.shape
        starts = first.T.copy()
        starts[:, 0] = True
        begins = np.flatnonzero(starts)  # of rows laid out column by column
        self.column, self.row = np.divmod(begins, len(first))
        self.length = np.diff(begins, append=first.size)
        self.number = np.cumsum(starts.reshape(-1)).reshape(starts.shape).T - 1  # at each row

    @property
    def padding(self) -> float:
        """How many times the rows there would be if all pieces were as long as the longest."""
        return float(self.length.max() * len(self.length) / self.number.size)

    def indices(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of padded pieces (longest, pieces), and where the rows went (time, batch)."""
        steps, batch = self.shape
        within = np.minimum(self.row + np.arange(self.length.max())[:, None], steps - 1)
        back = np.arange(steps)[:, None] - self.row[self.number]
        return within * batch + self.column, back * len(self.row) + self.number


def _lstm_step(gates: np.ndarray, cell: np.ndarray) -> Arrays:
    """Output and cell state from the sums before the four gates, in torch's order."""
    size = cell.shape[1]
    new = np.tanh(gates[:, 2 * size : 3 * size])
    gates = _sigmoid(gates)
    after = gates[:, size : 2 * size] * cell + gates[:, :size] * new
    return gates[:, 3 * size :] * np.tanh(after), after


def _gru_step(seen: np.ndarray, kept: np.ndarray, hidden: np.ndarray) -> np.ndarray:
    """Output from the sums over the input and over the state, in torch's order of gates."""
    size = hidden.shape[1]
    gates = _sigmoid(seen[:, : 2 * size] + kept[:, : 2 * size])
    reset, update = gates[:, :size], gates[:, size:]
    new = np.tanh(seen[:, 2 * size :] + reset * kept[:, 2 * size :])
    after: np.ndarray = new + update * (hidden - new)
    return after


def _sigmoid(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 1 / (1 + np.exp(-x))
    return result


def reset_state(state: State, first: Tensor) -> State:
    """The state with zeros in the rows where an episode starts: `first` (batch,)."""
    return tuple(part.masked_fill(first.unsqueeze(-1), 0.0) for part in state)


def _unpacked(packed: PackedSequence, lengths: Tensor) -> Tensor:
    """The rows of a packed sequence, piece after piece."""
    padded, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    filled = torch.arange(padded.shape[1], device=lengths.device) < lengths.unsqueeze(-1)
    return padded[filled]
