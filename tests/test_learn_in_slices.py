"""`learn(n)` trains n further transitions, as one longer call would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training import DQN, Callback
from rl_training.api.managed import algorithm_class
from rl_training.errors import CheckpointError, UsageError
from rl_training.experiment.registry import train_config
from rl_training.runtime.result import TrainingInterrupted
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from toy_envs import CountingEnv
from training import StopAt, final_state, tiny_config

FAMILIES = ("dqn", "drqn", "sac", "ppo", "recurrent_ppo")
TOTAL = 240  # of `tiny_config`; its evaluations are at 0, 100 and 200, and at the end
SLICE = 100  # ends where an evaluation and a row of the log are due


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of the log without clocks."""
    clocks = ("wall_time_s", "time/steps_per_second")
    return [{k: v for k, v in row.items() if k not in clocks} for row in read_metrics(run_dir)]


def records(run_dir: Path) -> tuple[Any, ...]:
    """What a run leaves behind of its best policy and of its end."""
    best = find_checkpoint(run_dir, best=True)
    summary = json.loads((run_dir / "summary.json").read_text())
    kept = ("global_step", "updates", "eval_returns", "best_eval_return_mean", "status", "metrics")
    return best.env_steps, {name: summary[name] for name in kept}


@pytest.mark.parametrize("algo", FAMILIES)
def test_slices_end_as_one_call_does(algo: str, tmp_path: Path) -> None:
    config = tiny_config(algo, tmp_path)
    straight = train_config(config).run_dir
    agent = algorithm_class(algo)(config)
    first = agent.learn(SLICE)
    assert (first.global_step, agent.env_steps) == (SLICE, SLICE)
    assert len(first.eval_returns) == config.final_eval_episodes
    second = rl_training.load(first.run_dir).learn(57)  # another object, from the disk
    assert second.global_step == SLICE + 57
    last = agent.learn()  # the first object goes on with its run, wherever that stands
    assert {first.run_dir, second.run_dir, last.run_dir} == {agent.run_dir}
    assert final_state(last.run_dir) == final_state(straight)
    assert records(last.run_dir) == records(straight)
    between = [
        {"global_step": result.global_step, "eval/final_return_mean": result.eval_return_mean}
        for result in (first, second)
    ]
    log = rows(last.run_dir)
    pauses = [row for row in log if {k: row.get(k) for k in between[0]} in between]
    assert len(pauses) == 2
    assert [row for row in log if row not in pauses] == rows(straight)


def test_environments_stepped_together_end_where_one_call_ends(tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, num_envs=3, total_timesteps=200)
    straight = train_config(config)
    agent = rl_training.SAC(config)
    assert agent.learn(100).global_step == 102  # the next multiple of 3
    assert agent.learn(100).global_step == straight.global_step == 201  # not 102 + 102
    assert agent.config.total_timesteps == 200
    assert final_state(agent.run_dir) == final_state(straight.run_dir)


def test_an_evaluation_between_slices_leaves_callbacks_that_are_saved_alone(
    tmp_path: Path,
) -> None:
    class Evaluations(Callback):
        state_fields = ("count",)

        def __init__(self) -> None:
            self.count = 0

        def on_evaluation(self, run: Any, evaluation: Any) -> None:
            self.count += 1

    config = tiny_config("dqn", tmp_path)
    straight, sliced = Evaluations(), Evaluations()
    train_config(config, callbacks=[straight])
    agent = DQN(config)
    agent.learn(150, callbacks=[sliced])
    assert sliced.count == 3  # at 0, at 100 and in the pause
    agent.learn(callbacks=[sliced])
    assert sliced.count == straight.count == 4  # at 0, at 100, at 200, at the end


