"""Base of the value-based algorithms: a Q-network, its target network, epsilon-greedy exploration.

An update is one step of the online network towards `reward + discount * max Q_target(next_obs)` (or
towards the distribution of that return), and then the target network's if it is due. The buffer
sets `discount` to gamma^k after k summed rewards, and to 0 after a termination. Where the
environment gives action masks, the maximum is over the legal actions of the next state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rl_training.algorithms.base import (
    ActResult,
    Algorithm,
    Loss,
    ReturnDistribution,
    UpdateResult,
    check_output,
    described_input,
    example_observation,
    mask_illegal,
    trainable_parameters,
)
from rl_training.algorithms.optimization import AveragedNetwork, Optimizer, TargetNetwork
from rl_training.config.schedule import scheduled_value
from rl_training.config.value_based import TARGET_UPDATE_INTERVAL, ValueBasedConfig
from rl_training.data.examples import example_batch
from rl_training.data.generators import BlockNoise, NumpyGenerator, derived_seeds
from rl_training.data.types import Clock, EnvSpec, PolicyState
from rl_training.models.blocks import NoisyMLP


class EpsilonGreedy(BlockNoise):
    """Uniform actions with probability epsilon, decided independently for each environment."""

    def __init__(self, num_actions: int, seed: int) -> None:
        super().__init__(seed, lambda rng, rows: rng.random((rows, 2)), width=2)
        self.num_actions = num_actions

    def act(
        self,
        epsilon: float,
        num_envs: int,
        greedy: Callable[[], np.ndarray],
        legal: np.ndarray | None = None,
    ) -> np.ndarray:
        """In each row a random legal action with probability epsilon, else the greedy one.

        `greedy` is called only if some row needs it: a fully random step costs no forward pass.
        """
        draw, choice = self.take(num_envs).T
        random_rows = draw < epsilon
        num_random = np.count_nonzero(random_rows)
        if not num_random:
            return greedy()
        if legal is None:
            uniform = (choice * self.num_actions).astype(np.int64)
        else:
            rank = (choice * np.count_nonzero(legal, 1)).astype(np.int64)
            uniform = (legal.cumsum(1) > rank[:, None]).argmax(1)  # the legal action of that rank
        return uniform if num_random == num_envs else np.where(random_rows, uniform, greedy())


def action_values(values: Tensor, action: Tensor) -> Tensor:
    """The entry of the action taken in each row: values [B, A, ...], action [B] gives [B, ...]."""
    return values[torch.arange(len(values), device=values.device), action]


def bootstrap(outputs: Tensor, q: Tensor, temperature: float = 0.0) -> tuple[Tensor, Tensor]:
    """What targets bootstrap from: `outputs` [B, A, ...] at the next action, and a bonus [B].

    At temperature 0 the next action is greedy in q [B, A], and the bonus is 0. Above 0 the next
    policy is softmax(q / temperature): `outputs` are averaged under it, and the bonus is
    temperature * entropy. With `outputs` = q the two add up to the soft value, temperature *
    logsumexp(q / temperature) (soft Q-learning, Haarnoja et al., 2017, Eq. 4). Illegal actions,
    for which `mask_illegal` sets q to minus infinity, contribute to neither.
    """
    if temperature == 0:
        return action_values(outputs, q.argmax(1)), q.new_zeros(len(q))
    log_policy = F.log_softmax(q / temperature, 1)
    policy = log_policy.exp()
    finite = log_policy.clamp(min=-1e30)  # 0 * log 0 is 0
    entropy = -(policy * finite).sum(1)
    return torch.einsum("ba...,ba->b...", outputs, policy), temperature * entropy


class ValueBased(Algorithm):
    """An online network, its optimiser, a target network and epsilon-greedy exploration.

    A subclass writes `loss`, and where its network gives more than Q-values,
    `output_shape_per_action`, `q_values` and `returns`.
    """

    state_fields: ClassVar[tuple[str, ...]] = (
        "model",
        "target",
        "average",
        "optimizer",
        "exploration",
        "noise",
    )
    hyper: ValueBasedConfig

    def __init__(
        self,
        model: nn.Module,
        hyper: ValueBasedConfig,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(device)
        self.hyper, self.spec = hyper, spec
        self.model: Any = model.to(self.device)
        self.check_network()
        self.optimizer = Optimizer(
            self.model,
            name=hyper.optimizer,
            eps=hyper.optimizer_eps,
            max_grad_norm=hyper.max_grad_norm,
        )
        interval = None if hyper.tau < 1 else hyper.target_update_interval or TARGET_UPDATE_INTERVAL
        self.target = TargetNetwork(self.optimizer, tau=hyper.tau, interval=interval)
        self.average: AveragedNetwork | None = None
        if hyper.ema_decay is not None:
            self.average = AveragedNetwork(self.optimizer, decay=hyper.ema_decay)
        if hyper.noisy:
            self.target.module.train()  # the targets are noisy too
        self.exploration = EpsilonGreedy(spec.num_actions, seed)
        self.noise = NumpyGenerator(derived_seeds(seed, 1)[0])
        networks = (*self.model.modules(), *self.target.module.modules())
        self._noisy_layers = [layer for layer in networks if isinstance(layer, NoisyMLP)]

    @abstractmethod
    def loss(self, batch: Any) -> Loss | Tensor:
        """The loss of a batch, as a function of `self.model`'s parameters."""

    def update(self, batch: Any, clock: Clock) -> UpdateResult:
        """One gradient step, then the target network if it is due."""
        self.set_training(self.model, True)
        self.resample_noise()
        rate = self.learning_rate(clock)
        loss = self.optimizer.descend(self.loss, batch, learning_rate=rate)
        self.target.update(clock)
        if self.average is not None:
            self.average.update(clock)
        return UpdateResult(loss.metrics, priorities=loss.priority)

    def example_inputs(self) -> dict[str, tuple[Any, ...]]:
        """A batch of transitions."""
        return {"loss": (example_batch(self.spec, self.device),)}

    def act(
        self,
        obs: np.ndarray,
        state: PolicyState,
        first: np.ndarray,  # noqa: ARG002 - feed-forward
        clock: Clock,
        *,
        explore: bool,
        legal: np.ndarray | None = None,
    ) -> ActResult:
        """Epsilon-greedy actions, or greedy ones of the averaged network if there is one."""
        self.set_exploring(explore)
        if not explore:
            return ActResult(self.greedy(obs, averaged=True, legal=legal), state)
        epsilon, greedy = self.epsilon(clock), lambda: self.greedy(obs, legal=legal)
        return ActResult(self.exploration.act(epsilon, len(obs), greedy, legal), state)

    def set_exploring(self, explore: bool) -> None:
        """Prepare the network for acting; noisy layers get fresh noise to explore, else none."""
        self.set_training(self.model, explore and self.hyper.noisy)
        if explore:
            self.resample_noise()

    def resample_noise(self) -> None:
        """Draw fresh noise for the noisy layers of both networks."""
        for layer in self._noisy_layers:
            layer.resample(self.noise.numpy)

    @property
    def policy_network(self) -> Any:
        """The network of the evaluated policy: the averaged one if there is one."""
        return self.model if self.average is None else self.average.module

    @torch.no_grad()
    def greedy(
        self, obs: np.ndarray, *, averaged: bool = False, legal: np.ndarray | None = None
    ) -> np.ndarray:
        """The legal action with the highest Q-value in each row."""
        network = self.policy_network if averaged else self.model
        q = self.q_values(network(self.obs_tensor(obs)))
        q = mask_illegal(q, None if legal is None else self.tensor(legal))
        best: np.ndarray = q.argmax(-1).cpu().numpy()
        return best

    @staticmethod
    def output_shape_per_action(hyper: Any) -> tuple[int, ...]:  # noqa: ARG004 - one number by default
        """The shape of the network's output for each action."""
        return ()

    def q_values(self, output: Tensor) -> Tensor:
        """Q-values [B, A] from the network's output."""
        return output

    def selector(self, next_obs: Tensor) -> Tensor | None:
        """With `double`, the online network's Q-values, which choose the next action."""
        if not self.hyper.double:
            return None
        with torch.no_grad():
            return self.q_values(self.model(next_obs))

    def first_output(self, obs: np.ndarray) -> Tensor:
        """The greedy network's output for observations that begin episodes."""
        self.set_exploring(False)
        self.set_training(self.policy_network, False)
        with torch.no_grad():
            output: Tensor = self.policy_network(self.obs_tensor(obs))
        return output

    def returns(self, output: np.ndarray) -> ReturnDistribution:
        """Each action's return distribution, from the network's output for one observation."""
        return ReturnDistribution("values", output[:, None], np.ones((len(output), 1)))

    def epsilon(self, clock: Clock) -> float:
        """Probability of a random action; 1 during warm-up."""
        if clock.warming_up:
            return 1.0
        return scheduled_value(self.hyper.epsilon, clock.env_steps, clock.horizon)

    def learning_rate(self, clock: Clock) -> float:
        """The optimiser's step size."""
        return scheduled_value(self.hyper.learning_rate, clock.env_steps, clock.horizon)

    def schedules(self, clock: Clock) -> dict[str, float]:
        """Epsilon and the learning rate."""
        return {"epsilon": self.epsilon(clock), "learning_rate": self.learning_rate(clock)}

    def check_network(self) -> None:
        """Refuse a network whose output is not shaped as `output_shape_per_action` says."""
        spec, output = self.spec, (self.spec.num_actions, *self.output_shape_per_action(self.hyper))
        sizes = "".join(f", {size}" for size in output)
        trainable_parameters(self.model)  # refuses a network without any
        check_output(
            self.model,
            self.model,
            [example_observation(spec, self.device)],
            (1, *output),
            shapes=f"(batch{sizes}) for observations {described_input(spec)}",
        )
