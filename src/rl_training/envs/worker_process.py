"""What runs in a worker process of `async_vector_env`, and what it exchanges with its owner."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector.utils import CloudpickleWrapper, create_empty_array

from rl_training.envs.vector_envs import EnvFailure, QuickSyncVectorEnv
from rl_training.errors import safe_text

LONGEST_TRACE = 20_000  # characters
# Asks a silent worker where it is stuck; nothing else sends it.
WHERE_SIGNAL = getattr(signal, "SIGRTMAX", None)

_HEADER = struct.Struct("<4sIQ")  # mark, number of the request, bytes that follow
_MARK = b"rlv1"
CLOSE = b"close"
"""In place of a request: the environments are to be closed, and the worker is to end."""
_SHARED_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

Arrays: TypeAlias = "np.ndarray | dict[str, Arrays] | tuple[Arrays, ...]"
Block: TypeAlias = "ctypes.Array[ctypes.c_byte]"


class Garbage(Exception):
    """Bytes that are not a message, or one that cannot be read."""


class StepRequest(NamedTuple):
    """Actions for the environments of a worker; None if they are in the shared memory."""

    actions: np.ndarray | None


class ResetRequest(NamedTuple):
    """A seed for each environment of a worker, and which of them to reset."""

    seeds: list[int | None]
    mask: np.ndarray
    options: dict[str, Any] | None


class CallRequest(NamedTuple):
    """A method of each environment, or an attribute."""

    name: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


class SetRequest(NamedTuple):
    """An attribute of each environment, and its values."""

    name: str
    values: Sequence[object]


Request: TypeAlias = StepRequest | ResetRequest | CallRequest | SetRequest
_SHARED_STEP = StepRequest(None)


class Report(NamedTuple):
    """What a step or a reset leaves to be sent: infos by environment, and observations.

    None for observations in the shared memory.
    """

    infos: list[tuple[int, dict[str, Any]]]
    observations: Sequence[object] | None


class Failure(NamedTuple):
    """What a worker says about an exception: text alone, as the exception may not be sendable."""

    env_index: int
    what: str
    message: str
    trace: str


Answer: TypeAlias = Report | list[object] | Failure | None
"""To a step or reset, to a call, of an error; None if all of it is in the shared memory."""


class Message(NamedTuple):
    """A request or an answer, which bears the number of its request.

    One without a payload is a step, or its answer, that is in the shared memory.
    """

    number: int
    payload: bytes

    def request(self) -> Request:
        """What the owner asks for."""
        return cast("Request", pickle.loads(self.payload)) if self.payload else _SHARED_STEP

    def answer(self) -> Answer:
        """What the worker answers."""
        if not self.payload:
            return None
        try:
            return cast("Answer", pickle.loads(self.payload))  # from a process of our own
        except Exception as error:
            raise Garbage(f"{type(error).__name__}: {safe_text(error)}") from error


def framed(number: int, payload: bytes) -> bytes:
    """The bytes of a message."""
    return _HEADER.pack(_MARK, number, len(payload)) + payload


def parsed(data: bytearray) -> Message | None:
    """The message at the beginning of the data, taken out of it; None if it is not complete."""
    if not _MARK.startswith(bytes(data[:4])):
        raise Garbage(f"found {bytes(data[:40])!r}")
    if len(data) < _HEADER.size:
        return None
    _, number, size = _HEADER.unpack_from(data)
    end = _HEADER.size + size
    if len(data) < end:
        return None
    message = Message(number, bytes(data[_HEADER.size : end]))
    del data[:end]
    return message


class SharedArrays(NamedTuple):
    """What the processes share; None where the space has no place in shared memory."""

    observations: Arrays | None
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    actions: np.ndarray | None
    busy: np.ndarray  # per worker: which of its environments is at work


class ArrayPlan:
    """Where each shared array lies in a block of memory."""

    def __init__(
        self, obs_space: gym.Space[Any], action_space: gym.Space[Any], num_envs: int, workers: int
    ) -> None:
        self.obs_space, self.action_space = obs_space, action_space
        self._num_envs, self._workers = num_envs, workers
        self.bytes = 0
        self.arrays(None)

    def arrays(self, block: Block | None) -> SharedArrays:
        """The arrays in a block; without one, only its size is found."""
        offset = 0

        def place(
            shape: int | tuple[int, ...], dtype: npt.DTypeLike | None = np.float64
        ) -> np.ndarray:
            nonlocal offset
            start = offset
            size = np.dtype(dtype).itemsize * int(np.prod(shape))
            offset += -(-size // 64) * 64  # processes do not write to each other's cache lines
            if block is None:
                return np.empty(shape, dtype)
            array: np.ndarray = np.ndarray(shape, dtype, buffer=memoryview(block), offset=start)
            return array

        n = self._num_envs
        shares_actions = isinstance(self.action_space, _SHARED_SPACES)
        arrays = SharedArrays(
            observations=create_empty_array(self.obs_space, n=n, fn=place)
            if _fits(self.obs_space)
            else None,
            rewards=place(n),
            terminations=place(n, np.bool_),
            truncations=place(n, np.bool_),
            actions=place((n, *(self.action_space.shape or ())), self.action_space.dtype)
            if shares_actions
            else None,
            busy=place(self._workers, np.int64),
        )
        self.bytes = max(offset, 64)
        return arrays


def _fits(space: gym.Space[Any]) -> bool:
    """Whether observations of a space have a fixed place in memory."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.values() if isinstance(space, spaces.Dict) else space
        return all(map(_fits, parts))
    return isinstance(space, _SHARED_SPACES)


