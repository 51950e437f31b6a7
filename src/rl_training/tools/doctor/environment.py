"""Whether an environment is fit to train in: its contract, seeds, resume level, speed, algorithms.

The global random generators are left as they were.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env

from rl_training.config.train_config import TrainConfig
from rl_training.envs.factory import NOTHING, Env, Venv, Wrapper, make_env, make_vector_env
from rl_training.envs.snapshots import probe
from rl_training.envs.snapshots.vector import ResumeLevel, resume_level
from rl_training.envs.spaces import observation_codec, observation_kind
from rl_training.envs.stacking import frames_of
from rl_training.errors import EnvError, UsageError
from rl_training.experiment.registry import get_spec, resolve_config
from rl_training.runtime.spec import OBSERVATIONS
from rl_training.runtime.spec_table import packaged_specs
from rl_training.tools.doctor.contract import SEED, Play, contract_findings, random_play
from rl_training.tools.doctor.report import Finding, Mark, has_errors, show_report
from rl_training.tools.doctor.suitability import AlgorithmFit, algorithm_fits, fit_findings

DEFAULT_SECONDS = 3.0
SLOW_STEPS_PER_SECOND = 50.0
_SETTABLE = ("env_kwargs", "vectorization", "wrappers")
_EXPLAINED = {
    "super().reset(seed=seed)": "np_random is not seeded: start reset by super().reset(seed=seed)",
    "default seed argument": "the default seed of reset must be None, or all episodes are the same",
    "`return_info`": "reset has an argument return_info, which Gymnasium has dropped",
    "`seed` function": "the method seed is never called: reset(seed=...) has taken its place",
    "infos returned by": "info dicts of different calls share an object: return new ones",
}
_COVERED = ("not equivalent", "non-deterministic", "observations returned by", "not within")


@dataclass(frozen=True, kw_only=True)
class EnvCheck:
    """The findings about an environment, the verdict last, and the numbers behind them."""

    findings: list[Finding]
    play: Play
    fits: list[AlgorithmFit]
    resume: ResumeLevel | None

    @property
    def passed(self) -> bool:
        """Whether there was no error; warnings pass."""
        return not has_errors(self.findings)


def examine_environment(
    env: str,
    settings: Sequence[str],
    *,
    algorithms: Sequence[str] = (),
    seconds: float,
    as_json: bool,
) -> bool:
    """Check the environment and show the findings; whether it passed."""
    config = _environment_config(env, settings)
    for algo in algorithms:
        get_spec(algo)  # one found by its path is among all algorithms from then on
    try:
        check = check_environment(
            env,
            env_kwargs=config.env_kwargs,
            wrappers=config.wrappers,
            vectorization=config.vectorization,
            seconds=seconds,
        )
    except EnvError as error:
        # Exit code 1 is for an environment that was checked and failed.
        raise UsageError(str(error)) from error
    show_report(_plain(env, check), check.findings, as_json=as_json)
    return check.passed


def check_environment(
    source: str | Callable[..., Env],
    *,
    env_kwargs: Mapping[str, Any] = NOTHING,
    wrappers: Sequence[Wrapper] = (),
    vectorization: str = "sync",
    seconds: float = DEFAULT_SECONDS,
) -> EnvCheck:
    """Every check; about half of `seconds` goes to the play, as far as the environment allows.

    What cannot be built raises the error of `make_env`; all else is a finding.
    """
    options: dict[str, Any] = {"env_kwargs": env_kwargs, "wrappers": wrappers}
    options["vectorization"] = vectorization
    make = partial(make_env, source, **options)
    make_vector = partial(make_vector_env, source, num_envs=1, **options)
    with probe.undisturbed(), ExitStack() as opened:

        def build() -> Env:
            env = make()
            opened.callback(_close, env)
            return env

        env = build()
        play = random_play(env, seconds=seconds / 2)
        findings = [*contract_findings(play), *check_ends(play, _time_limit(env))]
        resume, fits = None, []
        if not play.broken:
            number = min(200, max(2, int(play.steps_per_second * seconds / 16)))
            findings += check_seeds(build, env, number)
            if not has_errors(findings):
                findings += gymnasium_findings(env)
            resume = _probe(make_vector, play)
            fits = algorithm_fits(
                env.observation_space,
                env.action_space,
                steps_per_second=play.steps_per_second,
                frames=frames_of(env),
                masked=bool(play.masks),
            )
            findings += observation_findings(env)
            findings += [*resume_findings(resume), speed_finding(play), *fit_findings(fits)]
    findings.append(verdict(findings))
    return EnvCheck(findings=findings, play=play, fits=fits, resume=resume)


def check_ends(play: Play, time_limit: int | None = None) -> list[Finding]:
    """How episodes end, and whether a termination looks like a time limit."""
    episodes = play.episodes
    if play.broken:
        return []
    if not episodes:
        text = f"no episode ended in {play.steps:,} steps"
        if time_limit is not None and time_limit > play.steps:
            return [Finding("note", "ends", f"{text}; the time limit is {time_limit:,}")]
        if time_limit is None:
            text += ", and there is no time limit: each evaluation episode may last max_eval_steps"
        advice = "max_episode_steps, or the wrapper TimeLimit, ends episodes and resets training"
        return [Finding("warning", "ends", f"{text}; {advice}")]
    lengths = [episode.length for episode in episodes]
    terminated = sum(episode.terminated for episode in episodes)
    truncated = sum(episode.truncated for episode in episodes)
    text = (
        f"{len(episodes)} episodes of {min(lengths)} to {max(lengths)} steps: {terminated} "
        f"terminated, {truncated} truncated"
    )
    findings = [Finding("ok", "ends", text)]
    if both := terminated + truncated - len(episodes):
        text = f"{both} ended with both flags at once; they count as terminated"
        findings.append(Finding("note", "ends", text))
    if len(episodes) > 2 and not truncated and len(set(lengths)) == 1 and lengths[0] > 1:
        text = (
            f"all {len(episodes)} episodes terminated after exactly {lengths[0]} steps: this is "
            "probably a time limit, which should truncate; a termination tells the agent that "
            "nothing of value can follow"
        )
        findings.append(Finding("warning", "ends", text))
    return findings


def check_seeds(build: Callable[[], Env], used: Env, number: int) -> list[Finding]:
    """Whether a seed fixes what follows, in a new environment and in a used one."""
    try:
        return _compare_seeds(build, used, probe.random_actions(used, number, seed=SEED))
    except Exception as error:
        text = f"could not be checked in more environments: {type(error).__name__}: {error}"
        return [Finding("warning", "determinism", text)]


def _compare_seeds(build: Callable[[], Env], used: Env, actions: list[Any]) -> list[Finding]:
    generators = probe.global_generators()
    new = build()
    played = probe.play_episode(new, actions, seed=SEED)
    if not probe.bitwise_equal(played, probe.play_episode(build(), actions, seed=SEED)):
        cause = "; draw from self.np_random, which reset(seed=...) seeds"
        if not probe.bitwise_equal(generators, probe.global_generators()):
            cause = f": it draws from a global random generator{cause}"
        text = f"the same seed and actions gave different answers in two environments{cause}"
        return [Finding("warning", "determinism", text)]
    determinism = Finding(
        "ok", "determinism", f"the same seed and {len(actions)} actions gave the same to the bit"
    )
    if not probe.bitwise_equal(played, probe.play_episode(used, actions, seed=SEED)):
        text = "after reset with the same seed a used environment answers otherwise than a new one"
        determinism = Finding("warning", "determinism", f"{text}: reset leaves something behind")
    if probe.bitwise_equal(played, probe.play_episode(new, actions, seed=SEED + 1)):
        text = "another seed changed nothing: every episode starts and goes alike"
        return [determinism, Finding("warning", "seeds", text)]
    return [determinism, Finding("ok", "seeds", "another seed gives other episodes")]


def gymnasium_findings(env: Env) -> list[Finding]:
    """What Gymnasium's checker objects to and the checks here do not cover."""
    raised = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:
            raised = str(error)
    texts = " ".join([raised, *(str(warning.message) for warning in caught)])
    findings = [
        Finding("warning", "api", advice) for known, advice in _EXPLAINED.items() if known in texts
    ]
    if raised and not any(known in raised for known in (*_EXPLAINED, *_COVERED)):
        findings.append(Finding("warning", "api", f"Gymnasium's checker says: {raised}"))
    return findings


