"""Learning that goes wrong: where it stops, what is kept of it, and the signs that come before."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from rl_training import PPO, register
from rl_training.algorithms.base import Loss
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.optimization import Optimizer
from rl_training.config import SACConfig
from rl_training.config.train_config import TrainConfig
from rl_training.data.metrics import JoinedMetrics, Metrics, RecentMetrics
from rl_training.data.types import EnvSpec
from rl_training.errors import DivergenceError
from rl_training.experiment.registry import train_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.divergence import WatchLearning, collapsed_entropy
from rl_training.runtime.dqn_trainer import DQN_SPEC
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint
from toy_envs import CountingEnv
from training import tiny_config


def failed(config: TrainConfig, callbacks: tuple[Callback, ...] = ()) -> tuple[str, Path]:
    """The message of a run that diverges, and its directory."""
    with pytest.raises(DivergenceError) as caught:
        train_config(config, callbacks=callbacks)
    (run_dir,) = Path(config.output_dir).iterdir()
    return str(caught.value), run_dir


def report_of(run_dir: Path) -> dict[str, Any]:
    (path,) = (run_dir / "divergence").glob("*.json")
    report: dict[str, Any] = json.loads(path.read_text())
    return report


class Poison(Callback):
    """At a step, makes something of the algorithm infinite."""

    def __init__(self, env_steps: int, poison: Any) -> None:
        self.env_steps, self.poison = env_steps, poison

    def on_step(self, run: TrainingRun) -> None:
        if run.env_steps == self.env_steps:
            self.poison(run.algorithm)


def poison_weight(algorithm: Any) -> None:
    with torch.no_grad():
        next(algorithm.model.parameters())[0, 0] = math.inf


def poison_target(algorithm: Any) -> None:
    algorithm.target.flat.detach().fill_(3e38)  # finite, and what is computed from it is not


def poison_gradient(algorithm: Any) -> None:
    """From now on the gradient of one parameter is NaN, and the loss is not."""
    (loss, kernel), *_ = algorithm.optimizer.kernels.items()

    def nan_gradient(*inputs: object) -> Loss:
        result = kernel(*inputs)
        algorithm.optimizer.flat.grad[-1] = math.nan
        return result

    algorithm.optimizer.kernels[loss] = nan_gradient


@pytest.mark.parametrize(
    ("poison", "origin"),
    [
        (poison_weight, "weight layers.weight0"),
        (poison_target, "training metric 'loss'"),
        (poison_gradient, "gradient of layers.bias1"),
    ],
)
def test_the_first_value_that_is_not_finite_ends_a_run_with_its_origin(
    poison: Any, origin: str, tmp_path: Path
) -> None:
    """An update is made in every second step from 20 on; rows of the log are 50 steps apart."""
    config = tiny_config("dqn", tmp_path, eval_interval=0, checkpoint_interval=40)
    message, run_dir = failed(config, (Poison(101, poison),))
    assert f"the {origin} is not finite at step 102 (after 40 updates)" in message
    # The state at the failure would fail again at once: the earlier checkpoint is what helps.
    assert find_checkpoint(run_dir).env_steps == 80
    report = report_of(run_dir)
    assert (report["env_steps"], report["updates"], report["checked"]) == (102, 40, "each update")
    assert report["origin"] in message
    assert "step 80 of the run is saved" in message


def test_the_batch_is_kept_as_data(tmp_path: Path) -> None:
    batches: list[Any] = []

    class Look(DQN):
        def loss(self, batch: Any) -> Any:
            batches.append(
                {
                    name: torch.as_tensor(x) * 1
                    for name, x in batch._asdict().items()
                    if x is not None
                }
            )
            return super().loss(batch)

    register(dataclasses.replace(DQN_SPEC, name="looking_dqn", algorithm=Look))
    config = tiny_config("dqn", tmp_path, eval_interval=0).with_changes(algo="looking_dqn")
    _, run_dir = failed(config, (Poison(101, poison_weight),))
    (path,) = (run_dir / "divergence").glob("*.safetensors")
    assert path.name == "step_000000000102.safetensors"
    saved = load_file(path)
    assert saved.keys() == batches[-1].keys()
    assert all(torch.equal(saved[name], value) for name, value in batches[-1].items())
    described = report_of(run_dir)["batch"]["reward"]
    assert described == {"shape": [16], "lowest": 1.0, "highest": 1.0, "non_finite": 0}


class Enormous(CountingEnv):
    def __init__(self) -> None:
        super().__init__(rewards=(3e38,))


def test_a_batch_that_is_not_finite_is_named_as_the_origin(tmp_path: Path) -> None:
    """Each reward is finite; scaled tenfold none of them is."""
    config = tiny_config(
        "dqn", tmp_path, env_id=Enormous, eval_interval=0, algo_kwargs={"reward_scale": 10.0}
    )
    with np.errstate(over="ignore"):
        message, run_dir = failed(config)
    assert "the reward of the batch is not finite at step 22" in message
    assert report_of(run_dir)["batch"]["reward"]["non_finite"] == 16


def test_a_rollout_is_kept_too_and_the_weights_stay_finite(tmp_path: Path) -> None:
    kwargs = {"num_steps": 8, "batch_size": 4, "hidden_sizes": [8], "learning_rate": 1.0}
    agent = PPO(Enormous, output_dir=str(tmp_path), total_timesteps=200, algo_kwargs=kwargs)
    with pytest.raises(DivergenceError, match=r"is not finite at step 8 \(after 0 updates\)"):
        agent.learn()
    (run_dir,) = tmp_path.iterdir()
    assert report_of(run_dir)["batch"]["reward"]["shape"] == [8, 1]


def test_a_gradient_that_is_not_finite_reaches_no_weight() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    for limit in (None, 1.0):
        optimizer = Optimizer(model, max_grad_norm=limit)
        before = optimizer.flat.detach().clone()

        def root(x: torch.Tensor) -> torch.Tensor:
            return (model(x) * 0).sum().sqrt()  # 0, with an infinite derivative

        with pytest.raises(DivergenceError, match="gradient of weight"):
            optimizer.descend(root, torch.ones(2, 3), learning_rate=0.1)
        assert torch.equal(optimizer.flat.detach(), before)
        # A norm beyond float32 is no divergence: its numbers are finite, if enormous.
        with np.errstate(over="ignore"):
            optimizer.descend(lambda x: model(x).sum() * 1e25, torch.ones(2, 3), learning_rate=0.1)
        assert bool(torch.isfinite(optimizer.flat).all())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_metrics_on_the_host_are_checked_as_they_come(bad: float) -> None:
    names = ("loss", "other")
    large = np.float32(1e30)  # its square overflows, it does not
    for good in ([1.0, 2.0], [large, -large]):
        assert RecentMetrics().add(Metrics(names, np.array(good, np.float32)))
        assert RecentMetrics().add({"loss": torch.tensor(good[0]), "other": torch.tensor(good[1])})
    for row in ([1.0, bad], [bad, 1.0]):
        numbers = np.array(row, np.float32)
        assert not RecentMetrics().add(Metrics(names, numbers))
        assert not RecentMetrics().add(Metrics(names, torch.from_numpy(numbers)))
        parts = JoinedMetrics({"a": torch.tensor(1.0)}, Metrics(names, numbers))
        assert not RecentMetrics().add(parts)


# Signs


def run_at(values: dict[str, float], **changes: Any) -> Any:
    """As much of a run as the callback looks at: a batch of rewards of 1, gamma 0.9."""
    discrete = EnvSpec(env_id="E", obs_shape=(1,), action_kind="discrete", num_actions=4)
    batch = SimpleNamespace(reward=torch.tensor([1.0, -0.5]), action=torch.tensor([[0.5], [1.0]]))
    fields: dict[str, Any] = {
        "batch": batch,
        "hyper": SACConfig(gamma=0.9),
        "config": TrainConfig(algo="sac", env_id="E"),
        "collector": SimpleNamespace(episodes=[]),
        "agent": SimpleNamespace(adapter=SimpleNamespace(spec=discrete), spec=DQN_SPEC),
        "algorithm": SimpleNamespace(trouble=lambda *_: ""),
        "env_steps": 10,
        "progress": SimpleNamespace(horizon=100),
    }
    return SimpleNamespace(**(fields | changes))


def warnings_of(caplog: pytest.LogCaptureFixture, values: dict[str, float], **changes: Any) -> str:
    caplog.clear()
    watch = WatchLearning()
    for _ in range(3):
        watch.on_log(run_at(values, **changes), values)
    assert len(caplog.records) <= 1, "once"
    return caplog.text


def test_values_beyond_what_rewards_allow_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rewards of 1 and gamma 0.9 allow values of 10; the margin is tenfold."""
    text = warnings_of(caplog, {"train/q_value_mean": -101.0})
    assert "values have grown to 101, beyond 10 times what rewards of up to 1 and gamma 0.9" in text
    assert "lower algo_kwargs.learning_rate or lower algo_kwargs.tau" in text
    assert "target_update_interval" not in text  # which SAC does not have
    assert warnings_of(caplog, {"train/q_value_mean": 99.0}) == ""
    assert warnings_of(caplog, {"train/target_q_mean": 101.0}) != ""
    # An entropy of 3 with weight 0.5 adds as much as rewards of 1.5 would.
    soft = {"train/target_q_mean": 240.0, "train/alpha": 0.5, "train/entropy": 3.0}
    assert warnings_of(caplog, soft) == ""
    episodes = SimpleNamespace(episodes=[SimpleNamespace(episode_return=-15.0)])
    assert warnings_of(caplog, {"train/q_value_mean": 140.0}, collector=episodes) == ""
    assert warnings_of(caplog, {"train/q_value_mean": 160.0}, collector=episodes) != ""


