"""The configuration models: what each field takes, what is refused and in which words."""

from __future__ import annotations

import copy
import functools
import math
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, Field, ValidationError

from config_cases import (
    MINIMAL,
    ToyConfig,
    assert_refuses_wrong_values,
    load,
    python_refusal,
    refusal,
    toy_file,
    unbounded_fields,
)
from rl_training.config.base import ConfigModel, is_placeholder
from rl_training.config.hyper_parameters import HyperParameters, OffPolicyHyperParameters
from rl_training.config.loading import dump_yaml, packaged_configs
from rl_training.config.ppo import PPOConfig
from rl_training.config.schedule import Schedule, scheduled_value
from rl_training.config.strict_yaml import parse_yaml
from rl_training.config.train_config import TrainConfig, check_hyper_parameters
from rl_training.config.types import parse_memory
from rl_training.errors import ConfigError
from rl_training.experiment.registry import resolve_config
from rl_training.runtime.spec_table import packaged_specs

# Every field of every model


MODELS = [
    HyperParameters,
    OffPolicyHyperParameters,
    ToyConfig,
    *(spec.hyper for spec in packaged_specs().values()),
]
every_model = pytest.mark.parametrize("model", MODELS)


def test_a_train_config_refuses_wrong_values() -> None:
    assert_refuses_wrong_values(TrainConfig, lambda values: TrainConfig(**values), valid=MINIMAL)


def test_a_schedule_refuses_wrong_values() -> None:
    assert_refuses_wrong_values(
        Schedule,
        lambda values: check_hyper_parameters(ToyConfig, {"temperature": values}),
        valid={"initial": 0.5, "final": 0.25},
        prefix="algo_kwargs.temperature.",
    )


@every_model
def test_hyper_parameters_refuse_wrong_values(model: type[HyperParameters]) -> None:
    assert_refuses_wrong_values(
        model, lambda values: check_hyper_parameters(model, values), prefix="algo_kwargs."
    )


def test_a_wrong_value_that_is_taken_fails_with_its_key() -> None:
    class Lax(BaseModel):  # pydantic's defaults: a bool is a number, unknown keys are dropped
        width: int = Field(1, ge=0, le=9)

    def lax_check(values: dict[str, Any]) -> None:
        try:
            Lax(**values)
        except ValidationError as error:
            raise ConfigError(f"width: expected ..., found ...: {error}") from None

    with pytest.raises(AssertionError) as caught:
        assert_refuses_wrong_values(Lax, lax_check)
    heading, *lines = str(caught.value).splitlines()
    assert heading == "Lax:"
    assert [line.split(":")[0] for line in lines] == [
        "with = 1",
        "width = '3'",
        "width = True",
        "width = True",
    ]
    assert all(line.endswith("; it was taken") for line in lines)


@pytest.mark.parametrize("model", [TrainConfig, Schedule, *MODELS])
def test_every_number_has_a_lower_and_an_upper_bound(model: type[ConfigModel]) -> None:
    assert unbounded_fields(model) == []


def test_the_generator_sees_a_missing_bound() -> None:
    class Loose(ConfigModel):
        width: int = Field(1, ge=0)
        sizes: tuple[int, ...] = ()
        fine: float = Field(1, ge=0, le=1)

    assert unbounded_fields(Loose) == ["width", "sizes"]


@every_model
def test_the_defaults_are_themselves_valid(model: type[HyperParameters]) -> None:
    assert check_hyper_parameters(model, model().to_plain()) == model()


# Numbers


def test_an_integral_float_is_an_integer_and_an_integer_is_a_number() -> None:
    config = TrainConfig(**MINIMAL, total_timesteps=1e6)
    assert config.total_timesteps == 1_000_000
    assert type(config.total_timesteps) is int
    hyper = check_hyper_parameters(ToyConfig, {"gamma": 1, "learning_rate": 1})
    assert (hyper.gamma, hyper.learning_rate) == (1.0, 1.0)
    assert type(hyper.gamma) is float
    assert type(hyper.learning_rate) is float


