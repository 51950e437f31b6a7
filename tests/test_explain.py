"""`predict --explain` and `explain`: the numbers, the picture of them, and what is refused."""

from __future__ import annotations

import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from click.testing import Result
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import nn
from typer.testing import CliRunner

import rl_training
from rl_training import C51, DQN, DRQN, PPO, QRDQN, SAC, TD3, RecurrentPPO
from rl_training.algorithms.base import Algorithm
from rl_training.api.managed import ManagedAlgorithm
from rl_training.cli import app
from rl_training.config.loading import packaged_configs
from rl_training.errors import ConfigError, MissingExtra, NonFiniteError, UsageError
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.tools.explain import (
    ChoiceProbabilities,
    Explanation,
    Spread,
    best_along,
    explain,
)
from rl_training.tools.explanation_picture import MOST_DIMENSIONS, MOST_ROWS, draw
from rounding import rounding
from training import tiny_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

pytestmark = pytest.mark.extra("report")

VALUE_BASED: dict[str, type[ManagedAlgorithm]] = {"dqn": DQN, "qr_dqn": QRDQN, "c51": C51}
OBSERVATION = [0.02, -0.3, 0.01, 0.4]


class Gambling(gym.Env[np.ndarray, int]):
    """Never played: its actions are numbered from 5."""

    def __init__(self, actions: int = 3) -> None:
        self.observation_space = Box(-1e30, 1e30, (2,), np.float32)
        self.action_space = Discrete(actions, start=5)


class OnlyActs(Algorithm):
    """An algorithm with no more than it must have."""

    def act(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    def update(self, batch: Any, clock: Any) -> Any:
        raise NotImplementedError


class Scaled(nn.Module):
    """Outputs that are the first number of the observation times known ones."""

    def __init__(self, numbers: Any) -> None:
        super().__init__()
        self.numbers = nn.Parameter(torch.tensor(numbers, dtype=torch.float32))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        shape = (-1, *[1] * self.numbers.ndim)
        return obs[:, 0].reshape(shape) * self.numbers


def gambler(algo: str, numbers: Any, **keys: Any) -> ManagedAlgorithm:
    """An agent whose network is `Scaled`."""
    hyper = keys.pop("algo_kwargs", {}) | {"network": lambda *_: Scaled(numbers)}
    return VALUE_BASED[algo](Gambling(len(numbers)), algo_kwargs=hyper, **keys)


QUANTILES = [[1.0, 2.0, 6.0], [5.0, 3.0, 4.0], [-1.0, 0.0, 1.0]]  # means 3, 4 and 0
ATOMS = np.log([[2, 1, 1], [1, 1, 2], [1, 2, 1]])  # quarters, on the returns -4, 0 and 4


def quantile_agent() -> ManagedAlgorithm:
    return gambler("qr_dqn", QUANTILES, algo_kwargs={"num_quantiles": 3})


def atom_agent() -> ManagedAlgorithm:
    hyper = {"num_atoms": 3, "v_min": -4.0, "v_max": 4.0}
    return gambler("c51", ATOMS, algo_kwargs=hyper)


def explained(agent: ManagedAlgorithm, obs: Any = (1.0, 0.0)) -> Explanation:
    return explain(agent._current_agent(), list(obs))


def pictured(agent: ManagedAlgorithm, obs: Any = (1.0, 0.0)) -> tuple[Figure, Axes]:
    figure = draw(explained(agent, obs))
    return figure, figure.axes[0]


def labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def means(axes: Axes) -> list[list[float]]:
    (line,) = (line for line in axes.get_lines() if line.get_label() == "mean (Q-value)")
    return np.asarray(line.get_xydata()).tolist()


# The numbers


def test_values_are_those_of_the_network() -> None:
    expected = explained(gambler("dqn", [1.0, -2.0, 4.0]), (2.0, 0.0)).expected
    assert expected.form == "values"
    assert expected.q_values.tolist() == [2, -4, 8]
    assert expected.returns.tolist() == [[2], [-4], [8]]
    assert expected.probabilities.tolist() == [[1]] * 3


def test_returns_are_those_of_the_environment_whatever_learning_scales() -> None:
    agent = gambler("dqn", [1.0, -2.0, 4.0], algo_kwargs={"reward_scale": 0.5})
    expected = explained(agent).expected
    assert expected.q_values.tolist() == [2, -4, 8]
    assert expected.returns.tolist() == [[2], [-4], [8]]


def test_quantiles_are_in_order_and_equally_probable() -> None:
    expected = explained(quantile_agent()).expected
    assert expected.form == "quantiles"
    assert expected.returns.tolist() == [[1, 2, 6], [3, 4, 5], [-1, 0, 1]]
    np.testing.assert_allclose(expected.probabilities, np.full((3, 3), 1 / 3))
    np.testing.assert_allclose(expected.q_values, [3, 4, 0])


def test_atoms_have_the_probabilities_of_their_logits() -> None:
    expected = explained(atom_agent()).expected
    assert expected.form == "atoms"
    assert expected.returns.tolist() == [[-4, 0, 4]] * 3
    quarters = [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.25, 0.5, 0.25]]
    np.testing.assert_allclose(expected.probabilities, quarters, rtol=1e-6)
    # Four roundings of each probability: logarithm, exponential, their sum and the quotient. The
    # returns they weigh are -4 and 4, with a probability of 3/4 at most.
    np.testing.assert_allclose(expected.q_values, [-1, 1, 0], rtol=0, atol=rounding(4, 3))


