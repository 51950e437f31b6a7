"""An algorithm from outside the package gets everything, and a broken one breaks only itself."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import munchausen_dqn
import rl_training
from munchausen_dqn import SPEC, MunchausenConfig, MunchausenDQN, munchausen_target
from processes import CommandLine, WarmPopen
from rl_training import DQN, ExperimentManager, TrainConfig, algorithm_class
from rl_training.api.managed import ManagedAlgorithm, load
from rl_training.cli import app
from rl_training.config.loading import dump_yaml
from rl_training.config.ppo import PPOConfig
from rl_training.errors import CheckpointError, ConfigError, TrustError
from rl_training.experiment.registry import (
    get_spec,
    open_checkpoint,
    resolve_config,
    train_config,
)
from rl_training.runtime import spec_table
from rl_training.runtime.dqn_trainer import DQN_SPEC
from rl_training.runtime.off_policy import OFF_POLICY
from rl_training.runtime.spec import AlgorithmSpec, Lazy, trainer
from rl_training.storage.checkpoints import Checkpoint, find_checkpoint
from rl_training.testing import final_state, interrupted_at, short_config
from rl_training.tools.doctor import suitability
from rl_training.tools.doctor.suitability import seconds_per_step
from rl_training.tools.evidence.card import read_card
from test_experiment_manager import replace_popen
from training import TINY
from value_batches import make_batch

PATH = "munchausen_dqn:SPEC"
OBSERVATION = [0.1, 0.2, 0.03, -0.1]
KWARGS = TINY["dqn"]["algo_kwargs"] | {"alpha": 0.8}


@pytest.fixture(autouse=True)
def _own_entry_points() -> Iterator[None]:
    """Entry points are looked for in each test anew."""
    spec_table._load_entry_points.cache_clear()
    yield
    spec_table._load_entry_points.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a configuration, as its user has it."""
    monkeypatch.chdir(tmp_path)
    values = {
        "algo": PATH,
        "env_id": "CartPole-v1",
        "seed": 3,
        "total_timesteps": 240,
        "eval_interval": 100,
        "eval_episodes": 2,
        "final_eval_episodes": 3,
        "algo_kwargs": KWARGS,
    }
    (tmp_path / "mine.yaml").write_text(dump_yaml(values))
    return tmp_path


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def succeed(*words: object) -> str:
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def only_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def short(directory: Path, spec: AlgorithmSpec = SPEC, **changes: Any) -> TrainConfig:
    return short_config(spec, TINY["dqn"], directory, **changes)


def test_the_target_is_that_of_the_paper() -> None:
    # A uniform policy of two actions, temperature 1: the log-policy is -log 2, the soft value of
    # the next state q + log 2. The second row's action is so unlikely that its bonus is clipped.
    q = torch.tensor([[3.0, 3.0], [0.0, 50.0]])
    next_q = torch.tensor([[2.0, 2.0], [2.0, 2.0]])
    batch = make_batch(action=[0, 0], reward=[1.0, 1.0], discount=[0.9, 0.0])
    target = munchausen_target(q, next_q, batch, MunchausenConfig(alpha=0.5, temperature=1.0))
    expected = [1 - 0.5 * math.log(2) + 0.9 * (2 + math.log(2)), 1 - 0.5 * 1.0]
    torch.testing.assert_close(target, torch.tensor(expected))


# From YAML and the command line


def test_a_file_trains_evaluates_and_predicts(folder: Path) -> None:
    succeed("train", "--config", "mine.yaml")
    run = only_run(folder)
    assert run.name.startswith("munchausen_dqn-CartPole-v1-seed3-")
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["algo"], summary["status"]) == ("munchausen_dqn", "finished")
    assert json.loads((run / "metadata.json").read_text())["algo"] == "munchausen_dqn"
    assert f"algo: {PATH}\n" in (run / "config.yaml").read_text()
    evaluated = json.loads(succeed("eval", "--checkpoint", run, "--episodes", "3", "--json"))
    assert evaluated["returns"] == summary["eval_returns"]
    assert evaluated["algo"] == "munchausen_dqn"
    predicted = json.loads(succeed("predict", "--checkpoint", run, "--observation", OBSERVATION))
    assert predicted == {"action": load(run).predict(OBSERVATION)[0].tolist()}
    assert "munchausen_dqn" in succeed("list")


