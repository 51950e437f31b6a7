"""axiomrl, through the stable interface of its package.

Deviations: rows in which Gymnasium's NEXT_STEP autoreset only resets are transitions to it, so it
makes its updates per row; its DQN clips no gradients and plays at random only as epsilon says; its
PPO has Adam's default epsilon of 1e-8. The evaluation after each of PPO's rollouts cannot be
switched off by a setting and is replaced by nothing; the log row per rollout stays.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.probe import Probe, main
from benchmarks.workloads import DQNWorkload, PPOWorkload, Workload


def learn(algorithm: Any, w: Workload, probe: Probe, algo_kwargs: dict[str, Any]) -> None:
    """Train without checkpoints; its evaluation at the end is never reached."""
    from axiomrl import TrainConfig

    probe.count_torch_optimizers()
    config = TrainConfig(
        algo=w.algorithm,
        env_id=w.env_id,
        seed=0,
        total_timesteps=2 * w.budget,  # its steps include reset rows
        output_dir=Path("runs"),
        device="cpu",
        num_envs=w.num_envs,
        checkpoint_interval=10**9,
        algo_kwargs={
            "hidden_sizes": w.hidden,
            "learning_rate": w.learning_rate,
            "gamma": w.gamma,
            **algo_kwargs,
        },
    )
    algorithm(config).learn()


def dqn(w: DQNWorkload, probe: Probe) -> None:
    """DQN; ReLU and smooth_l1_loss, which is the Huber loss, are built in."""
    from axiomrl import DQN

    if w.num_envs != 1:
        raise ValueError("axiomrl's DQN makes one update per vector step; use one environment")
    algo_kwargs = {
        "buffer_capacity": w.buffer_size,
        "batch_size": w.batch_size,
        "learning_starts": w.learning_starts,
        "train_frequency": w.steps_per_update,
        "target_update_interval": w.target_every,
        "epsilon_end": w.final_epsilon,
        "exploration_fraction": w.epsilon_fraction / 2,  # of twice the budget
    }
    learn(DQN, w, probe, algo_kwargs)


def ppo(w: PPOWorkload, probe: Probe) -> None:
    """PPO; tanh and separate networks are built in."""
    from axiomrl import PPO
    from axiomrl.runtime import ppo_trainer

    ppo_trainer._evaluate_policy = lambda *_, **__: {}
    algo_kwargs = {
        "num_steps": w.num_steps,
        "update_epochs": w.epochs,
        "minibatch_size": w.batch_size,
        "gae_lambda": w.gae_lambda,
        "clip_coef": w.clip_range,
        "vf_coef": 2 * w.value_coef,  # it halves the squared error
        "ent_coef": 0.0,
        "max_grad_norm": w.max_grad_norm,
    }
    learn(PPO, w, probe, algo_kwargs)


if __name__ == "__main__":
    main("axiomrl", ("axiomrl", "torch", "gymnasium", "numpy"), {"dqn": dqn, "ppo": ppo})
