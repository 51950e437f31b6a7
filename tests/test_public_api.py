"""The managed class as a user meets it: learn, evaluate, predict, save, load, resume."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rl_training import DQN, Callback, TrainConfig, train_dqn
from rl_training.api import ManagedAlgorithm
from rl_training.errors import (
    CheckpointError,
    ConfigError,
    RLTrainingError,
    SaveError,
    UsageError,
)
from rl_training.runtime.result import TrainingInterrupted
from toy_envs import CountingEnv, RandomWalkEnv
from training import StopAt, final_state, tiny_config

QUICK: dict[str, Any] = {
    "total_timesteps": 120,
    "eval_interval": 0,
    "final_eval_episodes": 2,
    "algo_kwargs": {"hidden_sizes": [8], "learning_starts": 20, "batch_size": 8},
}


def network(env_spec: Any, hyper: Any) -> nn.Module:
    """A network of the user's own, importable by its path."""
    return nn.Sequential(
        nn.Linear(env_spec.obs_dim, 12), nn.Tanh(), nn.Linear(12, env_spec.num_actions)
    )


def test_three_ways_to_configure_end_in_the_same_object(tmp_path: Path) -> None:
    keys = {"seed": 1, "total_timesteps": 50_000, "output_dir": str(tmp_path)}
    by_keywords = DQN("CartPole-v1", **keys, algo_kwargs={"gamma": 0.9})
    by_config = DQN(
        TrainConfig(algo="dqn", env_id="CartPole-v1", **keys, algo_kwargs={"gamma": 0.9})
    )
    path = tmp_path / "mine.yaml"
    path.write_text("algo: dqn\nenv_id: CartPole-v1\nseed: 1\nalgo_kwargs: {gamma: 0.9}\n")
    by_file = DQN.from_config(path, total_timesteps=50_000, output_dir=str(tmp_path))
    assert by_keywords.config == by_config.config == by_file.config
    assert by_file.config.algo_kwargs["gamma"] == 0.9
    assert DQN.from_config("dqn/cartpole", seed=7).config.seed == 7


def test_a_typo_in_a_keyword_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"total_timestep.*did you mean 'total_timesteps'"):
        DQN("CartPole-v1", total_timestep=100)
    with pytest.raises(ConfigError, match=r"algo_kwargs.gama.*did you mean 'algo_kwargs.gamma'"):
        DQN("CartPole-v1", algo_kwargs={"gama": 0.9})


def test_the_class_refuses_another_algorithms_configuration() -> None:
    with pytest.raises(ConfigError, match="algo"):
        DQN(TrainConfig(algo="ppo", env_id="CartPole-v1"))


def test_learn_returns_a_result_and_leaves_an_agent(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **QUICK)
    result = agent.learn()
    assert agent.run_dir == result.run_dir
    assert result.global_step == 120
    assert agent.evaluate(2).returns == result.eval_returns
    assert agent.evaluate(2, seed=5).returns == agent.evaluate(2, seed=5).returns
    # Episodes have numbers: more of them do not change the first ones.
    assert agent.evaluate(13).returns[:2] == result.eval_returns


def test_predict_takes_one_observation_or_a_batch(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **QUICK)
    rows = np.random.default_rng(0).normal(size=(6, 4))
    batch, state = agent.predict(rows)
    assert state == ()
    assert batch.shape == (6,)
    assert [int(agent.predict(row)[0]) for row in rows] == batch.tolist()
    assert agent.predict(rows[0].tolist())[0] == batch[0]
    with pytest.raises(UsageError, match=r"expected shape \(4,\).*found \(3,\)"):
        agent.predict([0.0, 0.0, 0.0])
    with pytest.raises(UsageError, match="finite"):
        agent.predict([0.0, float("nan"), 0.0, 0.0])


