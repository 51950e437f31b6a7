# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.envs.factory import make_env as make_env
from rl_training.envs.factory import make_vector_env as make_vector_env
from rl_training.envs.masks import ActionMaskInfo as ActionMaskInfo
from rl_training.envs.masks import HideActionMask as HideActionMask
from rl_training.envs.pixels import PixelObservation as PixelObservation
from rl_training.envs.pixels import stacked_frames as stacked_frames
from rl_training.envs.point_pixels import PointPixels as PointPixels
from rl_training.envs.point_pixels import PointPixelsTarget as PointPixelsTarget
from rl_training.envs.spaces import SpaceAdapter as SpaceAdapter
from rl_training.envs.wrappers import MaskVelocity as MaskVelocity
from rl_training.envs.wrappers import PreviousActionReward as PreviousActionReward
