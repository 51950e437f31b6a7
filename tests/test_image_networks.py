"""DQN, its distributional relatives and PPO with images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from rl_training.config.train_config import TrainConfig
from rl_training.data.types import EnvSpec
from rl_training.envs.point_pixels import PointPixels
from rl_training.errors import ConfigError, IncompatibleEnv
from rl_training.experiment.registry import get_spec, resolve_config, train_config
from rl_training.models.cnn.encoders import NATURE, Convolutions
from rl_training.runtime.result import TrainingInterrupted
from rounding import double_precision
from training import ATOMS, StopAt, final_state, tiny_config

IMAGES = EnvSpec(
    env_id="toy", obs_shape=(4, 40, 40), obs_dtype="uint8", action_kind="discrete", num_actions=3
)
MOVES = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)


class FourWays(gym.ActionWrapper[Any, Any, Any]):
    """Steers the point of `PointPixels` by steps along an axis."""

    def __init__(self, env: Any = None, size: int = 40) -> None:
        super().__init__(gym.wrappers.TimeLimit(PointPixels(size), 20))
        self.action_space = gym.spaces.Discrete(5)

    def action(self, action: Any) -> np.ndarray:
        return np.asarray(MOVES[int(action)])


def network(algo: str, **hyper: Any) -> Any:
    spec = get_spec(algo)
    return spec.model(IMAGES, spec.hyper(hidden_sizes=(16,), **hyper))


def images(count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 4, 40, 40), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("algo", "hyper", "shape"),
    [("dqn", {}, (3,)), ("qr_dqn", {"num_quantiles": 7}, (3, 7)), ("c51", ATOMS, (3, 11))],
)
@pytest.mark.parametrize("dueling", [False, True])
def test_values_are_the_heads_of_the_convolutions(
    algo: str, hyper: dict[str, Any], shape: tuple[int, ...], dueling: bool
) -> None:
    model = network(algo, dueling=dueling, **hyper)
    seen = model.convolutions(images())
    assert seen.shape == (2, 64)  # 40, 9, 3, 1
    assert model(images()).shape == (2, *shape)
    assert_close(model(images()), model.head.forward(seen))
    assert torch.equal(model.act(images()), model.head.act(seen))


def test_policy_and_value_share_what_they_see() -> None:
    model = network("ppo")
    policy, value = model.policy_and_value(images())
    assert_close(model.policy(images()), policy)
    assert_close(model.value(images()), value)
    assert (policy.shape, value.shape) == ((2, 3), (2,))
    value.sum().backward()
    first = model.encoder.convolutions.layers[0].weight
    assert first.grad is not None
    assert first.grad.abs().sum() > 0
    # Initial policies are near uniform: the gain of the last layer is 0.01.
    probabilities = torch.softmax(policy.detach(), -1)
    assert_close(probabilities, torch.full((2, 3), 1 / 3), atol=0.02, rtol=0)
    with double_precision():
        weight = next(iter(network("ppo").encoder.layers.parameters())).detach()
        assert_close(weight @ weight.T, 2 * torch.eye(16))


def test_a_gradient_step_of_ppo_goes_through_the_encoder_once(tmp_path: Path) -> None:
    spec = get_spec("ppo")
    calls = []

    def build(env_spec: EnvSpec, hyper: Any) -> torch.nn.Module:
        model = spec.model(env_spec, hyper)
        model.get_submodule("encoder").register_forward_hook(lambda *_: calls.append(1))
        return model

    config = tiny_config(
        "ppo",
        tmp_path,
        env_id=FourWays,
        normalize_observations=False,
        total_timesteps=10,
        eval_interval=0,
        final_eval_episodes=0,
        algo_kwargs={"num_steps": 10, "batch_size": 5, "epochs": 2, "network": build},
    )
    train_config(config)
    # To check its shapes 4, to try the loss 2, to act 10, after the rollout 1, to learn 4.
    assert len(calls) == 4 + 2 + 10 + 1 + 4


@pytest.mark.parametrize("algo", ["dqn", "qr_dqn", "c51", "ppo"])
def test_stopped_and_resumed_equals_never_stopped(algo: str, tmp_path: Path) -> None:
    config = small(algo, tmp_path)
    straight = train_config(config)
    assert math.isfinite(straight.eval_return_mean)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_config(config, callbacks=[StopAt(70)])
    run_dir = interruption.value.result.run_dir
    train_config(config, resume=run_dir)
    assert final_state(run_dir) == final_state(straight.run_dir)


def small(algo: str, folder: Path, **changes: Any) -> TrainConfig:
    """120 steps in two environments."""
    kwargs = {} if algo == "ppo" else {"batch_size": 8}
    values: dict[str, Any] = {"env_id": FourWays, "num_envs": 2, "total_timesteps": 120}
    if algo == "ppo":
        values["normalize_observations"] = False
    return tiny_config(algo, folder, **(values | {"algo_kwargs": kwargs} | changes))


def test_normalising_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="normalize_observations: expected vectors, found the"):
        train_config(small("dqn", tmp_path, normalize_observations=True))


def test_images_without_an_axis_of_channels_are_refused(tmp_path: Path) -> None:
    cube = gym.spaces.Box(0, 255, (40, 40, 40), np.uint8)
    turn = {"func": lambda image: np.zeros(cube.shape, np.uint8), "observation_space": cube}
    wrapper = {"TransformObservation": turn}
    with pytest.raises(IncompatibleEnv, match=r"dqn takes .* fewer channels than rows and col"):
        train_config(small("dqn", tmp_path, wrappers=[wrapper]))


def test_images_are_too_small_for_the_network(tmp_path: Path) -> None:
    config = small("dqn", tmp_path, env_kwargs={"size": 20})
    with pytest.raises(ConfigError, match="images of 20 x 20 are too small"):
        train_config(config)


def test_the_packaged_atari_network_is_the_papers() -> None:
    hyper = resolve_config("dqn/pong").hyper
    spec = EnvSpec(
        env_id="Pong", obs_shape=(4, 84, 84), obs_dtype="uint8", action_kind="discrete",
        num_actions=6,
    )  # fmt: skip
    model = get_spec("dqn").model(spec, hyper)
    shapes = [tuple(p.shape) for p in model.parameters() if p.ndim > 1]
    nature = [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3), (512, 3136), (6, 512)]
    assert shapes == nature
    assert Convolutions((4, 84, 84), NATURE).size == 3136
