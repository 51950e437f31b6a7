"""The report of a single run: its figures, curves, settings and history."""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_training.data.memory import format_duration
from rl_training.runtime.spec_table import packaged_specs
from rl_training.storage.files import read_ordinary
from rl_training.storage.runs import finite_number
from rl_training.tools.charts import Chart, Curve
from rl_training.tools.markup import Markup, element, join
from rl_training.tools.report.page import (
    SMALL,
    SMALL_POINTS,
    facts,
    figure,
    format_number,
    format_return,
    grid,
    key_figure,
    note,
    render,
    section,
    small_figure,
    table,
)
from rl_training.tools.report.record import (
    MAX_VIDEO_BYTES,
    VIDEOS,
    Record,
    Series,
    settings,
)
from rl_training.tools.svg import draw_chart, draw_histogram

STEPS = "environment steps"
EVAL, TRAINING = "eval/return_mean", "rollout/episode_return"
SPEED = "time/steps_per_second"
MAX_CHARTS = 18
POINTS_OF_ALL = 600
"""Points in all small charts together, so that a run with many metrics can be sent by mail."""

_NAMES = {
    EVAL: "evaluation return",
    TRAINING: "training return",
    "rollout/episode_length": "episode length",
    SPEED: "steps per second",
    "train/q_value_mean": "Q value",
    "train/td_error_mean": "TD error",
    "train/approx_kl": "approximate KL divergence",
    "train/alpha": "temperature alpha",
    "eval/q_bias_mean": "Q bias, mean",
    "eval/q_bias_std": "Q bias, standard deviation",
    "eval/q_bias_normalized_mean": "normalised Q bias, mean",
    "eval/q_bias_normalized_std": "normalised Q bias, standard deviation",
    "eval/q_return_mean": "discounted return",
}
TARGETS = ("train/target_mean", "train/target_q_mean")
SCHEDULES = ("epsilon", "learning_rate", "clip_range", "priority_correction")
_ELSEWHERE = {EVAL, TRAINING, SPEED, "rollout/episode_length", "eval/return_std", *TARGETS}


def run_page(record: Record, folder: Path) -> str:
    """The page of a run; links are relative to `folder`."""
    info = record.info
    main = _learning_curves(record)
    body = [
        *_remarks(record),
        _opening(record, folder),
        section("Learning curve", figure(main)) if main.curves else Markup(),
        section("Episodes and speed", grid(_episodes_and_speed(record))),
        section("Q bias", grid(_bias(record))),
        section("Losses and values", grid(_losses(record))),
        settings_section(record),
        history_section(record),
    ]
    seed = "" if info.seed is None else f" \u00b7 seed {info.seed}"
    started = "" if info.started_at is None else f" \u00b7 {start_time(record.metadata)}"
    status = element("span", info.status, class_=f"status {info.status}")
    place = f"{seed}{started} \u00b7 {info.path.resolve().name}"
    return render(
        f"{algorithm(info.algo)} on {info.env_id or 'an unknown task'}",
        [element("p", status, place)],
        body,
    )


def algorithm(name: str) -> str:
    """The title of a packaged algorithm, or the name of another."""
    spec = packaged_specs().get(name)
    return spec.title if spec is not None else name or "An unknown algorithm"


def start_time(metadata: Mapping[str, Any]) -> str:
    """When a run or a session of it began, such as `5 March 2026, 14:30 UTC`."""
    try:
        started = datetime.fromisoformat(str(metadata.get("started_at"))[:100])
    except ValueError:
        return ""
    return f"{started:%d %B %Y, %H:%M} {started.tzname() or ''}".strip().lstrip("0")


def _remarks(record: Record) -> Iterator[Markup]:
    """What a reader has to know before the figures."""
    status = record.info.status
    if error := record.summary.get("error") if status == "failed" else None:
        yield note(f"The run failed: {str(error)[:2000]}", "failed")
    for report in record.divergences:
        at = format_number(finite_number(report.get("env_steps")))
        origin = str(report.get("origin"))[:200]
        yield note(f"Learning diverged: the {origin} was not finite at step {at}.", "failed")
    if status == "running":
        yield note("The run is still live; this is what it had logged when the report was made.")
    if status == "interrupted":
        command = element("code", "rl-training resume")
        yield note(join(["The run was interrupted and saved; ", command, " continues it."]))
    if status == "killed":
        yield note("The run was killed; the figures are those of its last log row.")
    if reason := record.summary.get("stop_reason"):
        yield note(f"Stopped early: {str(reason)[:500]}")
    yield from (note(text) for text in record.notes)


def _opening(record: Record, folder: Path) -> Markup:
    """The key figures, and the video if there is one."""
    figures = element("dl", *_figures(record), class_="figures")
    video = _video(record, folder)
    return element("div", figures, video, class_="opening") if video else figures


