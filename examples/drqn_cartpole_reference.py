"""DRQN on CartPole without its velocities, from the package's own parts, with the loop written out.

    python examples/drqn_cartpole_reference.py --steps 40000

`rl-training train --config drqn/cartpole_masked` does the same with checkpoints, logs and resume;
this script is for reading, beside `dqn_cartpole_reference.py`, and says what is new.
"""

import argparse

import torch

from rl_training.algorithms.drqn import DRQN, DRQNConfig
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.data.types import Moment
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.spaces import SpaceAdapter
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from rl_training.runtime.collector import Collector
from rl_training.runtime.evaluator import Evaluator

ENV_ID = "CartPole-v1"
NUM_ENVS = 4
WARM_UP = 1_000


def main(steps: int, seed: int) -> float:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    hyper = DRQNConfig(
        hidden_sizes=(64,),
        core_size=64,
        sequence_length=16,
        gamma=0.98,
        learning_rate={"initial": 1.5e-3, "final": 0.0},
        epsilon={"initial": 1.0, "final": 0.04, "fraction": 0.16},
        batch_size=32,
        tau=0.01,
        double=True,
    )

    # The environments show where the cart and the pole are, not how fast they move. One look does
    # not say what to do, and DQN never learns it; two looks do, so the agent needs a memory.
    envs = make_vector_env(ENV_ID, num_envs=NUM_ENVS, wrappers=["MaskVelocity"])
    adapter = SpaceAdapter(ENV_ID, envs.single_observation_space, envs.single_action_space)

    # The agent. Within DQN's network there is a recurrent layer, whose state is the memory: the
    # collector hands it to `act` with each observation and takes back the one that follows. It is
    # zero at the start of an episode.
    drqn = DRQN(LSTMQNetwork.build(adapter.spec, hyper), hyper, adapter.spec, seed=seed)
    collector = Collector(envs, adapter)
    seeds = [NUM_ENVS * seed + number for number in range(NUM_ENVS)]
    collector.reset(seeds, state=drqn.initial_state(NUM_ENVS))

    # Replay holds sequences of 16 transitions with the state the agent was in before the first.
    # They end where an episode does; what it does not fill is padding, and masked.
    replay = RecurrentReplayBuffer.build(
        adapter.spec, hyper, num_envs=NUM_ENVS, seed=seed, device=drqn.device
    )

    for step in range(0, steps, NUM_ENVS):
        moment = Moment(step, steps, learning_starts=WARM_UP)
        transition = collector.step(
            lambda obs, state, first, now=moment: drqn.act(obs, state, first, now, explore=True)
        )
        replay.add(transition)
        # Four transitions, one update from 32 sequences, tensors [time, batch, ...]. Both networks
        # go through them from the stored states. Each transition then gives a temporal-difference
        # error as in DQN; the loss is the mean of those that the mask leaves, and its gradient goes
        # back through the sequence, so the memory learns what to keep.
        if not moment.warming_up:
            metrics = drqn.update(replay.sample(hyper.batch_size), moment).metrics
        if step > WARM_UP and step % 5_000 == 0:
            recent = [episode.episode_return for episode in collector.episodes]
            print(
                f"step {step:6d}  return {sum(recent) / len(recent):6.1f}  "
                f"loss {metrics['loss']:.4f}  mean Q {metrics['q_value_mean']:.1f}"
            )

    # The final policy, greedy, with a memory of its own, on environments of its own.
    evaluator = Evaluator(lambda: make_env(ENV_ID, wrappers=["MaskVelocity"]), adapter)
    evaluation = evaluator.evaluate(
        lambda obs, state, first: drqn.act(obs, state, first, moment, explore=False),
        drqn.initial_state,
        episodes=20,
        seed=seed,
    )
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
