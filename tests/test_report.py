"""The report page: what it says of a run, and that a stranger's run can say no more than that."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rl_training.config.strict_yaml import dump_yaml
from rl_training.errors import RunError, UsageError
from rl_training.storage.runs import RunLock
from rl_training.tools.report import page as page_module
from rl_training.tools.report.record import MAX_VIDEO_BYTES, read_record, settings
from rl_training.tools.report.write import write_report

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m'
CONFIG: dict[str, Any] = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 0}


def write_run(folder: Path, **changes: Any) -> Path:
    """A run as a directory: eight rows of a log, and files that say how it ended."""
    rows = [
        {
            "global_step": 1000 * i,
            "wall_time_s": 2.0 * i,
            "rollout/episode_return": 10.0 * i,
            "train/loss": 1.0 / i,
            "train/learning_rate": 0.001,
        }
        for i in range(1, 9)
    ]
    rows.append({"global_step": 8000, "wall_time_s": 17.0, "eval/return_mean": 150.0})
    files = {
        "config": CONFIG | {"total_timesteps": 8000, "algo_kwargs": {"gamma": 0.9}},
        "metadata": {"algo": "dqn", "env_id": "CartPole-v1", "seed": 0, "resume_level": "exact"},
        "summary": {
            "status": "finished",
            "seed": 0,
            "global_step": 8000,
            "updates": 3500,
            "eval_return_mean": 150.0,
            "eval_return_std": 50.0,
            "eval_returns": [100.0, 200.0],
            "wall_time_s": 17.0,
        },
        "rows": rows,
    } | changes
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_yaml(files["config"]))
    (folder / "metadata.json").write_text(json.dumps(files["metadata"]))
    if files["summary"] is not None:
        (folder / "summary.json").write_text(json.dumps(files["summary"]))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in files["rows"]))
    return folder


def report(*paths: Path) -> str:
    """The page about some runs, which is also checked to be a page of ours alone."""
    text = write_report(paths, paths[0].parent / "page.html").read_text(encoding="utf-8")
    check_harmless(text)
    return text


class Tags(HTMLParser):
    """Everything in a page that could load or run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.scripts and not self.scripts[-1]:
            self.scripts[-1] = data


def check_harmless(text: str) -> None:
    tags = Tags(text)
    assert tags.scripts == [Path(page_module.__file__).with_name("page.js").read_text()]
    assert not tags.tags & {"iframe", "object", "embed", "base", "form", "link", "image", "use"}
    assert not any(name.startswith("on") or name == "style" for name in tags.attributes)
    assert all(re.match(r"data:(image|video)/|[\w./%-]+$", link) for link in tags.addresses)


