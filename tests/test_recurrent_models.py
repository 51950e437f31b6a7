"""Recurrent models: a sequence with episodes in it is those episodes, one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.config.value_based import DRQNConfig
from rl_training.data.types import EnvSpec
from rl_training.models.blocks import DuelingMLP
from rl_training.models.recurrent.core import Pieces, RecurrentCore, State, reset_state
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from rounding import double_precision

Kind = Literal["lstm", "gru"]
KINDS: tuple[Kind, ...] = ("lstm", "gru")
each_kind = pytest.mark.parametrize("kind", KINDS)
FEATURES, SIZE = 3, 4


def make_core(kind: Kind, seed: int = 0) -> RecurrentCore:
    torch.manual_seed(seed)
    return RecurrentCore(FEATURES, SIZE, kind)


def by_episode(
    core: RecurrentCore, inputs: Tensor, state: State, first: Tensor
) -> tuple[Tensor, State]:
    """Every column cut where episodes start, and every piece unrolled on its own."""
    steps, batch = first.shape
    columns, finals = [], []
    for column in range(batch):
        starts = [0, *(row for row in range(1, steps) if first[row, column]), steps]
        memory = tuple(part[None, column : column + 1] for part in state)
        pieces = []
        for begin, end in pairwise(starts):
            if first[begin, column]:
                memory = tuple(torch.zeros(1, 1, SIZE) for _ in state)
            before = memory if core.kind == "lstm" else memory[0]
            outputs, after = core.layer(inputs[begin:end, column : column + 1], before)
            memory = after if core.kind == "lstm" else (after,)
            pieces.append(outputs)
        columns.append(torch.cat(pieces))
        finals.append(memory)
    ends = tuple(torch.cat(parts, 1)[0] for parts in zip(*finals, strict=True))
    return torch.cat(columns, 1), ends


@double_precision()
def assert_equals_the_episodes(kind: Kind, first: Tensor, seed: int = 0) -> None:
    """Outputs, final state, and the gradients of all that goes in."""
    core = make_core(kind, seed)
    steps, batch = first.shape
    inputs = torch.randn(steps, batch, FEATURES, requires_grad=True)
    state = tuple(torch.randn(batch, SIZE, requires_grad=True) for _ in core.initial_state(1))
    shares = torch.randn(steps, batch, SIZE) / first.numel(), torch.randn(batch, SIZE) / batch
    sources = [*core.parameters(), inputs, *state]
    found = []
    for outputs, after in (core(inputs, state, first), by_episode(core, inputs, state, first)):
        sums = (outputs * shares[0]).sum() + sum((part * shares[1]).sum() for part in after)
        found.append([outputs, *after, *torch.autograd.grad(sums, sources, materialize_grads=True)])
    for mine, expected in zip(*found, strict=True):
        assert_close(mine, expected)
    alone = core.outputs(inputs, state, first)
    expected_outputs = by_episode(core, inputs, state, first)[0]
    assert_close(alone, expected_outputs)
    gradients = (
        torch.autograd.grad((x * shares[0]).sum(), sources, materialize_grads=True)
        for x in (alone, expected_outputs)
    )
    for mine, expected in zip(*gradients, strict=True):
        assert_close(mine, expected)


@each_kind
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("resets", ["none", "row 0", "every row", "the last row", "one column"])
def test_a_sequence_equals_its_episodes(kind: Kind, resets: str, steps: int, batch: int) -> None:
    first = torch.zeros(steps, batch, dtype=torch.bool)
    if resets == "every row":
        first[:] = True
    elif resets == "one column":
        first[steps // 2, batch // 2] = True
    elif resets != "none":
        first[0 if resets == "row 0" else -1] = True
    assert_equals_the_episodes(kind, first)


@each_kind
@settings(max_examples=150, deadline=None)
@given(st.integers(1, 10), st.integers(1, 5), st.floats(0, 1), st.integers(0, 10**6))
def test_any_pattern_of_episodes_equals_its_episodes(
    kind: Kind, steps: int, batch: int, share: float, seed: int
) -> None:
    first = torch.from_numpy(np.random.default_rng(seed).random((steps, batch)) < share)
    assert_equals_the_episodes(kind, first, seed)


@each_kind
def test_pieces_are_padded_unless_that_would_be_mostly_padding(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(kind)
    first = torch.zeros(12, 3, dtype=torch.bool)
    first[1:, 0] = True  # twelve pieces of one row, two of twelve rows: 14 * 12 rows for 36
    assert Pieces(first.numpy()).padding == 14 * 12 / 36
    packed = []
    monkeypatch.setattr(core, "_packed", lambda *x: packed.append(x) or ("packed", ()))
    assert core.outputs(torch.randn(12, 3, FEATURES), core.initial_state(3), first) == "packed"
    first[6:, 0] = False  # six pieces, one of them of seven rows, and the two: 8 * 12 rows
    assert Pieces(first.numpy()).padding == 8 * 12 / 36
    core.outputs(torch.randn(12, 3, FEATURES), core.initial_state(3), first)
    assert len(packed) == 1


def test_pieces_of_columns_by_hand() -> None:
    first = np.array([[0, 0], [0, 1], [1, 0]], np.bool_)
    pieces = Pieces(first)
    assert (pieces.column.tolist(), pieces.row.tolist()) == ([0, 0, 1, 1], [0, 2, 0, 1])
    assert pieces.length.tolist() == [2, 1, 1, 2]
    there, back = pieces.rows, pieces.back
    # Rows t * 2 + n of each piece; 4 and 5, the last ones, stand in where there are none.
    assert there[0].tolist() == [0, 4, 1, 3]
    assert there[1, [0, 3]].tolist() == [2, 5]
    assert there.reshape(-1)[back].tolist() == [[0, 1], [2, 3], [4, 5]]


@each_kind
def test_a_whole_sequence_is_one_call_of_torchs_layer(kind: Kind) -> None:
    core = make_core(kind)
    calls: list[nn.Module] = []
    core.layer.register_forward_hook(lambda layer, *_: calls.append(layer))
    first = torch.rand(50, 8, generator=torch.Generator().manual_seed(0)) < 0.3
    for flags in (first, torch.zeros_like(first), torch.ones_like(first)):
        calls.clear()
        core(torch.randn(50, 8, FEATURES), core.initial_state(8), flags)
        core.outputs(torch.randn(50, 8, FEATURES), core.initial_state(8), flags)
        assert calls == [core.layer] * 2


@each_kind
def test_what_came_before_a_start_changes_nothing_after_it(kind: Kind) -> None:
    core = make_core(kind)
    inputs, first = torch.randn(6, 2, FEATURES), torch.zeros(6, 2, dtype=torch.bool)
    first[3, 0] = True
    mine, theirs = (
        core(torch.cat([inputs[:3] + shift, inputs[3:]]), core.initial_state(2), first)
        for shift in (0.0, 1.0)
    )
    assert torch.equal(mine[0][3:, 0], theirs[0][3:, 0])
    assert torch.equal(mine[1][0][0], theirs[1][0][0])
    # The column without a start remembers.
    assert (mine[0][3:, 1] != theirs[0][3:, 1]).all()
    assert (mine[1][0][1] != theirs[1][0][1]).all()


@each_kind
def test_the_initial_state_is_zeros(kind: Kind) -> None:
    state = make_core(kind).initial_state(3)
    assert [part.shape for part in state] == [(3, SIZE)] * (2 if kind == "lstm" else 1)
    assert not any(part.any() for part in state)


def test_a_reset_zeros_the_flagged_rows_alone() -> None:
    state = (torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0, 6.0], [7.0, 8.0]]))
    hidden, cell = reset_state(state, torch.tensor([True, False]))
    assert hidden.tolist() == [[0.0, 0.0], [3.0, 4.0]]
    assert cell.tolist() == [[0.0, 0.0], [7.0, 8.0]]
    assert state[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]


# The network.

OBS_DIM, ACTIONS, CORE_SIZE = 3, 5, 16
VARIANTS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": {"core": "gru"},
    "dueling": {"dueling": True},
    "dueling gru, no encoder": {"core": "gru", "dueling": True, "hidden_sizes": ()},
    "normalised": {"dueling": True, "layer_norm": True},
    "two layers before": {"hidden_sizes": (7, 6)},
    "no encoder": {"hidden_sizes": ()},
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def make_network(variant: str) -> LSTMQNetwork:
    torch.manual_seed(0)
    options: dict[str, Any] = {"hidden_sizes": (6,), "core_size": CORE_SIZE} | VARIANTS[variant]
    return LSTMQNetwork(OBS_DIM, ACTIONS, **options)


@each_variant
@double_precision()
def test_acting_step_by_step_gives_the_values_of_the_sequence(variant: str) -> None:
    network = make_network(variant)
    obs = torch.randn(9, 4, OBS_DIM)
    first = torch.rand(9, 4) < 0.3
    state = tuple(torch.randn(4, CORE_SIZE) for _ in network.initial_state(1))
    q_values, after = network.q_values_sequence(obs, state, first)
    assert q_values.shape == (9, 4, ACTIONS)
    for row in range(9):
        acted = network.act(obs[row], state, first[row])
        assert_close(acted.q_values, q_values[row])
        assert torch.equal(acted.actions, acted.q_values.argmax(-1))
        state = acted.state
    for mine, expected in zip(state, after, strict=True):
        assert_close(mine, expected)


@each_variant
def test_the_network_starts_from_zeros_and_forgets_the_rows_it_is_told_to(variant: str) -> None:
    network = make_network(variant)
    parts = 1 if VARIANTS[variant].get("core") == "gru" else 2
    start = network.initial_state(2)
    assert [part.tolist() for part in start] == [[[0.0] * CORE_SIZE] * 2] * parts
    state = tuple(torch.randn(3, CORE_SIZE) for _ in range(parts))
    forgotten = network.reset_state(state, torch.tensor([False, True, False]))
    for before, after in zip(state, forgotten, strict=True):
        assert torch.equal(after[[0, 2]], before[[0, 2]])
        assert not after[1].any()


@each_variant
def test_the_values_depend_on_what_was_seen_before(variant: str) -> None:
    network = make_network(variant)
    obs, first = torch.randn(5, 1, OBS_DIM), torch.zeros(5, 1, dtype=torch.bool)
    other = torch.cat([obs[:1] + 1, obs[1:]])
    mine, theirs = (
        network.q_values_sequence(x, network.initial_state(1), first)[0] for x in (obs, other)
    )
    assert (mine[1:] != theirs[1:]).any(-1).all()


@double_precision()
def test_the_encoder_is_layers_with_relus_and_the_head_is_linear() -> None:
    network = make_network("two layers before")
    obs, state = torch.randn(4, 2, OBS_DIM), network.initial_state(2)
    first = torch.zeros(4, 2, dtype=torch.bool)
    weights = dict(network.encoder.named_parameters())
    (w0, b0), (w1, b1) = ((weights[f"weight{i}"], weights[f"bias{i}"]) for i in (0, 1))
    features = torch.relu(torch.relu(obs @ w0.T + b0) @ w1.T + b1)
    outputs, _ = network.core.layer(features)
    weight, bias = network.head.parameters()
    q_values, _ = network.q_values_sequence(obs, state, first)
    assert_close(q_values, outputs @ weight.T + bias)


@pytest.mark.parametrize("variant", ["dueling", "dueling gru, no encoder"])
@double_precision()
def test_dueling_values_are_the_value_plus_what_an_advantage_is_above_their_mean(
    variant: str,
) -> None:
    network = make_network(variant)
    obs, first = torch.randn(6, 2, OBS_DIM), torch.rand(6, 2) < 0.3
    outputs: list[Tensor] = []
    network.core.register_forward_hook(lambda *args: outputs.append(args[-1][0]))
    q_values, _ = network.q_values_sequence(obs, network.initial_state(2), first)
    assert isinstance(network.head, DuelingMLP)
    value, advantage = (
        stream(outputs[0].flatten(0, 1)) for stream in (network.head.value, network.head.advantage)
    )
    assert value.shape == (12, 1)
    expected = value + advantage - advantage.mean(1, keepdim=True)
    assert_close(q_values.flatten(0, 1), expected)
    assert_close(q_values.flatten(0, 1).mean(1), value[:, 0])


def test_the_network_is_built_as_the_hyper_parameters_size_it() -> None:
    spec = EnvSpec(env_id="toy", obs_shape=(OBS_DIM,), action_kind="discrete", num_actions=ACTIONS)
    plain = LSTMQNetwork.build(spec, DRQNConfig(hidden_sizes=(8,), core_size=10))
    # Encoder 3 * 8 + 8, LSTM 4 * 10 * (8 + 10 + 2), head 10 * 5 + 5.
    assert sum(p.numel() for p in plain.parameters()) == 32 + 800 + 55
    hyper = DRQNConfig(hidden_sizes=(), core="gru", core_size=6, dueling=True)
    other = LSTMQNetwork.build(spec, hyper)
    # GRU 3 * 6 * (3 + 6 + 2), streams 6 * 6 + 6 each, then 6 + 1 and 6 * 5 + 5.
    assert sum(p.numel() for p in other.parameters()) == 198 + 42 + 42 + 7 + 35
    assert [len(net.initial_state(1)) for net in (plain, other)] == [2, 1]