def test_observations_are_normalised_as_for_acting() -> None:
    agent = gambler("dqn", [1.0, -1.0], normalize_observations=True)
    rows = np.array([[10.0, 0.0], [14.0, 0.0]], np.float32)  # mean 12, deviation 2
    agent._current_agent().normalizer.observe(rows, np.array([True, True]))
    explanation = explained(agent, (15.0, 0.0))
    np.testing.assert_allclose(explanation.expected.q_values, [1.5, -1.5], rtol=1e-6)
    below = explained(agent, (11.0, 0.0)).expected.q_values  # the sign is that of what is left
    np.testing.assert_allclose(below, [-0.5, 0.5], rtol=1e-6)
    assert agent.predict([11.0, 0.0])[0] == 6


def test_the_network_is_asked_as_for_acting() -> None:
    """Dropout would halve or double the values."""

    def network(*_: Any) -> nn.Module:
        return nn.Sequential(Scaled([1.0, 2.0]), nn.Dropout(0.5))

    agent = DQN(Gambling(2), algo_kwargs={"network": network})
    agent._current_agent().algorithm.networks()["model"].train()
    for _ in range(8):
        assert explained(agent).expected.q_values.tolist() == [1, 2]


# The picture


def test_bars_reach_from_zero_to_q_values_that_differ_much() -> None:
    from matplotlib.patches import Rectangle

    _, axes = pictured(gambler("dqn", [1.0, -2.0, 4.0]))
    bars = [bar for box in axes.containers for bar in box]
    assert axes.get_xlim()[0] < 0 < axes.get_xlim()[1]
    assert all(isinstance(bar, Rectangle) for bar in bars)
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 1), (0, -2), (0, 4)]
    centres = [bar.get_y() + bar.get_height() / 2 for bar in bars]
    np.testing.assert_allclose(centres, [0, 1, 2])


def test_quantiles_are_lines_across_their_row() -> None:
    _, axes = pictured(quantile_agent())
    drawn = axes.collections[:3]
    for row, values in enumerate([[1, 2, 6], [3, 4, 5], [-1, 0, 1]]):
        expected = [[[value, row + 0.4], [value, row - 0.4]] for value in values]
        np.testing.assert_allclose(drawn[row].get_segments(), expected)
    np.testing.assert_allclose(means(axes), [[3, 0.4], [4, 1.4], [0, 2.4]], rtol=1e-6)


def test_atoms_are_bars_side_by_side_on_one_scale() -> None:
    from matplotlib.patches import StepPatch

    _, axes = pictured(atom_agent())
    patches = [patch for patch in axes.patches if isinstance(patch, StepPatch)]
    heights = [[0.8, 0.4, 0.4], [0.4, 0.4, 0.8], [0.4, 0.8, 0.4]]  # 0.8 for the highest, a half
    for row, patch in enumerate(patches):
        values, edges, floor = patch.get_data()
        assert edges.tolist() == [-6, -2, 2, 6]  # around -4, 0 and 4
        np.testing.assert_allclose(floor, row + 0.4)
        np.testing.assert_allclose(floor - values, heights[row], rtol=1e-6)
    assert len(patches) == 3
    expected = [[-1, 0.4], [1, 1.4], [0, 2.4]]
    np.testing.assert_allclose(means(axes), expected, rtol=0, atol=rounding(4, 3))  # as above


