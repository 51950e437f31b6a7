"""Claims of `exact` and `boundary` over many environments: each is tried in new processes.

    python -m campaign.exactness
    python -m campaign.exactness --only box2d,nasty

A run in each environment is continued from its checkpoints, each time in a new process, and
compared with the run that went on, to the bit. A level that is claimed and not kept is a broken
promise; a level that is not claimed is none, however exact the run may have been.

The negative control is an environment that claims falsely and has to be found out.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from nasty_envs import LEVELS
from rl_training.config.train_config import TrainConfig
from rl_training.errors import RLTrainingError
from rl_training.experiment.registry import resolve_config
from rl_training.tools.verify_resume import Comparison, compare_resumed

STEPS = 700
SLOW = {"CarRacing-v3": 100}
DISCRETE = {"hidden_sizes": [16], "batch_size": 16}
CONTINUOUS = {"hidden_sizes": [16], "batch_size": 16}


class Coarse(gym.ObservationWrapper[Any, Any, Any]):
    """Every 16th pixel of an image, as numbers."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        shape = self.observation(np.zeros(env.observation_space.shape, np.uint8)).shape
        self.observation_space = Box(0.0, 255.0, shape, np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        return np.asarray(observation, np.float32)[::16, ::16].reshape(-1)


COARSE = ["campaign.exactness:Coarse"]
FLAT = ["FlattenObservation"]
# By the module they need: id, settings.
ENVIRONMENTS: dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]] = {
    "classic": (
        "gymnasium",
        [
            ("CartPole-v1", {"num_envs": 2}),
            ("CartPole-v1", {"vectorization": "async", "num_envs": 2}),
            ("MountainCar-v0", {}),
            ("Acrobot-v1", {}),
            ("Pendulum-v1", {}),
            ("MountainCarContinuous-v0", {}),
        ],
    ),
    "toy_text": (
        "gymnasium",
        [
            ("FrozenLake-v1", {}),
            ("Taxi-v4", {}),
            ("CliffWalking-v1", {}),
            ("Blackjack-v1", {"wrappers": FLAT}),
        ],
    ),
    "mujoco": (
        "mujoco",
        [
            ("InvertedPendulum-v5", {}),
            ("Reacher-v5", {}),
            ("Hopper-v5", {"num_envs": 2}),
            ("HalfCheetah-v5", {}),
            ("Humanoid-v5", {}),
        ],
    ),
    "box2d": (
        "Box2D",
        [
            ("LunarLander-v3", {"num_envs": 2}),
            ("LunarLander-v3", {"env_kwargs": {"continuous": True}}),
            ("LunarLander-v3", {"vectorization": "async", "num_envs": 2}),
            ("BipedalWalker-v3", {}),
            ("BipedalWalker-v3", {"env_kwargs": {"hardcore": True}}),
            ("CarRacing-v3", {"wrappers": COARSE}),
        ],
    ),
    "atari": (
        "ale_py",
        [
            ("ALE/Pong-v5", {"env_kwargs": {"obs_type": "ram"}}),
            ("ALE/Breakout-v5", {"env_kwargs": {"obs_type": "ram"}}),
        ],
    ),
    "popgym": (
        "popgym",
        [
            ("popgym:popgym-RepeatPreviousEasy-v0", {}),
            ("popgym:popgym-PositionOnlyCartPoleEasy-v0", {}),
        ],
    ),
    "minigrid": ("minigrid", [("minigrid:MiniGrid-Empty-5x5-v0", {"wrappers": FLAT})]),
    "nasty": ("nasty_envs", [(f"nasty_envs:{name}", {}) for name in LEVELS]),
}


def configuration(env_id: str, settings: dict[str, Any]) -> TrainConfig:
    """A run of DQN or, where the actions are numbers, of SAC."""
    given = {"env_id": env_id, **settings}
    try:
        config = resolve_config({"algo": "dqn", "algo_kwargs": DISCRETE, **given}).config
        _check_actions(config)
    except RLTrainingError:
        config = resolve_config({"algo": "sac", "algo_kwargs": CONTINUOUS, **given}).config
    return config


def _check_actions(config: TrainConfig) -> None:
    from rl_training.envs.factory import make_env
    from rl_training.errors import IncompatibleEnv

    env = make_env(config.env_id, env_kwargs=config.env_kwargs, wrappers=config.wrappers)
    space = env.action_space
    env.close()
    if isinstance(space, Box):
        raise IncompatibleEnv("dqn takes no continuous actions")


def false_claim(found: Comparison) -> str:
    """The first difference under a claim; empty if there is none."""
    if found.level == "statistical":
        return ""
    return next((each.difference for each in found.continuations if each.difference), "")


def control() -> bool:
    """Whether an environment that claims to be exact and is not is found out."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note"
        note.touch()
        settings = {"env_kwargs": {"note": str(note)}}
        found = compare_resumed(configuration("nasty_envs:ProcessCounter", settings), 160)
    return found.level == "exact" and bool(false_claim(found))


def main() -> int:
    """Try every environment whose package is installed; exit code 1 for a false claim."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", help=f"some of {', '.join(ENVIRONMENTS)}")
    parser.add_argument("--steps", type=int, default=STEPS, help="transitions of each run")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    begun, tried, false = time.monotonic(), 0, 0
    levels: dict[str, int] = {}
    for group in arguments.only.split(",") if arguments.only else ENVIRONMENTS:
        module, entries = ENVIRONMENTS[group]
        if find_spec(module) is None:
            print(f"{group}: not installed")
            continue
        for env_id, settings in entries:
            steps = min(arguments.steps, SLOW.get(env_id, arguments.steps))
            found = compare_resumed(configuration(env_id, settings), steps)
            difference = false_claim(found)
            tried, false = tried + 1, false + bool(difference)
            levels[found.level] = levels.get(found.level, 0) + 1
            shown = f" {settings}" if settings else ""
            print(
                f"{env_id}{shown}: {found.level}" + f" FALSE: {difference}" * bool(difference),
                flush=True,
            )
    found_out = control()
    print(
        f"exactness: {tried} environments ({levels}), {false} false claims, control "
        f"{'found out' if found_out else 'MISSED'}, {time.monotonic() - begun:.0f} s"
    )
    return 0 if found_out and not false else 1


if __name__ == "__main__":
    sys.exit(main())