def test_a_checkpoint_stores_the_name_and_the_import_path(tmp_path: Path) -> None:
    saved = find_checkpoint(train_config(short(tmp_path)).run_dir)
    assert (saved.info["algo"], saved.info["algo_path"]) == ("munchausen_dqn", PATH)
    packaged = find_checkpoint(train_config(short(tmp_path, DQN_SPEC)).run_dir)
    assert (packaged.info["algo"], packaged.info["algo_path"]) == ("dqn", None)
    untrained = algorithm_class(SPEC)("CartPole-v1").save(tmp_path / "untrained")
    assert Checkpoint.open(untrained).info["algo_path"] == PATH


def test_another_process_evaluates_and_resumes_bit_for_bit(folder: Path) -> None:
    config = resolve_config("mine.yaml").config
    straight = final_state(train_config(config).run_dir)
    run = interrupted_at(130, config).run_dir
    for words in (("eval", "--episodes", "2"), ("resume",)):
        named = (*words, "--checkpoint", str(run), "--trust")
        command = CommandLine(*named, output=folder / "output")
        assert command.wait() == 0, command.text()
    assert final_state(run) == straight


def test_an_override_names_the_algorithm_and_its_keys(folder: Path) -> None:
    words = ["--set", f"algo={PATH}", "--set", "algo_kwargs.alpha=0.5"]
    given = invoke("config", "dqn/lunarlander", *words, "--set", "algo_kwargs.double=true")
    assert "algo_kwargs.double: expected False, found True" in given.stderr
    # That of the file is left out.
    shown = succeed("config", "dqn/lunarlander", *words)
    assert re.search(rf"^algo: '{PATH}' +# command line$", shown, re.MULTILINE)
    assert re.search(r"^  alpha: 0.5 +# command line$", shown, re.MULTILINE)
    result = invoke("config", "dqn/lunarlander", *words, "--set", "algo_kwargs.alpa=1")
    assert "did you mean 'algo_kwargs.alpha'?" in result.stderr


def test_many_seeds_are_trained_in_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace_popen(monkeypatch, WarmPopen)
    shown = succeed("train", "--config", "mine.yaml", "--seeds", "0-1")
    directory = only_run(folder)
    assert directory.name.startswith("munchausen_dqn-CartPole-v1-seeds-")
    assert shown.count("finished, evaluation return") == 2
    rows = json.loads((directory / "experiment.json").read_text())["seeds"]
    assert [(row["seed"], row["status"]) for row in rows] == [(0, "finished"), (1, "finished")]


def test_an_evidence_card_is_made_and_reproduced(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_popen(monkeypatch, WarmPopen)
    succeed("evidence", "run", "mine.yaml", "--seeds", "0-1", "--output", "cards")
    path = folder / "cards" / "munchausen_dqn" / "mine.json"
    card = read_card(path)
    assert (card.config, card.seed_numbers) == ("munchausen_dqn/mine", (0, 1))
    assert card.configuration["algo"] == PATH
    assert path.with_suffix(".png").stat().st_size > 0
    assert "munchausen_dqn/mine" in succeed("evidence", "list", "--output", "cards")
    again = succeed("evidence", "reproduce", path, "--seeds", "1", "--trust")
    assert "every evaluation is equal to the card's to the last bit" in again


def test_doctor_has_it_in_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces = DQN("CartPole-v1")._adapter()
    assert 0 < seconds_per_step(SPEC, spaces.observation, spaces.action) < 1
    monkeypatch.setattr(suitability, "seconds_per_step", lambda *_: 1e-3)
    words = ("doctor", "--env", "CartPole-v1", "--seconds", "0.1", "--algo", PATH)
    assert "munchausen_dqn: 31.5 MiB of replay memory" in succeed(*words)
    report = json.loads(succeed(*words, "--json"))
    fits = {fit["name"]: fit for fit in report["algorithms"]}
    assert fits["munchausen_dqn"]["memory_bytes"] == fits["dqn"]["memory_bytes"]


def test_doctor_survives_an_algorithm_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(spec: AlgorithmSpec, *_: Any) -> float:
        if spec is SPEC:
            raise RuntimeError("no such luck")
        return 1e-3

    monkeypatch.setattr(suitability, "seconds_per_step", measured)
    words = ("doctor", "--env", "CartPole-v1", "--seconds", "0.1", "--algo", PATH)
    lines = succeed(*words).splitlines()
    (line,) = (line for line in lines if "munchausen_dqn" in line)
    assert line.startswith("warning")
    assert "a short run of it raised RuntimeError: no such luck" in line
    assert any(line.startswith("ok") and " dqn: " in line for line in lines)


# From Python


class ByPath(ManagedAlgorithm):
    algo_name = PATH


class BySpec(ManagedAlgorithm):
    spec = SPEC


@pytest.mark.parametrize(
    "kind", [ByPath, BySpec, algorithm_class(SPEC), algorithm_class(PATH)], ids=range(4)
)
def test_a_managed_class_learns_saves_loads_and_resumes(
    kind: type[ManagedAlgorithm], tmp_path: Path
) -> None:
    rl_training.register(SPEC)  # the classes above registered it in another test's table
    keys = short(tmp_path).to_plain() | {"algo_kwargs": KWARGS}
    env = keys.pop("env_id")
    agent = kind(env, **{key: value for key, value in keys.items() if key != "algo"})
    assert agent.config.algo == PATH
    agent.learn()
    loaded = kind.load(agent.save(tmp_path / "saved"))
    rows = np.random.default_rng(0).normal(size=(20, 4))
    assert np.array_equal(agent.predict(rows)[0], loaded.predict(rows)[0])
    assert loaded.resume(total_timesteps=260).global_step == 260
    with pytest.raises(CheckpointError, match="was trained with munchausen_dqn, not dqn"):
        DQN.load(tmp_path / "saved")


def test_a_managed_class_refuses_the_configuration_of_another_algorithm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="algo: expected munchausen_dqn for this class"):
        algorithm_class(SPEC)(short(tmp_path, DQN_SPEC))
    assert algorithm_class("qr_dqn").__name__ == "QrDqn"
    agent = algorithm_class(SPEC).from_config(
        "dqn/cartpole", algo=PATH, algo_kwargs={"double": False}
    )
    assert agent.config.algo == PATH


