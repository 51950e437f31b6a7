"""Evidence cards made from real seeds: what a card holds, and what a second call does."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import rl_training
from processes import BEYOND_PROBE, Gate, WarmPopen
from rl_training import load, train_dqn
from rl_training.cli import app
from rl_training.config.loading import packaged_configs
from rl_training.errors import ConfigError, RunError, UsageError
from rl_training.experiment.manager import parse_seeds
from rl_training.experiment.registry import resolve_config
from rl_training.runtime.result import TrainingInterrupted
from rl_training.storage.runs import RunLock
from rl_training.tools.evidence.card import (
    Card,
    card_files,
    find_card,
    read_card,
    read_cards,
    seeds_text,
    write_card,
)
from rl_training.tools.evidence.make import make_card, missing_cards, outdated, planned_cards
from rl_training.tools.evidence.plot import is_drawn
from rl_training.tools.evidence.seeds import card_configuration
from rl_training.tools.zoo import read_policy
from test_evidence_card import make_card as a_card
from test_experiment_manager import interrupt_at, never, replace_popen
from toy_envs import CountingEnv
from training import StopAt

pytestmark = pytest.mark.extra("report")

# Every episode returns 1 + 2 + 3 + 4 + 5 = 15, whatever is learned.
COUNTING = """\
algo: dqn
env_id: toy_envs:CountingEnv
total_timesteps: 60
eval_interval: 20
eval_episodes: 2
final_eval_episodes: 3
log_interval: 20
algo_kwargs: {hidden_sizes: [8], batch_size: 8, learning_starts: 20}
"""


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands of the seeds, which run in forked processes."""
    ran: list[str] = []

    class Recorded(WarmPopen):
        def __init__(self, command: Any, **keys: Any) -> None:
            ran.append(command[3])
            super().__init__(command, **keys)

    replace_popen(monkeypatch, Recorded)
    return ran


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counting.yaml").write_text(COUNTING)
    return tmp_path


def evidence(*words: str) -> Result:
    return CliRunner().invoke(app, ["evidence", *words])


def seed_directory(folder: Path, seed: int) -> Path:
    (found,) = (folder / "runs" / "evidence").glob(f"*/seed-{seed}")
    return found


def make(*words: str) -> Card:
    result = evidence("run", "counting.yaml", "--output", "cards", *words)
    assert result.exit_code == 0, result.output
    return read_card(Path("cards/dqn/counting.json"))


# What a card holds


def test_a_card_holds_every_seed_and_all_it_takes_to_run_them_again(
    folder: Path, commands: list[str]
) -> None:
    config = str(folder / "counting.yaml")
    words = ("--seeds", "3,1", "--jobs", "2", "--output", "cards", "--runs", "elsewhere")
    result = evidence("run", config, *words)
    assert result.exit_code == 0, result.output
    assert "published: no published figure known" in result.stdout
    card = read_card(folder / "cards" / "dqn" / "counting.json")
    assert card.config == "dqn/counting"
    assert card.command == "rl-training evidence run counting.yaml --seeds 3,1"
    assert card.budget == 60
    assert card.evaluation.to_plain() == {"episodes": 3, "deterministic": True}
    assert card.figures.to_plain() == {"iqm": 15.0, "interval_95": [15.0, 15.0], "lowest": 15.0}
    assert card.tolerance == 0.75  # 5 % of 15
    assert card.published is None
    assert card.seed_numbers == (3, 1)
    for record in card.seeds:
        assert (record.return_mean, record.return_std, record.episodes) == (15.0, 0.0, 3)
        steps, returns = [0, 20, 40, 60], [15.0] * 4
        assert record.curve.to_plain() == {"steps": steps, "returns": returns, "episodes": 2}
        assert (record.steps, record.sessions, record.device) == (60, 1, "cpu")
        assert record.seconds > 0
        assert record.commit == card.commit
        assert record.versions == card.versions
    assert card.versions["python"] == platform.python_version()
    assert {"torch", "numpy", "gymnasium", "rl-training"} < card.versions.keys()
    assert card.machine.cores >= card.machine.cores_usable >= 1
    again = resolve_config(card.configuration).config
    expected = resolve_config("counting.yaml").config
    assert again.to_plain() == expected.to_plain()
    assert is_drawn(card, folder / "cards" / "dqn" / "counting.png")
    text = (folder / "cards" / "dqn" / "counting.json").read_text()
    assert not [word for word in (str(folder), platform.node(), "elsewhere") if word in text]


WEIGHS = """
from rl_training import Callback


class Weighs(Callback):
    def on_evaluation(self, run, evaluation):
        run.log_evaluation({"weight": 2 * run.env_steps})
        run.log("weighed", 1)
"""


