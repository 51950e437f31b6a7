"""Where kernels are put in place, and that updates and actions are the same without them.

Updates are compared in double precision, in which the order of adding up is far below what is
asked; what kernels keep in single precision is off by up to 2**-24 of itself (`test_kernels.py`).
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import soft_batches
import test_drqn_update
import test_recurrent_ppo_update
from rl_training.algorithms.base import Loss
from rl_training.algorithms.c51 import C51
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.optimization import Optimizer, TargetNetwork
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.redq import REDQ
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.soft_actor_critic import SoftActorCritic, Temperature
from rl_training.config.actor_critic import DrQConfig
from rl_training.config.ppo import PPOConfig
from rl_training.config.value_based import C51Config, DQNConfig, QRDQNConfig
from rl_training.data.types import Batch, Clock, EnvSpec, Rollout
from rl_training.errors import DivergenceError
from rl_training.experiment.registry import get_spec
from rl_training.fast import images
from rl_training.fast.accelerate import accelerate, has_loss_kernels, learns_with_kernels
from rl_training.fast.autograd import BlockForward, attach_kernels
from rl_training.fast.networks import has_kernel
from rl_training.models.blocks import MLP, DuelingMLP, EnsembleMLP
from rl_training.models.mlp_actor_critic import MLPActorCritic
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rounding import double_precision, precise, precise_spec
from test_image_networks import images as some_images
from test_image_networks import network as image_network
from test_ppo_update import SPECS
from value_batches import random_batch

UPDATES = 10
DISCRETE = SPECS["discrete"]
SINGLE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# Updates.

FAMILY: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "dqn": (DQN, MLPQNetwork, DQNConfig, {}),
    "qr_dqn": (QRDQN, MLPQRQNetwork, QRDQNConfig, {"num_quantiles": 7}),
    "c51": (C51, MLPCategoricalQNetwork, C51Config, {"num_atoms": 11, "v_min": -5, "v_max": 5}),
}


def make_value_based(
    algo: str = "dqn", algorithm: Any = None, network: Any = None, **hyper: Any
) -> Any:
    packaged, model, config, sizes = FAMILY[algo]
    settings = {"hidden_sizes": (16, 16), "learning_rate": 1e-3, "target_update_interval": 2}
    hyper = config(**(settings | sizes | hyper))
    spec = precise_spec(DISCRETE)
    torch.manual_seed(0)
    network = network or model.build(spec, hyper)
    return (algorithm or packaged)(network, hyper, spec)


def transitions(seed: int) -> Batch:
    return precise(random_batch(seed, 16, 4, 3))


def make_soft(algo: str, algorithm: Any = None, **hyper: Any) -> Any:
    packaged, config = soft_batches.KINDS[algo]
    settings = config(**{"hidden_sizes": (16, 16), "learning_rate": 1e-3, **hyper})
    spec = precise_spec(soft_batches.SPEC)
    torch.manual_seed(0)
    model = soft_batches.MLPActorQEnsemble.build(spec, settings)
    return (algorithm or packaged)(model, settings, spec, seed=0)


def soft_transitions(seed: int) -> Batch:
    return precise(soft_batches.random_batch(16, seed))


def make_ppo(
    kind: str = "discrete", algorithm: Any = PPO, network: Any = None, **hyper: Any
) -> Any:
    """A policy far from uniform, so that every term of the loss counts."""
    settings = PPOConfig(**({"batch_size": 16, "epochs": 2, "learning_rate": 1e-3} | hyper))
    return algorithm(network or actor_critic(kind), settings, precise_spec(SPECS[kind]), seed=5)


def actor_critic(kind: str) -> MLPActorCritic:
    torch.manual_seed(0)
    gaussian, outputs = kind == "continuous", SPECS[kind].policy_outputs
    network = MLPActorCritic(3, outputs, (16, 16), gaussian=gaussian, log_std_init=-0.5)
    with torch.no_grad():
        network.actor.weight2 *= 100
    return network


def rollout(kind: str, seed: int, steps: int = 24, envs: int = 2) -> Rollout:
    """Terminations, truncations, and rows that only reset."""
    rng, shape = np.random.default_rng(seed), (steps, envs)

    def numbers(*sizes: int) -> Tensor:
        return precise(torch.from_numpy(rng.normal(size=sizes)))

    actions: dict[str, Callable[[], Any]] = {
        "discrete": lambda: rng.integers(0, 4, shape),
        "continuous": lambda: numbers(*shape, 2),
        "multi_discrete": lambda: rng.integers(0, (3, 2), (*shape, 2)),
        "multi_binary": lambda: rng.integers(0, 2, (*shape, 3)),
    }
    terminated = rng.random(shape) < 0.1
    ended = terminated | (rng.random(shape) < 0.1)
    open_ended = ended & ~terminated
    open_ended[-1] = ~terminated[-1]
    rows = np.flatnonzero(open_ended)
    return Rollout(
        obs=numbers(*shape, 3),
        action=torch.as_tensor(actions[kind]()),
        reward=numbers(*shape),
        terminated=torch.from_numpy(terminated),
        ended=torch.from_numpy(ended),
        first=torch.zeros(shape, dtype=torch.bool),
        valid=torch.from_numpy(rng.random(shape) < 0.9),
        bootstrap_rows=torch.from_numpy(rows),
        bootstrap_obs=numbers(len(rows), 3),
    )


def learned(algorithm: Any) -> dict[str, Tensor]:
    """All numbers of its networks, and the temperature."""
    parts = {"model": algorithm.model}
    if not isinstance(algorithm, PPO):
        parts["target"] = algorithm.target.module
    found = {
        f"{name}.{key}": value.clone()
        for name, part in parts.items()
        for key, value in part.state_dict().items()
    }
    if isinstance(algorithm, SoftActorCritic):
        found["log_alpha"] = algorithm.temperature.log_alpha.clone()
    return found


def assert_learns_the_same(make: Callable[[], Any], data: Callable[[int], Any]) -> Any:
    """Metrics, priorities and networks, with kernels and without; gives the accelerated one."""
    plain, fast = make(), make()
    accelerate(fast)
    start = learned(fast)
    for number in range(UPDATES):
        batch, clock = data(number), Clock(number, 100)
        expected, found = plain.update(batch, clock), fast.update(batch, clock)
        assert found.gradient_steps == expected.gradient_steps
        assert set(found.metrics) == set(expected.metrics)
        for name, value in found.metrics.items():
            assert value.ndim == 0
            assert_close(value, expected.metrics[name], msg=name, check_dtype=False, **SINGLE)
        assert (found.priorities is None) == (expected.priorities is None)
        if found.priorities is not None:
            assert_close(found.priorities, expected.priorities, **SINGLE)
    found, expected = learned(fast), learned(plain)
    assert_close(found, expected, **SINGLE)
    for name, value in found.items():
        if name.startswith("model"):
            assert (value - start[name]).abs().max() > 1e-4, name
    return fast


VALUE_CASES: list[tuple[str, dict[str, Any]]] = [
    ("dqn", {}),
    ("dqn", {"loss": "mse"}),
    ("dqn", {"double": True}),
    ("dqn", {"dueling": True}),
    ("dqn", {"layer_norm": True}),
    ("dqn", {"optimizer": "rmsprop", "optimizer_eps": 0.01, "max_grad_norm": 0.1}),
    ("dqn", {"tau": 0.1, "target_update_interval": None}),
    ("dqn", {"double": True, "dueling": True, "loss": "mse", "max_grad_norm": None}),
    ("qr_dqn", {}),
    ("qr_dqn", {"double": True, "dueling": True, "layer_norm": True}),
    ("c51", {}),
    ("c51", {"double": True, "dueling": True}),
    ("c51", {"layer_norm": True}),
]


@pytest.mark.parametrize(("algo", "hyper"), VALUE_CASES, ids=str)
@double_precision()
def test_the_value_family_learns_the_same(algo: str, hyper: dict[str, Any]) -> None:
    fast = assert_learns_the_same(lambda: make_value_based(algo, **hyper), transitions)
    assert list(fast.optimizer.kernels) == [FAMILY[algo][0].loss]


SOFT_CASES: list[tuple[str, dict[str, Any]]] = [
    ("sac", {}),
    ("sac", {"alpha": 0.3, "max_grad_norm": 0.5, "policy_delay": 2}),
    ("sac", {"num_critics": 1, "critic_hidden_sizes": (8,)}),
    ("tqc", {"num_critics": 3, "num_quantiles": 5}),
    ("tqc", {"dropped_quantiles": 0}),
    ("redq", {"num_critics": 4, "policy_delay": 3}),
    ("redq", {"num_critics": 4, "subset_size": 3, "policy_delay": 1, "alpha": 0.1}),
]


@pytest.mark.parametrize(("algo", "hyper"), SOFT_CASES, ids=str)
@double_precision()
def test_soft_actor_critics_learn_the_same(algo: str, hyper: dict[str, Any]) -> None:
    fast = assert_learns_the_same(lambda: make_soft(algo, **hyper), soft_transitions)
    assert list(fast.critic_optimizer.kernels) == [type(fast).critic_loss]
    assert list(fast.actor_optimizer.kernels) == [type(fast).actor_loss]


PPO_CASES: list[dict[str, Any]] = [
    {},
    {"value_clip_range": 0.05, "entropy_coef": 0.1, "clip_range": 0.02, "max_grad_norm": None},
    {"target_kl": 1e-4, "normalize_advantages": False},
]


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("hyper", PPO_CASES, ids=str)
@double_precision()
def test_ppo_learns_the_same(kind: str, hyper: dict[str, Any]) -> None:
    fast = assert_learns_the_same(lambda: make_ppo(kind, **hyper), lambda seed: rollout(kind, seed))
    assert list(fast.optimizer.kernels) == [PPO.loss]


@double_precision()
def test_a_target_kl_ends_an_update_with_kernels_too() -> None:
    steps = []
    for target_kl in (None, 1e-4):
        agent = make_ppo(target_kl=target_kl)
        accelerate(agent)
        steps.append(agent.update(rollout("discrete", 0), Clock(0, 100)).gradient_steps)
    assert steps[0] > 4
    assert 0 < steps[1] < 4


@pytest.mark.parametrize("kernels", [True, False])
def test_numbers_that_are_not_finite_are_named_without_a_warning(kernels: bool) -> None:
    agents = {"dqn": make_value_based(), "sac": make_soft("sac"), "ppo": make_ppo()}
    data = {"dqn": transitions(0), "sac": soft_transitions(0), "ppo": rollout("discrete", 0)}
    for name, agent in agents.items():
        if kernels:
            accelerate(agent)
        data[name].reward[3] = float("nan")
        metric = {"dqn": "loss", "sac": "critic_loss", "ppo": "(policy_)?loss"}[name]
        with pytest.raises(DivergenceError, match=f"training metric '{metric}'"):
            agent.update(data[name], Clock(0, 100))


# Acting.

ACTING: dict[str, Callable[[], Any]] = {
    **{algo: lambda algo=algo: make_value_based(algo, epsilon=0.3) for algo in FAMILY},
    **{algo: lambda algo=algo: make_soft(algo) for algo in soft_batches.KINDS},
    **{f"ppo {kind}": lambda kind=kind: make_ppo(kind) for kind in SPECS},
    "drqn": lambda: test_drqn_update.make(epsilon=0.3),
    "drqn gru": lambda: test_drqn_update.make(core="gru", dueling=True),
    **{
        f"recurrent_ppo {kind}": lambda kind=kind: test_recurrent_ppo_update.make(kind)
        for kind in SPECS
    },
}


@pytest.mark.parametrize("explore", [True, False])
@pytest.mark.parametrize("name", ACTING)
@double_precision()
def test_acting_is_the_same(name: str, explore: bool) -> None:
    plain, fast = ACTING[name](), ACTING[name]()
    accelerate(fast)
    assert {"greedy", "actions", "output_and_state"} & set(vars(fast))
    rng, states = np.random.default_rng(0), [agent.initial_state(20) for agent in (plain, fast)]
    for step in range(5):
        obs, first = rng.normal(size=(20, 3)), rng.random(20) < 0.2
        expected, found = (
            agent.act(obs, state, first, Clock(step, 100), explore=explore)
            for agent, state in zip((plain, fast), states, strict=True)
        )
        assert found.action.dtype == expected.action.dtype
        np.testing.assert_allclose(found.action, expected.action, rtol=1e-6, atol=1e-6)
        for mine, other in zip(found.state, expected.state, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-6)
        states = [expected.state, found.state]


# Where a kernel is put in place.


def kernels_of(agent: Any) -> set[str]:
    """The methods and losses that kernels stand for."""
    optimizers = (getattr(agent, name) for name in agent.state_names())
    found = {
        loss.__name__ for part in optimizers if isinstance(part, Optimizer) for loss in part.kernels
    }
    methods = ("greedy", "actions", "output_and_state", "samples", "minibatches")
    return found | {name for name in methods if name in vars(agent)}


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The blocks of a network that compute with kernels."""
    return [
        part for part in network.modules() if isinstance(vars(part).get("forward"), BlockForward)
    ]


