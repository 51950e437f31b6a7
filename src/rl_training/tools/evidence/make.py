"""Makes evidence cards: what is planned, the seeds it takes, and the card of what they reached."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field

from rl_training.config.base import ConfigModel
from rl_training.config.loading import find_config, packaged_configs
from rl_training.config.strict_yaml import parse_yaml
from rl_training.config.train_config import WATCH_KEYS, TrainConfig
from rl_training.errors import ConfigError, RunError, UsageError
from rl_training.experiment.manager import ExperimentManager, parse_seeds
from rl_training.experiment.registry import get_spec, resolve_config
from rl_training.tools.evidence.card import (
    CARDS,
    Card,
    Evaluation,
    Published,
    card_files,
    read_card,
    seeds_text,
    write_card,
)
from rl_training.tools.evidence.plot import draw_card
from rl_training.tools.evidence.seeds import (
    RUNS,
    Report,
    TrainedSeeds,
    card_configuration,
    figures_over,
    joined,
    joined_versions,
    train_seeds,
)
from rl_training.tools.plotting import require_matplotlib
from rl_training.tools.zoo import ZOO, write_policy

DEFAULT_SEEDS = "0-4"
RELATIVE_TOLERANCE = 0.05


class PlannedCard(ConfigModel):
    """What is fixed before the seeds are run.

    Without a tolerance it is a twentieth of the interquartile mean. A seed whose mean return is
    below `failure_below` counts as failed.
    """

    seeds: str = DEFAULT_SEEDS
    tolerance: float | None = Field(None, ge=0)
    failure_below: float | None = None
    note: str | None = None
    published: Published | None = None

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds, parsed."""
        return tuple(parse_seeds(self.seeds))


