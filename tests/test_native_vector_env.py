"""Environments with a vector implementation of their own; Atari's is one."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from rl_training import DQN
from rl_training.algorithms.base import ActResult
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.pixels import stacked_frames
from rl_training.envs.spaces import SpaceAdapter
from rl_training.errors import ConfigError
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.runtime.assembly import Environments
from rl_training.runtime.collector import Collector
from rl_training.storage.checkpoints import find_checkpoint
from training import tiny_config

PONG = "ALE/Pong-v5"


@pytest.fixture(autouse=True)
def _atari_is_registered() -> None:
    """Importing `ale_py` is what registers its environments."""
    if find_spec("ale_py"):
        import_module("ale_py")


def pong(num_envs: int = 1, **kwargs: Any) -> Any:
    return make_vector_env(PONG, num_envs=num_envs, vectorization="native", env_kwargs=kwargs)


@pytest.mark.extra("atari")
def test_an_atari_game_comes_in_stacked_images_of_84_by_84() -> None:
    venv = pong(2)
    obs, _ = venv.reset(seed=1)
    assert (obs.shape, obs.dtype) == ((2, 4, 84, 84), np.uint8)
    assert stacked_frames(venv) == 4
    following, *_ = venv.step(np.array([2, 3]))
    assert np.array_equal(obs[:, 1:], following[:, :-1])  # what the replay relies on
    venv.close()


@pytest.mark.extra("atari")
def test_one_of_them_is_the_same_game() -> None:
    """The environment of evaluations sees what those of training see."""
    venv, env = pong(), make_env(PONG, vectorization="native")
    many, _ = venv.reset(seed=5)
    one, _ = env.reset(seed=5)
    assert np.array_equal(many[0], one)
    for action in np.random.default_rng(0).integers(0, 6, 40):
        many, reward, *_ = venv.step(np.array([action]))
        one, alone, terminated, truncated, _ = env.step(action)
        assert np.array_equal(many[0], one)
        assert alone == reward[0]
        assert isinstance(alone, float)
        assert not terminated
        assert not truncated
    again, _ = env.reset(seed=5)
    assert not np.array_equal(again, one)
    assert np.array_equal(again, env.reset(seed=5)[0])
    venv.close()
    env.close()


@pytest.mark.extra("atari")
def test_a_game_that_ends_gives_its_last_image_and_no_false_transition() -> None:
    venv = pong(2, max_num_frames_per_episode=60)  # truncated after 15 steps of 4 frames
    adapter = SpaceAdapter(PONG, venv.single_observation_space, venv.single_action_space, frames=4)
    collector = Collector(venv, adapter)
    collector.reset([1, 2], ())
    steps = [collector.step(lambda obs, *_: played(len(obs))) for _ in range(40)]
    collector.close()
    for step, later in pairwise(steps):
        kept = step.valid & ~(step.terminated | step.truncated)
        assert np.array_equal(step.next_obs[kept], later.obs[kept])
    ends = np.array([step.truncated & step.valid for step in steps])
    resets = np.array([~step.valid for step in steps])
    assert ends.sum() >= 4
    assert np.array_equal(ends[:-1], resets[1:])  # a row that resets follows each end
    stacks = [(step.obs[:, 1:], step.next_obs[:, :-1], step.valid) for step in steps]
    assert all(np.array_equal(old[valid], new[valid]) for old, new, valid in stacks)


def played(rows: int) -> ActResult:
    return ActResult(np.full(rows, 2), ())


@pytest.mark.extra("atari")
def test_dqn_learns_from_the_packaged_pong(tmp_path: Path) -> None:
    """A few thousand frames with the packaged settings, but for a shorter warm-up."""
    config = resolve_config(
        "dqn/pong",
        arguments={"output_dir": str(tmp_path), "total_timesteps": 800},
        overrides=[
            "eval_interval=0",
            "final_eval_episodes=1",
            "eval_env_kwargs.max_num_frames_per_episode=400",
            "log_interval=200",
            "algo_kwargs.learning_starts=400",
            "algo_kwargs.replay_memory=20MiB",
        ],
    ).config
    result = train_config(config)
    assert (result.global_step, result.updates) == (800, 100)
    agent = DQN.load(result.run_dir)
    assert agent.evaluate(1).returns == result.eval_returns
    info = find_checkpoint(result.run_dir).info
    assert info["resume_level"] == "boundary"  # the emulators' state is out of reach
    assert json.loads((result.run_dir / "summary.json").read_text())["status"] == "finished"


@pytest.mark.extra("atari")
def test_scores_are_not_clipped_in_evaluations() -> None:
    """In MsPacman a dot is worth 10."""
    config = resolve_config("dqn/pong", overrides=["env_id=ALE/MsPacman-v5", "num_envs=1"]).config
    environments = Environments(config)
    training, judged = environments.training(), environments.evaluation()
    training.reset(seed=0)
    judged.reset(seed=0)
    clipped = max(float(training.step(np.array([3]))[1][0]) for _ in range(100))
    assert clipped == 1.0
    assert max(float(judged.step(3)[1]) for _ in range(100)) >= 10.0
    training.close()
    judged.close()


@pytest.mark.extra("atari")
def test_how_an_environment_resets_is_its_own() -> None:
    """ale-py writes it into a dictionary of the class, where the latest one's stands."""
    same = gym.make_vec("ALE/Pong-v5", num_envs=1, autoreset_mode=AutoresetMode.SAME_STEP)
    following = gym.make_vec("ALE/Pong-v5", num_envs=1)
    for venv, mode in ((same, AutoresetMode.SAME_STEP), (following, AutoresetMode.NEXT_STEP)):
        spaces = venv.single_observation_space, venv.single_action_space
        assert Collector(venv, SpaceAdapter("Pong", *spaces)).mode is mode
        venv.close()


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_other_environments_bring_their_own_too(algo: str, tmp_path: Path) -> None:
    result = train_config(tiny_config(algo, tmp_path, vectorization="native", num_envs=2))
    assert result.global_step == 240
    assert len(result.eval_returns) == 3


