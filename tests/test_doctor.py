"""`rl-training doctor`: each defect of an environment is found and named, and a good one passes."""

from __future__ import annotations

import json
import platform
import time
from importlib.metadata import version
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from click.testing import Result
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from typer.testing import CliRunner

import toy_envs
from rl_training.cli import app
from rl_training.data.memory import format_duration
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.types import EnvSpec
from rl_training.envs.contract import leaf_problems
from rl_training.envs.snapshots.probe import bitwise_equal, global_generators
from rl_training.errors import ConfigError, EnvError
from rl_training.runtime.spec_table import packaged_specs
from rl_training.tools.doctor import machine, suitability
from rl_training.tools.doctor.contract import Episode, Play, random_play
from rl_training.tools.doctor.environment import (
    EnvCheck,
    check_ends,
    check_environment,
    verdict,
)
from rl_training.tools.doctor.report import Finding
from rl_training.tools.doctor.suitability import AlgorithmFit, algorithm_fits, fit_findings
from training import FAMILY

QUICK = 0.1


MEASURED = suitability.seconds_per_step


@pytest.fixture(autouse=True)
def _learning_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """To measure every algorithm takes seconds; one test has it done."""
    monkeypatch.setattr(suitability, "seconds_per_step", lambda *_: 1e-3)


class GoodEnv(toy_envs.RandomWalkEnv):
    """A walk without a fault, counting how often it was made and closed."""

    made = closed = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1

    def close(self) -> None:
        type(self).closed += 1


class AnswerEnv(toy_envs.RandomWalkEnv):
    """A walk whose every answer to step has one part replaced: 1 is the reward, 4 the info."""

    def __init__(self, part: int = 1, answer: Any = None) -> None:
        super().__init__()
        self.part, self.answer = part, answer

    def step(self, action: int) -> Any:
        result = list(super().step(action))
        result[self.part] = self.answer
        return tuple(result)


class ShortAnswerEnv(toy_envs.RandomWalkEnv):
    def step(self, action: int) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class OldResetEnv(toy_envs.RandomWalkEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)[0]


class NoSeedEnv(toy_envs.RandomWalkEnv):
    def reset(self) -> Any:  # type: ignore[override]
        return super().reset()


class InfoListEnv(toy_envs.RandomWalkEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)[0], []


class ObservingEnv(toy_envs.RandomWalkEnv):
    """Observes whatever it is told to, in a box from 0 to 1 of two numbers or a given space."""

    def __init__(self, obs: Any = None, space: Any = None) -> None:
        super().__init__()
        self.observation_space = space or Box(0.0, 1.0, (2,), np.float32)
        self.obs = obs

    def observe(self) -> Any:
        return self.obs


class EndlessEnv(toy_envs.RandomWalkEnv):
    def step(self, action: int) -> Any:
        obs, reward, *_, info = super().step(action)
        return obs, reward, False, False, info


