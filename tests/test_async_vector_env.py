"""Worker processes answer as one process would, and whatever they suffer is reported in time."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Sequence, Text

from failing_envs import ANSWERS, FAILURES, HANGS, FailingEnv
from processes import CommandLine, wait_until
from rl_training import train_dqn
from rl_training.envs.async_vector_env import QuickAsyncVectorEnv
from rl_training.envs.factory import make_vector_env
from rl_training.envs.snapshots.vector import load_vector_state, save_vector_state
from rl_training.envs.vector_envs import QuickSyncVectorEnv
from rl_training.errors import EnvError
from rl_training.storage.checkpoints import find_checkpoint
from test_sync_vector_env import MAKERS, equal
from toy_envs import CountingEnv, RandomWalkEnv
from training import tiny_config

NOW = np.zeros(3, np.int64)
Maker = Callable[[], gym.Env[Any, Any]]


@contextmanager
def workers(*makers: Maker, timeout: float = 30.0) -> Iterator[QuickAsyncVectorEnv]:
    """A vector environment of two workers that has to be closed within five seconds."""
    envs = QuickAsyncVectorEnv(makers, timeout=timeout, workers=2)
    processes = envs.processes
    try:
        yield envs
    finally:
        started = time.monotonic()
        envs.close()
        assert time.monotonic() - started < 5
        assert not any(process.is_alive() for process in processes)


def failing(kind: str, phase: str = "step") -> list[Maker]:
    """Environment 1, the second of the first worker, fails, in its third step or in the phase."""
    other = partial(FailingEnv, "not at all")
    return [other, partial(FailingEnv, kind, phase), other]


# The same answers


class TextEnv(CountingEnv):
    """Observes words, which have no fixed place in memory."""

    def __init__(self) -> None:
        super().__init__(length=3)
        self.observation_space = Text(20)

    def observe(self) -> Any:
        return f"step{self.t}"


class ListEnv(CountingEnv):
    """Observes lists of another length in each step."""

    def __init__(self) -> None:
        super().__init__(length=4)
        self.observation_space = Sequence(Discrete(9))

    def observe(self) -> Any:
        return tuple(range(self.t))


class KeepsItsAction(CountingEnv):
    """Shows the action of the step before, which it keeps and does not copy."""

    def __init__(self) -> None:
        super().__init__(length=5)
        self.action_space = Box(-1, 1, (2,), np.float32)
        self.kept = np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        _, *rest = super().step(0)
        shown, self.kept = self.kept.copy(), action
        return shown, *rest


ALL = MAKERS | {"text": TextEnv, "list": ListEnv, "keeps its action": KeepsItsAction}


@pytest.mark.parametrize("name", ALL)
def test_every_answer_is_that_of_one_process(name: str) -> None:
    makers = [ALL[name]] * 3
    one = QuickSyncVectorEnv(makers)
    with workers(*makers) as several:
        assert several.metadata == one.metadata
        assert several.observation_space == one.observation_space
        one.action_space.seed(0)
        for seed in ([7, 8, 20], 3):
            for mine, other in zip(several.reset(seed=seed), one.reset(seed=seed), strict=True):
                equal(mine, other)
            for _ in range(40):
                actions = one.action_space.sample()
                for mine, other in zip(several.step(actions), one.step(actions), strict=True):
                    equal(mine, other)
    one.close()


@pytest.mark.parametrize("number", [1, 2, 5])
def test_the_number_of_workers_changes_nothing(number: int) -> None:
    makers = [partial(RandomWalkEnv, 1.0 + n) for n in range(5)]
    one, several = QuickSyncVectorEnv(makers), QuickAsyncVectorEnv(makers, workers=number)
    assert len(several.processes) == number
    equal(several.reset(seed=4)[0], one.reset(seed=4)[0])
    for t in range(50):
        actions = np.arange(t, t + 5) % 2
        for mine, other in zip(several.step(actions), one.step(actions), strict=True):
            equal(mine, other)
    several.close()


def test_a_mask_resets_only_what_it_names() -> None:
    with workers(CountingEnv, CountingEnv, CountingEnv) as envs:
        envs.reset(seed=0)
        envs.step(NOW)
        obs, info = envs.reset(options={"reset_mask": np.array([False, False, True])})
        assert obs.tolist() == [[0, 1], [0, 1], [1, 0]]
        assert info["_episode_id"].tolist() == [False, False, True]


def test_methods_and_attributes_are_reached_in_the_order_of_the_environments() -> None:
    with workers(CountingEnv, partial(CountingEnv, 7), partial(CountingEnv, 9)) as envs:
        assert envs.get_attr("length") == (5, 7, 9)
        envs.set_attr("length", [1, 2, 3])
        assert envs.call("get_wrapper_attr", "length") == (1, 2, 3)
        envs.set_attr("length", 4)
        assert envs.get_attr("length") == (4, 4, 4)


def test_environments_of_other_spaces_are_refused() -> None:
    with pytest.raises(EnvError, match=r"environment 2, .*expected all environments to have"):
        QuickAsyncVectorEnv([CountingEnv, CountingEnv, TextEnv], workers=2)
    assert not multiprocessing.active_children()


def test_a_restored_state_brings_its_seed_and_step_along() -> None:
    def make() -> Any:
        return make_vector_env(partial(FailingEnv, at=5), num_envs=2, vectorization="async")

    first, second = make(), make()
    try:
        first.reset(seed=[11, 12])
        for _ in range(3):
            first.step(NOW[:2])
        second.reset(seed=[1, 2])
        load_vector_state(second, save_vector_state(first))
        second.step(NOW[:2])
        with pytest.raises(EnvError, match="environment 0, 5 steps after its reset with seed 11"):
            second.step(NOW[:2])
    finally:
        first.close()
        second.close()


# Failures


def check_failure(envs: QuickAsyncVectorEnv, kind: str, timeout: float) -> str:
    """Step into a failure: who failed is named in time, at which step, since which seed."""
    envs.reset(seed=7)
    envs.step(NOW)
    envs.step(NOW)
    started = time.monotonic()
    with pytest.raises(EnvError) as caught:
        envs.step(NOW)
    assert time.monotonic() - started < (timeout + 1.5 if kind in HANGS else 2)
    text = str(caught.value)
    assert text.startswith("environment 1, 3 steps after its reset with seed 8, ")
    return text


SAID = {
    "raises": r"raised RuntimeError in step: the robot fell over\nTraceback[^$]*in _raise",
    "raises what cannot be pickled": r"LocalError in step: cannot be pickled\n.*[^$]*_unpicklable",
    "raises what cannot be printed": r"UnprintableError in step: \(its message cannot be shown\)",
    "raises what exits when printed": r"ExitingError in step: \(its message cannot be shown\)",
    "raises KeyboardInterrupt": r"raised KeyboardInterrupt: not the user's",
    "recurses": r"raised RecursionError in step",
    "sys.exit": r"raised SystemExit in step: enough",
    "os._exit": r"lost its worker process in step: it ended with exit code 9",
    "killed": r"was ended by SIGKILL, perhaps by the system for want of memory",
    "segmentation fault": r"was ended by SIGSEGV\nFatal Python error[^$]*in _segfault",
    "abort": r"was ended by SIGABRT\nFatal Python error[^$]*in _abort",
    "dies, its child lives": r"it ended with exit code 9",
    "sleeps": r"did not return from step within 0\.5 s \(env_timeout\)\n[^$]*in _sleep",
    "spins": r"did not return from step within 0\.5 s \(env_timeout\)\n[^$]*in _spin",
    "hangs in a library": r"did not return from step[^$]*in _deadlock",
    "sleeps, all signals blocked": r"did not return from step within 0\.5 s",
    "closes its sockets": r"lost its worker process in step: it closed its connection",
    "writes to its sockets": r"something else than an answer: found b'Loading textures",
    "reward of two numbers": r"contract in step: reward: expected a number, found a list of 2",
    "reward of text": r"contract in step: reward: expected a number, found str 'much'",
    "observation of another shape": r"observation: expected shape \(2,\), found \(3,\)",
    "observation of text": r"observation: expected float32, found <U1; it cannot be converted",
    "no observation": r"observation: expected a NumPy array, found NoneType None",
    "four values": r"expected \(observation, reward, .*\) from step, found a tuple of 4",
    "flag of two": r"terminated: expected a bool, found ndarray of shape \(2,\)",
    "info that cannot be sent": r"cannot be sent to the training process: TypeError: cannot pickle",
}


@pytest.mark.parametrize("kind", [*FAILURES, *ANSWERS])
def test_a_failure_in_a_worker_is_named_in_time(kind: str) -> None:
    timeout = 0.5 if kind in HANGS else 30.0
    with workers(*failing(kind), timeout=timeout) as envs:
        text = check_failure(envs, kind, timeout)
    assert re.search(SAID[kind], text), text


@pytest.mark.parametrize("kind", ["raises", "os._exit", "sleeps"])
@pytest.mark.parametrize("phase", ["construction", "reset", "look"])
def test_a_failure_elsewhere_is_named_with_the_call(phase: str, kind: str) -> None:
    timeout = 0.5 if kind == "sleeps" else 30.0
    with pytest.raises(EnvError, match=rf"environment 1, .* {phase}"):
        look_around(failing(kind, phase), timeout)
    assert not multiprocessing.active_children()


def look_around(makers: list[Maker], timeout: float) -> None:
    with workers(*makers, timeout=timeout) as envs:
        envs.reset(seed=7)
        envs.call("look")


@pytest.mark.parametrize("kind", ["os._exit", *HANGS])
def test_close_returns_whatever_the_environments_do(kind: str) -> None:
    with workers(*failing(kind, "close"), timeout=0.3) as envs:
        envs.reset(seed=7)  # and `workers` checks the rest


def test_after_an_exception_the_other_environments_can_be_asked() -> None:
    with workers(*failing("raises")) as envs:
        check_failure(envs, "raises", 30)
        assert envs.get_attr("t") == (3, 2, 3)


def test_after_a_death_every_call_says_why_it_is_refused() -> None:
    with workers(*failing("killed")) as envs:
        check_failure(envs, "killed", 30)
        with pytest.raises(EnvError, match="no more use: a worker process has died"):
            envs.step(NOW)
    with pytest.raises(gym.error.ClosedEnvironmentError):
        envs.reset()


def test_the_first_of_several_failures_is_reported_as_in_one_process() -> None:
    makers = [CountingEnv, partial(FailingEnv, at=1), partial(FailingEnv, at=1)]
    with workers(*makers) as envs:
        envs.reset(seed=7)
        with pytest.raises(EnvError, match="environment 1, "):
            envs.step(NOW)


def test_a_worker_that_dies_between_two_calls_is_noticed_at_the_next() -> None:
    with workers(CountingEnv, CountingEnv, CountingEnv) as envs:
        envs.reset(seed=7)
        os.kill(envs.processes[1].pid, signal.SIGKILL)
        with pytest.raises(EnvError, match=r"environment 2, 1 steps after .* seed 9, lost"):
            envs.step(NOW)


def test_signals_to_the_process_group_leave_the_workers_alive() -> None:
    with workers(CountingEnv, CountingEnv, CountingEnv) as envs:
        envs.reset(seed=7)
        for process in envs.processes:
            for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
                os.kill(process.pid, getattr(signal, name))
        assert envs.step(NOW)[0].tolist() == [[0, 1]] * 3


@pytest.mark.parametrize("in_a_thread", [False, True], ids=["main thread", "other thread"])
def test_workers_die_with_a_parent_that_is_killed(in_a_thread: bool) -> None:
    """One is stuck in a step; from another thread the kernel's signal would come too early."""
    here, there = multiprocessing.get_context("fork").Pipe(duplex=False)
    parent = multiprocessing.get_context("fork").Process(
        target=_stuck_parent, args=(there, in_a_thread)
    )
    parent.start()
    pids = here.recv()
    time.sleep(0.5)  # until the worker is inside the step that is to follow
    parent.kill()
    parent.join()
    killed = time.monotonic()
    try:
        wait_until(lambda: not any(map(_running, pids)) or time.monotonic() - killed > 5)
        assert not any(map(_running, pids))
    finally:
        for pid in filter(_running, pids):
            os.kill(pid, signal.SIGKILL)