def test_numpy_numbers_are_taken_as_plain_ones() -> None:
    config = TrainConfig(
        **MINIMAL, seed=np.int64(3), env_kwargs={"gravity": np.float32(0.5), "size": (1, 2)}
    )
    assert type(config.seed) is int
    assert config.env_kwargs == {"gravity": 0.5, "size": [1, 2]}
    assert type(config.env_kwargs["gravity"]) is float
    assert python_refusal(**MINIMAL, seed=np.bool_(True))


def test_an_infinite_argument_of_an_environment_is_allowed() -> None:
    config = TrainConfig(**MINIMAL, env_kwargs={"healthy_z_range": [0.7, math.inf]})
    values, _ = parse_yaml(dump_yaml(config.to_plain()), "x")
    assert values["env_kwargs"] == {"healthy_z_range": [0.7, math.inf]}


# Schedules


@pytest.mark.parametrize(
    ("kind", "env_steps", "expected"),
    [
        ("linear", 0, 1.0),
        ("linear", 25, 0.55),  # half way through the moving half of the run
        ("linear", 50, 0.1),
        ("linear", 99, 0.1),
        ("linear", 1000, 0.1),
        ("cosine", 25, 0.55),
        ("cosine", 50 / 3, 0.1 + 0.9 * 0.75),  # cos(60 degrees) = 1/2
        ("exponential", 25, math.sqrt(0.1)),  # the geometric mean
        ("exponential", 50, 0.1),
    ],
)
def test_schedule_values(kind: Any, env_steps: Any, expected: float) -> None:
    schedule = Schedule(initial=1.0, final=0.1, kind=kind, fraction=0.5)
    assert schedule.at(env_steps, 100) == pytest.approx(expected, rel=1e-12)


def test_a_schedule_ends_exactly_at_its_ends() -> None:
    for kind in ("linear", "cosine", "exponential"):
        schedule = Schedule(initial=0.3, final=0.1, kind=kind)
        assert schedule.at(0, 7) == 0.3
        assert schedule.at(7, 7) == 0.1
        assert schedule.at(0, 0) == 0.1


