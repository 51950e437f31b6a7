"""What an agent expects of each action at one observation: the numbers, and a picture of them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from rl_training.algorithms.value_based import ReturnDistribution
from rl_training.errors import NonFiniteError, UsageError
from rl_training.runtime.agent import Agent
from rl_training.runtime.spec_table import all_specs
from rl_training.storage.files import write_atomic
from rl_training.tools.plotting import (
    BLUE,
    GREY,
    ORANGE,
    draw_grid,
    new_figure,
    paper_name,
    require_matplotlib,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ROWS = 24
_WIDTH_INCHES = 9.0
_HEIGHT = 0.8  # of a bar, in rows
_OTHER_ACTION, _GREEDY_ROW = "#8fa3b8", "#eaf1f9"
_HEADINGS = {
    "values": "Q-value of each action",
    "quantiles": "quantiles of the return: the denser, the more probable",
    "atoms": "probability of each return, on one scale for all actions",
}


class ActionReturns(NamedTuple):
    """The return distribution of each action, and its mean: `q_values` [A], highest if greedy."""

    form: Literal["values", "quantiles", "atoms"]
    returns: np.ndarray
    probabilities: np.ndarray
    q_values: np.ndarray


class Explanation(NamedTuple):
    """The returns an agent expects, and where; `actions` are named as the environment does."""

    algo: str
    env_id: str
    env_steps: int
    observation: str
    actions: list[str]
    expected: ActionReturns


def explain(agent: Agent, obs: object, action_mask: object = None) -> Explanation:
    """What the agent expects of the legal actions at one raw observation."""
    if not agent.spec.explains:
        able = [name for name, spec in all_specs().items() if spec.explains]
        raise UsageError(
            f"explain: expected an algorithm that gives the values of actions from one observation "
            f"({', '.join(able)}), found {agent.spec.name}, which does not"
        )
    encoded, single = agent.adapter.encode_any(obs)
    if not single:
        raise UsageError(
            f"explain: expected one observation, found a batch of {len(encoded)}; give one of them"
        )
    legal = agent.masks(action_mask, 1, single=True)
    expected = action_returns(agent.algorithm, agent.normalizer.array(encoded))
    choices = np.arange(len(expected.q_values))
    if legal is not None:
        choices = np.flatnonzero(legal[0])
        expected = ActionReturns(expected.form, *(rows[choices] for rows in expected[1:]))
    return Explanation(
        algo=agent.spec.name,
        env_id=agent.adapter.spec.env_id,
        env_steps=agent.clock.env_steps,
        observation=str(obs),
        actions=[str(action) for action in agent.adapter.decode(choices)],
        expected=expected,
    )


def action_returns(algorithm: Any, obs: np.ndarray) -> ActionReturns:
    """What a value-based algorithm expects of each action; `obs` [1, D] as its network sees it."""
    algorithm.set_training(algorithm.policy_network, False)
    with torch.no_grad():
        output = algorithm.policy_network(algorithm.obs_tensor(obs))
        q_values = algorithm.q_values(output)[0].cpu().numpy()
    if not np.isfinite(q_values).all():
        raise NonFiniteError(
            f"explain: expected finite values of the actions, found {q_values.tolist()}; is the "
            "observation within the range the agent was trained on?"
        )
    returns: ReturnDistribution = algorithm.returns(output[0].cpu().numpy())
    scale = algorithm.hyper.reward_scale  # it learned from scaled rewards; show returns unscaled
    return ActionReturns(
        returns.form, returns.returns / scale, returns.probabilities, q_values / scale
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
    """Draw it, in the format that the path's suffix names."""
    from matplotlib import style

    with style.context("default"):  # whatever the user's settings are
        content = BytesIO()
        draw(explanation).savefig(content, format=path.suffix[1:].lower())
    write_atomic(path, content.getvalue())


