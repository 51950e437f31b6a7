"""A run from somebody else: nothing it names is imported, called or opened unless it is trusted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from campaign import forgeries, malicious
from campaign.forging import Forgery, honest_run
from rl_training import DQN
from rl_training.api.managed import load
from rl_training.cli import app
from rl_training.config.base import untrusted
from rl_training.envs.factory import make_env
from rl_training.errors import CheckpointError, ConfigError, MissingExtra, RunError, TrustError
from rl_training.experiment.registry import open_checkpoint
from rl_training.runtime.callbacks import Callback, configured_callbacks
from rl_training.runtime.trust import placeholders, without_untrusted
from rl_training.storage.runs import list_runs
from toy_envs import CountingEnv, RandomWalkEnv
from training import tiny_config

QUICK: dict[str, Any] = {
    "total_timesteps": 60,
    "final_eval_episodes": 1,
    "eval_interval": 0,
    "algo_kwargs": {"hidden_sizes": [4], "batch_size": 4, "learning_starts": 40},
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of this package's own that was stopped and can be resumed."""
    return honest_run("dqn", tmp_path_factory.mktemp("honest"))


# The campaigns, in short; `python -m campaign.malicious` and `campaign.forgeries` are the long ones


@pytest.mark.parametrize("case", malicious.CASES)
def test_a_malicious_run_does_nothing_and_is_refused_in_a_paragraph(
    case: str, honest: Path, tmp_path: Path
) -> None:
    refused_by = malicious.CASES[case].refused_by
    name = refused_by[0] if refused_by else "resume"
    verdict = malicious.attempt(name, case, honest, tmp_path / "attempt")
    assert verdict.trouble(bool(refused_by)) == ""


@pytest.mark.parametrize("name", ["predict", "load", "seeds", "evidence", "list", "video"])
def test_every_way_to_read_a_run_keeps_to_that(name: str, honest: Path, tmp_path: Path) -> None:
    case = "a network here"
    verdict = malicious.attempt(name, case, honest, tmp_path / "attempt")
    assert verdict.trouble(name in malicious.CASES[case].refused_by) == ""


@pytest.mark.parametrize(
    ("case", "name"), [("a module here", "eval"), ("a network here", "predict")]
)
def test_the_hook_notices_what_a_trusted_run_does(
    case: str, name: str, honest: Path, tmp_path: Path
) -> None:
    events = malicious.attempt(name, case, honest, tmp_path / "attempt", trust=True).events
    assert "import evil" in events
    assert "canary called" in events


def test_a_forged_part_is_accepted_or_refused_with_a_typed_error(tmp_path: Path) -> None:
    outcomes = forgeries.campaign(48, 5, tmp_path)
    assert outcomes["UNTYPED"] == 0
    assert min(outcomes["accepted"], outcomes["CheckpointError"]) > 10


def test_the_campaign_finds_checks_that_are_missing(tmp_path: Path) -> None:
    with forgeries.without_checks():
        outcomes = forgeries.campaign(26, 0, tmp_path, ("replay",), report=lambda _: None)
    assert outcomes["UNTYPED"] > 0


@pytest.mark.parametrize(
    ("part", "tensor", "value", "message"),
    [
        ("segment", "rows/action", 2, "replay: action: expected values from 0 to 1"),
        ("segment", "end", -1, "replay: the saved rows end before they begin"),
        ("replay", "/position", 2**62 + 1, "replay: position: expected values from -1"),
        ("transcript", "/actions", -1, "transcript: actions: expected values from 0 to 1"),
    ],
)
def test_rows_and_recorded_steps_that_cannot_be_are_refused_by_name(
    part: str, tensor: str, value: int, message: str, honest: Path, tmp_path: Path
) -> None:
    forgery = Forgery(honest, tmp_path / "run")
    name = forgery.segments()[0] if part == "segment" else part
    tensors = forgery.tensors(name)
    tensors[tensor].fill_(value)
    forgery.write_tensors(name, tensors)
    with pytest.raises(CheckpointError, match=message):
        load(forgery.sign()).resume()


def test_versions_that_are_no_text_are_refused(honest: Path, tmp_path: Path) -> None:
    forgery = Forgery(honest, tmp_path / "run")
    forgery.info["versions"]["python"] = 3
    with pytest.raises(CheckpointError, match=r"info\.versions\.python: .* found 3"):
        load(forgery.sign())


