"""Environments in worker processes, a group of them in each, that cannot hang the run.

Observations, rewards, flags and actions are in memory that the processes share; a socket per worker
carries requests, infos and whatever else does not fit there. Nothing here waits without a limit: a
worker that dies is noticed at once, one that does not answer after `timeout` seconds.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import (
    CloudpickleWrapper,
    batch_space,
    clear_mpi_env_vars,
    concatenate,
    create_empty_array,
)

from rl_training.envs.vector_envs import (
    EnvFailure,
    QuickSyncVectorEnv,
    SeedRecord,
    reset_plan,
)
from rl_training.errors import EnvError, safe_text

DEFAULT_TIMEOUT = 600.0
CLOSE_SECONDS = 3.0
"""How long environments may take to close before their worker is killed."""

_CHECK_SECONDS = 0.25  # between two looks at whether a silent worker is alive
_LONGEST_TRACE = 20_000  # characters
_SHARED_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)

_HEADER = struct.Struct("<4sIIQ")  # mark, number of the request, kind, bytes that follow
_MARK = b"rlv1"
_READY, _STEP, _RESET, _CALL, _SET, _CLOSE, _ANSWER, _FAILURE = range(8)

# Asks a silent worker where it is; nobody else sends it.
_WHERE_SIGNAL = getattr(signal, "SIGRTMAX", None)


class QuickAsyncVectorEnv(SeedRecord, VectorEnv[Any, Any, Any]):
    """As `QuickSyncVectorEnv`, with the environments in as many processes as there are cores.

    Answers are the same to the bit. Observations come in arrays that the next step overwrites.
    Whatever goes wrong in an environment or a worker is an `EnvFailure`, within 2 seconds of a
    worker's death, and after `timeout` seconds without an answer. `close` takes at most 5 seconds.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gym.Env[Any, Any]]],
        *,
        timeout: float = DEFAULT_TIMEOUT,
        workers: int | None = None,
    ) -> None:
        self.env_fns = env_fns
        self.num_envs = len(env_fns)
        self.autoreset_mode = AutoresetMode.SAME_STEP
        self._timeout = timeout
        self._owner = os.getpid()
        self._broken = ""
        self._number = 0
        self._workers: list[_Worker] = []
        # Before multiprocessing's own, which would wait for a worker that is stuck.
        self._at_exit = partial(_end, self._workers, self._owner, 1.0)
        atexit.register(self._at_exit)
        self._begin_record(self.num_envs)
        self._describe(env_fns[0]())
        context = _context()
        count = min(self.num_envs, workers or _cores())
        plan = _Plan(self.single_observation_space, self.single_action_space, self.num_envs, count)
        block = context.RawArray(ctypes.c_byte, plan.bytes)
        self._shared = plan.arrays(block)
        self._env_obs: list[Any] = [None] * self.num_envs
        try:
            for indices in np.array_split(np.arange(self.num_envs), count):
                self._workers.append(_Worker(context, self, plan, block, indices.tolist()))
            self._poller = select.poll()
            self._by_descriptor = {worker.socket.fileno(): worker for worker in self._workers}
            for descriptor in self._by_descriptor:
                self._poller.register(descriptor, select.POLLIN)
            self._exchange(_READY, [b""] * count, "its construction", sent=True)
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[Any]:
        """The worker processes."""
        return [worker.process for worker in self._workers]

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes, in all environments or in those of `options["reset_mask"]`."""
        plan = reset_plan(self.num_envs, seed, options)
        self._note_seeds(plan.seeds)
        payloads: list[bytes | None] = []
        for worker in self._workers:
            rows = worker.rows
            asked = plan.seeds[rows], plan.mask[rows], plan.options
            payloads.append(pickle.dumps(asked, -1) if plan.mask[rows].any() else None)
        infos = self._take(self._exchange(_RESET, payloads, "reset"))
        return self._observations(), infos

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment, and reset those whose episode ended."""
        self._steps += 1
        shared = self._shared
        infos = self._take(self._exchange(_STEP, self._share_actions(actions), "step"))
        copies = (x.copy() for x in (shared.rewards, shared.terminations, shared.truncations))
        return self._observations(), *copies, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What the method of each environment returns, or the value of its attribute."""
        request = pickle.dumps((name, args, kwargs), -1)
        answers = self._exchange(_CALL, [request] * len(self._workers), name)
        return tuple(result for answer in answers for result in answer)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set the attribute of each environment, to one value or to one for each."""
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(f"{name}: expected {self.num_envs} values, found {len(values)}")
        requests = [pickle.dumps((name, values[worker.rows]), -1) for worker in self._workers]
        self._exchange(_SET, requests, name)

    def render(self) -> tuple[Any, ...]:
        """The image of each environment."""
        return self.call("render")

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002 - the interface is Gymnasium's
        """Close the environments and end the workers, by force if they do not end themselves."""
        _end(self._workers, self._owner, min(self._timeout, CLOSE_SECONDS))
        atexit.unregister(self._at_exit)

    def _describe(self, env: gym.Env[Any, Any]) -> None:
        """Take spaces and metadata from an environment that is only built for them."""
        self.metadata = {**env.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = env.render_mode
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.observation_space = batch_space(env.observation_space, self.num_envs)
        self.action_space = batch_space(env.action_space, self.num_envs)
        env.close()

    def _share_actions(self, actions: Any) -> list[bytes | None]:
        """Write actions to the shared memory; where they are none for it, what to send instead."""
        if len(actions) != self.num_envs:
            raise IndexError(f"expected {self.num_envs} actions, found {len(actions)}")
        shared, given = self._shared.actions, getattr(actions, "dtype", None)
        if shared is not None and (given, np.shape(actions)) == (shared.dtype, shared.shape):
            shared[...] = actions
            return [b""] * len(self._workers)
        return [pickle.dumps(actions[worker.rows], -1) for worker in self._workers]

    def _take(self, answers: list[Any]) -> dict[str, Any]:
        """The infos of all environments as one; observations that came along are kept."""
        infos: dict[str, Any] = {}
        for worker, answer in zip(self._workers, answers, strict=True):
            if answer is None:
                continue
            reported, observations = answer
            for index, info in reported:
                infos = self._add_info(infos, info, index)
            if observations is not None:
                self._env_obs[worker.rows] = observations
        return infos

    def _observations(self) -> Any:
        if self._shared.observations is not None:
            return self._shared.observations
        space = self.single_observation_space
        empty: Any = create_empty_array(space, n=self.num_envs)
        return concatenate(space, self._env_obs, empty)

    # Requests and answers.

    def _exchange(
        self, kind: int, payloads: Sequence[bytes | None], call: str, *, sent: bool = False
    ) -> list[Any]:
        """Ask the workers, all but those with None, and wait for their answers.

        Among several environments that raise, the first is reported, as without workers.
        """
        if self.closed:
            raise ClosedEnvironmentError(f"{call}: the vector environment is closed")
        if self._broken:
            raise EnvError(f"the vector environment is of no more use: {self._broken}")
        self._broken = f"an earlier call of {call} was not finished"
        self._number = 0 if sent else (self._number + 1) % 2**32
        pending: list[_Worker] = []
        for worker, payload in zip(self._workers, payloads, strict=True):
            if payload is not None:
                if not sent and not worker.send(kind, self._number, payload, self._timeout):
                    raise self._lost(worker, call)
                pending.append(worker)
        answers = self._wait(pending, call)
        if len(answers) == len(pending):
            self._broken = ""
        found = [answers.get(worker) for worker in self._workers]
        for failure in found:
            if isinstance(failure, _Failure):
                raise self._failure(*failure)
        return found

    def _wait(self, pending: list[_Worker], call: str) -> dict[_Worker, Any]:
        answers: dict[_Worker, Any] = {}
        deadline = time.monotonic() + self._timeout
        while len(answers) < len(pending):
            left = deadline - time.monotonic()
            if left <= 0 and any(isinstance(answer, _Failure) for answer in answers.values()):
                break
            if left <= 0:
                silent = next(worker for worker in pending if worker not in answers)
                raise self._silent(silent, call)
            ready = self._poller.poll(1e3 * min(left, _CHECK_SECONDS))
            for descriptor, _ in ready:
                worker = self._by_descriptor[descriptor]
                try:
                    if (message := worker.receive(self._number)) is None:
                        continue
                    answers[worker] = message.content()
                except _Lost:
                    raise self._lost(worker, call) from None
                except _Garbage as error:
                    raise self._wrong_answer(worker, call, error) from error
                if isinstance(answers[worker], _Failure):
                    # The others get a moment to finish, so that the first of them is reported.
                    deadline = min(deadline, time.monotonic() + 1)
            if not ready and (dead := [w for w in pending if not w.process.is_alive()]):
                raise self._lost(dead[0], call)  # something it started keeps its socket open
        return answers

    def _failure(self, index: int, what: str, message: str = "", trace: str = "") -> EnvFailure:
        return EnvFailure(what, message, index=index, since=self._since(index), trace=trace)

    def _lost(self, worker: _Worker, call: str) -> EnvFailure:
        self._broken = "a worker process has died"
        how = worker.end()
        what = f"lost its worker process in {call}"
        return self._failure(self._at_work(worker), what, f"it {how}", worker.trace())

    def _silent(self, worker: _Worker, call: str) -> EnvFailure:
        self._broken = "a worker process did not answer"
        trace = worker.ask_where()
        worker.process.kill()
        worker.end()
        what = f"did not return from {call} within {self._timeout:g} s (env_timeout)"
        return self._failure(self._at_work(worker), what, trace=trace)

    def _wrong_answer(self, worker: _Worker, call: str, error: Exception) -> EnvFailure:
        self._broken = "a worker process answered nonsense"
        worker.process.kill()
        worker.end()
        what = f"disturbed its worker process in {call}, which sent something else than an answer"
        return self._failure(self._at_work(worker), what, safe_text(error))

    def _at_work(self, worker: _Worker) -> int:
        """The environment that a worker was busy with, as far as its memory can be trusted."""
        index = int(self._shared.busy[worker.number])
        return worker.indices[min(max(index, 0), len(worker.indices) - 1)]


class _Lost(Exception):
    """The other end of a socket is closed."""


class _Garbage(Exception):
    """Bytes that are not a message, or one that cannot be read."""


class _Failure(NamedTuple):
    """What a worker says about an exception: text alone, as the exception may not be sendable."""

    env_index: int
    what: str
    message: str
    trace: str


class _Message(NamedTuple):
    number: int
    kind: int
    payload: bytes

    def content(self) -> Any:
        if not self.payload:
            return None
        try:
            content = pickle.loads(self.payload)  # from a process of our own
        except Exception as error:
            raise _Garbage(f"{type(error).__name__}: {safe_text(error)}") from error
        return _Failure(*content) if self.kind == _FAILURE else content


def _framed(kind: int, number: int, payload: bytes) -> bytes:
    return _HEADER.pack(_MARK, number, kind, len(payload)) + payload


def _parsed(data: bytearray) -> _Message | None:
    """The message at the beginning of the data, taken out of it; None if it is not complete."""
    if not _MARK.startswith(bytes(data[:4])):
        raise _Garbage(f"found {bytes(data[:40])!r}")
    if len(data) < _HEADER.size:
        return None
    _, number, kind, size = _HEADER.unpack_from(data)
    end = _HEADER.size + size
    if len(data) < end:
        return None
    message = _Message(number, kind, bytes(data[_HEADER.size : end]))
    del data[:end]
    return message


class _Arrays(NamedTuple):
    """What the processes share; None where the space has no place in shared memory."""

    observations: Any
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray
    actions: np.ndarray | None
    busy: np.ndarray  # per worker: which of its environments is at work


class _Plan:
    """Where each shared array lies in a block of memory."""

    def __init__(
        self, obs_space: gym.Space[Any], action_space: gym.Space[Any], num_envs: int, workers: int
    ) -> None:
        self.obs_space, self.action_space = obs_space, action_space
        self._num_envs, self._workers = num_envs, workers
        self.bytes = 0
        self.arrays(None)

    def arrays(self, block: Any) -> _Arrays:
        """The arrays in a block; without one, only its size is found."""
        offset = 0

        def place(shape: int | tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
            nonlocal offset
            start = offset
            size = np.dtype(dtype).itemsize * int(np.prod(shape))
            offset += -(-size // 64) * 64  # processes do not write to each other's cache lines
            if block is None:
                return np.empty(shape, dtype)
            array: np.ndarray = np.ndarray(shape, dtype, buffer=block, offset=start)
            return array

        n = self._num_envs
        shares_actions = isinstance(self.action_space, _SHARED_SPACES)
        arrays = _Arrays(
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


def _part(arrays: Any, rows: slice) -> Any:
    """The rows of every array in a structure of arrays."""
    if isinstance(arrays, dict):
        return {key: _part(value, rows) for key, value in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(_part(value, rows) for value in arrays)
    return arrays[rows]


class _Worker:
    """A worker process as its owner sees it."""

    def __init__(
        self,
        context: Any,
        venv: QuickAsyncVectorEnv,
        plan: _Plan,
        block: Any,
        indices: list[int],
    ) -> None:
        self.number, self.indices = len(venv._workers), indices
        self.rows = slice(indices[0], indices[-1] + 1)
        self.socket, theirs = socket.socketpair()
        self._trace, trace = socket.socketpair()
        self._received = bytearray()
        for end in (self.socket, self._trace):
            end.setblocking(False)
        job = _Job(
            makers=[CloudpickleWrapper(venv.env_fns[index]) for index in indices],
            plan=plan,
            block=block,
            number=self.number,
            first=indices[0],
            channel=theirs,
            trace=trace,
            owner=os.getpid(),
            # The kernel's signal comes when the thread ends that started a process.
            dies_with_owner=threading.get_native_id() == os.getpid(),
            owners_sockets=[self.socket, self._trace]
            + [end for worker in venv._workers for end in (worker.socket, worker._trace)]
            if context.get_start_method() == "fork"
            else [],
        )
        name = f"rl-training-worker-{self.number}"
        self.process = context.Process(target=_work, args=(job,), name=name, daemon=True)
        with clear_mpi_env_vars(), warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads, such as torch's; see `_prepare`.
            warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
            self.process.start()
        theirs.close()
        trace.close()

    def send(self, kind: int, number: int, payload: bytes, timeout: float) -> bool:
        """Send a request; False if the worker is gone or takes nothing any more."""
        data = memoryview(_framed(kind, number, payload))
        deadline = time.monotonic() + timeout
        try:
            while data:
                try:
                    data = data[self.socket.send(data) :]
                except BlockingIOError:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        return False
                    select.select([], [self.socket], [], min(left, _CHECK_SECONDS))
        except OSError:
            return False
        return True

    def receive(self, number: int) -> _Message | None:
        """The answer, if all of it has arrived; _Lost if the worker has closed its end."""
        try:
            while chunk := self.socket.recv(1 << 16):
                self._received += chunk
                if len(chunk) < 1 << 16:
                    break
            else:
                raise _Lost
        except BlockingIOError:
            pass
        except OSError:
            raise _Lost from None
        message = _parsed(self._received)
        if message is not None and (message.number != number or self._received):
            raise _Garbage("it was not asked for")
        return message

    def ask_where(self) -> str:
        """The stack of a worker that does not answer, as text; empty if it cannot be had."""
        if _WHERE_SIGNAL is not None and self.process.is_alive():
            with suppress(OSError):
                os.kill(self.process.pid, _WHERE_SIGNAL)
                select.select([self._trace], [], [], 0.5)
                time.sleep(0.02)  # the lines arrive one by one
        return self.trace()

    def trace(self) -> str:
        """What faulthandler wrote."""
        with suppress(OSError):
            return self._trace.recv(_LONGEST_TRACE).decode(errors="replace").strip()
        return ""

    def end(self) -> str:
        """Make sure that the process has ended; says how it came to that."""
        self.process.join(0.5)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            self.process.join(1)
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = ", perhaps by the system for want of memory" if -code == signal.SIGKILL else ""
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-code).name}{hint}"
        return f"was ended by signal {-code}"

    def close(self) -> None:
        """Release the sockets."""
        self.socket.close()
        self._trace.close()


def _end(workers: list[_Worker], owner: int, grace: float) -> None:
    """Have the workers close their environments, and kill those that need longer than `grace`."""
    if os.getpid() != owner:
        return  # a fork of the owner; the workers are not its children
    for worker in workers:
        with suppress(OSError):
            worker.socket.send(_framed(_CLOSE, 0, b""))
    deadline = time.monotonic() + grace
    for worker in workers:
        while worker.process.is_alive() and (left := deadline - time.monotonic()) > 0:
            worker.process.join(min(left, _CHECK_SECONDS))
    for worker in workers:
        if worker.process.is_alive():
            worker.process.kill()
    deadline = time.monotonic() + 1
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.close()


def _context() -> Any:
    """Fork on Linux, elsewhere the system's default.

    A fork inherits what no other way can pass on: environments registered by the script, closures
    over anything, and the script itself, which a spawned process would run again.
    """
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# What runs in a worker.


class _Job(NamedTuple):
    """What a worker process is started with."""

    makers: list[CloudpickleWrapper]
    plan: _Plan
    block: Any
    number: int
    first: int
    channel: socket.socket
    trace: socket.socket
    owner: int
    dies_with_owner: bool
    owners_sockets: list[socket.socket]


class _Raised(Exception):
    """An environment of the group raised; holds what to report."""

    def __init__(self, failure: _Failure) -> None:
        super().__init__(failure.what)
        self.failure = failure


class _Group(QuickSyncVectorEnv):
    """The environments of one worker, whose answers go to the shared memory."""

    def __init__(self, job: _Job, arrays: _Arrays) -> None:
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
        spaces_of_first = job.plan.obs_space, job.plan.action_space
        if (self.single_observation_space, self.single_action_space) != spaces_of_first:
            raise RuntimeError(
                f"expected all environments to have the spaces {spaces_of_first}, found "
                f"{self.single_observation_space} and {self.single_action_space}"
            )
        self._rows = rows
        self._shared = arrays
        self.shares_observations = arrays.observations is not None
        if self.shares_observations:
            self._observations = _part(arrays.observations, rows)

    def answer(self, kind: int, payload: bytes) -> Any:
        """What a request asks for; None if all of it is in the shared memory."""
        request: Any = pickle.loads(payload) if payload else self._shared.actions
        if kind == _STEP:
            # Copied: an environment may keep its action, and the next one overwrites these.
            self.share_step(request if payload else request[self._rows].copy())
        elif kind == _RESET:
            seeds, mask, options = request
            if not mask.all():
                options = {**options, "reset_mask": mask}
            self.reset(seed=seeds, options=options)
        elif kind == _CALL:
            name, args, kwargs = request
            return self.each(name, lambda env, _: _called(env, name, args, kwargs))
        else:
            name, values = request
            return self.each(name, lambda env, place: env.set_wrapper_attr(name, values[place]))
        reported, self.reported = self.reported, []
        if self.shares_observations:
            return (reported, None) if reported else None
        return reported, self._env_obs

    def share_step(self, actions: Any) -> None:
        """Step, and write rewards and flags to the shared memory."""
        shared, rows = self._shared, self._rows
        _, rewards, terminations, truncations, _ = self.step(actions)
        shared.rewards[rows] = rewards
        shared.terminations[rows] = terminations
        shared.truncations[rows] = truncations

    def each(self, call: str, do: Callable[[gym.Env[Any, Any], int], Any]) -> list[Any]:
        """What `do` gives for each environment."""
        results = []
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
        return _Raised(_Failure(index, failed.what, failed.message, _trace_of(error)))


def _called(env: gym.Env[Any, Any], name: str, args: Any, kwargs: Any) -> Any:
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def _work(job: _Job) -> None:
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
        _reply(job.channel, 0, _Failure(index, what, safe_text(error), _trace_of(error)))
        job.channel.recv(1)  # the owner waits for the other workers before it looks at this answer
        return
    _reply(job.channel, 0, None)
    received = bytearray()
    while True:
        message = _parsed(received)
        while message is None:
            chunk = job.channel.recv(1 << 16)
            if not chunk:
                return  # the owner is gone
            received += chunk
            message = _parsed(received)
        if message.kind == _CLOSE:
            group.close()
            return
        _reply(job.channel, message.number, _answer(group, message))


def _answer(group: _Group, message: _Message) -> Any:
    try:
        return group.answer(message.kind, message.payload)
    except _Raised as raised:
        return raised.failure
    except BaseException as error:
        index = group.first + group._busy.item()
        text = safe_text(error)
        return _Failure(index, f"raised {type(error).__name__}", text, _trace_of(error))


def _reply(owner: socket.socket, number: int, answer: Any) -> None:
    kind, payload = (_FAILURE if isinstance(answer, _Failure) else _ANSWER), b""
    if answer is not None:
        try:
            payload = pickle.dumps(tuple(answer) if kind == _FAILURE else answer, -1)
        except BaseException as error:
            kind, payload = _FAILURE, pickle.dumps(tuple(_unsendable(answer, error)), -1)
    owner.sendall(_framed(kind, number, payload))


def _unsendable(answer: Any, error: BaseException) -> _Failure:
    """That an answer cannot be pickled, with the environment whose info it is."""
    index = 0
    for env_index, info in answer[0] if isinstance(answer, tuple) else ():
        index = env_index
        try:
            pickle.dumps(info, -1)
        except BaseException:
            break
    what = "returned something that cannot be sent to the training process"
    return _Failure(index, what, f"{type(error).__name__}: {safe_text(error)}", "")


def _prepare(job: _Job) -> None:
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
    if _WHERE_SIGNAL is not None:
        faulthandler.register(_WHERE_SIGNAL, job.trace.fileno(), all_threads=False)
    if "torch" in sys.modules:
        # A fork copies no threads: an environment that computes with torch would wait for them.
        sys.modules["torch"].set_num_threads(1)


def _die_with_owner(job: _Job) -> None:
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
    return text.strip()[-_LONGEST_TRACE:]