def test_where_episodes_are_cut_slices_of_whole_intervals_are_the_same(tmp_path: Path) -> None:
    def make() -> CountingEnv:
        env = CountingEnv(7)
        env.handle = (number for number in range(3))  # no file can hold a generator's frame
        return env

    config = tiny_config("dqn", tmp_path, env_id=make, checkpoint_interval=80)
    straight = train_config(config)
    metadata = json.loads((straight.run_dir / "metadata.json").read_text())
    assert metadata["resume_level"] == "boundary"
    agent = DQN(config)
    agent.learn(80)
    agent.learn(80)
    assert final_state(agent.learn().run_dir) == final_state(straight.run_dir)


def test_the_first_call_states_the_horizon_of_schedules(tmp_path: Path) -> None:
    keys = {"output_dir": str(tmp_path), "final_eval_episodes": 0, "eval_interval": 0}
    small = {"hidden_sizes": [4], "learning_starts": 10, "batch_size": 4}

    def epsilon(agent: DQN) -> float:
        return float(agent.algorithm.schedules(agent._current_agent().clock)["epsilon"])

    # The schedule of epsilon: from 1 to 0 over the whole plan.
    small["epsilon"] = {"initial": 1.0, "final": 0.0, "fraction": 1.0}
    unplanned = DQN("CartPole-v1", **keys, **small)
    unplanned.learn(50)
    assert (unplanned.config.total_timesteps, epsilon(unplanned)) == (50, 0.0)
    unplanned.learn(50)  # extends it
    assert (unplanned.config.total_timesteps, epsilon(unplanned)) == (100, 0.0)
    resumed = json.loads((unplanned.run_dir / "metadata.json").read_text())["resumed_from"]
    assert resumed[0]["extended"] == {"from": 50, "to": 100}
    assert resumed[0]["exact"] is False

    planned = DQN("CartPole-v1", **keys, **small)
    planned.learn(50, horizon=200)
    assert (planned.config.total_timesteps, epsilon(planned)) == (200, 0.75)
    by_config = DQN("CartPole-v1", total_timesteps=200, **keys, **small)
    by_config.learn(50)
    assert epsilon(by_config) == 0.75
    assert final_state(by_config.run_dir) == final_state(planned.run_dir)
    with pytest.raises(
        UsageError, match=r"horizon: expected .* at least the 250 steps .* found 80"
    ):
        planned.learn(200, horizon=80)


def test_a_finished_agent_says_so(tmp_path: Path) -> None:
    agent = DQN(tiny_config("dqn", tmp_path))
    agent.learn()
    for finished in (agent, rl_training.load(agent.run_dir)):
        with pytest.raises(UsageError, match=r"all of its 240 planned steps: learn\(10_000\)"):
            finished.learn()
    assert len(list(tmp_path.iterdir())) == 1  # nothing was begun


def test_learn_goes_on_after_a_signal(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    straight = final_state(train_config(config).run_dir)
    agent = DQN(config)
    with pytest.raises(TrainingInterrupted):
        agent.learn(callbacks=[StopAt(101)])
    assert agent.env_steps == 101
    assert final_state(agent.learn().run_dir) == straight


@pytest.mark.parametrize("steps", [0, -5, 2.5, "100", True, float("nan")])
def test_a_number_of_steps_that_is_none_is_refused(steps: Any) -> None:
    with pytest.raises(UsageError, match="total_timesteps: expected a whole number from 1 on"):
        DQN("CartPole-v1").learn(steps)


def test_a_policy_alone_is_the_beginning_of_a_new_run(tmp_path: Path) -> None:
    saved = DQN("CartPole-v1", output_dir=str(tmp_path)).save(tmp_path / "policy")
    with pytest.raises(CheckpointError, match=r"without its training state.*init_from"):
        DQN.load(saved).learn(10)


def test_auto_resume_takes_the_whole_budget() -> None:
    with pytest.raises(UsageError, match=r"auto_resume: .*DQN\(env, total_timesteps=\.\.\.\)"):
        DQN("CartPole-v1").learn(100, auto_resume=True)