def _stuck_parent(pipe: Any, in_a_thread: bool) -> None:
    def work() -> None:
        envs = QuickAsyncVectorEnv(failing("sleeps"), workers=2)
        envs.reset(seed=7)
        envs.step(NOW)
        envs.step(NOW)
        pipe.send([process.pid for process in envs.processes])
        envs.step(NOW)

    if in_a_thread:
        threading.Thread(target=work).start()
        time.sleep(1e6)
    work()


def _running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


# In a run


@pytest.mark.parametrize("kind", ["sleeps", "raises what cannot be pickled", "killed"])
def test_a_run_saves_its_learner_when_a_worker_fails(kind: str, tmp_path: Path) -> None:
    config = tiny_config(
        "dqn",
        tmp_path,
        env_id=partial(FailingEnv, kind, at=115),
        num_envs=2,
        vectorization="async",
        env_timeout=1.0,
    )
    with pytest.raises(
        EnvError, match=r"environment \d, 115 steps .* at vector step 115"
    ) as caught:
        train_dqn(config)
    assert "step 228 of the run is saved in" in str(caught.value)
    (run_dir,) = tmp_path.iterdir()
    checkpoint = find_checkpoint(run_dir)
    assert (checkpoint.env_steps, checkpoint.info["exact"]) == (228, False)
    assert not multiprocessing.active_children()


