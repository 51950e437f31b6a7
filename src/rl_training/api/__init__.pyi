# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.api.algorithms import C51 as C51
from rl_training.api.algorithms import DQN as DQN
from rl_training.api.algorithms import DRQN as DRQN
from rl_training.api.algorithms import DrQ as DrQ
from rl_training.api.algorithms import DrQv2 as DrQv2
from rl_training.api.algorithms import PPO as PPO
from rl_training.api.algorithms import QRDQN as QRDQN
from rl_training.api.algorithms import REDQ as REDQ
from rl_training.api.algorithms import RecurrentPPO as RecurrentPPO
from rl_training.api.algorithms import SAC as SAC
from rl_training.api.algorithms import TD3 as TD3
from rl_training.api.algorithms import TQC as TQC
from rl_training.api.managed import ManagedAlgorithm as ManagedAlgorithm
from rl_training.api.managed import algorithm_class as algorithm_class
from rl_training.api.managed import load as load
