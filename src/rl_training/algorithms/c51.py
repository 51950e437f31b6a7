"""C51 (Bellemare et al., 2017): the distribution of the return over fixed atoms, not its mean.

As in the paper the next action has the highest expected return by the *target* network; `double`
lets the online network choose. Deviations: the defaults of DQN here, so Adam's epsilon is
1e-8 (0.01 / 32 in the paper), exploration goes down to 0.05 (0.01), the target network is copied
every 500 environment transitions (10,000), and gradient-norm clipping at 10.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Loss, ReturnDistribution, mask_illegal
from rl_training.algorithms.value_based import (
    ValueBased,
    action_values,
    bootstrap,
)
from rl_training.config.value_based import C51Config
from rl_training.data.types import Batch, EnvSpec, expect_shapes


def project(probabilities: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """The distribution of `reward + discount * Z` on the support of Z (Eq. 7).

    Shapes: probabilities [B, K], reward and discount [B], support [K]. The probability of each
    shifted atom is split between the two atoms it falls between, in proportion to proximity;
    beyond either end it goes to the last atom. Probabilities still sum to one.
    """
    expect_shapes("B K, B, B, K", probabilities, reward, discount, support)
    count = len(support)
    spacing = (support[-1] - support[0]) / (count - 1)
    position = (reward[:, None] + discount[:, None] * support - support[0]) / spacing
    position = position.clip(0, count - 1)
    lower = position.long().clip(0, count - 2)
    upper_share = (position - lower) * probabilities
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(1, lower, probabilities - upper_share)
    return projected.scatter_add_(1, lower + 1, upper_share)


def c51_loss(
    logits: Tensor,
    next_logits: Tensor,
    batch: Batch,
    support: Tensor,
    *,
    selector: Tensor | None = None,
    temperature: float = 0.0,
) -> Loss:
    """Weighted mean over the batch of the cross-entropy with the projected target distribution.

    Shapes: logits [B, A, K] of the online network at `obs`, next_logits [B, A, K] of the target
    network at `next_obs`, support [K]; `selector` [B, A] chooses the next action among the legal
    ones, by default by the expectation of `next_logits`. A row's priority is the
    Kullback-Leibler divergence from the target, as in Rainbow. With a temperature, the next state's
    distribution is the mixture over its actions, shifted by the bonus.
    """
    next_probabilities = next_logits.softmax(-1)
    selector = next_probabilities @ support if selector is None else selector
    selector = mask_illegal(selector, batch.next_legal)
    mixture, bonus = bootstrap(next_probabilities, selector, temperature)
    reward = batch.reward + batch.discount * bonus
    target = project(mixture, reward, batch.discount, support).detach()
    log_probabilities = action_values(logits, batch.action).log_softmax(-1)
    cross_entropy = -(target * log_probabilities).sum(-1)
    loss = (cross_entropy * batch.weight).mean()
    entropy = -(target * target.clip(min=1e-30).log()).sum(-1)
    value, target_value = log_probabilities.detach().exp() @ support, target @ support
    metrics = {
        "loss": loss.detach(),
        "q_value_mean": value.mean(),
        "target_mean": target_value.mean(),
        "td_error_mean": (value - target_value).abs().mean(),
    }
    return Loss(loss, metrics, (cross_entropy.detach() - entropy).clip(min=0.0))


class C51(ValueBased):
    """Q-learning on a categorical distribution of the return."""

    hyper: C51Config

    def __init__(
        self,
        model: nn.Module,
        hyper: C51Config,
        spec: EnvSpec,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(model, hyper, spec, seed=seed, device=device)
        self.support = torch.linspace(hyper.v_min, hyper.v_max, hyper.num_atoms).to(self.device)

    def loss(self, batch: Batch) -> Loss:
        """`c51_loss` on the algorithm's support."""
        next_logits, selector = self.target(batch.next_obs), self.selector(batch.next_obs)
        return c51_loss(
            self.model(batch.obs),
            next_logits,
            batch,
            self.support,
            selector=selector,
            temperature=self.hyper.temperature,
        )

    @torch.no_grad()
    def trouble(self, batch: Batch, episodes: Sequence[tuple[float, int]]) -> str:
        """Whether targets are clipped to the support by more than its spacing on average."""
        probabilities = self.target(batch.next_obs).softmax(-1)
        best = action_values(probabilities, (probabilities @ self.support).argmax(1))
        shifted = batch.reward[:, None] + batch.discount[:, None] * self.support
        low, high = self.hyper.v_min, self.hyper.v_max
        excess = ((shifted - shifted.clip(low, high)) * best).sum(1)
        above, below = excess.clip(min=0).mean().item(), -excess.clip(max=0).mean().item()
        if max(above, below) <= (spacing := (high - low) / (self.hyper.num_atoms - 1)):
            return ""
        scale = self.hyper.reward_scale
        returns = [scale * self.steady_return(*episode) for episode in episodes]
        returns += batch.reward.tolist()  # of an episode's last steps
        returns += [shifted.max().item()] * (above > spacing)
        returns += [shifted.min().item()] * (below > spacing)
        return (
            f"targets fall outside C51's support, {low:g} to {high:g}, and are clipped by "
            f"{max(above, below):.2g} on average, so that actions look alike. The episodes so far "
            f"need about {min(returns):.3g} to {max(returns):.3g}: set algo_kwargs.v_min and "
            "algo_kwargs.v_max"
        )

    def steady_return(self, episode_return: float, length: int) -> float:
        """The discounted return of an episode, with its return spread evenly over the steps."""
        gamma = self.hyper.gamma
        weights = length if gamma == 1 else (1 - gamma**length) / (1 - gamma)
        return episode_return / length * weights

    @staticmethod
    def output_shape_per_action(hyper: C51Config) -> tuple[int, ...]:
        """One number per atom."""
        return (hyper.num_atoms,)

    def q_values(self, output: Tensor) -> Tensor:
        """The expected return of each action."""
        return output.softmax(-1) @ self.support

    def returns(self, output: np.ndarray) -> ReturnDistribution:
        """The atoms and their probabilities."""
        probabilities = torch.from_numpy(output).softmax(-1).numpy()
        atoms = np.broadcast_to(self.support.cpu().numpy(), output.shape)
        return ReturnDistribution("atoms", atoms, probabilities)
