# Generated from rl_training/exports.py by docs/generate.py; change the table there.

from rl_training.data.normalization import ObservationNormalizer as ObservationNormalizer
from rl_training.data.normalization import RewardNormalizer as RewardNormalizer
from rl_training.data.observations import NamedParts as NamedParts
from rl_training.data.observations import Part as Part
from rl_training.data.prioritized_replay import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer as RecurrentReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer as ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer as RolloutBuffer
from rl_training.data.types import Batch as Batch
from rl_training.data.types import Clock as Clock
from rl_training.data.types import EnvSpec as EnvSpec
from rl_training.data.types import Rollout as Rollout
from rl_training.data.types import SequenceBatch as SequenceBatch
from rl_training.data.types import Transitions as Transitions
