"""Loading a configuration: what wins, where each value and each mistake came from."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config_cases import (
    MINIMAL,
    ToyConfig,
    load,
    refusal,
    toy_file,
)
from rl_training.config.loading import (
    describe_config,
    dump_yaml,
    find_config,
    packaged_configs,
)
from rl_training.config.train_config import TrainConfig
from rl_training.config.value_based import DQNConfig
from rl_training.errors import ConfigError

# Suggestions for unknown keys


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"gamma": 0.9}, "algo_kwargs.gamma"),
        ({"algo_kwargs": {"num_envs": 2}}, "num_envs"),
        ({"algo_kwargs": {"gama": 0.9}}, "algo_kwargs.gamma"),
        ({"n_envs": 2}, "num_envs"),
        ({"algo_kwargs": {"lr": 2}}, "algo_kwargs.learning_rate"),
        ({"algo_kwargs": {"exploration_fraction": 0.1}}, "algo_kwargs.epsilon.fraction"),
        (
            {"algo_kwargs": {"epsilon": {"intial": 1, "initial": 1, "final": 0}}},
            "algo_kwargs.epsilon.initial",
        ),
        ({"Seed": 1}, "seed"),
        ({"total_time_steps": 1}, "total_timesteps"),
    ],
)
def test_an_unknown_key_gets_the_nearest_name(wrong: dict[str, Any], right: str) -> None:
    (message,) = refusal({**MINIMAL, **wrong})
    assert message.startswith("argument: unknown key '")
    assert message.endswith(f"; did you mean '{right}'?")


def test_other_libraries_names_are_suggested_only_if_the_model_has_ours() -> None:
    values = {"algo": "plain", "env_id": "e", "algo_kwargs": {"exploration_fraction": 1}}
    (message,) = refusal(values)
    assert "epsilon" not in message


def test_a_key_like_none_gets_the_valid_keys() -> None:
    (message,) = refusal(
        {**MINIMAL, "algo_kwargs": {"epsilon": {"initial": 1, "final": 0, "qqq": 1}}}
    )
    assert message == (
        "argument: unknown key 'algo_kwargs.epsilon.qqq'; "
        "the valid keys here are initial, final, kind, fraction"
    )


def test_a_dotted_key_in_a_file_is_explained(tmp_path: Path) -> None:
    path = toy_file(tmp_path, "algo: toy\nenv_id: e\nalgo_kwargs.gamma: 0.9\n")
    (message,) = refusal(path)
    assert message.startswith("toy.yaml:3: unknown key 'algo_kwargs.gamma'; dots are for --set")


# Loading


def test_every_mistake_is_listed_at_once_with_its_place(tmp_path: Path) -> None:
    path = toy_file(
        tmp_path,
        """\
algo: toy
num_envs: -3
wrappers:
  - fine
  - {a: 1}
algo_kwargs:
  gama: 0.9
  learning_rate: {initial: 2, final: 0, knd: linear}
  hidden_sizes: [64, 0]
  double: 1