def test_improbable_ends_of_the_support_are_left_out() -> None:
    logits = np.full((2, 101), -30.0)
    logits[0, 40], logits[1, 43] = 0, 0
    hyper = {"num_atoms": 101, "v_min": 0.0, "v_max": 100.0}
    _, axes = pictured(gambler("c51", logits, algo_kwargs=hyper))
    assert axes.get_xlim() == (38, 45)  # two atoms more on either side


@pytest.mark.parametrize(
    ("agent", "greedy"),
    [(lambda: gambler("dqn", [1.0, -2.0, 4.0]), 2), (quantile_agent, 1), (atom_agent, 1)],
)
def test_the_greedy_action_is_marked_and_the_one_predict_gives(agent: Any, greedy: int) -> None:
    agent = agent()
    _, axes = pictured(agent)
    names = ["5", "6", "7"]  # as the environment numbers them
    names[greedy] = f"greedy: {names[greedy]}"
    assert labels(axes) == names
    assert agent.predict([1.0, 0.0])[0] == greedy + 5
    weights = [label.get_fontweight() for label in axes.get_yticklabels()]
    assert [weight == "bold" for weight in weights] == [row == greedy for row in range(3)]


def test_words_say_what_is_seen() -> None:
    agent = quantile_agent()
    agent._current_agent().set_progress(12_345, 50_000)
    figure, axes = pictured(agent)
    assert figure.get_suptitle() == "QR-DQN on <Env instance Gambling>, step 12,345"
    assert axes.get_title(loc="left") == "at [1.0, 0.0]"
    assert "discounted return" in axes.get_xlabel()
    assert axes.get_ylabel() == "action"
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [
        "greedy action: quantiles of the return: the denser, the more probable",
        "other actions",
        "mean (Q-value)",
        "the greedy action's mean",
    ]
    assert [text.get_text() for text in axes.texts] == ["3  (-1)", "4", "0  (-4)"]


@pytest.mark.parametrize("count", [2, 18, 300])
def test_labels_do_not_touch_however_many_actions(count: int) -> None:
    figure, axes = pictured(gambler("dqn", [math.sin(n) for n in range(count)]))
    figure.draw_without_rendering()
    extents = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert len(extents) == min(count, MOST_ROWS)
    assert all(above.y0 > below.y1 for above, below in pairwise(extents))
    assert figure.get_figheight() < 12


def test_of_very_many_actions_the_best_are_shown() -> None:
    values = np.zeros(300)
    values[100:] = np.arange(200)  # the best 24 are the last
    _, axes = pictured(gambler("dqn", values))
    assert labels(axes) == [*map(str, range(281, 304)), "greedy: 304"]
    assert axes.get_ylabel() == "action, the best 24 of 300"


def test_values_that_are_close_are_shown_by_how_they_differ() -> None:
    _, axes = pictured(gambler("dqn", [100.0, 104.0, 103.0]))
    left, right = axes.get_xlim()
    assert 99 < left < 100
    assert 104 < right < 105
    assert [text.get_text() for text in axes.texts] == ["100  (-4)", "104", "103  (-1)"]
    lines = axes.collections[0].get_segments()  # to the best
    np.testing.assert_allclose([line[:, 0] for line in lines], [[100, 104], [104, 104], [103, 104]])


# Policies


class Constant(nn.Module):
    """A policy and a value that are always the same."""

    def __init__(self, output: Any, value: float = 2.5, log_std: Any = None) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.tensor(output, dtype=torch.float32))
        self.number = nn.Parameter(torch.tensor(value))
        if log_std is not None:
            self.log_std = nn.Parameter(torch.tensor(log_std, dtype=torch.float32))

    def policy(self, obs: torch.Tensor) -> torch.Tensor:
        return self.output.expand(len(obs), -1)

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        return self.number.expand(len(obs))


class Steering(gym.Env[np.ndarray, Any]):
    """Never played; its two actions have other bounds."""

    action_names = ("wheel", "gas")

    def __init__(self, space: Any = None) -> None:
        self.observation_space = Box(-1, 1, (2,), np.float32)
        self.action_space = space or Box(np.float32([-10, 0]), np.float32([10, 4]))


class Bowl(nn.Module):
    """An actor of mean 0 and deviation 1; critics that give 7 - a0^2 + a1, and 2 more."""

    def __init__(self, outputs: int = 4) -> None:
        super().__init__()
        self.actor, self.critics = BowlActor(outputs), BowlCritics()


class BowlActor(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.zeros(outputs))

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.output.expand(len(obs), -1)


class BowlCritics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heights = nn.Parameter(torch.tensor([7.0, 9.0]))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        value = action[:, 1] - action[:, 0] ** 2
        return (self.heights[:, None] + value)[:, :, None]


