"""The loop of every algorithm that learns from a replay buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rl_training.config.hyper_parameters import OffPolicyHyperParameters
from rl_training.runtime.spec import Loop

if TYPE_CHECKING:
    from rl_training.runtime.progress import UpdatePlan
    from rl_training.runtime.training_run import TrainingRun


def run_off_policy(run: TrainingRun) -> None:
    """Step, store, update as often as owed, until the run is over."""
    import numpy as np  # here, as specs name this loop and are to be listed without delay

    buffer, progress, normalizer = run.buffer, run.progress, run.agent.normalizer
    scale = run.hyper.reward_scale
    while run.active:
        step = run.collector.step(run.explore)
        buffer.add(step if scale == 1 else step._replace(reward=step.reward * scale))
        normalizer.observe(step.obs, step.valid)
        progress.env_steps += int(np.count_nonzero(step.valid))
        clock = progress.clock
        for _ in range(progress.updates_owed()):
            batch = normalizer.batch(buffer.sample(run.hyper.batch_size, clock))
            result = run.update(batch, clock)
            if result.priorities is not None:
                buffer.update_priorities(batch.slots, result.priorities)
        run.after_step()


def _plan(hyper: OffPolicyHyperParameters) -> UpdatePlan:
    from rl_training.runtime.progress import UpdatePlan  # here, as it waits for torch

    return UpdatePlan(hyper.learning_starts, hyper.replay_ratio)


def _first_update(hyper: OffPolicyHyperParameters, _num_envs: int) -> int:
    return _plan(hyper).first_update


def _planned_updates(hyper: OffPolicyHyperParameters, total_timesteps: int, _num_envs: int) -> int:
    return _plan(hyper).updates_by(total_timesteps)


def _short_run(hyper: OffPolicyHyperParameters, images: bool) -> tuple[int, dict[str, Any]]:
    # An update takes a second or more with the papers' networks of images.
    steps = max(8, int((8 if images else 200) / max(1.0, hyper.replay_ratio)))
    return steps, {"learning_starts": steps // 4, "buffer_size": 1_000}


OFF_POLICY = Loop(
    run=run_off_policy,
    hyper=OffPolicyHyperParameters,
    learning_starts=lambda hyper: hyper.learning_starts,
    replay_ratio=lambda hyper: hyper.replay_ratio,
    reward_scale=lambda hyper: hyper.reward_scale,
    first_update=_first_update,
    planned_updates=_planned_updates,
    short_run=_short_run,
)
