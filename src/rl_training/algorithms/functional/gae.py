"""Generalised advantage estimation (Schulman et al., 2016), on tensors or arrays."""

from __future__ import annotations

from rl_training.algorithms.functional.shapes import expect_shapes
from rl_training.data.arrays import Array, namespace


def gae(reward: Array, value: Array, next_value: Array, discount: Array, trace: Array) -> Array:
    """Advantages of a rollout, newest step last; all arguments and the result are [T, N].

    `next_value` is the value of the true successor. `discount` is `gamma * (1 - terminated)`: a
    time limit bootstraps, a termination does not. `trace` is `gamma * lambda * (1 - ended)`: no
    trace crosses the end of an episode, however it ended.
    """
    expect_shapes("T N, T N, T N, T N, T N", reward, value, next_value, discount, trace)
    delta = reward + discount * next_value - value
    running, advantages = 0.0 * delta[0], []
    for step, carried in zip(reversed([*delta]), reversed([*trace]), strict=True):
        running = step + carried * running
        advantages.append(running)
    return namespace(delta).stack(advantages[::-1])


def explained_variance(value: Array, returns: Array) -> Array:
    """The share of the variance of returns [B] that the values account for; 1 at best."""
    expect_shapes("B, B", value, returns)
    rest, total = _variance(returns - value), _variance(returns)
    return 1 - rest / (total + 1e-8)


def _variance(x: Array) -> Array:
    centred = x - x.mean()
    return (centred * centred).mean()
