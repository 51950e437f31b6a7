"""What every algorithm must do, whatever it is: checks for the author of a spec.

    import pytest
    from rl_training.testing import CHECKS

    CONFIG = {"env_id": "CartPole-v1", "algo_kwargs": {"hidden_sizes": [16], ...}}

    @pytest.mark.parametrize("check", CHECKS)
    def test_conformance(check, tmp_path):
        check(SPEC, CONFIG, tmp_path)

A check trains for 240 steps, some of them several times; the configuration says in what
environment, and with settings small enough for it (a replay of 150 transitions wraps around).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from typer.testing import CliRunner

from rl_training.algorithms.base import Algorithm, GivesActions, GivesReturns, UpdateResult
from rl_training.api.managed import algorithm_class
from rl_training.cli import app
from rl_training.config.loading import dump_yaml
from rl_training.config.train_config import TrainConfig
from rl_training.data.types import Clock
from rl_training.envs.factory import make_env
from rl_training.errors import IncompatibleEnv
from rl_training.experiment.registry import (
    load_agent,
    open_checkpoint,
    resolve_config,
    train_config,
)
from rl_training.runtime.agent import Agent
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.result import TrainingInterrupted, TrainResult
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import register
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.tree import tree_hash
from rl_training.tools.explain import ChoiceProbabilities, Explanation, Spread, explain
from rl_training.tools.verify_resume import run_state as final_state

Check = Callable[[AlgorithmSpec, Mapping[str, Any], Path], None]

SHORT: dict[str, Any] = {
    "seed": 3,
    "total_timesteps": 240,
    "eval_interval": 100,
    "eval_episodes": 2,
    "final_eval_episodes": 3,
    "log_interval": 50,
}
"""The keys of a run that is soon over; those of the given configuration come before them."""


def check_conformance(spec: AlgorithmSpec, config: Mapping[str, Any]) -> None:
    """Run every check; AssertionError names the first that fails and what it found."""
    for check in CHECKS:
        with tempfile.TemporaryDirectory() as folder:
            try:
                check(spec, config, Path(folder))
            except AssertionError as error:
                raise AssertionError(f"{check.__name__}: {error}") from error


def short_config(
    spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path, **changes: Any
) -> TrainConfig:
    """The configuration of a short run in `directory`; changes of `algo_kwargs` are added to it."""
    register(spec)
    hyper = {**config.get("algo_kwargs", {}), **changes.pop("algo_kwargs", {})}
    given = {"algo": spec.name, "output_dir": str(directory), **SHORT, **config, **changes}
    return resolve_config({**given, "algo_kwargs": hyper}).config


class StopAt(Callback):
    """Ends a run as a signal would, at the first boundary at or after a step."""

    def __init__(self, env_steps: int, signal_number: int = 15) -> None:
        self.env_steps = env_steps
        self.signal_number = signal_number

    def on_step(self, run: TrainingRun) -> None:
        """Pretend that a signal arrived."""
        if run.env_steps >= self.env_steps:
            run.interrupts.received = self.signal_number


def interrupted_at(env_steps: int, config: TrainConfig) -> TrainResult:
    """The outcome of a run that a signal stopped."""
    try:
        train_config(config, callbacks=[StopAt(env_steps)])
    except TrainingInterrupted as interrupt:
        return interrupt.result
    raise AssertionError(f"the run was over before step {env_steps}")


def observations(space: gym.Space[Any], count: int) -> Any:
    """A batch of random observations that are not astronomically large."""
    space.seed(0)
    return _stacked([_moderate(space.sample()) for _ in range(count)])


def _stacked(rows: Sequence[Any]) -> Any:
    """Observations as a batch; one of a Dict or Tuple for each part."""
    if isinstance(rows[0], dict):
        return {key: _stacked([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(_stacked(part) for part in zip(*rows, strict=True))
    return np.stack(rows)


def _row(rows: Any, number: int) -> Any:
    """One observation of a batch."""
    if isinstance(rows, dict):
        return {key: _row(part, number) for key, part in rows.items()}
    if isinstance(rows, tuple):
        return tuple(_row(part, number) for part in rows)
    return rows[number]


def updates_learn(spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path) -> None:
    """An update changes the networks, leaves its batch alone and gives finite scalar metrics."""
    watch = _WatchUpdates()
    train_config(short_config(spec, config, directory), callbacks=[watch])
    _require(watch.updates > 0, "expected an update within the run, found none")


def acting_is_valid(spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path) -> None:
    """Acting gives a valid action per row, and greedy acting is a function of the observation."""
    result = train_config(short_config(spec, config, directory))
    agent = load_agent(*open_checkpoint(result.run_dir))
    rows = observations(agent.adapter.observation, 7)
    actions, _ = agent.predict(rows)
    _require(np.array_equal(actions, agent.predict(rows)[0]), "greedy actions differ between calls")
    _require(len(actions) == 7, f"expected 7 actions for 7 observations, found {len(actions)}")
    for number, action in enumerate(actions):
        valid = agent.adapter.action.contains(action)
        _require(valid, f"the action {action!r} is not in {agent.adapter.action}")
        # The last bits of a matrix product depend on its size.
        alone = agent.predict(_row(rows, number))[0]
        same = np.allclose(alone, action, rtol=0, atol=1e-5)
        _require(same, f"one observation gives {alone!r}, in a batch it gives {action!r}")
    if isinstance(agent.algorithm, GivesReturns | GivesActions):
        first = _row(rows, 0)
        explanation, alone = explain(agent, first), agent.predict(first)[0]
        preferred = _preferred(agent, explanation)
        same = np.allclose(preferred, alone, rtol=0, atol=1e-5)
        _require(same, f"explain prefers {preferred!r}, the agent {alone!r}")


def _preferred(agent: Agent, explanation: Explanation) -> np.ndarray:
    """The action that an explanation says is the greedy one."""
    expected = explanation.expected
    if isinstance(expected, Spread):
        shaped: np.ndarray = expected.action.reshape(agent.adapter.action.shape or ())
        return shaped
    starts = np.zeros(1, np.int64)
    if isinstance(expected, ChoiceProbabilities):
        starts = np.flatnonzero(np.diff(expected.part, prepend=-1))
    choices = explanation.greedy - starts
    single = agent.adapter.spec.action_kind == "discrete"
    decoded: np.ndarray = agent.adapter.decode(choices if single else choices[None])[0]
    return decoded


def environments_are_counted(
    spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path
) -> None:
    """However many environments, a run makes the updates that its transitions owe."""
    quiet = {"eval_interval": 0, "final_eval_episodes": 0}
    for num_envs in (1, 3, 8):
        short = short_config(spec, config, directory, num_envs=num_envs, **quiet)
        result, hyper = train_config(short), spec.hyper(**short.algo_kwargs)
        steps, total = result.global_step, short.total_timesteps
        _require(total <= steps < total + num_envs, f"expected {total} steps, found {steps}")
        owed = spec.loop.planned_updates(hyper, steps, num_envs)
        _require(
            result.updates == owed > 0,
            f"expected {owed} updates with {num_envs} environments, found {result.updates}",
        )


def resume_is_exact(
    spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path, *, cuts: int = 2
) -> None:
    """A run that was stopped and resumed ends with the bits of one never stopped."""
    short = short_config(spec, config, directory)
    straight = final_state(train_config(short).run_dir)
    for cut in np.random.default_rng(0).integers(5, short.total_timesteps - 5, cuts).tolist():
        run_dir = interrupted_at(cut, short).run_dir
        train_config(short, resume=run_dir)
        ended = final_state(run_dir)
        differing = [name for name in straight if ended.get(name) != straight[name]]
        _require(not differing, f"cut at step {cut}, the run ended with another {differing}")


def seeds_decide(spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path) -> None:
    """One seed gives one agent; evaluating, logging and saving do not change it."""

    def agent_of(**changes: object) -> str:
        run_dir = train_config(short_config(spec, config, directory, **changes)).run_dir
        return tree_hash(find_checkpoint(run_dir).read("agent"))

    reference = agent_of()
    _require(agent_of() == reference, "the same seed gave another agent")
    watched = agent_of(eval_interval=0, log_interval=7, checkpoint_interval=60)
    _require(watched == reference, "evaluating, logging or saving changed the agent")
    _require(agent_of(seed=4) != reference, "another seed gave the same agent")


def ends_are_told_apart(spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path) -> None:
    """A truncated episode bootstraps and a terminated one does not; without a future both agree."""
    short = short_config(spec, config, directory, eval_interval=0, final_eval_episodes=0)
    env = make_env(short.env_id, env_kwargs=short.env_kwargs, wrappers=short.wrappers)
    spaces = env.observation_space, env.action_space
    env.close()

    def weights(*, terminates: bool, gamma: float) -> torch.Tensor:
        changed = short.with_changes(
            env_id=partial(_RandomEnv, *spaces, terminates=terminates),
            env_kwargs={},
            eval_env_kwargs={},
            wrappers=[],
            vectorization="sync",
            algo_kwargs={**short.algo_kwargs, "gamma": gamma},
        )
        keep = _KeepWeights()
        train_config(changed, callbacks=[keep])
        return keep.weights

    def distance(gamma: float) -> float:
        ended, cut = (weights(terminates=terminates, gamma=gamma) for terminates in (True, False))
        return float((ended - cut).norm() / cut.norm())

    # Rounding alone differs by about 1e-8: the last bits of a product depend on its other rows.
    with_future, without = distance(0.9), distance(0.0)
    _require(
        with_future > 1e-5,
        f"terminated and truncated episodes taught the same: weights differ by {with_future:.1e}",
    )
    _require(
        without < 0.01 * with_future,
        f"without a future the end of an episode moved the weights by {without:.1e}, with one by "
        f"{with_future:.1e}",
    )


def loading_agrees(spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path) -> None:
    """What was saved and loaded has the weights that were trained, predicts and evaluates alike."""
    kind, keep = algorithm_class(spec), _KeepWeights()
    agent = kind(short_config(spec, config, directory / "runs"))
    result = agent.learn(callbacks=[keep])
    saved = agent.save(directory / "saved")
    restored = load_agent(*open_checkpoint(saved))
    same = torch.equal(_weights(restored.algorithm), keep.weights)
    _require(same, "the loaded agent has other weights than the trained one")
    loaded, rows = kind.load(saved), observations(restored.adapter.observation, 50)
    same = np.array_equal(agent.predict(rows)[0], loaded.predict(rows)[0])
    _require(same, "the loaded agent predicts other actions")
    for name, each in (("loaded", loaded), ("trained", agent)):
        returns = each.evaluate(len(result.eval_returns)).returns
        _require(
            returns == result.eval_returns,
            f"the {name} agent's returns are {returns}, those of the run {result.eval_returns}",
        )


def other_spaces_are_refused(
    spec: AlgorithmSpec,
    config: Mapping[str, Any],  # noqa: ARG001 - the signature of a check
    directory: Path,  # noqa: ARG001
) -> None:
    """Spaces that the spec does not name are refused before anything is built."""
    image = gym.spaces.Box(0, 255, (3, 20, 20), np.uint8)
    taken = image if "image" in spec.observations else gym.spaces.Box(-1, 1, (3,))
    text = gym.spaces.Text(5)
    for what, spaces in (
        ("observations", (text, gym.spaces.Discrete(2))),
        ("actions", (taken, text)),
    ):
        try:
            check_spaces(spec, "odd", *spaces)
        except IncompatibleEnv as error:
            words = str(error)
            clear = words.startswith(f"{spec.name} takes ") and f"{what}; odd has Text" in words
            _require(clear, f"expected a message about the {what}, found {words}")
        else:
            raise AssertionError(f"expected Text {what} to be refused")


def command_line_works(spec: AlgorithmSpec, config: Mapping[str, Any], directory: Path) -> None:
    """The command line trains from a file, and its evaluation is that of the run."""
    path, runs = directory / "short.yaml", directory / "runs"
    path.write_text(dump_yaml(short_config(spec, config, runs, run_name="one").to_plain()))
    trained = CliRunner().invoke(app, ["train", "--config", str(path)])
    _require(trained.exit_code == 0, f"train: {trained.output}")
    evaluation = ["eval", "--checkpoint", str(runs / "one"), "--episodes", "3", "--json"]
    evaluated = CliRunner().invoke(app, evaluation)
    _require(evaluated.exit_code == 0, f"eval: {evaluated.output}")
    summary = json.loads((runs / "one" / "summary.json").read_text())
    returns, expected = json.loads(evaluated.stdout)["returns"], summary["eval_returns"][:3]
    _require(returns == expected, f"eval gives the returns {returns}, the run had {expected}")
    _require(summary["algo"] == spec.name, f"the summary names {summary['algo']}")


CHECKS: Sequence[Check] = (
    updates_learn,
    acting_is_valid,
    environments_are_counted,
    resume_is_exact,
    seeds_decide,
    ends_are_told_apart,
    loading_agrees,
    other_spaces_are_refused,
    command_line_works,
)
"""Every check, a function of a spec, a configuration and a directory to write to."""


def _require(condition: bool, message: str) -> None:
    # Not `assert`: pytest shows the values of asserts in test modules alone.
    if not condition:
        raise AssertionError(message)


class _RandomEnv(gym.Env[Any, Any]):
    """Random observations and rewards, whatever is done, in episodes of five steps."""

    def __init__(
        self, observation: gym.Space[Any], action: gym.Space[Any], *, terminates: bool
    ) -> None:
        self.observation_space, self.action_space = observation, action
        self.terminates = terminates
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """A new episode."""
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        """Another observation."""
        self.steps += 1
        over, reward = self.steps == 5, float(self.np_random.uniform())
        return self._observe(), reward, over and self.terminates, over and not self.terminates, {}

    def _observe(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return _moderate(self.observation_space.sample())


def _moderate(observation: object) -> Any:
    """The observation without astronomically large numbers."""
    if isinstance(observation, dict):
        return {key: _moderate(value) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_moderate(value) for value in observation)
    if isinstance(observation, np.ndarray) and observation.dtype.kind == "f":
        return np.clip(observation, -1, 1)
    return observation


def _weights(algorithm: Algorithm) -> torch.Tensor:
    """A copy of all trainable parameters of an algorithm's networks."""
    networks = algorithm.networks().values()
    parameters = (p for network in networks for p in network.parameters() if p.requires_grad)
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


