"""`train_drq` writes what it promises, and refuses what it cannot see."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training import DrQ
from rl_training.errors import ConfigError, IncompatibleEnv, UsageError
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.models.cnn.drq import CNNDrQModel
from rl_training.runtime.drq_trainer import train_drq
from rl_training.runtime.result import TrainingInterrupted
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from training import StopAt, final_state, tiny_config

PENDULUM: dict[str, Any] = {
    "env_id": "Pendulum-v1",
    "env_kwargs": {"render_mode": "rgb_array"},
    "wrappers": [{"PixelObservation": {"size": 20, "frame_stack": 3, "action_repeat": 2}}],
    "total_timesteps": 120,
    "eval_interval": 0,
    "final_eval_episodes": 1,
}


def test_train_drq_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    result = train_drq(tiny_config("drq", tmp_path))
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert (summary["algo"], summary["status"]) == ("drq", "finished")
    assert summary["updates"] == result.updates == (140 - 20) // 2
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    logged = [row for row in rows if "train/critic_loss" in row]
    assert [row["global_step"] for row in logged] == [50, 100]
    names = ("critic_loss", "actor_loss", "target_q_mean", "entropy", "alpha")
    assert all(math.isfinite(row[f"train/{name}"]) for row in logged for name in names)
    assert [row["train/alpha"] for row in logged] == pytest.approx([0.1] * 2)
    algorithm = find_checkpoint(result.run_dir).read("agent")["algorithm"]
    assert algorithm["updates"] == result.updates
    assert int(algorithm["actor_optimizer"]["steps"]) == result.updates // 2
    assert DrQ.load(result.run_dir).evaluate(3).returns == result.eval_returns


def test_alpha_may_be_learned(tmp_path: Path) -> None:
    result = train_drq(tiny_config("drq", tmp_path, algo_kwargs={"alpha": "auto"}))
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    found = [row["train/alpha"] for row in rows if "train/alpha" in row]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


@pytest.mark.extra("pixels")
@pytest.mark.parametrize(
    ("algo", "num_envs", "more"),
    [("drq", 2, {}), ("drq", 1, {"tied_convolutions": True}), ("drqv2", 1, {})],
)
def test_stopped_and_resumed_equals_never_stopped_on_stacked_images(
    algo: str, num_envs: int, more: dict[str, Any], tmp_path: Path
) -> None:
    """The buffer of 80 transitions wraps; episodes end after 100 of the repeated actions."""
    changes = PENDULUM | {
        "num_envs": num_envs,
        "total_timesteps": 120 * num_envs,
        "algo_kwargs": {"buffer_size": 80, **more},
    }
    config = tiny_config(algo, tmp_path, **changes)
    straight = train_config(config)
    rows = read_metrics(straight.run_dir / "metrics.jsonl")
    assert {row["rollout/episode_length"] for row in rows if "rollout/episode_length" in row} == {
        100
    }
    assert find_checkpoint(straight.run_dir).info["resume_level"] == "exact"
    with pytest.raises(TrainingInterrupted) as interruption:
        train_config(config, callbacks=[StopAt(61 * num_envs)])
    run_dir = interruption.value.result.run_dir
    train_config(config, resume=run_dir)
    assert final_state(run_dir) == final_state(straight.run_dir)


def test_tied_convolutions_are_tied_in_what_is_loaded(tmp_path: Path) -> None:
    config = tiny_config("drq", tmp_path, algo_kwargs={"tied_convolutions": True})
    result = train_drq(config)
    agent = DrQ.load(result.run_dir)
    assert agent.evaluate(3).returns == result.eval_returns
    model: Any = agent._agent.algorithm.model
    assert model.actor._borrowed[0] is model.critics.convolutions


@pytest.mark.extra("pixels")
def test_images_are_kept_once(tmp_path: Path) -> None:
    result = train_drq(tiny_config("drq", tmp_path, **PENDULUM))
    obs = find_checkpoint(result.run_dir).read("replay")["finished"].whole()["arrays"]["obs"]
    assert obs.shape[1:] == (3, 20, 20)  # one colour image a row, not three
    assert obs.dtype == np.uint8


@pytest.mark.parametrize("algo", ["drq", "drqv2"])
def test_what_it_cannot_take_is_refused(algo: str, tmp_path: Path) -> None:
    with pytest.raises(IncompatibleEnv, match=f"{algo} takes images, Dict or Tuple with im"):
        train_config(tiny_config(algo, tmp_path, env_id="Pendulum-v1", env_kwargs={}))
    with pytest.raises(
        IncompatibleEnv, match=f"{algo} takes one-dimensional bounded Box of floats actions"
    ):
        train_config(tiny_config(algo, tmp_path, env_id=Choices, env_kwargs={}))
    with pytest.raises(ConfigError, match="images of 16 x 16 are too small"):
        train_config(tiny_config(algo, tmp_path, algo_kwargs={"encoder": "nature"}))


class Choices(gym.Env[np.ndarray, Any]):
    """Images, and one of two actions."""

    observation_space = gym.spaces.Box(0, 255, (3, 20, 20), np.uint8)
    action_space = gym.spaces.Discrete(2)


def test_the_defaults_are_the_papers() -> None:
    hyper = resolve_config({"algo": "drq", "env_id": "PointPixels-v0"}).hyper
    assert (hyper.num_augmentations, hyper.num_target_augmentations, hyper.pad) == (2, 2, 4)
    assert (hyper.learning_rate, hyper.policy_delay) == (1e-3, 2)
    assert 2 * hyper.tau == 0.01  # theirs at every second update
    assert (hyper.hidden_sizes, hyper.feature_size, hyper.encoder) == ((1024, 1024), 50, "drq")


def network_that_counts_frames(env_spec: Any, hyper: Any) -> Any:
    """A network whose layers depend on how many images are stacked."""
    seen = [env_spec.frames]
    NETWORKS.append(env_spec.frames)
    wider = hyper.model_copy(update={"hidden_sizes": (8 * seen[0],)})
    return CNNDrQModel.build(env_spec, wider)


NETWORKS: list[int] = []


@pytest.mark.extra("pixels")
def test_a_loaded_network_knows_how_many_images_are_stacked(tmp_path: Path) -> None:
    NETWORKS.clear()
    kwargs = {"network": network_that_counts_frames, "feature_size": 50, "encoder": "drq"}
    changes = PENDULUM | {"total_timesteps": 30, "algo_kwargs": kwargs}
    config = tiny_config("drq", tmp_path, **changes)
    result = train_drq(config)
    agent = DrQ.load(result.run_dir, network=network_that_counts_frames)
    agent.predict(np.zeros((9, 20, 20), np.uint8))
    DrQ(config).predict(np.zeros((9, 20, 20), np.uint8))
    assert NETWORKS == [3, 3, 3]


def test_predict_takes_bytes_alone(tmp_path: Path) -> None:
    agent = DrQ(tiny_config("drq", tmp_path))
    image = np.random.default_rng(0).integers(0, 256, (3, 16, 16))
    action, _ = agent.predict(image)
    np.testing.assert_array_equal(action, agent.predict(image.astype(np.uint8))[0])
    np.testing.assert_array_equal(action, agent.predict(image.astype(float).tolist())[0])
    for wrong in (image / 255, image - 1, image + 1):
        with pytest.raises(UsageError, match="expected a uint8 image, whole numbers from 0"):
            agent.predict(wrong)


class Matrix(gym.Env[np.ndarray, np.ndarray]):
    """Images, and actions that are no vector."""

    observation_space = gym.spaces.Box(0, 255, (3, 20, 20), np.uint8)
    action_space = gym.spaces.Box(-1, 1, (2, 2), np.float32)


@pytest.mark.parametrize("algo", ["drq", "drqv2"])
def test_actions_that_are_no_vector_are_refused(algo: str, tmp_path: Path) -> None:
    wanted = rf"{algo} takes one-dimensional bounded Box of floats actions; .* has Box.*\(2, 2\)"
    with pytest.raises(IncompatibleEnv, match=wanted):
        train_config(tiny_config(algo, tmp_path, env_id=Matrix, env_kwargs={}))


def test_evaluations_in_other_spaces_are_refused_before_training(tmp_path: Path) -> None:
    config = tiny_config("drq", tmp_path, eval_env_kwargs={"size": 24})
    with pytest.raises(ConfigError, match="eval_env_kwargs: expected evaluations in the observat"):
        train_drq(config)
    assert not list(tmp_path.iterdir())


def test_refusals_say_what_would_help(tmp_path: Path) -> None:
    config = tiny_config("drq", tmp_path, env_id="Pendulum-v1", env_kwargs={})
    with pytest.raises(IncompatibleEnv, match="The wrapper PixelObservation, with env_kwargs"):
        train_drq(config)
    widen = {
        "func": lambda image: image.astype(np.int32),
        "observation_space": gym.spaces.Box(0, 255, (3, 16, 16), np.int32),
    }
    with pytest.raises(IncompatibleEnv, match=r"Images have to be uint8, .* channels first"):
        train_drq(tiny_config("drq", tmp_path, wrappers=[{"TransformObservation": widen}]))
    config = tiny_config("drq", tmp_path, eval_env_kwargs={"sizes": 20})
    with pytest.raises(ConfigError, match=r"env_kwargs with eval_env_kwargs: .*'sizes'"):
        train_drq(config)