def test_a_registered_name_resumes_exactly_what_its_path_began(tmp_path: Path) -> None:
    straight = final_state(train_config(short(tmp_path)).run_dir)
    run = interrupted_at(100, short(tmp_path, algo=PATH)).run_dir
    train_config(short(tmp_path, algo="munchausen_dqn"), resume=run)
    assert final_state(run) == straight


def test_a_training_function_takes_its_name_and_its_path(tmp_path: Path) -> None:
    train_mine = trainer(SPEC)
    for algo in ("munchausen_dqn", PATH):
        config = short(tmp_path).with_changes(algo=algo)
        assert train_mine(config).algo == "munchausen_dqn"
    with pytest.raises(ConfigError, match="algo: expected munchausen_dqn, found 'dqn'"):
        train_mine(short(tmp_path, DQN_SPEC))


def test_seeds_of_a_registered_name_are_given_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_popen(monkeypatch, WarmPopen)
    config = short(tmp_path, algo="munchausen_dqn")
    result = ExperimentManager(config, [0], directory=tmp_path / "seeds").run()
    assert [seed.status for seed in result.seeds] == ["finished"]
    assert f"algo: {PATH}\n" in (tmp_path / "seeds" / "experiment.yaml").read_text()


# Known to one process only


def local_spec() -> AlgorithmSpec:
    return replace(SPEC, name="local")


def test_a_spec_without_an_import_path_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = local_spec()
    run = train_config(short(tmp_path, local)).run_dir
    saved = find_checkpoint(run).info
    assert (saved["algo"], saved["algo_path"], saved["config"]["algo"]) == ("local", None, "local")
    action = load(run).predict(OBSERVATION)[0]
    monkeypatch.setattr(spec_table, "_known", {})  # as in the next process
    with pytest.raises(CheckpointError, match=r"'local', which is not known here .*register\(SPEC"):
        open_checkpoint(run)
    assert algorithm_class(local).load(run).predict(OBSERVATION)[0] == action


def test_seeds_refuse_what_only_this_process_knows(tmp_path: Path) -> None:
    local = local_spec()
    with pytest.raises(ConfigError, match=r"algo: seeds run in separate processes.*'local'"):
        ExperimentManager(short(tmp_path, local), [0, 1])