def _figures(record: Record) -> Iterator[Markup]:
    info, series = record.info, record.series
    yield from _main_figure(record)
    planned = finite_number(record.config.get("total_timesteps"))
    unfinished = info.status != "finished" and planned is not None
    steps = f"{STEPS} of {format_number(planned)}" if unfinished else STEPS
    yield key_figure(steps, format_number(float(info.env_steps)))
    if (updates := record.number("updates")) is not None:
        yield key_figure("updates", format_number(updates))
    seconds = record.number("wall_time_s")
    if seconds is None and series:
        seconds = max(max(s.seconds) for s in series.values())
    if seconds:
        yield key_figure("wall-clock time", format_duration(seconds))
        speed = record.number("steps_per_second")
        yield key_figure(
            "steps per second", format_number(info.env_steps / seconds if speed is None else speed)
        )
    best = record.number("best_eval_return_mean")
    if best is not None and best != record.number("eval_return_mean"):
        yield key_figure("best evaluation", format_return(best))
    if TRAINING in series and ("eval_return_mean" in record.summary or EVAL in series):
        yield key_figure("latest training return", format_return(series[TRAINING].values[-1]))


def _main_figure(record: Record) -> Iterator[Markup]:
    """The return of the final policy, or else of the latest evaluation, or of training."""
    returns, final = record.returns, record.number("eval_return_mean")
    spread, series = record.number("eval_return_std"), record.series
    if final is not None:
        over = (
            f" over {_count(len(returns), 'episode')}, \u00b1 standard deviation" if returns else ""
        )
        small = "" if spread is None else element("small", f" \u00b1 {format_return(spread)}")
        name = "evaluation return of the final policy" + over
        yield key_figure(name, format_return(final), small, main=True)
    elif EVAL in series:
        latest = series[EVAL]
        name = f"evaluation return at step {latest.steps[-1]:,.0f}, the latest so far"
        yield key_figure(name, format_return(latest.values[-1]), main=True)
    elif TRAINING in series:
        name = "training return, mean of the last 100 episodes; nothing has been evaluated"
        yield key_figure(name, format_return(series[TRAINING].values[-1]), main=True)


def _video(record: Record, folder: Path) -> Markup:
    if record.video is None:
        return Markup()
    name = record.video.name
    try:
        data = read_ordinary(record.video, limit=MAX_VIDEO_BYTES)
    except OSError:
        link = element("a", name, href=quote(os.path.relpath(record.video, folder)))
        return element("p", "The video, too large for this page: ", link)
    kind = VIDEOS[name.rpartition(".")[2]]
    source = Markup(f"data:{kind};base64,{base64.b64encode(data).decode()}")
    text = "video of the agent"
    if kind == "video/mp4":
        return element(
            "video",
            src=source,
            controls=True,
            loop=True,
            muted=True,
            playsinline=True,
            aria_label=text,
        )
    return element("img", src=source, alt=text)


def _learning_curves(record: Record) -> Chart:
    curves = [
        Curve(label=_NAMES[name], x=series.steps, y=series.values)
        for name in (EVAL, TRAINING)
        if (series := record.series.get(name)) is not None
    ]
    lone = f"mean {curves[0].label}" if len(curves) == 1 else "mean return of an episode"
    return Chart(title="Learning curve", x_label=STEPS, y_label=lone, curves=tuple(curves))


def _episodes_and_speed(record: Record) -> Iterator[Markup]:
    """The returns of the final evaluation, and episode length and speed over the run."""
    width, height = SMALL
    if record.returns:
        drawing = draw_histogram(
            record.returns,
            title="returns of the final evaluation",
            x_label="",
            y_label="",
            width=width,
            height=height,
        )
        yield small_figure("final returns", drawing, _count(len(record.returns), "episode"))
    for name in ("rollout/episode_length", SPEED):
        if name in record.series:
            yield _small(name, record.series)


def _bias(record: Record) -> Iterator[Markup]:
    for name in sorted(record.series):
        if name.startswith(("eval/q_bias_", "eval/q_return_")):
            yield _small(name, record.series)


