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
from rl_training.api.managed import algorithm_class as algorithm_class
from rl_training.api.managed import load as load
from rl_training.config.train_config import TrainConfig as TrainConfig
from rl_training.errors import RLTrainingError as RLTrainingError
from rl_training.experiment.manager import ExperimentManager as ExperimentManager
from rl_training.runtime.callbacks import Callback as Callback
from rl_training.runtime.callbacks import StopOnReturn as StopOnReturn
from rl_training.runtime.dqn_trainer import train_dqn as train_dqn
from rl_training.runtime.drq_trainer import train_drq as train_drq
from rl_training.runtime.drqn_trainer import train_drqn as train_drqn
from rl_training.runtime.drqv2_trainer import train_drqv2 as train_drqv2
from rl_training.runtime.ppo_trainer import train_ppo as train_ppo
from rl_training.runtime.recurrent_ppo_trainer import train_recurrent_ppo as train_recurrent_ppo
from rl_training.runtime.redq_trainer import train_redq as train_redq
from rl_training.runtime.result import TrainResult as TrainResult
from rl_training.runtime.result import TrainingInterrupted as TrainingInterrupted
from rl_training.runtime.sac_trainer import train_sac as train_sac
from rl_training.runtime.spec import AlgorithmSpec as AlgorithmSpec
from rl_training.runtime.spec_table import register as register
from rl_training.runtime.td3_trainer import train_td3 as train_td3
from rl_training.runtime.tqc_trainer import train_tqc as train_tqc
from rl_training.tools.q_bias import QBias as QBias
from rl_training.tools.video import Video as Video

__version__: str