def test_stochastic_prediction_explores_as_training_does(tmp_path: Path) -> None:
    kwargs = QUICK["algo_kwargs"] | {"epsilon": 0.5}
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **(QUICK | {"algo_kwargs": kwargs}))
    agent.learn()
    rows = np.zeros((10_000, 4))
    greedy, _ = agent.predict(rows)
    sampled, _ = agent.predict(rows, deterministic=False)
    # Half the rows draw a coin, and half of those draw the other action.
    assert float((greedy != sampled).mean()) == pytest.approx(0.25, abs=0.03)


def test_save_never_overwrites_and_load_gives_the_same_policy(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **QUICK)
    untrained = agent.save(tmp_path / "untrained")
    rows = np.random.default_rng(0).normal(size=(40, 4))
    assert np.array_equal(DQN.load(untrained).predict(rows)[0], agent.predict(rows)[0])
    agent.learn()
    trained = agent.save(tmp_path / "deep" / "trained")
    assert np.array_equal(DQN.load(trained).predict(rows)[0], agent.predict(rows)[0])
    with pytest.raises(SaveError, match="never overwrites"):
        agent.save(trained)
    with pytest.raises(CheckpointError, match="without its training state"):
        DQN.load(untrained).resume()


def test_the_best_policy_can_be_loaded(tmp_path: Path) -> None:
    result = train_dqn(tiny_config("dqn", tmp_path))
    best = DQN.load(result.run_dir, best=True)
    assert best.evaluate(2).mean == pytest.approx(best.evaluate(2).mean)
    assert result.best_eval_return_mean == best.evaluate(2).mean


def test_resume_continues_a_loaded_run_bit_for_bit(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    straight = final_state(train_dqn(config).run_dir)
    with pytest.raises(TrainingInterrupted) as caught:
        DQN(config).learn(callbacks=[StopAt(101)])
    run_dir = caught.value.result.run_dir
    DQN.load(run_dir).resume()
    assert final_state(run_dir) == straight


def test_resume_from_a_saved_copy_starts_a_new_run(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path / "runs")
    agent = DQN(config)
    first = agent.learn()
    copy = agent.save(tmp_path / "copy")
    result = DQN.load(copy).resume(total_timesteps=300)
    assert result.run_dir != first.run_dir
    assert result.global_step == 300
    extended = DQN.load(first.run_dir).resume(total_timesteps=300)
    assert extended.run_dir == first.run_dir
    assert final_state(extended.run_dir)["agent"] == final_state(result.run_dir)["agent"]


def test_resume_before_learning_is_an_error() -> None:
    with pytest.raises(UsageError, match="learn"):
        DQN("CartPole-v1").resume()


def test_an_environment_by_callable_is_passed_again(tmp_path: Path) -> None:
    def make() -> CountingEnv:
        return CountingEnv(7)

    agent = DQN(make, output_dir=str(tmp_path), **QUICK)
    run_dir = agent.learn().run_dir
    loaded = DQN.load(run_dir)  # predicting needs no environment
    assert loaded.predict([0.0, 1.0])[0] in (0, 1)
    for call in (loaded.evaluate, loaded.resume):
        with pytest.raises(ConfigError, match=r"pass it again: load\(path, env="):
            call()
    again = DQN.load(run_dir, env=make)
    assert again.evaluate(2).returns == (28.0, 28.0)  # 1 + 2 + ... + 7
    assert again.resume(total_timesteps=150).global_step == 150


def test_an_importable_callable_needs_not_be_passed_again_if_the_run_is_trusted(
    tmp_path: Path,
) -> None:
    run_dir = DQN(CountingEnv, output_dir=str(tmp_path), **QUICK).learn().run_dir
    assert "toy_envs:CountingEnv" in (run_dir / "config.yaml").read_text()
    assert DQN.load(run_dir, trust=True).evaluate(1).returns == (15.0,)
    assert DQN("toy_envs:CountingEnv", **QUICK).evaluate(1).returns == (15.0,)


def test_environment_arguments_and_wrappers_are_used(tmp_path: Path) -> None:
    agent = DQN(
        "toy_envs:CountingEnv",
        env_kwargs={"length": 9, "ends_by": "truncation"},
        wrappers=({"TimeLimit": {"max_episode_steps": 4}},),
        output_dir=str(tmp_path),
        **QUICK,
    )
    assert agent.evaluate(1).lengths == (4,)


def test_another_environment_is_refused_at_load(tmp_path: Path) -> None:
    run_dir = DQN("CartPole-v1", output_dir=str(tmp_path), **QUICK).learn().run_dir
    with pytest.raises(CheckpointError, match="observation spaces differ"):
        DQN.load(run_dir, env=RandomWalkEnv)


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    kwargs = QUICK["algo_kwargs"] | {"network": network}
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **(QUICK | {"algo_kwargs": kwargs}))
    run_dir = agent.learn().run_dir
    assert "test_public_api:network" in (run_dir / "config.yaml").read_text()
    loaded = DQN.load(run_dir, trust=True)
    rows = np.random.default_rng(0).normal(size=(30, 4))
    assert np.array_equal(loaded.predict(rows)[0], agent.predict(rows)[0])

    kwargs["network"] = partial(network)  # no import path leads to this one
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **(QUICK | {"algo_kwargs": kwargs}))
    run_dir = agent.learn().run_dir
    with pytest.raises(RLTrainingError, match="network"):
        DQN.load(run_dir)
    loaded = DQN.load(run_dir, network=network)
    assert np.array_equal(loaded.predict(rows)[0], agent.predict(rows)[0])


