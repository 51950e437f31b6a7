# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.runtime.collector import Collector as Collector
from rl_training.runtime.dqn_trainer import C51_SPEC as C51_SPEC
from rl_training.runtime.dqn_trainer import DQN_SPEC as DQN_SPEC
from rl_training.runtime.dqn_trainer import QR_DQN_SPEC as QR_DQN_SPEC
from rl_training.runtime.drq_trainer import DRQ_SPEC as DRQ_SPEC
from rl_training.runtime.drqn_trainer import DRQN_SPEC as DRQN_SPEC
from rl_training.runtime.drqv2_trainer import DRQV2_SPEC as DRQV2_SPEC
from rl_training.runtime.evaluator import Evaluator as Evaluator
from rl_training.runtime.ppo_trainer import PPO_SPEC as PPO_SPEC
from rl_training.runtime.recurrent_ppo_trainer import RECURRENT_PPO_SPEC as RECURRENT_PPO_SPEC
from rl_training.runtime.redq_trainer import REDQ_SPEC as REDQ_SPEC
from rl_training.runtime.sac_trainer import SAC_SPEC as SAC_SPEC
from rl_training.runtime.spec import AlgorithmSpec as AlgorithmSpec
from rl_training.runtime.spec import Lazy as Lazy
from rl_training.runtime.td3_trainer import TD3_SPEC as TD3_SPEC
from rl_training.runtime.tqc_trainer import TQC_SPEC as TQC_SPEC
