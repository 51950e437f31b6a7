"""What an agent expects of each action at one observation, in numbers."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from rl_training.algorithms.value_based import Returns
from rl_training.errors import NonFiniteError, UsageError
from rl_training.runtime.agent import Agent
from rl_training.runtime.spec import all_specs


class ActionReturns(NamedTuple):
    """`Returns` of each action, with their means `q_values` [A]; the greedy one has the highest."""

    form: Literal["values", "quantiles", "atoms"]
    returns: np.ndarray
    probabilities: np.ndarray
    q_values: np.ndarray


class Explanation(NamedTuple):
    """The returns an agent expects, and what they belong to; `actions` are the environment's."""

    algo: str
    env_id: str
    env_steps: int
    observation: str
    actions: list[str]
    expected: ActionReturns


def explain(agent: Agent, obs: Any) -> Explanation:
    """What the agent expects at one raw observation."""
    encoded, single = agent.adapter.encode_any(obs)
    if not single:
        raise UsageError(
            f"explain: expected one observation, found a batch of {len(encoded)}; give one of them"
        )
    expected = action_returns(agent.algorithm, agent.normalizer.array(encoded))
    return Explanation(
        algo=agent.spec.name,
        env_id=agent.adapter.spec.env_id,
        env_steps=agent.moment.env_steps,
        observation=str(obs),
        actions=[str(action) for action in agent.adapter.decode(np.arange(len(expected.q_values)))],
        expected=expected,
    )


def action_returns(algorithm: Any, obs: np.ndarray) -> ActionReturns:
    """What a value-based algorithm expects of each action; `obs` [1, D] as its network sees it."""
    if not hasattr(algorithm, "returns"):
        able = [name for name, spec in all_specs().items() if hasattr(spec.algorithm, "returns")]
        raise UsageError(
            f"explain: expected an algorithm that gives the values of actions from one observation "
            f"({', '.join(able)}), found {type(algorithm).__name__}, which does not"
        )
    algorithm.set_training(algorithm.model, False)
    with np.errstate(all="ignore"):
        output = algorithm.output(algorithm.model, obs)
        q_values = algorithm.q_values(output)[0]
    if not np.isfinite(q_values).all():
        raise NonFiniteError(
            f"explain: expected finite values of the actions, found {q_values.tolist()}; is the "
            "observation within the range the agent was trained on?"
        )
    returns: Returns = algorithm.returns(output[0])
    return ActionReturns(returns.form, returns.returns, returns.probabilities, q_values)