def test_a_constant_schedule_and_a_number_do_not_move() -> None:
    assert Schedule(initial=0.3, kind="constant").at(5, 10) == 0.3
    assert Schedule(initial=0.3, final=0.3, kind="constant").at(10, 10) == 0.3
    assert scheduled_value(0.3, 5, 10) == 0.3
    assert scheduled_value(Schedule(initial=1.0, final=0.0), 5, 10) == 0.5


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"initial": 0.1, "final": 0.2, "kind": "constant"}, "constant schedule has no final"),
        ({"initial": 0.1}, "a linear schedule needs a final value"),
        ({"initial": 0.1, "final": 0, "kind": "exponential"}, "initial and final above 0"),
        ({"final": 0.1}, ".initial: missing"),
        (
            {"initial": 0, "final": 0.1},
            ".initial: expected a number above 0 and at most 1, found 0",
        ),
        ({"initial": 0.1, "final": 2}, ".final: expected a number from 0 to 1, found 2"),
        (
            {"initial": 0.1, "final": 0, "kind": "cos"},
            ".kind: expected 'linear', 'cosine', 'exponential' or 'constant', found the text 'cos'",
        ),
    ],
)
def test_schedule_mistakes_carry_their_path(schedule: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs\.learning_rate") as caught:
        check_hyper_parameters(ToyConfig, {"learning_rate": schedule})
    assert words in str(caught.value)


def test_only_the_end_of_a_learning_rate_schedule_may_be_zero() -> None:
    hyper = check_hyper_parameters(ToyConfig, {"learning_rate": {"initial": 1e-3, "final": 0}})
    assert hyper.learning_rate == Schedule(initial=1e-3, final=0.0)
    with pytest.raises(ConfigError, match="above 0"):
        check_hyper_parameters(ToyConfig, {"learning_rate": 0})


def test_a_schedule_object_is_held_to_the_range_too() -> None:
    with pytest.raises(ConfigError) as caught:
        check_hyper_parameters(ToyConfig, {"epsilon": Schedule(initial=3, final=2)})
    assert str(caught.value).splitlines() == [
        "algo_kwargs.epsilon.initial: expected a number from 0 to 1, found 3.0",
        "algo_kwargs.epsilon.final: expected a number from 0 to 1, found 2.0",
    ]


# Fields with rules of their own


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 * 1024**3),
        ("500MB", 500_000_000),
        ("1.5 kib", 1536),
        ("0.1GB", 100_000_000),
        ("7B", 7),
        ("3TB", 3 * 10**12),
    ],
)
def test_memory_sizes(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize(
    "text", ["", "2", "GiB", "-1GB", "1e9B", "2 iB", "0MB", "2\u212aB", "9" * 15 + "TiB"]
)
def test_other_texts_are_no_memory_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a size such as 2GiB"):
        parse_memory(text)
    with pytest.raises(ConfigError, match=r"algo_kwargs\.replay_memory: expected a size such as"):
        check_hyper_parameters(ToyConfig, {"replay_memory": text})


def test_the_buffer_has_one_size() -> None:
    check_hyper_parameters(ToyConfig, {"replay_memory": "2GiB"})
    with pytest.raises(ConfigError, match="algo_kwargs: give buffer_size or replay_memory, not"):
        check_hyper_parameters(ToyConfig, {"replay_memory": "2GiB", "buffer_size": 10})


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:13", "mps"])
def test_devices(device: str) -> None:
    assert TrainConfig(**MINIMAL, device=device).device == device


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cpu\n", "CPU"])
def test_no_devices(device: str) -> None:
    (message,) = python_refusal(**MINIMAL, device=device)
    assert message.startswith("device: expected auto, cpu, cuda, cuda:N or mps, found the text")


@pytest.mark.parametrize("name", ["a", "_x", "seed-1_v2.0", "x" * 100])
def test_run_names(name: str) -> None:
    assert TrainConfig(**MINIMAL, run_name=name).run_name == name


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "..", "a/b", "a b", "a\n", "x" * 101, "é", "a\0", "con:"]
)
def test_no_run_names(name: str) -> None:
    (message,) = python_refusal(**MINIMAL, run_name=name)
    assert message.startswith("run_name: expected up to 100 letters")


def test_an_output_directory_may_be_a_path() -> None:
    assert TrainConfig(**MINIMAL, output_dir=Path("a") / "b").output_dir == str(Path("a") / "b")
    for bad in ("", "  ", "a\0b", "a\nb"):
        assert python_refusal(**MINIMAL, output_dir=bad)[0].startswith("output_dir: expected")


def test_wrappers_are_names_or_one_name_with_arguments() -> None:
    config = TrainConfig(**MINIMAL, wrappers=["A", {"pkg.mod:B": {"k": (1, 2)}}])
    assert config.wrappers == ("A", {"pkg.mod:B": {"k": [1, 2]}})
    bad = [{"A": {}, "B": {}}, {"A": 3}, {}, "", {"": {}}, 3]
    messages = python_refusal(**MINIMAL, wrappers=["fine", *bad])
    assert [message.split(":")[0] for message in messages] == [
        f"wrappers[{number}]" for number in range(1, 7)
    ]


class FakeEnv:
    def reset(self) -> None: ...
    def step(self) -> None: ...


def make_env() -> FakeEnv:
    return FakeEnv()


def test_an_environment_may_be_a_callable_or_an_object_with_step_and_reset() -> None:
    env = FakeEnv()
    assert TrainConfig(algo="toy", env_id=env).env_id is env
    assert TrainConfig(algo="toy", env_id=make_env).env_id is make_env
    for bad in ("", " CartPole-v1", "a\nb", object(), 3, None, ["CartPole-v1"]):
        assert python_refusal(algo="toy", env_id=bad)[0].startswith("env_id: expected an env")


