"""The format of an evidence card: what a configuration reached with seeds fixed in advance.

A card is a JSON file that ends with a digest of its content, so that an edit by hand is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.config.base import ConfigModel
from rl_training.config.loading import packaged_configs
from rl_training.errors import RunError
from rl_training.storage.files import parse_json, read_ordinary, save_error, write_atomic

CARDS = Path("evidence")
FORMAT = 1
_WIDTH = 160


class Published(ConfigModel):
    """A figure that others have published; `return_std` is over episodes or runs, see `what`."""

    return_mean: float
    return_std: float | None = None
    steps: int = Field(ge=1)
    what: str
    source: str = Field(pattern=r"^https://")


class Curve(ConfigModel):
    """Mean evaluation returns by environment transitions, the last of the final policy.

    Each is over the same `episodes`. Older cards do not say how many: their last point is the
    mean over all episodes of the final evaluation, those before it are over fewer, and none
    precedes training.
    """

    steps: tuple[int, ...] = Field(min_length=1)
    returns: tuple[float, ...]
    episodes: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.steps) != len(self.returns):
            raise ValueError("a curve needs as many returns as steps")
        return self


class Measured(ConfigModel):
    """What a callback measured with the evaluations, by environment transitions."""

    steps: tuple[int, ...] = Field(min_length=1)
    values: tuple[float, ...]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if len(self.steps) != len(self.values):
            raise ValueError("what was measured needs as many values as steps")
        return self


class SeedRecord(ConfigModel):
    """One seed: the evaluation of its final policy, and how it was trained.

    `seconds` is the wall clock of all `sessions`; there is more than one if the run was resumed.
    `commit` ends in -dirty if the checkout had changes. Where sessions differ, `commit` and
    `versions` hold all values, separated by a comma. `measured` has what callbacks logged with the
    evaluations, by name.
    """

    seed: int
    return_mean: float
    return_std: float
    episodes: int
    steps: int
    seconds: float
    sessions: int
    device: str
    threads: int
    commit: str
    versions: dict[str, str]
    curve: Curve
    measured: dict[str, Measured] = Field(default_factory=dict)


class Evaluation(ConfigModel):
    """How the returns were measured: by the final policy, on dedicated environments."""

    episodes: int
    deterministic: bool


class Figures(ConfigModel):
    """Over the seeds' mean returns: interquartile mean, its 95 % bootstrap interval, the lowest."""

    iqm: float
    interval_95: tuple[float, float]
    lowest: float


class Machine(ConfigModel):
    """Where the seeds were trained; it carries no host name.

    If that was not, or not only, where the card was made, `cores` and `platform` hold all values,
    separated by a comma, and what the runs do not record is `not recorded`.
    """

    cpu: str
    cores: int | str
    cores_usable: int | str
    memory: str
    platform: str