@pytest.mark.extra("atari")
def test_what_native_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="Pendulum-v1 has no vector implementation"):
        make_vector_env("Pendulum-v1", num_envs=2, vectorization="native")
    with pytest.raises(ConfigError, match="wrappers: expected none with vectorization native"):
        make_vector_env(
            "CartPole-v1", num_envs=2, vectorization="native", wrappers=["MaskVelocity"]
        )
    with pytest.raises(ConfigError, match="native is for ids of Gymnasium"):
        make_vector_env(lambda: gym.make("CartPole-v1"), num_envs=2, vectorization="native")
    with pytest.raises(ConfigError, match="expected one of sync, async, native, found 'fast'"):
        make_vector_env("CartPole-v1", num_envs=2, vectorization="fast")
    with pytest.raises(ConfigError, match="env_kwargs"):
        pong(stack=3)


def test_arguments_for_evaluations_reach_them(tmp_path: Path) -> None:
    config = tiny_config(
        "dqn", tmp_path, eval_env_kwargs={"max_episode_steps": 4}, total_timesteps=100
    )
    result = train_config(config)
    assert max(result.eval_returns) <= 4  # a reward of 1 per step
    env = gym.make("CartPole-v1")
    with pytest.raises(ConfigError, match=r"eval_env_kwargs: .* is already built"):
        train_config(config.with_changes(env_id=env))


@pytest.mark.extra("atari")
def test_a_vector_environment_of_ones_own_is_judged_in_one_like_it(tmp_path: Path) -> None:
    venv = gym.make_vec("ALE/Pong-v5", num_envs=2, max_num_frames_per_episode=100)
    config = tiny_config(
        "dqn",
        tmp_path,
        env_id=venv,
        num_envs=2,
        total_timesteps=60,
        eval_interval=0,
        final_eval_episodes=1,
        algo_kwargs={"batch_size": 4, "learning_starts": 40, "buffer_size": 100},
    )
    result = train_config(config)
    assert len(result.eval_returns) == 1
    venv.close()


