"""The public names of every package: one table, from which all lists of exports follow.

`from rl_training.models import MLPQNetwork` imports the module of that name on first use, so that
importing a package costs nothing. Type checkers and editors read the stubs beside the `__init__`
files, which `python docs/generate.py` writes from the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from rl_training.errors import did_you_mean


class Algorithm(NamedTuple):
    """What an algorithm exports: update class, managed class, configuration, losses, training."""

    name: str
    module: str
    config: str
    trainer: str
    functions: tuple[str, ...] = ()


_ALGORITHMS = (
    Algorithm("DQN", "dqn", "value_based", "dqn", ("dqn_loss",)),
    Algorithm("QRDQN", "qr_dqn", "value_based", "dqn", ("qr_dqn_loss",)),
    Algorithm("C51", "c51", "value_based", "dqn", ("c51_loss",)),
    Algorithm("DRQN", "drqn", "value_based", "drqn", ("drqn_loss",)),
    Algorithm("SAC", "sac", "actor_critic", "sac", ("sac_loss",)),
    Algorithm("TQC", "tqc", "actor_critic", "tqc", ("tqc_loss", "truncated_atoms")),
    Algorithm("REDQ", "redq", "actor_critic", "redq", ("redq_loss", "random_subset")),
    Algorithm("TD3", "td3", "actor_critic", "td3", ("td3_loss", "td3_target")),
    Algorithm("DrQ", "drq", "actor_critic", "drq", ("drq_loss",)),
    Algorithm("DrQv2", "drqv2", "actor_critic", "drqv2", ("drqv2_loss",)),
    Algorithm("PPO", "ppo", "ppo", "ppo", ("Samples", "gae", "normalized", "ppo_terms")),
    Algorithm("RecurrentPPO", "recurrent_ppo", "ppo", "recurrent_ppo"),
)

_HOMES: dict[str, dict[str, tuple[str, ...]]] = {
    "rl_training": {
        "config.train_config": ("TrainConfig",),
        "errors": ("RLTrainingError",),
        "experiment.manager": ("ExperimentManager",),
        "runtime.callbacks": ("Callback", "StopOnReturn"),
        "api.managed": ("algorithm_class", "load"),
        "runtime.result": ("TrainResult", "TrainingInterrupted"),
        "runtime.spec": ("AlgorithmSpec",),
        "runtime.spec_table": ("register",),
        "tools.q_bias": ("QBias",),
        "tools.video": ("Video",),
    },
    "rl_training.api": {
        "api.managed": ("ManagedAlgorithm", "algorithm_class", "load"),
    },
    "rl_training.algorithms": {
        "algorithms.base": ("ActResult", "Algorithm", "Loss", "UpdateResult", "mask_illegal"),
        "algorithms.deterministic_actor_critic": ("DeterministicActorCritic",),
        "algorithms.functional.quantile": ("quantile_huber_loss",),
        "algorithms.functional.random_shift": ("random_shift",),
        "algorithms.optimization": ("AveragedNetwork", "Optimizer", "TargetNetwork"),
        "algorithms.soft_actor_critic": (
            "SoftActorCritic",
            "min_over_critics",
            "soft_actor_loss",
            "soft_target",
        ),
        "algorithms.value_based": ("ValueBased", "action_values"),
    },
    "rl_training.config": {
        "config.actor_critic": ("DeterministicConfig", "SoftActorCriticConfig"),
        "config.hyper_parameters": (
            "HyperParameters",
            "OffPolicyHyperParameters",
            "OnPolicyHyperParameters",
            "RecurrentConfig",
            "TransitionHyperParameters",
        ),
        "config.loading": ("find_config", "packaged_configs"),
        "config.schedule": (
            "LearningRate",
            "Probability",
            "Schedule",
            "Scheduled",
            "bounded_schedule",
            "scheduled_value",
        ),
        "config.train_config": ("TrainConfig",),
        "config.value_based": ("TransitionValueBasedConfig", "ValueBasedConfig"),
    },
    "rl_training.data": {
        "data.normalization": ("ObservationNormalizer", "RewardNormalizer"),
        "data.observations": ("NamedParts", "Part"),
        "data.prioritized_replay": ("PrioritizedReplayBuffer",),
        "data.recurrent_replay_buffer": ("RecurrentReplayBuffer",),
        "data.replay_buffer": ("ReplayBuffer",),
        "data.rollout_buffer": ("RolloutBuffer",),
        "data.types": ("Batch", "EnvSpec", "Clock", "Rollout", "SequenceBatch", "Transitions"),
    },
    "rl_training.envs": {
        "envs.factory": ("make_env", "make_vector_env"),
        "envs.pixels": ("PixelObservation", "stacked_frames"),
        "envs.point_pixels": ("PointPixels", "PointPixelsTarget"),
        "envs.spaces": ("SpaceAdapter",),
        "envs.masks": ("ActionMaskInfo", "HideActionMask"),
        "envs.wrappers": ("MaskVelocity", "PreviousActionReward"),
    },
    "rl_training.models": {
        "models.blocks": ("DuelingMLP", "EnsembleMLP", "MLP", "NoisyMLP"),
        "models.mlp_actor_critic": ("MLPActorCritic",),
        "models.mlp_actor_q_ensemble": (
            "MLPActor",
            "MLPActorQEnsemble",
            "MLPCritics",
            "MLPDeterministicActor",
        ),
        "models.mlp_categorical_q_network": ("MLPCategoricalQNetwork",),
        "models.mlp_q_network": ("MLPQNetwork",),
        "models.mlp_qr_q_network": ("MLPQRQNetwork",),
    },
    "rl_training.models.cnn": {
        "models.cnn.drq": ("CNNDrQModel",),
        "models.cnn.drqv2": ("CNNDrQv2Model",),
        "models.cnn.encoders": ("NatureCNN",),
        "models.cnn.image_networks": ("ImageActorCritic", "ImageQNetwork"),
    },
    "rl_training.runtime": {
        "runtime.collector": ("Collector",),
        "runtime.evaluator": ("Evaluator",),
        "runtime.spec": ("AlgorithmSpec", "Lazy"),
    },
    "rl_training.models.recurrent": {
        "models.recurrent.actor_critic": ("RecurrentActorCritic",),
        "models.recurrent.core": ("RecurrentCore",),
        "models.recurrent.lstm_q_network": ("LSTMQNetwork",),
    },
}


def _collect() -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = {package: {} for package in _HOMES}

    def add(package: str, module: str, *names: str) -> None:
        table[package] |= dict.fromkeys(names, f"rl_training.{module}")

    for package, modules in _HOMES.items():
        for module, names in modules.items():
            add(package, module, *names)
    for row in _ALGORITHMS:
        add("rl_training.algorithms", f"algorithms.{row.module}", row.name, *row.functions)
        for package in ("rl_training.algorithms", "rl_training.config"):
            add(package, f"config.{row.config}", f"{row.name}Config")
        for package in ("rl_training", "rl_training.api"):
            add(package, "api.algorithms", row.name)
        trainer = f"runtime.{row.trainer}_trainer"
        add("rl_training", trainer, f"train_{row.trainer}")
        add("rl_training.runtime", trainer, f"{row.module.upper()}_SPEC")
    for package in ("rl_training.models.cnn", "rl_training.models.recurrent"):
        table["rl_training.models"] |= table[package]
    return {package: dict(sorted(names.items())) for package, names in table.items()}


EXPORTS = _collect()
"""The names that each package exports, with the modules they are defined in."""


def lazy(package: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """The `__all__`, `__getattr__` and `__dir__` of a package."""
    names = EXPORTS[package]

    def get(name: str) -> Any:
        if name not in names:
            if package == __package__:
                _refuse_foreign(name)
            hint = did_you_mean(name, names)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        return getattr(import_module(names[name]), name)

    return list(names), get, lambda: sorted({*vars(sys.modules[package]), *names})


def _refuse_foreign(name: str) -> None:
    """Raise ImportError with our name for something that is imported from another package.

    Not AttributeError, which `from rl_training import A2C` would replace by a message of its own.
    """
    answers = import_module("rl_training.config.other_packages").IMPORTS
    if name in answers:
        raise ImportError(f"{name}: {answers[name]}", name=__package__)
