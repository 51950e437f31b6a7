"""The loop of every algorithm that learns from its latest rollout."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rl_training.config.hyper_parameters import OnPolicyHyperParameters
from rl_training.runtime.spec import Loop

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun


def run_on_policy(run: TrainingRun) -> None:
    """Fill a rollout, update on it, forget it, until the run is over."""
    import numpy as np  # here, as specs name this loop and are to be listed without delay

    rollout, progress, normalizer = run.buffer, run.progress, run.agent.normalizer
    while run.active:
        step = run.collector.step(run.explore)
        rollout.add(step)
        progress.env_steps += int(np.count_nonzero(step.valid))
        if rollout.full:
            taken = rollout.take()
            run.update(normalizer.batch(taken), progress.clock)
            # Only now: acting and updating on one rollout use the same statistics.
            normalizer.observe(taken.obs.cpu().numpy(), taken.valid.cpu().numpy())
            run.check_finite()  # a policy that is not finite cannot be sampled from
        run.after_step()


def _first_update(hyper: OnPolicyHyperParameters, num_envs: int) -> int:
    return hyper.rollout_steps(num_envs) * num_envs


def _planned_updates(hyper: OnPolicyHyperParameters, total_timesteps: int, num_envs: int) -> int:
    """Gradient steps, were no update cut short."""
    rollout = hyper.rollout_steps(num_envs) * num_envs
    minibatches = math.ceil(rollout / hyper.batch_size)
    return total_timesteps // rollout * hyper.epochs * minibatches


def _short_run(hyper: OnPolicyHyperParameters, images: bool) -> tuple[int, dict[str, Any]]:
    num_steps = 64 if images else hyper.num_steps or 64
    return 2 * num_steps, {"num_steps": num_steps}


ON_POLICY = Loop(
    run=run_on_policy,
    hyper=OnPolicyHyperParameters,
    learning_starts=lambda _: 0,
    replay_ratio=lambda _: 0,
    reward_scale=lambda _: 1.0,
    first_update=_first_update,
    planned_updates=_planned_updates,
    short_run=_short_run,
)
