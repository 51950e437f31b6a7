"""Losses of a user's algorithm: what they may return, and what is refused before a run begins."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from rl_training.algorithms.base import Algorithm, Loss, UpdateResult
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.sac import SAC
from rl_training.algorithms.value_based import ValueBased
from rl_training.config.train_config import TrainConfig, check_hyper_parameters
from rl_training.data.types import Batch, Clock
from rl_training.errors import UsageError
from rl_training.experiment.registry import get_spec
from rl_training.runtime.assembly import RunPlan, build
from rl_training.runtime.loss_check import check_losses
from rl_training.runtime.result import TrainResult
from rl_training.runtime.seeding import global_generator_state
from rl_training.runtime.spec import trainer
from rl_training.storage.metrics_log import read_metrics
from rl_training.storage.tree import tree_hash
from training import ALGORITHMS, KeepModel, tiny_config


def train_as(
    algo: str, algorithm: Any, tmp_path: Path, *, callbacks: Any = (), **hyper: Any
) -> TrainResult:
    """Train a class with everything else as of a packaged algorithm."""
    spec = replace(get_spec(algo), name="custom", algorithm=algorithm)
    config = tiny_config(algo, tmp_path)
    config = config.with_changes(algo="custom", algo_kwargs=config.algo_kwargs | hyper)
    return trainer(spec)(config, callbacks=callbacks)


def built(config: TrainConfig) -> Algorithm:
    """The algorithm of a configuration, as training builds it."""
    spec = get_spec(config.algo)
    hyper = check_hyper_parameters(spec.hyper, config.algo_kwargs)
    parts = build(RunPlan(spec=spec, config=config, hyper=hyper, callbacks=()))
    parts.close()
    return parts.agent.algorithm


class ScalarCritics(SAC):
    def critic_loss(self, batch: Batch, noise: Tensor) -> Any:
        return super().critic_loss(batch, noise).value


class ScalarActor(SAC):
    def actor_loss(self, batch: Batch, noise: Tensor) -> Any:
        return super().actor_loss(batch, noise).value


class Scalars(ScalarCritics, ScalarActor):
    """Two plain scalars, which are two metrics."""


@pytest.mark.parametrize("algorithm", [ScalarCritics, ScalarActor, Scalars])
def test_a_plain_scalar_is_a_loss(algorithm: type[SAC], tmp_path: Path) -> None:
    """It trains what SAC trains, its learned temperature included."""
    packaged, custom = KeepModel(), KeepModel()
    expected = train_as("sac", SAC, tmp_path / "packaged", callbacks=[packaged])
    found = train_as("sac", algorithm, tmp_path / "custom", callbacks=[custom])
    pairs = zip(packaged.model.parameters(), custom.model.parameters(), strict=True)
    for theirs, mine in pairs:
        assert_close(mine, theirs, rtol=0, atol=1e-4)
    assert found.updates == expected.updates == 110
    for name in ("train/critic_loss", "train/actor_loss"):
        assert found.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-3)


def test_the_temperature_learns_beside_an_actor_loss_without_entropy() -> None:
    agents = [built(tiny_config("sac", Path())), built(tiny_config("sac", Path()))]
    agents[1].__class__ = ScalarActor
    batch = Batch(
        obs=torch.randn(8, 3),
        action=torch.rand(8, 1),
        reward=torch.randn(8),
        next_obs=torch.randn(8, 3),
        discount=torch.ones(8),
        weight=torch.ones(8),
        slots=np.arange(8),
    )
    alphas = []
    for agent in agents:
        assert isinstance(agent, SAC)
        for _ in range(3):
            agent.update(batch, Clock(100, 1000))
        alphas.append(float(agent.temperature.alpha))
    assert alphas[0] == pytest.approx(1 - 3 * 3e-4, rel=1e-4)  # three of Adam's first steps
    assert alphas[1] == pytest.approx(alphas[0], rel=1e-6)


def gives(make: Any) -> type[DQN]:
    """A DQN whose loss gives what `make` makes of the packaged one."""

    class Custom(DQN):
        def loss(self, batch: Batch) -> Any:
            return make(super().loss(batch))

    return Custom


SCALAR = r"Custom\.loss: expected a scalar tensor that requires grad, or Loss\(value, metrics\)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda loss: None, rf"{SCALAR} with one, found NoneType None"),
        (lambda loss: 0.5, rf"{SCALAR} with one, found float 0\.5"),
        (lambda loss: (loss.value, {}), rf"{SCALAR} with one, found tuple"),
        (lambda loss: loss._replace(value=1.0), rf"{SCALAR} with one, found float 1\.0"),
        (
            lambda loss: loss.value.expand(2),
            rf"{SCALAR} .*found a tensor of shape \(2,\); reduce it",
        ),
        (lambda loss: loss.value.detach(), rf"{SCALAR} .*found one without a gradient"),
        (lambda loss: loss._replace(metrics=None), "expected metrics by name, found NoneType"),
        (lambda loss: loss._replace(metrics={1: loss.value}), "expected names .* found int 1"),
        (
            lambda loss: loss._replace(metrics={"q": 1.5}),
            r"the metric 'q' to be a tensor without dimensions, found float 1\.5",
        ),
        (
            lambda loss: loss._replace(metrics={"q": torch.zeros(3)}),
            r"the metric 'q' to be .* found a tensor of shape \(3,\)",
        ),
        (
            lambda loss: loss._replace(priority=torch.zeros(2, 1)),
            r"one for each row, a tensor of shape \(2,\), found a tensor of shape \(2, 1\)",
        ),
        (
            lambda loss: loss._replace(priority=loss.value.expand(2)),
            "expected a detached priority, found one with a gradient",
        ),
        (
            lambda loss: torch.ones((), requires_grad=True),
            r"expected a loss that depends on Custom\.model, which it trains, found one",
        ),
    ],
)
def test_what_is_no_loss_is_refused_before_a_run_begins(
    make: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        train_as("dqn", gives(make), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_prioritised_replay_needs_priorities(tmp_path: Path) -> None:
    """Without them it would stay uniform, and the option would do nothing."""
    bare = gives(lambda loss: loss._replace(priority=None))
    train_as("dqn", bare, tmp_path / "uniform")
    with pytest.raises(UsageError, match=r"prioritized: expected Custom\.loss to give a priority"):
        train_as("dqn", bare, tmp_path / "prioritized", prioritized=True)
    assert train_as("dqn", DQN, tmp_path / "packaged", prioritized=True).updates > 0


def test_a_class_that_cannot_be_built_is_refused_by_name(tmp_path: Path) -> None:
    class NoLoss(ValueBased):
        """Without the one method that has no default."""

    class NoSeed(DQN):
        def __init__(self, model: Any, hyper: Any, spec: Any) -> None:
            super().__init__(model, hyper, spec)

    for algorithm, reason in ((NoLoss, "abstract method loss"), (NoSeed, "'seed'")):
        with pytest.raises(UsageError, match=rf"custom: expected algorithm\(.*{reason}"):
            train_as("dqn", algorithm, tmp_path)
    with pytest.raises(UsageError, match=r"derived from .*Algorithm as the algorithm, found 7"):
        train_as("dqn", lambda *args, **options: 7, tmp_path)


def test_a_mistake_in_acting_is_not_blamed_on_the_environment(tmp_path: Path) -> None:
    class Custom(DQN):
        def act(self, *args: Any, **options: Any) -> Any:
            return super().act(*args, **options)._replace(action=None)

    with pytest.raises(AttributeError):  # its own error, not an EnvError
        train_as("dqn", Custom, tmp_path)


def test_a_parameter_that_nothing_trains_is_refused(tmp_path: Path) -> None:
    class Custom(DQN):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.beta = torch.nn.Parameter(torch.zeros(()))

    with pytest.raises(UsageError, match=r"Custom\.beta is a parameter that nothing trains"):
        train_as("dqn", Custom, tmp_path)


def test_a_loss_without_metrics_reports_its_value(tmp_path: Path) -> None:
    result = train_as("dqn", gives(lambda loss: loss._replace(metrics={})), tmp_path)
    rows = [row for row in read_metrics(result.run_dir / "metrics.jsonl") if "train/loss" in row]
    assert rows
    assert all(row["train/loss"] > 0 for row in rows)


def test_both_losses_of_an_actor_critic_are_tried(tmp_path: Path) -> None:
    class Custom(SAC):
        def actor_loss(self, batch: Batch, noise: Tensor) -> Any:
            return super().actor_loss(batch, noise).value[None]

    with pytest.raises(UsageError, match=r"Custom\.actor_loss: .*found a tensor of shape \(1,\)"):
        train_as("sac", Custom, tmp_path)


def test_a_loss_reaches_the_network_that_its_optimiser_trains(tmp_path: Path) -> None:
    """A gradient in the other network would be dropped, and this one would never learn."""

    class CriticInPlaceOfActor(SAC):
        actor_loss = SAC.critic_loss

    class ActorInPlaceOfCritics(SAC):
        def critic_loss(self, batch: Batch, noise: Tensor) -> Any:
            return self.actor(batch.obs).square().mean()

    for algorithm, loss, network in (
        (CriticInPlaceOfActor, "actor_loss", "actor"),
        (ActorInPlaceOfCritics, "critic_loss", "critics"),
    ):
        kind = algorithm.__name__
        message = rf"{kind}\.{loss}: expected a loss that depends on {kind}\.{network}, which"
        with pytest.raises(UsageError, match=message):
            train_as("sac", algorithm, tmp_path)


def test_an_error_in_a_loss_is_reported_as_its_own(tmp_path: Path) -> None:
    def fail(loss: Loss) -> None:
        raise KeyError(f"no {loss.value.ndim}")  # this line

    with pytest.raises(UsageError, match=r"(?s)Custom\.loss raised KeyError: 'no 0' \(") as error:
        train_as("dqn", gives(fail), tmp_path)
    assert "test_custom_losses.py, line " in str(error.value)
    assert "# this line); losses are tried before training" in str(error.value)
    assert isinstance(error.value.__cause__, KeyError)


def test_an_error_inside_torch_names_the_line_that_called_it(tmp_path: Path) -> None:
    def fail(loss: Loss) -> Tensor:
        return nn.functional.linear(torch.zeros(2, 3), torch.zeros(2, 4))

    with pytest.raises(UsageError, match=r"Custom\.loss raised RuntimeError: .*return nn\.func"):
        train_as("dqn", gives(fail), tmp_path)


def test_a_loss_that_cannot_be_differentiated_is_refused(tmp_path: Path) -> None:
    def overwrite(loss: Loss) -> Tensor:
        root = (loss.value + 1).sqrt()
        total = root * 2
        root.zero_()  # which the gradient of the root needs
        return total

    with pytest.raises(UsageError, match=r"the gradient of Custom\.loss raised RuntimeError: one"):
        train_as("dqn", gives(overwrite), tmp_path)


def test_a_loss_may_report_what_it_descends(tmp_path: Path) -> None:
    """Its graph is dropped, and the numbers are logged."""
    custom = gives(lambda loss: Loss(loss.value, {"loss": loss.value, "twice": 2 * loss.value}))
    metrics = train_as("dqn", custom, tmp_path).metrics
    assert metrics["train/twice"] == pytest.approx(2 * metrics["train/loss"], rel=1e-5)


class OtherUpdate(DQN):
    """Calls its loss with more than a batch."""

    def update(self, batch: Batch, clock: Clock) -> UpdateResult:
        rate = self.learning_rate(clock)
        loss = self.optimizer.descend(self.loss, batch, 2.0, learning_rate=rate)
        return UpdateResult(loss.metrics)

    def loss(self, batch: Batch, scale: float) -> Loss:  # type: ignore[override]
        loss = super().loss(batch)
        return loss._replace(value=scale * loss.value)


def test_a_class_with_another_update_gives_the_inputs_of_its_losses(tmp_path: Path) -> None:
    assert train_as("dqn", OtherUpdate, tmp_path).updates == 110

    class Tried(OtherUpdate):
        def example_inputs(self) -> dict[str, tuple[Any, ...]]:
            (batch,) = super().example_inputs()["loss"]
            return {"loss": (batch, "2.0")}

    with pytest.raises(UsageError, match=r"Tried\.loss raised TypeError"):
        train_as("dqn", Tried, tmp_path)


def everything(algorithm: Algorithm) -> tuple[Any, ...]:
    """All state there is, in hashes, and what is no state."""
    modules = [m for network in algorithm.networks().values() for m in network.modules()]
    return (
        tree_hash(algorithm.state_dict()),
        tree_hash(global_generator_state()),
        [module.training for module in modules],
        {name: id(value) for name, value in vars(algorithm).items()},
    )


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_trial_of_a_packaged_algorithm_leaves_no_trace(algo: str, tmp_path: Path) -> None:
    algorithm = built(tiny_config(algo, tmp_path))
    before = everything(algorithm)
    check_losses(algorithm)
    assert everything(algorithm) == before
    assert set(algorithm.example_inputs()) == set(algorithm.losses)  # each of them was tried


class Normalized(nn.Module):
    """Has running statistics and drops units while it is trained."""

    def __init__(self, env_spec: Any, hyper: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(env_spec.obs_dim, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, env_spec.num_actions),
        )

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(obs)


class Careless(DQN):
    """Draws from every generator there is and writes where it should not."""

    calls = 0

    def loss(self, batch: Batch) -> Loss:
        self.calls += 1
        self.exploration.take(1)
        noise = random.random() + np.random.random() + torch.rand(())
        loss = super().loss(batch)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(1.0)
        return loss._replace(value=loss.value + 0 * noise)


def test_the_trial_of_a_careless_loss_leaves_no_trace(tmp_path: Path) -> None:
    config = tiny_config("dqn", tmp_path, algo_kwargs={"network": Normalized})
    algorithm = built(config)
    algorithm.__class__ = Careless
    before = everything(algorithm)
    with pytest.raises(UsageError, match=r"the gradient of Careless\.loss"):
        check_losses(algorithm)
    assert everything(algorithm) == before
    assert "calls" not in vars(algorithm)
