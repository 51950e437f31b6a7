"""The loop of every algorithm that learns from a replay buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun


def run_off_policy(run: TrainingRun) -> None:
    """Step, store, update as often as owed, until the run is over."""
    algorithm, buffer, progress = run.algorithm, run.buffer, run.progress
    normalizer, recent = run.agent.normalizer, run.recent_metrics
    scale = run.hyper.reward_scale
    while run.active:
        step = run.collector.step(run.explore)
        buffer.add(step if scale == 1 else step._replace(reward=step.reward * scale))
        normalizer.observe(step.obs, step.valid)
        progress.env_steps += int(np.count_nonzero(step.valid))
        for _ in range(progress.updates_owed()):
            moment = progress.moment
            batch = normalizer.batch(buffer.sample(run.hyper.batch_size, moment))
            result = algorithm.update(batch, moment)
            progress.updates += 1
            if result.priorities is not None:
                buffer.update_priorities(batch.slots, result.priorities)
            recent.add(result.metrics)
        run.after_step()
