"""Claims of exactness: what earns one, what ends one, and how a resume checks it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from nasty_envs import COUNTER, LEVELS, LateGenerator, ProcessCounter
from rl_training import TrainConfig
from rl_training.cli import app
from rl_training.config.loading import dump_yaml
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.snapshots import probe
from rl_training.envs.snapshots.vector import load_env_state, resume_level, save_env_state
from rl_training.errors import CheckpointError
from rl_training.experiment.registry import train_config
from rl_training.runtime import transcript as transcripts
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.transcript import Start, Trajectory, Transcript, parse_transcript
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.runs import relevant_versions
from training import Crash, StopAt, final_state, tiny_config


def level_of(source: Any, kind: str = "sync", num_envs: int = 1) -> Any:
    def make() -> Any:
        return make_vector_env(source, num_envs=num_envs, vectorization=kind)

    return resume_level(make, seed=1)


def crashed(config: TrainConfig, env_steps: int) -> Path:
    with pytest.raises(KeyboardInterrupt):
        train_config(config, callbacks=[Crash(env_steps)])
    (run_dir,) = Path(config.output_dir).iterdir()
    return run_dir


def metadata(run_dir: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run_dir / "metadata.json").read_text())
    return values


def quiet(algo: str, output_dir: Path, env_id: Any, **changes: Any) -> TrainConfig:
    """A short run that is not evaluated and is saved every 50 steps."""
    settings = {"eval_interval": 0, "final_eval_episodes": 0, "checkpoint_interval": 50}
    return tiny_config(
        algo, output_dir, env_id=env_id, **{**settings, "keep_checkpoints": 9, **changes}
    )


# Claims


@pytest.mark.parametrize("name", LEVELS)
def test_hidden_state_is_saved_or_ends_the_claim(name: str) -> None:
    level = level_of(f"nasty_envs:{name}")
    assert level.level == LEVELS[name], level.reason


@pytest.mark.parametrize(
    ("name", "level", "reason"),
    [
        ("NonlocalCounter", "exact", "replayed to the bit"),
        # New workers begin with the global state as it was.
        ("SharedObject", "boundary", "nasty_envs:WEATHER (env 0)"),
        ("GlobalLate", "statistical", "global random generator in its worker"),
    ],
)
def test_hidden_state_in_workers(name: str, level: str, reason: str) -> None:
    found = level_of(f"nasty_envs:{name}", "async")
    assert found.level == level
    assert reason in found.reason


@pytest.mark.parametrize(
    ("source", "level"),
    [
        ("CartPole-v1", "exact"),
        ("FrozenLake-v1", "exact"),
        pytest.param("Hopper-v5", "exact", marks=pytest.mark.extra("mujoco")),
        pytest.param("LunarLander-v3", "boundary", marks=pytest.mark.extra("box2d")),
        pytest.param("BipedalWalker-v3", "boundary", marks=pytest.mark.extra("box2d")),
        pytest.param(
            "popgym:popgym-RepeatPreviousEasy-v0", "exact", marks=pytest.mark.extra("popgym")
        ),
        pytest.param("ALE/Pong-v5", "boundary", marks=pytest.mark.extra("atari")),
    ],
)
def test_the_probe_says_what_it_played(source: str, level: str) -> None:
    found = level_of(source)
    assert found.level == level, found.reason
    assert "steps with" in found.reason


def test_the_probe_plays_past_the_end_of_an_episode_on_both_sides_of_a_save() -> None:
    # CartPole's random episodes last about 20 steps.
    found = level_of("CartPole-v1", num_envs=2)
    assert found.reason.count("steps with") == 2
    assert "no ends" not in found.reason


def test_a_variable_of_a_function_is_named_if_it_cannot_be_saved() -> None:
    reason = level_of("nasty_envs:HiddenIterator").reason
    assert "HiddenIterator.draw's variable numbers is a builtins.generator" in reason


@pytest.mark.parametrize("name", ["NonlocalCounter", "PartialGenerator", "BoundGenerator"])
def test_what_functions_hold_comes_back(name: str) -> None:
    """Far beyond the probe: at every 40th step, or after 60."""
    saved, fresh = (make_env(f"nasty_envs:{name}") for _ in range(2))
    actions = probe.random_actions(saved, 150, seed=0)
    saved.reset(seed=0)
    fresh.reset(seed=1)
    probe.play(saved, actions[:35])
    load_env_state(fresh, save_env_state(saved))
    assert probe.bitwise_equal(probe.play(saved, actions[35:]), probe.play(fresh, actions[35:]))


def test_functions_that_share_a_variable_share_it_again() -> None:
    saved, fresh = Till(), Till()
    saved.put(3)
    load_env_state(fresh, save_env_state(saved))
    fresh.put(2)
    assert fresh.look() == 5
    assert saved.look() == 3


class Till(make_env("CartPole-v1").unwrapped.__class__):  # type: ignore[misc]
    """Two functions around one number."""

    def __init__(self) -> None:
        super().__init__()
        money = 0

        def put(amount: int) -> None:
            nonlocal money
            money += amount

        self.put, self.look = put, lambda: money


# During a run


@pytest.fixture
def _box2d() -> None:
    """Import Box2D without an ear for its warnings: raised as errors they crash its module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("Box2D")