def policy_agent(space: Any, output: Any, log_std: Any = None, **keys: Any) -> ManagedAlgorithm:
    network = {"network": lambda *_: Constant(output, log_std=log_std)}
    return PPO(Steering(space), algo_kwargs=network, **keys)


def test_choices_have_the_probabilities_of_their_logits_and_the_state_its_value() -> None:
    agent = policy_agent(Discrete(3), np.log([1.0, 4.0, 5.0]), action_names=["a", "b", "c"])
    explanation = explained(agent, (0.0, 0.0))
    expected = explanation.expected
    assert isinstance(expected, ChoiceProbabilities)
    np.testing.assert_allclose(expected.probabilities, [0.1, 0.4, 0.5], rtol=1e-6)
    assert expected.value == 2.5
    assert (explanation.actions, explanation.greedy.tolist()) == (["a (0)", "b (1)", "c (2)"], [2])
    _, axes = pictured(agent, (0.0, 0.0))
    assert axes.get_xlim() == (0, 1)
    assert labels(axes) == ["a (0)", "b (1)", "greedy: c (2)"]
    assert [text.get_text() for text in axes.texts] == ["10.00%", "40.00%", "50.00%"]
    masked = explain(agent._current_agent(), [0.0, 0.0], [1, 1, 0])
    assert isinstance(masked.expected, ChoiceProbabilities)
    np.testing.assert_allclose(masked.expected.probabilities, [0.2, 0.8], rtol=1e-6)


def test_each_part_of_an_action_has_its_greedy_choice() -> None:
    several = explained(policy_agent(MultiDiscrete([2, 3]), [1.0, 0.0, 0.0, 0.0, 1.0]), (0.0, 0.0))
    assert several.greedy.tolist() == [0, 4]
    assert several.actions[4] == "action[1]: 2"
    names = ["lamp", "fan"]
    switches = explained(policy_agent(MultiBinary(2), [-1.0, 2.0], action_names=names), (0.0, 0.0))
    assert switches.actions == ["lamp: 0", "lamp: 1", "fan: 0", "fan: 1"]
    assert switches.greedy.tolist() == [0, 3]


def test_a_gaussian_policys_spread_is_in_the_environments_units() -> None:
    agent = policy_agent(None, [0.5, -1.0], np.log([0.1, 0.5]))
    explanation = explained(agent, (0.0, 0.0))
    expected = explanation.expected
    assert isinstance(expected, Spread)
    np.testing.assert_allclose(expected.action, [5, 0], atol=1e-6)  # -10 to 10, and 0 to 4
    normal = np.array([-1.6448536, -0.6744898, 0, 0.6744898, 1.6448536])
    np.testing.assert_allclose(expected.quantiles[:, 0], 5 + normal, rtol=1e-5)
    # Half of a scale of 2 is 1 a deviation; what is below the bound is clipped to it.
    np.testing.assert_allclose(expected.quantiles[:, 1], normal.clip(0), atol=1e-5)
    assert expected.along.shape[0] == 0
    assert "value of the state, in units of the rewards learned from: 2.5" in str(explanation)


