"""The loop of every algorithm that learns from its latest rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun


def run_on_policy(run: TrainingRun) -> None:
    """Fill a rollout, update on it, forget it, until the run is over."""
    algorithm, rollout, progress = run.algorithm, run.buffer, run.progress
    normalizer = run.agent.normalizer
    while run.active:
        step = run.collector.step(run.explore)
        rollout.add(step)
        progress.env_steps += int(np.count_nonzero(step.valid))
        if rollout.full:
            taken = rollout.take()
            result = algorithm.update(normalizer.batch(taken), progress.moment)
            # Only now: acting and updating on one rollout use the same statistics.
            normalizer.observe(taken.obs, taken.valid)
            progress.updates += result.gradient_steps
            run.recent_metrics.add(result.metrics)
            run.check_finite()  # a policy that is not finite cannot be sampled from
        run.after_step()
