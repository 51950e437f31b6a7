"""The managed classes, one per algorithm."""

from rl_training.api.managed import ManagedAlgorithm


class DQN(ManagedAlgorithm):
    """Deep Q-network (Mnih et al., 2015)."""

    algo_name = "dqn"


class QRDQN(ManagedAlgorithm):
    """DQN on quantiles of the return (Dabney et al., 2018)."""

    algo_name = "qr_dqn"


class C51(ManagedAlgorithm):
    """DQN on a categorical distribution of the return (Bellemare et al., 2017)."""

    algo_name = "c51"


class DRQN(ManagedAlgorithm):
    """Recurrent DQN (Hausknecht & Stone, 2015)."""

    algo_name = "drqn"


class PPO(ManagedAlgorithm):
    """Proximal policy optimisation (Schulman et al., 2017)."""

    algo_name = "ppo"


class RecurrentPPO(ManagedAlgorithm):
    """Recurrent PPO."""

    algo_name = "recurrent_ppo"


class SAC(ManagedAlgorithm):
    """Soft actor-critic (Haarnoja et al., 2018)."""

    algo_name = "sac"


class TQC(ManagedAlgorithm):
    """Truncated quantile critics (Kuznetsov et al., 2020)."""

    algo_name = "tqc"


class REDQ(ManagedAlgorithm):
    """Randomised ensembled double Q-learning (Chen et al., 2021)."""

    algo_name = "redq"


class TD3(ManagedAlgorithm):
    """Twin delayed deterministic policy gradient (Fujimoto et al., 2018), or DDPG."""

    algo_name = "td3"


class DrQ(ManagedAlgorithm):
    """Soft actor-critic from shifted images (Kostrikov et al., 2020)."""

    algo_name = "drq"


class DrQv2(ManagedAlgorithm):
    """Its deterministic successor with n-step returns (Yarats et al., 2021)."""

    algo_name = "drqv2"