def test_a_claim_falls_when_global_state_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # Episodes have 12 steps: the tenth begins at step 108.
    run_dir = train_config(quiet("dqn", tmp_path, LateGenerator)).run_dir
    claims = {}
    for path in (run_dir / "checkpoints").glob("step_*"):
        info = find_checkpoint(path).info
        claims[int(path.name[5:])] = (info["resume_level"], info["exact"])
    exact, fallen = ("exact", True), ("statistical", False)
    assert claims == {50: exact, 100: exact, 150: fallen, 200: fallen, 240: fallen}
    assert "nasty_envs:LATE_GENERATOR" in metadata(run_dir)["resume_level_reason"]
    assert [r for r in caplog.records if "now statistical, it was exact" in r.getMessage()]


def test_a_resume_that_replays_otherwise_is_found_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    note = tmp_path / "note"
    note.touch()
    config = quiet("dqn", tmp_path / "runs", ProcessCounter, env_kwargs={"note": str(note)})
    run_dir = crashed(config, 120)
    assert find_checkpoint(run_dir).info["exact"] is True
    note.write_text(f"0 {note.read_text()}")  # now this process is the second
    train_config(config, resume=run_dir)
    (entry,) = metadata(run_dir)["resumed_from"]
    assert (entry["exact"], entry["verification"]["verdict"]) == (False, "differs")
    assert entry["verification"]["detail"].startswith(
        "replayed from step 50, the reward of environment 0 at vector step 1 differs"
    )
    assert metadata(run_dir)["resume_level"] == "statistical"
    assert find_checkpoint(run_dir).info["exact"] is False
    assert [r for r in caplog.records if "now statistical, it was exact" in r.getMessage()]


@pytest.mark.extra("box2d")
@pytest.mark.usefixtures("_box2d")
def test_a_used_walker_answers_otherwise_than_a_new_one() -> None:
    used, new = make_env("BipedalWalker-v3"), make_env("BipedalWalker-v3")
    actions = probe.random_actions(used, 200, seed=0)
    probe.play_episode(used, actions[:180], seed=1)
    first, second = (probe.play_episode(env, actions[:20], seed=2) for env in (used, new))
    assert not probe.bitwise_equal(first, second)


