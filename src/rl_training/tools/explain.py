"""What an agent makes of one observation, in numbers and words, and as a picture.

Value-based algorithms give the returns of the actions (`GivesReturns`). Those with a policy give it
(`GivesActions`): the probabilities of choices, or the distribution of each dimension of a
continuous action and what the critics expect along it.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from rl_training.algorithms.base import (
    ActionSpread,
    Choices,
    GivesActions,
    GivesReturns,
    Recurrent,
    ReturnDistribution,
)
from rl_training.errors import NonFiniteError, UsageError
from rl_training.runtime.agent import Agent
from rl_training.storage.files import write_atomic
from rl_training.tools.plotting import require_matplotlib


class ActionReturns(NamedTuple):
    """The return distribution of each action, and its mean: `q_values` [A], highest if greedy."""

    form: Literal["values", "quantiles", "atoms"]
    returns: np.ndarray
    probabilities: np.ndarray
    q_values: np.ndarray

    @property
    def spread(self) -> np.ndarray:
        """The standard deviation of each action's return."""
        squared = (self.returns - self.q_values[:, None]) ** 2
        deviation: np.ndarray = np.sqrt((self.probabilities * squared).sum(1))
        return deviation


class ChoiceProbabilities(NamedTuple):
    """How probable each legal choice is, by the `part` of the action it belongs to."""

    part: np.ndarray
    probabilities: np.ndarray
    value: float


class Spread(NamedTuple):
    """Continuous actions in the environment's units.

    `action` [A] is the deterministic one, and `quantiles` [5, A] are those of what training plays,
    at 5, 25, 50, 75 and 95 %. `values` are the critics', or the state's; `along` [E, A, G] are the
    critics' where one dimension is that of `grid` [G, A].
    """

    action: np.ndarray
    quantiles: np.ndarray
    values: np.ndarray
    grid: np.ndarray
    along: np.ndarray


class Explanation(NamedTuple):
    """What an agent makes of an observation; `actions` names the choices or the dimensions.

    As text it is a table.
    """

    algo: str
    env_id: str
    env_steps: int
    observation: str
    actions: list[str]
    expected: ActionReturns | ChoiceProbabilities | Spread
    recurrent: bool = False

    @property
    def greedy(self) -> np.ndarray:
        """The rows that acting without exploration takes: one for each part of the action."""
        expected = self.expected
        if isinstance(expected, ActionReturns):
            return np.array([expected.q_values.argmax()])
        if isinstance(expected, Spread):
            return np.zeros(0, np.int64)
        rows = (np.flatnonzero(expected.part == part) for part in np.unique(expected.part))
        return np.array([part[expected.probabilities[part].argmax()] for part in rows])

    @property
    def where(self) -> str:
        """The observation, and what came before it."""
        place = shorten(self.observation, 100, placeholder=" ...")
        return f"{'at the beginning of an episode, ' * self.recurrent}at {place}"

    def __str__(self) -> str:
        title = f"{self.algo} on {self.env_id}, step {self.env_steps:,}, {self.where}"
        rows = _table(self)
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if column == 0 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        text = "\n".join([title, *lines, *value_lines(self.expected)])
        return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def explain(agent: Agent, obs: object, action_mask: object = None) -> Explanation:
    """What the agent makes of one raw observation; of a recurrent one, as an episode's first."""
    algorithm = agent.algorithm
    if not isinstance(algorithm, GivesReturns | GivesActions):
        raise UsageError(
            f"explain: expected an algorithm with the methods first_output, q_values and returns, "
            f"or first_actions, found {agent.spec.name}, which has neither"
        )
    encoded, single = agent.adapter.encode_any(obs)
    if not single:
        raise UsageError(
            f"explain: expected one observation, found a batch of {len(encoded)}; give one of them"
        )
    legal = agent.masks(action_mask, 1, single=True)
    normalized = agent.normalizer.array(encoded)
    expected: ActionReturns | ChoiceProbabilities | Spread
    if isinstance(algorithm, GivesReturns):
        expected, actions = _returns(agent, normalized, legal)
    else:
        view = algorithm.first_actions(normalized, agent.clock, legal)
        if isinstance(view, Choices):
            expected, actions = _choices(agent, view, legal)
        else:
            expected, actions = _spread(agent, view)
    return Explanation(
        algo=agent.spec.name,
        env_id=agent.adapter.spec.env_id,
        env_steps=agent.clock.env_steps,
        observation=str(obs),
        actions=actions,
        expected=expected,
        recurrent=isinstance(algorithm, Recurrent),
    )