def _losses(record: Record) -> Iterator[Markup]:
    """Charts of losses, values and whatever else was logged and changed."""
    names = [
        name
        for name in record.series
        if name not in _ELSEWHERE and not name.startswith(("eval/q_bias_", "eval/q_return_"))
    ]
    names += [name for name in TARGETS if name in record.series and _estimate(record) is None]
    names.sort(key=metric_order)
    changing = [name for name in names if not record.series[name].constant]
    drawn = changing[:MAX_CHARTS]
    for name in drawn:
        yield _small(name, record.series, min(SMALL_POINTS, POINTS_OF_ALL // len(drawn)))
    if len(changing) > MAX_CHARTS:
        rest = ", ".join(map(readable, changing[MAX_CHARTS:]))
        yield element("p", f"Not drawn: {rest}", class_="soft")


def metric_order(name: str) -> tuple[int, bool]:
    """A sort key: losses, errors, values, the rest, and at the end what only follows a schedule."""
    kinds = ("loss", "error", "value")
    last = any(word in name for word in SCHEDULES)
    first = next((i for i, word in enumerate(kinds) if word in name), len(kinds))
    return len(kinds) + 1 if last else first, not name.startswith("train/")


def _estimate(record: Record) -> Series | None:
    return record.series.get("train/q_value_mean")


def _small(name: str, series: Mapping[str, Series], max_points: int = SMALL_POINTS) -> Markup:
    """A small chart of a metric; of Q-values, with their targets."""
    shown = [(readable(name), series[name])]
    if name == "train/q_value_mean":
        shown += [("its target", series[target]) for target in TARGETS if target in series]
    curves = tuple(Curve(label=label, x=s.steps, y=s.values) for label, s in shown)
    chart = Chart(title=readable(name), x_label="", y_label="", curves=curves)
    width, height = SMALL
    latest = f"{series[name].values[-1]:.4g}".replace("-", "\u2212")
    drawing = draw_chart(chart, width=width, height=height, max_points=max_points)
    return small_figure(readable(name), drawing, latest)


def readable(name: str) -> str:
    """A metric's name in words: `train/critic_loss` is `critic loss`."""
    return _NAMES.get(name) or name.removeprefix("train/").replace("_", " ")[:100]


def settings_section(record: Record) -> Markup:
    """The settings that differ from the defaults, and the metrics that never changed."""
    algo = record.info.algo
    found = settings(record.config)
    if not record.config:
        return Markup()
    if algo not in packaged_specs():
        head, lead = ["setting", "value"], "The settings of this run."
        rows = [[one.name, one.value] for one in found]
    else:
        head, lead = ["setting", "this run", "default"], ""
        rows = [[one.name, one.value, one.default or "\u2013"] for one in found]
        if not rows:
            lead = "All settings are the defaults of the algorithm."
    constant = [
        f"{readable(name)} {series.values[0]:.4g}"
        for name, series in record.series.items()
        if series.constant and len(series.values) > 1 and name.startswith("train/")
    ]
    shown = table(head, rows) if rows else Markup()
    intro = element("p", lead, class_="soft") if lead else Markup()
    unchanged = (
        element("p", f"Logged and constant: {', '.join(constant)}.", class_="soft")
        if constant
        else Markup()
    )
    return section("What differs from the defaults", intro, shown, unchanged)


def history_section(record: Record) -> Markup:
    """Command, machine and versions of the run, and how it was resumed."""
    data = record.metadata
    packages = data.get("packages")
    versions = packages.items() if isinstance(packages, dict) else ()
    command = data.get("command")
    words = [str(word)[:500] for word in command[:50]] if isinstance(command, list) else []
    commit = str(data.get("package_git_commit") or data.get("git_commit") or "")[:12]
    changed = data.get("package_git_dirty", data.get("git_dirty")) is True
    level, reason = (str(data.get(k) or "")[:500] for k in ("resume_level", "resume_level_reason"))
    threads = finite_number(data.get("threads"))
    device = str(data.get("device") or "")[:100]
    shown = facts(
        [
            ("command", element("code", shlex.join(words)) if words else ""),
            ("started", start_time(data)),
            (
                "device",
                f"{device}, {_count(threads, 'thread')}" if threads and device else device,
            ),
            ("platform", str(data.get("platform") or "")[:200]),
            ("Python", str(data.get("python") or "")[:50]),
            ("packages", ", ".join(f"{str(k)[:50]} {str(v)[:50]}" for k, v in versions)[:2000]),
            ("commit", f"{commit}{', with changes' if changed else ''}" if commit else ""),
            ("resume", f"{level}: {reason}" if reason else level),
        ]
    )
    return section("Versions and history", shown, _sessions(data))


def _count(count: float, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count:,.0f} {what}s"


def _sessions(data: Mapping[str, Any]) -> Markup:
    """A row for each time the run was resumed; nothing if it never was."""
    resumed = _objects(data.get("resumed_from"))
    sessions = _objects(data.get("sessions"))[-len(resumed) :] if resumed else []
    rows = []
    for at, entry in enumerate(resumed[:200]):
        session = sessions[at] if at < len(sessions) else {}
        verification = entry.get("verification")
        verdict = verification if isinstance(verification, dict) else {}
        rows.append(
            [
                start_time(session),
                str(entry.get("checkpoint") or "")[:100],
                "exact" if entry.get("exact") is True else "not exact",
                "; ".join(filter(None, (_verdict(verdict), _changes(entry)))),
            ]
        )
    head = ["resumed", "from", "continuation", "why"]
    return element("p") + table(head, rows) if rows else Markup()


def _objects(value: object) -> Sequence[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _verdict(verdict: Mapping[str, Any]) -> str:
    words = (str(verdict.get(key) or "")[:300] for key in ("verdict", "detail"))
    return ": ".join(filter(None, words))


def _changes(entry: Mapping[str, Any]) -> str:
    """What changed before a resume: the budget, versions."""
    found = []
    extended, changed = entry.get("extended"), entry.get("changed")
    if isinstance(extended, dict):
        before, now = (format_number(finite_number(extended.get(key))) for key in ("from", "to"))
        found.append(f"extended from {before} to {now} steps")
    for name, values in changed.items() if isinstance(changed, dict) else ():
        if isinstance(values, dict):
            found.append(
                f"{name}: {str(values.get('from'))[:100]} to {str(values.get('to'))[:100]}"
            )
    return ", ".join(found)[:2000]