def test_python_objects_are_written_as_import_paths_or_markers() -> None:
    here = __name__

    def written(env: Any) -> str:
        return str(TrainConfig(algo="toy", env_id=env).to_plain()["env_id"])

    assert written(make_env) == f"{here}:make_env"
    assert written(FakeEnv) == f"{here}:FakeEnv"
    assert written(FakeEnv()) == "<Env instance FakeEnv>"
    assert written(functools.partial(make_env)) == "<callable partial>"
    assert written(lambda: None).startswith("<callable test_python_objects")
    assert written(FakeEnv().step) == "<callable FakeEnv.step>"
    assert is_placeholder(written(FakeEnv()))
    assert is_placeholder(written(lambda: None))
    assert not is_placeholder(written(make_env))
    assert not is_placeholder("CartPole-v1")
    assert not is_placeholder(None)


def test_what_a_script_defines_has_no_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> None: ...

    make.__module__, make.__qualname__ = "__main__", "make"
    monkeypatch.setattr(sys.modules["__main__"], "make", make, raising=False)
    assert TrainConfig(algo="toy", env_id=make).to_plain()["env_id"] == "<callable make>"


def test_a_network_is_an_import_path_or_a_callable() -> None:
    hyper = check_hyper_parameters(HyperParameters, {"network": make_env})
    assert hyper.network is make_env
    assert hyper.to_plain()["network"] == f"{__name__}:make_env"
    assert check_hyper_parameters(HyperParameters, {"network": "a.b:c"}).network == "a.b:c"
    for bad in ("", "a.b", "a:b:c", "a b:c", "1a:b", ".a:b"):
        with pytest.raises(ConfigError, match=r"algo_kwargs\.network: expected package\.module"):
            check_hyper_parameters(HyperParameters, {"network": bad})


def test_a_saved_marker_loads_so_that_the_object_can_be_given_again() -> None:
    loaded = load({**MINIMAL, "algo_kwargs": {"network": lambda: None}}, env_id=FakeEnv())
    again = load(parse_yaml(dump_yaml(loaded.config.to_plain()), "x")[0])
    assert is_placeholder(again.config.env_id)
    assert is_placeholder(again.config.algo_kwargs["network"])


# The TrainConfig object


def test_a_config_does_not_share_its_containers() -> None:
    inner = {"sizes": [1, 2]}
    config = TrainConfig(**MINIMAL, env_kwargs=inner)
    inner["sizes"].append(3)
    assert config.env_kwargs == {"sizes": [1, 2]}
    with pytest.raises(Exception, match="frozen"):
        config.seed = 3  # type: ignore[misc]


def test_a_config_survives_pickle_and_copy() -> None:
    config = TrainConfig(**MINIMAL, learning_starts=5, seed=3)
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config


def test_changes_make_a_new_config() -> None:
    config = TrainConfig(**MINIMAL, algo_kwargs={"gamma": 0.9, "learning_starts": 1})
    changed = config.with_changes(seed=4, learning_starts=2)
    assert (config.seed, changed.seed) == (0, 4)
    assert changed.algo_kwargs == {"gamma": 0.9, "learning_starts": 2}
    assert changed.with_changes(algo_kwargs={}).algo_kwargs == {}
    with pytest.raises(ConfigError, match="unknown key 'sed'; did you mean 'seed'"):
        config.with_changes(sed=3)


def test_odd_python_values_are_refused_calmly() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    messages = python_refusal(**MINIMAL, env_kwargs=loop, algo_kwargs={1: 2}, seed=10**5000)
    assert messages == [
        "seed: expected an integer from 0 to 2147483647, found a value of type int",
        "env_kwargs: nested more than 40 levels deep",
        "algo_kwargs: keys must be text, found one of type int",
    ]
    assert refusal(MINIMAL, env_kwargs=loop) == [
        "argument: env_kwargs: nested more than 40 levels deep"
    ]