AGENTS: dict[str, tuple[Callable[..., Any], set[str], set[str]]] = {
    "dqn": (make_value_based, {"greedy"}, {"loss"}),
    "sac": (lambda kind=None: make_soft("sac", kind), {"actions"}, {"critic_loss", "actor_loss"}),
    "redq": (lambda kind=None: make_soft("redq", kind), {"actions"}, {"critic_loss", "actor_loss"}),
    "ppo": (
        lambda kind=PPO: make_ppo(algorithm=kind),
        {"actions"},
        {"loss", "samples", "minibatches"},
    ),
}


@pytest.mark.parametrize("name", AGENTS)
def test_kernels_learn_on_one_thread_of_a_cpu_and_uncompiled(name: str) -> None:
    make, acting, learning = AGENTS[name]
    agent = make()
    assert has_loss_kernels(agent)
    assert not learns_with_kernels(agent)
    accelerate(agent)
    assert kernels_of(agent) == acting | learning
    assert learns_with_kernels(agent)
    torch.set_num_threads(2)  # which torch would share out its products among
    agent = make()
    assert not has_loss_kernels(agent)
    accelerate(agent)
    assert kernels_of(agent) == acting
    assert blocks_of(agent.model) == []
    torch.set_num_threads(1)
    agent = make()
    agent.execution = "compiled"
    accelerate(agent)
    assert kernels_of(agent) == acting
    assert blocks_of(agent.model) == []
    agent = make()
    agent.device = torch.device("meta")
    assert not has_loss_kernels(agent)
    accelerate(agent)
    assert kernels_of(agent) == set()


