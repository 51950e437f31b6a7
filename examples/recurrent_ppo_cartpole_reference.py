"""Recurrent PPO on CartPole without its velocities, the loop written out.

    python examples/recurrent_ppo_cartpole_reference.py --steps 100000

`rl-training train --config recurrent_ppo/cartpole_masked` does it with longer rollouts, fewer
epochs, normalised rewards, checkpoints, logs and resume; this script is for reading, next to
`ppo_cartpole_reference.py`, whose settings it has. What a recurrent policy changes:

- `act` takes a state and gives the next one. The collector carries it from step to step, from
  `initial_state` on; `first` says in which rows an episode starts and the state is forgotten.
- The rollout stores the state with every step, so that learning goes on from what acting had.
- An update goes through sequences of the rollout, in order: sequences are shuffled, not rows.
"""

import argparse

import torch

from rl_training.algorithms import RecurrentPPO, RecurrentPPOConfig
from rl_training.data import Clock, ObservationNormalizer, RolloutBuffer
from rl_training.envs import SpaceAdapter, make_env, make_vector_env
from rl_training.fast.accelerate import accelerate
from rl_training.models import RecurrentActorCritic
from rl_training.runtime import Collector, Evaluator

ENV_ID = "CartPole-v1"
WRAPPERS = ["MaskVelocity"]  # which way the pole falls shows only over two steps or more
NUM_ENVS = 8


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    hyper = RecurrentPPOConfig(
        core_size=64,
        num_steps=32,
        sequence_length=32,
        batch_size=256,
        epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate={"initial": 1e-3, "final": 0.0},
        clip_range={"initial": 0.2, "final": 0.0},
    )

    # The environment, and the agent: a recurrent network, and the update rule around it.
    envs = make_vector_env(ENV_ID, num_envs=NUM_ENVS, wrappers=WRAPPERS)
    adapter = SpaceAdapter(ENV_ID, envs.single_observation_space, envs.single_action_space)
    spec = adapter.spec
    normalizer = ObservationNormalizer(spec.obs_shape)
    ppo = RecurrentPPO(RecurrentActorCritic.build(spec, hyper), hyper, spec, seed=seed)
    accelerate(ppo)  # the same with kernels, where there are some
    rollout = RolloutBuffer.build(spec, hyper, num_envs=NUM_ENVS, seed=seed, device=ppo.device)
    collector = Collector(envs, adapter)
    collector.reset([seed * NUM_ENVS + n for n in range(NUM_ENVS)], ppo.initial_state(NUM_ENVS))

    def explore(obs, state, first):
        return ppo.act(normalizer.array(obs), state, first, Clock(0, steps), explore=True)

    def exploit(obs, state, first):
        return ppo.act(normalizer.array(obs), state, first, Clock(0, steps), explore=False)

    for step in range(0, steps, NUM_ENVS):
        # Sample an action in each environment, and keep the step with the states around it: a
        # truncated episode bootstraps from its last observation and the state after the step.
        rollout.add(collector.step(explore))
        if not rollout.full:
            continue
        # A full rollout: a few epochs of clipped steps on its sequences, then it is forgotten.
        taken = rollout.take()
        metrics = ppo.update(normalizer.batch(taken), Clock(step, steps)).metrics
        normalizer.observe(taken.obs.numpy(), taken.valid.numpy())  # for the next one
        if (step + NUM_ENVS) % 10_240 == 0:
            recent = [episode.episode_return for episode in collector.episodes]
            print(
                f"step {step:6d}  return {sum(recent) / len(recent):6.1f}  "
                f"entropy {metrics['entropy']:.3f}  KL {metrics['approx_kl']:.4f}"
            )

    # The final policy, its most likely actions; the memory starts empty in each episode.
    evaluator = Evaluator(lambda: make_env(ENV_ID, wrappers=WRAPPERS), adapter)
    evaluation = evaluator.evaluate(exploit, ppo.initial_state, episodes=20, seed=seed)
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
