"""What a run keeps straight in the odd moments: best checkpoints, levels, callbacks, metrics."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training import DQN, PPO, Callback, StopOnReturn, train_dqn
from rl_training.errors import MissingExtra, NonFiniteError, SaveError
from rl_training.experiment.registry import train_config
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.result import TrainingInterrupted, TrainResult
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint, prune, write_checkpoint
from rl_training.storage.metrics_log import MetricsLog, read_metrics
from toy_envs import ChainEnv, CountingEnv
from training import ONE_OF_EACH_FAMILY, StopAt, final_state, tiny_config


class Scripted(Callback):
    """Replaces the returns of evaluations by given ones."""

    def __init__(self, *means: float) -> None:
        self.means = list(means)

    def on_start(self, run: TrainingRun) -> None:
        assert run.evaluator is not None
        run.evaluator.evaluate = self.evaluate  # type: ignore[method-assign]

    def evaluate(self, *args: Any, **kwargs: Any) -> Evaluation:
        return Evaluation((self.means.pop(0),), (1,), 0)


def test_extending_a_run_never_replaces_a_better_best(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    run_dir = train_dqn(config, callbacks=[Scripted(0.0, 1.0, 2.0, 500.0)]).run_dir
    longer = config.with_changes(total_timesteps=340)
    result = train_dqn(longer, callbacks=[Scripted(10.0, 20.0)], resume=run_dir)
    assert result.best_eval_return_mean == 500.0
    best = find_checkpoint(run_dir, best=True)
    assert (best.env_steps, best.info["eval_return_mean"]) == (240, 500.0)


def test_the_best_before_the_newest_step_checkpoint_stays_until_the_next(tmp_path: Path) -> None:
    def write(kind: Any, env_steps: int) -> None:
        write_checkpoint(tmp_path, kind=kind, env_steps=env_steps, parts={"agent": {}}, info={})
        prune(tmp_path, keep=1)

    def names() -> list[str]:
        return sorted(f"{path.name[:4]} {int(path.name[5:])}" for path in tmp_path.iterdir())

    write("best", 10)
    write("step", 20)
    write("best", 30)  # dying now, the run would go on from 20 and must still have a best
    assert names() == ["best 10", "best 30", "step 20"]
    write("step", 40)
    assert names() == ["best 30", "step 40"]


def test_a_run_in_an_environment_that_never_ends_comes_to_its_end_with_two_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endless = partial(ChainEnv, limit=10**9)  # reward 1 at each step
    config = tiny_config(
        "dqn", tmp_path, env_id=endless, eval_interval=60, log_interval=20, max_eval_steps=30
    )
    result = train_dqn(config)
    assert (result.status, result.global_step, result.eval_returns) == (
        "finished",
        240,
        (30.0,) * 3,
    )
    told = [record.getMessage() for record in caplog.records if "TimeLimit" in record.getMessage()]
    training, evaluation = sorted(told, key=lambda text: "evaluation episode" in text)
    assert "a training episode has not ended after 40 steps" in training
    assert "an evaluation episode reached max_eval_steps = 30" in evaluation


class Lost(CountingEnv):
    """An environment whose state can be saved until, in a run, it opens a file."""

    opens_at = 10**9

    def step(self, action: int) -> Any:
        self.count = getattr(self, "count", 0) + 1
        if self.count == self.opens_at:
            self.file = open(__file__)  # noqa: SIM115 - the point of this environment
        return super().step(action)

    def close(self) -> None:
        if hasattr(self, "file"):
            self.file.close()


def test_a_level_that_falls_is_recorded_and_nothing_claims_to_be_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lost, "opens_at", 70)
    config = tiny_config("dqn", tmp_path, env_id=Lost, checkpoint_interval=50, keep_checkpoints=9)
    run_dir = train_dqn(config).run_dir
    claims = {}
    for path in (run_dir / "checkpoints").glob("step_*"):
        info = find_checkpoint(path).info
        claims[int(path.name[5:])] = (info["resume_level"], info["exact"])
    assert claims[50] == ("exact", True)
    assert {claims[step] for step in (100, 150, 200, 240)} == {("statistical", False)}
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["resume_level"] == "statistical"
    assert "file" in metadata["resume_level_reason"]


class Moving(CountingEnv):
    """Changes the working directory in its 30th step."""

    def step(self, action: int) -> Any:
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 30:
            os.chdir("/")
        return super().step(action)


def test_an_environment_that_changes_the_working_directory_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tiny_config("dqn", Path("runs"), env_id=Moving, checkpoint_interval=50)
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[StopAt(60)])
    run_dir = caught.value.result.run_dir
    assert run_dir.parent == tmp_path / "runs"
    monkeypatch.chdir(tmp_path)
    result = train_dqn(config, resume=run_dir.relative_to(tmp_path))
    assert (result.status, result.run_dir) == ("finished", run_dir)
    assert find_checkpoint(run_dir).env_steps == 240


class Raising(Callback):
    def __init__(self, where: str) -> None:
        self.where = where

    def on_step(self, run: TrainingRun) -> None:
        if self.where == "step" and run.env_steps == 90:
            raise ConnectionError("the dashboard is down")

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        if self.where == "checkpoint":
            raise ConnectionError("the dashboard is down")


@pytest.mark.parametrize(("where", "saved"), [("step", 90), ("checkpoint", 240)])
def test_a_callback_that_raises_does_not_cost_what_was_learned(
    where: str, saved: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny_config("dqn", tmp_path, checkpoint_interval=0)
    with pytest.raises(ConnectionError, match="the dashboard is down"):
        train_dqn(config, callbacks=[Raising(where)])
    (run_dir,) = tmp_path.iterdir()
    assert find_checkpoint(run_dir).env_steps == saved
    assert f"step {saved} of the run is saved in" in caplog.text
    assert train_dqn(config, resume=run_dir).status == "finished"


def test_an_error_in_the_middle_of_learning_saves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Break(Callback):
        def on_step(self, run: TrainingRun) -> None:
            if run.env_steps == 90:
                monkeypatch.setattr(run.buffer, "sample", lambda *_: {}[0])

    with pytest.raises(KeyError):
        train_dqn(tiny_config("dqn", tmp_path, checkpoint_interval=50), callbacks=[Break()])
    (run_dir,) = tmp_path.iterdir()
    assert find_checkpoint(run_dir).env_steps == 50


class Dwindling(CountingEnv):
    """Can no longer be built once it is `gone`."""

    gone = False

    def __init__(self) -> None:
        super().__init__()
        if self.gone:
            raise ImportError("a library is gone")


def test_an_evaluation_environment_that_cannot_be_built_late_saves_the_learner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Remove(Callback):
        def on_step(self, run: TrainingRun) -> None:
            monkeypatch.setattr(Dwindling, "gone", True)

    config = tiny_config("dqn", tmp_path, env_id=Dwindling, eval_interval=60, checkpoint_interval=0)
    with pytest.raises(MissingExtra, match="step 240 of the run is saved in"):  # needs a third
        train_dqn(config, callbacks=[Remove()])
    (run_dir,) = tmp_path.iterdir()
    assert find_checkpoint(run_dir).env_steps == 240


class Shy:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("do not look")


class WithShy(CountingEnv):
    """Gets an attribute that cannot be looked at, in step 70 of a run."""

    at = 10**9

    def step(self, action: int) -> Any:
        self.count = getattr(self, "count", 0) + 1
        if self.count == self.at:
            self.shy = Shy()
        return super().step(action)


def test_a_state_that_cannot_be_looked_at_lowers_the_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WithShy, "at", 70)
    config = tiny_config("dqn", tmp_path, env_id=WithShy, checkpoint_interval=50)
    run_dir = train_dqn(config).run_dir
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["resume_level"] == "statistical"
    assert "RuntimeError: do not look" in metadata["resume_level_reason"]


def broken_disk(*_: Any) -> Any:
    raise SaveError("Input/output error")


def test_a_log_that_cannot_be_written_costs_checkpoints_but_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each checkpoint holds where the log stands, which is written out for it."""
    monkeypatch.setattr(MetricsLog, "state_dict", broken_disk)
    config = tiny_config("dqn", tmp_path, on_save_error="warn", checkpoint_interval=50)
    with pytest.raises(SaveError, match="Input/output error"):
        train_dqn(config)
    told = [text for text in caplog.messages if "the checkpoint was not saved" in text]
    assert [text.split(":")[0] for text in told] == [f"step {n}" for n in (50, 100, 150, 200)]
    (run_dir,) = tmp_path.iterdir()
    summary = json.loads((run_dir / "summary.json").read_text())
    assert (summary["status"], summary["global_step"]) == ("failed", 240)
    assert len(summary["eval_returns"]) == config.final_eval_episodes


