"""The agents that come with the package: what they reach, and that their names lead to them."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from rl_training import DQN, SAC, load
from rl_training.api import ManagedAlgorithm
from rl_training.cli import app
from rl_training.config.loading import packaged_configs
from rl_training.errors import CheckpointError, UsageError
from rl_training.experiment.registry import resolve_config
from rl_training.runtime.zoo import find_agent, packaged_policies
from rl_training.storage.checkpoints import Checkpoint, write_checkpoint
from rl_training.tools.evidence.card import card_files, read_card, write_card
from rl_training.tools.zoo import MAX_BYTES, read_policies, read_policy

EPISODES = 4
EXTRAS = {"LunarLander-v3": "box2d", "InvertedPendulum-v5": "mujoco", "Hopper-v5": "mujoco"}


def with_its_extra(name: str) -> object:
    env_id = resolve_config(name).config.to_plain()["env_id"]
    extra = EXTRAS.get(env_id)
    return pytest.param(name, marks=[pytest.mark.extra(extra)] if extra else [])


@pytest.mark.parametrize("name", [with_its_extra(name) for name in packaged_policies()])
def test_a_packaged_agent_reaches_its_return_and_that_of_its_card(name: str) -> None:
    policy, card = read_policy(name, packaged_policies()[name]), read_card(card_files()[name])
    record = policy.record
    assert policy.env_steps >= card.budget
    assert record.return_mean >= min(card.returns) - card.tolerance
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Box2D's module crashes where its warnings are errors
        evaluation = load(name).evaluate(EPISODES)
    # Four standard errors, and the tolerance for other processors.
    bound = 4 * record.return_std / math.sqrt(EPISODES) + card.tolerance
    assert evaluation.mean >= record.return_mean - bound


def test_all_agents_together_are_a_small_part_of_the_wheel() -> None:
    policies = read_policies()
    assert policies
    assert all(policy.num_bytes <= MAX_BYTES for policy in policies)
    assert sum(policy.num_bytes for policy in policies) < 9 << 20
    assert {policy.name for policy in policies} <= set(card_files()) & set(packaged_configs())


def test_packaged_agents_say_nothing_of_where_they_were_trained() -> None:
    for policy in read_policies():
        config = Checkpoint.open(policy.path).info["config"]
        assert (config["output_dir"], config["run_name"], config["init_from"]) == (
            "runs",
            None,
            None,
        )


def test_the_list_fits_a_terminal_and_says_what_each_agent_reaches() -> None:
    lines = CliRunner().invoke(app, ["zoo"]).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:2] == ["dqn/cartpole", "CartPole-v1"] for line in lines)
    listed = json.loads(CliRunner().invoke(app, ["zoo", "--json"]).stdout)
    assert [entry["name"] for entry in listed] == list(packaged_policies())


# Names


def test_a_name_is_an_agent_wherever_a_run_is_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["eval", "dqn/cartpole", "--episodes", "1"])
    assert result.exit_code == 0, result.output
    words = ["predict", "dqn/cartpole", "--observation", "[0, 0, 0.1, 0]"]
    assert json.loads(CliRunner().invoke(app, words).stdout) == {"action": 1}
    assert DQN.load("dqn/cartpole").env_steps == 50_000
    new = DQN.from_config("dqn/cartpole", init_from="dqn/cartpole", total_timesteps=10)
    assert new.evaluate(1).mean == 500
    refused = CliRunner().invoke(app, ["resume", "dqn/cartpole"])
    assert "holds a policy without its training state" in refused.stderr


def test_nothing_in_the_current_directory_takes_the_place_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    here = DQN("CartPole-v1", hidden_sizes=[4]).save(Path("dqn/cartpole"))
    assert find_agent("dqn/cartpole") == packaged_policies()["dqn/cartpole"]
    assert "the directory of that name here is ./dqn/cartpole" in caplog.text
    assert load("./dqn/cartpole").config.algo_kwargs["hidden_sizes"] == [4]
    assert find_agent(here) == here


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dqn/cartpol", "did you mean 'dqn/cartpole'"),
        ("drqv2/pendulum_pixels", "no trained agent of it comes with the package"),
        ("nothing like it", "`rl-training zoo` lists"),
        ("a\0b", "found the text"),
        ("x" * 5000, "found the text"),
        ("../zoo/dqn/cartpole", "found the text"),
        ("", "names|holds no|found"),
    ],
)
def test_other_names_are_refused_with_what_there_is(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load(name)


@pytest.mark.parametrize("name", ["dqn/cartpol", "../zoo/x", "dqn/pong", "x.json"])
def test_policies_are_made_of_packaged_cards_alone(name: str) -> None:
    result = CliRunner().invoke(app, ["evidence", "policy", name])
    assert result.exit_code == UsageError.exit_code
    assert "expected the name of a packaged configuration that has a card" in result.stderr


def test_a_card_of_another_name_makes_no_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forged = read_card(card_files()["dqn/cartpole"]).model_copy(update={"config": "../../x"})
    write_card(Path("evidence/dqn/cartpole.json"), forged.sealed())
    result = CliRunner().invoke(app, ["evidence", "policy", "dqn/cartpole"])
    assert "expected the card of dqn/cartpole, found '../../x'" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["evidence"]


# A policy alone


def with_its_policy(
    agent: ManagedAlgorithm, parts: dict[str, Any], folder: Path
) -> tuple[Path, Path]:
    """The agent as `save` writes it, and a checkpoint of these parts."""
    whole = agent.save(folder / agent.algo_name / "whole")
    info = Checkpoint.open(whole).info
    alone = write_checkpoint(whole.parent, kind="best", env_steps=0, parts=parts, info=info)
    return whole, alone


def test_a_policy_acts_like_its_agent_without_what_only_learns(tmp_path: Path) -> None:
    for agent in (
        DQN("CartPole-v1", hidden_sizes=[8], ema_decay=0.9, noisy=True),
        SAC("Pendulum-v1", hidden_sizes=[8], normalize_observations=True),
    ):
        whole, alone = with_its_policy(agent, agent._current_agent().policy_parts(), tmp_path)
        sizes = [
            sum(e.size for e in Checkpoint.open(path).files.values()) for path in (whole, alone)
        ]
        assert sizes[1] < 0.6 * sizes[0]
        obs = np.stack([agent._adapter().observation.sample() for _ in range(20)])
        actions = [load(path).predict(obs)[0] for path in (whole, alone)]
        assert actions[0].tolist() == actions[1].tolist()
        begun = type(agent)(agent.config, init_from=str(alone))
        # Its kernels come only with training, so the last bits may differ.
        assert begun.predict(obs)[0] == pytest.approx(actions[0], rel=1e-4, abs=1e-5)


def test_a_policy_without_weights_is_refused(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", hidden_sizes=[8])
    parts = agent._current_agent().policy_parts()
    del parts["agent"]["algorithm"]["model"]
    _, path = with_its_policy(agent, parts, tmp_path)
    with pytest.raises(CheckpointError, match="model is missing"):
        load(path)


def test_a_policy_whose_record_is_wrong_is_refused(tmp_path: Path) -> None:
    path = DQN("CartPole-v1", hidden_sizes=[8]).save(tmp_path / "dqn" / "mine")
    with pytest.raises(CheckpointError, match=r"info\.policy"):
        read_policy("dqn/mine", path)
