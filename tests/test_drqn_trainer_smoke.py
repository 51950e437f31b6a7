"""`train_drqn` writes what it promises and resumes with its memory; `predict` carries it on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import VectorEnv

from rl_training import DRQN
from rl_training.config.train_config import TrainConfig
from rl_training.errors import ConfigError, IncompatibleEnv, NonFiniteError, UsageError
from rl_training.experiment.registry import load_agent, open_checkpoint
from rl_training.runtime.agent import Agent
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.drqn_trainer import train_drqn
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.seeding import derive_seed
from rl_training.runtime.training_run import TrainingRun, evaluation_seed
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from rl_training.storage.tree import tree_hash
from training import StopAt, final_state, tiny_config


def test_train_drqn_writes_checkpoint_and_metrics(tmp_path: Path) -> None:
    result = train_drqn(tiny_config("drqn", tmp_path))
    names = {path.name.split(".")[0] for path in result.run_dir.iterdir()}
    assert names >= {"config", "metadata", "metrics", "checkpoints", "summary", "events"}
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert (summary["algo"], summary["status"]) == ("drqn", "finished")
    assert summary["global_step"] == result.global_step == 240
    assert summary["updates"] == result.updates == (240 - 48) // 2
    assert summary["eval_return_mean"] == np.mean(result.eval_returns)
    rows = read_metrics(result.run_dir / "metrics.jsonl")
    logged = [row for row in rows if "train/loss" in row]
    assert [row["global_step"] for row in logged] == [50, 100, 150, 200]
    wanted = ("loss", "q_value_mean", "target_mean", "td_error_mean", "epsilon", "learning_rate")
    assert all(math.isfinite(row[f"train/{name}"]) for row in logged for name in wanted)
    assert all(row["train/loss"] > 0 for row in logged)
    assert [row["global_step"] for row in rows if "eval/return_mean" in row] == [0, 100, 200, 240]
    checkpoint = find_checkpoint(result.run_dir)
    assert checkpoint.path == result.checkpoint_path
    assert (checkpoint.env_steps, checkpoint.info["resume_level"]) == (240, "exact")
    assert DRQN.load(result.run_dir).evaluate(3).returns == result.eval_returns


def test_what_drqn_does_not_take_is_refused_before_a_run_begins(tmp_path: Path) -> None:
    with pytest.raises(IncompatibleEnv, match="drqn takes Discrete actions; Pendulum-v1 has Box"):
        train_drqn(TrainConfig(algo="drqn", env_id="Pendulum-v1", output_dir=tmp_path))
    with pytest.raises(ConfigError, match="algo: expected drqn, found 'dqn'"):
        train_drqn(TrainConfig(algo="dqn", env_id="CartPole-v1", output_dir=tmp_path))
    with pytest.raises(ConfigError, match=r"algo_kwargs\.prioritized"):
        train_drqn(
            TrainConfig(
                algo="drqn",
                env_id="CartPole-v1",
                output_dir=tmp_path,
                algo_kwargs={"prioritized": True},
            )
        )
    with pytest.raises(ConfigError, match=r"num_envs \* sequence_length = 18, found 17"):
        train_drqn(tiny_config("drqn", tmp_path, num_envs=3, algo_kwargs={"learning_starts": 17}))
    assert list(tmp_path.iterdir()) == []


# Resuming.

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"burn_in": 0, "overlap": 0},
    "burn-in and overlap": {"burn_in": 3, "overlap": 2},
    "gru": {"burn_in": 3, "overlap": 2, "core": "gru", "initial_state": "zero"},
}


class StopInAnEpisode(StopAt):
    """Ends a run seven steps into an episode: one into its second chunk."""

    def on_step(self, run: TrainingRun) -> None:
        if run.collector.state_dict()["lengths"][0] == 7:
            super().on_step(run)


def stopped(config: TrainConfig, env_steps: int) -> Path:
    with pytest.raises(TrainingInterrupted) as interruption:
        train_drqn(config, callbacks=[StopInAnEpisode(env_steps)])
    result = interruption.value.result
    assert env_steps <= result.global_step < 240
    checkpoint = find_checkpoint(result.run_dir)
    assert all(part[0].any() for part in checkpoint.read("loop")["run"]["collector"]["state"])
    assert checkpoint.read("replay")["unsaved"][0] > 0
    return result.run_dir


@pytest.mark.parametrize(
    ("num_envs", "shape"),
    [(1, "burn-in and overlap"), (3, "burn-in and overlap"), (1, "gru"), (3, "gru"), (3, "plain")],
)
def test_stopped_in_an_episode_and_resumed_equals_never_stopped(
    num_envs: int, shape: str, tmp_path: Path
) -> None:
    config = tiny_config("drqn", tmp_path, num_envs=num_envs, algo_kwargs=SHAPES[shape])
    straight = final_state(train_drqn(config).run_dir)
    for cut in (10, 120):  # before the first update, and among them
        run_dir = stopped(config, cut)
        train_drqn(config, resume=run_dir)
        assert final_state(run_dir) == straight, f"cut at {cut}"


@pytest.mark.parametrize("forgotten", ["memory", "chunk"])
def test_without_its_memory_or_half_built_chunks_a_resumed_run_differs(
    forgotten: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the comparison above can fail."""
    shape = {"sequence_length": 4, "burn_in": 0, "overlap": 0}
    config = tiny_config("drqn", tmp_path, eval_interval=0, algo_kwargs=shape)
    straight = final_state(train_drqn(config).run_dir)
    run_dir = stopped(config, 120)
    restore = Collector.load_state_dict

    def forgetful(collector: Collector, state: dict[str, Any]) -> None:
        restore(collector, state)
        collector._state = tuple(np.zeros_like(part) for part in state["state"])

    class DropChunk(Callback):
        def on_start(self, run: TrainingRun) -> None:
            run.buffer._unsaved[:] = 0
            run.buffer._filled[:] = run.buffer.burn_in

    if forgotten == "memory":
        monkeypatch.setattr(Collector, "load_state_dict", forgetful)
    train_drqn(config, resume=run_dir, callbacks=[DropChunk()] if forgotten == "chunk" else ())
    assert final_state(run_dir)["replay"] != straight["replay"]


