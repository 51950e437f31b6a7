"""SAC on Pendulum from the package's own parts, with the loop written out.

    python examples/sac_pendulum_reference.py --steps 10000

`rl-training train --config sac/pendulum` does the same with checkpoints, logs and resume; this
script is for reading, and a place to start an experiment of your own.
"""

import argparse

import gymnasium as gym
import torch

from rl_training.algorithms import SAC, SACConfig
from rl_training.data import Clock, ReplayBuffer
from rl_training.envs import SpaceAdapter, make_vector_env
from rl_training.fast.accelerate import accelerate
from rl_training.models import MLPActorQEnsemble
from rl_training.runtime import Collector, Evaluator

ENV_ID = "Pendulum-v1"
WARM_UP = 100


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    hyper = SACConfig(learning_rate=1e-3)

    # The environment: the adapter scales actions, which are in [-1, 1] here, to the torques.
    envs = make_vector_env(ENV_ID, num_envs=1)
    adapter = SpaceAdapter(ENV_ID, envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, adapter)
    collector.reset([seed], state=())

    # The agent: an actor that gives a mean and a spread, two critics, and the update around them.
    sac = SAC(MLPActorQEnsemble.build(adapter.spec, hyper), hyper, adapter.spec, seed=seed)
    accelerate(sac)  # the same with kernels, where there are some
    replay = ReplayBuffer(adapter.spec, capacity=steps, gamma=hyper.gamma, seed=seed)

    for step in range(steps):
        clock = Clock(step, steps, learning_starts=WARM_UP)
        # Act at random at first, then as the policy says: its randomness is the exploration.
        transition = collector.step(
            lambda obs, state, first, now=clock: sac.act(obs, state, first, now, explore=True)
        )
        replay.add(transition)
        # One update: both critics towards r + discount * (min Q'(s', a') - alpha * log pi(a')) for
        # a fresh a'; then the actor towards actions that the lower critic values and that it is
        # not too sure of; then alpha, so that the entropy stays at its target.
        if not clock.warming_up:
            metrics = sac.update(replay.sample(hyper.batch_size), clock).metrics
        if step > WARM_UP and step % 2_000 == 0:
            recent = [episode.episode_return for episode in collector.episodes]
            print(
                f"step {step:6d}  return {sum(recent) / len(recent):7.1f}  "
                f"critic loss {metrics['critic_loss']:.3f}  mean Q {metrics['q_value_mean']:.1f}"
            )

    # The final policy, without its randomness, on environments of its own.
    evaluator = Evaluator(lambda: gym.make(ENV_ID), adapter)
    evaluation = evaluator.evaluate(
        lambda obs, state, first: sac.act(obs, state, first, clock, explore=False),
        sac.initial_state,
        episodes=20,
        seed=seed,
    )
    print(f"final policy: {evaluation.mean:.1f} ± {evaluation.std:.1f} over 20 episodes")
    evaluator.close()
    envs.close()
    return evaluation.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.seed)
