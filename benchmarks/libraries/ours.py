"""rl_training, as its command line trains, with its default settings.

Evaluation is off and checkpoints are written only at the end, which is never reached. The log is
on, as by default: a row every 1,000 transitions, to a JSON-lines file and to TensorBoard.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.probe import SOURCE, Probe, main
from benchmarks.workloads import (
    DQNWorkload,
    DRQNWorkload,
    DrQWorkload,
    PPOWorkload,
    QRDQNWorkload,
    RecurrentPPOWorkload,
    REDQWorkload,
    SACWorkload,
    TQCWorkload,
    Workload,
)


def settings(workload: Workload) -> dict[str, Any]:
    """The workload in the words of a configuration."""
    algo_kwargs = {
        "hidden_sizes": workload.hidden,
        "batch_size": workload.batch_size,
        "learning_rate": workload.learning_rate,
        "gamma": workload.gamma,
        "max_grad_norm": workload.max_grad_norm,
    }
    return {
        "algo": workload.algorithm,
        "env_id": workload.env_id,
        "num_envs": workload.num_envs,
        "vectorization": "sync",
        "total_timesteps": workload.budget,
        "eval_interval": 0,
        "final_eval_episodes": 0,
        "checkpoint_interval": 0,
        "algo_kwargs": algo_kwargs | _own_settings(workload),
    }


def _own_settings(w: Workload) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if isinstance(w, QRDQNWorkload):
        own["num_quantiles"] = w.num_quantiles
    if isinstance(w, DRQNWorkload | RecurrentPPOWorkload):
        own |= {"core_size": w.core_size, "sequence_length": w.sequence_length}
    if isinstance(w, RecurrentPPOWorkload):
        own["shared_core"] = True
    if isinstance(w, SACWorkload):
        return own | _soft_settings(w)
    if isinstance(w, DQNWorkload):
        return own | {
            "buffer_size": w.buffer_size,
            "learning_starts": w.learning_starts,
            "replay_ratio": 1 / w.steps_per_update,
            "target_update_interval": w.target_every,
            "epsilon": {"initial": 1.0, "final": w.final_epsilon, "fraction": w.epsilon_fraction},
        }
    assert isinstance(w, PPOWorkload), w
    return own | {
        "num_steps": w.num_steps,
        "epochs": w.epochs,
        "gae_lambda": w.gae_lambda,
        "clip_range": w.clip_range,
        "value_coef": w.value_coef,
        "optimizer_eps": w.adam_eps,
    }


def _soft_settings(w: SACWorkload) -> dict[str, Any]:
    own: dict[str, Any] = {}
    if isinstance(w, TQCWorkload):
        own = {"num_quantiles": w.num_quantiles, "dropped_quantiles": w.dropped_quantiles}
    if isinstance(w, REDQWorkload):
        own = {"subset_size": w.subset_size}
    if isinstance(w, DrQWorkload):
        own = {
            "encoder": "nature",
            "feature_size": w.features,
            "num_augmentations": 1,
            "num_target_augmentations": 1,
            "pad": w.pad,
            "alpha": w.alpha,
        }
    return own | {
        "buffer_size": w.buffer_size,
        "learning_starts": w.learning_starts,
        "replay_ratio": w.updates_per_step,
        "tau": w.tau,
        "num_critics": w.num_critics,
        "policy_delay": w.policy_delay,
    }


def check_source() -> None:
    """Leave if another copy of the package than the one to be measured would be imported."""
    import rl_training

    expected, found = Path(os.environ[SOURCE]), Path(rl_training.__file__)
    if expected.resolve() not in found.resolve().parents:
        sys.exit(f"expected rl_training from {expected}, found {found}; uninstall that copy")


def train(workload: Workload, callback: Any) -> None:
    """A whole run, with a callback; these names are the same in all checkouts to compare."""
    check_source()
    from rl_training.experiment.registry import resolve_config, train_config

    train_config(resolve_config(settings(workload)).config, callbacks=[callback])


def learn(workload: Workload, probe: Probe) -> None:
    """Train, telling the probe of every update."""
    from rl_training import Callback

    class Count(Callback):
        def on_step(self, run: Any) -> None:
            if run.updates != probe.updates:
                probe.updated(run.updates - probe.updates)

    train(workload, Count())


if __name__ == "__main__":
    names = ("dqn", "qr_dqn", "drqn", "sac", "tqc", "redq", "drq", "ppo", "recurrent_ppo")
    runs = dict.fromkeys(names, learn)
    main("ours", ("rl-training", "torch", "gymnasium", "numpy"), runs)