def test_a_spec_may_be_redefined_where_it_was_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    rl_training.register(SPEC)
    rl_training.register(SPEC)
    again = replace(SPEC, title="Edited")
    with pytest.raises(ConfigError, match=f"is the name of the algorithm at {PATH}"):
        rl_training.register(again)
    monkeypatch.setattr(munchausen_dqn, "SPEC", again)  # what importlib.reload does
    rl_training.register(again)
    assert get_spec("munchausen_dqn") is get_spec(PATH) is again
    first, second = local_spec(), replace(SPEC, name="local", title="Edited")
    main = sys.modules["__main__"]
    for cell in (first, second):
        monkeypatch.setattr(main, "CELL", cell, raising=False)
        rl_training.register(cell)
    assert get_spec("local") is second
    assert spec_table.import_path(second) is None  # no other process can import a notebook


# Entry points


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **entries: str) -> None:
    """A package that offers these entry points, by name."""
    info = folder / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[rl_training.algorithms]", *lines]) + "\n")
    (folder / "plugin_good.py").write_text(
        "from dataclasses import replace\n"
        "from rl_training.runtime.dqn_trainer import DQN_SPEC\n"
        "SPEC = replace(DQN_SPEC, name='plugged', title='Plugged in')\n"
        "OTHER = replace(DQN_SPEC, name='other')\n"
        "TAKEN = replace(DQN_SPEC, title='Not the packaged one')\n"
        "NUMBER = 3\n"
    )
    (folder / "plugin_bad.py").write_text("raise RuntimeError('out of order')\n")
    monkeypatch.syspath_prepend(str(folder))
    for name in ("plugin_good", "plugin_bad"):
        monkeypatch.delitem(sys.modules, name, raising=False)


BROKEN = {
    "raises": ("plugin_bad:SPEC", "RuntimeError: out of order"),
    "missing": ("plugin_none:SPEC", "ModuleNotFoundError: No module named 'plugin_none'"),
    "number": ("plugin_good:NUMBER", "expected an AlgorithmSpec, found 3"),
    "misnamed": ("plugin_good:OTHER", "the entry point's name is not the spec's, 'other'"),
    "dqn": ("plugin_good:TAKEN", "is named 'dqn', which is the name of a packaged algorithm"),
}


def test_an_entry_point_is_an_algorithm_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, plugged="plugin_good:SPEC")
    spec = get_spec("plugged")
    assert spec.title == "Plugged in"
    assert "plugged" in spec_table.all_specs()
    # Its name leads to it wherever the package is installed, so a configuration keeps it.
    assert resolve_config({"algo": "plugged", "env_id": "CartPole-v1"}).config.algo == "plugged"
    saved = find_checkpoint(train_config(short(tmp_path, spec)).run_dir).info
    assert (saved["algo"], saved["algo_path"]) == ("plugged", "plugin_good:SPEC")


def test_broken_entry_points_are_reported_once_and_the_others_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {name: value for name, (value, _) in BROKEN.items()}
    install(tmp_path, monkeypatch, **entries, plugged="plugin_good:SPEC")
    with caplog.at_level(logging.WARNING, "rl_training"):
        known = spec_table.all_specs()
        assert spec_table.all_specs() == known
    assert set(known) == {*spec_table.packaged_specs(), "plugged"}
    assert len(caplog.messages) == len(BROKEN)
    for name, (value, reason) in BROKEN.items():
        (message,) = (text for text in caplog.messages if f"the algorithm {name!r}" in text)
        assert f"(entry point {value} of plugin) cannot be used: " in message
        assert reason in message
    assert get_spec("dqn") is DQN_SPEC
    assert "plugged" in succeed("list", tmp_path)