@pytest.mark.extra("box2d")
@pytest.mark.usefixtures("_box2d")
@pytest.mark.parametrize(
    ("algo", "env_id"), [("dqn", "LunarLander-v3"), ("sac", "BipedalWalker-v3")]
)
def test_at_level_boundary_a_run_goes_on_in_new_environments(
    algo: str, env_id: str, tmp_path: Path
) -> None:
    settings = {"total_timesteps": 480, "checkpoint_interval": 200}
    hyper = {"learning_starts": 440}
    configs = [
        quiet(algo, tmp_path / name, env_id, algo_kwargs=hyper, **settings)
        for name in ("straight", "resumed")
    ]
    straight = train_config(configs[0]).run_dir
    run_dir = crashed(configs[1], 390)
    train_config(configs[1], resume=run_dir)
    assert final_state(run_dir) == final_state(straight)
    (entry,) = metadata(run_dir)["resumed_from"]
    assert (entry["exact"], entry["verification"]["verdict"]) == (True, "verified")
    assert "200 transitions from step 0" in entry["verification"]["detail"]


def test_verifying_leaves_nothing_behind_in_what_a_class_shares(tmp_path: Path) -> None:
    configs = [
        quiet("dqn", tmp_path / name, "nasty_envs:ClassSpaces") for name in ("straight", "resumed")
    ]
    straight = train_config(configs[0]).run_dir
    assert metadata(straight)["resume_level"] == "boundary"
    run_dir = crashed(configs[1], 130)
    train_config(configs[1], resume=run_dir)
    assert final_state(run_dir) == final_state(straight)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_change_of_os_environ_ends_the_claim(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COUNTER, "0")  # so that it is taken back
    found = level_of("nasty_envs:EnvironCounter", kind)
    assert found.level == "statistical"
    assert "changes os.environ" in found.reason


def test_another_hash_seed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    assert relevant_versions()["PYTHONHASHSEED"] == "random"
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert relevant_versions()["PYTHONHASHSEED"] == "7"


def test_other_versions_are_named_and_end_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = quiet("dqn", tmp_path, "CartPole-v1")
    version = importlib.metadata.version
    with monkeypatch.context() as patched:
        other = {"torch": "0.1", "gymnasium": "0.2"}
        patched.setattr(importlib.metadata, "version", lambda n: other.get(n) or version(n))
        with pytest.raises(TrainingInterrupted) as caught:
            train_config(config, callbacks=[StopAt(60)])
    run_dir = caught.value.result.run_dir
    assert find_checkpoint(run_dir).info["exact"] is True
    train_config(config, resume=run_dir)
    (entry,) = metadata(run_dir)["resumed_from"]
    assert entry["exact"] is False
    assert {key: change["from"] for key, change in entry["changed"].items()} == other
    (said,) = (r for r in caplog.records if "not an exact continuation" in r.getMessage())
    assert said.levelno == logging.WARNING
    assert f"torch 0.1 (now {version('torch')})" in said.getMessage()
    assert find_checkpoint(run_dir).info["exact"] is False


# The transcript


def start(num_envs: int = 2, **changes: Any) -> Start:
    zeros = np.zeros((num_envs, 3), np.float32)
    made = Start(0, 0, list(range(num_envs)), None, zeros, np.zeros(num_envs, np.bool_), {})
    return made._replace(**changes)


def kept(rewards: Any, num_envs: int = 2, obs_shape: tuple[int, ...] = (3,)) -> Transcript:
    """A transcript of steps whose observations count up from 0."""
    made = Transcript()
    made.begin(start(num_envs))
    nobody = np.zeros(num_envs, np.bool_)
    for step, reward in enumerate(rewards):
        obs = np.full((num_envs, *obs_shape), step, np.float32)
        if made.open:
            row = np.broadcast_to(np.asarray(reward, np.float32), num_envs)
            made.add(obs, np.full(num_envs, step % 2), row, (nobody, nobody))
    return made


def trajectory(made: Transcript, last: float, num_envs: int = 2) -> Trajectory:
    found = made.trajectory(np.full((num_envs, 3), last, np.float32))
    assert found is not None
    return found


