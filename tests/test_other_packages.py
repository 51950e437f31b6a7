"""What people write who come from another package: it works, or one line says it our way."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_training
from rl_training import DQN, PPO, SAC, TD3, RecurrentPPO
from rl_training.config import other_packages
from rl_training.config.train_config import config_paths
from rl_training.errors import ConfigError, UsageError
from rl_training.exports import EXPORTS
from rl_training.runtime.spec_table import packaged_specs

WORKS = ""

# An idiom, and what the one line must name; nothing if it works as it stands.
IDIOMS: list[tuple[str, str]] = [
    # Making an agent.
    ("DQN('MlpPolicy', env)", "DQN(env)"),
    ("DQN('MlpPolicy', 'CartPole-v1')", "DQN('CartPole-v1')"),
    ("PPO('CnnPolicy', 'CartPole-v1', verbose=1)", "PPO('CartPole-v1')"),
    ("RecurrentPPO('MlpLstmPolicy', 'CartPole-v1')", "RecurrentPPO('CartPole-v1')"),
    ("PPO('MultiInputPolicy', env)", "PPO(env)"),
    ("DQN(policy='MlpPolicy', env_id='CartPole-v1')", "write it without a policy"),
    ("DQN(env='CartPole-v1')", WORKS),
    ("DQN(env)", WORKS),
    ("DQN('CartPole-v1')", WORKS),
    ("DQN(lambda: gym.make('CartPole-v1'))", WORKS),
    ("PPO(gym.make_vec('CartPole-v1', num_envs=2))", WORKS),
    ("DQN('CartPole-v1', verbose=1)", "learn(progress=True)"),
    ("DQN('CartPole-v1', seed=3, device='cpu')", WORKS),
    ("DQN('CartPole-v1', tensorboard_log='logs')", "did you mean 'output_dir'?"),
    ("DQN('CartPole-v1', policy_kwargs={'net_arch': [64, 64]})", "hidden_sizes=[64, 64]"),
    ("DQN('CartPole-v1', learning_rate=1e-3, buffer_size=5000)", WORKS),
    ("DQN('CartPole-v1', learning_starts=100, batch_size=32, gamma=0.98, tau=0.5)", WORKS),
    ("DQN('CartPole-v1', exploration_fraction=0.2)", "algo_kwargs.epsilon.fraction"),
    ("DQN('CartPole-v1', exploration_final_eps=0.05)", "algo_kwargs.epsilon.final"),
    ("DQN('CartPole-v1', target_update_interval=500, max_grad_norm=10)", WORKS),
    ("DQN('CartPole-v1', train_freq=4)", "algo_kwargs.replay_ratio"),
    ("DQN('CartPole-v1', gradient_steps=-1)", "algo_kwargs.replay_ratio"),
    ("DQN('CartPole-v1', optimize_memory_usage=True)", "stored once"),
    ("PPO('CartPole-v1', n_steps=128)", "algo_kwargs.num_steps"),
    ("PPO('CartPole-v1', n_epochs=4)", "algo_kwargs.epochs"),
    ("PPO('CartPole-v1', ent_coef=0.01)", "algo_kwargs.entropy_coef"),
    ("PPO('CartPole-v1', vf_coef=0.5)", "algo_kwargs.value_coef"),
    ("PPO('CartPole-v1', gae_lambda=0.95, clip_range=0.2, target_kl=0.02)", WORKS),
    ("PPO('CartPole-v1', n_envs=8)", "did you mean 'num_envs'?"),
    ("SAC('Pendulum-v1', ent_coef='auto')", "algo_kwargs.alpha"),
    ("SAC('Pendulum-v1', use_sde=True)", "no state-dependent exploration"),
    ("SAC('Pendulum-v1', target_entropy='auto')", WORKS),
    ("TD3('Pendulum-v1', policy_delay=2)", WORKS),
    ("TD3('Pendulum-v1', action_noise=noise)", "algo_kwargs.noise"),
    ("PPO('CartPole-v1', anneal_lr=True)", "a schedule"),
    ("PPO('CartPole-v1', num_minibatches=4)", "batch_size=..."),
    # Training.
    ("agent.learn(total_timesteps=20)", WORKS),
    ("agent.learn(20)", WORKS),
    ("agent.learn(total_timesteps=20, progress_bar=True)", "progress=True"),
    ("agent.learn(20, callback=None)", "callbacks=[...]"),
    ("agent.learn(20, log_interval=4)", "log_interval=..., in transitions"),
    ("agent.learn(20, tb_log_name='first')", "run_name=..."),
    ("agent.learn(20, reset_num_timesteps=False)", "always goes on counting"),
    ("agent.learn(20, eval_freq=1000)", "eval_interval=..."),
    ("agent.learn(total_timestep=20)", "did you mean 'total_timesteps'?"),
    # Using it.
    ("action, _states = agent.predict(obs, deterministic=True)", WORKS),
    ("agent.predict(obs, state=None, episode_start=np.ones((1,), dtype=bool))", "episode_start"),
    ("agent.predict(np.stack([obs, obs]), episode_start=np.ones((2,), dtype=bool))", WORKS),
    ("agent.policy", "agent.model"),
    ("agent.get_env()", "agent.config.env_id"),
    ("agent.set_env(env)", "rl_training.load(path, env=...)"),
    ("agent.num_timesteps", "agent.env_steps"),
    ("agent.get_parameters()", "agent.model.state_dict()"),
    ("agent.set_parameters('x.zip')", "init_from=agent"),
    ("agent.replay_buffer", "run.buffer"),
    ("agent.save_replay_buffer('replay')", "save() keeps the replay"),
    ("agent.logger", "metrics.jsonl"),
    ("agent.compute_single_action(obs)", "agent.predict(observation)"),
    # Saving and loading.
    ("agent.save('agent')", WORKS),
    ("agent.save('agent', overwrite=True)", WORKS),
    ("agent.save('agent'); agent.save('agent')", "overwrite=True"),
    ("agent.save('agent'); DQN.load('agent', env=env)", WORKS),
    ("agent.learn(20); agent.save('agent'); DQN.load('agent').learn(20)", WORKS),
    ("DQN.load('sb3.zip')", "an archive of Stable-Baselines3"),
    ("rl_training.load('sb3.zip')", "an archive of Stable-Baselines3"),
    ("DQN.load('model.pt')", "a file of torch"),
    ("agent.save('agent'); DQN.load('agent', custom_objects={})", "env=, wrappers=, network="),
    ("agent.save('agent'); DQN.load('agent', print_system_info=True)", "rl-training doctor"),
    # Around it.
    ("from rl_training import A2C", "PPO(env, algo_kwargs={'epochs': 1})"),
    ("from rl_training import DDPG", "td3/pendulum_ddpg"),
    ("from rl_training import MaskablePPO", "write PPO"),
    ("from rl_training import evaluate_policy", "agent.evaluate(episodes=10)"),
    ("from rl_training import make_vec_env", "num_envs=8"),
    ("from rl_training import VecNormalize", "normalize_observations=True"),
    ("from rl_training import SubprocVecEnv", "vectorization='async'"),
    ("from rl_training import DummyVecEnv", "num_envs=8"),
    ("from rl_training import VecFrameStack", "FrameStackObservation"),
    ("from rl_training import Monitor", "metrics.jsonl"),
    ("from rl_training import EvalCallback", "eval_interval=10_000"),
    ("from rl_training import CheckpointCallback", "checkpoint_interval=10_000"),
    ("from rl_training import BaseCallback", "rl_training.Callback"),
    ("from rl_training import StopTrainingOnRewardThreshold", "StopOnReturn(475)"),
    ("from rl_training import check_env", "rl-training doctor --env"),
    ("from rl_training import set_random_seed", "seed=1"),
    ("rl_training.PPOConfig().environment('CartPole-v1')", "PPO('CartPole-v1', num_envs=8"),
    ("from rl_training import Tuner", "ExperimentManager"),
]


class Workplace:
    """What an idiom finds when it is run: an agent, an environment, an observation."""

    def __init__(self) -> None:
        self.env = gym.make("CartPole-v1")
        self.names: dict[str, Any] = {
            **{"DQN": DQN, "PPO": PPO, "SAC": SAC, "TD3": TD3, "RecurrentPPO": RecurrentPPO},
            **{"gym": gym, "np": np, "rl_training": rl_training, "env": self.env},
            **{"obs": np.zeros(4, np.float32), "noise": 0.1},
        }

    def agent(self) -> DQN:
        keys: dict[str, Any] = {"eval_interval": 0, "final_eval_episodes": 0, "hidden_sizes": [4]}
        return DQN("CartPole-v1", **keys, learning_starts=10, batch_size=4)

    def answer(self, idiom: str) -> str:
        """What a person is told; nothing if it works."""
        try:
            exec(idiom, {**self.names, "agent": self.agent()})
        except (rl_training.RLTrainingError, AttributeError, ImportError) as error:
            return str(error)
        return WORKS


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.chdir(tmp_path)
    with zipfile.ZipFile("sb3.zip", "w") as archive:
        archive.writestr("data", "{}")
    Path("model.pt").write_bytes(b"\x80\x02")
    return Workplace()


def test_there_are_sixty_of_them() -> None:
    assert len({idiom for idiom, _ in IDIOMS}) >= 60


@pytest.mark.parametrize(("idiom", "ours"), IDIOMS, ids=[idiom for idiom, _ in IDIOMS])
def test_it_works_or_one_line_says_it_our_way(idiom: str, ours: str, workplace: Workplace) -> None:
    answer = workplace.answer(idiom)
    assert "\n" not in answer
    if ours is WORKS:
        assert answer == WORKS
    else:
        assert ours in answer


def test_several_at_once_have_a_line_each() -> None:
    with pytest.raises(ConfigError) as caught:
        PPO("CartPole-v1", n_steps=8, n_epochs=2, verbose=1)
    lines = str(caught.value).splitlines()
    assert ["n_steps" in lines[0], "n_epochs" in lines[1], "verbose" in lines[2]] == [True] * 3
    with pytest.raises(UsageError) as refused:
        PPO("CartPole-v1").learn(10, progress_bar=True, callback=None)
    assert str(refused.value).splitlines() == [
        "progress_bar: write progress=True",
        "callback: write callbacks=[...], a list of rl_training.Callback objects",
    ]


def test_the_answers_name_what_there_is() -> None:
    """Each key of ours exists for some algorithm, and no name that we have is called foreign."""
    paths = [path for spec in packaged_specs().values() for path in config_paths(spec.hyper)]
    legal = {".".join(map(str, path[-2:])) for path in paths} | {str(path[-1]) for path in paths}
    ours = {name for names in other_packages.KEYS.values() for name in names}
    assert ours <= legal
    foreign = other_packages.KEYS.keys() | other_packages.KEY_ANSWERS.keys()
    assert not foreign & {str(path[-1]) for path in paths if len(path) < 3}
    assert not other_packages.IMPORTS.keys() & EXPORTS["rl_training"].keys()
    assert not other_packages.ATTRIBUTES.keys() & set(dir(DQN("CartPole-v1")))
    tables: list[Mapping[str, str]] = [
        other_packages.KEY_ANSWERS,
        other_packages.ARGUMENTS,
        other_packages.IMPORTS,
        other_packages.ATTRIBUTES,
    ]
    assert all("\n" not in answer for table in tables for answer in table.values())


def test_hyper_parameters_are_keywords_too() -> None:
    flat = DQN("CartPole-v1", gamma=0.9, buffer_size=500)
    nested = DQN("CartPole-v1", algo_kwargs={"gamma": 0.9, "buffer_size": 500})
    assert flat.config == nested.config
    assert DQN.from_config("dqn/cartpole", gamma=0.9).config.algo_kwargs["gamma"] == 0.9
    with pytest.raises(ConfigError, match="gamma: given here and in algo_kwargs"):
        DQN("CartPole-v1", gamma=0.9, algo_kwargs={"gamma": 0.8})


def test_an_unknown_attribute_is_still_an_attribute_error() -> None:
    agent = DQN("CartPole-v1")
    assert not hasattr(agent, "policy")
    with pytest.raises(AttributeError, match=r"no attribute 'modle'; did you mean 'model'\?"):
        agent.modle  # noqa: B018
    assert not hasattr(rl_training, "nothing_like_it")


def test_the_table_costs_nothing_until_it_is_needed() -> None:
    code = (
        "import sys; from rl_training import TrainConfig\n"
        "TrainConfig(algo='dqn', env_id='CartPole-v1')\n"
        "assert 'rl_training.config.other_packages' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