def test_an_evaluation_touches_nothing_of_the_training(tmp_path: Path) -> None:
    hashes: list[tuple[str, str]] = []

    class EvaluateOften(Callback):
        def on_step(self, run: TrainingRun) -> None:
            if run.env_steps % 80 == 0:
                parts = (run.collector, run.buffer, run.algorithm)
                before = tree_hash([part.state_dict() for part in parts])
                run.evaluate(2)
                hashes.append((before, tree_hash([part.state_dict() for part in parts])))

    config = tiny_config("drqn", tmp_path, eval_interval=0)
    often = train_drqn(config, callbacks=[EvaluateOften()])
    assert len(hashes) == 3
    assert all(before == after for before, after in hashes)
    never = train_drqn(config)
    assert final_state(often.run_dir)["replay"] == final_state(never.run_dir)["replay"]


# Predictions.


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("drqn", tmp_path_factory.mktemp("runs"), wrappers=["MaskVelocity"])
    directory: Path = train_drqn(config).run_dir
    return directory


@pytest.fixture
def agent(run_dir: Path) -> Agent:
    """Its Q-values are shifted so that both actions are taken."""
    agent = load_agent(*open_checkpoint(run_dir))
    model: Any = agent.algorithm.networks()["model"]
    state = model.initial_state(200)
    with torch.no_grad():
        for _ in range(5):
            obs = torch.from_numpy(observations(200))
            _, _, state = acted = model.act(obs, state, torch.zeros(200, dtype=torch.bool))
        list(model.head.parameters())[-1].sub_(acted.q_values.median(0).values)
    return agent


RNG = np.random.default_rng(0)


def observations(*shape: int) -> np.ndarray:
    return RNG.normal(size=(*shape, 4)).astype(np.float32)