@pytest.mark.parametrize("name", sorted(BROKEN.keys() - {"dqn"}))
def test_a_broken_entry_point_asked_for_by_name_says_why(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, reason = BROKEN[name]
    install(tmp_path, monkeypatch, **{name: value})
    result = invoke("config", "dqn/cartpole", "--set", f"algo={name}")
    assert result.exit_code == 2
    expected = f"error: command line: algo: the algorithm {name!r} (entry point {value} of plugin)"
    assert result.stderr.startswith(expected)
    assert reason in result.stderr
    assert result.stderr.count("\n") == 1


# Bad input


MODULE = """
from dataclasses import replace
from rl_training.algorithms.dqn import DQN
from rl_training.config.hyper_parameters import HyperParameters
from rl_training.runtime.dqn_trainer import DQN_SPEC
from rl_training.runtime.spec import AlgorithmSpec, Lazy

TAKEN = replace(DQN_SPEC, title="mine")
NUMBER = 3
"""


@pytest.mark.parametrize(
    ("module", "algo", "expected"),
    [
        ("", "dqnn", r"expected one of dqn, qr_dqn, .*, or package.module:SPEC, found 'dqnn'; did "
         r"you mean 'dqn'\?"),
        ("", "no_such_module:SPEC", "no_such_module:SPEC: there is no module 'no_such_module'"),
        (MODULE, "mine:SPECK", "mine:SPECK: mine has no attribute 'SPECK'"),
        (MODULE, "mine:", "mine:: expected package.module:Name, found 'mine:'"),
        (MODULE, "mine:DQN", "mine:DQN: expected an AlgorithmSpec, found the class DQN; declare"),
        (MODULE, "mine:NUMBER", "mine:NUMBER: expected an AlgorithmSpec, found 3; declare one"),
        (MODULE, "mine:TAKEN", "the algorithm at mine:TAKEN is named 'dqn', which is the name of "
         "a packaged algorithm; give it another"),
        ("1 / 0", "mine:SPEC", "mine:SPEC: importing 'mine' failed with ZeroDivisionError: "
         "division by zero"),
        ("import absent_package", "mine:SPEC", "importing 'mine' failed with ModuleNotFoundError: "
         "No module named 'absent_package'"),
        (f"{MODULE}SPEC = AlgorithmSpec(name='x')", "mine:SPEC", "TypeError: .*missing .* required "
         "keyword-only arguments: 'title', .* and 'actions'"),
        (f"{MODULE}SPEC = replace(DQN_SPEC, name='x', hyper=dict)", "mine:SPEC",
         "the algorithm 'x': hyper: expected a class derived from OffPolicyHyperParameters, "
         "found the class dict"),
        (f"{MODULE}SPEC = replace(DQN_SPEC, name='x', loop=print, algorithm=None)", "mine:SPEC",
         "the algorithm 'x': algorithm: expected a callable, or its import path in Lazy.*, found "
         "None; loop: expected a Loop such as OFF_POLICY or ON_POLICY, found <built-in"),
    ],
)  # fmt: skip
def test_what_is_no_algorithm_is_one_paragraph_and_the_others_work(
    module: str, algo: str, expected: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (folder / "mine.py").write_text(module)
    path = folder / "wrong.yaml"
    path.write_text(f"algo: {algo!r}\nenv_id: CartPole-v1\n")
    result = invoke("train", "--config", path)
    assert result.exit_code == 2
    assert re.search(rf"^error: wrong.yaml:1: algo: .*{expected}", result.stderr), result.stderr
    assert result.stderr.count("\n") == 1
    assert not (folder / "runs").exists()
    succeed("config", "dqn/cartpole")


class NoAlgorithm:
    pass


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "My algorithm"}, "name: expected at most 50 lower-case letters"),
        ({"name": None}, "name: expected at most 50 lower-case letters.*found None"),
        ({"hyper": MunchausenConfig()}, "hyper: expected a class derived from OffPolicyHyperPara"),
        ({"hyper": PPOConfig}, "hyper: expected a class derived from OffPolicyHyper.*PPOConfig"),
        ({"model": 3}, "model: expected a callable, or its import path in Lazy.*found 3"),
        ({"algorithm": NoAlgorithm}, "algorithm: expected a class derived from .*NoAlgorithm"),
        ({"buffer": print}, "buffer: expected a class with build, needed_bytes, memory_name"),
        (
            {"observations": {"vector"}},
            "observations: expected a frozenset of image, parts, vector",
        ),
        ({"actions": frozenset({"discreet"})}, "actions: expected a frozenset of .*discreet"),
        ({"actions": frozenset()}, "actions: expected a frozenset of .*, found frozenset"),
        ({"title": 3}, "title: expected str, found 3"),
        ({"paper": None}, "paper: expected str, found None"),
    ],
)
def test_a_wrong_component_is_refused_where_the_spec_is_declared(
    changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        replace(SPEC, **changes)


def test_a_hyper_parameter_without_a_default_is_refused() -> None:
    class Demanding(MunchausenConfig):
        wanted: int

    with pytest.raises(ConfigError, match="a default for every key, found none for wanted"):
        replace(SPEC, hyper=Demanding)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": Lazy("no_such:Model")}, "'lazy': model: there is no module 'no_such'"),
        (
            {"algorithm": Lazy("munchausen_dqn:Munchhausen")},
            "'lazy': algorithm: munchausen_dqn has no attribute 'Munchhausen'; did you mean "
            "'MunchausenDQN'",
        ),
        ({"algorithm": Lazy("test_open_registry:NoAlgorithm")}, "'lazy': algorithm: expected a cl"),
        ({"buffer": Lazy("munchausen_dqn:MunchausenDQN")}, "'lazy': buffer: expected a class with"),
        ({"model": lambda *_: 3}, "model: expected a callable that gives a torch.nn.Module, found "
         "one that gives int"),
    ],
)  # fmt: skip
def test_a_component_that_cannot_be_used_is_refused_before_training(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    spec = replace(SPEC, name="lazy", **changes)
    with pytest.raises(ConfigError, match=expected):
        train_config(short(tmp_path / "runs", spec))
    assert not (tmp_path / "runs").exists()


def test_only_a_spec_can_be_registered() -> None:
    with pytest.raises(
        ConfigError, match="register: expected an AlgorithmSpec, found the class Mun"
    ):
        rl_training.register(MunchausenDQN)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="registered in Python is named 'sac'"):
        rl_training.register(replace(SPEC, name="sac"))
    assert OFF_POLICY is get_spec("sac").loop