def words(text: str) -> str:
    """What a reader sees, in one line."""
    body = re.sub(r"<(style|script|title|desc)\b.*?</\1>", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def test_the_page_of_a_run_says_what_came_out(tmp_path: Path) -> None:
    text = words(report(write_run(tmp_path / "run")))
    assert "Deep Q-network on CartPole-v1" in text
    assert "finished \u00b7 seed 0 \u00b7 run" in text
    assert "150.0 \u00b1 50.0" in text
    assert "over 2 episodes" in text
    assert "environment steps 8,000" in text
    assert "17 s" in text
    assert "471" in text  # 8,000 steps in 17 seconds
    assert "learning rate 0.001" in text  # in words, as it never changed


def test_the_curves_hold_the_logged_values(tmp_path: Path) -> None:
    text = report(write_run(tmp_path / "run"))
    steps = " ".join(str(1000 * i) for i in range(1, 9))
    values = " ".join(str(10 * i) for i in range(1, 9))
    assert f'data-name="training return" data-x="{steps}" data-y="{values}"' in text
    assert 'data-name="evaluation return" data-x="8000" data-y="150"' in text


def test_only_what_differs_from_the_defaults_is_listed(tmp_path: Path) -> None:
    config = CONFIG | {"total_timesteps": 8000, "algo_kwargs": {"gamma": 0.9, "n_step": 1}}
    found = settings(read_record(write_run(tmp_path / "run", config=config)).config)
    assert [(s.name, s.value, s.default) for s in found] == [
        ("total_timesteps", "8,000", "50,000"),
        ("gamma", "0.9", "0.99"),
    ]


def test_an_algorithm_named_by_a_run_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit('imported')")
    named = {"algo": "stranger:SPEC", "env_id": "stranger:Env"}
    run = write_run(
        tmp_path / "run",
        config=named | {"seed": 0, "algo_kwargs": {"power": 9}, "callbacks": ["stranger:Call"]},
        metadata=named,
    )
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from rl_training.tools.report.write import write_report\n"
        "write_report([Path(sys.argv[2])])\n"
        "assert 'torch' not in sys.modules, 'torch takes seconds'\n"
        "assert 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path, run], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    text = words((run / "report.html").read_text())
    assert "stranger:SPEC on stranger:Env" in text
    assert "power 9" in text


def test_resumes_are_listed_with_what_the_replay_found(tmp_path: Path) -> None:
    resumed = [
        {
            "checkpoint": "step_000000004000",
            "exact": False,
            "extended": {"from": 4000, "to": 8000},
            "verification": {"verdict": "verified", "detail": "25 steps replayed"},
        }
    ]
    sessions = [{"started_at": f"2026-11-{day}T12:00:00+00:00"} for day in (17, 18)]
    run = write_run(tmp_path / "run", metadata={"sessions": sessions, "resumed_from": resumed})
    text = words(report(run))
    assert (
        "18 November 2026, 12:00 UTC step_000000004000 not exact verified: 25 steps replayed; "
        "extended from 4,000 to 8,000 steps"
    ) in text


def test_a_failure_and_a_divergence_stand_above_the_figures(tmp_path: Path) -> None:
    summary = {"status": "failed", "error": "the loss is not finite", "global_step": 5000}
    run = write_run(tmp_path / "run", summary=summary)
    (run / "divergence").mkdir()
    found = {"origin": "loss of the batch", "env_steps": 5000}
    (run / "divergence" / "step_000000005000.json").write_text(json.dumps(found))
    text = words(report(run))
    assert "The run failed: the loss is not finite" in text
    assert "the loss of the batch was not finite at step 5,000" in text


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", summary=None)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 9000, "eval/ret')  # being written
    with RunLock(run):
        text = words(report(run))
    assert "running" in text
    assert "The run is still live" in text
    assert "evaluation return at step 8,000, the latest so far" in text


def test_an_interrupted_run_says_how_far_it_came_and_how_to_go_on(tmp_path: Path) -> None:
    summary = {"status": "interrupted", "global_step": 5000}
    text = words(report(write_run(tmp_path / "run", summary=summary)))
    assert "The run was interrupted and saved; rl-training resume continues it." in text
    assert "environment steps of 8,000 5,000" in text


def test_a_run_without_evaluations_shows_its_training_return(tmp_path: Path) -> None:
    rows = [{"global_step": 1000, "wall_time_s": 2.0, "rollout/episode_return": 21.5}]
    text = words(report(write_run(tmp_path / "run", rows=rows, summary=None)))
    assert "21.5" in text
    assert "nothing has been evaluated" in text
    assert "killed" in text


def test_a_run_that_has_not_logged_anything_still_has_a_page(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rows=[], summary=None)
    (run / "metrics.jsonl").unlink()
    text = words(report(run))
    assert "Learning curve" not in text
    assert "What differs from the defaults" in text


def test_an_experiment_names_the_seeds_that_are_missing(tmp_path: Path) -> None:
    experiment = tmp_path / "experiment"
    for seed, value in enumerate((100.0, 200.0)):
        named = CONFIG | {"seed": seed}
        summary = {"status": "finished", "global_step": 8000, "eval_return_mean": value}
        write_run(experiment / f"seed-{seed}", config=named, metadata=named, summary=summary)
    planned = [{"seed": seed, "status": "finished"} for seed in range(3)]
    (experiment / "experiment.json").write_text(json.dumps({"seeds": planned}))
    text = words(report(experiment))
    assert "interquartile mean over 2 seeds" in text
    assert "150.0" in text
    assert "not counted: seed 2 missing" in text


def test_experiments_are_compared_in_a_sentence_and_a_table(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("near", "far")]
    for path, level in zip(paths, (100.0, 200.0), strict=True):
        for seed in range(5):
            kwargs = {"gamma": 0.9 if level == 100.0 else 0.99}
            named = CONFIG | {"seed": seed, "algo_kwargs": kwargs}
            summary = {"status": "finished", "eval_return_mean": level + seed}
            write_run(path / f"seed-{seed}", config=named, metadata=named, summary=summary)
    text = words(report(*paths))
    # Every seed of the second is better than every one of the first; the middle three count.
    assert "far is better than near" in text
    assert "far over near CartPole-v1 100.0 [" in text
    assert "near CartPole-v1 5 102.0 " in text
    assert "far CartPole-v1 5 202.0 " in text


def test_runs_side_by_side_keep_their_colours_and_show_what_differs(tmp_path: Path) -> None:
    runs = []
    for name, gamma in (("near", 0.9), ("far", 0.99)):
        named = CONFIG | {"seed": 0, "algo_kwargs": {"gamma": gamma, "n_step": 3}}
        runs.append(write_run(tmp_path / name, config=named))
    page = report(*runs)
    assert re.findall(r'class="line (c\d)"[^>]*data-name="(\w+)', page)[:2] == [
        ("c1", "far"),
        ("c0", "near"),
    ]
    assert "setting near far gamma 0.9 0.99" in words(page)
    assert "n_step" not in words(page)


def test_a_card_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written = write_report([Path("dqn/cartpole_masked")])
    assert written == Path("report.html")
    check_harmless(written.read_text())
    assert "interquartile mean over" in words(written.read_text())


def hostile_run(folder: Path, seed: object = HOSTILE) -> Path:
    """Every text that a run's files hold is an attack, and every number absurd."""
    absurd = {"1": 10**400, "2": -1e308, "3": True, "4": [HOSTILE], "5": {HOSTILE: HOSTILE}}
    rows: list[dict[str, Any]] = [
        {"global_step": step, "wall_time_s": HOSTILE, HOSTILE: value, f"train/{HOSTILE}": value}
        for step, value in ((0, 1e17), (10**17, -1e17), (-5, None), (1, 10**300), (2, 0.5))
    ]
    rows += [{"global_step": 3, "rollout/episode_return": 1e9}]
    rows += [{"global_step": HOSTILE, "eval/return_mean": 1}, {HOSTILE: HOSTILE}, absurd]
    texts = ["status", "stop_reason", "error", "eval_return_mean", "eval_returns", "updates"]
    data = ["started_at", "command", "device", "python", "platform", "packages", "resume_level"]
    data += ["resume_level_reason", "package_git_commit", "threads", "sessions", "resumed_from"]
    metadata = dict.fromkeys([*data, "algo", "env_id", "seed"], HOSTILE) | {
        "seed": seed,
        "packages": {HOSTILE: HOSTILE},
        "command": [HOSTILE] * 3,
        "resumed_from": [
            dict.fromkeys(("checkpoint", "exact", "extended", "changed"), HOSTILE),
            {"changed": {HOSTILE: {"from": HOSTILE}}, "verification": {"verdict": HOSTILE}},
        ],
        "sessions": [HOSTILE, {"started_at": HOSTILE}],
    }
    run = write_run(
        folder / HOSTILE.replace("/", "\u2215"),
        config={HOSTILE: HOSTILE, "algo": HOSTILE, "algo_kwargs": {HOSTILE: [HOSTILE]}},
        metadata=metadata,
        summary=dict.fromkeys(texts, HOSTILE) | {"status": "failed", "eval_returns": [HOSTILE, 1]},
        rows=rows,
    )
    (run / "divergence").mkdir()
    diverged = {"origin": HOSTILE, "env_steps": HOSTILE}
    (run / "divergence" / "step_000000000001.json").write_text(json.dumps(diverged))
    return run


def test_nothing_a_run_says_becomes_part_of_the_page(tmp_path: Path) -> None:
    text = report(hostile_run(tmp_path))
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_nothing_that_several_runs_say_becomes_part_of_the_page(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good", metadata=CONFIG | {"env_id": HOSTILE, "algo": HOSTILE})
    text = report(hostile_run(tmp_path / "a", seed=3), good)
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert "2 configurations" in words(text)


@pytest.mark.parametrize("name", ["config.yaml", "metadata.json", "summary.json", "metrics.jsonl"])
@pytest.mark.parametrize("damage", ["noise", "link", "list", "deep"])
def test_a_damaged_file_is_left_out_and_named(tmp_path: Path, name: str, damage: str) -> None:
    run = write_run(tmp_path / "run")
    secret = tmp_path / "secret.txt"
    secret.write_text('{"eval_return_mean": 12345}')
    path = run / name
    path.unlink()
    if damage == "link":
        path.symlink_to(secret)
    else:
        path.write_bytes({"noise": b"\xff\x00\n", "list": b"[1]\n", "deep": b"[" * 100_000}[damage])
    if damage == "deep" and name == "metrics.jsonl":
        path.write_bytes(b"[" * 100_000 + b"\n")
    text = words(report(run))
    assert name in text
    assert "12345" not in text


def test_ten_thousand_metrics_do_not_make_ten_thousand_charts(tmp_path: Path) -> None:
    rows = [
        {"global_step": step} | {f"train/m{i}": step * i for i in range(10_000)} for step in (1, 2)
    ]
    assert len(report(write_run(tmp_path / "run", rows=rows))) < 60_000


def test_a_long_run_fits_a_mail(tmp_path: Path) -> None:
    rows = []
    for i in range(1, 2_001):
        values = {f"train/metric_{k}": (i * 7919 * (k + 1)) % 1000 / 7 for k in range(30)}
        rows.append({"global_step": 500 * i, "wall_time_s": 1.0 * i} | values)
        rows[-1] |= {"rollout/episode_return": (i * 104_729) % 500 / 3, "eval/return_mean": i / 3}
    summary = {"status": "finished", "eval_returns": [i / 7 for i in range(100)]}
    text = report(write_run(tmp_path / "run", rows=rows, summary=summary))
    assert len(text.encode()) < 60_000


def test_the_policy_admits_the_style_and_the_script_of_the_page_alone(tmp_path: Path) -> None:
    text = report(write_run(tmp_path / "run"))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = dict(part.split(" ", 1) for part in policy[1].replace("&#x27;", "'").split("; "))
    for name in ("style", "script"):
        content = re.search(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
        assert content is not None
        digest = base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()
        assert rules.pop(f"{name}-src") == f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "media-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_a_video_is_inside_the_page_or_linked_where_it_is_large(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a run")
    (run / "video.gif").write_bytes(b"GIF89a" + b"\0" * 10)
    encoded = base64.b64encode(b"GIF89a" + b"\0" * 10).decode()
    assert f'<img src="data:image/gif;base64,{encoded}"' in report(run)
    with (run / "video.gif").open("wb") as file:
        file.truncate(MAX_VIDEO_BYTES + 1)
    assert '<a href="a%20run/video.gif">' in report(run)


def test_a_video_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (tmp_path / "secret").write_bytes(b"secret")
    (run / "video.mp4").symlink_to(tmp_path / "secret")
    assert base64.b64encode(b"secret").decode() not in report(run)


def test_a_report_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    first = write_report([run])
    assert first == run / "report.html"
    content = first.read_bytes()
    assert write_report([run]).read_bytes() == content  # and is the same each time
    notes = run / "notes.html"
    notes.write_text("mine")
    with pytest.raises(UsageError, match="no report of ours"):
        write_report([run], notes)
    assert notes.read_text() == "mine"
    linked = run / "linked.html"
    linked.symlink_to(first)
    with pytest.raises(UsageError, match="no report of ours"):
        write_report([run], linked)
    with pytest.raises(UsageError, match=r"ends in \.html"):
        write_report([run], run / "config.yaml")


def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "empty", tmp_path / "file", tmp_path / "absent"):
        with pytest.raises((RunError, UsageError)) as caught:
            write_report([path], tmp_path / "page.html")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "page.html").exists()