def test_a_level_that_falls_and_cannot_be_recorded_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Lost, "opens_at", 70)
    monkeypatch.setattr("rl_training.runtime.training_run.write_json", broken_disk)
    config = tiny_config("dqn", tmp_path, env_id=Lost, on_save_error="warn", checkpoint_interval=50)
    assert train_dqn(config).status == "finished"
    assert "the resume level was not saved: Input/output error" in caplog.text


def test_a_resume_at_a_lower_level_is_not_exact(tmp_path: Path) -> None:
    config = tiny_config(
        "dqn", tmp_path, env_id=lambda: CountingEnv(), eval_interval=0, final_eval_episodes=0
    )
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[StopAt(100)])
    run_dir = caught.value.result.run_dir
    assert find_checkpoint(run_dir).info["exact"] is True
    DQN.load(run_dir, env=CountingEnv()).resume()
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["resumed_from"][0]["exact"] is False
    assert metadata["resume_level"] == "statistical"
    assert "already built" in metadata["resume_level_reason"]
    assert find_checkpoint(run_dir).info["exact"] is False


class TakesSignals(CountingEnv):
    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def test_an_environment_that_handles_sigterm_does_not_keep_it_from_saving(tmp_path: Path) -> None:
    class Terminate(Callback):
        def on_step(self, run: TrainingRun) -> None:
            if run.env_steps == 90:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    config = tiny_config("dqn", tmp_path, env_id=TakesSignals, eval_interval=0)
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[Terminate()])
    assert find_checkpoint(caught.value.result.run_dir).env_steps == 90
    assert signal.getsignal(signal.SIGTERM) == before


