"""Environments from ids, import paths, callables and built ones, single and vectorized."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import TimeLimit

from rl_training.config.imports import import_object
from rl_training.envs.async_vector_env import QuickAsyncVectorEnv
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.envs.snapshots.vector import SnapshotEnv
from rl_training.errors import ConfigError, EnvError, MissingExtra
from rl_training.experiment.registry import resolve_config
from toy_envs import BufferReusingEnv, CountingEnv, RaisingEnv, make_counting


def single(source: Any, *wrappers: Any, **kwargs: Any) -> gym.Env:
    return make_env(source, env_kwargs=kwargs, wrappers=wrappers)


def vector(
    source: Any,
    num_envs: int = 1,
    kind: str = "sync",
    wrappers: tuple[Any, ...] = (),
    **kwargs: Any,
) -> VectorEnv:
    return make_vector_env(
        source, num_envs=num_envs, vectorization=kind, env_kwargs=kwargs, wrappers=wrappers
    )


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a module into the current directory, which is not on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)

    return write


class TestImports:
    def test_reads_a_module_of_the_current_directory(self, module: Any) -> None:
        module("my_own_things", "class Outer:\n    value = 7\n")
        assert import_object("my_own_things:Outer.value") == 7

    @pytest.mark.parametrize("path", ["json", "json:", ":dumps", ""])
    def test_refuses_what_is_not_an_import_path(self, path: str) -> None:
        with pytest.raises(ConfigError, match=r"expected package.module:Name"):
            import_object(path)

    def test_names_the_missing_package(self) -> None:
        with pytest.raises(ConfigError, match=r"no module 'nowhere' .*needed for 'nowhere.envs'"):
            import_object("nowhere.envs:Env")

    def test_names_the_missing_attribute_and_the_nearest(self) -> None:
        with pytest.raises(
            ConfigError, match=r"toy_envs has no attribute 'CountingEmv'.*'CountingEnv'"
        ):
            import_object("toy_envs:CountingEmv")

    def test_quotes_an_import_that_fails_inside_the_module(self, module: Any) -> None:
        module("needs_more", "import a_package_nobody_has\n")
        with pytest.raises(ConfigError, match=r"'needs_more' failed.*a_package_nobody_has"):
            import_object("needs_more:Env")

    def test_quotes_an_error_raised_by_the_module(self, module: Any) -> None:
        module("is_broken", "raise ValueError('no licence file')\n")
        with pytest.raises(ConfigError, match="failed with ValueError: no licence file"):
            import_object("is_broken:Env")


class TestSingle:
    def test_id_gives_the_registered_time_limit(self) -> None:
        assert single("CartPole-v1").spec.max_episode_steps == 500

    def test_callable_gets_its_arguments_and_no_time_limit(self) -> None:
        env = single(make_counting, length=9)
        assert isinstance(env, CountingEnv)
        assert env.length == 9

    def test_import_path_of_a_class(self) -> None:
        env = single("toy_envs:CountingEnv", length=4)
        assert type(env) is CountingEnv
        assert env.length == 4

    def test_module_and_registered_id(self) -> None:
        env = single("toy_envs:ToyCounting-v0")
        assert isinstance(env, TimeLimit)
        env.reset(seed=0)
        assert [env.step(0)[3] for _ in range(3)] == [False, False, True]  # registered with 3

    def test_attribute_goes_before_an_id_of_the_same_name(self, module: Any) -> None:
        module(
            "has_both",
            "import gymnasium, toy_envs\n"
            "class Both(toy_envs.CountingEnv):\n    pass\n"
            "gymnasium.register(id='Both', entry_point=toy_envs.RaisingEnv)\n",
        )
        try:
            assert type(single("has_both:Both")).__name__ == "Both"
        finally:
            gym.registry.pop("Both")

    def test_module_is_imported_before_an_id_is_taken_from_it(self) -> None:
        with pytest.raises(ConfigError, match="no module 'nowhere'"):
            single("nowhere:CartPole-v1")

    def test_unknown_id_names_near_ones(self) -> None:
        with pytest.raises(ConfigError, match=r"no environment 'CartPol-v1'.*CartPole-v1"):
            single("CartPol-v1")

    def test_deprecated_id_names_its_successor(self) -> None:
        with pytest.raises(ConfigError, match=r"'Taxi-v3'.*Taxi-v4"):
            single("Taxi-v3")

    def test_unknown_namespace_asks_for_its_package(self) -> None:
        with pytest.raises(ConfigError, match=r"NoSuchGames.*package"):
            single("NoSuchGames/Pong-v5")

    @pytest.mark.parametrize(
        ("env_id", "missing", "extra"),
        [("LunarLander-v3", "Box2D", "box2d"), ("Hopper-v5", "mujoco", "mujoco")],
    )
    def test_missing_simulator_names_the_extra(
        self, env_id: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [n for n in sys.modules if n.startswith(f"gymnasium.envs.{extra}")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, missing, None)
        with pytest.raises(MissingExtra, match=rf"pip install 'rl-training\[{extra}\]'"):
            single(env_id)

    @pytest.mark.parametrize(
        ("env_id", "missing", "extra"),
        [
            ("popgym:popgym-RepeatPreviousEasy-v0", "popgym", "popgym"),
            ("ALE/Pong-v5", "ale_py", "atari"),
            ("dm_control/cartpole-balance-v0", "shimmy", "dmc"),
        ],
    )
    def test_a_missing_module_of_environments_names_its_extra(
        self, env_id: str, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, missing, None)
        for known in [known for known in gym.registry if known.startswith("ALE/")]:
            monkeypatch.delitem(gym.registry, known)  # as Gymnasium is without the package
        with pytest.raises(MissingExtra, match=rf"pip install 'rl-training\[{extra}\]'"):
            single(env_id)

    @pytest.mark.extra("popgym")
    def test_environments_of_popgym_have_what_drqn_takes(self) -> None:
        env = single(resolve_config("drqn/repeat_previous").config.env_id)
        assert (env.observation_space, env.action_space) == (Discrete(4), Discrete(4))

    def test_wrong_argument_of_a_registered_env(self) -> None:
        with pytest.raises(ConfigError, match=r"env_kwargs: .*gravty"):
            single("CartPole-v1", gravty=1.0)

    def test_wrong_argument_of_a_class(self) -> None:
        with pytest.raises(ConfigError, match=r"env_kwargs: .*'lenght'.*length, ends_by, rewards"):
            single(CountingEnv, lenght=3)

    def test_result_must_be_an_environment(self) -> None:
        with pytest.raises(ConfigError, match=r"made a builtins.str; expected a gymnasium.Env"):
            single(lambda: "nothing")
        wanted = "env_id: toy_envs:make_nothing is the function make_nothing; expected a class"
        with pytest.raises(ConfigError, match=wanted):  # it says that it returns text
            single("toy_envs:make_nothing")

    def test_named_object_must_be_callable(self) -> None:
        with pytest.raises(ConfigError, match="toy_envs:LEVELS is a list"):
            single("toy_envs:LEVELS")

    def test_error_of_a_constructor_is_an_env_error(self) -> None:
        def broken() -> gym.Env:
            raise FileNotFoundError("level.txt")

        with pytest.raises(EnvError, match=r"could not be built: FileNotFoundError: level.txt"):
            single(broken)

    def test_built_env_is_given_back_and_takes_no_options(self) -> None:
        env = CountingEnv()
        assert single(env) is env
        with pytest.raises(ConfigError, match=r"env_kwargs.*already built"):
            single(env, length=3)
        with pytest.raises(ConfigError, match=r"wrappers.*already built"):
            single(env, "TimeAwareObservation")

    def test_render_mode_reaches_the_env(self) -> None:
        assert single("CartPole-v1", render_mode="rgb_array").render_mode == "rgb_array"


class TestWrappers:
    def test_names_and_arguments_in_order(self) -> None:
        env = single(
            CountingEnv, {"toy_envs:DoubleReward": {"factor": 3.0}}, "toy_envs:DoubleReward"
        )
        env.reset(seed=0)
        env.step(0)
        assert env.step(0)[1] == 12.0  # the second reward is 2, times 3, times 2

    def test_gymnasium_wrapper_by_name(self) -> None:
        env = single(CountingEnv, {"FrameStackObservation": {"stack_size": 3}})
        assert env.observation_space.shape == (3, 2)

    def test_unknown_name_gives_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"'FlatenObservation'.*'FlattenObservation'"):
            single(CountingEnv, "FlatenObservation")

    def test_wrong_argument(self) -> None:
        with pytest.raises(ConfigError, match=r"FrameStackObservation.*'stacksize'"):
            single(CountingEnv, {"FrameStackObservation": {"stacksize": 3}})

    def test_two_names_in_one_entry(self) -> None:
        with pytest.raises(ConfigError, match="one name"):
            single(CountingEnv, {"FlattenObservation": {}, "TimeAwareObservation": {}})

    def test_result_must_be_an_environment(self) -> None:
        with pytest.raises(ConfigError, match="wrappers: builtins:repr is the function repr; exp"):
            single(CountingEnv, "builtins:repr")


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestVector:
    def test_resets_within_the_step_and_keeps_the_final_observation(self, kind: str) -> None:
        envs = vector(BufferReusingEnv, 2, kind, length=3)
        try:
            assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
            envs.reset(seed=0)
            for _ in range(2):
                envs.step(np.zeros(2, np.int64))
            obs, reward, terminated, _, info = envs.step(np.zeros(2, np.int64))
            assert obs.tolist() == [[1, 0], [1, 0]]
            assert [list(final) for final in info["final_obs"]] == [[0, 3], [0, 3]]
            assert terminated.all()
            assert reward.tolist() == [3, 3]
        finally:
            envs.close()

    def test_error_of_a_constructor_is_an_env_error(self, kind: str) -> None:
        def broken() -> gym.Env:
            raise OSError("no camera")

        with pytest.raises(EnvError, match="no camera"):
            vector(broken, 2, kind)

    def test_mistakes_stay_config_errors(self, kind: str) -> None:
        with pytest.raises(ConfigError, match="CartPole-v1"):
            vector("CartPol-v1", 2, kind)


def not_in_a_worker() -> gym.Env:
    if multiprocessing.parent_process() is not None:
        raise RuntimeError("only one client may connect")
    return CountingEnv()


def test_worker_that_cannot_build_its_env_is_an_env_error() -> None:
    with pytest.raises(EnvError, match="could not be built in a worker process") as caught:
        vector(not_in_a_worker, 2, "async")
    assert "in its construction" in str(caught.value)
    assert "RuntimeError: only one client may connect" in str(caught.value)
    assert "in not_in_a_worker" in str(caught.value)  # the worker's traceback
    assert not multiprocessing.active_children()  # although the error is still held


def test_ctrl_c_leaves_the_workers_alive() -> None:
    envs = vector(CountingEnv, 2, "async")
    try:
        envs.reset(seed=0)
        for process in envs.processes:
            os.kill(process.pid, signal.SIGINT)
        obs, *_ = envs.step(np.zeros(2, np.int64))
        assert obs.tolist() == [[0, 1], [0, 1]]
    finally:
        envs.close()


def test_async_envs_answer_like_sync_ones() -> None:
    answers = []
    for kind in ("sync", "async"):
        envs = vector("CartPole-v1", 3, kind)
        obs, _ = envs.reset(seed=5)
        answer = [obs.copy()]  # the next step may use its array again
        for t in range(60):
            answer += [part.copy() for part in envs.step(np.array([t % 2, 1, 0]))[:4]]
        answers.append(answer)
        envs.close()
    assert all(np.array_equal(left, right) for left, right in zip(*answers, strict=True))


def test_every_env_is_wrapped_for_snapshots() -> None:
    envs = vector(CountingEnv, 3)
    assert [(type(env), env.env_index) for env in envs.envs] == [(SnapshotEnv, i) for i in range(3)]


def test_built_env_is_a_vector_of_one() -> None:
    env = CountingEnv(length=2)
    envs = vector(env)
    assert isinstance(envs, SyncVectorEnv)
    assert envs.envs[0].unwrapped is env
    with pytest.raises(ConfigError, match="num_envs must be 1, found 2; pass a callable"):
        vector(env, 2)
    with pytest.raises(ConfigError, match=r"env_kwargs.*already built"):
        vector(env, length=3)


def test_built_vector_env_is_taken_as_it_is() -> None:
    envs = gym.make_vec("CartPole-v1", num_envs=3)
    assert vector(envs) is envs
    assert vector(envs, 3) is envs
    with pytest.raises(ConfigError, match="has 3 environments, found num_envs=2"):
        vector(envs, 2)
    with pytest.raises(ConfigError, match=r"wrappers.*already built"):
        vector(envs, wrappers=("FlattenObservation",))
    envs.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_callable_may_make_a_vector_env(kind: str) -> None:
    def make(number: int) -> VectorEnv:
        return gym.make_vec("CartPole-v1", num_envs=number)

    envs = vector(make, kind=kind, number=4)
    assert type(envs).__name__ == "CartPoleVectorEnv"
    with pytest.raises(ConfigError, match="has 4 environments"):
        vector(make, 2, kind, number=4)
    with pytest.raises(ConfigError, match="wrappers"):
        vector(make, kind=kind, wrappers=("FlattenObservation",), number=4)
    with pytest.raises(ConfigError, match="expected a single one"):
        single(make, number=4)
    envs.close()


def test_vectorization_must_be_known() -> None:
    with pytest.raises(ConfigError, match="one of sync, async, native, found 'threads'"):
        vector(CountingEnv, kind="threads")


def test_async_workers_do_not_outlive_this_process() -> None:
    envs = vector(RaisingEnv, 2, "async")
    assert isinstance(envs, QuickAsyncVectorEnv)
    assert all(process.daemon for process in envs.processes)
    envs.close()