class OwnGeneratorEnv(toy_envs.RandomWalkEnv):
    """Seeds a generator of its own and leaves Gymnasium's alone."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.own = np.random.default_rng(seed)
        self.position, self.t = float(self.own.uniform(-1, 1)), 0
        return self.observe(), {}

    def noise(self) -> float:
        return float(self.own.normal())


class SeedDefaultEnv(toy_envs.RandomWalkEnv):
    def reset(self, *, seed: int | None = 3, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)


class OnceEnv(toy_envs.RandomWalkEnv):
    """Can be made once only, as if it held a port."""

    taken = False

    def __init__(self) -> None:
        if OnceEnv.taken:
            raise OSError("the port is taken")
        OnceEnv.taken = True
        super().__init__()


class BadConstructorEnv(toy_envs.RandomWalkEnv):
    def __init__(self) -> None:
        raise RuntimeError("no robot here")


def checked(make: Any, **kwargs: Any) -> EnvCheck:
    return check_environment(make, env_kwargs=kwargs, seconds=QUICK)


def lines(check: EnvCheck, mark: str, topic: str) -> list[str]:
    return [found.text for found in check.findings if (found.mark, found.topic) == (mark, topic)]


def problems(check: EnvCheck) -> set[tuple[str, str]]:
    """Errors and warnings by topic, the verdict aside."""
    return {
        (found.mark, found.topic)
        for found in check.findings[:-1]
        if found.mark in ("warning", "error")
    }


# Good environments.


@pytest.mark.parametrize(
    ("env_id", "takes"),
    [("CartPole-v1", ["c51", "dqn", "ppo", "qr_dqn"]), ("Pendulum-v1", ["ppo"])],
)
def test_a_good_environment_has_no_error_or_warning(env_id: str, takes: list[str]) -> None:
    check = check_environment(env_id, seconds=0.3)
    assert problems(check) == set()
    assert check.passed
    assert check.findings[-1] == Finding("ok", "verdict", "ready for training")
    assert check.resume is not None
    assert check.resume.level == "exact"
    assert set(takes) <= {fit.name for fit in check.fits if not fit.refusal}
    assert lines(check, "ok", "determinism")
    assert lines(check, "ok", "seeds")


def test_global_generators_are_left_alone_and_every_environment_is_closed() -> None:
    GoodEnv.made = GoodEnv.closed = 0
    before = global_generators()
    checked(GoodEnv)
    checked(toy_envs.GlobalRandomEnv)
    assert bitwise_equal(before, global_generators())
    assert GoodEnv.made == GoodEnv.closed >= 5  # the play, two to compare, two for the resume level


def test_environments_are_closed_after_an_error_too() -> None:
    class FallingEnv(GoodEnv):
        made = closed = 0

        def step(self, action: int) -> Any:
            raise RuntimeError("fell over")

    checked(FallingEnv)
    assert (FallingEnv.made, FallingEnv.closed) == (1, 1)


# Defects of the interface.


@pytest.mark.parametrize(
    ("make", "kwargs", "mark", "words"),
    [
        (toy_envs.RaisingEnv, {}, "error", "step raised RuntimeError: the robot fell over"),
        (toy_envs.RaisingEnv, {"at": 0}, "error", "reset raised RuntimeError"),
        (ShortAnswerEnv, {}, "error", "from step, found a tuple of 4"),
        (OldResetEnv, {}, "error", "from reset, found ndarray of shape (2,)"),
        (NoSeedEnv, {}, "error", "it must take the arguments seed=None and options=None"),
        (InfoListEnv, {}, "error", "info of reset: expected a dict, found a list of 0"),
        (AnswerEnv, {"part": 1, "answer": None}, "error", "reward: expected a number"),
        (AnswerEnv, {"part": 1, "answer": np.ones(1)}, "error", "ndarray of shape (1,)"),
        (AnswerEnv, {"part": 2, "answer": "no"}, "error", "terminated: expected a bool"),
        (AnswerEnv, {"part": 3, "answer": 1}, "warning", "truncated: expected a bool, found int 1"),
        (AnswerEnv, {"part": 4, "answer": None}, "error", "info of step: expected a dict"),
        (OwnGeneratorEnv, {}, "warning", "super().reset(seed=seed)"),
        (SeedDefaultEnv, {}, "warning", "the default seed of reset must be None"),
    ],
)
def test_a_broken_interface_is_named(make: Any, kwargs: Any, mark: str, words: str) -> None:
    check = checked(make, **kwargs)
    assert any(words in line for line in lines(check, mark, "api")), check.findings
    assert check.passed is (mark != "error")
    assert not lines(check, "ok", "api") or make in (OwnGeneratorEnv, SeedDefaultEnv)


def test_the_step_of_the_first_problem_is_told() -> None:
    check = checked(toy_envs.RaisingEnv, at=3)
    assert check.findings[0].text.endswith("(first seen at step 3)")
    assert [found.topic for found in check.findings] == ["api", "verdict"]


def test_an_environment_without_spaces_is_an_error_of_its_interface() -> None:
    class SpacelessEnv(gym.Env[Any, Any]):
        pass

    check = checked(SpacelessEnv)
    assert "expected a gymnasium.Space as observation_space" in check.findings[0].text
    assert not check.passed


# Observations.


UNIT = Box(0.0, 1.0, (2,), np.float32)
PAIR = Dict({"a": Box(0.0, 1.0, (1,), np.float32), "b": Discrete(3)})


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (UNIT, np.array([0, 1], np.float32), []),
        (UNIT, np.zeros(3, np.float32), [("error", "spaces", "expected shape (2,), found (3,)")]),
        (UNIT, [0.0, 0.0], [("error", "dtypes", "expected a NumPy array, found a list of 2")]),
        (UNIT, np.zeros(2), [("warning", "dtypes", "expected float32, found float64")]),
        (
            Box(0, 9, (2,), np.int64),
            np.zeros(2),
            [("error", "dtypes", "expected int64, found float64; it cannot be converted")],
        ),
        (
            UNIT,
            np.array([0.5, 1.5], np.float32),
            [("warning", "ranges", "[1] is 1.5, above the upper bound 1.0")],
        ),
        (
            UNIT,
            np.array([-2, 0.5], np.float32),
            [("warning", "ranges", "[0] is -2.0, below the lower bound 0.0")],
        ),
        (UNIT, np.array([0, np.nan], np.float32), [("error", "finite", "NaN or infinity")]),
        (
            UNIT,
            np.array([0, np.inf], np.float32),
            [("error", "finite", "NaN or infinity"), ("warning", "ranges", "[1] is inf")],
        ),
        (Discrete(3), 2, []),
        (Discrete(3), 3, [("error", "spaces", "int 3, which is not in Discrete(3)")]),
        (PAIR, {"a": 0}, [("error", "spaces", "a dict of 1, which is not in Dict")]),
    ],
)
def test_what_is_wrong_with_a_value(space: Any, value: Any, expected: list[Any]) -> None:
    found = list(leaf_problems(space, value))
    assert [(problem.mark, problem.topic) for problem in found] == [case[:2] for case in expected]
    for problem, (_, _, words) in zip(found, expected, strict=True):
        assert words in problem.text


def test_parts_of_an_observation_are_named() -> None:
    obs = {"a": np.full(1, 2.0, np.float32), "b": 1}
    play = random_play(ObservingEnv(obs, PAIR), seconds=QUICK, most_steps=20)
    (problem,) = play.problems.values()
    assert problem.text.startswith("observation['a'][0] is 2.0, above the upper bound 1.0")
    pair = Tuple([Discrete(2), Discrete(2)])
    play = random_play(ObservingEnv((0, 5), pair), seconds=QUICK, most_steps=20)
    assert [problem.text[:14] for problem in play.problems.values()] == ["observation[1]"]


@pytest.mark.parametrize("where", ["reward", "obs"])
def test_nan_is_an_error_and_no_sign_of_chance(where: str) -> None:
    check = checked(toy_envs.NaNEnv, where=where, at=3)
    (line,) = lines(check, "error", "finite")
    assert line.endswith("(first seen at step 3)")
    assert lines(check, "ok", "determinism")
    assert not check.passed


@pytest.mark.parametrize(("reach", "advised"), [(100.0, False), (101.0, True)])
def test_large_observations_get_the_advice_to_normalise(reach: float, advised: bool) -> None:
    space = Box(-1e4, 1e4, (2,), np.float32)
    check = checked(ObservingEnv, obs=np.array([0, -reach], np.float32), space=space)
    advice = lines(check, "note", "scale")
    assert check.play.largest_observation == reach
    assert bool(advice) is advised
    assert all("normalize_observations: true" in line for line in advice)


def test_a_reused_array_is_found() -> None:
    check = checked(toy_envs.BufferReusingEnv)
    (line,) = lines(check, "warning", "aliasing")
    assert "reuses its array" in line
    assert not lines(checked(toy_envs.CountingEnv), "warning", "aliasing")


# Seeds.


@pytest.mark.parametrize(
    ("make", "topic", "words"),
    [
        (toy_envs.GlobalRandomEnv, "determinism", "draws from a global random generator"),
        (toy_envs.LeakyEnv, "determinism", "reset leaves something behind"),
        (toy_envs.ChainEnv, "seeds", "another seed changed nothing"),
    ],
)
def test_what_a_seed_does_not_fix_is_a_warning(make: Any, topic: str, words: str) -> None:
    check = checked(make)
    (line,) = lines(check, "warning", topic)
    assert words in line
    assert check.passed
    assert check.findings[-1].mark == "warning"


def test_a_generator_seeded_by_the_clock_is_found() -> None:
    class ClockEnv(toy_envs.RandomWalkEnv):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.clock = np.random.default_rng()
            return self.observe(), {}

        def noise(self) -> float:
            return float(self.clock.normal())

    (line,) = lines(checked(ClockEnv), "warning", "determinism")
    assert line.startswith("the same seed and actions gave different answers")
    assert "global" not in line


def test_an_environment_that_can_be_built_once_only_is_a_warning() -> None:
    OnceEnv.taken = False
    (line,) = lines(checked(OnceEnv), "warning", "determinism")
    assert "the port is taken" in line


# Ends of episodes.


def ends(*episodes: tuple[int, bool, bool], limit: int | None = None) -> list[tuple[str, str]]:
    play = Play(steps=60, episodes=[Episode(*episode) for episode in episodes])
    return [(found.mark, found.text) for found in check_ends(play, limit)]


def test_episodes_are_counted_by_how_they_ended() -> None:
    ((mark, text),) = ends((9, True, False), (20, False, True), (20, False, True))
    assert (mark, text) == ("ok", "3 episodes of 9 to 20 steps: 1 terminated, 2 truncated")


def test_both_flags_at_once_are_noted() -> None:
    found = ends((9, True, True), (20, False, True))
    assert found[1] == ("note", "1 ended with both flags at once; they count as terminated")


def test_termination_always_at_the_same_step_is_taken_for_a_time_limit() -> None:
    marks = [mark for mark, _ in ends(*[(20, True, False)] * 3)]
    assert marks == ["ok", "warning"]
    assert "should truncate" in ends(*[(20, True, False)] * 3)[1][1]


@pytest.mark.parametrize(
    "episodes",
    [
        [(20, True, False)] * 2,  # too few to tell
        [(20, False, True)] * 3,
        [(20, True, False), (20, True, False), (19, True, False)],
        [(1, True, False)] * 3,  # a bandit
    ],
)
def test_other_ends_are_fine(episodes: list[tuple[int, bool, bool]]) -> None:
    assert [mark for mark, _ in ends(*episodes)] == ["ok"]


def test_no_end_is_a_warning_unless_a_known_limit_lies_further_on() -> None:
    ((mark, text),) = ends()
    assert mark == "warning"
    assert "there is no time limit: each evaluation episode may last max_eval_steps" in text
    assert ends(limit=100) == [("note", "no episode ended in 60 steps; the time limit is 100")]
    ((mark, text),) = ends(limit=60)
    assert mark == "warning"
    assert "no time limit" not in text


def test_ends_are_seen_in_the_play() -> None:
    assert lines(checked(EndlessEnv), "warning", "ends")
    check = checked(toy_envs.ChainEnv, limit=7, ends_by="termination")
    assert any("after exactly 7 steps" in line for line in lines(check, "warning", "ends"))
    truncating = checked(toy_envs.ChainEnv, limit=7)
    assert not lines(truncating, "warning", "ends")
    assert truncating.play.episodes[0] == Episode(7, False, True)


def test_the_play_takes_two_steps_however_short_the_time_and_no_more_than_the_most() -> None:
    assert random_play(toy_envs.CountingEnv(), seconds=0.0).steps == 2
    play = random_play(toy_envs.CountingEnv(length=5), seconds=60.0, most_steps=12)
    assert play.steps == 12
    assert play.episodes == [Episode(5, True, False)] * 2
    assert len(play.reset_seconds) == 3
    assert play.steps_per_second == 12 / play.step_seconds


# Resume level, algorithms, verdict.


@pytest.mark.parametrize(
    ("make", "level", "mark"),
    [
        (toy_envs.RandomWalkEnv, "exact", "ok"),
        (toy_envs.FileEnv, "boundary", "note"),
        (toy_envs.GlobalRandomEnv, "statistical", "warning"),
    ],
)
def test_the_resume_level_is_told_with_its_reason(make: Any, level: str, mark: str) -> None:
    check = checked(make)
    (line,) = lines(check, mark, "resume")
    assert check.resume is not None
    assert line == f"{level}: {check.resume.reason}"


def test_predicted_memory_and_time_are_those_of_the_buffer_and_the_speed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suitability, "seconds_per_step", MEASURED)
    fits = algorithm_fits(Box(-1.0, 1.0, (4,), np.float32), Discrete(2), steps_per_second=20_000.0)
    by_name = {fit.name: fit for fit in fits}
    spec = EnvSpec(env_id="any", obs_shape=(4,), action_kind="discrete", num_actions=2)
    # 4 observations of 4 bytes, an action of 8, reward and discount of 4 each, and a flag.
    assert by_name["dqn"].memory_bytes == 1_000_001 * (16 + 8 + 8 + 1)
    assert by_name["dqn"].memory_bytes == ReplayBuffer.predicted_bytes(spec, 1_000_000, 1)
    for algo in FAMILY:
        assert by_name[algo].memory_bytes == by_name["dqn"].memory_bytes
    # Two observations of 16 bytes, an action of 8, a reward of 4 and four flags.
    assert by_name["ppo"].memory_bytes == 2048 * (2 * 16 + 8 + 4 + 4)
    assert "96.0 KiB of rollout memory" in fit_findings([by_name["ppo"]])[0].text
    assert by_name["dqn"].env_seconds == {50_000: 2.5, 100_000: 5.0}
    text = fit_findings([by_name["dqn"]])[0].text
    assert "31.5 MiB of replay memory" in text
    own = by_name["dqn"].own_seconds
    assert 1e-5 < own < 0.1
    total = 2.5 + 50_000 * own
    assert f"predicted training time {format_duration(total)} for 50,000 steps" in text
    assert f"{2.5 / total:.0%} of it the environment's" in text


def test_algorithms_that_do_not_take_the_spaces_are_listed() -> None:
    fits = algorithm_fits(UNIT, Box(-1.0, 1.0, (1,), np.float32), steps_per_second=0.0)
    by_name = {fit.name: fit for fit in fits}
    assert by_name["dqn"].refusal.startswith("dqn takes Discrete actions")
    assert by_name["ppo"].refusal == ""
    assert by_name["ppo"].env_seconds == {}
    note = fit_findings([by_name["dqn"], by_name["ppo"]])[-1]
    assert note == Finding("note", "algorithms", "not for these spaces: dqn")


def test_spaces_that_no_algorithm_takes_are_an_error() -> None:
    words = Text(4)
    check = checked(ObservingEnv, obs="ab", space=words)
    (line,) = lines(check, "error", "algorithms")
    assert "Text has no fixed number of values" in line
    assert not check.passed


def test_replay_beyond_the_memory_of_the_machine_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fit = AlgorithmFit(name="dqn", memory_bytes=1_000, env_seconds={})
    for available, mark in ((999, "warning"), (1_000, "ok"), (None, "ok")):
        monkeypatch.setattr(suitability, "available_memory", lambda here=available: here)
        assert [found.mark for found in fit_findings([fit])] == [mark]


def test_the_verdict_counts() -> None:
    fine, note = Finding("ok", "a", ""), Finding("note", "a", "")
    warning, error = Finding("warning", "a", ""), Finding("error", "a", "")
    assert verdict([fine, note]).mark == "ok"
    assert verdict([fine, warning, warning]).text == "can be trained in; 2 worth a look first"
    assert verdict([error, warning]).text == "1 to fix before training, 1 warnings"


# The command.


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def check_command(env: str, *arguments: str) -> Result:
    return doctor("--env", env, "--seconds", str(QUICK), *arguments)


def test_the_machine_is_described() -> None:
    result = doctor()
    assert result.exit_code == 0, result.output
    for words in (
        f"rl-training {version('rl-training')}",
        f"python {platform.python_version()}",
        f"torch {version('torch')}",
        f"numpy {version('numpy')}",
        f"gymnasium {version('gymnasium')}",
        f"pydantic {version('pydantic')}",
        f"torch uses {torch.get_num_threads()} of",
        "cpu: ",
    ):
        assert words in result.output
    assert {line.split()[0] for line in result.output.splitlines()} <= {"ok", "note"}


def test_the_machine_as_json() -> None:
    report = json.loads(doctor("--json").output)
    assert report["versions"]["numpy"] == np.__version__
    assert report["torch_threads"] == torch.get_num_threads()
    assert set(report["extras"]) >= {"box2d", "mujoco", "report"}
    assert "cpu" in report["devices"]
    assert report["memory_available"] is None or report["memory_available"] > 0


def test_an_extra_lacks_what_is_not_installed_directly_or_by_another_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requirements = {
        "rl-training": [
            "numpy>=1",
            "gymnasium[box2d]; extra == 'box2d'",
            "matplotlib>=3; extra == 'report'",
        ],
        "gymnasium": [
            "numpy>=1",
            "box2d==2.3.10; python_version < '3' and extra == 'box2d'",
            "box2d-py==2.3.8; python_version >= '3' and extra == 'box2d'",
        ],
    }
    installed = {"gymnasium": "1.2.0", "matplotlib": "2.9"}
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requirements[name])
    monkeypatch.setattr(machine, "_version", installed.get)
    assert list(machine._missing("rl-training", "box2d")) == ["box2d-py"]
    assert list(machine._missing("rl-training", "report")) == ["matplotlib"]  # too old
    installed |= {"box2d-py": "2.3.8", "matplotlib": "3.9"}
    assert list(machine._missing("rl-training", "box2d")) == []
    assert list(machine._missing("rl-training", "report")) == []
    assert machine.versions().keys() == {"rl-training", "python", "numpy"}


def test_missing_things_are_notes_and_a_missing_requirement_is_an_error() -> None:
    report = {
        "versions": {"numpy": None},
        "platform": "Linux",
        "devices": {"cpu": "x86"},
        "cpu_count": 8,
        "cpu_usable": 4,
        "torch_threads": 2,
        "memory_available": 3 * 2**30,
        "extras": {"box2d": ["swig"], "report": []},
        "compiler": None,
    }
    found = {(line.mark, line.topic): line.text for line in machine.machine_findings(report)}
    assert found["error", "version"] == "numpy is not installed"
    assert found["ok", "threads"] == "torch uses 2 of 4 usable CPUs (8 in all)"
    assert found["ok", "memory"] == "3.0 GiB available"
    assert found["note", "extra"] == "box2d: lacks swig; pip install 'rl-training[box2d]'"
    assert found["ok", "extra"] == "report: installed"
    assert "no C++ compiler" in found["note", "compiler"]


def test_the_compiler_is_the_one_the_environment_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name if name in ("mine", "clang++") else None)
    monkeypatch.setenv("CXX", "mine")
    assert machine.compiler() == "mine"
    monkeypatch.delenv("CXX")
    assert machine.compiler() == "clang++"
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert machine.compiler() is None


def test_exit_codes() -> None:
    assert check_command("toy_envs:RandomWalkEnv").exit_code == 0
    assert check_command("toy_envs:CountingEnv").exit_code == 0  # warnings only
    assert check_command("toy_envs:RaisingEnv").exit_code == 1
    for env in ("Nothing-v0", "no_such_module:Env", "toy_envs:make_nothing"):
        result = check_command(env)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert result.stdout == ""
    result = check_command("test_doctor:BadConstructorEnv")
    assert result.exit_code == 2
    assert "no robot here" in result.stderr


def test_lines_start_with_their_mark() -> None:
    output = check_command("toy_envs:BufferReusingEnv").stdout.splitlines()
    marks = {line.split()[0] for line in output}
    assert {"ok", "warning"} <= marks <= {"ok", "note", "warning"}
    assert output[-1].split()[:2] == ["warning", "verdict"]


def test_the_check_as_json() -> None:
    result = check_command("toy_envs:NaNEnv", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert report["passed"] is False
    assert report["resume"]["level"] == "exact"
    marks = {(found["mark"], found["topic"]) for found in report["findings"]}
    assert {("error", "finite"), ("error", "verdict")} <= marks
    share = report["algorithms"][0]["env_seconds"]["50000"]
    assert share == pytest.approx(50_000 / report["steps_per_second"])


def test_settings_reach_the_environment() -> None:
    limited = check_command("toy_envs:ChainEnv", "--set", "env_kwargs.limit=3")
    assert "episodes of 3 to 3 steps" in limited.stdout
    wrapped = check_command(
        "toy_envs:ChainEnv", "--set", "wrappers=[{TimeLimit: {max_episode_steps: 2}}]"
    )
    assert "episodes of 2 to 2 steps" in wrapped.stdout
    wrong = check_command("toy_envs:ChainEnv", "--set", "env_kwargs.limmit=3")
    assert wrong.exit_code == 2
    assert "limmit" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "env_kwargs.x=1"), "go with --env"),
        (("--seconds", "1"), "go with --env"),
        (("--algo", "my_module:SPEC"), "go with --env"),
        (
            ("--env", "CartPole-v1", "--set", "seed=1"),
            "expected a key of env_kwargs or vectorization or wrappers",
        ),
    ],
)
def test_options_without_effect_are_refused(arguments: tuple[str, ...], words: str) -> None:
    result = doctor(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_what_cannot_be_made_raises_from_the_function() -> None:
    with pytest.raises(ConfigError):
        check_environment("Nothing-v0")
    with pytest.raises(EnvError):
        check_environment(BadConstructorEnv)


def test_numbers_too_large_for_float32_are_an_error() -> None:
    space = Box(-1e40, 1e40, (1,), np.float64)
    check = checked(ObservingEnv, obs=np.array([1e39]), space=space)
    (line,) = lines(check, "error", "finite")
    assert "too large for float32" in line


def test_a_slow_environment_is_not_probed_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(toy_envs.CountingEnv):
        def step(self, action: int) -> Any:
            time.sleep(0.03)
            return super().step(action)

    started = time.monotonic()
    check = check_environment(Slow, seconds=1.0)
    assert check.resume is None
    assert any("not probed" in found.text for found in check.findings)
    assert time.monotonic() - started < 15


@pytest.mark.extra("pixels")
def test_stacked_images_are_counted_once_and_not_to_be_normalised() -> None:
    check = check_environment(
        "Pendulum-v1",
        env_kwargs={"render_mode": "rgb_array"},
        wrappers=[{"PixelObservation": {"size": 20, "frame_stack": 3}}],
        seconds=QUICK,
    )
    assert check.passed
    continuous = {"drq", "drqv2", "ppo", "recurrent_ppo", "redq", "sac", "td3", "tqc"}
    assert {fit.name for fit in check.fits if not fit.refusal} == continuous
    replay = {fit.name: fit.memory_bytes for fit in check.fits}
    # A colour image, an action, a reward, a discount and a flag for each of 100,000 transitions,
    # and the rows of the newest stack.
    assert replay["drq"] == 100_003 * (3 * 20 * 20 + 4 + 4 + 4 + 1)
    assert not any(finding.topic == "scale" for finding in check.findings)


@pytest.mark.extra("atari")
def test_a_native_environment_is_checked_as_such() -> None:
    check = check_environment("ALE/Pong-v5", vectorization="native", seconds=QUICK)
    assert check.passed
    discrete = {*FAMILY, "drqn", "ppo", "recurrent_ppo"}
    assert {fit.name for fit in check.fits if not fit.refusal} == discrete


def test_learning_from_images_is_measured_in_a_few_updates() -> None:
    spaces = Box(0, 255, (3, 40, 40), np.uint8), Box(-1.0, 1.0, (1,))
    started = time.perf_counter()
    took = MEASURED(packaged_specs()["drqv2"], *spaces)
    assert 0 < took < time.perf_counter() - started < 60