def test_predict_carries_the_state_and_begins_anew_without_one(agent: Agent) -> None:
    rows = observations(40)
    state, carried = None, []
    for obs in rows:
        action, state = agent.predict(obs, state)
        assert agent.adapter.action.contains(action)
        assert [part.shape for part in state] == [(1, 8), (1, 8)]
        carried.append(int(action))
    alone = [int(agent.predict(obs)[0]) for obs in rows]
    assert carried[0] == alone[0]
    assert carried != alone  # the memory decides
    assert set(carried) == {0, 1}
    # An episode that starts forgets as a missing state does.
    flagged = [agent.predict(obs, state, episode_start=True) for obs in rows]
    assert [int(action) for action, _ in flagged] == alone


def test_the_rows_of_a_batch_begin_episodes_one_by_one(agent: Agent) -> None:
    # The last bits of a matrix product depend on its size; in double precision they are far away.
    algorithm: Any = agent.algorithm
    act = algorithm.output_and_state
    algorithm.output_and_state = lambda obs, *rest: act(obs.astype(np.float64), *rest)
    steps, envs = 30, 3
    rows, starts = observations(steps, envs), RNG.random((steps, envs)) < 0.2
    starts[0] = True
    together, state = [], None
    for obs, start in zip(rows, starts, strict=True):
        action, state = agent.predict(obs, state, episode_start=start)
        together.append(action)
    for env in range(envs):
        own: Any = None
        for step in range(steps):
            before = None if starts[step, env] else own
            action, own = agent.predict(rows[step, env], before)
            assert action == together[step][env]
        assert state is not None
        for mine, batched in zip(own, state, strict=True):
            assert mine.dtype == batched.dtype == np.float64
            np.testing.assert_allclose(mine[0], batched[env], rtol=0, atol=1e-7)


def test_predict_in_a_loop_plays_the_episodes_of_an_evaluation(run_dir: Path) -> None:
    managed = DRQN.load(run_dir)
    expected = managed.evaluate(4)
    seed = evaluation_seed(managed.config.seed)
    assert expected.seed == seed
    env = gym.make("CartPole-v1")
    for episode, expected_return in enumerate(expected.returns):
        obs, _ = env.reset(seed=derive_seed(seed, "episode", episode))
        total, over, state = 0.0, False, None
        while not over:
            masked = obs * np.array([1, 0, 1, 0], np.float32)
            action, state = managed.predict(masked, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
        assert total == expected_return
    env.close()


@pytest.mark.parametrize(("rows", "found"), [(3, 2), (2, 3), (1, 2)])
def test_a_state_of_another_number_of_rows_is_refused(agent: Agent, rows: int, found: int) -> None:
    _, state = agent.predict(observations(found))
    shapes = rf"expected arrays of the shapes \[\({rows}, .* found \[\({found}, "
    with pytest.raises(UsageError, match=shapes):
        agent.predict(observations(rows), state)
    with pytest.raises(UsageError, match=r"shapes \[\(1, "):
        agent.predict(observations(), state)


def test_what_is_no_state_of_the_agent_is_refused(agent: Agent) -> None:
    _, state = agent.predict(observations(2))
    half = tuple(part[:, :3] for part in state)
    tensors = tuple(map(torch.from_numpy, state))
    for wrong in ((), state[:1], (*state, state[0]), half, tensors, 5, (1, 2), list(state)):
        with pytest.raises(UsageError, match="pass the state that the last predict gave"):
            agent.predict(observations(2), wrong)  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError, match="state: expected finite numbers"):
        agent.predict(observations(2), tuple(np.nan * part for part in state))


def test_a_vector_environment_that_resets_in_a_step_of_its_own_trains_alike(
    tmp_path: Path,
) -> None:
    """Rows in which an environment only resets are no transitions and leave no trace."""
    venv: VectorEnv[Any, Any, Any] = gym.make_vec("CartPole-v1", num_envs=3)
    result = train_drqn(tiny_config("drqn", tmp_path, env_id=venv))
    venv.close()
    assert 240 <= result.global_step < 243
    assert result.updates == (result.global_step - 48) // 2
    chunks = find_checkpoint(result.run_dir).read("replay")["chunks"].whole()["arrays"]
    mask, first = chunks["mask"], chunks["first"][:, :-1]
    # An episode starts at the first row after padding, or in a chunk that goes on there is none.
    for rows, starts in zip(mask, first, strict=True):
        assert starts.sum() <= 1
        assert rows[3]  # after three rows of context there is something to learn
