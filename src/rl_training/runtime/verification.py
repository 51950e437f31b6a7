"""Whether a resumed run may call itself exact: the stretch before its checkpoint, replayed.

The environments are built once more, put where the stretch began, and given the recorded actions.
They must see, earn and end what they did then, to the bit.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from rl_training.algorithms.base import ActResult
from rl_training.data.types import PolicyState
from rl_training.envs.snapshots import probe
from rl_training.errors import CheckpointError, EnvError, NonFiniteError
from rl_training.runtime.collector import Collector
from rl_training.runtime.seeding import restore_global_generators, seed_global_generators
from rl_training.runtime.transcript import Answers, Start, parse_transcript
from rl_training.storage.checkpoints import Checkpoint, fitting
from rl_training.storage.checks import check_bounds, saved_array

if TYPE_CHECKING:
    from rl_training.runtime.training_run import TrainingRun

logger = logging.getLogger("rl_training")

REPLAY_SECONDS = 5.0


class Verdict(NamedTuple):
    """What a replay found: `verified`, `differs`, or `none` if there was nothing to replay."""

    verdict: Literal["verified", "differs", "none"]
    detail: str


def verify_resume(run: TrainingRun, checkpoint: Checkpoint) -> Verdict:
    """Replay the transcript of a checkpoint in new environments, for a few seconds at most.

    The run, which is to be restored after this, and the global generators are left as they are.
    """
    if run.level == "statistical":
        return Verdict("none", "the environments claim no exactness")
    if not checkpoint.has("transcript"):
        return Verdict("none", "the checkpoint holds no transcript")
    tree = checkpoint.read("transcript")
    with fitting(checkpoint, "transcript"):
        start, recorded = parse_transcript(tree, run.collector.num_envs)
        _check_fits(run, start, recorded)
    with probe.undisturbed(), ExitStack() as opened:
        try:
            replayed = _replay(run, start, recorded, opened)
        except (CheckpointError, EnvError, NonFiniteError) as error:
            return Verdict("differs", f"the environments could not be put back: {error}")
        except Exception as error:  # a forged transcript can fail anywhere
            raise CheckpointError(
                f"{checkpoint.path}: the transcript cannot be replayed ({error!r}); resume from "
                "another checkpoint of the run"
            ) from error
    difference = recorded.first_difference(replayed)
    if difference:
        return Verdict("differs", f"replayed from step {start.env_steps}, {difference}")
    ends = int(np.count_nonzero(replayed.ends))
    return Verdict(
        "verified",
        f"{replayed.rewards.size} transitions from step {start.env_steps} with "
        f"{probe.ends_of_episodes(ends)} were replayed to the bit",
    )


def _check_fits(run: TrainingRun, start: Start, recorded: Answers) -> None:
    """Refuse what cannot have been seen or done in the run's environments."""
    obs, resetting = run.collector.position()
    saved_array(start._asdict(), "obs", obs)
    saved_array(start._asdict(), "resetting", resetting)
    spec, actions = run.agent.adapter.spec, recorded.actions
    is_choice = actions.dtype.kind != "f"
    if actions.shape[2:] != spec.action_shape or is_choice == (spec.last_choice is None):
        raise CheckpointError(f"actions: expected those of {spec.env_id}, found others")
    if spec.last_choice is not None:
        check_bounds("actions", actions, low=0, high=spec.last_choice)


def _replay(run: TrainingRun, start: Start, recorded: Answers, opened: ExitStack) -> Answers:
    seed_global_generators(start.build_seed)
    envs = run.make_envs()
    opened.callback(probe.close, envs)
    collector = Collector(envs, run.agent.adapter)
    collector.reset(start.seeds, ())
    if start.envs is not None:
        collector.load_envs(start.envs)
        collector.stand_at(start.obs, start.resetting)
    restore_global_generators(start.generators)
    collector.transcript.begin(start)
    give_up = time.monotonic() + REPLAY_SECONDS
    for action in recorded.actions:
        collector.step(_Scripted(action))
        if time.monotonic() > give_up:
            break
    answers = collector.answers()
    assert answers is not None
    return answers


class _Scripted:
    """Acts as recorded."""

    def __init__(self, action: np.ndarray) -> None:
        self._result = ActResult(action)

    def __call__(
        self,
        obs: np.ndarray,  # noqa: ARG002
        state: PolicyState,  # noqa: ARG002
        first: np.ndarray,  # noqa: ARG002
        legal: np.ndarray | None = None,  # noqa: ARG002
        /,
    ) -> Any:
        """The action, whatever is seen."""
        return self._result
