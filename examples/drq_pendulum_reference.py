"""DrQ on Pendulum seen in images, from the package's own parts, with the loop written out.

    python examples/drq_pendulum_reference.py --steps 10000

`rl-training train --config drq/pendulum_pixels` learns the same task with one shift per image,
an actor step in every update, a falling learning rate, a longer warm-up, checkpoints, logs, resume.
This leaves the policy in `runs/drq_pendulum`, as weights and as a program that needs only torch.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from rl_training.algorithms import DrQ, DrQConfig
from rl_training.data import Clock, ReplayBuffer
from rl_training.envs import SpaceAdapter, make_env, make_vector_env, stacked_frames
from rl_training.fast.accelerate import accelerate
from rl_training.models import CNNDrQModel
from rl_training.runtime import Collector, Evaluator

ENV_ID = "Pendulum-v1"
IMAGES = {"size": 48, "crop": 260, "frame_stack": 3, "action_repeat": 2, "grayscale": True}
ENV = {"env_kwargs": {"render_mode": "rgb_array"}, "wrappers": [{"PixelObservation": IMAGES}]}
SETTINGS = {"pad": 1, "reward_scale": 0.05, "gamma": 0.95, "tau": 0.02, "alpha": 0.02}
WARM_UP, OUTPUT = 500, Path("runs/drq_pendulum")


class Policy(nn.Sequential):
    """The action for uint8 images: the mean that the actor gives, squashed into [-1, 1]."""

    def forward(self, images: Tensor) -> Tensor:
        return torch.tanh(self[0](images).chunk(2, -1)[0])


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    hyper = DrQConfig(encoder="nature", hidden_sizes=(256, 256), batch_size=64, **SETTINGS)

    # The environment: three stacked images, of which the replay keeps each one once.
    envs = make_vector_env(ENV_ID, num_envs=1, **ENV)
    spaces = envs.single_observation_space, envs.single_action_space
    adapter = SpaceAdapter(ENV_ID, *spaces, frames=stacked_frames(envs))
    collector = Collector(envs, adapter)
    collector.reset([seed], state=())
    drq = DrQ(CNNDrQModel.build(adapter.spec, hyper), hyper, adapter.spec, seed=seed)
    accelerate(drq)  # the same with kernels, where there are some
    replay = ReplayBuffer(adapter.spec, capacity=steps, gamma=hyper.gamma, seed=seed)

    for step in range(steps):
        clock = Clock(step, steps, learning_starts=WARM_UP)
        transition = collector.step(
            lambda obs, state, first, now=clock: drq.act(obs, state, first, now, explore=True)
        )
        replay.add(transition._replace(reward=hyper.reward_scale * transition.reward))
        # An update shifts every image by a few pixels, twice. The critics learn, from both, the
        # mean of two targets, each from a shift of the next images with an action of its own.
        if not clock.warming_up:
            metrics = drq.update(replay.sample(hyper.batch_size), clock).metrics
        if step > WARM_UP and step % 500 == 0:
            recent = [episode.episode_return for episode in collector.episodes][-10:]
            loss, mean = metrics["critic_loss"], sum(recent) / len(recent)
            print(f"step {step:6d}  return {mean:7.1f}  critic loss {loss:.3f}")

    evaluator = Evaluator(lambda: make_env(ENV_ID, **ENV), adapter)
    evaluation = evaluator.evaluate(
        lambda obs, state, first: drq.act(obs, state, first, clock, explore=False),
        drq.initial_state,
        episodes=5,
        seed=seed,
    )
    print(f"final policy: {evaluation.mean:.1f} ± {evaluation.std:.1f} over 5 episodes")

    # The policy on its own: its weights, loaded again, and a program for any number of images.
    OUTPUT.mkdir(parents=True, exist_ok=True)
    torch.save(Policy(drq.actor).state_dict(), OUTPUT / "policy.pt")
    policy = Policy(CNNDrQModel.build(adapter.spec, hyper).actor).eval()
    policy.load_state_dict(torch.load(OUTPUT / "policy.pt", weights_only=True))
    images = torch.from_numpy(transition.obs).repeat(2, 1, 1, 1)
    program = torch.export.export(policy, (images,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.export.save(program, OUTPUT / "policy.pt2")
    loaded = torch.export.load(OUTPUT / "policy.pt2").module()
    for name, act in (("weights", policy), ("program", loaded)):
        torque = adapter.decode(act(images[:1]).detach().numpy())[0]
        print(f"torque by the {name}: {torque.round(4)}")
    evaluator.close()
    envs.close()
    return evaluation.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.seed)