def test_critics_are_asked_along_each_dimension() -> None:
    agent = SAC(Steering(), algo_kwargs={"network": lambda *_: Bowl()}, action_names=["l", "r"])
    explanation = explained(agent, (0.0, 0.0))
    expected = explanation.expected
    assert isinstance(expected, Spread)
    np.testing.assert_allclose(expected.action, [0, 2])
    upper = np.tanh(0.6744898)
    np.testing.assert_allclose(expected.quantiles[3], [10 * upper, 2 + 2 * upper], rtol=1e-6)
    assert expected.values.tolist() == [7, 9]
    scaled = expected.grid / [10, 2] - [0, 1]
    np.testing.assert_allclose(expected.along[0, 0], 7 - scaled[:, 0] ** 2, atol=1e-5)
    np.testing.assert_allclose(expected.along[1, 1], 9 + scaled[:, 1], atol=1e-5)
    best = best_along(expected)
    np.testing.assert_allclose(best, [(0, 8), (4, 9)], atol=1e-5)
    assert str(explanation).splitlines()[1].endswith("best by critics  value there")
    figure = draw(explanation)
    assert [axes.get_yticklabels()[0].get_text() for axes in figure.axes[::2]] == ["l", "r"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(legend) == 7
    assert "without exploration" in legend


def test_a_deterministic_actor_spreads_by_its_noise() -> None:
    hyper = {"network": lambda *_: Bowl(2), "noise": 0.1}
    expected = explained(TD3(Steering(), algo_kwargs=hyper), (0.0, 0.0)).expected
    assert isinstance(expected, Spread)
    normal = [-1.6448536, -0.6744898, 0, 0.6744898, 1.6448536]  # a tenth of the scale, 10
    np.testing.assert_allclose(expected.quantiles[:, 0], normal, rtol=1e-5)
    assert expected.values.tolist() == [7, 9]


@pytest.mark.parametrize("algo", [DRQN, RecurrentPPO])
def test_a_recurrent_agent_is_explained_at_the_beginning_of_an_episode(algo: Any) -> None:
    agent = algo(Gambling(), hidden_sizes=[4], core_size=4)
    explanation = explained(agent)
    assert explanation.recurrent
    assert explanation.where == "at the beginning of an episode, at [1.0, 0.0]"
    assert explanation.greedy[0] + 5 == agent.predict([1.0, 0.0])[0]


def test_of_very_many_dimensions_the_first_are_drawn_and_all_are_told() -> None:
    space = Box(-1, 1, (40,), np.float32)
    agent = policy_agent(space, np.zeros(40), np.zeros(40))
    explanation = explained(agent, (0.0, 0.0))
    figure = draw(explanation)
    assert len(figure.axes) == MOST_DIMENSIONS
    assert "the first 8 of 40 dimensions" in figure.axes[-1].get_xlabel()
    assert len(str(explanation).splitlines()) == 2 + 40 + 1


# Names


def test_names_of_actions_stand_beside_their_numbers(tmp_path: Path) -> None:
    _, axes = pictured(gambler("dqn", [1.0, 4.0, 2.0], action_names=["stay", "$x$", "go"]))
    assert labels(axes) == ["stay (5)", "greedy: $x$ (6)", "go (7)"]
    assert not axes.get_yticklabels()[1].get_parse_math()
    for names in (["one"], ["a", "b", "c", "d"]):
        with pytest.raises(ConfigError, match=f"expected 3, one for each choice .*{len(names)}"):
            explained(gambler("dqn", [1.0, 4.0, 2.0], action_names=names))
    for name in ("", "x" * 41, "a\x1b[1m", " a", "a\nb"):
        with pytest.raises(ConfigError, match="action_names"):
            gambler("dqn", [1.0, 4.0, 2.0], action_names=[name] * 3)


class Named(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: Any, names: Any) -> None:
        super().__init__(env)
        self.action_names = names


@pytest.mark.parametrize(
    ("names", "kept"), [(("left", "right"), ("left", "right")), (("one",), ()), (7, ())]
)
def test_a_run_keeps_the_names_that_its_environment_gives(
    names: Any, kept: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> gym.Env[Any, Any]:
        return Named(gym.make("CartPole-v1"), names)

    result = train_config(tiny_config("dqn", tmp_path, env_id=make, total_timesteps=30))
    loaded = rl_training.load(result.run_dir)
    assert loaded.config.action_names == kept
    assert loaded._current_agent().action_names == kept
    assert ("its action_names are left out" in caplog.text) == (not kept)


@pytest.mark.parametrize("name", sorted(packaged_configs()))
def test_packaged_names_are_as_many_as_the_actions(name: str) -> None:
    config = resolve_config(name).config
    counts = {"CartPole-v1": 2, "LunarLander-v3": 4, "Pendulum-v1": 1, "Hopper-v5": 3}
    counts |= {"InvertedPendulum-v5": 1, "ALE/Pong-v5": 6, "Taxi-v4": 6}
    assert len(config.action_names) == counts.get(config.env_id, 0)


# What is refused


def test_a_batch_is_refused(tmp_path: Path) -> None:
    agent = gambler("dqn", [1.0, 2.0])
    for rows in ([[1.0, 0.0]], [[1.0, 0.0]] * 3):
        with pytest.raises(UsageError, match=f"one observation, found a batch of {len(rows)}"):
            agent.explain(rows, tmp_path / "why.png")
    assert list(tmp_path.iterdir()) == []


def test_an_algorithm_that_only_acts_is_refused(tmp_path: Path) -> None:
    agent = PPO(Gambling())
    agent._current_agent().algorithm = OnlyActs()  # such as one of somebody's own
    with pytest.raises(UsageError, match="methods first_output, q_values and returns, or first_"):
        agent.explain([1.0, 0.0], tmp_path / "why.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("algo", VALUE_BASED)
def test_values_that_are_not_finite_are_refused(algo: str, tmp_path: Path) -> None:
    numbers = [1e30, 2.0] if algo == "dqn" else [[1e30, 2.0, 0.0]] * 2
    sizes = {"dqn": {}, "qr_dqn": {"num_quantiles": 3}, "c51": {"num_atoms": 3}}
    agent = gambler(algo, numbers, algo_kwargs=sizes[algo])
    with pytest.raises(NonFiniteError, match="finite values of the actions, found"):
        agent.explain([1e30, 0.0], tmp_path / "why.png")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("why.doc", r"ends in .png or another of .*jpg, .*svg, .*, found 'why.doc'"),
        ("why", "found 'why'"),
        ("why.pgf", "found 'why.pgf'"),
        ("none/why.png", "a folder that exists, found none at .*none; create it first"),
        ("folder.png", "the name of a file, found the folder"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused_before_the_agent_is_built(
    name: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "folder.png").mkdir()
    agent = gambler("dqn", [1.0, 2.0])
    with pytest.raises(UsageError, match=words):
        agent.explain([1.0, 0.0], tmp_path / name)
    assert agent._agent is None


def test_a_picture_needs_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    agent = gambler("dqn", [1.0, 2.0])
    with pytest.raises(MissingExtra, match=r"pip install 'rl-training\[report\]'"):
        agent.explain([1.0, 0.0], tmp_path / "why.png")


# Files and the command line


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.png", b"\x89PNG"), ("a.PDF", b"%PDF"), ("a.svg", b"<?xml"), ("a.jpg", b"\xff\xd8")],
)
def test_the_suffix_names_the_format(name: str, start: bytes, tmp_path: Path) -> None:
    path = quantile_agent().explain([1.0, 0.0], str(tmp_path / name))
    assert path == tmp_path / name
    assert path.read_bytes().startswith(start)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        algo: train_config(tiny_config(algo, folder / algo)).run_dir
        for algo in (*VALUE_BASED, "ppo")
    }


def predict(run_dir: Path, *words: object, stdin: str | None = None) -> Result:
    arguments = ["predict", "--checkpoint", run_dir, *words]
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


@pytest.mark.parametrize("algo", [*VALUE_BASED, "ppo"])
def test_predict_prints_the_action_and_draws_the_picture(
    algo: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "why.png"
    words = ("--observation", json.dumps(OBSERVATION))
    plain = predict(runs[algo], *words)
    result = predict(runs[algo], *words, "--explain", path)
    assert result.exit_code == 0, result.output
    assert (result.stdout, result.stderr) == (plain.stdout, f"written: {path}\n")
    in_words = predict(runs[algo], *words, "--explain", "-")
    assert (in_words.exit_code, in_words.stdout) == (0, plain.stdout)
    loaded = rl_training.load(runs[algo]).explanation(OBSERVATION)
    assert in_words.stderr == f"{loaded}\n"
    assert path.read_bytes().startswith(b"\x89PNG")
    from_python = rl_training.load(runs[algo]).explain(OBSERVATION, tmp_path / "again.png")
    assert from_python.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("algo", VALUE_BASED)
def test_a_trained_agents_picture_shows_its_step_and_its_action(
    algo: str, runs: dict[str, Path]
) -> None:
    agent = VALUE_BASED[algo].load(runs[algo])
    figure, axes = pictured(agent, OBSERVATION)
    assert figure.get_suptitle().endswith(" on CartPole-v1, step 240")
    action = int(agent.predict(OBSERVATION)[0])
    assert labels(axes)[action] == f"greedy: {action}"


@pytest.mark.parametrize(
    ("algo", "words", "said"),
    [
        ("dqn", ("--observation", "[[0, 0, 0, 0], [1, 1, 1, 1]]"), "found a batch of 2"),
        ("dqn", (), "give it with --observation"),
    ],
)
def test_what_cannot_be_drawn_is_refused_and_nothing_is_printed(
    algo: str, words: tuple[str, ...], said: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "why.png"
    result = predict(runs[algo], *words, "--explain", path, stdin="[0, 0, 0, 0]\n")
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stdout == ""
    assert not path.exists()


def test_a_wrong_path_is_reported_before_the_checkpoint_is_looked_for(tmp_path: Path) -> None:
    words = ("--observation", "[0]", "--explain", tmp_path / "why.doc")
    result = predict(tmp_path / "no run", *words)
    assert result.exit_code == 2, result.output
    assert "found 'why.doc'" in result.stderr