def verdict(findings: Sequence[Finding]) -> Finding:
    """The line that sums up the others."""
    errors, warned = (sum(f.mark == mark for f in findings) for mark in ("error", "warning"))
    if errors:
        return Finding("error", "verdict", f"{errors} to fix before training, {warned} warnings")
    if warned:
        return Finding("warning", "verdict", f"can be trained in; {warned} worth a look first")
    return Finding("ok", "verdict", "ready for training")


def _probe(make_vector: Callable[[], Venv], play: Play) -> ResumeLevel | None:
    """The resume level, unless the probe's few hundred steps would take many seconds."""
    if play.steps_per_second < SLOW_STEPS_PER_SECOND:
        return None
    return resume_level(make_vector, seed=SEED)


def resume_findings(resume: ResumeLevel | None) -> list[Finding]:
    """How exactly a run can be resumed, and why."""
    if resume is None:
        text = "not probed, the environment is slow; a run says its level when it starts"
        return [Finding("note", "resume", text)]
    marks: dict[str, Mark] = {"exact": "ok", "boundary": "note", "statistical": "warning"}
    return [Finding(marks[resume.level], "resume", f"{resume.level}: {resume.reason}")]


def observation_findings(env: Env) -> list[Finding]:
    """What is learned from, if any algorithm takes it."""
    if observation_kind(env.observation_space) not in OBSERVATIONS:
        return []  # the findings about algorithms say why
    codec = observation_codec(env.observation_space, frames_of(env))
    return [Finding("ok", "observation", codec.described())]


