"""What doctor reports: findings, one per line, or the values behind them as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import typer

from rl_training.storage.files import jsonable

Mark: TypeAlias = Literal["ok", "note", "warning", "error"]


class Finding(NamedTuple):
    """One line of a report.

    An error stops training or makes it learn something wrong, a warning should be fixed, a note is
    good to know.
    """

    mark: Mark
    topic: str
    text: str


def has_errors(findings: Sequence[Finding]) -> bool:
    """Whether something must be fixed before training."""
    return any(finding.mark == "error" for finding in findings)


def show_report(values: Mapping[str, Any], findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print the values as JSON, or the findings for people."""
    if as_json:
        typer.echo(json.dumps(jsonable(values), indent=2))
        return
    for finding in findings:
        typer.echo(f"{finding.mark:<8}{finding.topic:<12} {finding.text}")
