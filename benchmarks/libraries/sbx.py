"""SBX: Stable-Baselines3's loops with networks and updates in JAX, on the CPU.

Deviations: its DQN has no gradient clipping of its own, so it gets an optimiser with it; its
networks are initialised otherwise; PPO clips the gradients of policy and value separately. Like SB3
it wraps every environment in `Monitor`. Compilation is start-up: it is over when the clock starts.
It offers no QR-DQN and nothing recurrent. It has no REDQ either; SAC with as many critics stands
in, whose targets come from the lowest of all of them and whose actor follows that.
"""

from __future__ import annotations

from typing import Any

from benchmarks.libraries.sb3 import (
    dqn_keys,
    environments,
    learn_sac,
    ppo_keys,
    sac_keys,
    tqc_keys,
)
from benchmarks.probe import NotOffered, Probe, main
from benchmarks.workloads import DQNWorkload, PPOWorkload, SACWorkload, TQCWorkload


def dqn(w: DQNWorkload, probe: Probe) -> None:
    """DQN; `train` waits for the loss, so the gradient step has finished when it returns."""
    import optax
    from sbx import DQN

    if len(w.hidden) != 2 or len(set(w.hidden)) != 1:
        raise NotOffered(f"SBX's Q-network has two layers of one width, the workload {w.hidden}")

    def clipped_adam(learning_rate: float, **kwargs: Any) -> Any:
        clip = optax.clip_by_global_norm(w.max_grad_norm)
        return optax.chain(clip, optax.adam(learning_rate, **kwargs))

    keys = dqn_keys(w)
    policy_kwargs = {"net_arch": list(w.hidden), "optimizer_class": clipped_adam}
    model = DQN("MlpPolicy", environments(w), **keys, policy_kwargs=policy_kwargs)
    model.train = probe.counting(model.train, keys["gradient_steps"])
    model.learn(w.budget)


def sac(w: SACWorkload, probe: Probe) -> None:
    """SAC, also in place of REDQ; `train` waits for the losses."""
    from sbx import SAC

    learn_sac(SAC, w, probe, sac_keys(w) | {"policy_delay": w.policy_delay})


def tqc(w: TQCWorkload, probe: Probe) -> None:
    """TQC; its two critics are built in."""
    from sbx import TQC

    if w.num_critics != 2:
        raise NotOffered(f"SBX's TQC has two critics, the workload {w.num_critics}")
    keys = tqc_keys(w)
    del keys["policy_kwargs"]["n_critics"]
    learn_sac(TQC, w, probe, keys)


def ppo(w: PPOWorkload, probe: Probe) -> None:
    """PPO; the loop waits for every gradient step's ratio before it makes the next one."""
    from sbx import PPO

    model = PPO("MlpPolicy", environments(w), **ppo_keys(w))
    model._one_update = probe.counting(model._one_update)
    model.learn(w.budget)


if __name__ == "__main__":
    packages = ("sbx-rl", "stable-baselines3", "jax", "flax", "optax", "gymnasium", "numpy")
    soft = {"sac": sac, "tqc": tqc, "redq": sac}
    main("sbx", packages, {"dqn": dqn, "ppo": ppo, **soft})