def action_returns(algorithm: Any, obs: np.ndarray) -> ActionReturns:
    """What a value-based algorithm expects of each action; `obs` [1, D] as its network sees it."""
    with torch.no_grad():
        output = algorithm.first_output(obs)
        q_values = algorithm.q_values(output)[0].cpu().numpy()
    _check_finite("values of the actions", q_values)
    returns: ReturnDistribution = algorithm.returns(output[0].cpu().numpy())
    scale = algorithm.hyper.reward_scale  # it learned from scaled rewards; show returns unscaled
    return ActionReturns(
        returns.form, returns.returns / scale, returns.probabilities, q_values / scale
    )


def value_lines(expected: ActionReturns | ChoiceProbabilities | Spread) -> list[str]:
    """What is expected of the state, or of the deterministic action, as a sentence."""
    if isinstance(expected, ActionReturns):
        return []
    if isinstance(expected, ChoiceProbabilities):
        return [f"value of the state, in units of the rewards learned from: {expected.value:.5g}"]
    values = expected.values
    if not len(expected.along):
        return [f"value of the state, in units of the rewards learned from: {values[0]:.5g}"]
    ends = f" ({values.min():.5g} to {values.max():.5g})" if len(values) > 1 else ""
    return [f"value of the action, mean of the critics: {values.mean():.5g}{ends}"]


def best_along(expected: Spread) -> list[tuple[float, float]]:
    """Of each dimension, where the critics' mean is highest, and how high it is there."""
    means = expected.along.mean(0)
    places = means.argmax(1)
    return [
        (float(expected.grid[place, dim]), float(means[dim, place]))
        for dim, place in enumerate(places)
    ]


def _table(explanation: Explanation) -> list[list[str]]:
    expected, names = explanation.expected, explanation.actions
    if isinstance(expected, Spread):
        rows = [["dimension", "action", "5 %", "25 %", "50 %", "75 %", "95 %"]]
        for dim, name in enumerate(names):
            numbers = [expected.action[dim], *expected.quantiles[:, dim]]
            rows.append([name, *(f"{number:.4g}" for number in numbers)])
        if len(expected.along):
            rows[0] += ["best by critics", "value there"]
            for row, (place, value) in zip(rows[1:], best_along(expected), strict=True):
                row += [f"{place:.4g}", f"{value:.5g}"]
        return rows
    greedy = set(explanation.greedy.tolist())
    marks = ["greedy" if row in greedy else "" for row in range(len(names))]
    if isinstance(expected, ChoiceProbabilities):
        shares = [f"{share:.2%}" for share in expected.probabilities]
        columns = [["action", *names], ["probability", *shares], ["", *marks]]
    else:
        q_values, best = expected.q_values, expected.q_values.max()
        columns = [["action", *names], ["Q-value", *(f"{q:.5g}" for q in q_values)]]
        if expected.form != "values":
            columns.append(["spread", *(f"{s:.4g}" for s in expected.spread)])
        gaps = [mark or f"{q - best:.4g}" for mark, q in zip(marks, q_values, strict=True)]
        columns.append(["to the best", *gaps])
    return [list(row) for row in zip(*columns, strict=True)]


