"""What a replay memory of stacked images takes and how fast it is sampled, ours and SB3's.

Run as a process, it takes the arguments of `measure` as JSON and prints what was measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

import numpy as np

FRAME, STACK = (3, 84, 84), 3
SHAPE = (STACK * FRAME[0], *FRAME[1:])
EPISODE = 250  # steps until a time limit
BATCH = 128
PACKAGES = {"ours": "rl-training", "sb3": "stable-baselines3"}


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def steps(count: int) -> Iterator[tuple[np.ndarray, np.ndarray, bool, bool]]:
    """Observations, those after them, and whether an episode begins and ends there."""
    pool = np.random.default_rng(0).integers(0, 256, (97, *FRAME), np.uint8)
    stack = [pool[0]] * STACK
    for step in range(count):
        if first := step % EPISODE == 0:
            stack = [pool[step % len(pool)]] * STACK
        following = [*stack[1:], pool[(step + 1) % len(pool)]]
        ends = (step + 1) % EPISODE == 0
        yield np.concatenate(stack), np.concatenate(following), first, ends
        stack = following


def ours(capacity: int) -> tuple[Any, Callable[[int], None], Callable[[], Any]]:
    """A buffer, what fills it, and what draws a batch from it."""
    from rl_training.data.replay_buffer import ReplayBuffer
    from rl_training.data.types import EnvSpec, Transitions

    spec = EnvSpec(
        env_id="made up",
        obs_shape=SHAPE,
        obs_dtype="uint8",
        frames=STACK,
        action_kind="continuous",
        action_dim=1,
    )
    buffer = ReplayBuffer(spec, capacity=capacity)
    no, yes, action = np.zeros(1, bool), np.ones(1, bool), np.zeros((1, 1), np.float32)

    def fill(count: int) -> None:
        for number, (obs, following, first, ends) in enumerate(steps(count)):
            reward = np.full(1, number, np.float32)
            flags = (no, yes if ends else no, yes if first else no, yes)
            buffer.add(Transitions(obs[None], action, reward, following[None], *flags, (), ()))

    return buffer, fill, lambda: buffer.sample(BATCH)


def sb3(capacity: int) -> tuple[Any, Callable[[int], None], Callable[[], Any]]:
    """The same of Stable-Baselines3, with the settings its algorithms use by default."""
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import ReplayBuffer

    spaces = Box(0, 255, SHAPE, np.uint8), Box(-1, 1, (1,), np.float32)
    buffer = ReplayBuffer(capacity, *spaces, device="cpu", handle_timeout_termination=True)
    action = np.zeros((1, 1), np.float32)

    def fill(count: int) -> None:
        for number, (obs, following, _, ends) in enumerate(steps(count)):
            info = [{"TimeLimit.truncated": ends}]
            done = np.array([ends])
            buffer.add(obs[None], following[None], action, np.array([number]), done, info)

    return buffer, fill, lambda: buffer.sample(BATCH)


def measure(library: str, transitions: int, seconds: float) -> dict[str, Any]:
    """Frames of memory per transition, and transitions sampled per second."""
    import torch

    torch.set_num_threads(1)
    make = {"ours": ours, "sb3": sb3}[library]
    make(10)[1](20)  # what is imported and allocated once is not the buffer's
    before = resident_bytes()
    buffer, fill, sample = make(transitions)
    fill(transitions)
    taken = resident_bytes() - before
    sample()
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        sample()
        count += BATCH
    rate = count / (time.perf_counter() - start)
    held = len(buffer) if library == "ours" else buffer.size()
    frame = int(np.prod(FRAME))
    return {
        "version": version(PACKAGES[library]),
        "bytes": taken,
        "frames": taken / held / frame,
        "sampled_per_s": rate,
    }


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
