"""What people of other packages write, with this package's way of saying it.

Read only when a name is not known, so that it costs nothing otherwise. An answer follows the name
and a colon.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rl_training.errors import UsageError, did_you_mean

KEYS: Mapping[str, tuple[str, ...]] = {
    "action_noise": ("noise",),
    "adam_eps": ("optimizer_eps",),
    "algorithm": ("algo",),
    "buffer_capacity": ("buffer_size",),
    "clip_coef": ("clip_range",),
    "clip_range_vf": ("value_clip_range",),
    "cuda": ("device",),
    "discount": ("gamma",),
    "end_e": ("epsilon.final",),
    "ent_coef": ("entropy_coef", "alpha"),
    "eval_freq": ("eval_interval",),
    "exp_name": ("run_name",),
    "exploration_final_eps": ("epsilon.final",),
    "exploration_fraction": ("epsilon.fraction",),
    "exploration_initial_eps": ("epsilon.initial",),
    "gradient_steps": ("replay_ratio",),
    "lr": ("learning_rate",),
    "n_critics": ("num_critics",),
    "n_envs": ("num_envs",),
    "n_epochs": ("epochs",),
    "n_eval_episodes": ("eval_episodes",),
    "n_quantiles": ("num_quantiles",),
    "n_steps": ("num_steps", "n_step"),
    "n_timesteps": ("total_timesteps",),
    "net_arch": ("hidden_sizes",),
    "norm_adv": ("normalize_advantages",),
    "normalize_advantage": ("normalize_advantages",),
    "num_env_runners": ("num_envs",),
    "num_workers": ("num_envs",),
    "policy_frequency": ("policy_delay",),
    "polyak": ("tau",),
    "save_freq": ("checkpoint_interval",),
    "start_e": ("epsilon.initial",),
    "target_network_frequency": ("target_update_interval",),
    "target_policy_noise": ("target_noise",),
    "target_noise_clip": ("noise_clip",),
    "tensorboard_log": ("output_dir",),
    "top_quantiles_to_drop_per_net": ("dropped_quantiles",),
    "train_batch_size": ("num_steps", "batch_size"),
    "train_freq": ("replay_ratio",),
    "train_frequency": ("replay_ratio",),
    "update_epochs": ("epochs",),
    "vec_env_cls": ("vectorization",),
    "vf_coef": ("value_coef",),
    "wrapper_class": ("wrappers",),
}
"""Configuration keys, with ours; the first that the algorithm has is meant."""

KEY_ANSWERS: Mapping[str, str] = {
    "_init_setup_model": "networks are always built when they are first needed; leave it out",
    "anneal_lr": "write learning_rate={'initial': 3e-4, 'final': 0.0}, a schedule",
    "capture_video": "training records no video; leave it out",
    "framework": "networks are PyTorch's; leave it out",
    "minibatch_size": "write batch_size=..., the transitions in one gradient step",
    "monitor_wrapper": "episodes are always recorded, in metrics.jsonl; leave it out",
    "num_minibatches": "write batch_size=..., the transitions in one gradient step",
    "optimize_memory_usage": "each observation is always stored once; leave it out",
    "policy": "the network follows from the observation space; write it without a policy",
    "policy_kwargs": "write hidden_sizes=[64, 64], or network=function(env_spec, hyper)",
    "replay_buffer_class": "the replay follows from the algorithm; prioritized=True is one option",
    "replay_buffer_kwargs": "the replay is set by buffer_size, n_step and prioritized",
    "rollout_buffer_class": "the rollout follows from the algorithm; num_steps sets its length",
    "sde_sample_freq": "there is no state-dependent exploration; leave it out",
    "stats_window_size": "the logged return is the mean of the last episodes; leave it out",
    "supported_action_spaces": "rl-training list shows what an algorithm takes; leave it out",
    "torch_deterministic": "a seed always gives the same run; leave it out",
    "track": "every run writes metrics.jsonl and TensorBoard events; leave it out",
    "use_rms_prop": "write optimizer='rmsprop' where the algorithm has that key",
    "use_sde": "there is no state-dependent exploration; leave it out",
    "verbose": "what is going on is shown by learn(progress=True); leave it out",
}
"""Configuration keys that have no counterpart by name."""

ARGUMENTS: Mapping[str, str] = {
    "callback": "write callbacks=[...], a list of rl_training.Callback objects",
    "custom_objects": "pass what no file can hold by name: env=, wrappers=, network=",
    "eval_env": "give it to the constructor, eval_env=...; by default one like that of training",
    "eval_freq": "give it to the constructor, eval_interval=..., in transitions",
    "exclude": "save writes the whole agent; load reads only what acting needs",
    "force_reset": "a new call of learn goes on exactly where the last one ended; leave it out",
    "include": "save writes the whole agent; load reads only what acting needs",
    "log_interval": "give it to the constructor, log_interval=..., in transitions",
    "n_eval_episodes": "give it to the constructor, eval_episodes=...",
    "print_system_info": "rl-training doctor shows versions and devices; leave it out",
    "progress_bar": "write progress=True",
    "reset_num_timesteps": "learn always goes on counting; a new run begins with a new object, "
    "from these weights with init_from=agent",
    "tb_log_name": "give it to the constructor, run_name=...",
    "use_masking": "legal actions are taken from the environment; leave it out",
}
"""Arguments of `learn`, `load` and `save`."""

IMPORTS: Mapping[str, str] = {
    "A2C": "not offered; PPO(env, algo_kwargs={'epochs': 1}) is the nearest",
    "ACER": "not offered; the nearest is PPO",
    "ARS": "not offered; rl-training list shows what is",
    "ActorCriticPolicy": "networks are plain torch modules: algo_kwargs={'network': function}",
    "AlgorithmConfig": "settings are keywords: PPO('CartPole-v1', num_envs=8, ...)",
    "BaseCallback": "derive from rl_training.Callback and pass learn(callbacks=[...])",
    "CallbackList": "pass a list: learn(callbacks=[...])",
    "CheckpointCallback": "built in: PPO(env, checkpoint_interval=10_000)",
    "CrossQ": "not offered; the nearest is SAC with algo_kwargs={'layer_norm': True}",
    "DDPG": "TD3 with two settings: TD3.from_config('td3/pendulum_ddpg')",
    "DQNConfig": "settings are keywords: DQN('CartPole-v1', num_envs=8, ...)",
    "DummyVecEnv": "the default: PPO('CartPole-v1', num_envs=8)",
    "EvalCallback": "built in: PPO(env, eval_interval=10_000, eval_episodes=10)",
    "HER": "not offered; rl-training list shows what is",
    "HerReplayBuffer": "not offered; rl-training list shows what is",
    "MaskablePPO": "write PPO: legal actions are taken from the environment's action_mask",
    "Monitor": "not needed: episodes are recorded in metrics.jsonl and by TensorBoard",
    "PPOConfig": "settings are keywords: PPO('CartPole-v1', num_envs=8, ...)",
    "ProgressBarCallback": "an argument: learn(progress=True)",
    "ReplayBuffer": "in rl_training.data: from rl_training.data import ReplayBuffer",
    "RolloutBuffer": "in rl_training.data: from rl_training.data import RolloutBuffer",
    "SACConfig": "settings are keywords: SAC('Pendulum-v1', num_envs=8, ...)",
    "StopTrainingOnRewardThreshold": "StopOnReturn: learn(callbacks=[StopOnReturn(475)])",
    "SubprocVecEnv": "a setting: PPO('CartPole-v1', num_envs=8, vectorization='async')",
    "TRPO": "not offered; the nearest is PPO with algo_kwargs={'target_kl': 0.01}",
    "Trainer": "training is a method: PPO('CartPole-v1').learn()",
    "Tuner": "several seeds are trained by ExperimentManager(config, seeds).run()",
    "VecEnv": "vector environments are Gymnasium's, and may be passed built: PPO(venv)",
    "VecFrameStack": "a wrapper: wrappers=[{'FrameStackObservation': {'stack_size': 4}}]",
    "VecMonitor": "not needed: episodes are recorded in metrics.jsonl and by TensorBoard",
    "VecNormalize": "a setting: PPO(env, normalize_observations=True, normalize_rewards=True)",
    "VecVideoRecorder": "not offered; Gymnasium's RecordVideo can wrap an environment",
    "check_env": "a command: rl-training doctor --env CartPole-v1",
    "evaluate_policy": "a method: agent.evaluate(episodes=10) has mean, std and returns",
    "make_atari_env": "an id: DQN('ALE/Pong-v5', vectorization='native')",
    "make_vec_env": "a setting: PPO('CartPole-v1', num_envs=8)",
    "set_random_seed": "a setting: PPO(env, seed=1)",
    "sync_envs_normalization": "not needed: evaluation uses the policy's own statistics",
    "tune": "several seeds are trained by ExperimentManager(config, seeds).run()",
}
"""Names that are imported from other packages."""

ATTRIBUTES: Mapping[str, str] = {
    "action_space": "in agent.algorithm.spec, with the observation's shape",
    "actor": "in agent.model.actor where the algorithm has one",
    "build": "settings are keywords: PPO('CartPole-v1', num_envs=8, ...)",
    "collect_rollouts": "part of learn(); a callback's on_step(run) sees each step",
    "compute_single_action": "predict: action, state = agent.predict(observation)",
    "critic": "in agent.model.critics where the algorithm has them",
    "ent_coef": "a setting: entropy_coef or alpha in agent.config.algo_kwargs",
    "env": "agent.config.env_id; evaluation builds separate environments",
    "fit": "learn: agent.learn(10_000)",
    "get_env": "agent.config.env_id; evaluation builds separate environments",
    "get_parameters": "agent.model.state_dict()",
    "get_policy": "agent.model, a torch module",
    "get_vec_normalize_env": "not needed: the statistics are saved with the policy",
    "learning_rate": "a setting, in agent.config.algo_kwargs",
    "load_replay_buffer": "not needed: a run directory or saved agent holds the replay",
    "logger": "metrics.jsonl and the TensorBoard events in agent.run_dir",
    "n_envs": "agent.config.num_envs",
    "num_timesteps": "agent.env_steps",
    "observation_space": "in agent.algorithm.spec, with the number of actions",
    "policy": "agent.model, a torch module; agent.predict(observation) acts with it",
    "policy_class": "type(agent.model)",
    "q_net": "agent.model",
    "replay_buffer": "there during training: a callback's run.buffer",
    "restore": "a class method: rl_training.load(path)",
    "rollout_buffer": "there during training: a callback's run.buffer",
    "save_replay_buffer": "not needed: save() keeps the replay of a trained agent",
    "set_env": "an argument: rl_training.load(path, env=...), or init_from=agent in a new run",
    "set_logger": "not needed: every run writes metrics.jsonl and TensorBoard events",
    "set_parameters": "an argument of a new run: init_from=agent, a run or a checkpoint",
    "set_random_seed": "a setting: seed=1",
    "train": "learn: agent.learn(10_000)",
    "vec_env": "agent.config.env_id; evaluation builds separate environments",
}
"""Attributes and methods of other packages' agents."""

FILES: Mapping[str, str] = {
    ".zip": "an archive of Stable-Baselines3",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
    ".pt": "a file of torch",
    ".pth": "a file of torch",
    ".ckpt": "a file of another package",
}
"""Files that other packages save agents to; none of them is opened, as some run code then."""


def refuse_unknown_arguments(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError for arguments that a call does not have, with ours for another package's."""
    names = [name for name in known if name not in ("self", "cls", "others")]
    if lines := [
        f"{name}: {ARGUMENTS[name]}"
        if name in ARGUMENTS
        else f"{call} has no argument {name!r}"
        + (did_you_mean(name, names) or f"; it has {', '.join(names)}")
        for name in given
    ]:
        raise UsageError("\n".join(lines))
