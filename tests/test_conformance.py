"""What every registered algorithm must do, whatever it is; a new one is tested by its spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training.runtime.train
from rl_training.api import managed
from rl_training.experiment.config_loading import packaged_configs
from rl_training.experiment.registry import get_spec, load_agent, open_checkpoint, resolve_config
from rl_training.experiment.registry import train_config as train
from rl_training.experiment.state_tree import tree_hash
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.training_run import TrainingRun
from training import ALGORITHMS, StopAt, final_state, tiny_config

pytestmark = pytest.mark.parametrize("algo", ALGORITHMS)


def test_update_changes_parameters_gives_finite_metrics_and_leaves_the_batch_alone(
    algo: str, tmp_path: Path
) -> None:
    found: list[dict[str, Any]] = []

    class Update(Callback):
        def on_step(self, run: TrainingRun) -> None:
            if run.updates < 5 or found:
                return
            before = {
                k: v.clone() for k, v in run.algorithm.networks()["model"].state_dict().items()
            }
            batch = run.buffer.sample(16)
            tensors = [value for value in batch if isinstance(value, torch.Tensor)]
            copies = [value.clone() for value in tensors]
            result = run.algorithm.update(batch, run.progress.moment)
            after = run.algorithm.networks()["model"].state_dict()
            found.append(
                {
                    "changed": any(not torch.equal(before[k], after[k]) for k in before),
                    "unmutated": all(map(torch.equal, tensors, copies)),
                    "metrics": result.metrics,
                    "gradient_steps": result.gradient_steps,
                }
            )

    train(tiny_config(algo, tmp_path), callbacks=[Update()])
    (seen,) = found
    assert seen["changed"]
    assert seen["unmutated"]
    assert seen["gradient_steps"] >= 1
    for name, value in seen["metrics"].items():
        assert value.ndim == 0, name
        assert not value.requires_grad, name
        assert torch.isfinite(value), name


def test_acting_gives_a_valid_action_per_row_and_greedy_acting_is_a_function(
    algo: str, tmp_path: Path
) -> None:
    result = train(tiny_config(algo, tmp_path))
    checkpoint, config = open_checkpoint(result.run_dir)
    agent = load_agent(checkpoint, config)
    rows = np.stack([agent.adapter.observation.sample() for _ in range(7)])
    rows = np.clip(rows, -10, 10)
    actions, _ = agent.predict(rows)
    again, _ = agent.predict(rows)
    assert np.array_equal(actions, again)
    assert len(actions) == 7
    assert all(agent.adapter.action.contains(action) for action in actions)
    for row, action in zip(rows, actions, strict=True):
        assert np.array_equal(agent.predict(row)[0], action)


@pytest.mark.parametrize("num_envs", [1, 3, 8])
def test_updates_per_transition_do_not_depend_on_the_number_of_environments(
    algo: str, num_envs: int, tmp_path: Path
) -> None:
    config = tiny_config(algo, tmp_path, num_envs=num_envs)
    result = train(config)
    hyper = config.algo_kwargs
    assert config.total_timesteps <= result.global_step < config.total_timesteps + num_envs
    learning = result.global_step - hyper["learning_starts"]
    assert result.updates == int(hyper["replay_ratio"] * learning)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_stopped_and_resumed_equals_never_stopped(algo: str, num_envs: int, tmp_path: Path) -> None:
    config = tiny_config(algo, tmp_path, num_envs=num_envs)
    straight = final_state(train(config).run_dir)
    for cut in np.random.default_rng(0).integers(5, 235, 3):
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
        generator = run.buffer._rng.bit_generator.state
        restore(run, checkpoint)
        run.buffer._rng.bit_generator.state = generator

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


def test_learn_save_load_predict_and_evaluate_agree(algo: str, tmp_path: Path) -> None:
    kind = type("Managed", (managed.ManagedAlgorithm,), {"algo_name": algo})
    agent = kind(tiny_config(algo, tmp_path))
    result = agent.learn()
    saved = agent.save(tmp_path / "saved")
    loaded = kind.load(saved)
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
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
    assert spec.observations
    assert spec.actions
    assert spec.hyper.__name__.endswith("Config")