# What a checkpoint says


def rewritten(run: Path, **info: Any) -> Checkpoint:
    checkpoint = find_checkpoint(run)
    return replace(checkpoint, info={**checkpoint.info, **info})


def test_a_known_name_wins_over_the_path_of_a_checkpoint(tmp_path: Path) -> None:
    from rl_training.experiment.registry import saved_spec

    run = train_config(short(tmp_path)).run_dir
    foreign = rewritten(run, algo_path="absent_package:SPEC")
    assert saved_spec(foreign) is SPEC
    spec_table._known.clear()
    with pytest.raises(TrustError, match=r"at 'absent_package:SPEC'.* was not imported.*--trust"):
        saved_spec(foreign)
    with pytest.raises(CheckpointError, match="'munchausen_dqn', which cannot be loaded: absent_"):
        saved_spec(foreign, trust=True)
    with pytest.raises(CheckpointError, match="is now named 'munchausen_dqn'"):
        saved_spec(rewritten(run, algo="munchhausen", algo_path=PATH), trust=True)
    for name, value in (("algo", ["dqn"]), ("algo_path", 3)):
        with pytest.raises(CheckpointError, match=f"info.{name}: "):
            saved_spec(rewritten(run, **{name: value}))


def test_finding_an_algorithm_does_not_import_torch() -> None:
    code = (
        "import sys\n"
        "from rl_training.experiment.registry import get_spec, resolve_config\n"
        "from rl_training.runtime.spec_table import all_specs\n"
        "assert get_spec('dqn') is all_specs()['dqn']\n"
        "resolve_config('dqn/cartpole')\n"
        "assert not {'torch', 'gymnasium'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_algorithm_of_these_tests_is_one_short_file() -> None:
    assert munchausen_dqn.__file__ is not None
    assert len(Path(munchausen_dqn.__file__).read_text().splitlines()) <= 60


def test_a_module_that_exits_ends_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "leaves.py").write_text("import sys\nsys.exit('bye')\n")
    with pytest.raises(ConfigError, match="importing 'leaves' failed with SystemExit: bye"):
        get_spec("leaves:SPEC")
    monkeypatch.syspath_prepend(str(folder))
    entry = EntryPoint("leaves", "leaves:SPEC", spec_table.ENTRY_POINTS)
    with pytest.raises(ConfigError, match=r"'leaves' .* cannot be used: SystemExit: bye"):
        spec_table._load(entry)


def test_another_algorithm_of_a_checkpoints_name_is_used_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = (Path(munchausen_dqn.__file__)).read_text()
    (folder / "one.py").write_text(source)
    (folder / "two.py").write_text(source)
    config = {"algo": "one:SPEC", "env_id": "CartPole-v1", "total_timesteps": 30}
    quick = {"final_eval_episodes": 0, "output_dir": str(folder / "runs"), "algo_kwargs": KWARGS}
    run_dir = train_config(resolve_config(config | quick).config).run_dir
    spec_table._known.clear()
    rl_training.register(get_spec("two:SPEC"))
    caplog.set_level(logging.WARNING)
    open_checkpoint(run_dir)
    words = "trained with the algorithm at one:SPEC; here 'munchausen_dqn' is the one at two:SPEC"
    assert words in caplog.text
