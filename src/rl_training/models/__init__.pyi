# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.models.blocks import DuelingMLP as DuelingMLP
from rl_training.models.blocks import EnsembleMLP as EnsembleMLP
from rl_training.models.blocks import MLP as MLP
from rl_training.models.blocks import NoisyMLP as NoisyMLP
from rl_training.models.cnn.drq import CNNDrQModel as CNNDrQModel
from rl_training.models.cnn.drqv2 import CNNDrQv2Model as CNNDrQv2Model
from rl_training.models.cnn.encoders import NatureCNN as NatureCNN
from rl_training.models.cnn.image_networks import ImageActorCritic as ImageActorCritic
from rl_training.models.cnn.image_networks import ImageQNetwork as ImageQNetwork
from rl_training.models.mlp_actor_critic import MLPActorCritic as MLPActorCritic
from rl_training.models.mlp_actor_q_ensemble import MLPActor as MLPActor
from rl_training.models.mlp_actor_q_ensemble import MLPActorQEnsemble as MLPActorQEnsemble
from rl_training.models.mlp_actor_q_ensemble import MLPCritics as MLPCritics
from rl_training.models.mlp_actor_q_ensemble import MLPDeterministicActor as MLPDeterministicActor
from rl_training.models.mlp_categorical_q_network import MLPCategoricalQNetwork as MLPCategoricalQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork as MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork as MLPQRQNetwork
from rl_training.models.recurrent.actor_critic import RecurrentActorCritic as RecurrentActorCritic
from rl_training.models.recurrent.core import RecurrentCore as RecurrentCore
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork as LSTMQNetwork
