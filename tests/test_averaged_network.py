"""The running average of weights with which evaluation acts (`ema_decay`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.optimization import AveragedNetwork, Optimizer
from rl_training.config.value_based import DQNConfig
from rl_training.data.types import Clock, EnvSpec
from rl_training.errors import ConfigError
from rl_training.experiment.registry import train_config
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.runtime.result import TrainingInterrupted
from training import FAMILY, StopAt, final_state, tiny_config
from value_batches import KERNELS, accelerated, random_batch

NOW = Clock(env_steps=0, horizon=100)


def test_it_is_the_mean_at_first_and_exponential_from_then_on() -> None:
    model = nn.Linear(1, 1, bias=False)
    optimizer = Optimizer(model)
    average = AveragedNetwork(optimizer, decay=0.75)
    found = []
    for weight in (1.0, 2.0, 6.0, 3.0, 7.0):
        optimizer.flat.data.fill_(weight)
        average.update(NOW)
        found.append(average.module.weight.item())
    # The means of 1; 1, 2; 1, 2, 6; 1, 2, 6, 3. Then a quarter of the way from 3 to 7.
    assert found == pytest.approx([1.0, 1.5, 3.0, 3.0, 4.0])


SPEC = EnvSpec(env_id="toy", obs_shape=(3,), action_kind="discrete", num_actions=4)


def make(kernels: bool, **hyper: Any) -> DQN:
    torch.manual_seed(0)
    config = DQNConfig(hidden_sizes=(16,), learning_rate=0.05, epsilon=0.0, **hyper)
    agent = DQN(MLPQNetwork(3, 4, (16,)), config, SPEC)
    return accelerated(agent) if kernels else agent


@KERNELS
def test_evaluation_acts_with_the_average_and_exploration_with_the_weights(kernels: bool) -> None:
    agent = make(kernels, ema_decay=0.99)
    for seed in range(30):
        agent.update(random_batch(seed, 32, 4, obs_dim=3), NOW)
    assert agent.average is not None
    obs = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    with torch.no_grad():
        values = [network(torch.from_numpy(obs)) for network in (agent.average.module, agent.model)]
    first, clock = np.zeros(500, bool), Clock(50, 100)
    found = [agent.act(obs, (), first, clock, explore=explore).action for explore in (False, True)]
    assert (found[0] != found[1]).any()  # or the test could not tell them apart
    for actions, q in zip(found, values, strict=True):
        # Equal but for rows whose two best actions are nearly tied.
        margin = q.topk(2).values
        clear = (margin[:, 0] - margin[:, 1] > 1e-4).numpy()
        assert (actions == q.argmax(1).numpy())[clear].all()
        assert clear.sum() > 400


def test_training_is_the_same_with_and_without_it() -> None:
    plain, averaged = make(True), make(True, ema_decay=0.9)
    for seed in range(5):
        for agent in (plain, averaged):
            agent.update(random_batch(seed, 32, 4, obs_dim=3), NOW)
    assert torch.equal(plain.optimizer.flat, averaged.optimizer.flat)


@pytest.mark.parametrize("algo", [*FAMILY, "drqn"])
def test_stopped_and_resumed_equals_never_stopped(algo: str, tmp_path: Path) -> None:
    def config(**hyper: Any) -> Any:
        return tiny_config(algo, tmp_path, algo_kwargs={"learning_rate": 0.03, **hyper})

    straight = final_state(train_config(config(ema_decay=0.95)).run_dir)
    with pytest.raises(TrainingInterrupted) as interruption:
        train_config(config(ema_decay=0.95), callbacks=[StopAt(150)])
    run_dir = interruption.value.result.run_dir
    train_config(config(ema_decay=0.95), resume=run_dir)
    assert final_state(run_dir) == straight
    assert straight["agent"] != final_state(train_config(config(ema_decay=0.5)).run_dir)["agent"]


@pytest.mark.parametrize("wrong", [1.0, -0.1, 2, "slow"])
def test_what_is_no_decay_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs\.ema_decay"):
        train_config(tiny_config("dqn", tmp_path, algo_kwargs={"ema_decay": wrong}))
