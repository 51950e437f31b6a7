"""The evidence cards that come with the package, against the configurations as they are now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rl_training
from rl_training.config.loading import packaged_configs
from rl_training.experiment.registry import resolve_config
from rl_training.tools.evidence.card import Card, card_files, read_card
from rl_training.tools.evidence.make import outdated, planned_cards
from rl_training.tools.evidence.seeds import card_configuration, figures_over
from test_evidence_card import make_card, seed_record

FOLDER = Path(rl_training.__file__).parent / "assets" / "evidence"
NAMES = sorted(card_files(FOLDER))


def complaint(name: str, card: Card) -> str:
    """What is wrong with the committed card of a name, and what to do; empty if nothing."""
    if name not in packaged_configs():
        return f"evidence/{name}.json: there is no packaged configuration {name}: delete the card"
    changed = outdated(card)
    if card.config != name or changed:
        return (
            f"evidence/{name}.json is of {card.config} and not as packaged now ({changed}): delete "
            f"it, then run `rl-training evidence run {name}` and `python docs/generate.py`"
        )
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_card_is_of_the_packaged_configuration_as_it_is_now(name: str) -> None:
    card = read_card(FOLDER / f"{name}.json")
    assert not complaint(name, card), complaint(name, card)
    assert card.budget == card.configuration["total_timesteps"]
    assert card.figures == figures_over(card.returns)


def card_of(name: str, **changes: Any) -> Card:
    configuration = card_configuration(resolve_config(name).config)
    hyper = configuration["algo_kwargs"] | changes.pop("algo_kwargs", {})
    plan = planned_cards()[name]
    return make_card(
        [1.0] * len(plan.seed_numbers),
        config=name,
        failure_below=plan.failure_below,
        seeds=[seed_record(seed, 1.0) for seed in plan.seed_numbers],
        configuration=configuration | changes | {"algo_kwargs": hyper},
    )


def test_a_changed_configuration_is_named_with_the_command_that_makes_the_card_anew() -> None:
    name = "dqn/cartpole"
    assert complaint(name, card_of(name)) == ""
    card = card_of(name, total_timesteps=7, algo_kwargs={"n_step": 9})
    assert outdated(card) == "total_timesteps, algo_kwargs.n_step"
    assert complaint(name, card).endswith(
        "(total_timesteps, algo_kwargs.n_step): delete it, then run `rl-training evidence run "
        "dqn/cartpole` and `python docs/generate.py`"
    )
    assert "is of ppo/cartpole" in complaint(name, card_of("ppo/cartpole"))
    assert "there is no packaged configuration dqn/none" in complaint("dqn/none", card)


def test_other_seeds_and_lost_keys_are_changes_and_new_keys_with_their_default_are_not() -> None:
    card = card_of("dqn/cartpole")
    fewer = card.model_copy(update={"seeds": card.seeds[:3]})
    assert outdated(fewer) == "seeds"
    assert outdated(card.model_copy(update={"failure_below": 1.0})) == "failure_below"
    assert outdated(card_of("dqn/cartpole", once_a_key=1)) == "keys that no longer exist"
    older = {key: value for key, value in card.configuration.items() if key != "execution"}
    assert outdated(card.model_copy(update={"configuration": older})) == ""


def test_how_a_run_is_watched_does_not_make_a_card_outdated() -> None:
    """The conformance tests hold that it changes no bit of what is learned."""
    watched = card_of("dqn/cartpole", eval_interval=10_000, log_interval=7, action_names=[])
    assert outdated(watched) == ""
    assert outdated(card_of("dqn/cartpole", final_eval_episodes=7)) == "final_eval_episodes"
