"""The options of the value-based family, alone and together, for each of its algorithms."""

from __future__ import annotations

import json
import math
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import Callback, TrainConfig, train_dqn
from rl_training.data.prioritized_replay import PrioritizedReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import ConfigError, NonFiniteError
from rl_training.experiment.registry import resolve_config
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from toy_envs import ChainEnv, TimedChain
from training import FAMILY, OPTIONS, StopAt, compile_without_code, final_state, tiny_config

each_algorithm = pytest.mark.parametrize("algo", FAMILY)


def config_of(algo: str, tmp_path: Path, options: dict[str, Any], **changes: Any) -> TrainConfig:
    quiet = {"eval_interval": 0, "final_eval_episodes": 0}
    return tiny_config(algo, tmp_path, algo_kwargs=options, **quiet | changes)


def chosen(*names: str) -> dict[str, Any]:
    return {name: OPTIONS[name] for name in names}


@each_algorithm
def test_every_combination_trains_and_each_is_a_run_of_its_own(algo: str, tmp_path: Path) -> None:
    agents = []
    for wanted in product((False, True), repeat=len(OPTIONS)):
        options = chosen(*(name for name, on in zip(OPTIONS, wanted, strict=True) if on))
        # Learning fast enough for the two networks to disagree on the best action.
        config = config_of(algo, tmp_path, options | {"learning_rate": 0.03})
        run_dir = train_dqn(config).run_dir
        logged = [row for row in read_metrics(run_dir / "metrics.jsonl") if "train/loss" in row]
        for row in logged:
            numbers = [value for name, value in row.items() if name.startswith("train/")]
            assert len(numbers) >= 6  # four metrics, epsilon and the learning rate
            assert all(map(math.isfinite, numbers)), options
        assert len(logged) == 4, options
        agents.append(final_state(run_dir)["agent"])
    assert len(set(agents)) == 2 ** len(OPTIONS)  # no option is taken and then ignored


