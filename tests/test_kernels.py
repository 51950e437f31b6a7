"""Every kernel gives the values and the gradients of autograd of its definition.

Networks of ReLU layers are compared on whole numbers, small enough for every sum to be exact in
single precision: they agree to the last bit, in whatever order a processor adds up. Whatever has
exponentials or quotients is compared in double precision, of which a wrong formula keeps no more
than single precision would show. Kernels keep some constants in single precision, such as the share
of a row in a mean: these are off by up to 2**-24, 6e-8 of themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms import ppo, redq, sac, soft_actor_critic, tqc
from rl_training.algorithms.base import Loss
from rl_training.algorithms.c51 import c51_loss, project
from rl_training.algorithms.dqn import dqn_loss
from rl_training.algorithms.functional import distributions
from rl_training.algorithms.functional.quantile import quantile_huber_loss
from rl_training.algorithms.functional.random_shift import random_shift
from rl_training.algorithms.optimization import Optimizer
from rl_training.algorithms.qr_dqn import qr_dqn_loss
from rl_training.data.types import Batch
from rl_training.fast import images, losses
from rl_training.fast.autograd import BLOCKS
from rl_training.fast.networks import KERNELS, ActorCriticKernel, Buffers
from rl_training.fast.recurrent import RECURRENT, RecurrentKernel
from rl_training.fast.updates import ArrayViews, SoftKernel
from rl_training.models.blocks import MLP, DuelingMLP, EnsembleMLP
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_actor_q_ensemble import MLPActor, MLPCritics
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from rounding import double_precision
from test_ppo_update import SPECS, noise_for

some = partial(settings, deadline=None, max_examples=50)
SEEDS = st.integers(0, 2**20)
SIZES = st.lists(st.integers(1, 9), min_size=2, max_size=4)
ROWS = st.integers(1, 9)
SINGLE = {"rtol": 1e-6, "atol": 1e-6}  # what constants in single precision may do


class Compared(NamedTuple):
    """A network as an optimiser lays it out, and the kernel that shares its memory."""

    module: Any
    kernel: Any

    @classmethod
    def of(cls, module: nn.Module, kind: Callable[..., Any] | None = None) -> Compared:
        flat = Optimizer(module).flat
        assert flat.grad is not None
        kind = kind or (KERNELS | BLOCKS)[type(module)]
        return cls(module, kind(module, Buffers(flat.detach().numpy(), flat.grad.numpy())))

    @torch.no_grad()
    def fill_whole(self, rng: np.random.Generator) -> Compared:
        """Whole numbers from -2 to 2 for parameters."""
        for parameter in self.module.parameters():
            parameter.copy_(whole(rng, *parameter.shape))
        return self

    def spoil_gradients(self) -> None:
        """What a backward pass is to overwrite."""
        for parameter in self.module.parameters():
            parameter.grad.fill_(99.0)

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.module.parameters()]


def whole(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.integers(-2, 3, shape).astype(np.float32))


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(scale * rng.normal(size=shape)).to(torch.get_default_dtype())


def quarters(rng: np.random.Generator, *shape: int, up_to: float = 4.0) -> Tensor:
    """Multiples of 1/4, so that errors of exactly zero and one are among their differences."""
    steps = int(4 * up_to)
    return torch.from_numpy(rng.integers(-steps, steps + 1, shape) / 4).to(
        torch.get_default_dtype()
    )


def arrays_of(record: Any) -> list[Any]:
    return [x.detach().numpy() if isinstance(x, Tensor) else x for x in record]


def assert_equal_to_autograd(
    pair: Compared, call: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor, vjp: Any
) -> None:
    """Outputs, gradients of all parameters, and of the last input, to the last bit."""
    inputs = [*inputs[:-1], inputs[-1].requires_grad_()]
    outputs = call(*inputs)
    sources = [*pair.module.parameters(), inputs[-1]]
    expected = torch.autograd.grad(outputs, sources, grad)
    pair.spoil_gradients()
    found, backward = vjp(*arrays_of(inputs))
    assert found.dtype == np.float32
    assert torch.equal(torch.from_numpy(found), outputs)
    grad_input = backward(grad.numpy().copy())
    for mine, other in zip(pair.gradients(), expected, strict=False):
        assert torch.equal(mine, other)
    if grad_input is not None:
        assert torch.equal(torch.from_numpy(grad_input), expected[-1])


# Building blocks.


@some()
@given(sizes=SIZES, rows=ROWS, activate_last=st.booleans(), input_grad=st.booleans(), seed=SEEDS)
def test_a_perceptron_with_relu(
    sizes: list[int], rows: int, activate_last: bool, input_grad: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pair = Compared.of(MLP(sizes, activate_last=activate_last)).fill_whole(rng)
    x, grad = whole(rng, rows, sizes[0]), whole(rng, rows, sizes[-1])
    assert np.array_equal(pair.kernel.forward(x.numpy()), pair.module(x).detach())
    vjp = partial(pair.kernel.vjp, input_grad=input_grad)
    assert_equal_to_autograd(pair, pair.module, [x], grad, vjp)
    assert (vjp(x.detach().numpy())[1](grad.numpy().copy()) is None) == (not input_grad)


@some()
@given(
    sizes=SIZES,
    rows=ROWS,
    activate_last=st.booleans(),
    activation=st.sampled_from(["relu", "tanh"]),
    layer_norm=st.booleans(),
    seed=SEEDS,
)
@double_precision()
def test_a_perceptron_with_tanh_or_layer_normalisation(
    sizes: list[int], rows: int, activate_last: bool, activation: Any, layer_norm: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    module = MLP(sizes, activation=activation, activate_last=activate_last, layer_norm=layer_norm)
    pair = Compared.of(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(normal(rng, *parameter.shape))
    x, grad = normal(rng, rows, sizes[0]).requires_grad_(), normal(rng, rows, sizes[-1])
    outputs = pair.module(x)
    assert_close(torch.from_numpy(pair.kernel.forward(x.detach().numpy())), outputs.detach())
    expected = torch.autograd.grad(outputs, [*pair.module.parameters(), x], grad)
    pair.spoil_gradients()
    found, backward = pair.kernel.vjp(x.detach().numpy(), input_grad=True)
    grad_input = backward(grad.numpy().copy())
    assert_close(torch.from_numpy(found), outputs.detach())
    assert_close([*pair.gradients(), torch.from_numpy(grad_input)], list(expected))


@some()
@given(
    hidden=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    actions=st.sampled_from([1, 2, 4]),  # a mean over as many is exact
    outputs_per_action=st.integers(1, 4),
    rows=ROWS,
    input_grad=st.booleans(),
    seed=SEEDS,
)
def test_dueling_streams(
    hidden: list[int], actions: int, outputs_per_action: int, rows: int, input_grad: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pair = Compared.of(DuelingMLP(3, actions, hidden, outputs_per_action)).fill_whole(rng)
    x, grad = whole(rng, rows, 3), whole(rng, rows, actions * outputs_per_action)
    assert np.array_equal(pair.kernel.forward(x.numpy()), pair.module(x).detach())
    vjp = partial(pair.kernel.vjp, input_grad=input_grad)
    if hidden[:-1]:
        assert_equal_to_autograd(pair, pair.module, [x], grad, vjp)
    else:  # without a shared layer the gradient of the input is there anyway
        assert_equal_to_autograd(pair, pair.module, [x], grad, pair.kernel.vjp)


@double_precision()
def test_dueling_streams_of_any_number_of_actions() -> None:
    rng = np.random.default_rng(0)
    for actions in (3, 5, 6, 7):
        pair = Compared.of(DuelingMLP(3, actions, (8, 7), 2))
        x, grad = normal(rng, 6, 3), normal(rng, 6, 2 * actions)
        outputs = pair.module(x)
        expected = torch.autograd.grad(outputs, list(pair.module.parameters()), grad)
        found, backward = pair.kernel.vjp(x.numpy())
        backward(grad.numpy().copy())
        assert_close(torch.from_numpy(found), outputs.detach())
        assert_close(pair.gradients(), list(expected))


@some()
@given(
    members=st.integers(1, 4),
    sizes=SIZES,
    rows=ROWS,
    each=st.booleans(),
    input_grad=st.booleans(),
    seed=SEEDS,
)
def test_an_ensemble(
    members: int, sizes: list[int], rows: int, each: bool, input_grad: bool, seed: int
) -> None:
    """With one input for all members, or one for each."""
    rng = np.random.default_rng(seed)
    pair = Compared.of(EnsembleMLP(members, sizes)).fill_whole(rng)
    x = whole(rng, *((members,) if each else ()), rows, sizes[0])
    grad = whole(rng, members, rows, sizes[-1])
    vjp = partial(pair.kernel.vjp, input_grad=input_grad)
    assert_equal_to_autograd(pair, pair.module, [x], grad, vjp)
    with torch.no_grad():
        assert np.array_equal(pair.kernel.forward(x.detach().numpy()), pair.module(x))


@some()
@given(sizes=SIZES, rows=ROWS, seed=SEEDS)
def test_some_members_and_some_columns_of_an_ensemble(
    sizes: list[int], rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pair = Compared.of(EnsembleMLP(5, sizes)).fill_whole(rng)
    x = whole(rng, rows, sizes[0])
    subset = torch.from_numpy(rng.permutation(5)[: rng.integers(1, 6)])
    found = pair.kernel.forward(x.numpy(), subset.numpy())
    assert np.array_equal(found, pair.module(x, subset).detach())
    columns = slice(int(rng.integers(sizes[0])), None)
    grad = whole(rng, 5, rows, sizes[-1])
    x.requires_grad_()
    outputs = pair.module(x)
    (expected,) = torch.autograd.grad(outputs, x, grad)
    pair.spoil_gradients()
    found, backward = pair.kernel.columns_vjp(x.detach().numpy(), columns)
    assert np.array_equal(found, outputs.detach())
    assert np.array_equal(backward(grad.numpy().copy()), expected[:, columns])
    assert all((gradient == 99.0).all() for gradient in pair.gradients())  # left alone


# Networks.

NETWORKS: dict[type[nn.Module], Callable[[list[int], bool], nn.Module]] = {
    MLPQNetwork: lambda sizes, dueling: MLPQNetwork(3, 4, sizes, dueling=dueling),
    MLPQRQNetwork: lambda sizes, dueling: MLPQRQNetwork(3, 4, 5, sizes, dueling=dueling),
    MLPCategoricalQNetwork: lambda sizes, dueling: MLPCategoricalQNetwork(
        3, 4, 5, sizes, dueling=dueling
    ),
    MLPActor: lambda sizes, _: MLPActor(3, 2, sizes),
    MLPCritics: lambda sizes, _: MLPCritics(3, 2, sizes, num_critics=3, outputs=2),
}


def test_every_network_with_a_kernel_is_compared() -> None:
    assert set(NETWORKS) == set(KERNELS)
    assert set(BLOCKS) == {MLP, DuelingMLP, EnsembleMLP}
    assert set(RECURRENT) == {LSTMQNetwork, RecurrentActorCritic}


@pytest.mark.parametrize("kind", NETWORKS, ids=lambda kind: kind.__name__)
@some(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    dueling=st.booleans(),
    rows=ROWS,
    seed=SEEDS,
)
def test_a_network(
    kind: type[nn.Module], sizes: list[int], dueling: bool, rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pair = Compared.of(NETWORKS[kind](sizes, dueling)).fill_whole(rng)
    inputs = [whole(rng, rows, 3)]
    inputs += [whole(rng, rows, 2)] if kind is MLPCritics else []
    with torch.no_grad():
        outputs = pair.module(*inputs)
    assert np.array_equal(pair.kernel.forward(*arrays_of(inputs)), outputs)
    grad = whole(rng, *outputs.shape)
    assert_equal_to_autograd(pair, pair.module, inputs, grad, pair.kernel.vjp)


@some()
@given(sizes=st.lists(st.integers(1, 6), max_size=3), rows=ROWS, seed=SEEDS)
def test_critics_by_the_action_alone_and_a_subset_of_them(
    sizes: list[int], rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pair = Compared.of(MLPCritics(3, 2, sizes, num_critics=4, outputs=3)).fill_whole(rng)
    obs, action, grad = whole(rng, rows, 3), whole(rng, rows, 2), whole(rng, 4, rows, 3)
    subset = np.array([3, 1])
    found = pair.kernel.forward(obs.numpy(), action.numpy(), subset)
    assert np.array_equal(found, pair.module(obs, action, torch.from_numpy(subset)).detach())
    outputs = pair.module(obs, action.requires_grad_())
    (expected,) = torch.autograd.grad(outputs, action, grad)
    found, backward = pair.kernel.input_vjp(obs.numpy(), action.detach().numpy())
    assert np.array_equal(found, outputs.detach())
    assert np.array_equal(backward(grad.numpy().copy()), expected)


@pytest.mark.parametrize("gaussian", [False, True])
@some(max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), max_size=3), rows=ROWS, seed=SEEDS)
@double_precision()
def test_an_actor_and_its_critic(gaussian: bool, sizes: list[int], rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = MLPActorCritic(3, 2, sizes, gaussian=gaussian, log_std_init=-0.5)
    pair = Compared.of(network, ActorCriticKernel)
    obs, grads = normal(rng, rows, 3), [normal(rng, rows, 2), normal(rng, rows)]
    policy, value = network(obs)
    outputs = [policy, value]
    if gaussian:
        grads.append(normal(rng, 2))
        outputs.append(network.log_std)
    expected = torch.autograd.grad(outputs, list(network.parameters()), grads)
    pair.spoil_gradients()
    found, backward = pair.kernel.vjp(obs.numpy())
    backward([grad.numpy().copy() for grad in grads])
    for mine, other in zip(found, (policy, value), strict=True):
        assert_close(torch.from_numpy(mine), other.detach())
    assert_close(pair.gradients(), list(expected))
    assert_close(torch.from_numpy(pair.kernel.policy(obs.numpy())), policy.detach())
    assert_close(torch.from_numpy(pair.kernel.value(obs.numpy())), value.detach())


RECURRENT_NETWORKS: dict[str, Callable[[Any], nn.Module]] = {
    "values": lambda core: LSTMQNetwork(3, 2, (5,), core=core, core_size=4),
    "dueling, no encoder": lambda core: LSTMQNetwork(
        3, 2, (), core=core, core_size=4, dueling=True
    ),
    "actor and critic": lambda core: RecurrentActorCritic(3, 2, (5,), core=core, core_size=4),
    "shared, no encoder": lambda core: RecurrentActorCritic(
        3, 2, (), core=core, core_size=4, shared_core=True
    ),
}


@pytest.mark.parametrize("core", ["lstm", "gru"])
@pytest.mark.parametrize("name", RECURRENT_NETWORKS)
@some(max_examples=15)
@given(rows=ROWS, seed=SEEDS)
@double_precision()
def test_the_steps_of_a_recurrent_network(name: str, core: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    network: Any = RECURRENT_NETWORKS[name](core)
    kernel = Compared.of(network, RecurrentKernel).kernel
    state = tuple(normal(rng, *part.shape) for part in network.initial_state(rows))
    arrays = tuple(part.numpy() for part in state)
    for _ in range(4):
        obs, first = normal(rng, rows, 3), rng.random(rows) < 0.3
        with torch.no_grad():
            expected = network.act(obs, state, torch.from_numpy(first))
        output, arrays = kernel.output_and_state(obs.numpy(), arrays, first)
        state = expected[-1]
        for mine, other in zip((output, *arrays), (expected[0], *state), strict=True):
            assert_close(torch.from_numpy(mine), other)


def test_a_step_of_a_recurrent_network_stays_in_single_precision() -> None:
    for make in RECURRENT_NETWORKS.values():
        network: Any = make("lstm")
        kernel = Compared.of(network, RecurrentKernel).kernel
        state = tuple(part.numpy() for part in network.initial_state(2))
        first = np.array([True, False])
        output, after = kernel.output_and_state(np.ones((2, 3), np.float32), state, first)
        assert {output.dtype, *(part.dtype for part in after)} == {np.dtype(np.float32)}


# Losses of the value family.


def random_rows(rng: np.random.Generator, rows: int, actions: int) -> Batch:
    """Transitions, of which some terminate, with weights other than one."""
    return Batch(
        obs=torch.zeros(rows, 1),
        action=torch.from_numpy(rng.integers(0, actions, rows)),
        reward=quarters(rng, rows),
        next_obs=torch.zeros(rows, 1),
        discount=normal(rng, rows).sign().clamp(min=0) / 2,
        weight=quarters(rng, rows, up_to=2).abs(),
        slots=np.arange(rows),
    )


def assert_loss(
    definition: Callable[..., Loss], kernel: Callable[..., losses.ValueLoss], *inputs: Any
) -> None:
    """Metrics, priorities, and the gradient by the network's output, which is the first input."""
    output, *others, batch = inputs
    output = output.requires_grad_()
    expected = definition(output, *others, batch)
    (gradient,) = torch.autograd.grad(expected.value, output)
    arrays = arrays_of((output, *others))
    found = kernel(*arrays, losses.BatchArrays(*arrays_of(batch)))
    assert_close(torch.from_numpy(found.gradient), gradient, **SINGLE)
    metrics = torch.stack(list(expected.metrics.values()))
    assert_close(torch.from_numpy(found.metrics), metrics, **SINGLE)
    assert_close(torch.from_numpy(found.priority), expected.priority, **SINGLE)