def _training(tmp_path: Path, env: str, **env_kwargs: Any) -> CommandLine:
    """A short run in this process's environments, in a process of its own."""
    settings = {
        "total_timesteps": 400,
        "env_id": f"failing_envs:{env}",
        "env_kwargs": {**env_kwargs, "anywhere": True},
        "env_timeout": 0.5,
        "output_dir": str(tmp_path / "runs"),
        "run_name": "run",
        "eval_interval": 0,
        "final_eval_episodes": 0,
        "learning_starts": 50,
    }
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return CommandLine("train", "--config", "dqn/cartpole", *arguments, output=tmp_path / "output")


def test_a_signal_during_a_step_that_never_returns_saves_the_learner(tmp_path: Path) -> None:
    """In this process, inside a library: not even Python's handler of the signal runs."""
    program = _training(tmp_path, "FailingEnv", kind="hangs in a library", at=120)
    run_dir = tmp_path / "runs" / "run"
    wait_until(lambda: _stuck(program.pid))
    program.signal(signal.SIGTERM)
    assert program.wait() == 128 + signal.SIGTERM
    assert "did not return within 0.5 s (env_timeout) after SIGTERM" in program.text()
    assert "in _deadlock" in program.text()
    assert find_checkpoint(run_dir).env_steps == 119


