"""Base classes of the algorithms, and the checks of their networks.

An update needs only `Loss`, `UpdateResult` and `Algorithm`; from `Recurrent` on, the file serves
recurrent agents and start-up checks.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.data.observations import without_names
from rl_training.data.types import Clock, EnvSpec, PolicyState
from rl_training.errors import ConfigError, UsageError
from rl_training.storage.state import Stateful


class Loss(NamedTuple):
    """A scalar to descend, detached 0-d metrics by name, and a priority per row if there is one."""

    value: Tensor
    metrics: Mapping[str, Tensor]
    priority: Tensor | None = None

    @classmethod
    def of(cls, result: Loss | Tensor, name: str = "loss") -> Loss:
        """`result` as a `Loss`; a plain scalar becomes one, logged under `name`."""
        if isinstance(result, Loss) and result.metrics:
            return result
        if isinstance(result, Loss):
            return result._replace(metrics={name: result.value.detach()})
        if not isinstance(result, Tensor):
            raise UsageError(
                f"{name}: expected a scalar tensor or Loss(value, metrics), found "
                f"{type(result).__name__}"
            )
        return cls(result, {name: result.detach()})


class UpdateResult(NamedTuple):
    """Detached 0-d metrics of an update by name, and priorities if there are any.

    `gradient_steps` is the number of updates that a call counts as: more than one only on-policy,
    where a call goes through a rollout in several minibatches and epochs.
    """

    metrics: Mapping[str, Tensor]
    gradient_steps: int = 1
    priorities: Tensor | None = None


class ActResult(NamedTuple):
    """Actions of one vector step, a row per environment, and the policy state after it."""

    action: np.ndarray
    state: PolicyState = ()


class SampledValues(NamedTuple):
    """Sampled actions [B, A], the critics' mean value of them [B], and alpha * log_prob [B]."""

    action: np.ndarray
    value: np.ndarray
    alpha_log_prob: np.ndarray


def mask_illegal(values: Tensor, legal: Tensor | None) -> Tensor:
    """Q-values or logits [..., A], minus infinity for illegal actions; unchanged without a mask.

    So no maximum, softmax or Gumbel sample selects one, and none has a gradient.
    """
    return values if legal is None else values.masked_fill(~legal, -torch.inf)


@runtime_checkable
class HasCritics(Protocol):
    """An algorithm with critics of the actions it samples, such as `QBias` measures."""

    def sampled_values(self, obs: np.ndarray, noise: np.ndarray) -> SampledValues:
        """Actions sampled with `noise` [B, A] and the critics' values of them; changes nothing."""


class ReturnDistribution(NamedTuple):
    """The distribution of each action's return: `returns` [A, N] and their `probabilities` [A, N].

    It consists of `quantiles` of equal probability, in order, of fixed `atoms`, or of a mean alone
    (`values`, N = 1).
    """

    form: Literal["values", "quantiles", "atoms"]
    returns: np.ndarray
    probabilities: np.ndarray


class Choices(NamedTuple):
    """The probabilities of the choices of each part of an action, and the value of the state."""

    parts: tuple[np.ndarray, ...]
    value: float


class ActionSpread(NamedTuple):
    """Continuous actions: the deterministic one [A], and quantiles [K, A] of those of training.

    The quantiles are those of `SPREAD_LEVELS`, one dimension by itself. A policy's `value` is of
    the state, and that of critics [E] of the deterministic action; `along` has what the critics
    give if one dimension takes the values of `grid` [G] instead: [E, A, G]. Actions are in [-1, 1].
    """

    action: np.ndarray
    quantiles: np.ndarray
    value: np.ndarray
    grid: np.ndarray
    along: np.ndarray


SPREAD_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
NORMAL_QUANTILES = (-1.6448536, -0.6744898, 0.0, 0.6744898, 1.6448536)
"""Of the standard normal distribution at those levels."""
GRID = np.linspace(-1, 1, 41, dtype=np.float32)


@runtime_checkable
class GivesReturns(Protocol):
    """An algorithm that learns the return of every action."""

    def first_output(self, obs: np.ndarray) -> Tensor:
        """The greedy network's output for observations that begin episodes."""

    def q_values(self, output: Tensor) -> Tensor:
        """Q-values [B, A] from the network's output."""

    def returns(self, output: np.ndarray) -> ReturnDistribution:
        """Each action's return distribution, from the network's output for one observation."""


@runtime_checkable
class GivesActions(Protocol):
    """An algorithm with a policy that can be asked for more than an action."""

    def first_actions(
        self, obs: np.ndarray, clock: Clock, legal: np.ndarray | None = None
    ) -> Choices | ActionSpread:
        """The policy at one observation [1, ...] that begins an episode; changes nothing."""


