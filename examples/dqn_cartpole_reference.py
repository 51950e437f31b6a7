"""DQN on CartPole from the package's own parts, with the loop written out.

    python examples/dqn_cartpole_reference.py --steps 20000

`rl-training train --config dqn/cartpole` does the same with 3-step returns, a network of 128-128,
a larger epsilon of Adam, checkpoints, logs and resume; this script is for reading, and a place to
start an experiment of your own.
"""

import argparse

import gymnasium as gym
import torch

from rl_training.algorithms import DQN, DQNConfig
from rl_training.data import Clock, ReplayBuffer
from rl_training.envs import SpaceAdapter, make_vector_env
from rl_training.fast.accelerate import accelerate
from rl_training.models import MLPQNetwork
from rl_training.runtime import Collector, Evaluator

ENV_ID = "CartPole-v1"
WARM_UP = 1_000


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    hyper = DQNConfig(
        learning_rate={"initial": 1e-3, "final": 0.0},
        epsilon={"initial": 1.0, "final": 0.04, "fraction": 0.16},
        batch_size=128,
        tau=0.01,
        double=True,
    )

    # The environment: a vector environment, and an adapter between its spaces and arrays.
    envs = make_vector_env(ENV_ID, num_envs=1)
    adapter = SpaceAdapter(ENV_ID, envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, adapter)
    collector.reset([seed], state=())

    # The agent: a Q-network, the update rule around it, and a replay of transitions.
    network = MLPQNetwork(adapter.spec.obs_dim, adapter.spec.num_actions, hyper.hidden_sizes)
    dqn = DQN(network, hyper, adapter.spec, seed=seed)
    accelerate(dqn)  # the same with kernels, where there are some
    replay = ReplayBuffer(adapter.spec, capacity=steps, gamma=hyper.gamma, seed=seed)

    for step in range(steps):
        clock = Clock(step, steps, learning_starts=WARM_UP)
        # Act epsilon-greedily once, and keep the transition: the true successor, and whether the
        # episode terminated (a time limit truncates, and still bootstraps).
        transition = collector.step(
            lambda obs, state, first, now=clock: dqn.act(obs, state, first, now, explore=True)
        )
        replay.add(transition)
        # Two steps, one update: the gap between Q(s, a) and r + discount * max Q'(s', .) shrinks.
        if not clock.warming_up and step % 2 == 0:
            metrics = dqn.update(replay.sample(hyper.batch_size), clock).metrics
        if step > WARM_UP and step % 5_000 == 0:
            recent = [episode.episode_return for episode in collector.episodes]
            print(
                f"step {step:6d}  return {sum(recent) / len(recent):6.1f}  "
                f"loss {metrics['loss']:.4f}  mean Q {metrics['q_value_mean']:.1f}"
            )

    # The final policy, greedy, on environments of its own.
    evaluator = Evaluator(lambda: gym.make(ENV_ID), adapter)
    evaluation = evaluator.evaluate(
        lambda obs, state, first: dqn.act(obs, state, first, clock, explore=False),
        dqn.initial_state,
        episodes=20,
        seed=seed,
    )
    print(f"final policy: {evaluation.mean:.1f} ± {evaluation.std:.1f} over 20 episodes")
    evaluator.close()
    envs.close()
    return evaluation.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.seed)
