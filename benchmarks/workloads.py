"""The workloads: plain records of what every library is asked to do.

A workload repeats one cycle: collect some transitions, make some gradient steps. Everything that is
timed or checked is counted in cycles. A new workload is a record here; a new algorithm is also a
subclass here, a count of its matrix products in `limits`, and a function in each of `libraries`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil, lcm
from typing import Any, ClassVar


class BenchmarkError(Exception):
    """A mistake of the user or a failure of a library, told in words."""


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """What all have: an environment, a network, an optimiser, and what is timed of the run."""

    algorithm: ClassVar[str]
    name: str
    title: str
    hidden: tuple[int, ...]
    batch_size: int
    learning_rate: float
    max_grad_norm: float | None
    warm_up: int
    """Transitions before the clock starts; by then every code path has been run."""
    timed: int
    """Transitions on the clock."""
    env_id: str = "CartPole-v1"
    obs_dim: int = 4
    num_actions: int = 2
    """Choices, or numbers of a continuous action."""
    num_envs: int = 1
    gamma: float = 0.99

    @property
    @abstractmethod
    def cycle(self) -> tuple[int, int]:
        """Transitions collected and gradient steps made in one cycle."""

    @property
    def warm_up_updates(self) -> int:
        """Gradient steps before the clock starts."""
        return self.updates_in(self.warm_up)

    @property
    def timed_updates(self) -> int:
        """Gradient steps on the clock."""
        return self.updates_in(self.timed)

    @property
    def budget(self) -> int:
        """Transitions a library is told to run for; the process ends earlier, with the clock."""
        return self.warm_up + self.timed + max(self.timed // 4, 4 * self.cycle[0])

    def updates_in(self, transitions: int) -> int:
        """Gradient steps owed by so many transitions of learning; whole cycles, at least one."""
        per_cycle, updates = self.cycle
        return max(1, transitions // per_cycle) * updates

    def scaled(self, scale: float) -> Workload:
        """The same with another number of timed transitions."""
        return replace(self, timed=max(1, round(self.timed * scale)))

    def to_plain(self) -> dict[str, Any]:
        """What `from_plain` reads, and JSON can hold."""
        return {"algorithm": self.algorithm, **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class ReplayWorkload(Workload):
    """Learning from replay, after some random play."""

    learning_starts: int = 1_000
    buffer_size: int = 100_000

    @property
    def warm_up_updates(self) -> int:
        """Gradient steps before the clock starts; none are owed for the random play."""
        return self.updates_in(self.warm_up - self.learning_starts)


@dataclass(frozen=True, kw_only=True)
class DQNWorkload(ReplayWorkload):
    """Q-learning: ReLU network, Adam, Huber loss, epsilon 0.05 while the clock runs."""

    algorithm: ClassVar[str] = "dqn"
    steps_per_update: int
    target_every: int = 500
    learning_rate: float = 1e-3
    max_grad_norm: float = 10.0
    final_epsilon: float = 0.05
    warm_up: int = 2_000

    @property
    def cycle(self) -> tuple[int, int]:
        """A vector step, or as many as it takes to owe a gradient step."""
        transitions = lcm(self.num_envs, self.steps_per_update)
        return transitions, transitions // self.steps_per_update

    @property
    def epsilon_fraction(self) -> float:
        """Share of the budget over which epsilon falls from 1, so that it ends with the warm-up."""
        return self.warm_up / self.budget

    @property
    def outputs(self) -> int:
        """Outputs of the network."""
        return self.num_actions


@dataclass(frozen=True, kw_only=True)
class QRDQNWorkload(DQNWorkload):
    """The same with quantiles of the return per action, and the quantile Huber loss."""

    algorithm: ClassVar[str] = "qr_dqn"
    num_quantiles: int

    @property
    def outputs(self) -> int:
        """Outputs of the network."""
        return self.num_actions * self.num_quantiles


@dataclass(frozen=True, kw_only=True)
class PPOWorkload(Workload):
    """Clipped policy gradient: separate tanh networks, Adam (epsilon 1e-5), no entropy bonus."""

    algorithm: ClassVar[str] = "ppo"
    num_steps: int = 128
    epochs: int = 4
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    value_coef: float = 0.5
    learning_rate: float = 3e-4
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5

    @property
    def cycle(self) -> tuple[int, int]:
        """A rollout and all epochs on it."""
        rows = self.num_envs * self.num_steps
        return rows, self.epochs * ceil(rows / self.batch_size)


@dataclass(frozen=True, kw_only=True)
class DRQNWorkload(DQNWorkload):
    """The same from sequences: ReLU layers, an LSTM, one linear layer; a batch counts sequences.

    They start from the state they were played in, and all their steps are learned from.
    """

    algorithm: ClassVar[str] = "drqn"
    core_size: int
    sequence_length: int


@dataclass(frozen=True, kw_only=True)
class RecurrentPPOWorkload(PPOWorkload):
    """PPO on sequences: tanh layers and an LSTM shared by policy and value, a linear layer each.

    Rollouts are cut into sequences of equal length that start from the state they were played in.
    A shared LSTM and short sequences are what suits the peers: one has no other, and it and another
    go through a sequence step by step, so that long ones would measure their calls.
    """

    algorithm: ClassVar[str] = "recurrent_ppo"
    core_size: int
    sequence_length: int


@dataclass(frozen=True, kw_only=True)
class SACWorkload(ReplayWorkload):
    """Soft actor-critic: ReLU networks, Adam, nothing clipped, a learned temperature."""

    algorithm: ClassVar[str] = "sac"
    updates_per_step: int = 1
    tau: float = 0.005
    num_critics: int = 2
    policy_delay: int = 1
    env_id: str = "Pendulum-v1"
    obs_dim: int = 3
    num_actions: int = 1
    learning_rate: float = 3e-4
    max_grad_norm: float | None = None
    warm_up: int = 1_200

    @property
    def cycle(self) -> tuple[int, int]:
        """A step and the updates after it."""
        return 1, self.updates_per_step

    @property
    def target_critics(self) -> int:
        """Critics that a target comes from."""
        return self.num_critics

    @property
    def critic_outputs(self) -> int:
        """Numbers each critic gives."""
        return 1


@dataclass(frozen=True, kw_only=True)
class TQCWorkload(SACWorkload):
    """The same with quantiles of the return, of which the highest are left out of targets."""

    algorithm: ClassVar[str] = "tqc"
    num_quantiles: int
    dropped_quantiles: int

    @property
    def critic_outputs(self) -> int:
        """Numbers each critic gives."""
        return self.num_quantiles


@dataclass(frozen=True, kw_only=True)
class REDQWorkload(SACWorkload):
    """SAC with many critics, of which a random few make a target; the actor follows their mean."""

    algorithm: ClassVar[str] = "redq"
    subset_size: int

    @property
    def target_critics(self) -> int:
        """Critics that a target comes from."""
        return self.subset_size


@dataclass(frozen=True, kw_only=True)
class DrQWorkload(SACWorkload):
    """SAC from images, each shifted once, with a fixed temperature; Mnih et al.'s convolutions."""

    algorithm: ClassVar[str] = "drq"
    features: int
    image: tuple[int, int, int] = (9, 84, 84)
    env_id: str = "benchmarks.image_env:BenchmarkImages-v0"
    pad: int = 4
    alpha: float = 0.1
    tau: float = 0.01
    learning_rate: float = 1e-3
    learning_starts: int = 80
    buffer_size: int = 1_000
    warm_up: int = 84

    @property
    def convolutions(self) -> list[tuple[int, int, int]]:
        """Of each convolution: places it looks at, numbers it sees there, and filters."""
        channels, height, width = self.image
        found = []
        for filters, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
            found.append((height * width, channels * size * size, filters))
            channels = filters
        return found


