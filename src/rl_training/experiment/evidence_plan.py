"""The evidence cards that are planned, and the published figures they stand next to."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources

from pydantic import Field

from rl_training.experiment.config_base import ConfigModel
from rl_training.experiment.evidence_card import Published
from rl_training.experiment.manager import parse_seeds
from rl_training.experiment.yaml_strict import parse_yaml

DEFAULT_SEEDS = "0-4"


class PlannedCard(ConfigModel):
    """What is fixed before the seeds are run; without a tolerance it follows from the result."""

    seeds: str = DEFAULT_SEEDS
    tolerance: float | None = Field(None, ge=0)
    note: str | None = None
    published: Published | None = None

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """The seeds as numbers."""
        return tuple(parse_seeds(self.seeds))


def planned_cards() -> dict[str, PlannedCard]:
    """The plan for each packaged configuration that has one."""
    text = (resources.files("rl_training.assets") / "published.yaml").read_text(encoding="utf-8")
    entries, _ = parse_yaml(text, "published.yaml")
    return {name: PlannedCard(**entry) for name, entry in entries.items()}


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as `parse_seeds` reads them: `0-4`, or `0,3,7`."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))