# What a file may name


@pytest.mark.parametrize(
    "values",
    [
        {"env_id": "CartPole-v1"},
        {"env_id": "ALE/Pong-v5"},
        {"env_id": "popgym:popgym-RepeatPreviousEasy-v0"},
        {"env_id": "rl_training.envs.point_pixels:PointPixels"},
        {"env_id": "<callable f>"},
        {"env_kwargs": {"size": 16, "sutton": True, "x": [1, [2.5, None]], "y": {"z": 3}}},
        {"env_kwargs": {"render_mode": "rgb_array"}, "eval_env_kwargs": {"map_name": "8x8"}},
        {"wrappers": ["MaskVelocity", {"TimeLimit": {"max_episode_steps": 9}}]},
        {"wrappers": ["rl_training.envs.wrappers:PreviousActionReward"]},
        {"wrappers": [{"FilterObservation": {"filter_keys": ["a"]}}]},
        {"callbacks": ["QBias", {"StopOnReturn": {"threshold": 1}}]},
        {"callbacks": ["rl_training.tools.q_bias:QBias"]},
        {"algo": "dqn", "algo_kwargs": {"network": None, "gamma": 0.9}},
        {"algo_kwargs": {"network": "rl_training.models.mlp_q_network:MLPQNetwork"}},
        {"env_id": 3, "wrappers": 4, "callbacks": {}, "algo_kwargs": [], "env_kwargs": None},
    ],
)
def test_what_is_this_packages_or_plain_data_is_kept(values: dict[str, Any]) -> None:
    assert without_untrusted(values) == values


@pytest.mark.parametrize(
    ("values", "key", "text"),
    [
        ({"env_id": "toy_envs:CountingEnv"}, "env_id", "toy_envs:CountingEnv"),
        ({"env_id": "rl_training.cli:main"}, "env_id", "rl_training.cli:main"),
        ({"env_id": "popgym:register"}, "env_id", "popgym:register"),
        ({"env_kwargs": {"a": {"b": ["x"]}}}, "env_kwargs.a.b.0", "x"),
        ({"env_kwargs": {"render_mode": "human"}}, "env_kwargs.render_mode", "human"),
        ({"wrappers": ["os:system"]}, "wrappers.0", "os:system"),
        ({"wrappers": [{"RecordVideo": {}}]}, "wrappers.0", "RecordVideo"),
        ({"callbacks": [{"a:B": {}}]}, "callbacks.0", "a:B"),
        ({"algo": "a:SPEC"}, "algo", "a:SPEC"),
        ({"algo_kwargs": {"network": "a:b"}}, "algo_kwargs.network", "a:b"),
        (
            {"algo_kwargs": {"network": "rl_training.models.blocks:nn.Linear"}},
            "algo_kwargs.network",
            "rl_training.models.blocks:nn.Linear",
        ),
    ],
)
def test_anything_else_is_marked(values: dict[str, Any], key: str, text: str) -> None:
    assert list(placeholders(without_untrusted(values))) == [(key, untrusted(text))]


def test_an_id_whose_module_the_caller_has_imported_is_known() -> None:
    import toy_envs  # noqa: F401 - registers ToyCounting-v0

    known = {"env_id": "toy_envs:ToyCounting-v0"}
    assert without_untrusted(known) == known
    assert list(placeholders(without_untrusted({"env_id": "never_imported:ToyCounting-v0"})))


# The user's own word, checked before it is called


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("os:system", {"command": "touch called"}),
        ("pathlib:Path", {}),
        ("subprocess:Popen", {"args": ["touch", "called"]}),
        ("torch.nn:Linear", {"in_features": 1, "out_features": 1}),
    ],
)
def test_an_environment_of_ones_own_must_be_able_to_be_one(
    name: str, kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"env_id: {name} is .*; it was not called"):
        make_env(name, env_kwargs=kwargs)
    with pytest.raises(ConfigError, match=f"wrappers: {name} is .*; it was not called"):
        make_env(CountingEnv, wrappers=[{name: kwargs}])
    with pytest.raises(ConfigError, match=f"callbacks: {name} is .*; it was not called"):
        configured_callbacks([{name: kwargs}])
    assert list(tmp_path.iterdir()) == []


