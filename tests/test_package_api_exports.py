"""The public names are listed once, and every one of them is there."""

from __future__ import annotations

import rl_training
import rl_training.algorithms
import rl_training.api
from rl_training.api.managed import ManagedAlgorithm
from rl_training.runtime.spec import all_specs


def test_every_listed_name_exists_and_is_what_it_says() -> None:
    for name in rl_training.__all__:
        assert getattr(rl_training, name).__name__ == name
    assert set(rl_training._HOMES) == set(rl_training.__all__)
    assert set(rl_training.__all__) <= set(dir(rl_training))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(rl_training, "DQNN")


def test_every_algorithm_has_a_managed_class_exported_twice() -> None:
    managed = {
        kind.algo_name: kind
        for kind in vars(rl_training.api).values()
        if isinstance(kind, type)
        and issubclass(kind, ManagedAlgorithm)
        and kind is not ManagedAlgorithm
    }
    assert set(managed) == set(all_specs())
    for kind in managed.values():
        assert getattr(rl_training, kind.__name__) is kind
        assert kind.__name__ in rl_training.api.__all__


def test_every_algorithm_has_an_update_class_and_a_training_function() -> None:
    for spec in all_specs().values():
        assert spec.algorithm.__name__ in rl_training.algorithms.__all__
    assert callable(rl_training.train_dqn)


def test_the_package_is_typed() -> None:
    from importlib.resources import files

    assert files("rl_training").joinpath("py.typed").is_file()