def test_what_a_callback_logs_with_evaluations_is_in_the_card(
    folder: Path, commands: list[str]
) -> None:
    (folder / "weighs.py").write_text(WEIGHS)
    card = make("--seeds", "0", "--set", "callbacks=[weighs:Weighs]")
    expected = {"weight": {"steps": [0, 20, 40, 60], "values": [0.0, 40.0, 80.0, 120.0]}}
    assert card.seeds[0].to_plain()["measured"] == expected


# Seeds that are kept, resumed, discarded


def test_finished_seeds_are_kept_and_the_card_comes_out_the_same(
    folder: Path, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("--seeds", "0,1")
    path = folder / "cards" / "dqn" / "counting.json"
    before = path.read_bytes(), path.with_suffix(".png").read_bytes()
    replace_popen(monkeypatch, never)
    path.unlink()
    make("--seeds", "0,1")
    assert (path.read_bytes(), path.with_suffix(".png").read_bytes()) == before


def test_an_interrupted_seed_is_resumed_and_the_finished_one_kept(
    folder: Path, commands: list[str]
) -> None:
    walk = COUNTING.replace("CountingEnv", "RandomWalkEnv")
    (folder / "counting.yaml").write_text(walk)
    straight = make("--seeds", "0,1", "--runs", "others")
    config = resolve_config("counting.yaml").config
    (folder / "cards" / "dqn" / "counting.json").unlink()
    make("--seeds", "0")
    (folder / "cards" / "dqn" / "counting.json").unlink()
    directory = seed_directory(folder, 0).parent
    cut = config.with_changes(seed=1, output_dir=str(directory), run_name="seed-1")
    with pytest.raises(TrainingInterrupted):
        train_dqn(cut, callbacks=[StopAt(35)])
    commands.clear()
    card = make("--seeds", "0,1")
    assert commands == ["train"]
    assert [record.sessions for record in card.seeds] == [1, 2]
    assert card.returns == straight.returns
    assert [seed.curve for seed in card.seeds] == [seed.curve for seed in straight.seeds]
    assert straight.returns[0] != straight.returns[1]


def test_a_signal_ends_it_without_a_card_and_the_same_command_goes_on(
    folder: Path, commands: list[str]
) -> None:
    gate = Gate(folder / "gate")
    gate.close()
    walk = COUNTING.replace("toy_envs:CountingEnv", "processes:GateEnv").replace(": 60", ": 200")
    keys = f"env_kwargs: {{gate: {gate.path}, at: {BEYOND_PROBE}}}"
    (folder / "counting.yaml").write_text(f"{walk}{keys}\n")
    thread = interrupt_at(gate, folder / "runs" / "evidence")
    words = ("run", "counting.yaml", "--output", "cards", "--seeds", "0-1")
    result = evidence(*words)
    thread.join()
    assert result.exit_code == 143
    assert "the same command, without --fresh, goes on from here" in result.stdout
    assert not (folder / "cards").exists()
    result = evidence(*words)
    assert result.exit_code == 0, result.output
    assert commands == ["train", "train", "train"]
    assert (folder / "cards" / "dqn" / "counting.json").exists()


def test_fresh_discards_finished_seeds_but_not_those_in_use(
    folder: Path, commands: list[str]
) -> None:
    make("--seeds", "0")
    seed_0 = seed_directory(folder, 0)
    (seed_0 / "mark").touch()
    with RunLock(seed_0):
        result = evidence("run", "counting.yaml", "--output", "cards", "--seeds", "0", "--fresh")
        assert result.exit_code == 1
        assert "is in use by another process" in result.stderr
    make("--seeds", "0", "--fresh")
    assert commands == ["train", "train"]
    assert not (seed_0 / "mark").exists()


def test_seeds_trained_by_other_code_are_kept_and_said_to_be(
    folder: Path, commands: list[str]
) -> None:
    now = make("--seeds", "0-1")
    path = seed_directory(folder, 0) / "metadata.json"
    metadata = json.loads(path.read_text())
    metadata["sessions"][0] |= {"package_git_commit": "abc", "package_git_dirty": False}
    metadata["sessions"][0]["packages"]["torch"] = "1.0"
    path.write_text(json.dumps(metadata))
    result = evidence("run", "counting.yaml", "--output", "cards", "--seeds", "0-1")
    assert result.exit_code == 0, result.output
    torch = now.versions["torch"]
    line = f"seed 0: trained with commit abc, torch 1.0; this is now commit {now.commit}, torch "
    assert f"{line}{torch}. --fresh trains all seeds anew" in result.stdout
    assert "seed 1: trained with" not in result.stdout
    card = read_card(folder / "cards" / "dqn" / "counting.json")
    assert [record.commit for record in card.seeds] == ["abc", now.commit]
    assert card.seeds[0].versions["torch"] == "1.0"
    assert card.commit == f"abc, {now.commit}"
    assert card.versions == now.versions | {"torch": f"1.0, {torch}"}


def test_a_seed_that_went_on_elsewhere_names_both_commits_and_no_machine_it_does_not_know(
    folder: Path, commands: list[str]
) -> None:
    now = make("--seeds", "0-1")
    path = seed_directory(folder, 1) / "metadata.json"
    metadata = json.loads(path.read_text())
    (first,) = metadata["sessions"]
    metadata["sessions"] += [
        first
        | {"package_git_commit": "abc", "package_git_dirty": True, "cpu_count": 1000}
        | {"platform": "Linux 0.1 vax", "started_at": "2999-12-31T00:00:00+00:00"}
    ]
    path.write_text(json.dumps(metadata))
    card = make("--seeds", "0-1")
    assert [record.sessions for record in card.seeds] == [1, 2]
    assert [record.commit for record in card.seeds] == [now.commit, f"{now.commit}, abc-dirty"]
    assert card.commit == f"{now.commit}, abc-dirty"
    assert card.date == "2999-12-31"
    assert card.machine.to_plain() == {
        "cpu": "not recorded",
        "cores": f"{now.machine.cores}, 1000",
        "cores_usable": "not recorded",
        "memory": "not recorded",
        "platform": f"{now.machine.platform}, Linux 0.1 vax",
    }


# Other settings


def test_with_other_settings_the_planned_figure_and_note_are_dropped(
    folder: Path, commands: list[str]
) -> None:
    plan = planned_cards()["dqn/cartpole"]
    assert plan.published is not None
    settings = ("total_timesteps=60", "eval_interval=0", "final_eval_episodes=1")
    words = [word for setting in settings for word in ("--set", setting)]
    result = evidence("run", "dqn/cartpole", "--seeds", "0", "--output", "cards", *words)
    assert result.exit_code == 0, result.output
    assert "published: no published figure known" in result.stdout
    card = read_card(folder / "cards" / "dqn" / "cartpole.json")
    changes = "total_timesteps=60, eval_interval=0, final_eval_episodes=1"
    assert card.note == f"The settings are not those of dqn/cartpole: {changes}."
    assert (card.published, card.budget) == (None, 60)
    assert card.command.endswith(" --set ".join(["--seeds 0", *settings]))
    assert outdated(card) == "total_timesteps, final_eval_episodes, seeds"
    result = evidence("run", "dqn/cartpole", "--seeds", "0", "--output", "cards")
    assert result.exit_code == 1
    assert "is the card of another configuration" in result.stderr


def test_other_settings_of_a_file_are_said_without_its_folder(
    folder: Path, commands: list[str]
) -> None:
    path = str(folder / "counting.yaml")
    written = make_card(path, "0", ["algo_kwargs.gamma=0.5"], output=Path("cards"))
    note = "The settings are not those of counting.yaml: algo_kwargs.gamma=0.5."
    assert read_card(written).note == note
    assert str(folder) not in written.read_text()


# No card


def test_a_failed_seed_leaves_no_card(folder: Path, commands: list[str]) -> None:
    text = COUNTING.replace("toy_envs:CountingEnv", "test_experiment_manager:UnluckyEnv")
    (folder / "counting.yaml").write_text(text.replace("timesteps: 60", "timesteps: 120"))
    result = evidence("run", "counting.yaml", "--seeds", "0-1", "--output", "cards")
    assert result.exit_code == 1
    assert "expected every seed to finish, found seed 1 failed" in result.stderr
    assert "Traceback" not in result.output
    assert not (folder / "cards").exists()


def test_a_seed_that_ended_early_is_not_reported(folder: Path, commands: list[str]) -> None:
    make_card("counting.yaml", "0", output=Path("others"))
    path = seed_directory(folder, 0) / "summary.json"
    summary = json.loads(path.read_text())
    for change in ({"global_step": 59}, {"eval_return_mean": None}):
        path.write_text(json.dumps(summary | change))
        with pytest.raises(RunError, match="expected a whole run with a final evaluation"):
            make_card("counting.yaml", "0", output=Path("cards"))
    assert not (folder / "cards").exists()


def test_a_damaged_or_partial_record_says_what_is_wrong_and_what_to_delete(
    folder: Path, commands: list[str]
) -> None:
    make_card("counting.yaml", "0-1", output=Path("others"))
    seed_0 = seed_directory(folder, 0)
    metadata = json.loads((seed_0 / "metadata.json").read_text())
    del metadata["sessions"][0]["started_at"]
    summary = json.loads((seed_0 / "summary.json").read_text())
    del summary["eval_return_std"]
    metrics = (seed_0 / "metrics.jsonl").read_text()
    relative = seed_0.relative_to(folder)
    lines = relative / "metrics.jsonl"
    for name, content, wrong in (
        ("metadata.json", "{}", "metadata.json is damaged: 'sessions' is missing)"),
        ("metadata.json", '{"sessions": [', "metadata.json is damaged: Expecting value"),
        (
            "metadata.json",
            json.dumps(metadata),
            "metadata.json is damaged: started_at: ",
        ),
        ("metadata.json", '{"sessions": [1]}', "metadata.json is damaged: "),
        ("summary.json", json.dumps(summary), "'eval_return_std' is missing"),
        ("metrics.jsonl", f"half\n{metrics}", f"{lines}, line 1 is not a JSON row"),
        ("metrics.jsonl", "", "metrics.jsonl holds no evaluation)"),
    ):
        before = (seed_0 / name).read_text()
        (seed_0 / name).write_text(content)
        result = evidence("run", "counting.yaml", "--output", "cards", "--seeds", "0-1")
        assert result.exit_code == 1
        assert f"seed 0 cannot be reported ({wrong}" in result.stderr
        assert "delete that line" not in result.stderr
        assert f"): delete {relative}, then run the same command again" in result.stderr
        (seed_0 / name).write_text(before)
    (seed_0 / "metadata.json").write_text("{}")
    shutil.rmtree(seed_0)
    commands.clear()
    assert make("--seeds", "0-1").returns == [15.0, 15.0]
    assert commands == ["train"]


def test_without_matplotlib_nothing_is_trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_popen(monkeypatch, never)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = evidence("run", "counting.yaml", "--output", "cards")
    assert result.exit_code == 2
    assert "pip install 'rl-training[report]'" in result.stderr
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("counting.yaml",),
        ("dqn/cartpole", "--set", "total_timesteps=100"),
        ("dqn/cartpole", "--seeds", "0-5"),
        ("ppo/lunarlander", "--seeds", "0-4"),
    ],
)
def test_the_default_directory_takes_only_what_was_planned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    replace_popen(monkeypatch, never)
    result = evidence("run", *words)
    assert result.exit_code == 2
    assert "give another directory with --output for this card" in result.stderr


