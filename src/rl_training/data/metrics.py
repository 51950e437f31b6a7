"""Metrics of updates, and their running means."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import CheckpointError
from rl_training.storage.checks import saved_value

RECENT_UPDATES = 100  # updates averaged in a log row

Names = tuple[str, ...]


class Metrics(Mapping[str, Tensor]):
    """Detached 0-d tensors by name, kept as the one vector they were computed as.

    To take the vector apart costs more than to compute it, so that is done for those who ask.
    """

    __slots__ = ("names", "numbers")

    def __init__(self, names: Names, numbers: Tensor | np.ndarray) -> None:
        if len(names) != numbers.shape[0]:
            raise ValueError(f"expected {len(names)} numbers for {names}, found {len(numbers)}")
        self.names = names
        # A custom loss may report what it descends: kept unchanged, its graph would stay in memory.
        self.numbers = numbers if isinstance(numbers, np.ndarray) else numbers.detach()

    @classmethod
    def of(cls, values: Mapping[str, Tensor]) -> Metrics:
        """The same, from any mapping.

        Copied at once: what is reported may be a view of a parameter, which the next update moves.
        """
        if isinstance(values, Metrics):
            return values
        numbers = tuple(values.values())
        try:
            return cls(tuple(values), torch.stack(numbers))
        except TypeError:  # plain numbers among them; to convert each costs more than to stack all
            return cls(tuple(values), torch.stack([torch.as_tensor(x) for x in numbers]))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return torch.as_tensor(self.numbers)[self.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"Metrics({ {name: float(value) for name, value in self.items()} })"


def mean_metrics(rows: Sequence[Mapping[str, Tensor]]) -> Metrics:
    """The means of what several gradient steps reported under the same names."""
    metrics = [Metrics.of(row) for row in rows]
    numbers = torch.stack([torch.as_tensor(each.numbers) for each in metrics])
    return Metrics(metrics[0].names, numbers.mean(0))


class JoinedMetrics(Mapping[str, Tensor]):
    """Metrics of the parts of an update, which are averaged separately."""

    __slots__ = ("parts",)

    def __init__(self, *parts: Mapping[str, Tensor]) -> None:
        self.parts = tuple(map(Metrics.of, parts))

    def __getitem__(self, name: str) -> Tensor:
        for part in self.parts:
            if name in part.names:
                return part[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for part in self.parts for name in part.names)

    def __len__(self) -> int:
        return sum(map(len, self.parts))


def _finite_on_host(numbers: Tensor | np.ndarray) -> bool:
    """Whether all are finite; True, without waiting, for those on another device."""
    if isinstance(numbers, Tensor) and numbers.device.type != "cpu":
        return True
    # In double precision no sum of single ones overflows, and of few numbers Python's is quickest.
    return math.isfinite(sum(numbers.tolist()))


class RecentMetrics:
    """The metrics of the latest updates, left on their device until someone asks for the means.

    Updates of different kinds may report different names.
    """

    def __init__(self) -> None:
        self._recent: defaultdict[Names, deque[Tensor | np.ndarray]] = defaultdict(
            lambda: deque(maxlen=RECENT_UPDATES)
        )

    def add(self, metrics: Mapping[str, Tensor]) -> bool:
        """Keep one update's metrics; False if the host has them and one is not finite."""
        parts = metrics.parts if isinstance(metrics, JoinedMetrics) else (Metrics.of(metrics),)
        finite = True
        for part in parts:
            self._recent[part.names].append(part.numbers)
            finite = finite and _finite_on_host(part.numbers)
        return finite

    def means(self) -> dict[str, float]:
        """The mean of each metric over the latest updates that reported it."""
        columns: dict[str, list[np.ndarray]] = {}
        for names, rows in self._stacked().items():
            for name, column in zip(names, rows.cpu().numpy().T, strict=True):
                columns.setdefault(name, []).append(column)
        return {name: float(np.concatenate(found).mean()) for name, found in columns.items()}

    def _stacked(self) -> dict[Names, Tensor]:
        """A row per update, on the device of the newest: loaded rows are on the host."""
        stacked = {}
        for names, recent in self._recent.items():
            rows = [torch.as_tensor(x) for x in recent]
            stacked[names] = torch.stack([row.to(rows[-1].device) for row in rows])
        return stacked

    def state_dict(self) -> dict[str, Any]:
        """The latest numbers, a row per update, by the names they have in common."""
        return {"rows": dict(self._stacked())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved numbers."""
        self._recent.clear()
        for names, rows in saved_value(state, "rows").items():
            named = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
            if not named or not isinstance(rows, Tensor) or not rows.is_floating_point():
                raise CheckpointError(f"expected numbers by names of metrics, found {names!r:.80}")
            if rows.dim() != 2 or rows.shape[1] != len(names) or not len(rows):
                raise CheckpointError(f"expected {len(names)} numbers by update of {names}")
            self._recent[names].extend(rows.unbind())
