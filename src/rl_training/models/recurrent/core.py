"""The memory of recurrent models: an LSTM or GRU over sequences in which episodes may start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

CoreKind = Literal["lstm", "gru"]
MOST_PADDING = 4  # times the rows of a sequence, beyond which its pieces are packed, not padded
State = tuple[Tensor, ...]
"""Hidden state, and for an LSTM its cell state, each (batch, size)."""


class RecurrentCore(nn.Module):
    """One recurrent layer. Sequences are (time, batch, ...); states are (batch, size).

    Where `first` is set, an episode starts and what came before is forgotten. A sequence is cut
    there, and all pieces go through torch's fused kernel at once.
    """

    def __init__(self, input_size: int, size: int, kind: CoreKind = "lstm") -> None:
        super().__init__()
        self.size = size
        self.kind = kind
        self.layer = (nn.LSTM if kind == "lstm" else nn.GRU)(input_size, size)

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode: zeros."""
        weight = next(self.layer.parameters())
        parts = 2 if self.kind == "lstm" else 1
        return tuple(weight.new_zeros(batch_size, self.size) for _ in range(parts))

    def forward(self, inputs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """Outputs (time, batch, size) and the state after the last row.

        `inputs` is (time, batch, features) and `first` (time, batch).
        """
        if not bool(first[1:].any()):
            outputs, after = self.layer(inputs, self._to_layer(reset_state(state, first[0])))
            return outputs, self._from_layer(after)
        pieces = Pieces(first.cpu().numpy())
        return self._packed(inputs, self._before(state, first, pieces), pieces)

    def outputs(self, inputs: Tensor, state: State, first: Tensor) -> Tensor:
        """The outputs alone; where the state after them is not needed, pieces can be padded.

        The kernel for pieces of equal length is twice as fast as the one for packed ones.
        """
        if not bool(first[1:].any()):
            whole: Tensor = self(inputs, state, first)[0]
            return whole
        pieces = Pieces(first.cpu().numpy())
        before = self._before(state, first, pieces)
        if pieces.padding > MOST_PADDING:
            return self._packed(inputs, before, pieces)[0]
        padded = inputs.flatten(0, 1)[_on(first, pieces.rows)]
        outputs: Tensor = self.layer(padded, self._to_layer(before))[0]
        return outputs.flatten(0, 1)[_on(first, pieces.back)]

    def _packed(self, inputs: Tensor, before: State, pieces: Pieces) -> tuple[Tensor, State]:
        """Outputs and the state after the last row, from pieces that are not padded."""
        columns = torch.split(inputs.transpose(0, 1).flatten(0, 1), pieces.length.tolist())
        packed = pack_sequence(list(columns), enforce_sorted=False)
        outputs, after = self.layer(packed, self._to_layer(before))
        rows = pad_packed_sequence(outputs)[0].flatten(0, 1)[_on(inputs, pieces.back)]
        last = _on(inputs, np.flatnonzero(pieces.row + pieces.length == len(inputs)))
        return rows, tuple(part[last] for part in self._from_layer(after))

    def _before(self, state: State, first: Tensor, pieces: Pieces) -> State:
        """The state before each piece: zeros, but for pieces that go on from before row 0."""
        begin = _on(first, np.flatnonzero(pieces.row == 0))
        before = tuple(part.new_zeros(len(pieces.row), self.size) for part in state)
        for mine, part in zip(before, reset_state(state, first[0]), strict=True):
            mine[begin] = part
        return before

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
        starts = first.T.copy()
        starts[:, 0] = True
        begins = np.flatnonzero(starts)  # of rows laid out column by column
        self.column, self.row = np.divmod(begins, len(first))
        self.length = np.diff(begins, append=first.size)
        number: np.ndarray = np.cumsum(starts.reshape(-1)).reshape(starts.shape)
        self.number = number.T - 1  # at each row

    @property
    def padding(self) -> float:
        """How many times the rows there would be if all pieces were as long as the longest."""
        return float(self.length.max() * len(self.length) / self.number.size)

    @property
    def rows(self) -> np.ndarray:
        """The flat rows of all pieces, padded with others to the longest: (longest, pieces)."""
        steps, batch = self.number.shape
        within = np.minimum(self.row + np.arange(self.length.max())[:, None], steps - 1)
        rows: np.ndarray = within * batch + self.column
        return rows

    @property
    def back(self) -> np.ndarray:
        """Where each row is among those of padded pieces: (time, batch)."""
        within = np.arange(len(self.number))[:, None] - self.row[self.number]
        places: np.ndarray = within * len(self.row) + self.number
        return places


def reset_state(state: State, first: Tensor) -> State:
    """The state with zeros in the rows where an episode starts: `first` (batch,)."""
    return tuple(part.masked_fill(first.unsqueeze(-1), 0.0) for part in state)


def _on(tensor: Tensor, index: np.ndarray) -> Tensor:
    """An index where the tensor is."""
    return torch.from_numpy(index).to(tensor.device)
