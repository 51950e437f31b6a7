"""QR-DQN on CartPole from the package's own parts, with the loop written out.

    python examples/qr_dqn_cartpole_reference.py --steps 20000

`rl-training train --config qr_dqn/cartpole` does the same with a dueling network, checkpoints, logs
and resume; this script is for reading, beside `dqn_cartpole_reference.py`, and says what is new.
"""

import argparse

import gymnasium as gym
import torch

from rl_training.algorithms import QRDQN, QRDQNConfig
from rl_training.data import Clock, ReplayBuffer
from rl_training.envs import SpaceAdapter, make_vector_env
from rl_training.fast.accelerate import accelerate
from rl_training.models import MLPQRQNetwork
from rl_training.runtime import Collector, Evaluator

ENV_ID = "CartPole-v1"
WARM_UP = 1_000


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    hyper = QRDQNConfig(
        num_quantiles=51,
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
    # 51 quantiles of that return, [batch, actions, 51]: the first is exceeded in 99 % of the cases,
    # the 26th in half of them. Their mean is the Q-value, and acting greedily goes by it.
    shapes = (adapter.spec.obs_dim, adapter.spec.num_actions)
    network = MLPQRQNetwork(*shapes, hyper.num_quantiles, hyper.hidden_sizes)
    qr_dqn = QRDQN(network, hyper, adapter.spec, seed=seed)
    accelerate(qr_dqn)  # the same with kernels, where there are some
    replay = ReplayBuffer(
        adapter.spec, capacity=steps, gamma=hyper.gamma, n_step=hyper.n_step, seed=seed
    )

    for step in range(steps):
        clock = Clock(step, steps, learning_starts=WARM_UP)
        transition = collector.step(
            lambda obs, state, first, now=clock: qr_dqn.act(obs, state, first, now, explore=True)
        )
        replay.add(transition)
        # Two steps, one update. DQN moves one number to one target. Here every quantile meets every
        # sample of the target, r + discount * (a quantile of the best action at s'). The quantile
        # for the share p is pulled up by the samples above it with weight p and down by those below
        # it with weight 1 - p, so it comes to rest where a share p of them is below.
        if not clock.warming_up and step % 2 == 0:
            metrics = qr_dqn.update(replay.sample(hyper.batch_size), clock).metrics
        if step > WARM_UP and step % 5_000 == 0:
            recent = [episode.episode_return for episode in collector.episodes]
            print(
                f"step {step:6d}  return {sum(recent) / len(recent):6.1f}  "
                f"loss {metrics['loss']:.4f}  mean Q {metrics['q_value_mean']:.1f}"
            )

    # The final policy, greedy, on environments of its own.
    evaluator = Evaluator(lambda: gym.make(ENV_ID), adapter)
    evaluation = evaluator.evaluate(
        lambda obs, state, first: qr_dqn.act(obs, state, first, clock, explore=False),
        qr_dqn.initial_state,
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