def test_a_card_of_something_else_is_not_overwritten(folder: Path, commands: list[str]) -> None:
    make("--seeds", "0")
    before = (folder / "cards" / "dqn" / "counting.json").read_bytes()
    with pytest.raises(RunError, match="another configuration or of other seeds: delete it"):
        make_card("counting.yaml", "1", output=Path("cards"))
    with pytest.raises(RunError, match="another configuration or of other seeds: delete it"):
        make_card("counting.yaml", "0", ["algo_kwargs.gamma=0.5"], output=Path("cards"))
    assert (folder / "cards" / "dqn" / "counting.json").read_bytes() == before
    assert commands == ["train"]


def test_settings_that_have_an_option_of_their_own_or_leave_no_figure_are_refused(
    folder: Path,
) -> None:
    for setting, option in (("seed=1", "--seeds"), ("output_dir=x", "--runs")):
        with pytest.raises(UsageError, match=f"use {option} instead"):
            make_card("counting.yaml", "0", [setting], output=Path("cards"))
    with pytest.raises(ConfigError, match="final_eval_episodes: expected at least 1"):
        make_card("counting.yaml", "0", ["final_eval_episodes=0"], output=Path("cards"))


# The plan


def test_a_planned_card_is_of_a_packaged_configuration_with_a_sourced_figure_or_a_note() -> None:
    plans = planned_cards()
    assert {"dqn/cartpole", "ppo/cartpole", "ppo/pendulum"} <= plans.keys() <= {*packaged_configs()}
    assert plans["dqn/cartpole"].seed_numbers == tuple(range(2000, 2100))
    for name, plan in plans.items():
        # Learning from pixels takes ten minutes a seed.
        assert len(plan.seed_numbers) >= 3 or name.endswith("/pendulum_pixels")
        assert plan.published or plan.note, "without a published figure the note says what it is"


