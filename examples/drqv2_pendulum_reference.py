"""DrQ-v2 on Pendulum seen in images, from the package's own parts, with the loop written out.

    python examples/drqv2_pendulum_reference.py --steps 10000

`rl-training train --config drqv2/pendulum_pixels` learns the same task in larger batches with a
falling learning rate, after a longer warm-up, and has checkpoints, logs and resume; this script is
for reading, and a place to start an experiment of your own.
"""

import argparse

import torch

from rl_training.algorithms import DrQv2, DrQv2Config
from rl_training.data import Clock, ReplayBuffer
from rl_training.envs import SpaceAdapter, make_env, make_vector_env, stacked_frames
from rl_training.fast.accelerate import accelerate
from rl_training.models import CNNDrQv2Model
from rl_training.runtime import Collector, Evaluator

ENV_ID = "Pendulum-v1"
IMAGES = {"size": 48, "crop": 260, "frame_stack": 3, "action_repeat": 2, "grayscale": True}
ENV = {"env_kwargs": {"render_mode": "rgb_array"}, "wrappers": [{"PixelObservation": IMAGES}]}
WARM_UP = 500
SETTINGS = {"pad": 1, "reward_scale": 0.05, "gamma": 0.95, "tau": 0.02, "learning_rate": 5e-4}


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    hyper = DrQv2Config(encoder="nature", hidden_sizes=(256, 256), batch_size=64, **SETTINGS)

    # The environment: three stacked images, of which the replay keeps each one once.
    envs = make_vector_env(ENV_ID, num_envs=1, **ENV)
    spaces = envs.single_observation_space, envs.single_action_space
    adapter = SpaceAdapter(ENV_ID, *spaces, frames=stacked_frames(envs))
    collector = Collector(envs, adapter)
    collector.reset([seed], state=())
    agent = DrQv2(CNNDrQv2Model.build(adapter.spec, hyper), hyper, adapter.spec, seed=seed)
    accelerate(agent)  # the same with kernels, where there are some
    # What is sampled sums the rewards of three steps, and what follows them is the successor.
    replay = ReplayBuffer(
        adapter.spec, capacity=steps, gamma=hyper.gamma, n_step=hyper.n_step, seed=seed
    )

    for step in range(steps):
        clock = Clock(step, steps, learning_starts=WARM_UP)
        transition = collector.step(
            lambda obs, state, first, now=clock: agent.act(obs, state, first, now, explore=True)
        )
        replay.add(transition._replace(reward=hyper.reward_scale * transition.reward))
        # Every other step an update: it shifts every image by a few pixels; the critics and the
        # encoder learn towards r + discount * (the lower target critic, at the actor's action with
        # some noise), and the actor follows the critics without touching the encoder.
        if not clock.warming_up and step % 2 == 0:
            metrics = agent.update(replay.sample(hyper.batch_size), clock).metrics
        if step > WARM_UP and step % 500 == 0:
            recent = [episode.episode_return for episode in collector.episodes][-10:]
            print(
                f"step {step:6d}  return {sum(recent) / len(recent):7.1f}  "
                f"critic loss {metrics['critic_loss']:.3f}  target Q {metrics['target_q_mean']:.1f}"
            )

    evaluator = Evaluator(lambda: make_env(ENV_ID, **ENV), adapter)
    evaluation = evaluator.evaluate(
        lambda obs, state, first: agent.act(obs, state, first, clock, explore=False),
        agent.initial_state,
        episodes=5,
        seed=seed,
    )
    print(f"final policy: {evaluation.mean:.1f} ± {evaluation.std:.1f} over 5 episodes")
    evaluator.close()
    envs.close()
    return evaluation.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.seed)