def assert_resumes(config: TrainConfig, cut: int) -> None:
    """Stopped and resumed, the run ends with the bits of one that was never stopped."""
    straight = final_state(train_dqn(config).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_dqn(config, callbacks=[StopAt(cut)])
    run_dir = interruption.value.result.run_dir
    assert cut <= find_checkpoint(run_dir).env_steps < config.total_timesteps
    train_dqn(config, resume=run_dir)
    assert final_state(run_dir) == straight


# The rings of 150 rows in all begin again before the cut. With one environment every other step has
# an update, and the cut has none: what was stored there still waits to be weighed.
@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(
    ("algo", "names"),
    [*(("dqn", [name]) for name in OPTIONS), *((algo, list(OPTIONS)) for algo in FAMILY)],
    ids=str,
)
def test_stopped_and_resumed_equals_never_stopped(
    algo: str, names: list[str], num_envs: int, tmp_path: Path
) -> None:
    assert_resumes(config_of(algo, tmp_path, chosen(*names), num_envs=num_envs), 191)


@pytest.mark.parametrize(
    "way", [{"threads": 2}, {"execution": "compiled"}], ids=["tensors", "compiled"]
)
def test_with_all_options_tensors_and_compiled_runs_resume_too(
    way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_without_code(monkeypatch)
    assert_resumes(config_of("dqn", tmp_path, OPTIONS, **way), 101)


@each_algorithm
def test_with_other_priorities_a_resumed_run_differs(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the comparison above can fail."""
    config = config_of(algo, tmp_path, OPTIONS)
    straight = final_state(train_dqn(config).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_dqn(config, callbacks=[StopAt(190)])
    run_dir = interruption.value.result.run_dir
    restore = PrioritizedReplayBuffer.load_state_dict

    def forgetful(buffer: PrioritizedReplayBuffer, state: dict[str, Any]) -> None:
        restore(buffer, state | {"weights": 1.0 * (state["weights"] > 0)})

    monkeypatch.setattr(PrioritizedReplayBuffer, "load_state_dict", forgetful)
    train_dqn(config, resume=run_dir)
    assert final_state(run_dir)["agent"] != straight["agent"]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("replay_ratio", [1.0, 0.25])
def test_every_stored_transition_can_be_drawn_and_nothing_else(
    replay_ratio: float, num_envs: int, tmp_path: Path
) -> None:
    options = {"prioritized": True, "replay_ratio": replay_ratio}
    buffers: list[PrioritizedReplayBuffer] = []

    class Keep(Callback):
        def on_end(self, run: TrainingRun, result: Any) -> None:
            buffers.append(run.buffer)

    train_dqn(config_of("dqn", tmp_path, options, num_envs=num_envs), callbacks=[Keep()])
    (buffer,) = buffers
    valid = buffer.storage["valid"].numpy()
    assert np.count_nonzero(valid) > 100
    weights = buffer.state_dict()["weights"]
    written = valid.reshape(num_envs, -1)[:, : weights.shape[1]]
    np.testing.assert_array_equal(weights > 0, written)


class WatchPriorities(Callback):
    """Notes the moments and weights of updates, and the priorities that come of them."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, np.ndarray, np.ndarray]] = []
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []
        self.latest: Any = None

    def on_start(self, run: TrainingRun) -> None:
        self.buffer, self.update = run.buffer, run.algorithm.update
        run.algorithm.update = self.watched  # type: ignore[method-assign]

    def watched(self, batch: Any, clock: Any) -> Any:
        slots = batch.slots.copy()
        chances = self.buffer._tree.weights[slots]
        self.seen.append((clock.env_steps, batch.weight.numpy().copy(), chances))
        result = self.update(batch, clock)
        self.latest = (slots, np.asarray(result.priorities))
        return result

    def on_step(self, run: TrainingRun) -> None:
        if self.latest is not None:
            slots, priorities = self.latest
            self.kept.append((priorities, self.buffer._tree.weights[slots]))
            self.latest = None


@each_algorithm
def test_importance_weights_follow_the_schedule_and_priorities_the_errors(
    algo: str, tmp_path: Path
) -> None:
    options = {
        "prioritized": True,
        "priority_exponent": 0.5,
        "priority_correction": {"initial": 0.2, "final": 1.0},
    }
    watch = WatchPriorities()
    train_dqn(config_of(algo, tmp_path, options), callbacks=[watch])
    assert len(watch.seen) == len(watch.kept) == (240 - 20) // 2
    assert watch.seen[-1][0] == 240
    for env_steps, weights, chances in watch.seen:
        correction = 0.2 + 0.8 * env_steps / 240
        np.testing.assert_allclose(weights, (chances.min() / chances) ** correction, rtol=1e-5)
    assert min(weights.min() for _, weights, _ in watch.seen) < 0.9  # not all of them one
    for priorities, kept in watch.kept:
        np.testing.assert_allclose(kept, np.sqrt(priorities + 1e-6), rtol=1e-4)


@each_algorithm
def test_the_run_tells_the_memory_of_the_priorities(algo: str, tmp_path: Path) -> None:
    def replay_bytes(**options: Any) -> int:
        run_dir = train_dqn(config_of(algo, tmp_path, options, total_timesteps=30)).run_dir
        found: int = json.loads((run_dir / "metadata.json").read_text())["replay_bytes"]
        return found

    # 151 rows of 4 numbers, an action of 8 bytes, reward, discount and a flag; and a tree with
    # twice as many nodes of 8 bytes as the 256 leaves that hold 151.
    assert replay_bytes() == 151 * (4 * 4 + 8 + 2 * 4 + 1) == 4983
    assert replay_bytes(prioritized=True) == 4983 + 2 * 256 * 8


@pytest.mark.parametrize("num_envs", [1, 3])
def test_the_memory_predicted_for_priorities_holds_them(num_envs: int, tmp_path: Path) -> None:
    class Compare(Callback):
        def on_start(self, run: TrainingRun) -> None:
            spec = run.agent.adapter.spec
            self.predicted = run.buffer.predicted_bytes(spec, 150, num_envs)
            self.uniform = ReplayBuffer.predicted_bytes(spec, 150, num_envs)
            self.taken = run.buffer.nbytes

    compare = Compare()
    config = config_of(
        "dqn", tmp_path, {"prioritized": True}, num_envs=num_envs, total_timesteps=30
    )
    train_dqn(config, callbacks=[compare])
    assert compare.uniform < compare.taken <= compare.predicted


class KeepValues(Callback):
    """Holds on to the Q-values as a function of observations."""

    def on_end(self, run: TrainingRun, result: Any) -> None:
        self.algorithm = run.algorithm

    def __call__(self, obs: torch.Tensor) -> np.ndarray:
        values: np.ndarray = self.algorithm.q_values(  # type: ignore[attr-defined]
            self.algorithm.networks()["model"](obs).detach()
        ).numpy()
        return values


SIZES: dict[str, dict[str, Any]] = {
    "dqn": {},
    "qr_dqn": {"num_quantiles": 5},
    "c51": {"num_atoms": 21, "v_min": 0.0, "v_max": 10.0},
}


def values_learned(algo: str, env: Any, tmp_path: Path) -> KeepValues:
    keep = KeepValues()
    config = TrainConfig(
        algo=algo,
        env_id=env,
        num_envs=3,
        output_dir=tmp_path,
        total_timesteps=2_500,
        eval_interval=0,
        final_eval_episodes=0,
        algo_kwargs={
            "gamma": 0.8,
            "hidden_sizes": [32],
            "learning_rate": {"initial": 1e-2, "final": 1e-4},
            "learning_starts": 50,
            "replay_ratio": 1.0,
            "batch_size": 32,
            "buffer_size": 600,
            "tau": 0.1,
            **SIZES[algo],
            **OPTIONS,
        },
    )
    train_dqn(config, callbacks=[keep])
    return keep


@each_algorithm
def test_with_all_options_a_time_limit_bootstraps(algo: str, tmp_path: Path) -> None:
    values = values_learned(algo, partial(ChainEnv, 4, "truncation"), tmp_path)
    np.testing.assert_allclose(values(torch.ones(1, 1)), 1 / (1 - 0.8), atol=0.1)


@each_algorithm
def test_with_all_options_a_termination_ends_the_sum(algo: str, tmp_path: Path) -> None:
    values = values_learned(algo, partial(TimedChain, 4), tmp_path)
    # One step before the end 1, then 1 + 0.8, 1 + 0.8 + 0.64, and 2.952 at the start.
    expected = [[sum(0.8**k for k in range(left))] * 2 for left in (4, 3, 2, 1)]
    np.testing.assert_allclose(values(torch.eye(5)[:4]), expected, atol=0.1)


@each_algorithm
def test_priorities_that_are_not_finite_end_the_run_and_nothing_of_them_is_saved(
    algo: str, tmp_path: Path
) -> None:
    class Break(Callback):
        def on_step(self, run: TrainingRun) -> None:
            if run.env_steps == 120:
                next(run.algorithm.networks()["model"].parameters()).data[0] = float("inf")

    config = config_of(algo, tmp_path, {"prioritized": True}, checkpoint_interval=50)
    with pytest.raises(NonFiniteError):
        train_dqn(config, callbacks=[Break()])
    (run_dir,) = tmp_path.iterdir()
    assert find_checkpoint(run_dir).env_steps == 100


REFUSED = [
    ({"priority_exponent": 0}, r"priority_exponent: expected .* found 0"),
    ({"priority_exponent": 2}, r"priority_exponent: expected .* found 2"),
    ({"priority_correction": 1.5}, r"priority_correction: expected .* found 1\.5"),
    (
        {"priority_exponent": 0.5},
        r"prioritized: true beside priority_exponent.* found .*0\.5",
    ),
    ({"priority_correction": 0.7}, r"prioritized: true beside priority_correction.* leave .* out"),
    ({"n_step": 0}, r"n_step: expected .* found 0"),
    ({"double": 1}, r"double: expected .* found 1"),
    ({"dueling": True, "hidden_sizes": []}, r"dueling gives each stream .* give at least one"),
    ({"layer_norm": True, "hidden_sizes": []}, "layer_norm needs a hidden layer to normalise"),
    (
        {"dueling": True, "network": "networks:mine"},
        r"dueling .* have no effect on a custom one",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
@each_algorithm
def test_options_that_cannot_be_are_refused(
    algo: str, options: dict[str, Any], message: str
) -> None:
    values = {"algo": algo, "env_id": "CartPole-v1"}
    resolve_config(values)
    with pytest.raises(ConfigError, match=message):
        resolve_config(values | {"algo_kwargs": options})
