"""What every registered algorithm must do, whatever it is; a new one is tested by its spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import rl_training.runtime.train
from rl_training.api import managed
from rl_training.cli import app
from rl_training.errors import IncompatibleEnv
from rl_training.experiment.config_loading import dump_yaml, packaged_configs
from rl_training.experiment.registry import get_spec, load_agent, open_checkpoint, resolve_config
from rl_training.experiment.registry import train_config as train
from rl_training.experiment.state_tree import tree_hash
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.compatibility import check_spaces
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.training_run import TrainingRun
from training import (
    ALGORITHMS,
    COMPILED,
    ON_ARRAYS,
    StopAt,
    compile_without_code,
    final_state,
    tiny_config,
    updates_due,
)

# An update computes on arrays, on tensors, or in compiled functions of tensors.
WAYS: dict[str, dict[str, Any]] = {
    "arrays": {"threads": 1},
    "tensors": {"threads": 2},
    "compiled": {"execution": "compiled"},
}
OF_SOME = {"tensors": ON_ARRAYS, "compiled": COMPILED}  # other algorithms have tensors anyway
PAIRS = [(algo, way) for algo in ALGORITHMS for way in WAYS if algo in OF_SOME.get(way, ALGORITHMS)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test for each algorithm, and each of its ways of learning if the test is about them."""
    wanted = set(metafunc.fixturenames)
    if wanted >= {"way", "several_envs"}:
        some = [(algo, "arrays", 3) for algo in ALGORITHMS]
        cases = [*((*pair, 1) for pair in PAIRS), *some]
        metafunc.parametrize(("algo", "way", "several_envs"), cases)
    elif "way" in wanted:
        metafunc.parametrize(("algo", "way"), PAIRS)
    else:
        metafunc.parametrize("algo", ALGORITHMS)


