"""DRQN on CartPole without its velocities, from the package's own parts, with the loop written out.

    python examples/drqn_cartpole_reference.py --steps 40000

`rl-training train --config drqn/cartpole_masked` does the same with checkpoints, logs and resume;
this script is for reading, beside `dqn_cartpole_reference.py`, and says what is new.
"""

import argparse
from functools import partial

import torch

from rl_training.algorithms import DRQN, DRQNConfig
from rl_training.data import Clock, ObservationNormalizer, RecurrentReplayBuffer
from rl_training.envs import SpaceAdapter, make_env, make_vector_env
from rl_training.fast.accelerate import accelerate
from rl_training.models import LSTMQNetwork
from rl_training.runtime import Collector, Evaluator

ENV_ID = "CartPole-v1"
NUM_ENVS, WARM_UP = 4, 1_000


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    hyper = DRQNConfig(
        hidden_sizes=(64,),
        core_size=64,
        sequence_length=24,
        burn_in=8,
        learning_rate={"initial": 1e-3, "final": 0.0},
        epsilon={"initial": 1.0, "final": 0.04, "fraction": 0.16},
        tau=0.01,
        double=True,
        dueling=True,
        n_step=5,
        loss="mse",
    )

    # The environments show where the cart and the pole are, not how fast they move. One look does
    # not say what to do, and DQN never learns it; two looks do, so the agent must remember.
    envs = make_vector_env(ENV_ID, num_envs=NUM_ENVS, wrappers=["MaskVelocity"])
    adapter = SpaceAdapter(ENV_ID, envs.single_observation_space, envs.single_action_space)

    # The agent. Within DQN's network there is a recurrent layer, whose state is the memory: the
    # collector hands it to `act` and takes back what follows. It is zero when an episode starts.
    drqn = DRQN(LSTMQNetwork.build(adapter.spec, hyper), hyper, adapter.spec, seed=seed)
    accelerate(drqn)  # the same with kernels, where there are some
    collector = Collector(envs, adapter)
    collector.reset([NUM_ENVS * seed + n for n in range(NUM_ENVS)], drqn.initial_state(NUM_ENVS))

    # Replay holds sequences of 24 transitions and the 8 before them, with the state before all of
    # these. They end where an episode does; what it does not fill is padding, and masked.
    sizes = {"num_envs": NUM_ENVS, "seed": seed, "device": drqn.device}
    replay = RecurrentReplayBuffer.build(adapter.spec, hyper, **sizes)

    # Angles are small numbers, and their changes smaller: the networks see them normalised.
    normalizer = ObservationNormalizer(adapter.spec.obs_shape)

    def act(obs, state, first, explore=True):
        return drqn.act(normalizer.array(obs), state, first, clock, explore=explore)

    for step in range(0, steps, NUM_ENVS):
        clock = Clock(step, steps, learning_starts=WARM_UP)
        transition = collector.step(act)
        replay.add(transition)
        normalizer.observe(transition.obs, transition.valid)
        # Four transitions, one update from 32 sequences [time, batch, ...]. The 8 rows of context
        # only refresh the stored states, which an older network gave. Each transition then gives an
        # error as in DQN; the loss is the mean of those that the mask leaves, and its gradient goes
        # back through the sequence, so the memory learns what to keep.
        if not clock.warming_up:
            batch = normalizer.batch(replay.sample(hyper.batch_size))
            metrics = drqn.update(batch, clock).metrics
        if step > WARM_UP and step % 5_000 == 0:
            recent = [episode.episode_return for episode in collector.episodes]
            mean = sum(recent) / len(recent)
            print(f"step {step:6d}  return {mean:6.1f}  loss {metrics['loss']:.4f}")

    # The final policy, greedy, on environments of its own.
    evaluator = Evaluator(lambda: make_env(ENV_ID, wrappers=["MaskVelocity"]), adapter)
    greedy = partial(act, explore=False)
    evaluation = evaluator.evaluate(greedy, drqn.initial_state, episodes=20, seed=seed)
    print(f"final policy: {evaluation.mean:.1f} ± {evaluation.std:.1f} over 20 episodes")
    evaluator.close()
    envs.close()
    return evaluation.mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.seed)
