"""The seeds of an evidence card: trains them, and reads their records from the run directories."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from rl_training.config.base import ConfigModel
from rl_training.config.train_config import TrainConfig
from rl_training.data.memory import format_bytes
from rl_training.errors import RunError
from rl_training.experiment.manager import ExperimentInterrupted, ExperimentManager
from rl_training.experiment.result import ExperimentResult, SeedResult
from rl_training.experiment.statistics import bootstrap_interval, interquartile_mean
from rl_training.storage.files import parse_json, read_ordinary, remove
from rl_training.storage.metrics_log import METRICS_NAME, read_metrics
from rl_training.storage.runs import (
    METADATA_NAME,
    RunLock,
    collect_metadata,
    cpu_model,
    is_locked,
    usable_cpus,
)
from rl_training.tools.evidence.card import (
    Curve,
    Figures,
    Machine,
    Measured,
    SeedRecord,
    first_mistake,
)

RUNS = Path("runs")
Report = Callable[[str], None]

_LEFT_OUT = ("seed", "output_dir", "run_name")
_RETURNS = ("return_mean", "return_std", "final_return_mean", "final_return_std")
_UNKNOWN = "not recorded"


class Session(ConfigModel):
    """What a run's metadata says of one session, as far as a card needs it."""

    model_config = ConfigDict(extra="ignore")

    started_at: str
    device: str
    threads: int
    python: str
    packages: dict[str, str]
    platform: str
    cpu_count: int | None
    package_git_commit: str = "unknown"
    package_git_dirty: bool = False


@dataclass(frozen=True)
class TrainedSeeds:
    """The records of all seeds; `date` is that of the session that began last."""

    records: tuple[SeedRecord, ...]
    date: str
    machine: Machine
    run_dirs: dict[int, Path]


def card_configuration(config: TrainConfig) -> dict[str, Any]:
    """The configuration without the seed and the run directory."""
    return {key: value for key, value in config.to_plain().items() if key not in _LEFT_OUT}


def figures_over(returns: Sequence[float]) -> Figures:
    """The figures over the seeds' mean returns."""
    return Figures(
        iqm=interquartile_mean(returns),
        interval_95=bootstrap_interval(returns),
        lowest=min(returns),
    )


def train_seeds(
    manager: ExperimentManager, *, fresh: bool, renewal: str = "--fresh"
) -> TrainedSeeds:
    """Run what is left of an experiment, or with `fresh` all of it.

    Seeds that another commit or other versions trained are kept, and reported as such, with the
    option or command that trains them anew.
    """
    if fresh:
        _discard(manager.directory)
    try:
        result = manager.run()
    except ExperimentInterrupted:
        manager.report("interrupted; the same command, without --fresh, goes on from here")
        raise
    _refuse_unfinished(result)
    records = tuple(_seed_record(seed, manager.config) for seed in result.seeds)
    sessions = [session for seed in result.seeds for session in _sessions(seed)]
    now = _code_now()
    for record in records:
        was = {"commit": record.commit, **record.versions}
        if changed := [f"{k} {v}" for k, v in was.items() if now.get(k) != v]:
            manager.report(
                f"seed {record.seed}: trained with {', '.join(changed)}; this is now "
                f"{', '.join(f'{k} {v}' for k, v in now.items() if was.get(k) != v)}. {renewal} "
                "trains all seeds anew"
            )
    latest = max(session.started_at for session in sessions)
    run_dirs = {seed.seed: _directory(seed) for seed in result.seeds}
    return TrainedSeeds(records, latest[:10], _machine_of(sessions), run_dirs)


def _refuse_unfinished(result: ExperimentResult) -> None:
    unfinished = [
        f"seed {seed.seed} {seed.status}" for seed in result.seeds if seed.status != "finished"
    ]
    if unfinished:
        raise RunError(
            f"expected every seed to finish, found {', '.join(unfinished)}, so nothing is "
            f"reported; see the logs in {result.directory}. The same command again runs what is "
            "left"
        )


def _code_now() -> dict[str, str]:
    """The commit and the versions that a seed started now would be trained with."""
    metadata = collect_metadata(command=(), seed=0, device="", resume_level="", extra={})
    session = Session.model_validate(metadata)
    return {"commit": _commit(session), **_versions(session)}


def joined(values: Iterable[str]) -> str:
    """Each value once, in order of appearance, separated by commas."""
    return ", ".join(dict.fromkeys(part for value in values for part in value.split(", ")))


def joined_versions(several: Iterable[dict[str, str]]) -> dict[str, str]:
    """All versions of each package."""
    listed = list(several)
    names = sorted({name for versions in listed for name in versions})
    return {name: joined(v[name] for v in listed if name in v) for name in names}


