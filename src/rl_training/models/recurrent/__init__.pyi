# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.models.recurrent.actor_critic import RecurrentActorCritic as RecurrentActorCritic
from rl_training.models.recurrent.core import RecurrentCore as RecurrentCore
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork as LSTMQNetwork
