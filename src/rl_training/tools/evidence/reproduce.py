"""Reproduces an evidence card: trains its seeds again and compares what they reach.

The same processor, versions and arithmetic give the same bits. Where the bits differ, the seeds are
other samples of the same distribution, and distributions are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import UsageError
from rl_training.experiment.manager import ExperimentManager, parse_seeds
from rl_training.experiment.registry import resolve_config
from rl_training.experiment.statistics import more_failures_by_chance
from rl_training.runtime.trust import refuse_untrusted, without_untrusted
from rl_training.storage.files import write_json
from rl_training.storage.runs import slug
from rl_training.tools.evidence.card import (
    Card,
    Curve,
    Figures,
    SeedRecord,
    read_card,
    seeds_text,
)
from rl_training.tools.evidence.seeds import (
    RUNS,
    Report,
    figures_over,
    joined,
    joined_versions,
    this_machine,
    train_seeds,
)

COMPARED_NAME = "reproduction.json"
SIGNIFICANCE = 0.05
"""A reproduction fails if chance alone gives this many failed seeds less often than this."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A card's seeds run again; `old` and `expected` are of those seeds alone.

    `failed` counts the new seeds that failed, if the card says what a failure is, and
    `failures_by_chance` is the probability of as many or more if they fail as often as all of the
    card's. `differences` says what may explain other bits.
    """

    old: tuple[SeedRecord, ...]
    new: tuple[SeedRecord, ...]
    expected: Figures
    iqm: float
    tolerance: float
    failed: int | None
    failures_by_chance: float
    differences: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether every return of every evaluation is the same to the last bit."""
        pairs = zip(self.old, self.new, strict=True)
        return all(_outcome(old, like=old) == _outcome(new, like=old) for old, new in pairs)

    @property
    def compared(self) -> str:
        """What the verdict rests on: `bits`, or `distributions` where the bits differ."""
        return "bits" if self.identical else "distributions"

    @property
    def bound(self) -> float:
        """The least interquartile mean that passes."""
        return self.expected.interval_95[0] - self.tolerance

    @property
    def passed(self) -> bool:
        """Whether the card was reached; one-sided, because better is no failure."""
        reached = self.iqm >= self.bound and self.failures_by_chance >= SIGNIFICANCE
        return self.identical or reached


def reproduce(
    path: Path,
    seeds: str | None = None,
    *,
    jobs: int = 1,
    runs: Path = RUNS,
    fresh: bool = False,
    trust: bool = False,
    report: Report = print,
) -> Reproduction:
    """Run a card's configuration again, with all of its seeds or some, and compare.

    What the card names that is not this package's is imported only if the card is trusted.
    The runs lie under `runs`/reproduce. An interrupted reproduction goes on where it stopped; one
    that came to its comparison is discarded by the next.
    """
    card = read_card(path)
    requested = tuple(parse_seeds(seeds)) if seeds else card.seed_numbers
    if unknown := sorted(set(requested) - set(card.seed_numbers)):
        raise UsageError(
            f"--seeds: expected some of the card's {seeds_text(card.seed_numbers)}, found "
            f"{unknown[0]}"
        )
    if not trust:
        refuse_untrusted(without_untrusted(card.configuration), source=f"{path} names")
    config = resolve_config(card.configuration).config
    directory = runs / "reproduce" / f"{slug(card.config)}-{card.digest[:8]}"
    compared = (directory / COMPARED_NAME).exists()
    manager = ExperimentManager(config, requested, jobs=jobs, directory=directory, report=report)
    report(f"{card.config}: the seeds run in {directory}")
    records = train_seeds(manager, fresh=fresh or compared).records
    old = {record.seed: record for record in card.seeds}
    outcome = compare(card, tuple(old[seed] for seed in requested), records)
    write_json(directory / COMPARED_NAME, _comparison(card, outcome))
    return outcome


def compare(card: Card, old: tuple[SeedRecord, ...], new: tuple[SeedRecord, ...]) -> Reproduction:
    """Compare new records of all or some of a card's seeds with its records of the same seeds.

    Some of the seeds can lie below the interval of all of them, so they get their own interval.
    """
    whole = {record.seed for record in old} == set(card.seed_numbers)
    failed, before = card.failed(new), card.failed()
    return Reproduction(
        old=old,
        new=new,
        expected=card.figures if whole else figures_over([record.return_mean for record in old]),
        iqm=figures_over([record.return_mean for record in new]).iqm,
        tolerance=card.tolerance,
        failed=failed,
        # Other bits are other samples, so that all of the card's seeds count, also beside a few.
        failures_by_chance=more_failures_by_chance(
            failed or 0, len(new), before=before or 0, of=len(card.seeds)
        ),
        differences=_differences(card, new),
    )


def _differences(card: Card, new: tuple[SeedRecord, ...]) -> tuple[str, ...]:
    """How the training of the new seeds differed from the card's."""
    cpu, here = card.machine.cpu, this_machine().cpu
    if "(family" not in cpu:  # older cards have the name alone
        here = here.partition(" (family")[0]
    pairs = {"processor": (cpu, here)}
    for name in ("device", "threads"):
        was, now = ({str(getattr(r, name)) for r in records} for records in (card.seeds, new))
        pairs[name] = (joined(sorted(was)), joined(sorted(now)))
    versions = joined_versions(record.versions for record in new)
    for name in sorted({*card.versions, *versions}):
        pairs[name] = (card.versions.get(name, "none"), versions.get(name, "none"))
    pairs["commit"] = (card.commit, joined(sorted({record.commit for record in new})))
    return tuple(f"{name} {was}, now {now}" for name, (was, now) in pairs.items() if was != now)


def _outcome(record: SeedRecord, *, like: SeedRecord) -> tuple[object, ...]:
    """What a seed reached, with the curve as `like` has it."""
    curve = record.curve
    if like.curve.episodes is None and curve.episodes is not None:  # an older card's
        later = [point for point in zip(curve.steps, curve.returns, strict=True) if point[0]]
        steps, returns = zip(*later, strict=True)
        curve = Curve(steps=steps, returns=(*returns[:-1], record.return_mean))
    return record.return_mean, record.return_std, record.episodes, curve


def _comparison(card: Card, outcome: Reproduction) -> dict[str, Any]:
    return {
        "card": card.digest,
        "old": {record.seed: record.return_mean for record in outcome.old},
        "new": {record.seed: record.return_mean for record in outcome.new},
        "expected": outcome.expected.to_plain(),
        "iqm": outcome.iqm,
        "bound": outcome.bound,
        "failed": outcome.failed,
        "failures_by_chance": outcome.failures_by_chance,
        "compared": outcome.compared,
        "differences": outcome.differences,
        "passed": outcome.passed,
    }