def test_a_network_that_is_none_is_refused(tmp_path: Path) -> None:
    kwargs = QUICK["algo_kwargs"] | {"network": lambda spec, hyper: "not a network"}
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **(QUICK | {"algo_kwargs": kwargs}))
    with pytest.raises(ConfigError, match=r"gives a torch\.nn\.Module, found one that gives str"):
        agent.learn()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (nn.Linear(4, 2), "calling Linear.* raised"),
        (lambda: nn.Linear(4, 2), "raised TypeError"),
        (lambda spec, hyper: nn.Identity(), "trainable parameters, found none"),
    ],
)
def test_a_network_that_cannot_be_used_says_what_is_wanted(
    given: Any, message: str, tmp_path: Path
) -> None:
    kwargs = QUICK["algo_kwargs"] | {"network": given}
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **(QUICK | {"algo_kwargs": kwargs}))
    with pytest.raises(ConfigError, match=message):
        agent.learn()
    assert list(tmp_path.iterdir()) == []  # a refused run leaves nothing behind


def test_dropout_acts_in_training_only(tmp_path: Path) -> None:
    def dropping(env_spec: Any, hyper: Any) -> nn.Module:
        hidden = nn.Linear(env_spec.obs_dim, 64)
        norm = nn.BatchNorm1d(64)
        return nn.Sequential(hidden, norm, nn.Dropout(0.9), nn.Linear(64, env_spec.num_actions))

    kwargs = QUICK["algo_kwargs"] | {"network": dropping}
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **(QUICK | {"algo_kwargs": kwargs}))
    result = agent.learn()
    rows = np.random.default_rng(0).normal(size=(200, 4))
    assert np.array_equal(agent.predict(rows)[0], agent.predict(rows)[0])
    assert agent.evaluate(2).returns == result.eval_returns


def test_callbacks_must_be_a_list_of_objects(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **QUICK)
    for wrong in ([Callback], Callback()):
        with pytest.raises(UsageError, match=r"expected a list of Callback objects"):
            agent.learn(callbacks=wrong)


def test_a_built_vector_environment_in_a_vector_wrapper_is_not_evaluated_without_it(
    tmp_path: Path,
) -> None:
    venv = gym.wrappers.vector.ClipReward(gym.make_vec("CartPole-v1", num_envs=2), 0.0, 0.5)
    agent = DQN(venv, output_dir=str(tmp_path), **QUICK)
    with pytest.raises(ConfigError, match="its vector wrappers cannot be put around"):
        agent.learn()
    venv.close()


