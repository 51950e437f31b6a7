"""My algorithm: proximal policy optimisation with another loss.

rl-training train --config my_algo.yaml
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from rl_training.algorithms import (
    PPO,
    Loss,
    PPOConfig,
    Samples,
    mask_illegal,
    normalized,
    ppo_terms,
)
from rl_training.runtime import PPO_SPEC


class MyAlgoConfig(PPOConfig):
    """PPO's hyper-parameters and those below; each needs a default, bounds and a description."""

    kl_coef: float = Field(
        0.0, ge=0, le=100, description="penalty on the divergence from the old policy; 0 is PPO"
    )


class MyAlgo(PPO):
    """Everything PPO has (rollouts, advantages, epochs, schedules) with another loss."""

    hyper: MyAlgoConfig

    def loss(self, batch: Samples, clip_range: float) -> Loss:
        """The loss of a minibatch in plain torch, a function of `self.model`; autograd follows.

        Shapes: obs [B, D]; action [B] or [B, A]; log_prob and value, both as they were when the
        rollout ended, advantage and returns [B]. `clip_range` is what its schedule says now.
        `legal` [B, A] are the action masks, or None if the environment gives none.
        """
        hyper = self.hyper
        if hyper.normalize_advantages:
            batch = batch._replace(advantage=normalized(batch.advantage))
        output, value = self.policy_and_value(batch.obs)
        policy = self.policy(mask_illegal(output, batch.legal))
        log_prob = policy.log_prob(batch.action)
        terms = ppo_terms(log_prob, value, batch, clip_range, hyper.value_clip_range)
        means = {name: rows.mean() for name, rows in terms._asdict().items()}
        means["entropy"] = policy.entropy().mean()
        # An example of another term: an estimate of the KL divergence that is never negative.
        log_ratio = log_prob - batch.log_prob
        means["kl"] = (log_ratio.exp() - 1 - log_ratio).mean()
        means["loss"] = loss = (
            means["policy_loss"]
            + hyper.value_coef * means["value_loss"]
            - hyper.entropy_coef * means["entropy"]
            + hyper.kl_coef * means["kl"]
        )
        # Metrics are detached scalars, logged as train/<name>; `target_kl` reads approx_kl.
        return Loss(loss, {name: mean.detach() for name, mean in means.items()})


# Whatever is not replaced is PPO's: its network, rollout buffer, loop and spaces.
SPEC = replace(
    PPO_SPEC,
    name="my_algo",
    title="My algorithm",
    paper="",
    hyper=MyAlgoConfig,
    algorithm=MyAlgo,
)