def test_a_network_of_ones_own_must_be_able_to_be_one() -> None:
    agent = DQN("CartPole-v1", algo_kwargs={"network": "os:getcwd"})
    with pytest.raises(
        ConfigError, match=r"algo_kwargs\.network: os:getcwd is the function getcwd"
    ):
        agent.predict([0.0, 0.0, 0.0, 0.0])


def make_walk(width: float = 1.0) -> RandomWalkEnv:
    return RandomWalkEnv(width)


def test_a_function_that_makes_an_environment_is_taken() -> None:
    assert isinstance(make_env("test_trust:make_walk").unwrapped, RandomWalkEnv)


# Passing what a run names, or trusting it


class Counts(Callback):
    """Counts vector steps."""

    state_fields = ("steps",)

    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, run: Any) -> None:
        self.steps += 1


def test_a_run_in_a_class_of_ones_own_is_evaluated_with_the_class_or_with_trust(
    tmp_path: Path,
) -> None:
    run = DQN(CountingEnv, output_dir=str(tmp_path), **QUICK).learn().run_dir
    agent = DQN.load(run)
    assert agent.predict([0.0, 0.0])[0] in (0, 1)  # a policy needs no environment
    wanted = (
        r"env_id asks for 'toy_envs:CountingEnv'.*load\(path, env=\.\.\.\).*--trust.*trust=True"
    )
    for call in (agent.evaluate, agent.resume):
        with pytest.raises(TrustError, match=wanted):
            call()
    assert DQN.load(run, env=CountingEnv).evaluate(1).returns == (15.0,)
    assert load(run, trust=True).evaluate(1).returns == (15.0,)
    assert agent.resume(70, trust=True).global_step == 70
    assert DQN.load(run, env=CountingEnv).resume(80).global_step == 80
    command = ["eval", "--checkpoint", str(run), "--episodes", "1"]
    refused = CliRunner().invoke(app, command)
    assert (refused.exit_code, "--trust" in refused.output) == (1, True)
    assert CliRunner().invoke(app, [*command, "--trust"]).exit_code == 0


def test_callbacks_of_ones_own_are_passed_and_go_on_counting(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, callbacks=["test_trust:Counts"], total_timesteps=60)
    run = DQN(config).learn().run_dir
    agent = DQN.load(run)
    with pytest.raises(TrustError, match=r"test_trust:Counts.*resume\(callbacks=\[\.\.\.\]\)"):
        agent.resume(70)
    counts = Counts()
    agent.resume(70, callbacks=[counts])
    assert counts.steps == 70


def test_a_run_says_that_it_has_to_be_trusted(tmp_path: Path) -> None:
    words = ["train", "--config", "dqn/cartpole", "--output-dir", str(tmp_path)]
    words += ["--set", "total_timesteps=30", "--set", "final_eval_episodes=1"]
    words += ["--set", "algo_kwargs.hidden_sizes=[4]"]
    plain = CliRunner().invoke(app, words).stdout
    assert "eval /" in plain
    assert "--trust" not in plain
    own = CliRunner().invoke(app, [*words, "--set", "env_id=toy_envs:CountingEnv"]).stdout
    (line,) = (line for line in own.splitlines() if " eval /" in line)
    assert line.endswith(" --trust")


def test_auto_resume_goes_on_with_the_users_configuration_not_with_the_runs(
    honest: Path, tmp_path: Path
) -> None:
    own = shutil.copy(honest / "config.yaml", tmp_path / "own.yaml")
    words = ["train", "--config", str(own), "--output-dir", str(tmp_path), "--auto-resume"]
    for name, key, value in (
        ("free", "callbacks", ["evil:Evil"]),
        ("env", "env_id", "evil:Evil"),
        ("gamma", "algo_kwargs", {**open_checkpoint(honest)[1].algo_kwargs, "gamma": 0.5}),
    ):
        forgery = Forgery(honest, tmp_path / name)
        forgery.config[key] = value
        forgery.sign()
        result = CliRunner().invoke(app, [*words, "--set", f"run_name={name}"])
        if name == "free":
            assert result.exit_code == 0, result.output
            assert "resumed at step 24" in result.output
            assert "evil" not in (tmp_path / name / "config.yaml").read_text()
        else:
            assert result.exit_code == 2
            assert "these keys differ" in result.output


# What else a run directory could lead to