class Card(ConfigModel):
    """The whole card.

    `configuration` is complete but for the seed and the run directory. `commit` and `versions` are
    those of the seeds. `tolerance` is how far below the interval a reproduction may fall, and a
    seed whose mean return is below `failure_below` counts as failed.
    """

    format: int = FORMAT
    config: str
    command: str
    date: str
    budget: int
    evaluation: Evaluation
    figures: Figures
    tolerance: float = Field(ge=0)
    failure_below: float | None = None
    published: Published | None
    note: str | None
    seeds: tuple[SeedRecord, ...] = Field(min_length=1)
    configuration: dict[str, Any]
    machine: Machine
    commit: str
    versions: dict[str, str]
    digest: str = ""

    @property
    def seed_numbers(self) -> tuple[int, ...]:
        """In the order in which they were fixed."""
        return tuple(record.seed for record in self.seeds)

    @property
    def returns(self) -> list[float]:
        """The mean return of each seed's final policy."""
        return [record.return_mean for record in self.seeds]

    @property
    def median_seed(self) -> int:
        """The seed of the median return: of an even number, the lower of the middle two."""
        ordered = sorted(self.seeds, key=lambda record: (record.return_mean, record.seed))
        return ordered[(len(ordered) - 1) // 2].seed

    def failed(self, seeds: Sequence[SeedRecord] | None = None) -> int | None:
        """How many seeds failed, its own by default; None if it does not say what a failure is."""
        if self.failure_below is None:
            return None
        records = self.seeds if seeds is None else seeds
        return sum(record.return_mean < self.failure_below for record in records)

    def sealed(self) -> Card:
        """The card with the digest of its content."""
        return self.model_copy(update={"digest": _digest(self.to_plain())})


def write_card(path: Path, card: Card) -> None:
    """Write a sealed card, whole or not at all."""
    write_with_parents(path, _dump(card.to_plain()) + "\n")


def write_with_parents(path: Path, content: bytes | str) -> None:
    """Write a file, whole or not at all, and the directories it lies in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise save_error(path, error) from error
    write_atomic(path, content)


def read_card(path: Path) -> Card:
    """The card in a file; a RunError if it is damaged, was edited, or is of another format."""
    try:
        values = parse_json(read_ordinary(path.resolve()))
    except OSError as error:
        raise RunError(
            f"{path} cannot be read ({error.strerror}): give the path of a card, or a name that "
            "`rl-training evidence list` shows"
        ) from error
    except ValueError as error:
        raise RunError(f"{path} is no evidence card ({error}): {_advice(path)}") from error
    if not isinstance(values, dict) or "format" not in values:
        raise RunError(
            f"{path} is no evidence card (expected a JSON object with a format): {_advice(path)}"
        )
    if values["format"] != FORMAT:
        raise RunError(
            f"{path} is a card of format {values['format']!r}, expected {FORMAT}: read it with the "
            f"version of rl-training that wrote it, or {_advice(path)}"
        )
    if values.get("digest") != _digest(values):
        raise RunError(
            f"{path} was changed after it was written, its digest differs: {_advice(path)}"
        )
    try:
        return Card(**values)
    except ValidationError as error:
        reason = f"{path} is no evidence card ({first_mistake(error)})"
        raise RunError(f"{reason}: {_advice(path)}") from error


def first_mistake(error: Exception) -> str:
    """What an error says, in one line: of a validation error, the first mistake."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def card_files(folder: Path | None = None) -> dict[str, Path]:
    """The files of the cards under a folder by name, such as `dqn/cartpole`.

    Without a folder: the cards that come with the package, and those in `evidence`, which take
    precedence. In a checkout the two are one directory.
    """
    packaged = Path(str(resources.files("rl_training.assets") / "evidence"))
    folders = (packaged, CARDS) if folder is None else (folder,)
    files = {_name_in(place, path): path for place in folders for path in place.glob("*/*.json")}
    return dict(sorted(files.items()))


def find_card(name_or_path: Path) -> Path:
    """The file of a card by the name it is listed with, or any other file, by path."""
    return card_files().get(name_or_path.as_posix(), name_or_path)


def read_cards(folder: Path) -> dict[str, Card]:
    """The cards under a folder by the name of their file, such as `dqn/cartpole`."""
    return {name: read_card(path) for name, path in card_files(folder).items()}


def _name_in(folder: Path, path: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as `parse_seeds` reads them: `0-4`, or `0,3,7`."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]}-{seeds[-1]}"
    return ",".join(map(str, seeds))


def _advice(path: Path) -> str:
    name, command = f"{path.parent.name}/{path.stem}", "the command that made it"
    if path.parent.parent.name == CARDS.name and name in packaged_configs():
        command = f"`rl-training evidence run {name}`"
    return f"restore it, or delete it, then run {command} again"


def _digest(values: dict[str, Any]) -> str:
    content = {key: value for key, value in values.items() if key != "digest"}
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    except (RecursionError, ValueError):  # nested so deeply that nobody wrote it
        return "none"


def _dump(value: object, indent: str = "") -> str:
    """Indented JSON in which whatever fits a line, and every list of plain values, is one line."""
    line = json.dumps(value, allow_nan=False, ensure_ascii=False)
    inner = indent + "  "
    if isinstance(value, dict) and len(indent) + len(line) > _WIDTH:
        items = [f"{json.dumps(key)}: {_dump(item, inner)}" for key, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items = [_dump(item, inner) for item in value]
    else:
        return line
    separator = f",\n{inner}"
    return f"{line[0]}\n{inner}{separator.join(items)}\n{indent}{line[-1]}"