def test_seeds_are_written_as_they_are_read() -> None:
    assert seeds_text([0, 1, 2, 3, 4]) == "0-4"
    assert seeds_text([7]) == "7"
    for text in ("0-4", "0,3,7", "3,1", "5-6"):
        assert seeds_text(parse_seeds(text)) == text


def test_the_list_shows_cards_the_missing_ones_and_those_whose_configuration_has_changed(
    folder: Path,
) -> None:
    configuration = card_configuration(resolve_config("counting.yaml").config)
    card = a_card([15.0], config="dqn/counting", budget=60, configuration=configuration)
    write_card(folder / "cards" / "dqn" / "counting.json", card)
    others = [name for name in planned_cards() if name != "dqn/cartpole"]
    posing = card.model_copy(update={"config": "dqn/cartpole"}).sealed()
    write_card(folder / "cards" / "dqn" / "cartpole.json", posing)
    assert missing_cards(Path("cards")) == others
    assert outdated(card) == ""
    assert outdated(posing).startswith("env_id, total_timesteps, ")
    result = evidence("list", "--output", "cards")
    assert result.exit_code == 0, result.output
    rows = [re.split(r"  +", line) for line in result.stdout.splitlines()]
    figure = ["60", "1", "15.00 [15.00, 15.00]", "no published figure known"]
    assert rows[1] == ["dqn/cartpole", *figure, f"not as packaged now: {outdated(posing)}"]
    assert rows[2] == ["dqn/counting", *figure]
    assert rows[3:] == [[name, "missing"] for name in others]


