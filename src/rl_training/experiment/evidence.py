"""Evidence cards made: many seeds of one configuration, and what became of all of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RunError, UsageError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_loading import find_config, packaged_configs
from rl_training.experiment.evidence_card import (
    CARDS,
    Card,
    Evaluation,
    read_card,
    write_card,
)
from rl_training.experiment.evidence_picture import draw_card, require_matplotlib
from rl_training.experiment.evidence_plan import (
    DEFAULT_SEEDS,
    PlannedCard,
    planned_cards,
    seeds_text,
)
from rl_training.experiment.evidence_record import (
    RUNS,
    Report,
    Trained,
    figures_of,
    joined,
    joined_versions,
    recorded,
    trained,
)
from rl_training.experiment.manager import ExperimentManager, parse_seeds
from rl_training.experiment.registry import resolve_config

RELATIVE_TOLERANCE = 0.05


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a card is about, settled before anything is run."""

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
    """Run what is left of a card's seeds and write the card and its picture; gives its path.

    The seeds' runs stay under `runs`/evidence, so the same call goes on with them: finished seeds
    are kept, interrupted ones resumed. `fresh` discards them first.
    """
    require_matplotlib()
    subject = _subject(name, seeds, settings, default=output is None)
    path = (output or CARDS) / f"{subject.name}.json"
    _refuse_other_card(path, subject)
    config = subject.config.with_changes(output_dir=str(runs / "evidence"), run_name=None)
    manager = ExperimentManager(config, subject.seeds, jobs=jobs, report=report)
    report(f"{subject.name}: the seeds run in {manager.directory}")
    card = _card(subject, trained(manager, fresh=fresh))
    write_card(path, card)
    draw_card(card, path.with_suffix(".png"))
    return path


def missing_cards(output: Path = CARDS) -> list[str]:
    """The planned cards that are not there."""
    return [name for name in planned_cards() if not (output / f"{name}.json").exists()]


def outdated(card: Card) -> str:
    """What the packaged configuration of that name, or its plan, has otherwise; empty if nothing.

    A card of a configuration that is not packaged cannot be out of date.
    """
    if card.config not in packaged_configs():
        return ""
    plan = planned_cards().get(card.config)
    changed = _differences(card, resolve_config(card.config).config)
    if plan is not None and plan.seed_numbers != card.seed_numbers:
        changed.append("seeds")
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
    chosen = tuple(parse_seeds(seeds)) if seeds else plan.seed_numbers
    if default and (settings or not packaged or chosen != plan.seed_numbers):
        raise UsageError(
            f"{CARDS}/ holds cards of packaged configurations only, without --set and with the "
            "planned seeds, which are those of a call without --seeds: give another directory with "
            "--output for this card"
        )
    given = name if packaged else find_config(name).name
    if settings:  # what the plan says, it says of the packaged settings
        note = f"The settings are not those of {given}: {', '.join(settings)}."
        plan = PlannedCard(seeds=plan.seeds, note=note)
    words = [given, "--seeds", seeds_text(chosen)]
    words += [word for setting in settings for word in ("--set", setting)]
    if not packaged:
        name = f"{loaded.config.algo}/{find_config(name).stem}"
    command = shlex.join(["rl-training", "evidence", "run", *words])
    return Subject(name=name, config=loaded.config, seeds=chosen, plan=plan, command=command)


def _card(subject: Subject, outcome: Trained) -> Card:
    records = outcome.records
    figures = figures_of([record.return_mean for record in records])
    tolerance = subject.plan.tolerance
    return Card(
        config=subject.name,
        command=subject.command,
        date=outcome.date,
        budget=subject.config.total_timesteps,
        evaluation=Evaluation(episodes=subject.config.final_eval_episodes, deterministic=True),
        figures=figures,
        tolerance=RELATIVE_TOLERANCE * abs(figures.iqm) if tolerance is None else tolerance,
        published=subject.plan.published,
        note=subject.plan.note,
        seeds=records,
        configuration=recorded(subject.config),
        machine=outcome.machine,
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
    """The keys in which the card's configuration is another."""
    try:
        # Resolved, so that a key that is newer than the card has its default.
        old = _flat(recorded(resolve_config(card.configuration).config))
    except ConfigError:
        return ["keys that there are no more"]
    new = _flat(recorded(config))
    absent = object()
    return [key for key in {**new, **old} if new.get(key, absent) != old.get(key, absent)]


def _flat(configuration: dict[str, Any]) -> dict[str, Any]:
    """The keys of a configuration, those of the algorithm beside the others."""
    hyper = configuration["algo_kwargs"]
    top = {key: value for key, value in configuration.items() if key != "algo_kwargs"}
    return {**top, **{f"algo_kwargs.{key}": value for key, value in hyper.items()}}
