"""`rl-training report`: where a report is written, what may be overwritten, and the browser."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from pathlib import Path

from rl_training.errors import UsageError
from rl_training.storage.files import open_ordinary, write_atomic
from rl_training.storage.runs import CONFIG_NAME, METADATA_NAME, SUMMARY_NAME, printable
from rl_training.tools.report.page import MARKER

REPORT_NAME = "report.html"


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the page of one run, or of several and of experiments and cards; gives its path."""
    paths = list(dict.fromkeys(paths))
    if out is None:
        alone = len(paths) == 1 and paths[0].is_dir()
        out = paths[0] / REPORT_NAME if alone else Path(REPORT_NAME)
    _check_target(out)
    if len(paths) == 1 and _is_run(paths[0]):
        from rl_training.tools.report.record import read_record
        from rl_training.tools.report.run_page import run_page

        page = run_page(read_record(paths[0]), out.parent)
    else:
        from rl_training.tools.report.overview import overview_page, read_groups

        page = overview_page(read_groups(paths))
    write_atomic(out, page)
    return out


def _is_run(path: Path) -> bool:
    return any((path / name).is_file() for name in (METADATA_NAME, CONFIG_NAME, SUMMARY_NAME))


def _check_target(out: Path) -> None:
    """Refuse to replace anything but a report."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out: expected a name that ends in .html, found {printable(out)}")
    if not out.is_symlink() and not out.exists():
        return
    try:
        with open_ordinary(out) as (file, _):
            ours = MARKER.encode() in file.read(4096)
    except OSError:
        ours = False
    if not ours:
        raise UsageError(
            f"{printable(out)} exists and is no report of ours, so it is kept: choose another name "
            "with --out"
        )


def show_in_browser(path: Path) -> bool:
    """Open a page in a browser; False where there is none."""
    try:
        return webbrowser.open(path.resolve().as_uri())
    except webbrowser.Error:
        return False