def speed_finding(play: Play) -> Finding:
    """The speed of the environment alone."""
    reset = float(np.mean(play.reset_seconds))
    text = f"{play.steps_per_second:,.0f} steps per second, {reset * 1e3:.3g} ms per reset"
    return Finding("ok", "speed", text)


def _time_limit(env: Env) -> int | None:
    return None if env.spec is None else env.spec.max_episode_steps


def _close(env: Env) -> None:
    with suppress(Exception):  # an error at the end changes none of the findings
        env.close()


def _environment_config(env: str, settings: Sequence[str]) -> TrainConfig:
    """The settings, checked as those of a run; keys that would have no effect are refused."""
    for setting in settings:
        key = re.split(r"[.=]", setting, maxsplit=1)[0].strip()
        if key not in _SETTABLE:
            raise UsageError(
                f"--set {setting}: expected a key of {' or '.join(_SETTABLE)}, found {key!r}; "
                "other keys change nothing about an environment"
            )
    # Any algorithm will do: none of its keys can be set here.
    return resolve_config({"algo": min(packaged_specs()), "env_id": env}, overrides=settings).config


def _plain(env: str, check: EnvCheck) -> dict[str, Any]:
    """A check as plain values, for JSON."""
    resets = check.play.reset_seconds
    return {
        "env_id": env,
        "passed": check.passed,
        "findings": [finding._asdict() for finding in check.findings],
        "steps": check.play.steps,
        "episodes": len(check.play.episodes),
        "steps_per_second": check.play.steps_per_second,
        "reset_seconds": sum(resets) / len(resets) if resets else None,
        "resume": None if check.resume is None else check.resume._asdict(),
        "algorithms": [vars(fit) for fit in check.fits],
    }
