"""How fast a workload could be: raw environment stepping plus its unavoidable matrix products.

Nothing else is counted (no activation, no optimiser, no sampling, no Python), and the products run
at the peak that this core reaches for the widest layer, so no implementation reaches 100 %.
Run as a process with a JSON list of workloads, it prints what was measured.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from benchmarks.workloads import (
    DQNWorkload,
    DRQNWorkload,
    DrQWorkload,
    PPOWorkload,
    RecurrentPPOWorkload,
    SACWorkload,
    Workload,
    from_plain,
)

SECONDS = 0.5  # of each measurement


def weights(*sizes: int) -> int:
    """Weights of linear layers of these sizes: multiplications per row of one forward pass."""
    return sum(fan_in * fan_out for fan_in, fan_out in pairwise(sizes))


def dqn_flops(w: DQNWorkload) -> float:
    """Per transition: one row forward to act, and the share of an update.

    An update passes its batch through the target network and the online network, and back through
    the latter: gradients of all weights, and of all layers' inputs but the first's.
    """
    network = weights(w.obs_dim, *w.hidden, w.outputs)
    first = weights(w.obs_dim, w.hidden[0])
    forward, backward = 2 * network, 2 * network - first
    return 2 * network + 2 * w.batch_size * (forward + backward) / w.steps_per_update


def ppo_flops(w: PPOWorkload) -> float:
    """Per transition: a row forward through policy and value, and forward and back per epoch."""
    both = weights(w.obs_dim, *w.hidden, w.num_actions) + weights(w.obs_dim, *w.hidden, 1)
    first = 2 * weights(w.obs_dim, w.hidden[0])
    return 2 * both + 2 * w.epochs * (both + 2 * both - first)


def recurrent_weights(w: DRQNWorkload | RecurrentPPOWorkload, outputs: int) -> int:
    """Multiplications per row of one forward pass through layers, LSTM and outputs."""
    lstm = 4 * w.core_size * (w.hidden[-1] + w.core_size)
    return weights(w.obs_dim, *w.hidden) + lstm + weights(w.core_size, outputs)


def drqn_flops(w: DRQNWorkload) -> float:
    """As for DQN; the target network also passes the observation after each sequence.

    Backward, here and in recurrent PPO, a sequence's first row counts like the others.
    """
    network = recurrent_weights(w, w.outputs)
    first = weights(w.obs_dim, w.hidden[0])
    rows = w.sequence_length * (network + 2 * network - first) + (w.sequence_length + 1) * network
    return 2 * network + 2 * w.batch_size * rows / w.steps_per_update


def recurrent_ppo_flops(w: RecurrentPPOWorkload) -> float:
    """As for PPO, with one network for policy and value."""
    network = recurrent_weights(w, w.num_actions + 1)
    first = weights(w.obs_dim, w.hidden[0])
    return 2 * network + 2 * w.epochs * (network + 2 * network - first)


def sac_flops(w: SACWorkload) -> float:
    """Per transition: one row through the actor to act, and its updates.

    An update passes its batch through the actor, some target critics and all online ones, and back
    through the latter. Every `policy_delay` updates it goes through actor and critics again, back
    to the actions alone through these, and back through the actor.
    """
    actor = weights(w.obs_dim, *w.hidden, 2 * w.num_actions)
    critic = weights(w.obs_dim + w.num_actions, *w.hidden, w.critic_outputs)
    to_weights = 2 * critic - weights(w.obs_dim + w.num_actions, w.hidden[0])
    to_action = critic - weights(w.obs_dim, w.hidden[0])
    critics_step = actor + w.target_critics * critic + w.num_critics * (critic + to_weights)
    actor_step = 3 * actor - weights(w.obs_dim, w.hidden[0]) + w.num_critics * (critic + to_action)
    update = critics_step + actor_step / w.policy_delay
    return 2 * actor + 2 * w.batch_size * w.updates_per_step * update


def drq_flops(w: DrQWorkload) -> float:
    """As for SAC, with an encoder before the actor and one before the critics.

    Back through an encoder there are gradients of all weights, and of all inputs but the images.
    The actor's step goes forward through the critics' encoder, and back to the actions alone.
    """
    each = [places * seen * filters for places, seen, filters in w.convolutions]
    places, _, filters = w.convolutions[-1]
    encoder = sum(each) + places * filters * w.features
    back = 2 * encoder - each[0]
    actor = weights(w.features, *w.hidden, 2 * w.num_actions)
    critic = w.num_critics * weights(w.features + w.num_actions, *w.hidden, 1)
    to_action = critic - w.num_critics * weights(w.features, w.hidden[0])
    critics_step = (encoder + actor) + (encoder + critic) + (encoder + back + 3 * critic)
    actor_step = (encoder + back + 3 * actor) + (encoder + critic + to_action)
    update = critics_step + actor_step / w.policy_delay
    return 2 * (encoder + actor) + 2 * w.batch_size * w.updates_per_step * update


FLOPS: dict[str, Callable[[Any], float]] = {
    "dqn": dqn_flops,
    "qr_dqn": dqn_flops,
    "sac": sac_flops,
    "tqc": sac_flops,
    "redq": sac_flops,
    "drq": drq_flops,
    "drqn": drqn_flops,
    "ppo": ppo_flops,
    "recurrent_ppo": recurrent_ppo_flops,
}


def limit_rate(w: Workload, limits: Mapping[str, Mapping[str, float]]) -> float:
    """Transitions per second that cannot be exceeded, given the measured limits.

    Stepping counts as that of a single environment, which is faster than SyncVectorEnv's.
    """
    env_seconds = 1 / limits["env_steps_per_s"][w.env_id]
    return 1 / (env_seconds + FLOPS[w.algorithm](w) / (limits["gflops"][product(w)] * 1e9))


def shape(w: Workload) -> tuple[int, int, int]:
    """Rows, inputs and outputs of the workload's largest matrix product; an LSTM has four gates.

    A convolution multiplies what it sees at each of its places with its filters.
    """
    if isinstance(w, DrQWorkload):
        places, seen, filters = max(w.convolutions, key=math.prod)
        return w.batch_size * places, seen, filters
    if isinstance(w, DRQNWorkload):
        return w.batch_size * w.sequence_length, w.core_size, 4 * w.core_size
    if isinstance(w, RecurrentPPOWorkload):
        return w.batch_size, w.core_size, 4 * w.core_size
    return w.batch_size, max(w.hidden), max(w.hidden)


def product(w: Workload) -> str:
    """The name of that product among the measured limits."""
    rows, *sizes = shape(w)
    return " x ".join(map(str, (rows, *dict.fromkeys(sizes))))


def _fastest(work: Callable[[], int]) -> float:
    """The highest rate of `work`, which returns how much it did, over a fixed time."""
    work()
    best, give_up = 0.0, time.perf_counter() + SECONDS
    while time.perf_counter() < give_up:
        started = time.perf_counter()
        amount = work()
        best = max(best, amount / (time.perf_counter() - started))
    return best


def env_steps_per_s(env_id: str, num_envs: int | None = None) -> float:
    """Random stepping of an environment, or of a SyncVectorEnv of several, and nothing else."""
    import gymnasium as gym
    from gymnasium.vector import SyncVectorEnv

    def make() -> Any:
        return gym.make(env_id, disable_env_checker=True)

    def step() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if num_envs is None and (terminated or truncated):
                env.reset()
        return len(actions) * (num_envs or 1)

    env = make() if num_envs is None else SyncVectorEnv([make] * num_envs)
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(1000 // (num_envs or 1))]
    return _fastest(step)


def gflops(w: Workload) -> float:
    """Peak of the product of a batch of activations with the widest layer's weights."""
    import torch

    torch.set_num_threads(1)
    rows, fan_in, fan_out = shape(w)
    a, b = torch.rand(rows, fan_in), torch.rand(fan_in, fan_out)
    out = torch.empty(rows, fan_out)

    def multiply() -> int:
        for _ in range(20):
            torch.mm(a, b, out=out)
        return 20 * 2 * rows * fan_in * fan_out

    return _fastest(multiply) / 1e9


def main() -> None:
    """Measure what the workloads of the argument need, each limit once."""
    workloads = [from_plain(plain) for plain in json.loads(sys.argv[1])]
    steps = {w.env_id: env_steps_per_s(w.env_id) for w in workloads}
    for w in workloads:
        if w.num_envs > 1:
            name = f"SyncVectorEnv of {w.num_envs} {w.env_id}"
            steps[name] = env_steps_per_s(w.env_id, w.num_envs)
    products = {product(w): w for w in workloads}
    peaks = {name: gflops(w) for name, w in products.items()}
    print(json.dumps({"env_steps_per_s": steps, "gflops": peaks}))


if __name__ == "__main__":
    main()
