"""Evidence cards as files: read, refused, drawn, compared, reproduced, made into a page."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from processes import WarmPopen
from rl_training.cli import app
from rl_training.errors import MissingExtra, RunError
from rl_training.experiment.registry import resolve_config
from rl_training.tools.evidence.card import (
    Card,
    Curve,
    Published,
    SeedRecord,
    read_card,
    read_cards,
    write_card,
)
from rl_training.tools.evidence.plot import BIAS, card_charts, draw_card, is_drawn
from rl_training.tools.evidence.reproduce import compare
from rl_training.tools.evidence.seeds import card_configuration, figures_over, this_machine
from rl_training.tools.plotting import paper_name
from test_docs import broken_links, generate  # noqa: F401 - a fixture
from test_experiment_manager import replace_popen

PUBLISHED = Published(
    return_mean=-172.225, return_std=104.159, steps=100_000, what="Theirs", source="https://x.org/y"
)


def seed_record(seed: int, mean: float) -> SeedRecord:
    return SeedRecord(
        seed=seed,
        return_mean=mean,
        return_std=1.5,
        episodes=100,
        steps=1000,
        seconds=30.0 + seed,
        sessions=1,
        device="cpu",
        threads=1,
        commit="0123456789abcdef",
        versions={"torch": "2.6"},
        curve={"steps": [500, 1000], "returns": [mean / 2, mean]},
    )


def make_card(returns: list[float], **changes: Any) -> Card:
    values: dict[str, Any] = {
        "config": "dqn/chain",
        "command": "rl-training evidence run dqn/chain --seeds 0-4",
        "date": "2026-11-15",
        "budget": 1000,
        "evaluation": {"episodes": 100, "deterministic": True},
        "figures": figures_over(returns),
        "tolerance": 2.5,
        "published": None,
        "note": None,
        "seeds": [seed_record(seed, mean) for seed, mean in enumerate(returns)],
        "configuration": {"algo": "dqn", "env_id": "Chain-v0"},
        "machine": {
            "cpu": "A processor",
            "cores": 4,
            "cores_usable": 2,
            "memory": "8.0 GiB",
            "platform": "Linux",
        },
        "commit": "0123456789abcdef",
        "versions": {"torch": "2.6"},
    }
    return Card(**(values | changes)).sealed()


def with_returns(card: Card, returns: list[float]) -> tuple[SeedRecord, ...]:
    pairs = zip(card.seeds, returns, strict=True)
    return tuple(record.model_copy(update={"return_mean": mean}) for record, mean in pairs)


# The file


def test_a_card_comes_back_as_it_was_written(tmp_path: Path) -> None:
    card = make_card([1.0, 2.0, 0.75], published=PUBLISHED, note="Grüße")
    path = tmp_path / "dqn" / "chain.json"
    write_card(path, card)
    assert read_card(path) == card
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[1] == '  "format": 1,'
    assert lines[7] == '  "figures": {"iqm": 1.25, "interval_95": [0.75, 2.0], "lowest": 0.75},'
    assert lines[-2] == f'  "digest": "{card.digest}"'
    write_card(tmp_path / "again.json", read_card(path))
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("edit", [("15.0", "16.0"), ("chain", "train"), ('"cpu"', '"gpu"')])
def test_a_card_that_was_edited_by_hand_is_refused(tmp_path: Path, edit: tuple[str, str]) -> None:
    path = tmp_path / "dqn" / "chain.json"
    write_card(path, make_card([15.0] * 3))
    text = path.read_text()
    path.write_text(text.replace("\n", "\n\n"))  # white space is not content
    read_card(path)
    path.write_text(text.replace(*edit, 1))
    with pytest.raises(RunError, match="was changed after it was written"):
        read_card(path)
    result = CliRunner().invoke(app, ["evidence", "list", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert "chain.json was changed after it was written" in result.stderr
    assert "missing" in result.stdout


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no evidence card"),
        ("[]", "expected a JSON object with a format"),
        ('{"format": 2}', "is a card of format 2, expected 1"),
        ('{"format": 1, "format": 1}', "duplicate key"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_card_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "card.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(RunError, match=message):
        read_card(path)


def test_what_is_wrong_with_a_card_comes_with_the_command_that_makes_it_anew(
    tmp_path: Path,
) -> None:
    path = tmp_path / "evidence" / "dqn" / "cartpole.json"
    write_card(path, make_card([1.0]))
    whole = path.read_text()
    for content in (whole[:-200], whole.replace("2.5", "3.5"), "{}", '{"format": 0}'):
        path.write_text(content)
        for place, command in (
            (path, "`rl-training evidence run dqn/cartpole`"),
            (tmp_path / "evidence" / "dqn" / "mine.json", "the command that made it"),
            (tmp_path / "others" / "dqn" / "cartpole.json", "the command that made it"),
        ):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
            with pytest.raises(RunError, match=f"delete it, then run {command} again$"):
                read_card(place)


def test_a_sealed_card_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    card = make_card([1.0]).model_copy(update={"budget": "many"}).sealed()
    write_card(tmp_path / "card.json", card)
    with pytest.raises(RunError, match=r"\(budget: .* integer.*\): restore it"):
        read_card(tmp_path / "card.json")


# The figures and the rule


def test_the_figures_are_interquartile_mean_interval_and_lowest() -> None:
    # One of five is cut from each end: the mean of 2, 3 and 4.
    figures = figures_over([100.0, 1.0, 3.0, 4.0, 2.0])
    assert (figures.iqm, figures.lowest) == (3.0, 1.0)
    assert figures.interval_95[0] < 3.0 < figures.interval_95[1]
    # Two values have resampled means 0, 1/2 and 1, each end in a quarter of the cases.
    assert figures_over([0.0, 1.0]).interval_95 == (0.0, 1.0)


def test_a_reproduction_passes_down_to_the_low_end_minus_the_tolerance() -> None:
    card = make_card([50.0] * 4, tolerance=2.5)
    for returns, passed in (
        ([47.5] * 4, True),
        ([47.49] * 4, False),
        ([0.0, 47.5, 47.5, 99.0], True),  # the interquartile mean counts
        ([9000.0] * 4, True),  # better is no failure
    ):
        outcome = compare(card, card.seeds, with_returns(card, returns))
        assert outcome.bound == 47.5
        assert outcome.passed is passed


def test_the_low_end_is_that_of_the_interval() -> None:
    card = make_card([0.0, 1.0], tolerance=0.25)
    assert card.figures.iqm == 0.5
    outcome = compare(card, card.seeds, with_returns(card, [-0.25, -0.25]))
    assert (outcome.bound, outcome.passed) == (-0.25, True)


def test_some_seeds_are_compared_with_the_same_seeds_of_the_card() -> None:
    card = make_card([50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 50.0, 10.0], tolerance=1.0)
    unlucky = card.seeds[-1:]
    outcome = compare(card, unlucky, unlucky)
    assert (outcome.iqm, outcome.bound, outcome.passed) == (10.0, 9.0, True)
    assert not compare(card, card.seeds[:1], unlucky).passed


def test_equal_bits_pass_and_other_bits_are_compared_as_distributions() -> None:
    card = make_card([1.0, 2.0], tolerance=0.0)
    assert compare(card, card.seeds, card.seeds).compared == "bits"
    better = compare(card, card.seeds, with_returns(card, [2.0, 2.0]))
    worse = compare(card, card.seeds, with_returns(card, [0.0, 0.0]))
    assert (better.compared, better.passed) == ("distributions", True)
    assert (worse.compared, worse.passed) == ("distributions", False)


def test_what_may_explain_other_bits_is_named() -> None:
    card = make_card([1.0, 2.0], machine=this_machine().to_plain())
    same = [
        record.model_copy(update={"commit": card.commit, "versions": card.versions})
        for record in card.seeds
    ]
    assert compare(card, card.seeds, tuple(same)).differences == ()
    newer = same[0].model_copy(update={"versions": {"torch": "2.7"}, "commit": "fedcba"})
    elsewhere = card.model_copy(
        update={"machine": card.machine.model_copy(update={"cpu": "Another processor"})}
    )
    named = card.machine.model_copy(update={"cpu": card.machine.cpu.partition(" (family")[0]})
    older = card.model_copy(update={"machine": named})
    assert compare(older, card.seeds, tuple(same)).differences == ()
    newer = newer.model_copy(update={"threads": 2})
    assert compare(elsewhere, card.seeds, (newer, newer)).differences == (
        f"processor Another processor, now {card.machine.cpu.partition(' (family')[0]}",
        "threads 1, now 2",
        "torch 2.6, now 2.7",
        "commit 0123456789abcdef, now fedcba",
    )


def test_more_failed_seeds_than_chance_explains_fail_a_reproduction() -> None:
    # The middle half of the seeds is at 500 whether 0 or 4 of 20 fail.
    card = make_card([500.0] * 20, tolerance=25.0, failure_below=475.0)
    for failures, chance, passed in (
        (0, 1.0, True),
        (1, 0.5, True),  # which of two groups the one failure falls into
        (4, 20 * 19 * 18 * 17 / (40 * 39 * 38 * 37), True),  # all four in the second: 0.053
        (5, 20 * 19 * 18 * 17 * 16 / (40 * 39 * 38 * 37 * 36), False),  # 0.024
    ):
        returns = [100.0] * failures + [500.0] * (19 - failures) + [499.0]
        outcome = compare(card, card.seeds, with_returns(card, returns))
        assert outcome.failed == failures
        assert outcome.failures_by_chance == pytest.approx(chance, rel=1e-12)
        assert outcome.passed is passed
    # Three seeds that all failed, beside the card's twenty: 3 * 2 * 1 / (23 * 22 * 21).
    few = compare(card, card.seeds[:3], with_returns(card, [400.0] * 20)[:3])
    assert few.failures_by_chance == pytest.approx(6 / (23 * 22 * 21), rel=1e-12)
    silent = make_card([500.0] * 20, tolerance=25.0)
    outcome = compare(silent, silent.seeds, with_returns(silent, [100.0] * 5 + [500.0] * 15))
    assert (outcome.failed, outcome.passed) == (None, True)


def test_equal_means_all_returns_of_all_evaluations() -> None:
    card = make_card([1.0, 2.0])
    assert compare(card, card.seeds, card.seeds).identical
    curve = card.seeds[0].curve.model_copy(update={"returns": (0.5000000001, 1.0)})
    other = card.seeds[0].model_copy(update={"curve": curve})
    assert not compare(card, card.seeds, (other, card.seeds[1])).identical
    slower = card.seeds[0].model_copy(update={"seconds": 99.0, "commit": "other"})
    assert compare(card, card.seeds, (slower, card.seeds[1])).identical


# A card run again, in forked processes


COUNTING = {
    "algo": "dqn",
    "env_id": "toy_envs:CountingEnv",  # every episode returns 1 + 2 + 3 + 4 + 5 = 15
    "total_timesteps": 60,
    "eval_interval": 0,
    "final_eval_episodes": 3,
    "algo_kwargs": {"hidden_sizes": [8], "batch_size": 8, "learning_starts": 20},
}


def reproduce(folder: Path, mean: float, *words: str) -> Result:
    """`evidence reproduce` on a card that says so much of every seed."""
    configuration = card_configuration(resolve_config(COUNTING).config)
    card = make_card([mean] * 3, configuration=configuration, tolerance=0.75)
    curve = {"steps": [60], "returns": [mean]}
    seeds = [
        record.to_plain() | {"curve": curve, "return_std": 0.0, "episodes": 3}
        for record in card.seeds
    ]
    write_card(folder / "card.json", Card(**(card.to_plain() | {"seeds": seeds})).sealed())
    command = ["evidence", "reproduce", str(folder / "card.json"), "--trust"]
    command += ["--runs", str(folder / "runs")]
    return CliRunner().invoke(app, [*command, *words])


def test_a_true_card_is_reproduced_and_the_next_time_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_popen(monkeypatch, WarmPopen)
    result = reproduce(tmp_path, 15.0, "--seeds", "0,2")
    assert result.exit_code == 0, result.output
    verdict = "PASS, by bits: every evaluation is equal to the card's to the last bit"
    assert verdict in result.stdout
    (directory,) = (tmp_path / "runs" / "reproduce").iterdir()
    assert directory.name.startswith("dqn-chain-")
    comparison = json.loads((directory / "reproduction.json").read_text())
    assert comparison["new"] == {"0": 15.0, "2": 15.0}
    again = reproduce(tmp_path, 15.0, "--seeds", "0")
    assert again.exit_code == 0
    assert "seed 0: starting" in again.stdout
    other = reproduce(tmp_path, 15.0, "--seeds", "2-3")
    assert other.exit_code == 2
    assert "expected some of the card's 0-2, found 3" in other.stderr


def test_a_figure_that_was_raised_is_not_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_popen(monkeypatch, WarmPopen)
    result = reproduce(tmp_path, 15.8, "--jobs", "2")
    assert result.exit_code == 1
    assert "the bits differ (processor A processor, now " in result.stdout
    verdict = "FAIL, by distributions: interquartile mean 15.00 < 15.05, the low end of the card's"
    assert verdict in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["1", "15.80", "15.00"] in rows
    assert ["interquartile", "mean", "15.80", "15.00"] in rows


# The picture


@pytest.mark.extra("report")
def test_the_picture_is_drawn_from_the_card_alone_and_always_the_same(tmp_path: Path) -> None:
    card = make_card([-160.0, -150.0, -170.0], published=PUBLISHED)
    write_card(tmp_path / "card.json", card)
    path = tmp_path / "card.png"
    result = CliRunner().invoke(app, ["evidence", "plot", str(tmp_path / "card.json")])
    assert result.exit_code == 0, result.output
    first = path.read_bytes()
    assert struct.unpack(">II", first[16:24]) == (900, 540)
    draw_card(card, path)
    assert path.read_bytes() == first
    assert is_drawn(card, path)
    other = card.model_copy(update={"note": "another"}).sealed()
    assert not is_drawn(other, path)
    assert not is_drawn(card, tmp_path / "none.png")


def with_curves(curves: list[dict[int, float]]) -> Card:
    card = make_card([1.0] * len(curves))
    seeds = [
        record.to_plain() | {"curve": {"steps": [*curve], "returns": [*curve.values()]}}
        for record, curve in zip(card.seeds, curves, strict=True)
    ]
    return Card(**(card.to_plain() | {"seeds": seeds})).sealed()


@pytest.mark.extra("report")
def test_a_seed_with_one_point_is_a_point_and_the_middle_is_at_the_step_all_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    card = with_curves([{100: 1.0, 200: 2.0}, {200: 4.0}, {50: 0.0, 200: 9.0}])
    draw_card(card, tmp_path / "card.png")
    *single, middle = figures[0].axes[0].get_lines()
    assert middle.get_xydata().tolist() == [[200, 5]]  # the mean of three: (2 + 4 + 9) / 3
    drawn = [(len(line.get_xydata()), line.get_marker()) for line in single]
    assert drawn == [(2, "None"), (1, "o"), (2, "None")]
    assert figures[0].axes[0].get_xlim() == (0, 1000)  # the whole budget, from the start
    assert not figures[0].axes[0].collections  # three seeds have no band
    draw_card(with_curves([{200: 4.0}]), tmp_path / "one.png")
    (line,) = figures[1].axes[0].get_lines()
    assert (line.get_xydata().tolist(), line.get_marker()) == ([[200, 4]], "o")


def test_algorithms_are_written_as_their_papers_write_them() -> None:
    names = {algo: paper_name(algo) for algo in ("drq", "drqv2", "qr_dqn", "sac", "drqn")}
    papers = {"drq": "DrQ", "drqv2": "DrQ-v2", "qr_dqn": "QR-DQN", "sac": "SAC", "drqn": "DRQN"}
    assert names == papers


def test_variants_of_a_card_stand_after_it(tmp_path: Path) -> None:
    for name in ("drqn/cartpole_masked", "dqn/cartpole_masked", "dqn/chain", "dqn/cartpole"):
        write_card(tmp_path / f"{name}.json", make_card([1.0], config=name))
    names = ["dqn/cartpole", "dqn/cartpole_masked", "dqn/chain", "drqn/cartpole_masked"]
    assert list(read_cards(tmp_path)) == names


def test_a_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'rl-training\[report\]'"):
        draw_card(make_card([1.0]), tmp_path / "card.png")


# The page


@pytest.mark.extra("report")
def test_the_page_follows_from_the_cards(generate: ModuleType, tmp_path: Path) -> None:  # noqa: F811
    card = make_card([-160.0, -150.25, -170.0], published=PUBLISHED, note="Mind this.")
    page = generate.results({"dqn/chain": card})
    assert page == generate.results({"dqn/chain": card})
    cells = [cell.strip() for cell in page.splitlines()[2].strip("|").split("|")]
    assert cells == [
        "[`dqn/chain`](#dqnchain)",
        "dqn",
        "Chain-v0",
        "1,000",
        "0-2",
        "",  # nothing is said of failures
        "-160.1 [-170, -150.2]",  # (160 + 150.25 + 170) / 3 = 160.08
        "-160, -150.2, -170",
        "-172.2 ± 104.2 at 100,000 ([source](https://x.org/y))",
        "31 s",
    ]
    assert "commit `0123456789`, with torch 2.6" in page
    assert "- Mind this." in page
    assert "rl-training evidence reproduce dqn/chain" in page
    (tmp_path / "docs").mkdir()
    write_card(tmp_path / "evidence" / "dqn" / "chain.json", card)
    draw_card(card, tmp_path / "evidence" / "dqn" / "chain.png")
    (tmp_path / "docs" / "results.md").write_text(page)
    assert broken_links(tmp_path / "docs" / "results.md") == []


def test_a_card_without_a_published_figure_says_so(generate: ModuleType) -> None:  # noqa: F811
    page = generate.results({"dqn/chain": make_card([1.0])})
    assert "| none known |" in page
    assert "No published figure is known." in page
    assert generate.results({}) == "There is no card yet; `make evidence` makes them."


@pytest.mark.extra("report")
def test_the_generator_notices_edited_cards_and_old_pictures(
    generate: ModuleType,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generate, "CARDS", tmp_path)
    path = tmp_path / "dqn" / "chain.json"
    write_card(path, make_card([1.0]))
    ((picture, card),) = generate._stale_pictures()
    draw_card(card, picture)
    assert list(generate._stale_pictures()) == []
    write_card(path, make_card([2.0]))
    assert len(list(generate._stale_pictures())) == 1
    path.write_text(path.read_text().replace('"iqm": 2.0', '"iqm": 3.0'))
    with pytest.raises(SystemExit, match="was changed after it was written"):
        generate.evidence_cards(tmp_path)


@pytest.mark.extra("report")
def test_what_callbacks_measured_is_kept_and_drawn_below_the_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.figure import Figure

    card = make_card([1.0, 2.0])
    assert all(seed.measured == {} for seed in card.seeds)
    seeds = [
        record.to_plain() | {"measured": {BIAS: {"steps": [500, 1000], "values": [1.5, offset]}}}
        for record, offset in zip(card.seeds, (0.25, -0.5), strict=True)
    ]
    measured = Card(**(card.to_plain() | {"seeds": seeds})).sealed()
    write_card(tmp_path / "card.json", measured)
    assert read_card(tmp_path / "card.json") == measured
    draw_card(measured, tmp_path / "measured.png")
    assert is_drawn(measured, tmp_path / "measured.png")
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    for each in (card, measured):
        draw_card(each, tmp_path / "captured.png")
    assert [len(figure.axes) for figure in figures] == [1, 2]
    upper, lower = figures[1].axes
    assert (upper.get_ylabel(), lower.get_ylabel()) == (
        "mean evaluation return",
        "Q bias, in mean returns",
    )
    _, bias = card_charts(measured)
    assert [(x, y) for x, y in bias.curves[0].single] == [
        ((500, 1000), (1.5, 0.25)),
        ((500, 1000), (1.5, -0.5)),
    ]
    assert (bias.curves[0].x, bias.curves[0].y) == ((500, 1000), (1.5, -0.125))


def test_a_run_with_newer_curves_can_be_equal_to_an_older_card() -> None:
    """Whose curve begins after training began, and ends with all of the last evaluation."""
    card = make_card([1.0, 3.0])
    newer = [
        record.model_copy(
            update={
                "curve": Curve(
                    steps=(0, 500, 1000),
                    returns=(-9.0, record.return_mean / 2, record.return_mean + 0.5),
                    episodes=10,
                )
            }
        )
        for record in card.seeds
    ]
    assert compare(card, card.seeds, tuple(newer)).identical
    wrong = Curve(steps=(0, 500, 1000), returns=(-9.0, 0.75, 1.5), episodes=10)
    differs = newer[0].model_copy(update={"curve": wrong})
    assert not compare(card, card.seeds, (differs, newer[1])).identical
    assert compare(card, tuple(newer), tuple(newer)).identical
    assert not compare(card, tuple(newer), (differs, newer[1])).identical
