"""Results of any kind read as curves, and the charts of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from result_files import evaluation, write_experiment, write_run
from rl_training.errors import RLTrainingError
from rl_training.tools.charts import Curve
from rl_training.tools.curves import chart_of, interpolated, shared_points
from rl_training.tools.evidence.card import write_card
from rl_training.tools.results import Results, SeedCurve, read_results
from test_evidence_card import make_card

SAC_ON_CHAIN = {"algo": "sac", "env_id": "Chain-v0"}


def only(*paths: Path, metric: str = "eval/return_mean") -> Results:
    (found,) = read_results(paths, metric)
    return found


def curve_of(results: Results, **options: object) -> Curve:
    (curve,) = chart_of([results], **options).curves  # type: ignore[arg-type]
    return curve


def test_a_run_an_experiment_and_a_card_are_read_the_same_way(tmp_path: Path) -> None:
    rows = [evaluation(500, 1.0, 5.0), evaluation(1000, 3.0, 10.0)]
    run = only(write_run(tmp_path / "run", rows, seed=7, final=3.0))
    assert run.seeds == (SeedCurve(7, (500, 1000), (1.0, 3.0), (5.0, 10.0), 3.0),)
    assert (run.label, run.task, run.budget) == ("dqn", "Chain-v0", 1000)
    experiment = only(write_experiment(tmp_path / "many", [2.0, 4.0]))
    assert experiment.finals == (2.0, 4.0)
    assert [seed.steps for seed in experiment.seeds] == [(500, 1000)] * 2
    write_card(tmp_path / "card.json", make_card([2.0, 4.0], failure_below=3.0))
    card = only(tmp_path / "card.json")
    assert [(seed.steps, seed.values) for seed in card.seeds] == [
        ((500, 1000), (1.0, 2.0)),
        ((500, 1000), (2.0, 4.0)),
    ]
    assert (card.finals, card.failed, card.seeds[0].seconds) == ((2.0, 4.0), 1, ())


def test_runs_that_differ_in_nothing_but_the_seed_are_one_group(tmp_path: Path) -> None:
    rows = [evaluation(1000, 1.0)]
    one = write_run(tmp_path / "a" / "x", rows, seed=3, run_name="x")
    two = write_run(tmp_path / "b" / "y", rows, seed=1)
    other = write_run(tmp_path / "b" / "z", rows, seed=2, num_envs=8)
    same, different = read_results([one, two, other])
    assert [seed.seed for seed in same.seeds] == [1, 3]
    assert [seed.seed for seed in different.seeds] == [2]
    assert read_results([tmp_path / "b", tmp_path])[0].planned == (1, 3)  # each run once


def test_a_seed_counts_once(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_run(tmp_path / name, [evaluation(1000, 1.0)], seed=4)
    with pytest.raises(RLTrainingError, match="the same configuration with the same seed, 4"):
        read_results([tmp_path])


def test_of_several_rows_with_one_step_the_last_counts(tmp_path: Path) -> None:
    rows = [evaluation(500, 1.0), evaluation(1000, 2.0), evaluation(1000, 2.5), evaluation(700, 9)]
    (seed,) = only(write_run(tmp_path / "run", rows, final=2.5)).seeds
    assert (seed.steps, seed.values) == ((500, 700, 1000), (1.0, 9.0, 2.5))


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    rows = [
        evaluation(100, None),
        evaluation(200, 1e300),
        {"global_step": 300, "eval/return_mean": "9"},
        {"global_step": -1, "eval/return_mean": 9.0},
        {"global_step": "1", "eval/return_mean": 9.0},
        {"eval/return_mean": True},
        evaluation(400, 4.0),
    ]
    (seed,) = only(write_run(tmp_path / "run", rows, final=1e300)).seeds
    assert (seed.steps, seed.values, seed.final) == ((400,), (4.0,), None)


def test_seeds_without_a_final_value_are_named(tmp_path: Path) -> None:
    folder = write_experiment(tmp_path / "many", [1.0, 2.0], planned=range(5))
    write_run(folder / "seed-2", [evaluation(500, 1.0)], seed=2, status="interrupted")
    write_run(folder / "seed-3", [evaluation(500, 1.0)], seed=3, status=None)
    found = only(folder)
    assert found.finals == (1.0, 2.0)
    assert found.left_out == ("seed 2 interrupted", "seed 3 killed", "seed 4 missing")


@pytest.mark.parametrize("seeds", [5, None, [3, {"seed": "x"}, {"seed": True}, {"seed": -1}], {}])
def test_a_forged_list_of_seeds_plans_none(tmp_path: Path, seeds: object) -> None:
    folder = write_experiment(tmp_path / "many", [1.0, 2.0])
    (folder / "experiment.json").write_text(json.dumps({"seeds": seeds}))
    assert only(folder).planned == (0, 1)


def test_results_are_told_apart_by_the_first_name_that_can(tmp_path: Path) -> None:
    def labels(*paths: Path) -> list[str]:
        return [group.label for group in read_results(paths)]

    dqn = write_experiment(tmp_path / "runs" / "first", [1.0, 2.0])
    wide = write_experiment(tmp_path / "runs" / "wide", [1.0, 2.0], num_envs=8)
    again = write_experiment(tmp_path / "more" / "wide", [1.0, 2.0], num_envs=9)
    ppo = write_experiment(tmp_path / "runs" / "ppo", [1.0, 2.0], algo="ppo")
    other = write_experiment(tmp_path / "runs" / "other", [1.0, 2.0], env_id="Maze-v1")
    assert labels(dqn, ppo) == ["dqn", "ppo"]
    write_card(
        tmp_path / "card.json", make_card([1.0], config="sac/chain", configuration=SAC_ON_CHAIN)
    )
    assert labels(tmp_path / "card.json", ppo, dqn) == ["sac", "ppo", "dqn"]  # as they are given
    assert labels(dqn, wide) == ["first", "wide"]
    assert labels(wide, again) == [str(wide), str(again)]
    assert labels(dqn, ppo, other) == ["dqn, Chain-v0", "ppo, Chain-v0", "dqn, Maze-v1"]


def test_environments_that_are_set_up_differently_are_different_tasks(tmp_path: Path) -> None:
    plain = write_experiment(tmp_path / "a", [1.0])
    masked = write_experiment(tmp_path / "b", [1.0], wrappers=["my.module:Mask"])
    small, large = (
        write_experiment(tmp_path / f"size-{n}", [1.0], wrappers=[{"Crop": {"size": n}}])
        for n in (4, 8)
    )
    assert [r.task for r in read_results([plain, masked])] == ["Chain-v0", "Chain-v0 with Mask"]
    assert [r.task for r in read_results([small, large])] == [
        f'Chain-v0 with Crop {{"wrappers": [{{"Crop": {{"size": {n}}}}}]}}' for n in (4, 8)
    ]


def test_any_metric_is_read_and_an_unknown_one_is_answered_with_those_that_exist(
    tmp_path: Path,
) -> None:
    rows = [{"global_step": step, "train/loss": 1 / step} for step in (1, 2)]
    run = write_run(tmp_path / "run", rows)
    found = only(run, metric="train/loss")
    assert (found.seeds[0].values, found.seeds[0].final) == ((1.0, 0.5), 0.5)
    with pytest.raises(RLTrainingError, match=r"but train/loss; did you mean 'train/loss'\?"):
        read_results([run], "train/los")


def test_what_cannot_be_read_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    run = write_run(tmp_path / "run", [])
    damaged = write_run(tmp_path / "damaged", [])
    (damaged / "metrics.jsonl").write_text("{{{\n")
    forged = write_run(tmp_path / "forged", [])
    (forged / "metadata.json").write_text('{"seed": "\x1b[31m"}')
    linked = write_run(tmp_path / "linked", [])
    (linked / "metrics.jsonl").unlink()
    (linked / "metrics.jsonl").symlink_to("/etc/passwd")
    tagged = write_run(tmp_path / "tagged", [])
    (tagged / "config.yaml").write_text("algo: !!python/object/apply:os.system [true]\n")
    for path, message in (
        (tmp_path / "none", "is neither a directory nor a card"),
        (Path("dqn/cartpol"), "did you mean 'dqn/cartpole'"),
        (tmp_path / "empty", "holds no run"),
        (run, "holds no metrics yet"),
        (damaged, "line 1 is not a JSON row"),
        (forged, "cannot be read"),
        (linked, "cannot be read"),
        (tagged, "config.yaml cannot be read"),
        (tmp_path / "none.json", "cannot be read"),
    ):
        with pytest.raises(RLTrainingError, match=message) as caught:
            read_results([path])
        assert "\x1b" not in str(caught.value)
    with pytest.raises(RLTrainingError, match="found none"):
        read_results([])


def test_the_line_is_the_interquartile_mean_at_the_steps_that_all_seeds_share(
    tmp_path: Path,
) -> None:
    for seed, values in enumerate([(1, 2, 30), (2, 4, 40), (3, 9, 50), (90, 5, 0)]):
        rows = [evaluation(step, v) for step, v in zip((100, 200, 300), values, strict=True)]
        write_run(tmp_path / f"seed-{seed}", rows[seed == 3 :], seed=seed)
    curve = curve_of(only(tmp_path))
    assert curve.label == "dqn (4 seeds)"
    assert (curve.x, curve.y) == ((200, 300), (4.5, 35.0))  # of 2, 4, 5, 9 and of 0, 30, 40, 50
    assert [len(x) for x, _ in curve.single] == [3, 3, 3, 2]
    assert all(
        low <= y <= high for low, y, high in zip(curve.low, curve.y, curve.high, strict=True)
    )


def test_fewer_than_four_seeds_have_no_band_and_one_is_only_a_line(tmp_path: Path) -> None:
    three = only(write_experiment(tmp_path / "three", [1.0, 2.0, 9.0]))
    assert (curve_of(three).y, curve_of(three).low) == ((2.0, 4.0), ())
    assert "band" not in chart_of([three]).note
    one = only(write_experiment(tmp_path / "one", [1.0]))
    assert (curve_of(one).y, curve_of(one).single) == ((0.5, 1.0), ())
    assert chart_of([one]).note == ""


def test_seeds_that_share_no_step_are_interpolated_as_far_as_all_reach() -> None:
    first = (np.array([0.0, 100.0]), np.array([0.0, 10.0]))
    second = (np.array([50.0, 150.0]), np.array([5.0, 25.0]))
    at, rows = shared_points([first, second])
    assert at.tolist() == [50, 100]
    assert rows.tolist() == [[5, 5], [10, 15]]
    late = (np.array([200.0, 300.0]), np.array([1.0, 2.0]))
    assert interpolated([first, late])[0].tolist() == []


def test_by_time_every_seed_is_at_the_seconds_it_took(tmp_path: Path) -> None:
    results = only(write_experiment(tmp_path / "two", [2.0, 4.0]))  # 5 and 10 s, 5 and 11 s
    chart = chart_of([results], "time")
    (curve,) = chart.curves
    assert chart.x_label == "seconds of wall-clock time"
    assert (curve.x[0], curve.y[0]) == (5, 1.5)
    assert curve.x[-1] == 10
    assert curve.y[-1] == pytest.approx((2 + (2 + 2 * 5 / 6)) / 2)  # 5/6 on the way from 2 to 4
    write_card(tmp_path / "card.json", make_card([1.0]))
    with pytest.raises(RLTrainingError, match="draw it by steps"):
        chart_of([only(tmp_path / "card.json")], "time")


def test_smoothing_is_the_mean_of_the_latest_points_and_says_so(tmp_path: Path) -> None:
    rows = [evaluation(step, value) for step, value in ((1, 3.0), (2, 5.0), (3, 10.0), (4, 0.0))]
    run = only(write_run(tmp_path / "run", rows))
    assert curve_of(run, smooth=2).y == (3.0, 4.0, 7.5, 5.0)
    assert chart_of([run], smooth=2).y_label.endswith("mean of the latest 2 points")
    assert curve_of(run).y == (3.0, 5.0, 10.0, 0.0)


def test_many_seeds_beside_another_result_are_not_drawn_singly(tmp_path: Path) -> None:
    write_card(tmp_path / "many.json", make_card([1.0] * 11, config="dqn/many"))
    write_card(tmp_path / "few.json", make_card([1.0] * 3, config="dqn/few"))
    chart = chart_of(read_results([tmp_path / "many.json", tmp_path / "few.json"]))
    assert [(curve.label, len(curve.single)) for curve in chart.curves] == [
        ("dqn/many (11 seeds)", 0),
        ("dqn/few (3 seeds)", 3),
    ]


def test_reading_results_needs_no_torch_and_no_matplotlib() -> None:
    code = (
        "import sys\n"
        "import rl_training.tools.comparison_output, rl_training.tools.plot\n"
        "print({'torch', 'matplotlib', 'scipy'} & set(sys.modules))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "set()\n"
