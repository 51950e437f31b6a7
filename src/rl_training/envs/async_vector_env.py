"""Environments in worker processes, a group of them in each, that cannot hang the run.

Observations, rewards, flags and actions are in memory that the processes share; a socket per worker
carries requests, infos and whatever else does not fit there. Nothing here waits without a limit: a
worker that dies is noticed at once, one that does not answer after `timeout` seconds. What runs in
a worker is in `worker_process`.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import (
    CloudpickleWrapper,
    batch_space,
    clear_mpi_env_vars,
    concatenate,
    create_empty_array,
)

from rl_training.envs.vector_envs import EnvFailure, SeedRecord, reset_plan
from rl_training.envs.worker_process import (
    CLOSE,
    LONGEST_TRACE,
    WHERE_SIGNAL,
    Answer,
    ArrayPlan,
    Block,
    CallRequest,
    Failure,
    Garbage,
    Job,
    Message,
    Report,
    Request,
    ResetRequest,
    SetRequest,
    StepRequest,
    framed,
    parsed,
    work,
)
from rl_training.errors import EnvError, safe_text

DEFAULT_TIMEOUT = 600.0
CLOSE_SECONDS = 3.0
"""How long environments may take to close before their worker is killed."""

_CHECK_SECONDS = 0.25  # between two looks at whether a silent worker is alive


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
        spaces = self.single_observation_space, self.single_action_space
        plan = ArrayPlan(*spaces, self.num_envs, count)
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
            self._exchange([b""] * count, "its construction", sent=True)
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
            request = ResetRequest(plan.seeds[rows], plan.mask[rows], plan.options)
            payloads.append(_payload(request) if request.mask.any() else None)
        infos = self._take(self._exchange(payloads, "reset"))
        return self._observations(), infos

    def step(self, actions: np.ndarray) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment, and reset those whose episode ended."""
        self._steps += 1
        shared = self._shared
        infos = self._take(self._exchange(self._share_actions(actions), "step"))
        copies = (x.copy() for x in (shared.rewards, shared.terminations, shared.truncations))
        return self._observations(), *copies, infos

    def call(self, name: str, *args: object, **kwargs: object) -> tuple[Any, ...]:
        """What the method of each environment returns, or the value of its attribute."""
        payload = _payload(CallRequest(name, args, kwargs))
        answers = self._exchange([payload] * len(self._workers), name)
        return tuple(result for answer in answers for result in answer or ())

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: object) -> None:
        """Set the attribute of each environment, to one value or to one for each."""
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"{name}: expected {self.num_envs} values, found {len(each)}")
        requests = [SetRequest(name, each[worker.rows]) for worker in self._workers]
        self._exchange([_payload(request) for request in requests], name)

    def render(self) -> tuple[Any, ...]:
        """The image of each environment."""
        return self.call("render")

    def close_extras(self, **kwargs: object) -> None:  # noqa: ARG002 - the interface is Gymnasium's
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

    def _share_actions(self, actions: np.ndarray) -> list[bytes | None]:
        """Write actions to the shared memory; where they are none for it, what to send instead."""
        if len(actions) != self.num_envs:
            raise IndexError(f"expected {self.num_envs} actions, found {len(actions)}")
        shared, given = self._shared.actions, getattr(actions, "dtype", None)
        if shared is not None and (given, np.shape(actions)) == (shared.dtype, shared.shape):
            shared[...] = actions
            return [b""] * len(self._workers)
        return [_payload(StepRequest(actions[worker.rows])) for worker in self._workers]

    def _take(self, answers: list[Report | list[object] | None]) -> dict[str, Any]:
        """The infos of all environments as one; observations that came along are kept."""
        infos: dict[str, Any] = {}
        for worker, answer in zip(self._workers, answers, strict=True):
            if not isinstance(answer, Report):
                continue
            for index, info in answer.infos:
                infos = self._add_info(infos, info, index)
            if answer.observations is not None:
                self._env_obs[worker.rows] = answer.observations
        return infos

    def _observations(self) -> Any:
        if self._shared.observations is not None:
            return self._shared.observations
        space = self.single_observation_space
        empty: Any = create_empty_array(space, n=self.num_envs)
        return concatenate(space, self._env_obs, empty)

    # Requests and answers.

    def _exchange(
        self, payloads: Sequence[bytes | None], call: str, *, sent: bool = False
    ) -> list[Report | list[object] | None]:
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
                if not sent and not worker.send(self._number, payload, self._timeout):
                    raise self._lost(worker, call)
                pending.append(worker)
        answers = self._wait(pending, call)
        if len(answers) == len(pending):
            self._broken = ""
        found: list[Report | list[object] | None] = []
        for worker in self._workers:
            answer = answers.get(worker)
            if isinstance(answer, Failure):
                raise self._failure(*answer)
            found.append(answer)
        return found

    def _wait(self, pending: list[_Worker], call: str) -> dict[_Worker, Answer]:
        answers: dict[_Worker, Answer] = {}
        deadline = time.monotonic() + self._timeout
        while len(answers) < len(pending):
            left = deadline - time.monotonic()
            if left <= 0 and any(isinstance(answer, Failure) for answer in answers.values()):
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
                    answers[worker] = message.answer()
                except _Lost:
                    raise self._lost(worker, call) from None
                except Garbage as error:
                    raise self._wrong_answer(worker, call, error) from error
                if isinstance(answers[worker], Failure):
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


class _Worker:
    """A worker process as its owner sees it."""

    def __init__(
        self,
        context: Any,
        venv: QuickAsyncVectorEnv,
        plan: ArrayPlan,
        block: Block,
        indices: list[int],
    ) -> None:
        self.number, self.indices = len(venv._workers), indices
        self.rows = slice(indices[0], indices[-1] + 1)
        self.socket, theirs = socket.socketpair()
        self._trace, trace = socket.socketpair()
        self._received = bytearray()
        for end in (self.socket, self._trace):
            end.setblocking(False)
        job = Job(
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
        self.process = context.Process(target=work, args=(job,), name=name, daemon=True)
        with clear_mpi_env_vars(), warnings.catch_warnings():
            # Python 3.12 warns of a fork beside threads, such as torch's; see `_prepare`.
            warnings.filterwarnings("ignore", ".*multi-threaded", DeprecationWarning)
            self.process.start()
        theirs.close()
        trace.close()

    def send(self, number: int, payload: bytes, timeout: float) -> bool:
        """Send a request; False if the worker is gone or takes nothing any more."""
        data = memoryview(framed(number, payload))
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

    def receive(self, number: int) -> Message | None:
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
        message = parsed(self._received)
        if message is not None and (message.number != number or self._received):
            raise Garbage("it was not asked for")
        return message

    def ask_where(self) -> str:
        """The stack of a worker that does not answer, as text; empty if it cannot be had."""
        if WHERE_SIGNAL is not None and self.process.is_alive():
            with suppress(OSError):
                os.kill(self.process.pid, WHERE_SIGNAL)
                select.select([self._trace], [], [], 0.5)
                time.sleep(0.02)  # the lines arrive one by one
        return self.trace()

    def trace(self) -> str:
        """What faulthandler wrote."""
        with suppress(OSError):
            return self._trace.recv(LONGEST_TRACE).decode(errors="replace").strip()
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
            worker.socket.send(framed(0, CLOSE))
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


def _payload(request: Request) -> bytes:
    return pickle.dumps(request, -1)


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