W1 = DQNWorkload(
    name="W1",
    title="DQN, net 256-256, batch 128, an update every 4 steps",
    hidden=(256, 256),
    batch_size=128,
    steps_per_update=4,
    timed=10_000,
)
W1B = replace(
    W1,
    name="W1b",
    title="DQN, net 256-256, batch 128, an update every step",
    steps_per_update=1,
    timed=10_000,
)
W1S = replace(
    W1B,
    name="W1s",
    title="DQN, net 64-64, batch 64, an update every step",
    hidden=(64, 64),
    batch_size=64,
    timed=6_000,
)
W2 = QRDQNWorkload(
    name="W2",
    title="QR-DQN, 51 quantiles, net 256-256, batch 128, an update every 4 steps",
    hidden=(256, 256),
    batch_size=128,
    steps_per_update=4,
    num_quantiles=51,
    timed=10_000,
)
W3 = SACWorkload(
    name="W3",
    title="SAC on Pendulum, net 256-256, batch 256, an update every step",
    hidden=(256, 256),
    batch_size=256,
    timed=1_500,
)
W4 = TQCWorkload(
    name="W4",
    title="TQC on Pendulum, 2 critics x 25 quantiles, net 256-256, batch 256, an update every step",
    hidden=(256, 256),
    batch_size=256,
    num_quantiles=25,
    dropped_quantiles=2,
    timed=1_500,
)
W5 = REDQWorkload(
    name="W5",
    title="REDQ on Pendulum, 10 critics, net 256-256, batch 256, 20 updates every step",
    hidden=(256, 256),
    batch_size=256,
    updates_per_step=20,
    num_critics=10,
    subset_size=2,
    policy_delay=20,
    warm_up=1_010,
    timed=50,
)
W6 = DRQNWorkload(
    name="W6",
    title="DRQN, LSTM 128, batch of 32 sequences of 16, an update every 4 steps",
    hidden=(128,),
    core_size=128,
    sequence_length=16,
    batch_size=32,
    steps_per_update=4,
    timed=2_000,
)
W7 = DrQWorkload(
    name="W7",
    title="DrQ on 9 x 84 x 84 images, Nature CNN, net 256-256, batch 64, an update every step",
    hidden=(256, 256),
    features=256,
    batch_size=64,
    timed=25,
)
W8 = PPOWorkload(
    name="W8",
    title="PPO, net 64-64, 8 envs x 128 steps, 4 epochs, minibatch 256",
    hidden=(64, 64),
    batch_size=256,
    num_envs=8,
    warm_up=2 * 1024,
    timed=60 * 1024,
)
W9 = RecurrentPPOWorkload(
    name="W9",
    title="Recurrent PPO, LSTM 128, 8 envs x 128 steps, 4 epochs, minibatch 256",
    hidden=(64,),
    core_size=128,
    sequence_length=16,
    batch_size=256,
    num_envs=8,
    warm_up=2 * 1024,
    timed=20 * 1024,
)
_ALL = (W1, W1B, W1S, W2, W3, W4, W5, W6, W7, W8, W9)
WORKLOADS: dict[str, Workload] = {w.name: w for w in _ALL}
_KINDS: dict[str, type[Workload]] = {
    kind.algorithm: kind
    for kind in (
        DQNWorkload,
        QRDQNWorkload,
        SACWorkload,
        TQCWorkload,
        REDQWorkload,
        DrQWorkload,
        DRQNWorkload,
        PPOWorkload,
        RecurrentPPOWorkload,
    )
}


def from_plain(plain: Mapping[str, Any]) -> Workload:
    """The workload that `to_plain` gave, also after a way through JSON."""
    values = {key: tuple(x) if isinstance(x, list) else x for key, x in plain.items()}
    return _KINDS[values.pop("algorithm")](**values)


def chosen(names: str, known: Sequence[str], what: str) -> list[str]:
    """The names in a comma-separated list, each of which must be known; none twice."""
    found = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    unknown = [name for name in found if name not in known]
    if unknown:
        raise BenchmarkError(
            f"{what}: expected names from {', '.join(known)}, found {', '.join(unknown)}"
        )
    return found
