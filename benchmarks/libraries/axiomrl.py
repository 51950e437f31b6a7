"""axiomrl, through the stable interface of its package; what that lacks from its other ones.

Deviations: rows in which Gymnasium's NEXT_STEP autoreset only resets are transitions to it, so it
makes its updates per row; its DQN clips no gradients and plays at random only as epsilon says; its
QR-DQN does the same, takes the loss's mean over all pairs of quantiles where others sum over one
side, and lets the online network choose the next action, which is one more forward pass; its PPO
has Adam's default epsilon of 1e-8. The evaluation after each of PPO's rollouts cannot be switched
off by a setting and is replaced by nothing; the log row per rollout stays. What is said of DQN
holds for DRQN, and of PPO for recurrent PPO. Both have no activation before the LSTM, which
they call once per step of a sequence; 16 steps are recurrent PPO's default. Its SAC, TQC and REDQ
have a fixed temperature; REDQ's actor steps at every update. Its DrQ plays its policy from the
start, and has a ReLU behind the features and no normalisation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.probe import NotOffered, Probe, main
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


def learn(
    algorithm: Any,
    w: Workload,
    probe: Probe,
    algo_kwargs: dict[str, Any],
    *,
    count_optimizers: bool = True,
) -> None:
    """Train without checkpoints; its evaluation at the end is never reached."""
    from axiomrl import TrainConfig

    if count_optimizers:
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


def learn_dqn(algorithm: Any, w: DQNWorkload, probe: Probe, **own: Any) -> None:
    """Train DQN or a relative; ReLU and the Huber loss are built in."""
    if w.num_envs != 1:
        raise NotOffered("axiomrl's DQN makes one update per vector step; use one environment")
    algo_kwargs = {
        "buffer_capacity": w.buffer_size,
        "batch_size": w.batch_size,
        "learning_starts": w.learning_starts,
        "train_frequency": w.steps_per_update,
        "target_update_interval": w.target_every,
        "epsilon_end": w.final_epsilon,
        "exploration_fraction": w.epsilon_fraction / 2,  # of twice the budget
        **own,
    }
    learn(algorithm, w, probe, algo_kwargs)


def dqn(w: DQNWorkload, probe: Probe) -> None:
    """DQN."""
    from axiomrl import DQN

    learn_dqn(DQN, w, probe)


def qr_dqn(w: QRDQNWorkload, probe: Probe) -> None:
    """QR-DQN."""
    from axiomrl.experimental import QRDQN

    learn_dqn(QRDQN, w, probe, num_quantiles=w.num_quantiles)


def learn_sac(algorithm: Any, update_class: Any, w: SACWorkload, probe: Probe, **own: Any) -> None:
    """Train SAC or a relative; each update steps several optimisers."""
    update_class.update = probe.counting(update_class.update)
    algo_kwargs = {
        "buffer_capacity": w.buffer_size,
        "batch_size": w.batch_size,
        "learning_starts": w.learning_starts,
        "train_frequency": 1,
        "tau": w.tau,
        **own,
    }
    learn(algorithm, w, probe, algo_kwargs, count_optimizers=False)


def sac(w: SACWorkload, probe: Probe) -> None:
    """SAC; its two critics are built in."""
    from axiomrl import SAC
    from axiomrl.algorithms import sac as updates

    learn_sac(SAC, updates.SAC, w, probe)


def tqc(w: TQCWorkload, probe: Probe) -> None:
    """TQC."""
    from axiomrl.algorithms import tqc as updates
    from axiomrl.api.algorithms import TQC

    learn_sac(
        TQC,
        updates.TQC,
        w,
        probe,
        num_critics=w.num_critics,
        num_quantiles=w.num_quantiles,
        top_quantiles_to_drop_per_net=w.dropped_quantiles,
    )


def redq(w: REDQWorkload, probe: Probe) -> None:
    """REDQ."""
    from axiomrl.algorithms import redq as updates
    from axiomrl.api.algorithms import REDQ

    learn_sac(
        REDQ,
        updates.REDQ,
        w,
        probe,
        num_critics=w.num_critics,
        subset_size=w.subset_size,
        gradient_updates_per_step=w.updates_per_step,
    )


def drq(w: DrQWorkload, probe: Probe) -> None:
    """DrQ; one shift of each image, for the actor another one, is built in."""
    from axiomrl.algorithms import drq as updates
    from axiomrl.api.algorithms import DrQ

    sizes = {"actor_hidden_sizes": w.hidden, "critic_hidden_sizes": w.hidden}
    own = {"features_dim": w.features, "augmentation_pad": w.pad, "alpha": w.alpha}
    learn_sac(DrQ, updates.DrQ, w, probe, **sizes, **own)


def recurrent_keys(w: DRQNWorkload | RecurrentPPOWorkload) -> dict[str, Any]:
    """Arguments of both recurrent algorithms; the layer before the LSTM has no activation."""
    return {
        "features_dim": w.hidden[-1],
        "head_hidden_sizes": (),
        "recurrent_hidden_size": w.core_size,
        "sequence_length": w.sequence_length,
    }


def drqn(w: DRQNWorkload, probe: Probe) -> None:
    """DRQN; its buffer's capacity counts sequences."""
    from axiomrl.experimental import DRQN

    own = recurrent_keys(w) | {
        "hidden_sizes": w.hidden[:-1],
        "buffer_capacity": -(-w.buffer_size // w.sequence_length),
    }
    learn_dqn(DRQN, w, probe, **own)


def ppo(w: PPOWorkload, probe: Probe) -> None:
    """PPO; tanh and separate networks are built in."""
    from axiomrl import PPO
    from axiomrl.runtime import ppo_trainer

    ppo_trainer._evaluate_policy = lambda *_, **__: {}
    learn_ppo(PPO, w, probe)


def recurrent_ppo(w: RecurrentPPOWorkload, probe: Probe) -> None:
    """Recurrent PPO; one LSTM for policy and value is built in."""
    from axiomrl.contrib import RecurrentPPO
    from axiomrl.runtime import recurrent_ppo_trainer

    recurrent_ppo_trainer._evaluate_recurrent_policy = lambda *_, **__: {}
    learn_ppo(RecurrentPPO, w, probe, **recurrent_keys(w), encoder_hidden_sizes=w.hidden[:-1])


def learn_ppo(algorithm: Any, w: PPOWorkload, probe: Probe, **own: Any) -> None:
    """Train PPO, with a memory or without."""
    algo_kwargs = {
        **own,
        "num_steps": w.num_steps,
        "update_epochs": w.epochs,
        "minibatch_size": w.batch_size,
        "gae_lambda": w.gae_lambda,
        "clip_coef": w.clip_range,
        "vf_coef": 2 * w.value_coef,  # it halves the squared error
        "ent_coef": 0.0,
        "max_grad_norm": w.max_grad_norm,
    }
    learn(algorithm, w, probe, algo_kwargs)


if __name__ == "__main__":
    packages = ("axiomrl", "torch", "gymnasium", "numpy")
    q_learning: dict[str, Any] = {"dqn": dqn, "qr_dqn": qr_dqn, "drqn": drqn}
    soft: dict[str, Any] = {"sac": sac, "tqc": tqc, "redq": redq, "drq": drq}
    policies: dict[str, Any] = {"ppo": ppo, "recurrent_ppo": recurrent_ppo}
    main("axiomrl", packages, {**q_learning, **soft, **policies})