def overriding(base: type, *names: str) -> type:
    """A subclass that has methods of the same effect."""

    def calling(name: str) -> Any:
        return lambda self, *args, **options: getattr(base, name)(self, *args, **options)

    return type("Changed", (base,), {name: calling(name) for name in names})


OVERRIDES = [
    (DQN, "loss", {"greedy"}),
    (DQN, "selector", {"greedy"}),
    (DQN, "q_values", set()),
    (DQN, "greedy", {"loss"}),
    (SAC, "critic_loss", {"actions", "actor_loss"}),
    (SAC, "actor_loss", {"actions", "critic_loss"}),
    (SAC, "actor_value", {"actions", "critic_loss"}),
    (SAC, "policy", set()),
    (SAC, "next_action", set()),
    (SAC, "actions", {"critic_loss", "actor_loss"}),
    (REDQ, "actor_value", {"actions", "critic_loss"}),
    (REDQ, "draw_subset", {"actions", "critic_loss", "actor_loss"}),  # which the kernel asks for
    (PPO, "loss", {"actions"}),
    (PPO, "update", {"actions"}),
    (PPO, "samples", {"actions"}),
    (PPO, "observations", {"actions"}),
    (PPO, "minibatches", {"actions"}),
    (PPO, "evaluate_rollout", {"actions"}),
    (PPO, "policy", set()),
    (PPO, "policy_and_value", set()),
    (PPO, "actions_from", set()),
    (PPO, "actions", {"loss", "samples", "minibatches"}),
]