class _KeepWeights(Callback):
    """Holds on to the trained weights."""

    def on_end(self, run: TrainingRun, result: TrainResult) -> None:  # noqa: ARG002
        """Copy them."""
        self.weights = _weights(run.algorithm)


class _WatchUpdates(Callback):
    """Looks at each update of a run before and after."""

    updates = 0

    def on_start(self, run: TrainingRun) -> None:
        """Stand between the loop and the algorithm."""
        self.algorithm, self.update = run.algorithm, run.algorithm.update
        run.algorithm.update = self.watched  # type: ignore[method-assign]

    def watched(self, batch: NamedTuple, clock: Clock) -> UpdateResult:
        """One update, checked."""
        before = _weights(self.algorithm)
        tensors = {
            name: value
            for name, value in batch._asdict().items()
            if isinstance(value, torch.Tensor)
        }
        copies = {name: value.clone() for name, value in tensors.items()}
        result = self.update(batch, clock)
        self.updates += 1
        changed = not torch.equal(before, _weights(self.algorithm))
        _require(changed, "an update changed no weight of a network")
        for name, value in tensors.items():
            _require(torch.equal(value, copies[name]), f"the update changed the batch's {name}")
        steps = result.gradient_steps
        _require(steps >= 1, f"expected at least one gradient step, found {steps}")
        for name, value in result.metrics.items():
            _require(value.ndim == 0, f"the metric {name} has the shape {tuple(value.shape)}")
            _require(not value.requires_grad, f"the metric {name} is not detached")
            _require(bool(torch.isfinite(value)), f"the metric {name} is {float(value)}")
        return result