def _returns(
    agent: Agent, obs: np.ndarray, legal: np.ndarray | None
) -> tuple[ActionReturns, list[str]]:
    expected = action_returns(agent.algorithm, obs)
    choices = np.arange(len(expected.q_values))
    if legal is not None:
        choices = np.flatnonzero(legal[0])
        expected = ActionReturns(expected.form, *(rows[choices] for rows in expected[1:]))
    return expected, _choice_names(agent, choices)


def _choices(
    agent: Agent, view: Choices, legal: np.ndarray | None
) -> tuple[ChoiceProbabilities, list[str]]:
    sizes = [len(part) for part in view.parts]
    part = np.repeat(np.arange(len(sizes)), sizes)
    choice = np.concatenate([np.arange(size) for size in sizes])
    probabilities = np.concatenate(view.parts)
    _check_finite("probabilities", probabilities)
    shown = np.ones(len(part), np.bool_)
    if legal is not None:
        shown = legal[0]
    expected = ChoiceProbabilities(part[shown], probabilities[shown], view.value)
    if agent.adapter.spec.action_kind == "discrete":
        return expected, _choice_names(agent, choice[shown])
    names = agent.action_names or [f"action[{number}]" for number in range(len(sizes))]
    # A part may count from another number than 0.
    first = np.atleast_1d(agent.adapter.decode(np.zeros((1, len(sizes)), np.int64))[0])
    words = [f"{names[p]}: {c + first[p]}" for p, c in zip(part, choice, strict=True)]
    return expected, [word for word, one in zip(words, shown, strict=True) if one]


def _spread(agent: Agent, view: ActionSpread) -> tuple[Spread, list[str]]:
    _check_finite("actions and values", np.concatenate([view.quantiles.ravel(), view.value]))
    dims = len(view.action)

    def decoded(rows: np.ndarray) -> np.ndarray:
        return agent.adapter.decode(rows.astype(np.float32)).reshape(len(rows), dims)

    expected = Spread(
        action=decoded(view.action[None])[0],
        quantiles=decoded(view.quantiles),
        values=view.value,
        grid=decoded(np.repeat(view.grid[:, None], dims, 1)),
        along=view.along,
    )
    return expected, [*agent.action_names] or [f"action[{dim}]" for dim in range(dims)]


def _choice_names(agent: Agent, choices: np.ndarray) -> list[str]:
    """The choices by name, and always by the environment's number."""
    numbers = [str(action) for action in agent.adapter.decode(choices)]
    if not agent.action_names:
        return numbers
    named = (agent.action_names[choice] for choice in choices)
    return [f"{name} ({number})" for name, number in zip(named, numbers, strict=True)]


def _check_finite(what: str, numbers: np.ndarray) -> None:
    if not np.isfinite(numbers).all():
        raise NonFiniteError(
            f"explain: expected finite {what}, found {numbers.tolist()}; is the observation within "
            "the range the agent was trained on?"
        )


def check_path(path: Path) -> None:
    """Refuse a picture that could not be written, before work is done for it."""
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    # PGF would need LaTeX, and raw pixels a reader that knows their shape.
    formats = sorted(FigureCanvasBase.get_supported_filetypes().keys() - {"pgf", "raw", "rgba"})
    if path.suffix[1:].lower() not in formats:
        raise UsageError(
            f"explain: expected a file name that ends in .png or another of {', '.join(formats)}, "
            f"found {path.name!r}"
        )
    if not path.parent.is_dir():
        raise UsageError(
            f"explain: expected a folder that exists, found none at {path.parent}; create it first"
        )
    if path.is_dir():
        raise UsageError(f"explain: expected the name of a file, found the folder {path}")


def write_picture(explanation: Explanation, path: Path) -> None:
    """Draw the explanation, in the format that the path's suffix names."""
    from matplotlib import style

    from rl_training.tools.explanation_picture import draw

    with style.context("default"):  # whatever the user's settings are
        content = BytesIO()
        draw(explanation).savefig(content, format=path.suffix[1:].lower())
    write_atomic(path, content.getvalue())