@pytest.fixture(autouse=True)
def _quick_compiles(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_without_code(algo, monkeypatch)


def test_update_changes_parameters_gives_finite_metrics_and_leaves_the_batch_alone(
    algo: str, way: str, tmp_path: Path
) -> None:
    found: list[dict[str, Any]] = []
    ways: list[tuple[bool, str]] = []

    class Watched:
        """Stands between the loop and the algorithm for one update."""

        def __init__(self, algorithm: Any) -> None:
            self.algorithm = algorithm

        def __getattr__(self, name: str) -> Any:
            return getattr(self.algorithm, name)

        def update(self, batch: Any, moment: Any) -> Any:
            before = tree_hash(self.algorithm.state_dict()["model"])
            tensors = [value for value in batch if isinstance(value, torch.Tensor)]
            copies = [value.clone() for value in tensors]
            result = self.algorithm.update(batch, moment)
            found.append(
                {
                    "changed": tree_hash(self.algorithm.state_dict()["model"]) != before,
                    "unmutated": all(map(torch.equal, tensors, copies)),
                    "metrics": result.metrics,
                    "gradient_steps": result.gradient_steps,
                }
            )
            return result

    class Watch(Callback):
        def on_start(self, run: TrainingRun) -> None:
            ways.append((run.algorithm.learns_on_host, run.algorithm.execution))
            run.agent.algorithm = Watched(run.agent.algorithm)  # type: ignore[assignment]

    train(tiny_config(algo, tmp_path, **WAYS[way]), callbacks=[Watch()])
    on_arrays, compiled = (
        algo in ON_ARRAYS and way == "arrays",
        algo in COMPILED and way == "compiled",
    )
    assert ways == [(on_arrays, "compiled" if compiled else "eager")]
    assert found
    for seen in found:
        assert seen["changed"]
        assert seen["unmutated"]
        assert seen["gradient_steps"] >= 1
        for name, value in seen["metrics"].items():
            assert value.ndim == 0, name
            assert not value.requires_grad, name
            assert torch.isfinite(value), name


def test_acting_gives_a_valid_action_per_row_and_greedy_acting_is_a_function(
    algo: str, way: str, tmp_path: Path
) -> None:
    result = train(tiny_config(algo, tmp_path, **WAYS[way]))
    checkpoint, config = open_checkpoint(result.run_dir)
    agent = load_agent(checkpoint, config)
    rows = observations(agent.adapter.observation, 7)
    actions, _ = agent.predict(rows)
    again, _ = agent.predict(rows)
    assert np.array_equal(actions, again)
    assert len(actions) == 7
    assert all(agent.adapter.action.contains(action) for action in actions)
    for row, action in zip(rows, actions, strict=True):
        # The last bits of a matrix product depend on its size.
        np.testing.assert_allclose(agent.predict(row)[0], action, rtol=0, atol=1e-5)


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_updates_per_transition_do_not_depend_on_the_number_of_environments(
    algo: str, num_envs: int, tmp_path: Path
) -> None:
    config = tiny_config(algo, tmp_path, num_envs=num_envs)
    result = train(config)
    assert config.total_timesteps <= result.global_step < config.total_timesteps + num_envs
    assert result.updates == updates_due(config, result.global_step) > 0


def test_stopped_and_resumed_equals_never_stopped(
    algo: str, way: str, several_envs: int, tmp_path: Path
) -> None:
    config = tiny_config(algo, tmp_path, num_envs=several_envs, **WAYS[way])
    straight = final_state(train(config).run_dir)
    for cut in np.random.default_rng(0).integers(5, 235, 3 if way == "arrays" else 1):
        with pytest.raises(TrainingInterrupted) as interruption:
            train(config, callbacks=[StopAt(int(cut))])
        run_dir = interruption.value.result.run_dir
        assert interruption.value.result.global_step < config.total_timesteps
        train(config, resume=run_dir)
        assert final_state(run_dir) == straight, f"cut at {cut}"


def test_without_its_random_generators_a_resumed_run_differs(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the comparison above can fail."""
    config = tiny_config(algo, tmp_path)
    straight = final_state(train(config).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train(config, callbacks=[StopAt(100)])
    run_dir = interruption.value.result.run_dir
    restore = rl_training.runtime.train.restore_run

    def forgetful(run: TrainingRun, checkpoint: Any) -> None:
        # Every generator that an algorithm or a buffer owns stays as it was when it was built.
        before = generators(run)
        restore(run, checkpoint)
        for generator, state in before:
            generator.bit_generator.state = state

    monkeypatch.setattr(rl_training.runtime.train, "restore_run", forgetful)
    train(config, resume=run_dir)
    assert final_state(run_dir)["agent"] != straight["agent"]


def test_the_same_seed_gives_the_same_run_and_evaluation_does_not_change_it(
    algo: str, tmp_path: Path
) -> None:
    def agent_of(**changes: Any) -> str:
        run_dir = train(tiny_config(algo, tmp_path, **changes)).run_dir
        return tree_hash(open_checkpoint(run_dir)[0].read("agent"))

    reference = agent_of()
    assert agent_of() == reference
    assert agent_of(eval_interval=0, log_interval=7, checkpoint_interval=60) == reference
    assert agent_of(seed=4) != reference


def test_learn_save_load_predict_and_evaluate_agree(algo: str, way: str, tmp_path: Path) -> None:
    kind = type("Managed", (managed.ManagedAlgorithm,), {"algo_name": algo})
    agent = kind(tiny_config(algo, tmp_path, **WAYS[way]))
    result = agent.learn()
    saved = agent.save(tmp_path / "saved")
    loaded = kind.load(saved)
    rows = observations(agent._current_agent().adapter.observation, 50)
    assert np.array_equal(agent.predict(rows)[0], loaded.predict(rows)[0])
    assert loaded.evaluate(3).returns == result.eval_returns
    assert agent.evaluate(3).returns == result.eval_returns


def test_packaged_configurations_parse_and_name_this_algorithm(algo: str) -> None:
    names = [name for name in packaged_configs() if name.startswith(f"{algo}/")]
    assert names
    for name in names:
        assert resolve_config(name).config.algo == algo


def test_the_spec_refuses_spaces_it_does_not_take(algo: str) -> None:
    spec = get_spec(algo)
    box, text = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Text(5)
    seen = gym.spaces.Box(0, 255, (3, 20, 20), np.uint8) if "image" in spec.observations else box
    with pytest.raises(IncompatibleEnv, match=rf"{algo} takes .* observations; odd has Text"):
        check_spaces(spec, "odd", text, gym.spaces.Discrete(2))
    with pytest.raises(IncompatibleEnv, match=rf"{algo} takes .* actions; odd has Text"):
        check_spaces(spec, "odd", seen, text)
    if "continuous" not in spec.actions:
        with pytest.raises(IncompatibleEnv, match=r"Algorithms that would work: .*ppo"):
            check_spaces(spec, "odd", box, box)


def test_the_command_line_trains_and_evaluates(algo: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(dump_yaml(tiny_config(algo, tmp_path / "runs", run_name="one").to_plain()))
    trained = CliRunner().invoke(app, ["train", "--config", str(path)])
    assert trained.exit_code == 0, trained.output
    run = str(tmp_path / "runs" / "one")
    evaluated = CliRunner().invoke(app, ["eval", "--checkpoint", run, "--episodes", "3", "--json"])
    summary = json.loads((tmp_path / "runs" / "one" / "summary.json").read_text())
    assert json.loads(evaluated.stdout)["returns"] == summary["eval_returns"]


def observations(space: gym.Space[Any], count: int) -> np.ndarray:
    """Random observations that are not astronomically large."""
    space.seed(0)
    return np.stack([np.clip(space.sample(), -10, 10) for _ in range(count)])


def generators(run: TrainingRun) -> list[tuple[np.random.Generator, Any]]:
    """The NumPy generators that the algorithm's parts and the buffer hold, with their states."""
    owners = [run.buffer, *run.algorithm.parts.values()]
    held = [v for owner in owners for v in vars(owner).values()]
    found = [value for value in held if isinstance(value, np.random.Generator)]
    assert found
    return [(generator, generator.bit_generator.state) for generator in found]