def planned_cards() -> dict[str, PlannedCard]:
    """The plan for each packaged configuration that has one."""
    text = (resources.files("rl_training.assets") / "published.yaml").read_text(encoding="utf-8")
    entries, _ = parse_yaml(text, "published.yaml")
    return {name: PlannedCard(**entry) for name, entry in entries.items()}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a card is about, decided before anything is run."""

    name: str
    config: TrainConfig
    seeds: tuple[int, ...]
    plan: PlannedCard
    command: str


def make_card(
    name: str,
    seeds: str | None = None,
    settings: Sequence[str] = (),
    *,
    jobs: int = 1,
    output: Path | None = None,
    runs: Path = RUNS,
    fresh: bool = False,
    report: Report = print,
) -> Path:
    """Run what is left of a card's seeds; write the card, its picture and the median's policy.

    Gives the card's path. The seeds' runs stay under `runs`/evidence, so the same call continues
    them: finished seeds are kept, interrupted ones resumed. `fresh` discards them first.
    """
    require_matplotlib()
    subject = _subject(name, seeds, settings, default=output is None)
    path = (output or CARDS) / f"{subject.name}.json"
    _refuse_other_card(path, subject)
    config = subject.config.with_changes(output_dir=str(runs / "evidence"), run_name=None)
    manager = ExperimentManager(config, subject.seeds, jobs=jobs, report=report)
    report(f"{subject.name}: the seeds run in {manager.directory}")
    trained = train_seeds(manager, fresh=fresh)
    card = _card(subject, trained)
    write_card(path, card)
    draw_card(card, path.with_suffix(".png"))
    write_policy(card, trained, None if output is None else output / ZOO, report)
    return path


def missing_cards(output: Path | None = None) -> list[str]:
    """The planned cards that are not there."""
    present = card_files(output)
    return [name for name in planned_cards() if name not in present]


def outdated(card: Card) -> str:
    """The keys that differ in the packaged configuration of that name, or its plan; or empty.

    A card of a configuration that is not packaged cannot be out of date.
    """
    if card.config not in packaged_configs():
        return ""
    plan = planned_cards().get(card.config)
    changed = _differences(card, resolve_config(card.config).config)
    if plan is not None and plan.seed_numbers != card.seed_numbers:
        changed.append("seeds")
    if plan is not None and plan.failure_below != card.failure_below:
        changed.append("failure_below")
    return ", ".join(changed)


def _subject(name: str, seeds: str | None, settings: Sequence[str], *, default: bool) -> Subject:
    loaded = resolve_config(name, overrides=settings)
    for key, option in (("seed", "--seeds"), ("output_dir", "--runs"), ("run_name", "--runs")):
        if loaded.origins[key] == "command line":
            raise UsageError(f"--set {key}: use {option} instead")
    if not loaded.config.final_eval_episodes:
        raise ConfigError("final_eval_episodes: expected at least 1 for a card, found 0")
    packaged = name in packaged_configs()
    plan = planned_cards().get(name, PlannedCard(seeds=seeds or DEFAULT_SEEDS))
    requested = tuple(parse_seeds(seeds)) if seeds else plan.seed_numbers
    if default and (settings or not packaged or requested != plan.seed_numbers):
        raise UsageError(
            f"{CARDS}/ holds cards of packaged configurations only, without --set and with the "
            "planned seeds, which are those of a call without --seeds: give another directory with "
            "--output for this card"
        )
    given = name if packaged else find_config(name).name
    if settings:  # what the plan says, it says of the packaged settings
        note = f"The settings are not those of {given}: {', '.join(settings)}."
        plan = PlannedCard(seeds=plan.seeds, failure_below=plan.failure_below, note=note)
    words = [given, "--seeds", seeds_text(requested)]
    words += [word for setting in settings for word in ("--set", setting)]
    if not packaged:
        name = f"{get_spec(loaded.config.algo).name}/{find_config(name).stem}"
    command = shlex.join(["rl-training", "evidence", "run", *words])
    return Subject(name=name, config=loaded.config, seeds=requested, plan=plan, command=command)


def _card(subject: Subject, trained: TrainedSeeds) -> Card:
    records = trained.records
    figures = figures_over([record.return_mean for record in records])
    tolerance = subject.plan.tolerance
    return Card(
        config=subject.name,
        command=subject.command,
        date=trained.date,
        budget=subject.config.total_timesteps,
        evaluation=Evaluation(episodes=subject.config.final_eval_episodes, deterministic=True),
        figures=figures,
        tolerance=RELATIVE_TOLERANCE * abs(figures.iqm) if tolerance is None else tolerance,
        failure_below=subject.plan.failure_below,
        published=subject.plan.published,
        note=subject.plan.note,
        seeds=records,
        configuration=card_configuration(subject.config),
        machine=trained.machine,
        commit=joined(record.commit for record in records),
        versions=joined_versions(record.versions for record in records),
    ).sealed()


def _refuse_other_card(path: Path, subject: Subject) -> None:
    if not path.exists():
        return
    card = read_card(path)
    if card.seed_numbers != subject.seeds or _differences(card, subject.config):
        raise RunError(
            f"{path} is the card of another configuration or of other seeds: delete it to replace "
            "it, or give another directory with --output"
        )


def _differences(card: Card, config: TrainConfig) -> list[str]:
    """The keys in which the card's configuration differs, as far as they can change its figures.

    Those that only say how a run is watched cannot: the conformance tests hold that for every
    algorithm. The card's curve then has the points of its own configuration.
    """
    if card.configuration.get("algo") != config.algo:
        return ["algo"]  # which is not looked up: a card may name anything
    try:
        # Resolved, so that a key that is newer than the card has its default.
        old = _flat(card_configuration(resolve_config(card.configuration).config))
    except ConfigError:
        return ["keys that no longer exist"]
    new = _flat(card_configuration(config))
    absent = object()
    keys = [key for key in {**new, **old} if key not in WATCH_KEYS]
    return [key for key in keys if new.get(key, absent) != old.get(key, absent)]


def _flat(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with the algorithm's keys, dotted, beside the others."""
    hyper = configuration["algo_kwargs"]
    top = {key: value for key, value in configuration.items() if key != "algo_kwargs"}
    return {**top, **{f"algo_kwargs.{key}": value for key, value in hyper.items()}}