@pytest.mark.parametrize(("base", "name", "kernels"), OVERRIDES)
@double_precision()
def test_what_a_subclass_changes_has_no_kernel(base: Any, name: str, kernels: set[str]) -> None:
    """A packaged network still has those of its blocks, where autograd goes through them."""
    changed = overriding(base, name)
    make = AGENTS[base.__name__.lower()][0]
    data: Any = soft_transitions if base in (SAC, REDQ) else transitions
    data = (lambda seed: rollout("discrete", seed)) if base is PPO else data
    agent = make(changed) if base in (SAC, REDQ, PPO) else make(algorithm=changed)
    accelerate(agent)
    assert kernels_of(agent) == kernels
    for part in (getattr(agent, name) for name in agent.state_names()):
        if isinstance(part, Optimizer):
            assert bool(blocks_of(part.module)) == (not part.kernels)
    packaged = make()
    for seed in range(3):
        for each in (agent, packaged):
            each.update(data(seed), Clock(seed, 100))
    assert_close(learned(agent), learned(packaged), **SINGLE)


class MunchausenLike(DQN):
    """Another loss of the same network."""

    def loss(self, batch: Batch) -> Loss:
        q = self.model(batch.obs)
        bonus = q.log_softmax(-1)[:, 0].mean()
        return super().loss(batch)._replace(value=super().loss(batch).value - bonus)


