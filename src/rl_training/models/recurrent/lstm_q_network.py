"""A recurrent network that gives one Q-value per action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from rl_training.data.types import EnvSpec
from rl_training.models.blocks import MLP, q_layers
from rl_training.models.recurrent.core import CoreKind, RecurrentCore, State, reset_state

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from rl_training.config.value_based import ActionLayerOptions, DRQNConfig


class RecurrentActions(NamedTuple):
    """Q-values (batch, action_dim), greedy actions (batch,) and the state after them."""

    q_values: Tensor
    actions: Tensor
    state: State


class LSTMQNetwork(nn.Module):
    """Q-values of vector observations and what was seen before them in the episode.

    An encoder of ReLU layers, an LSTM or GRU, and a linear head, or two streams with a layer of
    their own; `layer_norm` normalises before each ReLU. Sequences are (time, batch, ...); states
    are tuples of (batch, core_size).
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (128,),
        *,
        core: CoreKind = "lstm",
        core_size: int = 128,
        **options: Unpack[ActionLayerOptions],
    ) -> None:
        super().__init__()
        sizes = (obs_dim, *hidden_sizes)
        self.encoder: MLP | None = None
        if hidden_sizes:
            layer_norm = options.get("layer_norm", False)
            self.encoder = MLP(sizes, activate_last=True, layer_norm=layer_norm)
        self.core = RecurrentCore(sizes[-1], core_size, core)
        streams = (core_size,) if options.get("dueling") else ()
        self.head = q_layers(core_size, action_dim, streams, **options)

    @classmethod
    def build(cls, spec: EnvSpec, hyper: DRQNConfig) -> LSTMQNetwork:
        """The network for an environment, as the hyper-parameters size it."""
        return cls(
            spec.obs_dim,
            spec.num_actions,
            hyper.hidden_sizes,
            core=hyper.core,
            core_size=hyper.core_size,
            **hyper.layer_options(),
        )

    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode."""
        return self.core.initial_state(batch_size)

    def reset_state(self, state: State, first: Tensor) -> State:
        """The state with the rows forgotten where an episode starts: `first` (batch,)."""
        return reset_state(state, first)

    def q_values_sequence(self, obs: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """Q-values (time, batch, action_dim) and the state after the last row.

        `obs` is (time, batch, obs_dim); `first` (time, batch) says which rows start an episode.
        """
        rows = obs.flatten(0, 1)
        features = rows if self.encoder is None else self.encoder(rows)
        outputs, after = self.core(features.unflatten(0, obs.shape[:2]), state, first)
        q_values: Tensor = self.head(outputs.flatten(0, 1)).unflatten(0, obs.shape[:2])
        return q_values, after

    def act(self, obs: Tensor, state: State, first: Tensor) -> RecurrentActions:
        """Q-values, greedy actions and the new state for one step: `obs` (batch, obs_dim)."""
        q_values, after = self.q_values_sequence(obs.unsqueeze(0), state, first.unsqueeze(0))
        return RecurrentActions(q_values[0], q_values[0].argmax(-1), after)
