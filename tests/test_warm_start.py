"""`init_from`: what another run has learned as the beginning of a new one."""

from __future__ import annotations

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from typer.testing import CliRunner

import rl_training
from rl_training import DQN, PPO, SAC, Callback
from rl_training.api.managed import algorithm_class
from rl_training.cli import app
from rl_training.config.loading import dump_yaml
from rl_training.errors import CheckpointError, ConfigError, TrustError, UsageError
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.runtime.trust import needs_trust, refuse_untrusted, without_untrusted
from rl_training.storage.checkpoints import find_checkpoint
from rl_training.storage.tree import tree_hash
from toy_envs import CountingEnv
from training import ALGORITHMS, StopAt, final_state, tiny_config

KEYS: dict[str, Any] = {"total_timesteps": 60, "eval_interval": 0, "final_eval_episodes": 0}
SMALL: dict[str, Any] = {"hidden_sizes": [6], "learning_starts": 20, "batch_size": 4}


def cartpole(output_dir: Path, **changes: Any) -> DQN:
    return DQN("CartPole-v1", output_dir=str(output_dir), **{**KEYS, **SMALL, **changes})


def trained(output_dir: Path, **changes: Any) -> DQN:
    agent = cartpole(output_dir, **changes)
    agent.learn()
    return agent


def weights(agent: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in agent.model.state_dict().items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one | other)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_begins_with_the_weights_and_its_own_generators(
    algo: str, tmp_path: Path
) -> None:
    config = tiny_config(algo, tmp_path, final_eval_episodes=0, eval_interval=0)
    first = algorithm_class(algo)(config)
    first.learn(60)
    config = config.with_changes(seed=8, num_envs=2, init_from=first.run_dir)
    second, fresh = (
        algorithm_class(algo)(c) for c in (config, config.with_changes(init_from=None))
    )
    assert same(weights(second), weights(first))
    assert not same(weights(fresh), weights(first))
    saved = second.algorithm.state_dict()
    for name in ("target", "average"):
        if saved.get(name) is not None:
            assert tree_hash(saved[name]["module"]) == tree_hash(
                first.algorithm.state_dict()[name]["module"]
            )
    for name in ("noise", "random", "exploration"):
        if name in saved:
            assert tree_hash(saved[name]) == tree_hash(fresh.algorithm.state_dict()[name])
    assert second.learn(40).global_step == 40


def test_what_was_taken_is_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = trained(tmp_path / "first")
    with caplog.at_level("INFO", "rl_training"):
        agent = cartpole(tmp_path, init_from=first.run_dir, seed=2)
        agent.learn()
    record = json.loads((agent.run_dir / "metadata.json").read_text())["init_from"]
    path = first.run_dir / "checkpoints" / "step_000000000060"
    assert (record["checkpoint"], record["env_steps"]) == (str(path), 60)
    assert (record["algo"], record["env_id"]) == ("dqn", "CartPole-v1")
    # 4 x 6 + 6 weights and biases, then 6 x 2 + 2.
    assert record["taken"] == {"model": "44 numbers", "target.module": "44 numbers"}
    left = "init_parts does not ask for it"
    assert record["not_taken"] == {"optimizer": left, "replay": left}
    for line in ("begins with the dqn agent of", "model: taken (44", "replay: not taken, init_pa"):
        assert line in caplog.text


