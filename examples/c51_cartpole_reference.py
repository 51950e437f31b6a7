"""C51 on CartPole from the package's own parts, with the loop written out.

    python examples/c51_cartpole_reference.py --steps 20000

`rl-training train --config c51/cartpole` does the same with checkpoints, logs and resume; this
script is for reading, beside `dqn_cartpole_reference.py`. Comments say what differs from DQN.
"""

import argparse

import gymnasium as gym
import torch

from rl_training.algorithms import C51, C51Config
from rl_training.data import Clock, ReplayBuffer
from rl_training.envs import SpaceAdapter, make_vector_env
from rl_training.fast.accelerate import accelerate
from rl_training.models import MLPCategoricalQNetwork
from rl_training.runtime import Collector, Evaluator

ENV_ID = "CartPole-v1"
WARM_UP = 1_000


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    hyper = C51Config(
        num_atoms=101,  # the returns it knows: 0, 1, ..., 100; beyond the ends it is the end
        v_min=0.0,
        v_max=100.0,  # a reward of 1 per step for ever, discounted by 0.99
        hidden_sizes=(128, 128),
        learning_rate={"initial": 2.5e-3, "final": 0.0},
        optimizer_eps=3e-4,
        epsilon={"initial": 1.0, "final": 0.04, "fraction": 0.16},
        batch_size=128,
        tau=0.03,
        double=True,
        n_step=3,
    )

    # The environment: a vector environment, and an adapter between its spaces and arrays.
    envs = make_vector_env(ENV_ID, num_envs=1)
    adapter = SpaceAdapter(ENV_ID, envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, adapter)
    collector.reset([seed], state=())

    # The agent. DQN's network gives the mean of the return that follows an action. This one gives
    # logits of its probabilities, [batch, actions, atoms]; the Q-value, by which it acts, is the
    # sum of probability times atom.
    shapes = (adapter.spec.obs_dim, adapter.spec.num_actions)
    network = MLPCategoricalQNetwork(*shapes, hyper.num_atoms, hyper.hidden_sizes)
    c51 = C51(network, hyper, adapter.spec, seed=seed)
    accelerate(c51)  # the same with kernels, where there are some
    replay = ReplayBuffer(
        adapter.spec, capacity=steps, gamma=hyper.gamma, n_step=hyper.n_step, seed=seed
    )

    for step in range(steps):
        clock = Clock(step, steps, learning_starts=WARM_UP)
        transition = collector.step(
            lambda obs, state, first, now=clock: c51.act(obs, state, first, now, explore=True)
        )
        replay.add(transition)
        # Two steps, one update. DQN moves one number to one target. Here the atoms of the best
        # action at s' move to r + discount * atom and share their probabilities between the two
        # atoms where they land; the cross-entropy with that distribution is the loss.
        if not clock.warming_up and step % 2 == 0:
            metrics = c51.update(replay.sample(hyper.batch_size), clock).metrics
        if step > WARM_UP and step % 5_000 == 0:
            recent = [episode.episode_return for episode in collector.episodes]
            print(
                f"step {step:6d}  return {sum(recent) / len(recent):6.1f}  "
                f"loss {metrics['loss']:.4f}  mean Q {metrics['q_value_mean']:.1f}"
            )

    # The final policy, greedy, on environments of its own.
    evaluator = Evaluator(lambda: gym.make(ENV_ID), adapter)
    evaluation = evaluator.evaluate(
        lambda obs, state, first: c51.act(obs, state, first, clock, explore=False),
        c51.initial_state,
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
