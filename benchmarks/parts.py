"""Where the time of a run of ours goes, part by part, and how it changes with threads.

Run as a process with a workload as JSON, it prints the microseconds of each part.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.workloads import Workload, from_plain

PARTS = ("acting", "env.step", "storing", "sampling", "gradient", "optimiser")


class Clock:
    """Seconds spent inside some methods, without what nested ones take."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.running = False
        self._inner = [0.0]

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Count the time inside `owner.method` as `part`."""
        original: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                took = time.perf_counter() - start
                inner = self._inner.pop()
                self._inner[-1] += took
                if self.running:
                    self.seconds[part] += took - inner

        setattr(owner, method, timed)


def microseconds(workload: Workload) -> dict[str, float]:
    """Time per transition of each part and of the rest, in the second half of a short run."""
    from benchmarks.libraries.ours import train
    from rl_training import Callback
    from rl_training.algorithms.optimization import Optimizer

    clock = Clock()

    class Watch(Callback):
        def on_start(self, run: Any) -> None:
            clock.watch(run.agent, "act", "acting")
            clock.watch(run.collector.envs, "step", "env.step")
            clock.watch(run.buffer, "add", "storing")
            clock.watch(
                run.buffer, "sample" if hasattr(run.buffer, "sample") else "take", "sampling"
            )
            clock.watch(run.algorithm, "update", "gradient")
            for name in run.algorithm.state_names():
                if isinstance(part := getattr(run.algorithm, name), Optimizer):
                    clock.watch(part, "step", "optimiser")

        def on_step(self, run: Any) -> None:
            if not clock.running and run.env_steps >= workload.warm_up:
                clock.running, self.begin = True, (time.perf_counter(), run.env_steps)
            self.end = (time.perf_counter(), run.env_steps)

    watch = Watch()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    train(workload, watch)
    (begin, before), (end, after) = watch.begin, watch.end
    per_step = {part: 1e6 * clock.seconds[part] / (after - before) for part in PARTS}
    total = 1e6 * (end - begin) / (after - before)
    return per_step | {"the rest": total - sum(per_step.values()), "total": total}


def update_times(widths: Sequence[int], batches: Sequence[int]) -> list[dict[str, float]]:
    """Microseconds of one DQN update and one action: kernels, tensors, tensors by all threads."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_limits

    from rl_training.algorithms.dqn import DQN, DQNConfig
    from rl_training.data.types import Batch, Clock, EnvSpec
    from rl_training.fast.accelerate import accelerate
    from rl_training.models.mlp_q_network import MLPQNetwork

    spec = EnvSpec(env_id="made up", obs_shape=(8,), action_kind="discrete", num_actions=4)
    many, clock, obs = torch.get_num_threads(), Clock(0, 1), np.zeros((1, 8), np.float32)
    rows = []
    for width in widths:
        for size in batches:
            batch = Batch(
                obs=torch.randn(size, 8),
                action=torch.randint(0, 4, (size,)),
                reward=torch.ones(size),
                next_obs=torch.randn(size, 8),
                discount=torch.full((size,), 0.99),
                weight=torch.ones(size),
                slots=np.arange(size),
            )
            hidden = (width, width)
            plain, fast = (
                DQN(MLPQNetwork(8, 4, hidden), DQNConfig(hidden_sizes=hidden), spec)
                for _ in range(2)
            )
            torch.set_num_threads(1)
            accelerate(fast)

            def work(dqn: DQN, batch: Batch = batch) -> None:
                dqn.update(batch, clock)
                dqn.greedy(obs)

            modes = {"kernels": (1, fast), "tensors": (1, plain), f"tensors, {many}": (many, plain)}
            best: dict[str, float] = {}
            for mode, (threads, dqn) in [*modes.items()] * 3:
                torch.set_num_threads(threads)
                with threadpool_limits(1, user_api="blas"):
                    took = _microseconds(partial(work, dqn))
                best[mode] = min(best.get(mode, float("inf")), took)
            rows.append({"width": width, "batch": size, **best})
    torch.set_num_threads(many)
    return rows


def ensemble_times(counts: Sequence[int], rounds: int = 5) -> list[dict[str, float]]:
    """Milliseconds of a REDQ update by its number of critics, beside the first and the limit.

    One thread, layers of 256 and a batch of 256 as in W5, the actor's step in one update of twenty.
    The numbers of critics take turns; the best of the rounds counts.
    """
    import numpy as np
    import torch
    from threadpoolctl import threadpool_limits

    from benchmarks.limits import gflops, sac_flops
    from benchmarks.workloads import W5
    from rl_training.algorithms.redq import REDQ, REDQConfig
    from rl_training.data.types import Batch, Clock, EnvSpec
    from rl_training.fast.accelerate import accelerate
    from rl_training.models.mlp_actor_q_ensemble import MLPActorQEnsemble
    from rl_training.runtime.process import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    size = W5.batch_size
    spec = EnvSpec(env_id="made up", obs_shape=(3,), action_kind="continuous", action_dim=1)
    batch = Batch(
        obs=torch.randn(size, 3),
        action=torch.rand(size, 1) * 2 - 1,
        reward=torch.ones(size),
        next_obs=torch.randn(size, 3),
        discount=torch.full((size,), 0.99),
        weight=torch.ones(size),
        slots=np.arange(size),
    )
    agents = {}
    for count in counts:
        hyper = REDQConfig(num_critics=count)
        agents[count] = REDQ(MLPActorQEnsemble.build(spec, hyper), hyper, spec)
        accelerate(agents[count])
    best, peak = dict.fromkeys(counts, float("inf")), 0.0
    with threadpool_limits(1, user_api="blas"):
        for _ in range(rounds):
            peak = max(peak, gflops(W5))
            for count, agent in agents.items():
                took = _microseconds(lambda redq=agent: redq.update(batch, Clock(0, 1)), 2.0)
                best[count] = min(best[count], took)
    rows = []
    for count in counts:
        w = replace(W5, num_critics=count, updates_per_step=1)
        products = 1e6 * sac_flops(w) / (peak * 1e9)
        shares = {"of the first": best[count] / best[counts[0]], "limit": products / best[count]}
        rows.append({"critics": count, "ms": best[count] / 1e3, **shares})
    return rows


def _microseconds(work: Callable[[], Any], seconds: float = 0.2) -> float:
    for _ in range(3):
        work()
    start, count = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        work()
        count += 1
    return 1e6 * (time.perf_counter() - start) / count


if __name__ == "__main__":
    print(json.dumps(microseconds(from_plain(json.loads(sys.argv[1])))))