def test_a_new_run_is_written_beside_the_old_one_not_where_the_file_says(
    honest: Path, tmp_path: Path
) -> None:
    forgery = Forgery(honest, tmp_path / "folder" / "run")
    forgery.config["output_dir"] = str(tmp_path / "elsewhere")
    run = forgery.sign()
    assert load(run).config.output_dir == str(tmp_path / "folder")
    copy = shutil.copytree(forgery.path, tmp_path / "copy")
    assert load(copy).config.output_dir == "runs"


def test_sizes_that_a_file_only_claims_take_no_memory(honest: Path, tmp_path: Path) -> None:
    forgery = Forgery(honest, tmp_path / "run")
    forgery.config["algo_kwargs"]["hidden_sizes"] = [65_536] * 16  # 17 GB a layer
    run = forgery.sign()
    with pytest.raises(
        CheckpointError, match=r"asks for a tensor of \[65536, 65536\].*cannot fill"
    ):
        load(run)
    resumed = CliRunner().invoke(app, ["resume", "--checkpoint", str(run)])
    assert "asks for a tensor of [65536, 65536]" in resumed.output


def test_weights_that_are_not_finite_are_refused(honest: Path, tmp_path: Path) -> None:
    forgery = Forgery(honest, tmp_path / "run")
    tensors = forgery.tensors("agent")
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point())
    tensors[name].fill_(float("nan"))
    forgery.write("agent", forgery.structure("agent"), tensors)
    with pytest.raises(CheckpointError, match=r"agent\.safetensors: expected finite weights"):
        load(forgery.sign())


def test_counters_that_owe_a_million_updates_are_refused(honest: Path, tmp_path: Path) -> None:
    forgery = Forgery(honest, tmp_path / "run")
    loop = forgery.structure("loop")
    loop["dict"]["run"]["dict"]["progress"]["dict"]["updates"] = 10**6
    forgery.write("loop", loop, forgery.tensors("loop"))
    with pytest.raises(CheckpointError, match=r"loop\.run: progress\.updates: found 1000000"):
        load(forgery.sign()).resume()


def test_files_of_a_run_that_are_links_or_pipes_are_not_read(honest: Path, tmp_path: Path) -> None:
    run = shutil.copytree(honest, tmp_path / "run")
    secret = tmp_path / "secret"
    secret.write_text("total_timesteps: 9999\n")
    for name in ("config.yaml", "metadata.json"):
        (run / name).unlink()
        os.symlink(secret, run / name)
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    os.unlink(run / ".lock")
    os.mkfifo(run / ".lock")
    assert [info.status for info in list_runs(tmp_path)] == ["unreadable"]
    _, config = open_checkpoint(run)
    assert config.total_timesteps == 32


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{", "[" * 5000, '{"seed": 1e999, "global_step": "x"}', '{"sessions": 3}'),
        json.dumps({"algo": "\x1b[31m", "seed": 10**400, "status": [], "eval_return_mean": "x"}),
    ],
)
def test_records_that_are_something_else_neither_stop_a_list_nor_a_resume(
    text: str, honest: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(honest, tmp_path / "run")
    for name in ("summary.json", "metadata.json", "metrics.jsonl"):
        (run / name).write_text(text)
    (info,) = list_runs(tmp_path)
    assert info.algo.isprintable()
    assert CliRunner().invoke(app, ["list", str(tmp_path)]).exit_code == 0
    assert load(run).resume().global_step == 32


def test_a_checkpoints_directory_that_leads_elsewhere_is_not_written_to(
    honest: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(honest, tmp_path / "run")
    outside = tmp_path / "outside"
    (run / "checkpoints").rename(outside)
    os.symlink(outside, run / "checkpoints")
    before = sorted(path.name for path in outside.iterdir())
    with pytest.raises(RunError, match="checkpoints is a symbolic link"):
        load(run).resume()
    assert sorted(path.name for path in outside.iterdir()) == before


def test_the_working_directory_stays_off_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", ".")])
    for name in ("popgym", "ale_py", "shimmy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
        monkeypatch.delitem(sys.modules, name, raising=False)
    for env_id in ("popgym:none-v0", "ALE/None-v5", "dm_control/none-v0"):
        with pytest.raises((ConfigError, MissingExtra)):
            make_env(env_id)
    assert str(tmp_path) not in sys.path
