"""The part of an algorithm's state that acting needs.

This is the weights and their moving average. Optimisers, target networks, generators and counters
serve only to continue learning, and are several times as large.
"""

from __future__ import annotations

from torch import Tensor, nn

from rl_training.storage.state import State, Stateful


def policy_state(live: Stateful) -> State:
    """The state of an algorithm without what only learning needs."""
    state = live.state_dict()
    return {
        key: policy_state(part) if isinstance(part, Stateful) else state[key]
        for key, part in live.state_parts().items()
        if _acts(part)
    }


def completed(live: Stateful, saved: object) -> object:
    """A state, with the parts that `policy_state` leaves out taken from a fresh algorithm."""
    if not isinstance(saved, dict):
        return saved
    fresh, state = live.state_dict(), dict(saved)
    for key, part in live.state_parts().items():
        if not _acts(part):
            state.setdefault(key, fresh[key])
        elif isinstance(part, Stateful) and key in state:
            state[key] = completed(part, state[key])
    return state


def _acts(part: object) -> bool:
    """Whether acting needs a part; an optional part that is None is kept as None."""
    if isinstance(part, Stateful):
        inner = (inner for inner in part.state_parts().values() if inner is not None)
        return part.acts and any(map(_acts, inner))
    return part is None or isinstance(part, nn.Module | Tensor)
