"""The errors a user can meet; each says what was expected, what was found and what to do.

RLTrainingError
├── UsageError              the call itself makes no sense (exit code 2)
│   ├── ConfigError         a configuration with mistakes, all of them listed
│   ├── IncompatibleEnv     an environment the algorithm cannot take
│   ├── MissingExtra        an optional package is not installed
│   └── ReplayTooLarge      the replay memory does not fit this machine
├── EnvError                the environment raised, or broke its own contract
├── NonFiniteError          NaN or infinity in observations, rewards, losses or weights
│   └── DivergenceError     ... that learning itself has brought about
├── CheckpointError         a checkpoint is missing, damaged or belongs to something else
│   └── TrustError          it names code of somebody else, and nobody said to trust it
├── RunError                a run directory cannot be used (unfinished, outside its parent, ...)
│   └── RunInUse            another process holds it (exit code 4)
└── SaveError               something could not be written (exit code 3)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RLTrainingError(Exception):
    """Base of every error raised on purpose by this package."""

    exit_code = 1


class UsageError(RLTrainingError):
    """The request cannot be carried out as written."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration with at least one mistake; the message lists all of them."""


class IncompatibleEnv(UsageError):
    """The algorithm does not take this environment's spaces."""


class MissingExtra(UsageError):
    """An optional dependency is needed and not installed."""


class ReplayTooLarge(UsageError):
    """The replay memory asked for is larger than what this machine can give."""


class EnvError(RLTrainingError):
    """The environment raised an exception or broke Gymnasium's contract."""


class NonFiniteError(RLTrainingError):
    """A NaN or an infinity was met; training stops at the first one."""


class DivergenceError(NonFiniteError):
    """A loss, gradient or weight is not finite: what learning itself has brought about."""


class CheckpointError(RLTrainingError):
    """A checkpoint is missing, damaged, or does not fit what it is loaded into."""


class TrustError(CheckpointError):
    """A saved run names code that is not this package's; the caller passes it, or says to trust."""


class RunError(RLTrainingError):
    """A run directory cannot be used."""


class RunInUse(RunError):
    """Another process holds the run directory."""

    exit_code = 4


class SaveError(RLTrainingError):
    """Something could not be written to disk."""

    exit_code = 3


def nearest(word: str, words: Iterable[str], *, count: int = 1) -> list[str]:
    """The most similar of the words, capitals aside, best first; empty if none is close."""
    by_lower = {candidate.lower(): candidate for candidate in words}
    # Comparing takes quadratic time, and no name here has 200 characters.
    close = difflib.get_close_matches(word.lower()[:200], by_lower, n=count)
    return [by_lower[candidate] for candidate in close]


def did_you_mean(word: str, words: Iterable[str], *, count: int = 1) -> str:
    """The end of a message about an unknown word, `; did you mean 'a' or 'b'?`, or nothing."""
    close = [repr(candidate) for candidate in nearest(word, words, count=count)]
    return f"; did you mean {alternatives(close)}?" if close else ""


def alternatives(words: Iterable[str]) -> str:
    """The words as a choice: `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def described(value: object) -> str:
    """An object for a message: a class by its name, anything else by at most 80 characters."""
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)[:80]


def safe_text(error: BaseException) -> str:
    """The message of an exception, also of one that raises when it is shown."""
    try:
        return str(error)
    except BaseException:  # whatever a stranger's __str__ does, its error is to be reported
        return "(its message cannot be shown)"