def _part(arrays: Arrays, rows: slice) -> Arrays:
    """The rows of every array in a structure of arrays."""
    if isinstance(arrays, dict):
        return {key: _part(value, rows) for key, value in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(_part(value, rows) for value in arrays)
    return arrays[rows]


class Job(NamedTuple):
    """What a worker process is started with."""

    makers: list[CloudpickleWrapper]
    plan: ArrayPlan
    block: Block
    number: int
    first: int
    channel: socket.socket
    trace: socket.socket
    owner: int
    dies_with_owner: bool
    owners_sockets: list[socket.socket]


class _Raised(Exception):
    """An environment of the group raised; holds what to report."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


class _Group(QuickSyncVectorEnv):
    """The environments of one worker, whose answers go to the shared memory."""

    def __init__(self, job: Job, arrays: SharedArrays) -> None:
        makers = job.makers
        rows = slice(job.first, job.first + len(makers))
        busy = arrays.busy[job.number : job.number + 1]
        self.first, self.reported = job.first, list[tuple[int, dict[str, Any]]]()

        def make(place: int) -> gym.Env[Any, Any]:
            busy[0] = place
            env: gym.Env[Any, Any] = makers[place]()
            return env

        super().__init__([partial(make, place) for place in range(len(makers))])
        self._busy = busy
        self._looks_at = () if job.first else self._looks_at
        spaces_of_first = job.plan.obs_space, job.plan.action_space
        if (self.single_observation_space, self.single_action_space) != spaces_of_first:
            raise RuntimeError(
                f"expected all environments to have the spaces {spaces_of_first}, found "
                f"{self.single_observation_space} and {self.single_action_space}"
            )
        self._rows = rows
        self._shared = arrays
        self.shares_observations = arrays.observations is not None
        if arrays.observations is not None:
            self._observations = _part(arrays.observations, rows)

    def answer(self, request: Request) -> Report | list[object] | None:
        """What a request asks for; None if all of it is in the shared memory."""
        if isinstance(request, StepRequest):
            self.share_step(request.actions)
        elif isinstance(request, ResetRequest):
            seeds, mask, options = request
            if not mask.all():
                options = {**(options or {}), "reset_mask": mask}
            self.reset(seed=seeds, options=options)
        elif isinstance(request, CallRequest):
            return self.each(request.name, lambda env, _: _called(env, request))
        else:
            name, values = request
            return self.each(name, lambda env, place: env.set_wrapper_attr(name, values[place]))
        reported, self.reported = self.reported, []
        if self.shares_observations:
            return Report(reported, None) if reported else None
        return Report(reported, self._env_obs)

    def share_step(self, actions: np.ndarray | None) -> None:
        """Step, and write rewards and flags to the shared memory."""
        shared, rows = self._shared, self._rows
        if actions is None:
            assert shared.actions is not None
            # Copied: an environment may keep its action, and the next one overwrites these.
            actions = shared.actions[rows].copy()
        _, rewards, terminations, truncations, _ = self.step(actions)
        shared.rewards[rows] = rewards
        shared.terminations[rows] = terminations
        shared.truncations[rows] = truncations

    def each(self, call: str, do: Callable[[gym.Env[Any, Any], int], object]) -> list[object]:
        """What `do` gives for each environment."""
        results: list[object] = []
        try:
            for place, env in enumerate(self.envs):
                self._busy[0] = place
                results.append(do(env, place))
        except BaseException as error:
            raise self._failure(call, error) from error
        return results

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        # Joined by the owner, in the order of all environments: the first decides on types.
        if env_info:
            self.reported.append((self.first + env_num, env_info))
        return vector_infos

    def _failure(self, call: str, error: BaseException, answer: object = None) -> Exception:
        failed = super()._failure(call, error, answer)
        assert isinstance(failed, EnvFailure)
        index = self.first + self._busy.item()
        self.reported = []
        return _Raised(Failure(index, failed.what, failed.message, _trace_of(error)))


def _called(env: gym.Env[Any, Any], request: CallRequest) -> object:
    attribute = env.get_wrapper_attr(request.name)
    return attribute(*request.args, **request.kwargs) if callable(attribute) else attribute


def work(job: Job) -> None:
    """The life of a worker."""
    for inherited in job.owners_sockets:
        inherited.close()  # the owner's death is to close its end
    _prepare(job)
    arrays = job.plan.arrays(job.block)
    try:
        group = _Group(job, arrays)
    except BaseException as error:
        index = job.first + int(arrays.busy[job.number])
        what = f"raised {type(error).__name__} in its construction"
        _reply(job.channel, 0, Failure(index, what, safe_text(error), _trace_of(error)))
        job.channel.recv(1)  # the owner waits for the other workers before it looks at this answer
        return
    _reply(job.channel, 0, None)
    received = bytearray()
    while True:
        message = parsed(received)
        while message is None:
            chunk = job.channel.recv(1 << 16)
            if not chunk:
                return  # the owner is gone
            received += chunk
            message = parsed(received)
        if message.payload == CLOSE:
            group.close()
            return
        _reply(job.channel, message.number, _answer(group, message))


def _answer(group: _Group, message: Message) -> Answer:
    try:
        return group.answer(message.request())
    except _Raised as raised:
        return raised.failure
    except BaseException as error:
        index = group.first + group._busy.item()
        text = safe_text(error)
        return Failure(index, f"raised {type(error).__name__}", text, _trace_of(error))


def _reply(owner: socket.socket, number: int, answer: Answer) -> None:
    payload = b""
    if answer is not None:
        try:
            payload = pickle.dumps(answer, -1)
        except BaseException as error:
            payload = pickle.dumps(_unsendable(answer, error), -1)
    owner.sendall(framed(number, payload))


def _unsendable(answer: Answer, error: BaseException) -> Failure:
    """That an answer cannot be pickled, with the environment whose info it is."""
    index = 0
    for env_index, info in answer.infos if isinstance(answer, Report) else ():
        index = env_index
        try:
            pickle.dumps(info, -1)
        except BaseException:
            break
    what = "returned something that cannot be sent to the training process"
    return Failure(index, what, f"{type(error).__name__}: {safe_text(error)}", "")


def _prepare(job: Job) -> None:
    """Signals, threads and the end of a worker process."""
    _die_with_owner(job)
    # Signals to the process group reach workers too, but only the owner decides when to stop, after
    # a save that needs them. Programs that an environment starts inherit what is ignored, and
    # should still be stopped by SIGTERM.
    for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(-1)  # it is the owner's
    job.trace.setblocking(False)
    faulthandler.enable(job.trace.fileno(), all_threads=False)
    if WHERE_SIGNAL is not None:
        faulthandler.register(WHERE_SIGNAL, job.trace.fileno(), all_threads=False)
    if "torch" in sys.modules:
        # A fork copies no threads: an environment that computes with torch would wait for them.
        sys.modules["torch"].set_num_threads(1)


def _die_with_owner(job: Job) -> None:
    """End this process when its owner ends, however that happens and whatever is done here."""
    if sys.platform == "linux" and job.dies_with_owner:
        set_death_signal = 1  # PR_SET_PDEATHSIG of prctl.h
        ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != job.owner:  # it died before the call
            os._exit(1)
    else:
        threading.Thread(target=_watch_owner, args=(job.owner,), daemon=True).start()


def _watch_owner(owner: int) -> None:
    while os.getppid() == owner:
        time.sleep(1)
    os._exit(1)


def _trace_of(error: BaseException) -> str:
    """The traceback as text."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:  # one whose attributes raise as well
        text = f"{type(error).__name__} (its traceback cannot be shown)"
    return text.strip()[-LONGEST_TRACE:]