def draw(explanation: Explanation) -> Figure:
    """The figure; of very many actions only those with the highest Q-values are shown."""
    expected, count = explanation.expected, len(explanation.actions)
    kept = np.sort(np.argsort(-expected.q_values, kind="stable")[:MOST_ROWS])
    row_height = float(np.clip(4.5 / len(kept), 0.36, 1.1))
    figure = new_figure(_WIDTH_INCHES, 1.9 + row_height * len(kept))
    axes = figure.add_subplot()
    axes.set_ylabel("action" if len(kept) == count else f"action, the best {len(kept)} of {count}")
    expected = expected._replace(
        returns=expected.returns[kept].astype(float),
        probabilities=expected.probabilities[kept].astype(float),
        q_values=expected.q_values[kept].astype(float),
    )
    greedy = int(expected.q_values.argmax())
    _draw_returns(axes, expected, greedy)
    _draw_frame(axes, [explanation.actions[index] for index in kept], expected.q_values, greedy)
    title = (
        f"{paper_name(explanation.algo)} on {explanation.env_id}, step {explanation.env_steps:,}"
    )
    figure.suptitle(title, fontsize=13, parse_math=False)
    observation = shorten(explanation.observation, 100, placeholder=" ...")
    axes.set_title(f"at {observation}", fontsize=9, color=GREY, parse_math=False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw_returns(axes: Axes, expected: ActionReturns, greedy: int) -> None:
    """A row for each action; upwards is towards the row before."""
    form, returns, probabilities, q_values = expected
    rows = np.arange(len(q_values))
    highest = probabilities.max()
    for row in rows:
        color = BLUE if row == greedy else _OTHER_ACTION
        label = _HEADINGS[form] if row == greedy else ""
        floor = row + _HEIGHT / 2
        if form == "values":
            axes.barh(row, q_values[row], _HEIGHT * 0.75, color=color, label=label)
        elif form == "quantiles":
            axes.vlines(returns[row], floor, floor - _HEIGHT, color, lw=1, label=label)
        else:
            heights = floor - _HEIGHT * probabilities[row] / highest
            edges = _edges(returns[row])
            axes.stairs(heights, edges, baseline=floor, fill=True, color=color, label=label)
    if form == "atoms":
        _crop_to_probable(axes, expected)
    if form != "values":
        floors = rows + _HEIGHT / 2
        axes.hlines(floors, 0, 1, _OTHER_ACTION, lw=0.6, transform=axes.get_yaxis_transform())
        axes.plot(q_values, floors, "D", color=ORANGE, ms=5, label="mean (Q-value)", zorder=3)
    axes.axvline(q_values[greedy], color=ORANGE, lw=0.9, ls=":", zorder=0.9)


def _crop_to_probable(axes: Axes, expected: ActionReturns) -> None:
    """Leave out the ends of the support where no bar would be a pixel high."""
    atoms, probabilities = expected.returns[0], expected.probabilities
    visible = atoms[(probabilities > probabilities.max() / 100).any(0)]
    ends = np.append(visible, expected.q_values)
    margin = 2 * (atoms[1] - atoms[0])
    axes.set_xlim(ends.min() - margin, ends.max() + margin)


def _edges(atoms: np.ndarray) -> np.ndarray:
    """The ends of bars that stand side by side, with an atom in the middle of each."""
    half = (atoms[1] - atoms[0]) / 2
    return np.append(atoms - half, atoms[-1] + half)


def _draw_frame(axes: Axes, actions: list[str], q_values: np.ndarray, greedy: int) -> None:
    rows = range(len(actions))
    axes.axhspan(greedy - 0.5, greedy + 0.5, color=_GREEDY_ROW, zorder=0)
    names = [f"greedy: {name}" if row == greedy else name for row, name in enumerate(actions)]
    axes.set_yticks(rows, names)
    axes.get_yticklabels()[greedy].set_fontweight("bold")
    axes.set_ylim(len(actions) - 0.5, -0.5)
    for row in rows:
        axes.text(
            1.01,
            row,
            f"{q_values[row]:.5g}",
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=9,
            fontweight="bold" if row == greedy else "normal",
            color=GREY,
        )
    axes.set_xlabel("discounted return from here on (at the right: its mean, the Q-value)")
    draw_grid(axes, "x")
    axes.tick_params(axis="both", length=0)
