"""The update classes: `from rl_training.algorithms import DQN`."""

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.c51 import C51
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.drq import DrQ
from rl_training.algorithms.drqn import DRQN
from rl_training.algorithms.drqv2 import DrQv2
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.algorithms.redq import REDQ
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.tqc import TQC

__all__ = [
    "C51",
    "DQN",
    "DRQN",
    "PPO",
    "QRDQN",
    "REDQ",
    "SAC",
    "TQC",
    "DrQ",
    "DrQv2",
    "RecurrentPPO",
    "UpdateResult",
]
