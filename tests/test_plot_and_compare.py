"""`rl-training plot` and `rl-training compare`: what they write, say and refuse."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from result_files import write_experiment, write_run
from rl_training.cli import app
from rl_training.errors import RLTrainingError
from rl_training.experiment.statistics import Estimate
from rl_training.tools.charts import Chart, Curve, Rule
from rl_training.tools.comparison import Comparison, compare
from rl_training.tools.comparison_output import number, short
from rl_training.tools.evidence.card import write_card
from rl_training.tools.evidence.tasks import draw_task, is_task_drawn, task_figures
from rl_training.tools.report.page import content_security_policy
from rl_training.tools.results import read_results
from test_evidence_card import make_card

LOW, HIGH = [1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def compared(*paths: Path, threshold: float | None = None) -> Comparison:
    return compare(read_results(paths), threshold)


@pytest.fixture
def pair(tmp_path: Path) -> Sequence[Path]:
    """Two experiments that no seed of one and the other share a value."""
    ppo = write_experiment(tmp_path / "ppo", HIGH, algo="ppo")
    return write_experiment(tmp_path / "dqn", LOW), ppo


# Comparison


def test_what_never_overlaps_is_told_apart_whichever_comes_first(pair: Sequence[Path]) -> None:
    verdict = "ppo is better than dqn: probability of improvement 1.00 [1.00, 1.00]"
    for order in (pair, pair[::-1]):
        comparison = compared(*order)
        assert comparison.sentences == (verdict,)
    ((one,),) = (task.pairs for task in comparison.tasks)
    assert (one.name, one.reference, one.winner) == ("dqn", "ppo", "ppo")
    assert one.difference.value == pytest.approx(-5.0, abs=1e-9)  # 3 - 8, the middle three
    assert one.improvement == Estimate(0.0, 0.0, 0.0)


def test_what_seeds_do_not_tell_apart_says_how_many_would(tmp_path: Path) -> None:
    # 3 is above 2, half of the pairs with 3 count: the probability is near one half.
    dqn = write_experiment(tmp_path / "dqn", [1.0, 2.0, 3.0, 4.0, 5.0])
    ppo = write_experiment(tmp_path / "ppo", [2.0, 3.0, 4.0, 4.0, 6.0], algo="ppo")
    ((found,),) = (task.pairs for task in compared(dqn, ppo).tasks)
    # Of 25 pairs 2 wins 1, 3 wins 2, 4 wins 3 twice, 6 wins 5; equal are 1 + 1 + 1 + 1.
    assert found.improvement.value == pytest.approx((14 + 0.5 * 4) / 25, abs=1e-9)
    assert found.winner == ""
    needed = found.seeds_needed
    assert needed is not None
    assert 20 < needed < 200
    assert found.sentence == (
        f"five seeds do not tell ppo and dqn apart (p = 0.52); about {needed} would"
    )


def test_equal_results_are_told_apart_by_no_number_of_seeds(tmp_path: Path) -> None:
    dqn = write_experiment(tmp_path / "dqn", [5.0] * 4)
    ppo = write_experiment(tmp_path / "ppo", [5.0] * 4, algo="ppo")
    (sentence,) = compared(dqn, ppo).sentences
    assert sentence == (
        "four seeds do not tell ppo and dqn apart (p = 1); "
        "no number up to 1,000 would if these are typical"
    )


def test_three_seeds_each_never_suffice(tmp_path: Path) -> None:
    dqn = write_experiment(tmp_path / "dqn", LOW[:3])
    ppo = write_experiment(tmp_path / "ppo", HIGH[:3], algo="ppo")
    comparison = compared(dqn, ppo)
    assert comparison.sentences == (
        "three seeds do not tell ppo and dqn apart (fewer than 4); about 4 would",
    )
    assert comparison.notes == ("fewer than 4 seeds of dqn and ppo: their intervals say little",)
    assert comparison.tasks[0].profiles[0].low == ()


def test_steps_to_a_threshold_count_seeds_that_never_reach_it(tmp_path: Path) -> None:
    dqn = write_experiment(tmp_path / "dqn", [1.0, 8.0, 10.0, 20.0, 3.0])
    ppo = write_experiment(tmp_path / "ppo", LOW, algo="ppo")
    (task,) = compared(dqn, ppo, threshold=8.0).tasks
    # 20 / 2 at step 500, 8 and 10 at 1000, two never: the median is the third of five.
    assert (task.rows[0].reached, task.rows[0].steps.value) == (3, 1000)
    assert (task.rows[1].reached, task.rows[1].steps.value) == (0, float("inf"))
    assert compared(dqn, ppo).tasks[0].threshold == 3.0  # the lower of the two means


def test_seeds_without_an_end_and_other_budgets_are_noted(tmp_path: Path) -> None:
    dqn = write_experiment(tmp_path / "dqn", LOW, planned=range(6))
    ppo = write_experiment(tmp_path / "ppo", HIGH, algo="ppo", total_timesteps=2000)
    assert compared(dqn, ppo).notes == (
        "dqn: seed 5 missing, left out",
        "the final values are after different numbers of steps: dqn 1,000; ppo 2,000",
    )


def test_over_several_environments_scores_are_relative_to_the_seeds_compared(
    tmp_path: Path,
) -> None:
    paths = [
        write_experiment(tmp_path / f"{algo}-{env}", values, algo=algo, env_id=env)
        for algo, env, values in (
            ("dqn", "A", [0.0, 0.0, 10.0, 10.0]),
            ("dqn", "B", [100.0] * 4),
            ("ppo", "A", [10.0] * 4),
            ("ppo", "B", [300.0, 200.0, 300.0, 200.0]),
        )
    ]
    comparison = compared(*paths)
    assert comparison.aggregate is not None
    # dqn: 0 0 1 1 and 0 0 0 0, of which the middle four are 0. ppo: 1 1 1 1 and 1 .5 1 .5: all 1.
    assert [score.value for score in comparison.aggregate.scores] == [0.0, 1.0]
    (overall,) = comparison.aggregate.pairs
    assert overall.improvement.value == pytest.approx((0.75 + 1) / 2, abs=1e-9)
    assert comparison.sentences[-1].startswith("over all environments: ppo is better than dqn")
    uneven = compared(*paths[:3], write_experiment(tmp_path / "x", HIGH, algo="ppo", env_id="B"))
    assert uneven.aggregate is None
    assert "as many seeds of ppo on each, found 4, 5" in uneven.notes[-1]


def test_what_cannot_be_compared_is_refused(pair: Sequence[Path], tmp_path: Path) -> None:
    maze = write_experiment(tmp_path / "maze", LOW, env_id="Maze-v1")
    empty = write_run(
        tmp_path / "x", [{"global_step": 1, "eval/return_mean": 1}], algo="sac", status=None
    )
    for paths, threshold, message in (
        ([pair[0]], None, "expected at least two results on one environment, found dqn on Chain"),
        ([pair[0], maze], None, "found dqn on Chain-v0; dqn on Maze-v1"),
        ([*pair, maze], 1.0, "1 cannot mean the same on 2 environments"),
        (pair, float("nan"), "expected a finite number"),
        ([pair[0], empty], None, r"sac has no finished seed with a final value \(seed 0 killed\)"),
    ):
        with pytest.raises(RLTrainingError, match=message):
            compared(*paths, threshold=threshold)


# The commands


@pytest.mark.extra("report")
def test_compare_prints_tables_of_80_columns_a_figure_and_the_sentences_last(
    pair: Sequence[Path], tmp_path: Path
) -> None:
    path = tmp_path / "figure.png"
    result = run("compare", *pair, "--out", path)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= max(80, len(f"picture: {path}"))
    rows = [line.split() for line in result.stdout.splitlines()]
    (dqn,) = (row for row in rows if row[:3] == ["dqn", "5", "3"])
    assert dqn[5:] == ["1", "1k", "[1k,", ">", "1k]"]
    (ppo,) = (row for row in rows if row[:2] == ["ppo", "5"] and len(row) == 8)
    # Ahead in all 25 pairs: z = (12.5 - 0.5) / sqrt(25 * 11 / 12) = 2.507.
    assert ppo[4:] == ["1.00", "[1.00,", "1.00]", "0.012"]
    assert result.stdout.splitlines()[-1].startswith("ppo is better than dqn: probability")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_compare_as_json_is_the_comparison_without_a_figure(
    pair: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("compare", *pair, "--json", "--threshold", "100")
    found = json.loads(result.stdout)
    assert found["tasks"][0]["rows"][0]["steps"] == {"value": None, "low": None, "high": None}
    assert found["tasks"][0]["pairs"][0]["improvement"]["value"] == 1.0
    assert found["sentences"] == list(compared(*pair).sentences)
    assert not list(tmp_path.glob("*.png"))


def test_compare_without_matplotlib_says_what_is_missing(
    pair: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("compare", *pair)
    assert result.exit_code == 0, result.output
    assert "no picture: matplotlib is not installed: pip install 'rl-training[report]'" in (
        result.stdout
    )
    for command in (["compare", *pair, "--out", "x.png"], ["plot", *pair]):
        refused = run(*command)
        assert refused.exit_code == 2
        assert "pip install 'rl-training[report]'" in refused.stderr


@pytest.mark.extra("report")
def test_plot_draws_each_kind_of_file_the_same_every_time(
    pair: Sequence[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("plot", *pair)
    assert (result.exit_code, result.stdout) == (0, "picture: dqn-ppo-Chain-v0.png\n")
    for kind, start in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("html", b"<!DOCTYPE html>")):
        path = tmp_path / f"curves.{kind}"
        assert run("plot", *pair, "--x", "time", "--smooth", "2", "--out", path).exit_code == 0
        first = path.read_bytes()
        assert first.startswith(start)
        assert run("plot", *pair, "--x", "time", "--smooth", "2", "--out", path).exit_code == 0
        assert path.read_bytes() == first


def test_a_page_holds_no_markup_of_a_stranger_and_runs_only_its_own_script(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script>"onload=x $a_b$ --> _'
    folder = write_experiment(tmp_path / "evil", LOW, env_id=evil, algo=f"_{evil}")
    path = tmp_path / "page.html"
    result = run("plot", folder, "--title", f"{evil}]]>", "--out", path)
    assert result.exit_code == 0, result.output
    tags: list[str] = []
    texts: list[str] = []
    attributes: list[tuple[str, str | None]] = []

    class Page(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            attributes.extend(attrs)

        def handle_data(self, data: str) -> None:
            texts.append(data)

    Page().feed(path.read_text())
    assert {"figure", "svg", "path", "title"} <= set(tags)
    assert tags.count("script") == 1
    assert not {"img", "link", "iframe"} & set(tags)
    assert not [name for name, _ in attributes if name.startswith("on")]
    assert f"{evil}]]>" in texts
    assert ("content", content_security_policy()) in attributes


@pytest.mark.extra("report")
def test_only_a_picture_is_replaced_by_a_picture(pair: Sequence[Path], tmp_path: Path) -> None:
    thesis, link, folder = tmp_path / "a.html", tmp_path / "b.png", tmp_path / "c.svg"
    thesis.write_text("<!doctype html> my thesis")
    link.symlink_to(thesis)
    folder.mkdir()
    for path in (thesis, link, folder):
        refused = run("plot", pair[0], "--out", path)
        assert refused.exit_code == 2, path
        assert "choose another name, or remove it" in refused.stderr
    assert thesis.read_text() == "<!doctype html> my thesis"
    for words, message in (
        (["--out", tmp_path / "x.jpg"], "ends in .png, .svg, .pdf or .html"),
        (["--out", tmp_path / "none" / "x.png"], "there is no directory"),
        (["--x", "episodes"], "expected steps or time"),
    ):
        refused = run("plot", pair[0], *words)
        assert refused.exit_code == 2
        assert message in refused.stderr


@pytest.mark.extra("report")
def test_a_frame_begins_at_zero_steps_and_shows_every_point() -> None:
    from matplotlib.figure import Figure

    from rl_training.tools.plotting import draw_chart

    axes = Figure().add_subplot()
    single = (((50.0, 400.0), (-900.0, 3.0)),)
    curve = Curve(label="_a$b$", x=(100.0, 200.0), y=(-5.0, 2.0), single=single)
    rule = Rule(y=40.0, label="theirs")
    draw_chart(axes, Chart(title="t", x_label="x", y_label="y", curves=(curve,), rules=(rule,)))
    assert axes.get_xlim() == (0, 400)
    low, high = axes.get_ylim()
    assert (low < -900, high > 40) == (True, True)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text().strip() for text in legend.get_texts()] == ["_a$b$", "theirs"]


def test_numbers_have_four_digits() -> None:
    values = (0, 0.012345, 12.3456, -138.75, 1234.5, 1e7, 1e-12, 500.0)
    texts = [number(value) for value in values]
    assert texts == ["0", "0.01235", "12.35", "-138.8", "1,234", "10,000,000", "1e-12", "500"]
    assert [short(count) for count in (950, 12_500, 3_000_000)] == ["950", "12.5k", "3M"]


# Evidence cards by task


@pytest.mark.extra("report")
def test_the_cards_of_one_task_share_a_figure_with_a_panel_for_comparable_budgets(
    tmp_path: Path,
) -> None:
    def card(algo: str, budget: int, env_id: str = "Chain-v0") -> object:
        configuration = {"algo": algo, "env_id": env_id}
        return make_card([1.0], config=f"{algo}/x", budget=budget, configuration=configuration)

    cards = {"dqn/x": card("dqn", 1000), "ppo/x": card("ppo", 4000), "sac/x": card("sac", 4001)}
    cards["dqn/y"] = card("dqn", 1000, "Maze-v1")  # alone on its task
    (figure,) = task_figures(cards)  # type: ignore[arg-type]
    assert (figure.task, figure.file_name) == ("Chain-v0", "Chain-v0.png")
    assert [[curve.label for curve in chart.curves] for chart in figure.charts] == [
        ["dqn (1 seed)", "ppo (1 seed)"],
        ["sac (1 seed)"],
    ]
    path = tmp_path / "pictures" / figure.file_name
    draw_task(figure, path)
    assert is_task_drawn(figure, path)
    cards["ppo/x"] = make_card([2.0], configuration={"algo": "ppo", "env_id": "Chain-v0"})
    (changed,) = task_figures(cards)  # type: ignore[arg-type]
    assert not is_task_drawn(changed, path)


def test_a_card_counts_its_failed_seeds_in_a_comparison(tmp_path: Path) -> None:
    write_card(tmp_path / "a.json", make_card(LOW, config="dqn/a", failure_below=2.5))
    write_card(tmp_path / "b.json", make_card(HIGH, config="dqn/b"))
    (task,) = compared(tmp_path / "a.json", tmp_path / "b.json").tasks
    assert [(row.name, row.failed) for row in task.rows] == [("dqn/a", 2), ("dqn/b", None)]