def test_a_policy_of_native_training_is_loaded_with_another_environment(tmp_path: Path) -> None:
    """What was said of the id, for evaluations too, goes with the id."""
    kwargs = {"eval_env_kwargs": {"max_episode_steps": 6}, "total_timesteps": 60}
    result = train_config(tiny_config("dqn", tmp_path, vectorization="native", **kwargs))
    agent = DQN.load(result.run_dir, env=lambda: gym.make("CartPole-v1"))
    assert max(agent.evaluate(3).returns) > 6
    assert max(DQN.load(result.run_dir).evaluate(3).returns) <= 6
    # What is given now stands above what was said of evaluations then.
    given = DQN.load(result.run_dir, env_kwargs={"max_episode_steps": 8})
    assert given.evaluate(3).lengths == (8, 8, 8)
    assert agent.config.vectorization == "sync"


def cartpoles(num_envs: int = 2, **kwargs: Any) -> Any:
    """A vector environment that a user's function builds, in a wrapper that hides its id."""
    venv = gym.make_vec("CartPole-v1", num_envs, **kwargs)
    return gym.wrappers.vector.TransformReward(venv, lambda reward: reward / 2)


def one_cartpole() -> Any:
    return cartpoles(1)


SHORT: dict[str, Any] = {"total_timesteps": 60, "eval_interval": 30, "final_eval_episodes": 3}


@pytest.mark.parametrize("built", [True, False])
def test_a_vector_environment_is_judged_in_one_that_is_named(built: bool, tmp_path: Path) -> None:
    """Built, or built by a callable: neither can be made a second time for one episode."""
    source = cartpoles() if built else cartpoles
    config = tiny_config("dqn", tmp_path, env_id=source, **SHORT)
    with pytest.raises(ConfigError, match=r"eval_env, an id or a callable"):
        train_config(config)
    by_id = train_config(config.with_changes(eval_env="CartPole-v1"))
    by_callable = train_config(config.with_changes(eval_env=one_cartpole, num_envs=2))
    # The same policies in the same episodes, for which the wrapper gives half the reward.
    assert [2 * r for r in by_callable.eval_returns] == list(by_id.eval_returns)
    agent = DQN.load(by_id.run_dir, env=source)
    assert agent.evaluate(3).returns == by_id.eval_returns
    again = DQN.load(by_id.run_dir, env=source, eval_env=one_cartpole)
    assert again.evaluate(3).returns == by_callable.eval_returns


def test_an_untrained_policy_is_judged_there_too() -> None:
    agent = DQN(cartpoles, eval_env="CartPole-v1", eval_env_kwargs={"max_episode_steps": 5})
    assert agent.evaluate(2).lengths == (5, 5)


def test_an_evaluation_environment_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    def refused(**changes: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            train_config(tiny_config("dqn", tmp_path, **{"env_id": cartpoles, **SHORT, **changes}))
        return str(caught.value)

    assert "eval_env: expected evaluations in the observation space" in refused(
        eval_env="MountainCar-v0"
    )
    assert "a vector of 2 environments; expected a single one" in refused(eval_env=cartpoles)
    assert "found a built environment" in refused(eval_env=gym.make("CartPole-v1"))
    assert "there is no environment 'CartPole-v9'" in refused(eval_env="CartPole-v9")
    assert list(tmp_path.iterdir()) == []


def test_another_box_of_the_same_shape_will_do_for_observations(tmp_path: Path) -> None:
    def bounded() -> gym.Env[Any, Any]:
        env = gym.make("CartPole-v1")
        space = gym.spaces.Box(-9.0, 9.0, (4,), np.float32)
        return gym.wrappers.TransformObservation(env, lambda obs: obs, space)

    result = train_config(tiny_config("dqn", tmp_path, eval_env=bounded, **SHORT))
    assert len(result.eval_returns) == 3


@pytest.mark.extra("envpool")
@pytest.mark.filterwarnings("ignore")  # its seeds are fixed when it is built, of which it warns
@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_envpool_trains_and_is_judged_in_gymnasium(algo: str, tmp_path: Path) -> None:
    import envpool

    def make() -> Any:
        return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=1)

    config = tiny_config(algo, tmp_path, env_id=make, eval_env="CartPole-v1", **SHORT)
    result = train_config(config)
    assert 60 <= result.global_step < 64  # rows that only reset are not transitions
    assert len(result.eval_returns) == 3
    assert all(1 <= score <= 500 for score in result.eval_returns)