@double_precision()
def test_a_custom_loss_is_descended_through_the_kernels_of_the_network() -> None:
    fast = assert_learns_the_same(lambda: make_value_based(algorithm=MunchausenLike), transitions)
    assert kernels_of(fast) == {"greedy"}
    assert blocks_of(fast.model) == [fast.model.layers]


class Doubled(MLPQNetwork):
    """Inherits layers, but gives something else."""

    def forward(self, obs: Tensor) -> Tensor:
        return 2 * super().forward(obs)


class Custom(nn.Module):
    """A custom network of packaged and other layers."""

    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = MLP((3, 8), activation="tanh", activate_last=True).requires_grad_(not frozen)
        self.middle = nn.Linear(8, 8)
        self.head = DuelingMLP(8, 4, (8,))

    def forward(self, obs: Tensor) -> Tensor:
        return self.head(torch.relu(self.middle(self.encoder(obs))))


def doubled() -> MLPQNetwork:
    torch.manual_seed(0)
    return Doubled(3, 4, (8,))


def with_other_layers() -> MLPQNetwork:
    torch.manual_seed(0)
    network = MLPQNetwork(3, 4, (8,))
    network.layers = nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 4))  # type: ignore[assignment]
    return network


def partly_frozen() -> MLPQNetwork:
    torch.manual_seed(0)
    network = MLPQNetwork(3, 4, (16, 16))
    network.layers.weight0.requires_grad_(False)  # type: ignore[union-attr]
    return network


