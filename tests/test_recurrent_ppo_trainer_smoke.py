"""`train_recurrent_ppo` learns what needs a memory, writes its run, and resumes exactly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.config.train_config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.recurrent_ppo_trainer import train_recurrent_ppo
from rl_training.runtime.result import TrainingInterrupted
from rl_training.runtime.training_run import TrainingRun
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.metrics_log import read_metrics
from toy_envs import ChainEnv
from training import KeepModel, StopAt, final_state, recalled, tiny_config

SHAPES: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": {"core": "gru"},
    "shared lstm": {"shared_core": True},
    "shared gru": {"core": "gru", "shared_core": True},
}


def tiny(tmp_path: Path, **changes: Any) -> TrainConfig:
    """A run of 240 steps in two environments, with rollouts of 10 steps in sequences of 4."""
    return tiny_config("recurrent_ppo", tmp_path, **({"num_envs": 2} | changes))


@pytest.mark.parametrize(
    ("env_id", "shape"),
    [
        ("CartPole-v1", "lstm"),
        ("CartPole-v1", "shared gru"),
        ("Pendulum-v1", "gru"),
        ("Pendulum-v1", "shared lstm"),
    ],
)
def test_a_run_leaves_a_checkpoint_and_its_metrics(env_id: str, shape: str, tmp_path: Path) -> None:
    result = train_recurrent_ppo(tiny(tmp_path, env_id=env_id, algo_kwargs=SHAPES[shape]))
    # 12 rollouts of 20 rows: 3 minibatches of sequences in each of 2 epochs.
    assert result.updates == 12 * 3 * 2
    assert result.global_step == 240
    assert len(result.eval_returns) == 3
    rows = [r for r in read_metrics(result.run_dir / "metrics.jsonl") if "train/loss" in r]
    assert [row["global_step"] for row in rows] == [50, 100, 150, 200]
    names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction")
    for row in rows:
        assert all(np.isfinite(row[f"train/{name}"]) for name in (*names, "explained_variance"))
    checkpoint = find_checkpoint(result.run_dir)
    parts = (1 if "gru" in shape else 2) * (1 if "shared" in shape else 2)
    saved = checkpoint.read("loop")["run"]["collector"]["state"]
    assert [part.shape for part in saved] == [(2, 8)] * parts
    assert all(part.any() for part in saved)


# Resume.


class NoteStates(Callback):
    """Keeps the policy state at every step, and the flags of starts."""

    def __init__(self) -> None:
        self.states: list[tuple[int, bytes]] = []

    def on_step(self, run: TrainingRun) -> None:
        state = run.collector.state_dict()["state"]
        self.states.append((run.env_steps, b"".join(part.tobytes() for part in state)))


@pytest.mark.parametrize(
    ("shape", "cut"), [("lstm", 14), ("lstm", 80), ("lstm", 222), ("shared gru", 130)]
)
def test_stopped_and_resumed_equals_never_stopped(shape: str, cut: int, tmp_path: Path) -> None:
    """In the middle of the first and of later rollouts, and between two (80)."""
    config = tiny(tmp_path, algo_kwargs=SHAPES[shape])
    before, after, whole = NoteStates(), NoteStates(), NoteStates()
    straight = final_state(train_recurrent_ppo(config, callbacks=[whole]).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_recurrent_ppo(config, callbacks=[before, StopAt(cut)])
    run_dir = interruption.value.result.run_dir
    saved = find_checkpoint(run_dir)
    assert all(part.any(1).all() for part in saved.read("loop")["run"]["collector"]["state"])
    rows = saved.read("replay")["rows"]
    assert len(rows["state"]) == len(rows["next_state"]) == cut // 2 % 10
    assert saved.read("loop")["run"]["collector"]["lengths"].all()  # in the middle of episodes
    train_recurrent_ppo(config, resume=run_dir, callbacks=[after])
    assert final_state(run_dir) == straight
    assert before.states + after.states == whole.states
    assert len(set(whole.states)) == 120


def test_without_its_memory_a_resumed_run_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: the comparison above can fail by the hidden state alone."""
    from rl_training.runtime.collector import Collector

    config = tiny(tmp_path)
    straight = final_state(train_recurrent_ppo(config).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_recurrent_ppo(config, callbacks=[StopAt(100)])
    run_dir = interruption.value.result.run_dir
    load = Collector.load_state_dict

    def forget(self: Collector, state: dict[str, Any]) -> None:
        load(self, state | {"state": tuple(0 * part for part in state["state"])})

    monkeypatch.setattr(Collector, "load_state_dict", forget)
    train_recurrent_ppo(config, resume=run_dir)
    assert final_state(run_dir)["agent"] != straight["agent"]


# Learning.


def test_a_time_limit_that_truncates_bootstraps(tmp_path: Path) -> None:
    """The end comes after four steps; a memory can count them, and must not foresee it."""
    keep = KeepModel()
    config = tiny(
        tmp_path,
        env_id=partial(ChainEnv, 4, "truncation"),
        total_timesteps=2_400,
        eval_interval=0,
        final_eval_episodes=0,
        normalize_observations=False,
        algo_kwargs={
            "gamma": 0.8,
            "learning_rate": {"initial": 1e-2, "final": 1e-3},
            "num_steps": 15,
            "sequence_length": 8,
            "batch_size": 30,
            "epochs": 8,
            "max_grad_norm": None,
        },
    )
    train_recurrent_ppo(config, callbacks=[keep])
    model: Any = keep.model
    first = torch.tensor([[True], [False], [False], [False]])
    values = model.sequence(torch.ones(4, 1, 1), model.initial_state(1), first).value.flatten()
    np.testing.assert_allclose(values.detach(), 1 / (1 - 0.8), atol=0.25)  # 5, not 2.952 to 1


def played(algo: str, tmp_path: Path, **hyper: Any) -> float:
    """Mean return of the final policy; 1 is a memory, 0.5 a coin."""
    learning = {"num_steps": 24, "batch_size": 96, "epochs": 6} | hyper
    return recalled(algo, tmp_path, hyper=learning, total_timesteps=5_000, num_envs=8)


@pytest.mark.parametrize(
    ("shape", "length"),
    [("lstm", 6), ("shared gru", 8)],
    ids=["whole episodes", "sequences that start between cue and question"],
)
def test_it_learns_to_remember_a_cue(shape: str, length: int, tmp_path: Path) -> None:
    hyper = {"core_size": 16, "sequence_length": length} | SHAPES[shape]
    assert played("recurrent_ppo", tmp_path, **hyper) > 0.9


def test_without_a_memory_it_cannot_be_learned(tmp_path: Path) -> None:
    # Half of 200 coins, standard deviation 7: five of them.
    assert 0.325 < played("ppo", tmp_path) < 0.675