def test_nothing_is_run_when_no_card_is_missing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = a_card([15.0])
    for name in planned_cards():
        write_card(folder / "cards" / f"{name}.json", card)
    assert read_cards(folder / "cards").keys() == planned_cards().keys()
    replace_popen(monkeypatch, never)
    result = evidence("run-missing", "--output", "cards")
    assert (result.exit_code, result.stdout) == (0, "missing: none\n")
    (folder / "cards" / "ppo" / "pendulum.json").unlink()
    result = evidence("run-missing", "--output", "cards")
    assert result.stdout.startswith("missing: ppo/pendulum\nppo/pendulum: the seeds run in runs/")
    assert result.exit_code == 1  # it went as far as to start a process


def test_the_packaged_cards_are_listed_anywhere_and_a_card_in_evidence_takes_precedence(
    folder: Path,
) -> None:
    packaged = Path(rl_training.__file__).parent / "assets" / "evidence"
    assert card_files() == card_files(packaged)
    figures = read_card(packaged / "dqn" / "cartpole.json").figures
    assert f"{figures.iqm:.2f} [" in listed()["dqn/cartpole"]
    mine = folder / "evidence" / "dqn" / "cartpole.json"
    write_card(mine, a_card([-12.5], config="dqn/cartpole"))
    write_card(folder / "evidence" / "mine" / "chain.json", a_card([1.5], config="mine/chain"))
    assert card_files() == card_files(packaged) | {
        "dqn/cartpole": Path("evidence/dqn/cartpole.json"),
        "mine/chain": Path("evidence/mine/chain.json"),
    }
    assert listed().keys() == card_files().keys() | set(missing_cards())
    assert "-12.50 [" in listed()["dqn/cartpole"]
    assert missing_cards() == [name for name in planned_cards() if name not in card_files()]


def listed() -> dict[str, str]:
    result = evidence("list")
    assert result.exit_code == 0, result.output
    return {line.split()[0]: line for line in result.stdout.splitlines()[1:]}


def test_a_card_is_found_by_the_name_it_is_listed_with(folder: Path) -> None:
    result = evidence("reproduce", "dqn/cartpole", "--seeds", "77")
    assert "--seeds: expected some of the card's 2000-2099, found 77" in result.stderr
    result = evidence("reproduce", "dqn/cartpol")
    assert "or a name that `rl-training evidence list` shows" in result.stderr
    result = evidence("plot", "dqn/cartpole")
    assert (result.exit_code, result.stdout) == (0, "picture: evidence/dqn/cartpole.png\n")
    assert is_drawn(
        read_card(find_card(Path("dqn/cartpole"))), folder / "evidence/dqn/cartpole.png"
    )


def test_with_a_card_comes_the_policy_of_its_median_seed(folder: Path, commands: list[str]) -> None:
    card = make("--seeds", "4,2")
    # Both returned 15, so the lower number is the median, the lower of the middle two.
    assert card.median_seed == 2
    policy = read_policy("dqn/counting", folder / "cards" / "zoo" / "dqn" / "counting")
    assert (policy.record.seed, policy.record.return_mean, policy.env_steps) == (2, 15, 60)
    assert load(policy.path, env=CountingEnv).evaluate(2).mean == 15
