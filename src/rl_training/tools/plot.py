"""`rl-training plot`: learning curves as a picture or a page, and the names of such files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_training.errors import UsageError, alternatives
from rl_training.storage.files import open_ordinary, write_atomic
from rl_training.storage.runs import printable, slug
from rl_training.tools.charts import Chart
from rl_training.tools.curves import Axis, chart_of
from rl_training.tools.plotting import chart_picture
from rl_training.tools.report.page import MARKER, figure, render
from rl_training.tools.results import RETURN, Results, read_results

PICTURES = ("png", "svg", "pdf")
PAGES = ("html",)

_SIGNATURES = {
    "png": b"\x89PNG\r\n\x1a\n",
    "svg": b"<svg",
    "pdf": b"%PDF-",
    "html": MARKER.encode(),
}
_BYTES_OF_SIGNATURE = 1_000


def plot(
    paths: Sequence[Path],
    *,
    metric: str | None = None,
    x: Axis = "steps",
    smooth: int | None = None,
    title: str | None = None,
    out: Path | None = None,
) -> Path:
    """Draw the results into a file, by default in the current directory and named after them."""
    kind = "png" if out is None else kind_of(out, (*PICTURES, *PAGES))
    results = read_results(paths, metric or RETURN)
    path = default_path(results) if out is None else out
    refuse_to_overwrite(path, kind)
    chart = chart_of(results, x, smooth, printable(title or ""))
    write_atomic(path, page(chart) if kind in PAGES else chart_picture(chart, kind))
    return path


def axis_of(name: str) -> Axis:
    """The horizontal axis that `--x` names."""
    if name not in ("steps", "time"):
        raise UsageError(f"--x: expected steps or time, found {printable(name)}")
    return "time" if name == "time" else "steps"


def page(chart: Chart) -> str:
    """A self-contained page with the chart, in the layout of a report."""
    return render(chart.title, (), [figure(chart)])


def default_path(results: Sequence[Results], kind: str = "png", *, prefix: str = "") -> Path:
    """Algorithms, environment, and a metric other than the return: `dqn-ppo-CartPole-v1.png`.

    `prefix` tells other figures apart.
    """
    algos = dict.fromkeys(group.algo for group in results)
    envs = dict.fromkeys(group.env_id for group in results)
    metric = "" if results[0].metric == RETURN else slug(results[0].metric)
    parts = (prefix, slug("-".join(algos)), slug("-".join(envs)), metric)
    return Path("-".join(filter(None, parts)) + f".{kind}")


def kind_of(path: Path, kinds: Sequence[str]) -> str:
    """The format that the suffix of a file name stands for."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in kinds:
        wanted = alternatives([f".{name}" for name in kinds])
        raise UsageError(f"--out: expected a name that ends in {wanted}, found {printable(path)}")
    return kind


def refuse_to_overwrite(path: Path, kind: str) -> None:
    """Allow only a file of the same kind to be replaced."""
    if not path.parent.is_dir():
        raise UsageError(f"--out: there is no directory {printable(path.parent)}: create it first")
    if not path.is_symlink() and not path.exists():
        return
    try:
        with open_ordinary(path) as (file, _):
            start = file.read(_BYTES_OF_SIGNATURE)
    except OSError:
        start = b""
    if _SIGNATURES[kind] not in start:
        raise UsageError(
            f"--out: {printable(path)} exists and is no {kind.upper()} file made by rl-training "
            "or the like: choose another name, or remove it"
        )