class DrawsWhenBuilt(CountingEnv):
    """Its rewards depend on a global generator that it draws from in its constructor."""

    def __init__(self) -> None:
        super().__init__(rewards=(float(np.random.random()),))


def test_the_seed_fixes_what_an_environment_draws_when_it_is_built(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, env_id=DrawsWhenBuilt, eval_interval=0)
    first, second = (train_dqn(config).metrics["train/loss"] for _ in range(2))
    assert first == second
    other = train_dqn(config.with_changes(seed=4)).metrics["train/loss"]
    assert other != first


class BadLater(CountingEnv):
    """Fine in training; NaN from its second episode under one seed on, as evaluations have."""

    def __init__(self, where: str) -> None:
        super().__init__(5)
        self.where = where
        self.seeded_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seeded_resets += seed is not None
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> Any:
        obs, reward, *rest = super().step(action)
        if self.seeded_resets > 1:
            return (obs * np.nan, reward, *rest) if self.where == "obs" else (obs, np.nan, *rest)
        return obs, reward, *rest


@pytest.mark.parametrize(("where", "what"), [("obs", "observation"), ("reward", "reward")])
def test_nan_in_an_evaluation_is_an_error(where: str, what: str, tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, env_id=partial(BadLater, where), final_eval_episodes=20)
    with pytest.raises(NonFiniteError, match=f"non-finite {what} during an evaluation"):
        train_dqn(config)