class Averaged(MLP):
    """A block that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


def with_another_block() -> MLPQNetwork:
    torch.manual_seed(0)
    network = MLPQNetwork(3, 4, (8,))
    network.layers = Averaged((3, 8, 4))
    return network


CUSTOM: dict[str, tuple[Callable[[], nn.Module], list[str]]] = {
    "a subclass": (doubled, ["layers"]),
    "a custom network": (Custom, ["encoder", "head"]),
    "a frozen block": (lambda: Custom(frozen=True), ["head"]),
    "other layers": (with_other_layers, []),
    "another block": (with_another_block, []),
    "a frozen layer": (partly_frozen, []),
}


@pytest.mark.parametrize("name", CUSTOM)
@double_precision()
def test_a_network_that_is_not_as_packaged_has_the_kernels_of_its_blocks_alone(name: str) -> None:
    network, blocks = CUSTOM[name]
    plain, fast = (make_value_based(network=network()) for _ in range(2))
    accelerate(fast)
    assert kernels_of(fast) == set()
    assert blocks_of(fast.model) == [fast.model.get_submodule(block) for block in blocks]
    targets = [fast.target.module.get_submodule(block) for block in blocks]
    assert blocks_of(fast.target.module) == targets
    frozen = [p.clone() for p in fast.model.parameters() if not p.requires_grad]
    for seed in range(3):
        for agent in (plain, fast):
            agent.update(transitions(seed), Clock(seed, 100))
    assert_close(learned(fast), learned(plain), **SINGLE)
    assert_close(
        [p for p in fast.model.parameters() if not p.requires_grad], frozen, rtol=0, atol=0
    )


@double_precision()
def test_a_recurrent_network_with_frozen_layers_acts_without_a_kernel() -> None:
    network = test_drqn_update.make().model
    network.encoder.requires_grad_(False)
    drqn = test_drqn_update.DRQN(
        network, test_drqn_update.make().hyper, precise_spec(test_drqn_update.SPEC)
    )
    accelerate(drqn)
    assert kernels_of(drqn) == set()


@double_precision()
def test_the_network_of_another_library_learns_what_ours_learns_with_kernels() -> None:
    """Linear layers with our weights, as a user would write them."""
    packaged = make_value_based()
    linears = []
    for weight, bias in packaged.model.layers.linears:
        linear = nn.Linear(weight.shape[1], weight.shape[0])
        linear.load_state_dict({"weight": weight, "bias": bias})
        linears += [linear, nn.ReLU()]
    custom = make_value_based(network=nn.Sequential(*linears[:-1]))
    for agent in (packaged, custom):
        accelerate(agent)
    assert (kernels_of(packaged), kernels_of(custom)) == ({"greedy", "loss"}, set())
    for seed in range(UPDATES):
        for agent in (packaged, custom):
            agent.update(transitions(seed), Clock(seed, 100))
    found, expected = (list(agent.model.parameters()) for agent in (packaged, custom))
    assert_close(found, expected, **SINGLE)


class ClippedTarget(TargetNetwork):
    def __call__(self, *inputs: Tensor) -> Tensor:
        return super().__call__(*inputs).clip(-0.1, 0.1)


class FlooredTemperature(Temperature):
    @property
    def alpha(self) -> Any:
        return torch.as_tensor(super().alpha).clamp(min=1.5)


class Halved(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs) / 2


def clip_output(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return output.clip(-0.1, 0.1)


def replace_target(agent: Any) -> None:
    agent.target = ClippedTarget(agent.optimizer, tau=0.5)


def replace_temperature(agent: Any) -> None:
    agent.temperature = FlooredTemperature(agent.hyper, -1.0, agent.device)


def hook_network(agent: Any) -> None:
    agent.model.register_forward_hook(clip_output)


def hook_actor(agent: Any) -> None:
    agent.model.actor.register_forward_hook(clip_output)


def choose_first(agent: Any) -> None:
    agent.selector = lambda obs: torch.eye(len(obs), agent.spec.num_actions)


def halve_network(agent: Any) -> None:
    agent.model = Halved(agent.model)


def halve_actor(agent: Any) -> None:
    agent.actor = Halved(agent.actor)


def freeze_layer(agent: Any) -> None:
    next(iter(agent.model.parameters())).requires_grad_(False)


def square_errors(agent: Any) -> None:
    agent.hyper = agent.hyper.model_copy(update={"loss": "mse", "double": True})


ALTERED: list[tuple[Any, Any, Any]] = [
    (make_value_based, transitions, replace_target),
    (partial(make_soft, "sac"), soft_transitions, replace_temperature),
    (make_value_based, transitions, hook_network),
    (make_ppo, partial(rollout, "discrete"), hook_actor),
    (make_value_based, transitions, choose_first),
    (make_value_based, transitions, halve_network),
    (partial(make_soft, "sac"), soft_transitions, halve_actor),
    (make_value_based, transitions, freeze_layer),
]


@pytest.mark.parametrize(
    ("make", "data", "alter"), ALTERED, ids=lambda x: getattr(x, "__name__", "")
)
@double_precision()
def test_an_agent_that_was_altered_learns_as_altered(make: Any, data: Any, alter: Any) -> None:
    """A kernel stands for what is packaged, not for what someone has put in its place."""
    agents = make(), make(), make()
    for agent in agents[:2]:
        alter(agent)
    plain, fast, packaged = agents
    accelerate(fast)
    for number in range(UPDATES):
        for agent in agents:
            agent.update(data(number), Clock(number, 100))
    expected = learned(plain)
    assert_close(learned(fast), expected, **SINGLE)
    pairs = zip(learned(packaged).values(), expected.values(), strict=True)
    assert max(float((x - y).abs().max()) for x, y in pairs) > 1e-5


@double_precision()
def test_a_setting_that_changes_meanwhile_counts() -> None:
    plain, fast = make_value_based(), make_value_based()
    accelerate(fast)
    assert fast.optimizer.kernels
    for number in range(UPDATES):
        for agent in (plain, fast):
            if number == 1:
                square_errors(agent)
            agent.update(transitions(number), Clock(number, 100))
    assert_close(learned(fast), learned(plain), **SINGLE)


@pytest.mark.parametrize("name", ["dqn", "sac", "ppo"])
@double_precision()
def test_the_loss_of_a_kernel_has_its_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, data = {
        "dqn": (make_value_based, transitions),
        "sac": (partial(make_soft, "sac"), soft_transitions),
        "ppo": (make_ppo, partial(rollout, "discrete")),
    }[name]
    differentiate, values = Optimizer.differentiate, []

    def watched(*args: Any) -> Loss:
        loss = differentiate(*args)
        values.append(float(loss.value.detach()))
        return loss

    monkeypatch.setattr(Optimizer, "differentiate", watched)
    plain, fast = make(), make()
    accelerate(fast)
    for agent in (plain, fast):
        agent.update(data(0), Clock(0, 100))
    half = len(values) // 2
    assert values[half:] == pytest.approx(values[:half], rel=1e-4, abs=1e-6)
    assert values[0]


@double_precision()
def test_other_losses_are_not_replaced_by_the_kernel_of_one() -> None:
    dqn, other = make_value_based(), make_value_based()
    accelerate(dqn)
    batch = transitions(0)

    def penalty(batch: Batch) -> Tensor:
        return dqn.model(batch.obs).square().mean()

    expected = torch.autograd.grad(penalty(batch), list(dqn.model.parameters()))
    result = dqn.optimizer.differentiate(penalty, batch)
    assert_close(result.value, penalty(batch))
    assert_close([p.grad for p in dqn.model.parameters()], list(expected))
    changed = overriding(DQN, "loss")
    another = make_value_based(algorithm=changed)  # a method of that name, of another class
    found = dqn.optimizer.differentiate(another.loss, batch)
    assert_close(found.value, other.loss(batch).value)


# Random shifts.


def test_images_are_shifted_by_the_kernel_on_any_number_of_threads() -> None:
    spec = EnvSpec(
        env_id="toy",
        obs_shape=(3, 16, 16),
        obs_dtype="uint8",
        action_kind="continuous",
        action_dim=2,
    )
    hyper = DrQConfig(hidden_sizes=(8,), feature_size=6)
    drq = get_spec("drq")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        agent: Any = drq.algorithm(drq.model(spec, hyper), hyper, spec)
        accelerate(agent)
        shifts = [getattr(getattr(agent, name), "shift", None) for name in agent.state_names()]
        assert [shift for shift in shifts if shift] == [images.random_shift]


# Blocks inside autograd.


def attached(network: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The network with the kernels of its blocks, and a copy without."""
    plain = copy.deepcopy(network)
    optimizer = Optimizer(network)
    attach_kernels(network, optimizer.flat)
    assert blocks_of(network)
    assert not blocks_of(plain)
    return network, plain