TEMPERATURES = st.sampled_from([0.0, 0.05, 2.0])


@pytest.mark.parametrize("kind", ["huber", "mse"])
@some()
@given(
    rows=ROWS, actions=st.integers(1, 5), double=st.booleans(), temperature=TEMPERATURES, seed=SEEDS
)
@double_precision()
def test_dqn(
    kind: Any, rows: int, actions: int, double: bool, temperature: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    q, next_q = quarters(rng, rows, actions), quarters(rng, rows, actions)
    selector = quarters(rng, rows, actions) if double else None
    array = None if selector is None else selector.numpy()
    assert_loss(
        partial(dqn_loss, selector=selector, temperature=temperature, kind=kind),
        partial(losses.dqn_loss, selector=array, temperature=temperature, huber=kind == "huber"),
        q,
        next_q,
        random_rows(rng, rows, actions),
    )


COUNTS = st.integers(1, 9)


@some()
@given(rows=ROWS, count=COUNTS, samples=COUNTS, scale=st.sampled_from([0.25, 4.0]), seed=SEEDS)
@double_precision()
def test_the_quantile_huber_loss(
    rows: int, count: int, samples: int, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    assert_quantiles(quarters(rng, rows, count, up_to=scale), quarters(rng, rows, samples))


def assert_quantiles(quantiles: Tensor, targets: Tensor) -> None:
    quantiles.requires_grad_()
    expected = quantile_huber_loss(quantiles, targets)
    (gradient,) = torch.autograd.grad(expected.sum(), quantiles)
    found = losses.quantile_huber(quantiles.detach().numpy(), targets.numpy())
    for mine, other in zip(found, (expected.detach(), gradient), strict=True):
        assert_close(torch.from_numpy(mine), other, **SINGLE)


@pytest.mark.parametrize(("rows", "count", "samples"), [(60, 51, 40), (9, 3, 9000), (300, 300, 1)])
@double_precision()
def test_more_pairs_of_quantiles_than_are_compared_at_once(
    rows: int, count: int, samples: int
) -> None:
    assert rows * count * samples > losses.CHUNK
    rng = np.random.default_rng(0)
    assert_quantiles(normal(rng, rows, count), normal(rng, rows, samples))


@some()
@given(
    rows=ROWS,
    actions=st.integers(1, 4),
    count=COUNTS,
    double=st.booleans(),
    temperature=TEMPERATURES,
    seed=SEEDS,
)
@double_precision()
def test_qr_dqn(
    rows: int, actions: int, count: int, double: bool, temperature: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    selector = quarters(rng, rows, actions) if double else None
    array = None if selector is None else selector.numpy()
    assert_loss(
        partial(qr_dqn_loss, selector=selector, temperature=temperature),
        partial(losses.qr_dqn_loss, selector=array, temperature=temperature),
        quarters(rng, rows, actions, count),
        normal(rng, rows, actions, int(rng.integers(1, 6))),
        random_rows(rng, rows, actions),
    )


@some(max_examples=100)
@given(rows=ROWS, count=st.integers(2, 12), discount=st.floats(0, 2), seed=SEEDS)
@double_precision()
def test_the_projection_of_a_distribution(
    rows: int, count: int, discount: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    probabilities = normal(rng, rows, count).softmax(-1)
    support = torch.linspace(-2.0, 3.0, count)
    inputs = (probabilities, quarters(rng, rows, up_to=9), torch.full((rows,), discount), support)
    found = losses.project(*(x.numpy() for x in inputs))
    assert_close(torch.from_numpy(found).double(), project(*inputs), **SINGLE)


@some()
@given(
    rows=ROWS,
    actions=st.integers(1, 4),
    count=st.integers(2, 9),
    scale=st.sampled_from([1.0, 30.0]),
    double=st.booleans(),
    temperature=TEMPERATURES,
    seed=SEEDS,
)
@double_precision()
def test_c51(
    rows: int,
    actions: int,
    count: int,
    scale: float,
    double: bool,
    temperature: float,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    support = torch.linspace(-3.0, 4.0, count)
    selector = normal(rng, rows, actions) if double else None
    array = None if selector is None else selector.numpy()
    assert_loss(
        lambda logits, next_logits, batch: c51_loss(
            logits, next_logits, batch, support, selector=selector, temperature=temperature
        ),
        partial(losses.c51_loss, support=support.numpy(), selector=array, temperature=temperature),
        normal(rng, rows, actions, count, scale=scale),
        normal(rng, rows, actions, count, scale=scale),
        random_rows(rng, rows, actions),
    )


def test_a_softmax_of_large_numbers_stays_finite() -> None:
    logits = np.array([[1e4, 0, -1e4], [0.0, np.log(3.0), -1e4]], np.float32)
    assert losses.log_softmax(logits)[0].tolist() == [0.0, -1e4, -2e4]
    assert np.allclose(losses.softmax(logits), [[1, 0, 0], [0.25, 0.75, 0]])
    assert np.allclose(np.exp(losses.log_softmax(logits)), losses.softmax(logits))


# Losses of soft actor-critics.


@some(max_examples=100)
@given(rows=ROWS, actions=st.integers(1, 4), scale=st.sampled_from([1.0, 15.0]), seed=SEEDS)
@double_precision()
def test_squashed_samples(rows: int, actions: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    output = normal(rng, rows, 2 * actions, scale=scale).requires_grad_()
    with torch.no_grad():  # log stds beyond their range, where nothing pulls, and at its ends
        output[0, actions:] = float(rng.choice([2.5, -21.0, 2.0, -20.0]))
    noise, grad_action = normal(rng, rows, actions), normal(rng, rows, actions)
    grad_log_prob = normal(rng, rows)
    expected = soft_actor_critic.squashed_sample(output, noise)
    total = (expected.action * grad_action).sum() + (expected.log_prob * grad_log_prob).sum()
    (gradient,) = torch.autograd.grad(total, output)
    found = losses.squashed_sample(output.detach().numpy(), noise.numpy())
    assert_close(torch.from_numpy(found.action), expected.action.detach())
    assert_close(torch.from_numpy(found.log_prob), expected.log_prob.detach())
    mine = losses.squashed_gradient(found, grad_action.numpy(), grad_log_prob.numpy())
    assert_close(torch.from_numpy(mine), gradient)


def assert_critic_loss(
    definition: Callable[[Tensor], Loss], found: losses.CriticLoss, q_values: Tensor
) -> None:
    q_values = q_values.requires_grad_()
    expected = definition(q_values)
    (gradient,) = torch.autograd.grad(expected.value, q_values)
    assert_close(torch.from_numpy(found.gradient), gradient, **SINGLE)
    metrics = torch.stack(list(expected.metrics.values()))
    assert_close(torch.from_numpy(found.metrics), metrics, **SINGLE)


@some()
@given(critics=st.integers(1, 4), rows=ROWS, seed=SEEDS)
@double_precision()
def test_the_critics_of_sac_and_redq(critics: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q_values, target = normal(rng, critics, rows, 1), normal(rng, rows)
    arrays = q_values.numpy(), target.numpy()
    assert_critic_loss(lambda x: sac.sac_loss(x, target), losses.sac_loss(*arrays), q_values)
    by_row = q_values.detach()
    assert_critic_loss(
        lambda x: redq.redq_loss(x[:, :, 0].T, target), losses.redq_loss(*arrays), by_row
    )
    lowest = soft_actor_critic.min_over_critics(by_row)
    assert_close(torch.from_numpy(losses.min_over_critics(arrays[0])), lowest.detach())


@some()
@given(critics=st.integers(1, 4), rows=ROWS, count=COUNTS, data=st.data(), seed=SEEDS)
@double_precision()
def test_the_critics_of_tqc(
    critics: int, rows: int, count: int, data: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    dropped = data.draw(st.integers(0, count - 1))
    quantiles, next_atoms = quarters(rng, critics, rows, count), normal(rng, critics, rows, count)
    atoms = tqc.truncated_atoms(next_atoms, dropped)
    kept = losses.truncated_atoms(next_atoms.numpy(), dropped)
    assert np.array_equal(kept, atoms)
    found = losses.tqc_loss(quantiles.numpy(), kept)
    assert_critic_loss(lambda x: tqc.tqc_loss(x, atoms), found, quantiles)


def test_the_lowest_of_critics_that_tie_share_the_gradient() -> None:
    values = torch.tensor([[1.0, 2.0], [1.0, 3.0], [4.0, 2.0]])[..., None].requires_grad_()
    expected = soft_actor_critic.min_over_critics(values)
    (gradient,) = torch.autograd.grad(expected.sum(), values)
    assert gradient[..., 0].tolist() == [[0.5, 0.5], [0.5, 0.0], [0.0, 0.5]]
    kernel = object.__new__(SoftKernel)
    kernel._algorithm = object()  # type: ignore[assignment]  # neither TQC nor REDQ
    value, slope = kernel._actor_value(values.detach().numpy())
    assert value.tolist() == [1.0, 2.0]
    assert slope.dtype == np.float32
    assert np.array_equal(slope, gradient)


# PPO.


@some(max_examples=100)
@given(steps=st.integers(1, 9), envs=st.integers(1, 4), seed=SEEDS)
@double_precision()
def test_advantages(steps: int, envs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    reward, value, next_value = (normal(rng, steps, envs) for _ in range(3))
    discount = 0.9 * normal(rng, steps, envs).sign().clamp(min=0)
    trace = 0.8 * normal(rng, steps, envs).sign().clamp(min=0)
    inputs = (reward, value, next_value, discount, trace)
    found = losses.gae(*(x.numpy() for x in inputs))
    assert_close(torch.from_numpy(found), ppo.gae(*inputs))


@some(max_examples=100)
@given(rows=st.integers(1, 20), shift=st.floats(-100, 100), seed=SEEDS)
@double_precision()
def test_normalised_advantages(rows: int, shift: float, seed: int) -> None:
    advantage = normal(np.random.default_rng(seed), rows) + shift
    found = losses.normalized(advantage.numpy())
    assert_close(torch.from_numpy(found), ppo.normalized(advantage))


@pytest.mark.parametrize("value_clip_range", [None, 0.3])
@some(max_examples=100)
@given(rows=ROWS, clip_range=st.sampled_from([0.05, 0.2, 1.0]), seed=SEEDS)
@double_precision()
def test_the_terms_of_ppo(
    value_clip_range: float | None, rows: int, clip_range: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    log_prob, value = normal(rng, rows, scale=0.3).requires_grad_(), normal(rng, rows)
    value.requires_grad_()
    old = ppo.Samples(
        obs=None,
        action=torch.zeros(rows),
        log_prob=log_prob.detach() + (normal(rng, rows, scale=0.2) if seed % 4 else 0.0),
        value=normal(rng, rows),
        advantage=quarters(rng, rows),
        returns=normal(rng, rows),
    )
    expected = ppo.ppo_terms(log_prob, value, old, clip_range, value_clip_range)
    total = expected.policy_loss.mean() + expected.value_loss.mean()
    gradients = torch.autograd.grad(total, [log_prob, value])
    arrays = arrays_of((log_prob, value, *old))
    found = losses.ppo_terms(
        *arrays[:2], losses.SampleArrays(*arrays[2:]), clip_range, value_clip_range
    )
    for mine, other in zip(found, (*expected, *gradients), strict=True):
        assert_close(torch.from_numpy(mine), other.detach(), check_dtype=False)


@pytest.mark.parametrize("kind", SPECS)
@some(max_examples=60)
@given(
    rows=ROWS,
    scale=st.sampled_from([1.0, 60.0]),
    grad_entropy=st.sampled_from([0.0, -0.3]),
    seed=SEEDS,
)
@double_precision()
def test_the_distribution_of_actions(
    kind: str, rows: int, scale: float, grad_entropy: float, seed: int
) -> None:
    rng, spec = np.random.default_rng(seed), SPECS[kind]
    output = normal(rng, rows, spec.policy_outputs, scale=scale).requires_grad_()
    log_std = normal(rng, spec.policy_outputs).requires_grad_()
    expected = distributions.distribution(spec, output, log_std)
    found = losses.distribution(spec, output.detach().numpy(), log_std.detach().numpy())
    noise = noise_for(spec, rows, seed).double()
    action = expected.sample(noise).detach()
    assert_close(torch.from_numpy(found.sample(noise.numpy())), action)
    assert_close(torch.from_numpy(found.mode()), expected.mode().detach())
    grad_log_prob = normal(rng, rows)
    log_prob, entropy = expected.log_prob(action), expected.entropy()
    assert_close(torch.from_numpy(found.log_prob(action.numpy())), log_prob.detach())
    assert_close(torch.from_numpy(found.entropy()), entropy.detach())
    total = (grad_log_prob * log_prob).sum() + grad_entropy * entropy.sum()
    inputs = [output, log_std] if kind == "continuous" else [output]
    gradients = torch.autograd.grad(total, inputs)
    mine = found.gradient(action.numpy(), grad_log_prob.numpy(), grad_entropy)
    assert_close([torch.from_numpy(x) for x in mine], list(gradients))


def test_losses_stay_in_single_precision() -> None:
    """What is computed from single precision is no more precise, and no slower."""
    rng = np.random.default_rng(0)
    batch = losses.BatchArrays(*arrays_of(random_rows(rng, 6, 3)))
    support = np.linspace(-1, 1, 5, dtype=np.float32)
    q, quantiles = normal(rng, 6, 3).numpy(), normal(rng, 6, 3, 5).numpy()
    results: list[Any] = [
        *losses.dqn_loss(q, q, batch, selector=None, temperature=0.0, huber=True),
        *losses.dqn_loss(q, q, batch, selector=q, temperature=0.5, huber=True),
        *losses.qr_dqn_loss(quantiles, quantiles, batch, selector=None, temperature=0.5),
        *losses.c51_loss(quantiles, quantiles, batch, support=support, selector=q, temperature=0.5),
        *losses.squashed_sample(q[:, :2], q[:, :1])[:3],
        *losses.sac_loss(q.T[..., None], q[:, 0]),
        *losses.redq_loss(q.T[..., None], q[:, 0]),
        *losses.tqc_loss(quantiles.swapaxes(0, 1).copy(), q),
        losses.gae(q, q, q, q, q),
        losses.normalized(q[:, 0]),
    ]
    for kind, spec in SPECS.items():
        output = normal(rng, 6, spec.policy_outputs).numpy()
        policy = losses.distribution(spec, output, np.zeros(2, np.float32))
        action = policy.sample(noise_for(spec, 6).numpy())
        assert action.dtype == (np.float32 if kind == "continuous" else np.int64)
        results += [policy.log_prob(action), policy.entropy()]
        results += policy.gradient(action, q[:, 0], -0.1)
    assert {result.dtype for result in results} == {np.dtype(np.float32)}


# Images.


@some(max_examples=100)
@given(
    count=st.integers(1, 5),
    channels=st.integers(1, 6),
    height=st.integers(2, 9),
    width=st.integers(2, 9),
    data=st.data(),
    seed=SEEDS,
)
def test_random_shifts(
    count: int, channels: int, height: int, width: int, data: st.DataObject, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    pad = data.draw(st.integers(0, min(height, width) - 1))
    batch = torch.from_numpy(rng.integers(0, 256, (count, channels, height, width), np.uint8))
    offsets = torch.from_numpy(rng.integers(0, 2 * pad + 1, (count, 2)))
    found = images.random_shift(batch, offsets, pad)
    assert found.dtype == torch.uint8
    assert torch.equal(found, random_shift(batch, offsets, pad))
    assert not pad or found.is_contiguous(memory_format=torch.channels_last)


# Batches as arrays.


class Pair(NamedTuple):
    """A record as batches and rollouts are."""

    first: Any
    second: Any


def test_views_follow_changed_contents_and_other_tensors() -> None:
    view, rows = ArrayViews(Pair), Pair(torch.zeros(2), np.arange(2))
    arrays = view.of(rows)
    assert isinstance(arrays, Pair)
    assert isinstance(arrays.first, np.ndarray)
    assert arrays.second is rows.second
    rows.first.fill_(7.0)  # the same tensor with other contents, as replay gives it
    assert view.of(rows).first.tolist() == [7, 7]
    assert view.of(rows).first is arrays.first
    for other in (Pair(rows.first, np.ones(2)), Pair(torch.ones(2), rows.second)):
        found = view.of(other)
        assert found.first.tolist() == other.first.tolist()
        assert found.second is other.second
    assert view.of(rows).first.tolist() == [7, 7]


def test_views_are_not_fooled_by_a_tensor_at_the_address_of_an_old_one() -> None:
    view = ArrayViews(Pair)
    for number in range(50):  # each is free, and its memory used again, once the next is known
        assert view.of(Pair(torch.full((3,), float(number)), None)).first.tolist() == [number] * 3


def test_the_fields_of_arrays_are_those_of_tensors() -> None:
    assert losses.BatchArrays._fields == Batch._fields
    assert losses.SampleArrays._fields == ppo.Samples._fields