def test_a_callable_that_makes_a_vector_environment_is_refused_before_training(
    tmp_path: Path,
) -> None:
    agent = DQN(lambda: gym.make_vec("CartPole-v1", num_envs=2), output_dir=str(tmp_path), **QUICK)
    with pytest.raises(ConfigError, match="vector environment"):
        agent.learn()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([[0.0, 1.0], [2.0]], "lists of equal length"),
        ("text", "expected numbers"),
        ([1e39, 0.0, 0.0, 0.0], "too large for float32"),
    ],
)
def test_an_observation_that_is_none_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DQN("CartPole-v1", **QUICK).predict(wrong)


def test_episode_start_is_a_flag_or_one_per_row() -> None:
    agent = DQN("CartPole-v1", **QUICK)
    rows = np.zeros((3, 4))
    for fitting in (None, True, [True, False, True]):
        assert agent.predict(rows, episode_start=fitting)[0].shape == (3,)
    for wrong in ([True, False], 1, "yes"):
        with pytest.raises(UsageError, match="episode_start"):
            agent.predict(rows, episode_start=wrong)


# What is refused in words of our own


def test_calls_that_make_no_sense_are_usage_errors(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **QUICK)
    for episodes in (0, -1, 1.5):
        with pytest.raises(UsageError, match="episodes: expected a whole number from 1 on"):
            agent.evaluate(episodes)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least one row in a batch, found none"):
        agent.predict(np.zeros((0, 4)))


def test_trouble_with_the_disk_in_save_is_a_save_error(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", output_dir=str(tmp_path / "runs"), **QUICK)
    (tmp_path / "file").touch()
    for target in ("/proc/x/y", tmp_path / "file" / "agent"):
        with pytest.raises(SaveError, match="could not write"):
            agent.save(target)
    result = agent.learn()
    shutil.rmtree(result.run_dir / "checkpoints")
    with pytest.raises(SaveError, match="could not write"):
        agent.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


# Objects that no file can hold


def make_walk(make: Any, width: float = 3.0) -> RandomWalkEnv:
    """An environment whose argument is a function."""
    env: RandomWalkEnv = make(width)
    return env


def test_an_object_among_the_environments_arguments_is_passed_again(tmp_path: Path) -> None:
    def build(width: float) -> RandomWalkEnv:
        return RandomWalkEnv(width)

    kwargs = {"make": build, "width": 2.0}
    agent = DQN(make_walk, env_kwargs=kwargs, output_dir=str(tmp_path), **QUICK)
    result = agent.learn()
    loaded = DQN.load(result.run_dir)
    assert loaded.predict([0.0, 1.0])[0] in (0, 1)
    wanted = r"env_kwargs\.make: .*<callable .*build>.* pass it again: load\(path, env_kwargs="
    for call in (loaded.evaluate, loaded.resume):
        with pytest.raises(ConfigError, match=wanted):
            call()
    with pytest.raises(ConfigError, match=wanted):
        train_dqn(loaded.config, resume=result.run_dir)
    again = DQN.load(result.run_dir, env_kwargs={"make": build}, trust=True)
    assert again.config.env_kwargs == kwargs
    assert again.evaluate(2).returns == result.eval_returns
    assert again.resume(total_timesteps=130).global_step == 130


def test_an_object_among_a_wrappers_arguments_is_passed_again(tmp_path: Path) -> None:
    def wrappers(factor: float) -> tuple[Any, ...]:
        return ({"TransformReward": {"func": lambda reward: factor * reward}},)

    agent = DQN(CountingEnv, wrappers=wrappers(2.0), output_dir=str(tmp_path), **QUICK)
    run_dir = agent.learn().run_dir
    with pytest.raises(ConfigError, match=r"wrappers\.0\.TransformReward\.func: .*wrappers=\.\.\."):
        DQN.load(run_dir).evaluate(1)
    again = DQN.load(run_dir, wrappers=wrappers(2.0), trust=True)
    assert again.evaluate(1).returns == (30.0,)  # twice 1 + 2 + 3 + 4 + 5
    assert again.resume(total_timesteps=130).global_step == 130


# Going on


def test_after_a_signal_the_object_stands_where_the_run_was_saved(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path)
    straight = final_state(train_dqn(config).run_dir)
    agent = DQN(config)
    with pytest.raises(TrainingInterrupted) as caught:
        agent.learn(callbacks=[StopAt(101)])
    assert agent.run_dir == caught.value.result.run_dir
    rows = np.random.default_rng(0).normal(size=(40, 4))
    assert np.array_equal(agent.predict(rows)[0], DQN.load(agent.run_dir).predict(rows)[0])
    assert agent.resume().global_step == 240
    assert final_state(agent.run_dir) == straight


def test_a_budget_that_is_refused_does_not_stay(tmp_path: Path) -> None:
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **QUICK)
    agent.learn()
    with pytest.raises(UsageError, match="at least the 120 steps that are done already, found 50"):
        agent.resume(total_timesteps=50)
    assert agent.config.total_timesteps == 120
    assert agent.resume(total_timesteps=125).global_step == 125