@pytest.mark.parametrize("key", ["learning_starts", "target_update_interval"])
def test_two_keys_may_stand_at_the_top_level_but_not_in_both_places(
    key: str, tmp_path: Path
) -> None:
    top = "algo: toy\nenv_id: e\n" + f"{key}: 7\n"
    assert TrainConfig(**MINIMAL, **{key: 7}).algo_kwargs == {key: 7}
    loaded = load(toy_file(tmp_path, top))
    assert loaded.config.algo_kwargs[key] == 7
    assert loaded.origins[f"algo_kwargs.{key}"] == "toy.yaml:3"
    assert load(MINIMAL, f"{key}=7").config.algo_kwargs[key] == 7
    twice = f"{key}: given here and in algo_kwargs; keep one of them"
    assert python_refusal(**MINIMAL, **{key: 7}, algo_kwargs={key: 7}) == [twice]
    both = toy_file(tmp_path, top + f"algo_kwargs: {{{key}: 8}}\n")
    assert refusal(both) == [f"toy.yaml:3: {twice}"]
    assert refusal(MINIMAL, f"{key}=7", f"algo_kwargs.{key}=8") == [f"command line: {twice}"]


def test_a_top_level_key_on_the_command_line_beats_the_file(tmp_path: Path) -> None:
    path = toy_file(tmp_path, "algo: toy\nenv_id: e\nalgo_kwargs: {learning_starts: 3}\n")
    assert load(path, "learning_starts=9").hyper.to_plain()["learning_starts"] == 9


def test_configuration_is_light_to_import() -> None:
    code = (
        "import sys, rl_training.config.train_config as c; assert 'yaml' not in sys.modules;"
        "import rl_training.config.loading;"
        "print([m for m in ('torch', 'gymnasium', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


SOURCE = re.compile(
    r"\(.*(\b(19|20)\d\d\b|authors' code|this package's|PyTorch's|Baselines|CleanRL|contrib|none)"
    r"|et al\. \(\d{4}\)|of the same source"
)


@pytest.mark.parametrize("name", sorted(packaged_specs()))
def test_the_description_of_each_default_names_its_source(name: str) -> None:
    """Those with a number; what is off by default adds nothing to what others have found."""
    for key, field in packaged_specs()[name].hyper.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if default is None or isinstance(default, bool | str):
            continue
        assert SOURCE.search(field.description or ""), f"{key}: {field.description}"


def test_a_rollout_is_shared_among_the_environments_unless_its_length_is_given() -> None:
    steps = {num_envs: PPOConfig().rollout_steps(num_envs) for num_envs in (1, 8, 60, 64, 1000)}
    assert steps == {1: 2048, 8: 256, 60: 34, 64: 32, 1000: 32}
    assert PPOConfig(num_steps=5).rollout_steps(8) == 5


@pytest.mark.parametrize(
    ("total", "interval"), [(50_000, 5_000), (123_456, 12_346), (10_000, 1_000), (300, 1_000)]
)
def test_auto_evaluates_ten_times_but_not_more_often_than_every_thousand_steps(
    total: int, interval: int
) -> None:
    config = TrainConfig(algo="dqn", env_id="CartPole-v1", total_timesteps=total)
    assert config.eval_interval == "auto"
    assert config.effective_eval_interval == interval
    assert config.with_changes(eval_interval=70).effective_eval_interval == 70
    assert config.with_changes(eval_interval=0).effective_eval_interval == 0


@pytest.mark.parametrize("name", sorted(packaged_configs()))
def test_packaged_configurations_evaluate_at_least_ten_times_after_the_beginning(name: str) -> None:
    config = resolve_config(name).config
    total, interval = config.total_timesteps, config.effective_eval_interval
    before_the_end = (total - 1) // interval
    assert before_the_end + (config.final_eval_episodes >= config.eval_episodes) >= 10