def this_machine() -> Machine:
    """The processor, memory and system of this machine."""
    cores = os.cpu_count() or 1
    return Machine(
        cpu=cpu_model(),
        cores=cores,
        cores_usable=usable_cpus(),
        memory=format_bytes(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def _machine_of(sessions: Sequence[Session]) -> Machine:
    """This machine if the sessions ran here; of any other, only what the sessions recorded.

    A session records its system and its count of cores, so these tell one machine from another.
    """
    here = this_machine()
    if all((s.platform, s.cpu_count) == (here.platform, here.cores) for s in sessions):
        return here
    return Machine(
        cpu=_UNKNOWN,
        cores=joined(str(session.cpu_count) for session in sessions),
        cores_usable=_UNKNOWN,
        memory=_UNKNOWN,
        platform=joined(session.platform for session in sessions),
    )


def _discard(directory: Path) -> None:
    if not directory.exists():
        return
    with RunLock(directory):
        if busy := [path for path in directory.glob("seed-*") if is_locked(path)]:
            raise RunError(f"{busy[0]} is in use by another process: wait until it ends or stop it")
        remove(directory)


def _seed_record(seed: SeedResult, config: TrainConfig) -> SeedRecord:
    """The record in a seed's run directory; a RunError if a file there is damaged or partial."""
    try:
        return _read_record(seed, config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"seed {seed.seed} cannot be reported ({first_mistake(error)}): delete {seed.run_dir}, "
            "then run the same command again, which trains this seed anew"
        ) from error


def _read_record(seed: SeedResult, config: TrainConfig) -> SeedRecord:
    summary, sessions = seed.summary, _sessions(seed)
    steps, mean = summary["global_step"], summary["eval_return_mean"]
    if steps < config.total_timesteps or mean is None:
        raise ValueError(
            "expected a whole run with a final evaluation, found its end at step "
            f"{steps} of {config.total_timesteps} with the return {mean}"
        )
    rows = _evaluations(_directory(seed))
    return SeedRecord(
        seed=seed.seed,
        return_mean=mean,
        return_std=summary["eval_return_std"],
        episodes=summary["eval_episodes"],
        steps=steps,
        seconds=round(summary["wall_time_s"], 3),
        sessions=len(sessions),
        device=joined(session.device for session in sessions),
        threads=max(session.threads for session in sessions),
        commit=joined(map(_commit, sessions)),
        versions=joined_versions(map(_versions, sessions)),
        curve=_curve(rows, min(config.eval_episodes, summary["eval_episodes"])),
        measured=_measured(rows),
    )


def _evaluations(run_dir: Path) -> list[tuple[int, str, float]]:
    """What was logged with evaluations: at which step, its name and its value."""
    try:
        rows = read_metrics(run_dir)
    except RunError as error:
        # Its advice, to delete a line, would leave a curve with a gap.
        raise ValueError(str(error).rpartition(": ")[0]) from error
    return [
        (row["global_step"], name.removeprefix("eval/"), value)
        for row in rows
        for name, value in row.items()
        if name.startswith("eval/") and value is not None
    ]


def _curve(evaluations: list[tuple[int, str, float]], episodes: int) -> Curve:
    """The curve over the first `episodes` of each evaluation, if the run was logged in that way."""
    points = [(step, value) for step, name, value in evaluations if name == "return_mean"]
    if not points:
        raise ValueError(f"{METRICS_NAME} holds no evaluation")
    steps, returns = zip(*points, strict=True)
    alike = any(name == "final_return_mean" for _, name, _ in evaluations)
    return Curve(steps=steps, returns=returns, episodes=episodes if alike else None)


def _measured(evaluations: list[tuple[int, str, float]]) -> dict[str, Measured]:
    """What callbacks added to the evaluations."""
    points: dict[str, list[tuple[int, float]]] = {}
    for step, name, value in evaluations:
        if name not in _RETURNS:
            points.setdefault(name, []).append((step, value))
    return {
        name: Measured(steps=tuple(s for s, _ in pairs), values=tuple(v for _, v in pairs))
        for name, pairs in points.items()
    }


def _sessions(seed: SeedResult) -> list[Session]:
    try:
        sessions = parse_json(read_ordinary(_directory(seed) / METADATA_NAME))["sessions"]
        if not isinstance(sessions, list) or not sessions:
            raise ValueError("sessions: expected a list with an entry for each session")
        return [Session.model_validate(session) for session in sessions]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{METADATA_NAME} is damaged: {first_mistake(error)}") from error


def _directory(seed: SeedResult) -> Path:
    assert seed.run_dir is not None, "a finished seed has a run directory"
    return seed.run_dir


def _commit(session: Session) -> str:
    commit = session.package_git_commit
    return f"{commit}-dirty" if session.package_git_dirty else commit


def _versions(session: Session) -> dict[str, str]:
    return {"python": session.python, **session.packages}
