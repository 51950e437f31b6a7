"""The managed classes, one per algorithm."""

from rl_training.api.managed import ManagedAlgorithm


class DQN(ManagedAlgorithm):
    """Deep Q-network (Mnih et al., 2015)."""

    algo_name = "dqn"


class PPO(ManagedAlgorithm):
    """Proximal policy optimisation (Schulman et al., 2017)."""

    algo_name = "ppo"