class Evaluate(Callback):
    """A user's callback with the name of a built-in one, and a state."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.restored: int | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number} if self.number else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = state["number"]


def test_each_callback_gets_its_own_state_back(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[Evaluate(0), Evaluate(7), StopAt(60)])
    first, second = Evaluate(0), Evaluate(0)
    train_dqn(config, callbacks=[first, second], resume=caught.value.result.run_dir)
    assert (first.restored, second.restored) == (None, 7)


class CountSteps(Callback):
    state_fields = ("_steps",)

    def __init__(self) -> None:
        self._steps = 0

    def on_step(self, run: TrainingRun) -> None:
        self._steps += 1


def test_a_callback_s_declared_fields_come_back(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[CountSteps(), StopAt(60)])
    counter = CountSteps()
    train_dqn(config, callbacks=[counter], resume=caught.value.result.run_dir)
    assert counter._steps == config.total_timesteps


def test_metrics_that_come_with_some_updates_only_are_averaged_over_those(tmp_path: Path) -> None:
    class Sometimes(Callback):
        def on_start(self, run: TrainingRun) -> None:
            run.recent_metrics.add({"always": torch.tensor(1.0), "rare": torch.tensor(5.0)})
            run.recent_metrics.add({"always": torch.tensor(2.0)})
            self.values = run.check_finite()

    watch = Sometimes()
    train_dqn(tiny_config("dqn", tmp_path, total_timesteps=30), callbacks=[watch])
    assert watch.values == {"train/always": 1.5, "train/rare": 5.0}


def test_an_evaluation_broken_off_by_a_signal_is_made_up_for(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    straight = train_dqn(config).run_dir
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[StopAt(100)])  # stops before the evaluation of step 100
    run_dir = caught.value.result.run_dir
    train_dqn(config, resume=run_dir)

    assert evaluations(run_dir) == evaluations(straight)
    assert [*evaluations(run_dir)] == [0, 100, 200, 240]


def test_a_budget_that_is_used_up_needs_no_other_reason_to_stop(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, eval_interval=0)
    assert train_dqn(config, callbacks=[StopOnReturn(0.0)]).stop_reason is None
    early = train_dqn(tiny_config("dqn", tmp_path), callbacks=[StopOnReturn(0.0)])
    assert early.stop_reason is not None
    assert early.global_step == 0


def test_an_episodes_course_does_not_depend_on_how_many_are_played(tmp_path: Path) -> None:
    agent = PPO(
        "Pendulum-v1",
        output_dir=str(tmp_path),
        normalize_observations=True,
        algo_kwargs={"hidden_sizes": [64]},
    )
    several = agent.evaluate(12, seed=3).returns
    assert agent.evaluate(3, seed=3).returns == several[:3]
    assert agent.evaluate(1, seed=3).returns == several[:1]


class Enormous(CountingEnv):
    """Rewards that are finite and make a policy infinite."""

    def __init__(self) -> None:
        super().__init__(rewards=(3e38,))


def test_a_policy_that_diverges_is_found_after_its_update(tmp_path: Path) -> None:
    kwargs = {"num_steps": 8, "batch_size": 4, "hidden_sizes": [8], "learning_rate": 1.0}
    agent = PPO(Enormous, output_dir=str(tmp_path), total_timesteps=200, algo_kwargs=kwargs)
    with pytest.raises(NonFiniteError, match=r"is not finite at step 8 "):
        agent.learn()


def test_a_wrapper_that_normalises_by_itself_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train_dqn(tiny_config("dqn", tmp_path, total_timesteps=30, wrappers=("NormalizeObservation",)))
    assert "use the keys normalize_observations" in caplog.text
    caplog.clear()
    train_dqn(tiny_config("dqn", tmp_path, total_timesteps=30))
    assert caplog.text == ""


@pytest.mark.parametrize("algo", ["dqn", "drqn"])
def test_rewards_are_scaled_where_they_are_learned_from_and_nowhere_else(
    algo: str, tmp_path: Path
) -> None:
    """CartPole gives 1 a step."""
    found: list[torch.Tensor] = []

    class Look(Callback):
        def on_end(self, run: TrainingRun, result: TrainResult) -> None:
            batch = run.buffer.sample(32, run.progress.clock)
            mask = getattr(batch, "mask", torch.ones(32, dtype=torch.bool))
            found.append(batch.reward[mask])

    config = tiny_config(algo, tmp_path, algo_kwargs={"reward_scale": 0.25})
    result = train_config(config, callbacks=[Look()])
    assert (found[0] == 0.25).all()
    assert min(result.eval_returns) >= 5
    assert all(value == round(value) for value in result.eval_returns)


def evaluations(run_dir: Path, name: str = "eval/return_mean") -> dict[int, float]:
    """What was logged of the evaluations; a step that has two of them is refused."""
    found = [(row["global_step"], row[name]) for row in read_metrics(run_dir) if name in row]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize("algo", ONE_OF_EACH_FAMILY)
def test_evaluating_changes_nothing_of_what_a_run_learns_from(algo: str, tmp_path: Path) -> None:
    config = tiny_config(algo, tmp_path, total_timesteps=110, eval_interval=50)
    unwatched = config.with_changes(eval_interval=0, final_eval_episodes=0)
    states = [final_state(train_config(c).run_dir) for c in (config, unwatched)]
    # The best return, and that nothing is to be made up for, are the run's and the callbacks' own.
    for state in states:
        assert state.keys() >= {"agent", "replay", "envs", "generators"}
        del state["run"], state["callbacks"]
    assert states[0] == states[1]


def test_the_first_point_of_a_curve_is_the_policy_that_a_run_begins_with(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    first = train_dqn(config)
    untrained = DQN(config).evaluate(2).mean
    assert evaluations(first.run_dir)[0] == untrained
    second = train_dqn(config.with_changes(init_from=str(first.run_dir), total_timesteps=60))
    assert evaluations(second.run_dir)[0] == DQN.load(first.run_dir).evaluate(2).mean


def test_points_are_over_the_same_episodes_and_the_result_is_over_all(tmp_path: Path) -> None:
    class All(Callback):
        def __init__(self) -> None:
            self.evaluations: dict[int, Evaluation] = {}

        def on_evaluation(self, run: TrainingRun, evaluation: Evaluation) -> None:
            self.evaluations[run.env_steps] = evaluation

    played = All()
    result = train_dqn(tiny_config("dqn", tmp_path, final_eval_episodes=7), callbacks=[played])
    last = played.evaluations[240]
    assert last.returns == result.eval_returns
    assert [len(one.returns) for one in played.evaluations.values()] == [2, 2, 2, 7]
    points = evaluations(result.run_dir)
    assert points == {step: one.first(2).mean for step, one in played.evaluations.items()}
    assert result.best_eval_return_mean == max(points.values())
    final = evaluations(result.run_dir, "eval/final_return_mean")
    assert final == {240: result.eval_return_mean} == {240: np.mean(result.eval_returns)}
    spread = evaluations(result.run_dir, "eval/final_return_std")
    assert spread == {240: result.eval_return_std}


@pytest.mark.parametrize("method", ["on_evaluation_start", "on_evaluation"])
def test_an_evaluation_before_the_first_step_is_made_once(method: str, tmp_path: Path) -> None:
    """A signal before it drops it, and it is made up for; one after it leaves it."""

    class Signal(Callback):
        def stop(self, run: TrainingRun, *_: Any) -> None:
            run.interrupts.received = signal.SIGTERM

    config = tiny_config("dqn", tmp_path)
    straight = train_dqn(config)
    stops = Signal()
    setattr(stops, method, stops.stop)
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[stops])
    run_dir = caught.value.result.run_dir
    assert caught.value.result.global_step == 0
    train_dqn(config, resume=run_dir)
    assert evaluations(run_dir) == evaluations(straight.run_dir)
    assert final_state(run_dir) == final_state(straight.run_dir)


def test_tensorboard_is_told_of_a_runs_configuration_and_of_its_end(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    def told(run_dir: Path) -> tuple[str, Any, bool]:
        events = EventAccumulator(str(run_dir)).Reload()
        data = HParamsPluginData.FromString(
            events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
        )
        ended = "_hparams_/session_end_info" in events.Tags()["tensors"]
        text = events.Tensors("config")[0].tensor_proto.string_val[0].decode()
        return text, data.session_start_info.hparams, ended

    config = tiny_config("dqn", tmp_path)
    with pytest.raises(TrainingInterrupted) as caught:
        train_dqn(config, callbacks=[StopAt(130)])
    run_dir = caught.value.result.run_dir
    text, keys, ended = told(run_dir)
    assert not ended
    lines = (run_dir / "config.yaml").read_text().splitlines()
    assert text.splitlines() == [f"    {line}" for line in lines]  # as Markdown quotes code
    assert keys["algo_kwargs.replay_ratio"].number_value == 0.5
    assert keys["env_id"].string_value == "CartPole-v1"
    assert "output_dir" not in keys
    train_dqn(config, resume=run_dir)
    assert told(run_dir)[2]
