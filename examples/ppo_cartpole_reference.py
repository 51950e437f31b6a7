"""PPO on CartPole from the package's own parts, with the loop written out.

    python examples/ppo_cartpole_reference.py --steps 100000

`rl-training train --config ppo/cartpole` does the same with checkpoints, logs and resume; this
script is for reading, and a place to start an experiment of your own.
"""

import argparse

import gymnasium as gym
import torch

from rl_training.algorithms import PPO, PPOConfig
from rl_training.data import Clock, RolloutBuffer
from rl_training.envs import SpaceAdapter, make_vector_env
from rl_training.fast.accelerate import accelerate
from rl_training.models import MLPActorCritic
from rl_training.runtime import Collector, Evaluator

ENV_ID = "CartPole-v1"
NUM_ENVS = 8


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    hyper = PPOConfig(
        num_steps=32,
        batch_size=256,
        epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate={"initial": 1e-3, "final": 0.0},
        clip_range={"initial": 0.2, "final": 0.0},
    )

    # The environment: eight of them side by side, and an adapter between spaces and arrays.
    envs = make_vector_env(ENV_ID, num_envs=NUM_ENVS)
    adapter = SpaceAdapter(ENV_ID, envs.single_observation_space, envs.single_action_space)
    collector = Collector(envs, adapter)
    collector.reset([seed * NUM_ENVS + n for n in range(NUM_ENVS)], state=())

    # The agent: a policy and a value network, the update rule around them, and a rollout.
    spec = adapter.spec
    network = MLPActorCritic(spec.obs_dim, spec.policy_outputs, hyper.hidden_sizes)
    ppo = PPO(network, hyper, spec, seed=seed)
    accelerate(ppo)  # the same with kernels, where there are some
    rollout = RolloutBuffer.build(spec, hyper, num_envs=NUM_ENVS, seed=seed, device=ppo.device)

    updates = 0
    for step in range(0, steps, NUM_ENVS):
        # Sample an action in each environment, and keep the step: the true successors, and
        # whether an episode terminated (a time limit truncates, and still bootstraps).
        clock = Clock(step, steps)
        rollout.add(
            collector.step(
                lambda obs, state, first, now=clock: ppo.act(obs, state, first, now, explore=True)
            )
        )
        if not rollout.full:
            continue
        # A full rollout: estimate advantages, make a few epochs of clipped steps, and forget it.
        metrics = ppo.update(rollout.take(), clock).metrics
        updates += 1
        if updates % 40 == 0:
            recent = [episode.episode_return for episode in collector.episodes]
            print(
                f"step {step:6d}  return {sum(recent) / len(recent):6.1f}  "
                f"entropy {metrics['entropy']:.3f}  KL {metrics['approx_kl']:.4f}"
            )

    # The final policy, its most likely actions, on environments of its own.
    evaluator = Evaluator(lambda: gym.make(ENV_ID), adapter)
    evaluation = evaluator.evaluate(
        lambda obs, state, first: ppo.act(obs, state, first, clock, explore=False),
        ppo.initial_state,
        episodes=20,
        seed=seed,
    )
    print(f"final policy: {evaluation.mean:.1f} ± {evaluation.std:.1f} over 20 episodes")
    evaluator.close()
    envs.close()
    return evaluation.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.seed)
