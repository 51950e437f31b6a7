"""Updates of DQN with a custom network or a custom loss, beside plain torch written by hand.

Run as a process with a workload and a number of rounds as JSON, it prints the microseconds of
processor time per update and round. Sampling and acting are left out: all learn from one batch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.libraries.ours import check_source, settings
from benchmarks.summary import BY_HAND, PACKAGED
from benchmarks.workloads import DQNWorkload, from_plain
from rl_training.algorithms import DQN, Loss
from rl_training.data.metrics import RecentMetrics
from rl_training.data.types import Batch, Clock

SECONDS = 1.0  # of each variant in each round

Update = Callable[[], object]


def network(spec: Any, hyper: Any) -> nn.Module:
    """A network that a user might write, of the workload's sizes."""
    layers: list[nn.Module] = []
    width = spec.obs_dim
    for size in hyper.hidden_sizes:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, spec.num_actions))


class CustomLoss(DQN):
    """A copy of DQN's loss, of which the package knows no kernel."""

    def loss(self, batch: Batch) -> Loss:
        """The weighted mean of the Huber loss, and the metrics of the packaged one."""
        target = batch.reward + batch.discount * self.target(batch.next_obs).amax(1)
        q = self.model(batch.obs)[torch.arange(len(batch.action)), batch.action]
        loss = (F.huber_loss(q, target, reduction="none") * batch.weight).mean()
        td_error = (q.detach() - target).abs()
        metrics = {
            "loss": loss.detach(),
            "q_value_mean": q.detach().mean(),
            "target_mean": target.mean(),
            "td_error_mean": td_error.mean(),
        }
        return Loss(loss, metrics, td_error)


class ByHand:
    """The same update in plain torch: autograd, and torch's fused Adam over one flat buffer."""

    def __init__(self, w: DQNWorkload, model: nn.Module, target: nn.Module, batch: Batch) -> None:
        self.model, self.target, self.batch = model, target, batch
        self.flat, self.flat_target = flatten(model), flatten(target)
        self.flat_target.copy_(self.flat)
        optimized = nn.Parameter(self.flat)
        self.grad = optimized.grad = torch.zeros_like(self.flat)
        start = 0
        for parameter in model.parameters():
            end = start + parameter.numel()
            parameter.grad = self.grad[start:end].view_as(parameter)
            start = end
        self.optimized = [optimized]
        self.optimizer = torch.optim.Adam(self.optimized, lr=w.learning_rate, fused=True)
        self.max_grad_norm = w.max_grad_norm
        self.copy_every = w.target_every // w.steps_per_update
        self.updates = 0

    def __call__(self) -> Tensor:
        """One update; its loss."""
        batch = self.batch
        with torch.no_grad():
            target = batch.reward + batch.discount * self.target(batch.next_obs).amax(1)
        q = self.model(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
        loss = F.huber_loss(q, target)
        self.grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        if self.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.optimized, self.max_grad_norm)
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.copy_every == 0:
            self.flat_target.copy_(self.flat)
        return loss.detach()


def flatten(module: nn.Module) -> Tensor:
    """One buffer that the parameters become views of."""
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    nn.utils.vector_to_parameters(flat, module.parameters())
    return flat


def ours(w: DQNWorkload, algorithm: type[DQN], **algo_kwargs: Any) -> DQN:
    """An algorithm as a run has it, with the kernels that there are for it."""
    import gymnasium as gym

    from rl_training.config.train_config import check_hyper_parameters
    from rl_training.envs.spaces import SpaceAdapter
    from rl_training.experiment.registry import get_spec, resolve_config
    from rl_training.fast.accelerate import accelerate
    from rl_training.runtime.agent import build_agent

    keys = settings(w)
    config = resolve_config(keys | {"algo_kwargs": keys["algo_kwargs"] | algo_kwargs}).config
    spec = replace(get_spec("dqn"), algorithm=algorithm)
    env = gym.make(w.env_id)
    adapter = SpaceAdapter(w.env_id, env.observation_space, env.action_space)
    hyper = check_hyper_parameters(spec.hyper, config.algo_kwargs)
    built: Any = build_agent(spec, config, hyper, adapter).algorithm
    accelerate(built)
    dqn: DQN = built
    return dqn


def update_of(dqn: DQN, w: DQNWorkload, batch: Batch) -> Update:
    """An update as the loop makes it, with what it keeps for the log."""
    recent, steps = RecentMetrics(), count(w.steps_per_update, w.steps_per_update)

    def update() -> None:
        result = dqn.update(batch, Clock(next(steps), w.budget))
        recent.add(result.metrics)

    return update


def random_batch(w: DQNWorkload) -> Batch:
    """A batch of the workload's sizes."""
    generator = torch.Generator().manual_seed(0)
    size = w.batch_size
    return Batch(
        obs=torch.randn(size, w.obs_dim, generator=generator),
        action=torch.randint(0, w.num_actions, (size,), generator=generator),
        reward=torch.ones(size),
        next_obs=torch.randn(size, w.obs_dim, generator=generator),
        discount=torch.full((size,), w.gamma),
        weight=torch.ones(size),
        slots=np.arange(size),
    )


def variants(w: DQNWorkload) -> tuple[dict[str, Update], dict[str, Tensor]]:
    """The updates to compare, and the parameters that each of them moves; all start equal."""
    batch = random_batch(w)
    algorithms = {
        "custom network": ours(w, DQN, network=network),
        "custom loss, packaged network": ours(w, CustomLoss),
        PACKAGED: ours(w, DQN),
    }
    first = algorithms["custom network"]
    by_hand = ByHand(w, network(first.spec, first.hyper), network(first.spec, first.hyper), batch)
    parameters = {BY_HAND: by_hand.flat}
    updates: dict[str, Update] = {BY_HAND: by_hand}
    for name, dqn in algorithms.items():
        parameters[name] = dqn.optimizer.flat.detach()
        parameters[name].copy_(by_hand.flat)
        dqn.target.flat.detach().copy_(by_hand.flat)
        updates[name] = update_of(dqn, w, batch)
    return updates, parameters


def microseconds(update: Update, seconds: float) -> float:
    """Processor time of an update, over roughly so long."""
    begin, made = time.process_time(), 0
    while (took := time.process_time() - begin) < seconds:
        for _ in range(20):
            update()
        made += 20
    return 1e6 * took / made


def measure(w: DQNWorkload, rounds: int, seconds: float = SECONDS) -> dict[str, list[float]]:
    """Microseconds by variant and round; the order is reversed in every other round."""
    from threadpoolctl import threadpool_limits

    from rl_training.runtime.process import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does; it serves the hand-written loop too
    updates, _ = variants(w)
    found: dict[str, list[float]] = {name: [] for name in updates}
    with threadpool_limits(1, user_api="blas"):
        for update in updates.values():  # the first step of torch's optimiser imports a compiler
            microseconds(update, min(0.2, seconds))
        for number in range(rounds):
            for name in list(updates)[:: -1 if number % 2 else 1]:
                found[name].append(microseconds(updates[name], seconds))
    return found


def main(argument: Mapping[str, Any]) -> None:
    """Measure as the argument says."""
    check_source()
    workload = from_plain(argument["workload"])
    assert isinstance(workload, DQNWorkload), workload
    print(json.dumps(measure(workload, argument["rounds"], argument["seconds"])))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
