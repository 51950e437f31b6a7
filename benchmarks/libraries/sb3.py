"""Stable-Baselines3, with sb3-contrib installed beside it.

It wraps every environment in its `Monitor`, as it does by itself. It has no REDQ; SAC with as many
critics stands in, whose targets come from the lowest of all of them and whose actor follows that
and steps at every update. The only other deviations are of recurrent PPO: a minibatch is a run of
consecutive steps, cut where an episode or an environment ends and nowhere else, so that sequences
have up to 128 steps and are padded to the longest; and a value that shares the policy's LSTM sends
no gradient into it. There is no DRQN.
"""

from __future__ import annotations

from typing import Any

from benchmarks.probe import Probe, main
from benchmarks.workloads import (
    DQNWorkload,
    PPOWorkload,
    QRDQNWorkload,
    RecurrentPPOWorkload,
    SACWorkload,
    TQCWorkload,
    Workload,
)


def environments(w: Workload) -> Any:
    """A DummyVecEnv, its synchronous kind, which resets an environment in the step that ends it."""
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env(w.env_id, w.num_envs)


def dqn_keys(w: DQNWorkload) -> dict[str, Any]:
    """Arguments of DQN that SBX takes too."""
    transitions, updates = w.cycle
    return {
        "learning_rate": w.learning_rate,
        "buffer_size": w.buffer_size,
        "learning_starts": w.learning_starts,
        "batch_size": w.batch_size,
        "gamma": w.gamma,
        "train_freq": transitions // w.num_envs,  # counted in vector steps
        "gradient_steps": updates,
        "target_update_interval": w.target_every,
        "exploration_fraction": w.epsilon_fraction,
        "exploration_final_eps": w.final_epsilon,
        "device": "cpu",
        "seed": 0,
    }


def ppo_keys(w: PPOWorkload) -> dict[str, Any]:
    """Arguments of PPO that SBX takes too."""
    return {
        "learning_rate": w.learning_rate,
        "n_steps": w.num_steps,
        "batch_size": w.batch_size,
        "n_epochs": w.epochs,
        "gamma": w.gamma,
        "gae_lambda": w.gae_lambda,
        "clip_range": w.clip_range,
        "vf_coef": w.value_coef,
        "max_grad_norm": w.max_grad_norm,
        "policy_kwargs": {  # tanh and separate networks by default
            "net_arch": {"pi": list(w.hidden), "vf": list(w.hidden)},
            "optimizer_kwargs": {"eps": w.adam_eps},
        },
        "device": "cpu",
        "seed": 0,
    }


def learn_dqn(algorithm: Any, w: DQNWorkload, probe: Probe, **policy_kwargs: Any) -> None:
    """Train DQN or a relative; ReLU and the Huber loss are built in."""
    probe.count_torch_optimizers()
    model = algorithm(
        "MlpPolicy",
        environments(w),
        **dqn_keys(w),
        max_grad_norm=w.max_grad_norm,
        policy_kwargs={"net_arch": list(w.hidden), **policy_kwargs},
    )
    model.learn(w.budget)


def dqn(w: DQNWorkload, probe: Probe) -> None:
    """DQN."""
    from stable_baselines3 import DQN

    learn_dqn(DQN, w, probe)


def qr_dqn(w: QRDQNWorkload, probe: Probe) -> None:
    """QR-DQN of sb3-contrib; with an optimiser named, Adam's epsilon is 1e-8 as elsewhere."""
    from sb3_contrib import QRDQN
    from torch.optim import Adam

    learn_dqn(QRDQN, w, probe, n_quantiles=w.num_quantiles, optimizer_class=Adam)


def sac_keys(w: SACWorkload) -> dict[str, Any]:
    """Arguments of SAC that SBX takes too; ReLU and a learned temperature are built in."""
    return {
        "learning_rate": w.learning_rate,
        "buffer_size": w.buffer_size,
        "learning_starts": w.learning_starts,
        "batch_size": w.batch_size,
        "tau": w.tau,
        "gamma": w.gamma,
        "train_freq": 1,
        "gradient_steps": w.updates_per_step,
        "policy_kwargs": {"net_arch": list(w.hidden), "n_critics": w.num_critics},
        "device": "cpu",
        "seed": 0,
    }


def tqc_keys(w: TQCWorkload) -> dict[str, Any]:
    """Arguments of TQC that SBX takes too."""
    keys = sac_keys(w)
    keys["policy_kwargs"]["n_quantiles"] = w.num_quantiles
    return keys | {"top_quantiles_to_drop_per_net": w.dropped_quantiles}


def learn_sac(algorithm: Any, w: SACWorkload, probe: Probe, keys: dict[str, Any]) -> None:
    """Train SAC or a relative; a call of `train` makes all updates of a step."""
    model = algorithm("MlpPolicy", environments(w), **keys)
    model.train = probe.counting(model.train, w.updates_per_step)
    model.learn(w.budget)


def sac(w: SACWorkload, probe: Probe) -> None:
    """SAC, also in place of REDQ."""
    from stable_baselines3 import SAC

    learn_sac(SAC, w, probe, sac_keys(w))


def tqc(w: TQCWorkload, probe: Probe) -> None:
    """TQC of sb3-contrib."""
    from sb3_contrib import TQC

    learn_sac(TQC, w, probe, tqc_keys(w))


def ppo(w: PPOWorkload, probe: Probe) -> None:
    """PPO."""
    from stable_baselines3 import PPO

    probe.count_torch_optimizers()
    PPO("MlpPolicy", environments(w), **ppo_keys(w)).learn(w.budget)


def recurrent_ppo(w: RecurrentPPOWorkload, probe: Probe) -> None:
    """Recurrent PPO of sb3-contrib, with layers before the LSTM and none after it."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.torch_layers import create_mlp
    from torch import nn

    def encoder(_: Any) -> Any:
        layers: Any = nn.Sequential(*create_mlp(w.obs_dim, -1, list(w.hidden), nn.Tanh))
        layers.features_dim = w.hidden[-1]
        return layers

    probe.count_torch_optimizers()
    keys = ppo_keys(w)
    keys["policy_kwargs"] |= {
        "net_arch": {"pi": [], "vf": []},
        "features_extractor_class": encoder,
        "lstm_hidden_size": w.core_size,
        "shared_lstm": True,
        "enable_critic_lstm": False,
    }
    RecurrentPPO("MlpLstmPolicy", environments(w), **keys).learn(w.budget)


if __name__ == "__main__":
    packages = ("stable-baselines3", "sb3-contrib", "torch", "gymnasium", "numpy")
    runs: dict[str, Any] = {
        "dqn": dqn,
        "qr_dqn": qr_dqn,
        "sac": sac,
        "tqc": tqc,
        "redq": sac,
        "ppo": ppo,
        "recurrent_ppo": recurrent_ppo,
    }
    main("sb3", packages, runs)