def values_along(
    critics: Callable[[Tensor], Tensor], action: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """The critics' values of an action [1, A], and along each of its dimensions: [E], [E, A, G].

    `critics` take a batch of actions, and give [E, B, outputs].
    """
    dims, grid = action.shape[1], torch.as_tensor(GRID, device=action.device)
    varied = action.expand(dims * len(grid), dims).clone().reshape(dims, len(grid), dims)
    for dim in range(dims):
        varied[dim, :, dim] = grid
    values = critics(torch.cat([action, varied.flatten(0, 1)])).mean(-1).cpu().numpy()
    return values[:, 0], values[:, 1:].reshape(len(values), dims, len(grid))


class Algorithm(Stateful, ABC):
    """Base of the algorithms: acts, updates, and declares what a checkpoint holds of it.

    A subclass names every stateful attribute it adds in `state_fields` (networks, optimisers,
    generators) and writes `act`, `update` and its losses in plain torch. `losses` names them: these
    are what `compile` compiles. With `example_inputs` they are tried before a run.
    """

    losses: ClassVar[tuple[str, ...]] = ("loss",)
    spec: EnvSpec
    compiles: ClassVar[bool] = True
    """Whether `torch.compile` is worthwhile; not for recurrent networks, whose PyTorch kernels are
    fused already."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.execution = "eager"
        self._modules: dict[nn.Module, list[nn.Module]] = {}

    def initial_state(self, num_envs: int) -> PolicyState:  # noqa: ARG002 - feed-forward default
        """The policy state at the start of an episode, for `num_envs` rows."""
        return ()

    @abstractmethod
    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,
        clock: Clock,
        *,
        explore: bool,
    ) -> ActResult:
        """Choose an action per row; greedy (or mean) unless `explore`.

        An algorithm of discrete actions that respects action masks has one more keyword argument,
        `legal: np.ndarray | None = None`: true for the legal choices of each row [B, A].
        """

    @property
    def takes_masks(self) -> bool:
        """Whether `act` has the argument `legal`."""
        return "legal" in inspect.signature(self.act).parameters

    @abstractmethod
    def update(self, batch: Any, clock: Clock) -> UpdateResult:
        """Make one update from a batch."""

    def example_inputs(self) -> dict[str, tuple[Any, ...]]:
        """Made-up inputs of some losses, by name, such as `update` would give them."""
        return {}

    def compile(self) -> None:
        """Run the losses through `torch.compile` from now on."""
        torch.compiler.reset()  # what earlier runs of the process compiled would count as retries
        for name in self.losses:
            setattr(self, name, _on_plain_tensors(torch.compile(getattr(self, name))))
        self.execution = "compiled"

    def reads_names(self) -> bool:
        """Whether a network may read the parts of observations by name, which does not compile."""
        spec = getattr(self, "spec", None)  # which somebody's own algorithm need not keep
        if spec is None or not spec.parts:
            return False
        modules = (type(network).__module__ for network in self.networks().values())
        return any(module.partition(".")[0] != "rl_training" for module in modules)

    def schedules(self, clock: Clock) -> dict[str, float]:  # noqa: ARG002 - none by default
        """Scheduled quantities now, for the log."""
        return {}

    def trouble(
        self,
        batch: Any,  # noqa: ARG002 - none by default
        episodes: Sequence[tuple[float, int]],  # noqa: ARG002
    ) -> str:
        """What goes wrong in the latest batch, and the settings to change; empty if nothing does.

        Asked at log intervals until there is an answer, with the returns and lengths of recent
        episodes.
        """
        return ""

    def state_names(self) -> list[str]:
        """The names of all stateful attributes."""
        return list(self._state_attributes.values())

    def networks(self) -> dict[str, nn.Module]:
        """The stateful attributes that are networks, by name."""
        parts = ((name, getattr(self, name)) for name in self.state_names())
        return {name: part for name, part in parts if isinstance(part, nn.Module)}

    def set_training(self, network: nn.Module, training: bool) -> None:
        """Switch layers such as dropout between acting and learning.

        Writes the flag directly: `nn.Module.train` costs more than a small network's layers.
        """
        if network.training is training:
            return
        if network not in self._modules:
            modules = list(network.modules())
            plain = all(type(module).train is nn.Module.train for module in modules)
            self._modules[network] = modules if plain else []
        if not self._modules[network]:  # one of them decides for itself, as a frozen BatchNorm does
            network.train(training)
        for module in self._modules[network]:
            module.__dict__["training"] = training

    def tensor(self, array: np.ndarray) -> Tensor:
        """Host numbers as a tensor on the algorithm's device."""
        return torch.from_numpy(array).to(self.device)

    def obs_tensor(self, obs: np.ndarray) -> Tensor:
        """Encoded observations as a network is given them, on the algorithm's device."""
        return self.spec.named(self.tensor(obs))


def _on_plain_tensors(loss: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *inputs: loss(*map(without_names, inputs))


class Recurrent(Algorithm):
    """Acts with a recurrent network, whose state stays on the host between steps.

    The network has `initial_state(rows)` and `act(obs, state, first)`, which gives its output first
    and the state after the step last.
    """

    model: Any
    compiles = False

    def initial_state(self, num_envs: int) -> PolicyState:
        """The state of the network at the start of an episode."""
        return host_state(self.model.initial_state(num_envs))

    @torch.no_grad()
    def output_and_state(
        self, obs: np.ndarray, state: PolicyState, first: np.ndarray, network: Any = None
    ) -> tuple[np.ndarray, PolicyState]:
        """The output of a network, by default `model`, for one step, and its state after it."""
        before = tuple(self.tensor(part) for part in state)
        network = self.model if network is None else network
        result = network.act(self.obs_tensor(obs), before, self.tensor(first))
        return result[0].cpu().numpy(), host_state(result[-1])


def host_state(state: tuple[Tensor, ...]) -> PolicyState:
    """A policy state as collector, buffers and users see it."""
    return tuple(part.cpu().numpy() for part in state)


@torch.no_grad()
def check_recurrent(
    model: Any,
    spec: EnvSpec,
    method: str,
    fields: Mapping[str, tuple[int, ...]],
    sizes: Sequence[int],
    *,
    state_after: bool = True,
) -> None:
    """Refuse a network that does not act step by step and go through sequences with `method`.

    Both take (obs, state, first). `act` gives the first of `fields` first and the state last, whose
    parts have the given sizes; `method` gives all fields, and the state too if `state_after`.
    `fields` has the shape of each for one row.
    """
    model.eval()
    for name in ("initial_state", "act", method):
        if not callable(getattr(model, name, None)):
            raise ConfigError(f"network: expected a method {name}, found none")
    device = trainable_parameters(model)[0].device
    first = torch.zeros(2, 1, dtype=torch.bool, device=device)
    obs = example_observation(spec, device).repeat(2, 1, *(1 for _ in spec.obs_shape))
    sequence: dict[str, Any] = {name: (2, 1, *shape) for name, shape in fields.items()}
    leading = next(iter(fields))
    state = {"state": [(1, size) for size in sizes]}
    for name, rows, starts, expected in (
        (method, obs, first, sequence | (state if state_after else {})),
        ("act", obs[0], first[0], {leading: sequence[leading][1:], **state}),
    ):
        shapes = ", ".join(f"{field} {shape}" for field, shape in expected.items())
        call = f"network.{name}(obs {tuple(rows.shape)}, state, first): expected {shapes}"
        try:
            output = getattr(model, name)(rows, model.initial_state(1), starts)
            found = {field: _shape_of(output, field, leading) for field in expected}
        except Exception as error:
            raise ConfigError(f"{call}, but calling it raised: {error}") from error
        if found != expected:
            shown = ", ".join(f"{field} {shape}" for field, shape in found.items())
            raise ConfigError(f"{call}, found {shown}")


def _shape_of(output: Any, field: str, leading: str) -> Any:
    """The shape of a field; the leading one and the state go by their place."""
    if field == "state":
        return [tuple(part.shape) for part in output[-1]]
    return tuple((output[0] if field == leading else getattr(output, field)).shape)


def trainable_parameters(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained; a network without any is refused."""
    trainable = [p for p in network.parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError("network: expected trainable parameters, found none")
    return trainable


def example_observation(spec: EnvSpec, device: torch.device) -> Tensor:
    """A batch of one observation of zeros, of the type that a network is given."""
    dtype = getattr(torch, spec.obs_dtype)
    return spec.named(torch.zeros(1, *spec.obs_shape, dtype=dtype, device=device))


def described_input(spec: EnvSpec) -> str:
    """The shape of the observations that a network is given, for a message."""
    if spec.parts:
        shapes = (f"{part.name} {('batch', *part.shape)}" for part in spec.parts)
        return f"of {', '.join(shapes)}".replace("'", "")
    return f"({', '.join(map(str, ('batch', *spec.obs_shape)))})"


@torch.no_grad()
def check_output(
    network: nn.Module,
    call: Callable[..., Any],
    inputs: Sequence[Tensor],
    expected: tuple[int, ...],
    *,
    name: str = "network",
    shapes: str = "",
) -> None:
    """Refuse a network whose `call(*inputs)` is not a tensor of the expected shape.

    `shapes` says in words what it is expected to give, and for what.
    """
    network.eval()
    wanted = shapes or f"a tensor of shape {expected}"
    try:
        output = call(*inputs)
    except Exception as error:
        raise ConfigError(f"{name}: expected {wanted}, but calling it raised: {error}") from error
    found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if found != expected:
        raise ConfigError(f"{name}: expected {wanted}, found {found} for one observation")


def modules_of(network: nn.Module, *names: str) -> list[nn.Module]:
    """The network's modules of these names; parameters outside them, or in two, are refused."""
    modules: list[nn.Module] = []
    known: set[nn.Parameter] = set()
    listed = " and ".join(names)
    for name in names:
        module = getattr(network, name, None)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"network: expected a module named {name}, found none")
        parameters = set(module.parameters())
        if known & parameters:
            raise ConfigError(
                f"network: {listed} share parameters, and each has its own optimiser; give each "
                "its own layers"
            )
        known |= parameters
        modules.append(module)
    if any(p.requires_grad for p in set(network.parameters()) - known):
        raise ConfigError(
            f"network: expected all parameters in {listed}, found others, which would not be "
            "trained; move them there"
        )
    return modules