def test_a_built_environment_is_enough_to_load_a_run_that_is_never_evaluated(
    tmp_path: Path,
) -> None:
    quick = QUICK | {"final_eval_episodes": 0}
    env = CountingEnv()
    run_dir = DQN(env, output_dir=str(tmp_path), **quick).learn().run_dir
    loaded = DQN.load(run_dir, env=CountingEnv())
    assert loaded.resume(total_timesteps=130).global_step == 130
    venv = gym.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(CheckpointError, match="observation spaces differ"):
        DQN.load(run_dir, env=venv)
    venv.reset()  # still open: it is the caller's
    venv.close()


def test_evaluation_and_loading_use_the_threads_of_the_configuration(tmp_path: Path) -> None:
    used = set()

    class Noting(CountingEnv):
        def step(self, action: int) -> Any:
            used.add(torch.get_num_threads())
            return super().step(action)

    def building(env_spec: Any, hyper: Any) -> nn.Module:
        used.add(torch.get_num_threads())
        return network(env_spec, hyper)

    before = torch.get_num_threads()
    agent = DQN(Noting, threads=3, output_dir=str(tmp_path), **QUICK)
    run_dir = agent.learn().run_dir
    used.clear()
    loaded = DQN.load(run_dir, env=Noting)
    loaded.evaluate(1)
    assert used == {3}
    kwargs = QUICK["algo_kwargs"] | {"network": building}
    agent = DQN(
        CountingEnv, threads=5, output_dir=str(tmp_path), **(QUICK | {"algo_kwargs": kwargs})
    )
    run_dir = agent.learn().run_dir
    used.clear()
    DQN.load(run_dir, network=building)
    assert used == {5}
    assert torch.get_num_threads() == before


def test_a_device_that_is_missing_is_refused_if_asked_for(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without CUDA")
    agent = DQN("CartPole-v1", output_dir=str(tmp_path), **QUICK)
    saved = agent.save(tmp_path / "agent")
    with pytest.raises(ConfigError, match="device: cuda"):
        DQN.load(saved, device="cuda")
    assert DQN.load(saved, device="cpu").config.device == "cpu"


def test_a_class_that_names_no_algorithm_says_so_when_it_is_used() -> None:
    class Base(ManagedAlgorithm):
        """What several classes share; it is fine as long as nobody makes one."""

    with pytest.raises(UsageError, match=r"Base: expected algo_name, .* found neither"):
        Base("CartPole-v1")