def test_a_policy_that_stops_exploring_early_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    values = {"train/entropy": 0.0138}  # 1 % of ln 4 is 0.01386
    assert "raise algo_kwargs.target_entropy" in warnings_of(caplog, values)
    assert warnings_of(caplog, {"train/entropy": 0.0139}) == ""
    assert warnings_of(caplog, values, env_steps=51) == ""  # late in a run it may be sure


@pytest.mark.parametrize(
    ("keys", "entropy"),
    [
        ({"action_kind": "discrete", "num_actions": 2}, 0.01 * math.log(2)),
        ({"action_kind": "multi_discrete", "action_sizes": (2, 3)}, 0.01 * math.log(6)),
        ({"action_kind": "multi_binary", "action_dim": 3}, 0.01 * math.log(8)),
        # The entropy of a normal distribution is ln(std sqrt(2 pi e)); of two, twice that.
        ({"action_kind": "continuous", "action_dim": 2}, 2 * (math.log(0.01) + 1.4189385332)),
    ],
)
def test_the_entropy_of_a_policy_that_hardly_explores(keys: Any, entropy: float) -> None:
    spec = EnvSpec(env_id="E", obs_shape=(1,), **keys)
    assert collapsed_entropy(spec) == pytest.approx(entropy, rel=1e-9)


def test_actions_at_their_limits_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    def batch(share: float) -> Any:
        action = torch.zeros(100, 1)
        action[: int(100 * share)] = -1.0
        return SimpleNamespace(reward=torch.ones(1), action=action)

    text = warnings_of(caplog, {}, batch=batch(0.96))
    assert "96% of the latest batch's actions are at their limits" in text
    assert "lower algo_kwargs.reward_scale" in text
    assert "set normalize_observations" in text
    assert warnings_of(caplog, {}, batch=batch(0.95)) == ""
    discrete = SimpleNamespace(reward=torch.ones(1), action=torch.ones(9, dtype=torch.int64))
    assert warnings_of(caplog, {}, batch=discrete) == ""


def test_every_run_is_watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def enlarge(algorithm: Any) -> None:
        algorithm.target.flat.detach().mul_(1e5)

    train_config(tiny_config("dqn", tmp_path), callbacks=[Poison(101, enlarge)])
    assert caplog.text.count("values have grown to") == 1
