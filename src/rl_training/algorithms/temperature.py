"""The weight of the entropy in soft actor-critics: fixed, or learned to keep an entropy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.optimization import Optimizer
from rl_training.algorithms.soft_config import SoftActorCriticConfig
from rl_training.data.arrays import Array


class LogAlpha(nn.Module):
    """The learned number."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(math.log(start)))


class Temperature:
    """`alpha`, the weight of the entropy.

    "auto" starts at `initial_alpha` and descends the mean of
    -log(alpha) * (log_prob + target_entropy): alpha grows while the policy's entropy is below the
    target.
    """

    def __init__(
        self, hyper: SoftActorCriticConfig, target_entropy: float, device: torch.device
    ) -> None:
        self._fixed = None if hyper.alpha == "auto" else float(hyper.alpha)
        self._target = target_entropy
        log_alpha = LogAlpha(hyper.initial_alpha).to(device)
        self._optimizer = Optimizer(log_alpha)
        self._value = log_alpha.value.detach()

    def alpha(self, x: Array) -> Any:
        """The weight, as what goes with `x` without waiting for a device."""
        if self._fixed is not None:
            return self._fixed
        return self._value.exp() if isinstance(x, Tensor) else np.exp(self._value.numpy())

    def step(self, log_prob: Array, learning_rate: float) -> None:
        """One step on the log-probabilities [B] of the policy's actions, if it is learned."""
        if self._fixed is not None:
            return
        grad = self._optimizer.flat.grad
        assert grad is not None
        slope = -(log_prob.mean() + self._target)
        grad.fill_(slope if isinstance(slope, Tensor) else float(slope))
        self._optimizer.step(learning_rate)

    def state_dict(self) -> dict[str, Any]:
        """The learned number and its optimiser's moments."""
        return {"log_alpha": self._value, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self._value.copy_(state["log_alpha"])
        self._optimizer.load_state_dict(state["optimizer"])