@pytest.mark.parametrize(("phase", "at"), [("construction", 0), ("step", 5)])
def test_a_signal_ends_a_run_whose_environment_cannot_be_built_or_tried(
    phase: str, at: int, tmp_path: Path
) -> None:
    program = _training(tmp_path, "FailingEnv", kind="hangs in a library", phase=phase, at=at)
    wait_until(lambda: _stuck(program.pid))
    program.signal(signal.SIGTERM)
    assert program.wait() == 128 + signal.SIGTERM
    assert "did not return within 0.5 s (env_timeout) after SIGTERM" in program.text()
    assert not (tmp_path / "runs").exists()


def test_a_signal_ends_a_finished_run_whose_environment_does_not_close(tmp_path: Path) -> None:
    program = _training(tmp_path, "HangsInTheEnd", phase="close", at=150)
    wait_until(lambda: _stuck(program.pid))
    program.signal(signal.SIGTERM)
    assert program.wait() == 128 + signal.SIGTERM
    assert "What was learned before is saved." in program.text()
    summary = json.loads((tmp_path / "runs" / "run" / "summary.json").read_text())
    assert (summary["status"], summary["global_step"]) == ("finished", 400)


def _stuck(pid: int) -> bool:
    """Whether a run has begun to listen to signals and does nothing any more."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
    if caught is None or not int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
        return False
    before = _cpu_ticks(pid)
    time.sleep(0.3)
    return _cpu_ticks(pid) == before


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