def test_optimizer_and_replay_are_taken_if_asked_for(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    parts = ["weights", "optimizer", "replay"]

    class AtStart(Callback):
        def on_start(self, run: Any) -> None:
            self.optimizer = tree_hash(run.algorithm.optimizer.state_dict())
            self.replay, self.rng = len(run.buffer), run.buffer.state_dict()["rng"]

    taken, plain = AtStart(), AtStart()
    agent = cartpole(tmp_path, init_from=first, init_parts=parts, seed=2)
    agent.learn(callbacks=[taken])
    cartpole(tmp_path, seed=2).learn(callbacks=[plain])
    saved = find_checkpoint(first.run_dir).read("agent")["algorithm"]["optimizer"]
    assert taken.optimizer == tree_hash(saved)
    assert (taken.replay, plain.replay) == (60, 0)
    assert taken.rng == plain.rng  # the draws are this run's own
    record = json.loads((agent.run_dir / "metadata.json").read_text())["init_from"]
    assert record["taken"]["replay"] == "60 entries"
    assert record["not_taken"] == {}
    others = cartpole(tmp_path, init_from=first, init_parts=parts, num_envs=2, buffer_size=30)
    others.learn(callbacks=[taken])
    assert 24 <= taken.replay <= 30  # two rings, the oldest left out
    ppo = PPO("CartPole-v1", output_dir=str(tmp_path / "ppo"), **KEYS, num_steps=10)
    ppo.learn()
    with pytest.raises(ConfigError, match="keeps no replay; leave out replay"):
        PPO("CartPole-v1", init_from=ppo, init_parts=parts, num_steps=10, **KEYS).learn()


def test_normalisers_go_with_the_weights(tmp_path: Path) -> None:
    keys = {**KEYS, "output_dir": str(tmp_path), "num_steps": 10, "hidden_sizes": [4]}
    both = {"normalize_observations": True, "normalize_rewards": True}
    first = PPO("CartPole-v1", **keys, **both)
    first.learn()
    saved = find_checkpoint(first.run_dir)

    class AtStart(Callback):
        def on_start(self, run: Any) -> None:
            self.obs = run.agent.normalizer.state_dict()["moments"]["mean"].copy()
            self.reward = deepcopy(run.buffer.state_dict()["reward_normalizer"])

    start = AtStart()
    PPO("CartPole-v1", **keys, **both, init_from=first, num_envs=3).learn(callbacks=[start])
    assert np.array_equal(start.obs, saved.read("agent")["normalizer"]["moments"]["mean"])
    theirs = saved.read("replay")["reward_normalizer"]["moments"]
    assert tree_hash(start.reward["moments"]) == tree_hash(theirs)
    assert start.reward["returns"].tolist() == [0.0, 0.0, 0.0]
    with pytest.raises(ConfigError, match="normalize_observations: expected true"):
        PPO("CartPole-v1", **keys, init_from=first).learn()
    left = PPO("CartPole-v1", **keys, **both, init_from=first, init_parts=["weights"])
    assert left._current_agent().normalizer.state_dict()["moments"]["count"] == 0


def test_the_policy_acts_from_the_first_step_on(tmp_path: Path) -> None:
    """A new run plays at random until `learning_starts`; one that begins with a policy does not."""
    agent = SAC("Pendulum-v1", output_dir=str(tmp_path), **KEYS, **SMALL)
    agent.learn()

    class Warming(Callback):
        def on_step(self, run: Any) -> None:
            clock = run.progress.clock
            self.seen = [*getattr(self, "seen", []), (clock.warming_up, run.updates)]

    cold, warm = Warming(), Warming()
    keys = {**KEYS, **SMALL, "output_dir": str(tmp_path), "seed": 3}
    SAC("Pendulum-v1", **keys).learn(30, callbacks=[cold])
    SAC("Pendulum-v1", **keys, init_from=agent).learn(30, callbacks=[warm])
    assert sum(random for random, _ in cold.seen) == 19  # after steps 1 to 19 of 20
    assert sum(random for random, _ in warm.seen) == 0
    assert [updates for _, updates in cold.seen] == [updates for _, updates in warm.seen]


class OtherBounds(CountingEnv):
    """The same shape, other bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = Box(-2.0, 1e6, (2,), np.float32)


def test_other_settings_and_environments_of_the_same_shape(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = DQN(CountingEnv, output_dir=str(tmp_path), **KEYS, **SMALL)
    first.learn()
    other = DQN(OtherBounds, output_dir=str(tmp_path), **KEYS, **SMALL, gamma=0.5, init_from=first)
    assert same(weights(other), weights(first))
    assert "the observation spaces have the same shape but other bounds" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"hidden_sizes": [5]},
            r"model\S*: expected a tensor torch.float32\[5, 4\], found a tensor torch.float32"
            r"\[6, 4\]; give this dqn the network of that agent: it has hidden_sizes"
            r" \[6\] \(here \[5\]\)",
        ),
        ({"hidden_sizes": [6, 6]}, r"init_from: the dqn agent of .* model.*missing"),
    ],
)
def test_a_network_that_does_not_fit_names_its_part(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    first = trained(tmp_path / "first")
    with pytest.raises(CheckpointError, match=message):
        cartpole(tmp_path / "second", init_from=first, **changes).learn()
    assert not (tmp_path / "second").exists()  # a refused run leaves nothing behind


def test_other_spaces_and_other_algorithms_are_refused(tmp_path: Path) -> None:
    first = trained(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"observation space: expected Box.*\(2,\).* found Box"
    ):
        DQN(CountingEnv, **KEYS, **SMALL, init_from=first).learn()
    with pytest.raises(CheckpointError, match=r"init_from: the dqn agent of .*: model"):
        PPO("CartPole-v1", hidden_sizes=[6], init_from=first, **KEYS).learn()
    with pytest.raises(CheckpointError, match=r"init_from: .*sac takes"):
        SAC("Pendulum-v1", init_from=first, **KEYS, **SMALL).learn()
    with pytest.raises(CheckpointError, match=r"init_from: .*nowhere"):
        DQN("CartPole-v1", init_from="nowhere", **KEYS).learn()
    with pytest.raises(UsageError, match="init_from: expected a trained agent"):
        DQN("CartPole-v1", init_from=DQN("CartPole-v1"))
    with pytest.raises(ConfigError, match="init_parts: has no effect without init_from"):
        DQN("CartPole-v1", init_parts=["weights"])


def test_a_run_goes_on_without_what_it_began_with(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    config = tiny_config("dqn", tmp_path, algo_kwargs=SMALL, init_from=first.run_dir)
    straight = final_state(train_config(config).run_dir)
    agent = DQN(config)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(callbacks=[StopAt(101)])
    shutil.rmtree(tmp_path / "first")
    resumed = rl_training.load(agent.run_dir)
    assert not needs_trust(config)
    assert final_state(resumed.learn(60).run_dir) is not None
    assert final_state(resumed.learn().run_dir) == straight
    # The records still say what the run began with.
    assert resolve_config(agent.run_dir / "config.yaml").config.init_from == config.init_from
    metadata = json.loads((agent.run_dir / "metadata.json").read_text())
    assert metadata["init_from"]["taken"]["model"] == "44 numbers"


def test_nothing_the_other_run_names_is_needed_or_used(tmp_path: Path) -> None:
    """A network and an environment that only trust would import: their weights are data."""
    first = DQN(
        "toy_envs:CountingEnv", output_dir=str(tmp_path), **KEYS, learning_starts=20, batch_size=4
    )
    first.learn()
    with pytest.raises(TrustError):
        DQN.load(first.run_dir).evaluate(1)
    manifest = first.run_dir / "checkpoints" / "step_000000000060" / "manifest.json"
    assert "toy_envs:CountingEnv" in manifest.read_text()
    second = DQN(CountingEnv, output_dir=str(tmp_path), **KEYS, init_from=first.run_dir)
    assert same(weights(second), weights(first))
    # A card of somebody else must not lead to a file of ours.
    with pytest.raises(TrustError, match="init_from asks for '/etc/passwd'"):
        refuse_untrusted(without_untrusted({"init_from": "/etc/passwd"}))


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    file = first.run_dir / "checkpoints" / "step_000000000060" / "agent.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"(?s)init_from: .*SHA-256"):
        cartpole(tmp_path, init_from=first.run_dir).learn()


def test_an_average_that_the_other_agent_lacks_begins_with_its_weights(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    averaged = cartpole(tmp_path, ema_decay=0.99, init_from=first)
    saved = averaged.algorithm.state_dict()
    assert tree_hash(saved["average"]["module"]) == tree_hash(saved["model"])
    assert same(weights(averaged), weights(first))
    back = cartpole(tmp_path, init_from=trained(tmp_path / "averaged", ema_decay=0.99))
    back.learn()
    record = json.loads((back.run_dir / "metadata.json").read_text())["init_from"]
    assert record["not_taken"]["average"] == "this run has no such part"


def test_the_command_line_begins_with_a_run_too(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    config = tmp_path / "mine.yaml"
    config.write_text(
        dump_yaml({"algo": "dqn", "env_id": "CartPole-v1", **KEYS, "algo_kwargs": SMALL})
    )
    words = ["train", "--config", str(config), "--init-from", str(first.run_dir)]
    result = CliRunner().invoke(app, [*words, "--output-dir", str(tmp_path / "second")])
    assert result.exit_code == 0, result.output
    assert "model: taken (44 numbers)" in result.output
    assert "replay: not taken" in result.output
