# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.config.actor_critic import DrQConfig as DrQConfig
from rl_training.config.actor_critic import DrQv2Config as DrQv2Config
from rl_training.config.actor_critic import REDQConfig as REDQConfig
from rl_training.config.actor_critic import SACConfig as SACConfig
from rl_training.config.actor_critic import TD3Config as TD3Config
from rl_training.config.actor_critic import TQCConfig as TQCConfig
from rl_training.config.hyper_parameters import HyperParameters as HyperParameters
from rl_training.config.hyper_parameters import OffPolicyHyperParameters as OffPolicyHyperParameters
from rl_training.config.hyper_parameters import OnPolicyHyperParameters as OnPolicyHyperParameters
from rl_training.config.hyper_parameters import RecurrentConfig as RecurrentConfig
from rl_training.config.hyper_parameters import TransitionHyperParameters as TransitionHyperParameters
from rl_training.config.loading import find_config as find_config
from rl_training.config.loading import packaged_configs as packaged_configs
from rl_training.config.ppo import PPOConfig as PPOConfig
from rl_training.config.ppo import RecurrentPPOConfig as RecurrentPPOConfig
from rl_training.config.schedule import LearningRate as LearningRate
from rl_training.config.schedule import Probability as Probability
from rl_training.config.schedule import Schedule as Schedule
from rl_training.config.schedule import Scheduled as Scheduled
from rl_training.config.schedule import bounded_schedule as bounded_schedule
from rl_training.config.schedule import scheduled_value as scheduled_value
from rl_training.config.train_config import TrainConfig as TrainConfig
from rl_training.config.value_based import C51Config as C51Config
from rl_training.config.value_based import DQNConfig as DQNConfig
from rl_training.config.value_based import DRQNConfig as DRQNConfig
from rl_training.config.value_based import QRDQNConfig as QRDQNConfig