""",
    )
    messages = refusal(path, "seed=1.9", "device", "log_interval=010", "algo_kwargs.loss=mae")
    assert sorted(messages) == sorted(
        [
            "toy.yaml: env_id: missing; expected an environment's id, package.module:Class, "
            "a callable or an environment",
            "toy.yaml:2: num_envs: expected an integer from 1 to 4096, found -3",
            "toy.yaml:5: wrappers[1]: expected a wrapper's name, or one name with its arguments "
            "such as {Name: {key: value}}, found {'a': 1}",
            "toy.yaml:7: unknown key 'algo_kwargs.gama'; did you mean 'algo_kwargs.gamma'?",
            "toy.yaml:8: algo_kwargs.learning_rate.initial: "
            "expected a number above 0 and at most 1, found 2",
            "toy.yaml:8: unknown key 'algo_kwargs.learning_rate.knd'; "
            "did you mean 'algo_kwargs.learning_rate.kind'?",
            "toy.yaml:9: algo_kwargs.hidden_sizes[1]: expected an integer from 1 to 65536, found 0",
            "toy.yaml:10: algo_kwargs.double: expected true or false, found 1",
            "command line: seed: expected an integer from 0 to 2147483647, found 1.9",
            "command line: algo_kwargs.loss: expected 'huber' or 'mse', found the text 'mae'",
            "command line: expected KEY=VALUE such as seed=1, found the text 'device'",
            "command line: log_interval: the text '010' is read as different numbers by different "
            "programs; write it in decimal without leading zeros, or quote it",
        ]
    )


def test_a_rule_between_two_fields_names_the_block(tmp_path: Path) -> None:
    path = toy_file(tmp_path, "algo: toy\nenv_id: e\nalgo_kwargs:\n  subset_size: 3\n")
    assert refusal(path) == [
        "toy.yaml:3: algo_kwargs: subset_size must not exceed num_critics",
    ]


def test_an_unknown_algorithm_is_one_mistake_among_the_others() -> None:
    assert refusal(MINIMAL, "algo=tyo", "seed=-1") == [
        "command line: algo: unknown algorithm 'tyo'; known are toy, plain, dqn",
        "command line: seed: expected an integer from 0 to 2147483647, found -1",
    ]


def test_keys_of_another_algorithm_are_left_out_after_a_change_of_algorithm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = toy_file(tmp_path, "algo: toy\nenv_id: e\nalgo_kwargs: {gamma: 0.9, buffer_size: 8}\n")
    loaded = load(path, "algo=plain")
    assert loaded.hyper.gamma == 0.9
    assert caplog.messages == [
        "algo=plain does not take these keys of toy.yaml, which are left out: "
        "algo_kwargs.buffer_size"
    ]
    # What the command line itself says is never left out.
    (message,) = refusal(path, "algo=plain", "algo_kwargs.buffer_size=9")
    assert message.startswith("command line: unknown key 'algo_kwargs.buffer_size'")


def test_command_line_beats_argument_beats_file_beats_default(tmp_path: Path) -> None:
    path = toy_file(
        tmp_path,
        "algo: toy\nenv_id: e\nseed: 1\nnum_envs: 1\ntotal_timesteps: 1\n"
        "algo_kwargs:\n  gamma: 0.1\n  batch_size: 1\n  num_critics: 3\n",
    )
    loaded = load(
        path,
        "seed=3",
        "algo_kwargs.gamma=0.3",
        seed=2,
        num_envs=2,
        algo_kwargs={"gamma": 0.2, "batch_size": 2},
    )
    config, hyper = loaded.config, loaded.hyper.to_plain()
    assert (config.seed, config.num_envs, config.total_timesteps) == (3, 2, 1)
    assert (hyper["gamma"], hyper["batch_size"], hyper["num_critics"]) == (0.3, 2, 3)
    origins = loaded.origins
    assert [origins[key] for key in ("seed", "num_envs", "total_timesteps", "log_interval")] == [
        "command line",
        "argument",
        "toy.yaml:5",
        "default",
    ]
    names = ("gamma", "batch_size", "num_critics", "subset_size")
    assert [origins[f"algo_kwargs.{name}"] for name in names] == [
        "command line",
        "argument",
        "toy.yaml:9",
        "default",
    ]


def test_the_last_of_two_settings_wins() -> None:
    assert load(MINIMAL, "seed=1", "seed=2").config.seed == 2


def test_env_kwargs_merge_and_what_is_deeper_is_replaced(tmp_path: Path) -> None:
    path = toy_file(tmp_path, "algo: toy\nenv_id: e\nenv_kwargs: {a: 1, b: {x: 1, y: 2}}\n")
    loaded = load(path, env_kwargs={"b": {"z": 3}, "c": 4})
    assert loaded.config.env_kwargs == {"a": 1, "b": {"z": 3}, "c": 4}
    assert loaded.origins["env_kwargs.a"] == "toy.yaml:3"
    assert loaded.origins["env_kwargs.b.z"] == "argument"
    assert load(path, "env_kwargs.b.x=5").config.env_kwargs["b"] == {"x": 5, "y": 2}
    assert load(path, "env_kwargs={d: 1}").config.env_kwargs == {
        "a": 1,
        "b": {"x": 1, "y": 2},
        "d": 1,
    }


def test_a_key_of_a_default_schedule_can_be_set_alone() -> None:
    loaded = load(MINIMAL, "algo_kwargs.epsilon.final=0.01")
    assert loaded.config.algo_kwargs["epsilon"] == {
        "initial": 1.0,
        "final": 0.01,
        "kind": "linear",
        "fraction": 0.1,
    }
    assert loaded.origins["algo_kwargs.epsilon.final"] == "command line"
    assert loaded.origins["algo_kwargs.epsilon.initial"] == "default"


def test_a_key_inside_a_number_cannot_be_set() -> None:
    values = {**MINIMAL, "algo_kwargs": {"learning_rate": 0.5}}
    assert refusal(values, "algo_kwargs.learning_rate.final=0") == [
        "command line: algo_kwargs.learning_rate.final: cannot be set: "
        "algo_kwargs.learning_rate is 0.5, not a mapping"
    ]


@pytest.mark.parametrize("text", ["seed", "=1", ".seed=1", "a..b=1", "", "seed 1"])
def test_a_malformed_setting_is_shown(text: str) -> None:
    (message,) = refusal(MINIMAL, text)
    assert message.startswith("command line: expected KEY=VALUE such as seed=1, found the text")


def test_a_mapping_a_config_a_file_and_settings_end_in_the_same_object(tmp_path: Path) -> None:
    values = {**MINIMAL, "seed": 3, "algo_kwargs": {"hidden_sizes": (8, 8), "gamma": 1}}
    text = (
        "algo: toy\nenv_id: CartPole-v1\nseed: 3\nalgo_kwargs: {hidden_sizes: [8, 8], gamma: 1}\n"
    )
    settings = [
        "algo=toy",
        "env_id=CartPole-v1",
        "seed=3",
        "algo_kwargs.hidden_sizes=[8, 8]",
        "algo_kwargs.gamma=1",
    ]
    configs = [
        load(values).config,
        load(TrainConfig(**values)).config,
        load(None, **values).config,
        load(toy_file(tmp_path, text)).config,
        load(None, *settings).config,
    ]
    assert all(config == configs[0] for config in configs)
    assert load(configs[0]).config == configs[0]


def test_every_leaf_has_an_origin() -> None:
    loaded = load(MINIMAL)

    def leaves(value: Any, path: str) -> set[str]:
        if isinstance(value, dict) and value:
            return set().union(*(leaves(inner, f"{path}.{key}") for key, inner in value.items()))
        return {path[1:]}

    assert set(loaded.origins) == leaves(loaded.config.to_plain(), "")
    assert loaded.origins["algo_kwargs.epsilon.kind"] == "default"
    assert loaded.config.algo_kwargs == ToyConfig().to_plain()


def test_a_schedule_from_a_file_has_defaults_of_its_own(tmp_path: Path) -> None:
    path = toy_file(
        tmp_path,
        "algo: toy\nenv_id: e\nalgo_kwargs:\n  epsilon:\n    initial: 0.5\n    final: 0.1\n",
    )
    replaced = load(path, algo_kwargs={"epsilon": {"initial": 1, "kind": "constant"}}).origins
    assert replaced["algo_kwargs.epsilon.final"] == "default"
    origins = load(path).origins
    names = ("initial", "final", "kind", "fraction")
    assert [origins[f"algo_kwargs.epsilon.{name}"] for name in names] == [
        "toy.yaml:5",
        "toy.yaml:6",
        "default",
        "default",
    ]


AWKWARD = {
    "looks": ["1e-4", "0123", "yes", "true", "null", "", "1:30", "~", ".inf", "2024-01-01", "<<"],
    "text": [
        "a: b",
        "# c",
        "- d",
        "x\ny",
        "tab\t",
        "é\u2028\x85",
        "🙂",
        "{",
        "'",
        '"',
        " x ",
        "\x7f",
    ],
    "numbers": [1e-8, 1e22, -0.5, 10**20, 0, math.inf],
    "odd: key # yes": {"1": True, "on": None, "x" * 200: []},
}


def test_the_saved_config_loads_back_equal(tmp_path: Path) -> None:
    loaded = load({**MINIMAL, "wrappers": ["A", {"B": {"k": 1}}]}, env_kwargs=AWKWARD, seed=5)
    for text in (dump_yaml(loaded.config.to_plain()), describe_config(loaded)):
        again = load(toy_file(tmp_path, text))
        assert again.config == loaded.config
        assert again.hyper == loaded.hyper


def test_the_description_shows_origins_in_one_column(tmp_path: Path) -> None:
    path = toy_file(tmp_path, "algo: toy\nenv_id: CartPole-v1\n")
    lines = describe_config(load(path, "algo_kwargs.epsilon.final=0.01", seed=5)).splitlines()
    assert {line.index("#") for line in lines if "#" in line} == {lines[0].index("#")}
    texts = {line.split("#")[0].rstrip(): line.partition("# ")[2] for line in lines}
    assert texts["algo: toy"] == "toy.yaml:1"
    assert texts["seed: 5"] == "argument"
    assert texts["algo_kwargs:"] == ""
    assert texts["  hidden_sizes: [256, 256]"] == "default"
    assert texts["    final: 0.01"] == "command line"


def test_packaged_configs_are_found_by_name() -> None:
    names = packaged_configs()
    assert "dqn/cartpole" in names
    assert names == sorted(names)
    assert find_config("dqn/cartpole").name == "cartpole.yaml"
    loaded = load("dqn/cartpole")
    assert (loaded.config.algo, loaded.config.env_id) == ("dqn", "CartPole-v1")
    assert isinstance(loaded.hyper, DQNConfig)
    assert loaded.origins["algo"].startswith("cartpole.yaml:")


def test_a_missing_config_gets_the_nearest_names() -> None:
    with pytest.raises(ConfigError, match="did you mean 'dqn/cartpole'"):
        find_config("dqn/cartpol")
    with pytest.raises(ConfigError, match=r"packaged are: .*dqn/cartpole"):
        find_config("zzzzzz")
    for odd in ("", "x" * 5000, "a\0b", "."):
        with pytest.raises(ConfigError):
            find_config(odd)


def test_a_file_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "toy.yaml"
    path.write_bytes(b"algo: toy\nenv_id: \xff\n")
    assert refusal(path) == ["toy.yaml:2: expected UTF-8 text, found other bytes"]
    path.write_bytes(b"# " + b"x" * 1_000_000)
    assert refusal(path) == ["toy.yaml: larger than 1000000 bytes; this is no configuration"]
    path.write_bytes(b"\xef\xbb\xbfalgo: toy\r\nenv_id: e\r\n")
    assert load(path).config.env_id == "e"


def test_an_empty_block_sets_nothing(tmp_path: Path) -> None:
    path = toy_file(
        tmp_path,
        "algo: toy\nenv_id: e\nenv_kwargs:\nwrappers:\n# - A\nalgo_kwargs:\n  # gamma: 1\n",
    )
    assert load(path).config == load({"algo": "toy", "env_id": "e"}).config


def test_the_error_can_cross_a_process_border() -> None:
    with pytest.raises(ConfigError) as caught:
        load(MINIMAL, "sed=1")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_thousands_of_mistakes_are_cut_short(tmp_path: Path) -> None:
    text = "".join(f"q{number}: 1\n" for number in range(4_000))
    messages = refusal(toy_file(tmp_path, "algo: toy\nenv_id: e\n" + text))
    assert len(messages) == 51
    assert messages[-1] == "... and 3950 more mistakes"


# Generated


@settings(max_examples=500, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 10_000),
            st.sampled_from(["replace", "insert", "delete", "copy"]),
            st.integers(0, 255) | st.sampled_from(list(b":-[]{}&*!#\n\t '\"0e.~")),
        ),
        max_size=6,
    )
)
def test_a_damaged_config_is_valid_or_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str, int]]
) -> None:
    content = bytearray(find_config("dqn/cartpole").read_bytes())
    for position, action, byte in changes:
        at = position % len(content)
        if action == "insert":
            content.insert(at, byte)
        elif action == "copy":
            content[at:at] = content[at : at + byte]
        else:
            content[at : at + 1] = bytes([byte]) if action == "replace" else b""
    path = tmp_path_factory.getbasetemp() / "damaged.yaml"
    path.write_bytes(content)
    try:
        loaded = load(path)
    except ConfigError:
        assert changes, "the undamaged file loads"
    else:
        assert load(loaded.config).config == loaded.config