def test_the_first_difference_is_named_with_step_environment_and_values() -> None:
    same = trajectory(kept([1, 2, np.nan]), 3)
    assert same.first_difference(trajectory(kept([1, 2, np.nan]), 3)) == ""
    other = trajectory(kept([1, [2, 5], np.nan]), 3)
    expected = "the reward of environment 1 at vector step 2 differs (2.0, replayed 5.0)"
    assert same.first_difference(other) == expected
    later = trajectory(kept([1, 2, np.nan]), 4)
    assert same.first_difference(later) == (
        "the observation of environment 0 at vector step 4 differs"
    )


def test_a_shorter_replay_is_compared_as_far_as_it_goes() -> None:
    whole = trajectory(kept([1, 2, 3, 4]), 4)
    assert whole.first_difference(trajectory(kept([1, 2]), 2)) == ""
    assert "step 2" in whole.first_difference(trajectory(kept([1, 9]), 2))


def test_only_the_first_part_of_a_long_interval_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "MAX_TRANSITIONS", 10)
    made = kept(range(50))
    assert not made.open
    found = trajectory(made, 50)
    assert found.rewards[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert len(found.observations) == 5  # what followed the fifth step was not kept


def test_images_are_thinned_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcripts, "MAX_BYTES", 100_000)
    made = kept(range(50), obs_shape=(3, 64, 64))
    assert made._obs.nbytes <= 100_000
    assert made._obs[0].nbytes <= 2 * transcripts.MAX_OBS_BYTES
    assert made._length == 24  # of 2 x 2,048 bytes and 16 of actions


@pytest.mark.parametrize(
    "damage",
    [
        {"rewards": None},
        {"rewards": np.zeros((3, 1), np.float32)},
        {"rewards": np.zeros((3, 2), np.float64)},
        {"rewards": np.zeros((0, 2), np.float32)},
        {"ends": np.zeros((2, 2), np.uint8)},
        {"actions": np.zeros((3, 1))},
        {"actions": np.full((3, 2), np.nan)},
        {"observations": np.zeros((9, 2), np.int32)},
        {"start": 3},
        {"start": {}},
        {"start": start(seeds=[1])._asdict()},
        {"start": start(seeds=[1, -1])._asdict()},
        {"start": start(build_seed="0")._asdict()},
        {"start": start(resetting=[])._asdict()},
        {"start": start(obs=None)._asdict()},
        {"start": start(generators=[])._asdict()},
        {"more": 1},
    ],
)
def test_a_malformed_transcript_is_a_checkpoint_error(damage: dict[str, Any]) -> None:
    made = kept([1, 2, 3])
    made.finish(np.zeros((2, 3), np.float32))
    assert made.finished is not None
    parse_transcript(made.finished, 2)
    with pytest.raises(CheckpointError, match="transcript"):
        parse_transcript({**made.finished, **damage}, 2)


# The command


def verified(tmp_path: Path, config: TrainConfig, steps: int) -> Any:
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config.to_plain()))
    return CliRunner().invoke(app, ["verify-resume", "--config", str(path), "--steps", str(steps)])


def test_verify_resume_passes_where_resuming_is_exact(tmp_path: Path) -> None:
    config = quiet("dqn", tmp_path, "nasty_envs:PartialGenerator")
    result = verified(tmp_path, config, 160)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].startswith("resume level: exact (")
    assert lines[1:4] == [
        f"continued from step {step}: the same to the bit" for step in (51, 102, 153)
    ]
    assert lines[4].startswith("verdict: a resumed run is the one that was never stopped")


def test_verify_resume_names_the_first_difference(tmp_path: Path) -> None:
    note = tmp_path / "note"
    note.touch()
    config = quiet("dqn", tmp_path, "nasty_envs:ProcessCounter", env_kwargs={"note": str(note)})
    result = verified(tmp_path, config, 160)
    assert result.exit_code == 1, result.output
    assert "resume level: exact" in result.output
    assert "continued from step 51: differs: replayed from step 0, the reward" in result.output
    assert "of environment 0 at vector step 1 differs (" in result.output
    assert "verdict: the claim 'exact' is false" in result.output