class Many(nn.Module):
    """Blocks of every kind behind each other, and parameters beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = MLP((3, 8), activation="tanh", activate_last=True)
        self.ensemble = EnsembleMLP(2, (8, 6))
        self.each = EnsembleMLP(2, (6, 8))
        self.head = DuelingMLP(8, 4, (8, 8))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        features = torch.tanh(self.each(self.ensemble(self.encoder(x)))).mean(0)
        return self.head(features) * self.scale


def gradients(network: nn.Module, loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [*network.parameters(), *inputs]))


@double_precision()
def test_blocks_give_the_values_and_gradients_of_autograd() -> None:
    fast, plain = attached(Many())
    assert len(blocks_of(fast)) == 4
    x = torch.randn(6, 3).requires_grad_()
    found, expected = fast(x), plain(x)
    assert_close(found, expected)
    weights = torch.randn(6, 4)
    mine = gradients(fast, (found * weights).sum(), x)
    assert_close(mine, gradients(plain, (expected * weights).sum(), x))
    with torch.no_grad():
        assert_close(fast(x), plain(x))
        assert not fast(x).requires_grad


@double_precision()
def test_a_network_that_is_called_twice_in_a_loss_adds_up_both() -> None:
    fast, plain = attached(Many())
    one, two = torch.randn(2, 6, 3)

    def loss(network: nn.Module) -> Tensor:
        return (network(one) * network(two)).sum() + network(network(one)[:, :3]).sum()

    assert_close(gradients(fast, loss(fast)), gradients(plain, loss(plain)))


@double_precision()
def test_a_penalty_on_the_parameters_counts_beside_the_blocks() -> None:
    class Penalised(DQN):
        def loss(self, batch: Batch) -> Loss:
            result = super().loss(batch)
            penalty = sum(parameter.square().sum() for parameter in self.model.parameters())
            return result._replace(value=result.value + penalty)

    fast = assert_learns_the_same(lambda: make_value_based(algorithm=Penalised), transitions)
    assert blocks_of(fast.model)


@double_precision()
def test_a_penalty_on_gradients_is_differentiated_again() -> None:
    fast, plain = attached(Many())
    x = torch.randn(6, 3).requires_grad_()

    def loss(network: nn.Module) -> Tensor:
        output = network(x)
        (slope,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        return output.sum() + slope.square().sum()

    assert_close(gradients(fast, loss(fast), x), gradients(plain, loss(plain), x))


@double_precision()
def test_critics_that_are_asked_for_some_members_learn_from_them() -> None:
    fast, plain = attached(EnsembleMLP(4, (3, 8, 2)))
    x, members = torch.randn(6, 3).requires_grad_(), torch.tensor([2, 0])
    found, expected = fast(x, members), plain(x, members)
    assert_close(found, expected)
    mine = gradients(fast, found.square().sum(), x)
    assert_close(mine, gradients(plain, expected.square().sum(), x))
    with torch.no_grad():
        assert_close(fast(x, members), plain(x, members))


@pytest.mark.parametrize("shape", [(3,), (2, 5, 3), (2, 2, 5, 3)])
@double_precision()
def test_inputs_of_other_dimensions_are_taken_as_without_kernels(shape: tuple[int, ...]) -> None:
    fast, plain = attached(MLP((3, 8, 2)))
    x = torch.randn(shape).requires_grad_()
    found, expected = fast(x), plain(x)
    assert_close(found, expected)
    mine = gradients(fast, found.square().sum(), x)
    assert_close(mine, gradients(plain, expected.square().sum(), x))


def test_an_activation_in_place_may_follow_a_block() -> None:
    grads = []
    for network in attached(MLP((3, 8))):
        torch.relu_(network(torch.ones(2, 3))).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    assert_close(grads[0], grads[1])
    assert grads[0].abs().max() > 0


def test_blocks_whose_layers_share_parameters_have_no_kernel() -> None:
    network = MLP((4, 4))
    network.add_layer(*network.linears[0])
    attach_kernels(network, Optimizer(network).flat)
    assert not blocks_of(network)


def test_parts_that_share_parameters_have_no_kernel() -> None:
    """The gradient of the second part would overwrite that of the first."""
    network = DuelingMLP(3, 2, (8,), layer_norm=True)
    assert has_kernel(network, {DuelingMLP})
    network.value.scale0 = network.advantage.scale0
    assert not has_kernel(network, {DuelingMLP})


def test_a_network_with_a_hook_on_a_parameter_has_no_kernel() -> None:
    network = MLPQNetwork(3, 2, (8,), layer_norm=True)
    assert has_kernel(network)
    hook = network.layers.scale0.register_hook(lambda grad: 0 * grad)
    assert not has_kernel(network)
    hook.remove()
    assert has_kernel(network)
    network.layers.weight0.register_post_accumulate_grad_hook(lambda parameter: None)
    assert not has_kernel(network)


def test_what_was_overwritten_before_the_backward_pass_is_noticed() -> None:
    """As without a kernel: the gradient would be that of other numbers."""
    for network in attached(MLP((3, 8), activation="tanh", activate_last=True)):
        features = network(torch.ones(2, 3))
        features += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            features.sum().backward()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_computes_with_its_own_weights_and_without_kernels(
    copied: Callable[[nn.Module], nn.Module],
) -> None:
    network, _ = attached(Many())
    twin, x = copied(network), torch.randn(5, 3)
    assert not blocks_of(twin)
    before = network(x).detach()
    assert_close(twin(x).detach(), before)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
        assert_close(twin(x), before)
        assert not network(x).any()
        network.load_state_dict(twin.state_dict())
        assert_close(network(x), before)
    twin(x).sum().backward()
    assert all(parameter.grad is not None for parameter in twin.parameters())


@double_precision()
def test_the_spread_of_a_gaussian_policy_is_learned_beside_its_blocks() -> None:
    changed = overriding(PPO, "loss")
    fast = assert_learns_the_same(
        lambda: make_ppo("continuous", changed), lambda seed: rollout("continuous", seed)
    )
    assert blocks_of(fast.model) == [fast.model.actor, fast.model.critic]


def test_convolutions_are_learned_before_the_blocks_of_their_head() -> None:
    """Weights of powers of two: what goes back to the convolutions is exact."""
    network = image_network("dqn").requires_grad_()
    network.head.layers = MLP((64, 3))
    with torch.no_grad():
        for parameter in network.head.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
    fast, plain = attached(network)
    weights = torch.tensor([[1.0, -2.0, 0.5], [4.0, 1.0, -1.0]])
    mine = gradients(fast, (fast(some_images()) * weights).sum())
    expected = gradients(plain, (plain(some_images()) * weights).sum())
    assert mine[0].any()
    for found, other in zip(mine, expected, strict=True):
        assert torch.equal(found, other)
