# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.models.cnn.drq import CNNDrQModel as CNNDrQModel
from rl_training.models.cnn.drqv2 import CNNDrQv2Model as CNNDrQv2Model
from rl_training.models.cnn.encoders import NatureCNN as NatureCNN
from rl_training.models.cnn.image_networks import ImageActorCritic as ImageActorCritic
from rl_training.models.cnn.image_networks import ImageQNetwork as ImageQNetwork
