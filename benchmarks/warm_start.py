"""What a warm start saves: SAC on a heavier pendulum, from scratch and from a trained agent.

    python -m benchmarks.warm_start                     # five seeds; again after an interruption

For each seed, one agent learns the ordinary pendulum. On a pendulum of mass 1.5 a fresh agent then
learns for `--steps`, and one with `init_from` the first for half of them. All of them have the
settings of `sac/pendulum`. Each evaluation is of the same 100 episodes; "reached" is the first
evaluation of the warm agent that is at least the fresh agent's last one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import PendulumEnv

from rl_training.config.train_config import TrainConfig
from rl_training.experiment.registry import resolve_config, train_config
from rl_training.experiment.statistics import interquartile_mean
from rl_training.runtime.result import TrainResult
from rl_training.storage.files import write_json
from rl_training.storage.metrics_log import read_metrics

MASS = 1.5
EVALUATIONS = 10  # of a warm run


class HeavyPendulum(PendulumEnv):
    """Gymnasium's pendulum with another mass."""

    def __init__(self, mass: float = MASS, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.m = mass


def trained(name: str, output: Path, **keys: Any) -> TrainResult:
    """A run of `sac/pendulum` with other keys; what there is of it already is gone on with."""
    given = {"output_dir": str(output), "run_name": name, "eval_episodes": 100, "device": "cpu"}
    config: TrainConfig = resolve_config("sac/pendulum", arguments={**given, **keys}).config
    return train_config(config, auto_resume=True)


def compare(seed: int, steps: int, output: Path) -> dict[str, Any]:
    """The returns of one seed: fresh, and warm with half of the steps."""
    heavy: dict[str, Any] = {
        "env_id": HeavyPendulum,
        "wrappers": [{"TimeLimit": {"max_episode_steps": 200}}],
    }
    source = trained(f"source-{seed}", output, seed=seed, total_timesteps=2 * steps)
    fresh = trained(f"fresh-{seed}", output, seed=seed, total_timesteps=steps, **heavy)
    half = steps // 2
    interval = max(1, half // EVALUATIONS)
    warm = trained(
        f"warm-{seed}",
        output,
        seed=seed,
        total_timesteps=half,
        eval_interval=interval,
        init_from=source.run_dir,
        **heavy,
    )
    curve = {
        int(row["global_step"]): float(row["eval/return_mean"])
        for row in read_metrics(warm.run_dir)
        if "eval/return_mean" in row
    }
    assert fresh.eval_return_mean is not None
    reached = [step for step, value in sorted(curve.items()) if value >= fresh.eval_return_mean]
    return {
        "seed": seed,
        "fresh": fresh.eval_return_mean,
        "fresh_steps": fresh.global_step,
        "warm": warm.eval_return_mean,
        "warm_steps": warm.global_step,
        "reached": reached[0] if reached else None,
        "warm_curve": curve,
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Train what is missing, print the table, write `warm_start.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many; default: %(default)s")
    parser.add_argument("--steps", type=int, default=5_000, help="of the fresh agent")
    parser.add_argument("--output", type=Path, default=Path("runs/warm_start"))
    options = parser.parse_args(arguments)
    rows = []
    for seed in range(options.seeds):
        rows.append(compare(seed, options.steps, options.output))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "warm_curve"}), flush=True)
    result = {
        "steps": options.steps,
        "mass": MASS,
        "fresh": interquartile_mean([row["fresh"] for row in rows]),
        "warm": interquartile_mean([row["warm"] for row in rows]),
        "reached_in_half": sum(row["reached"] is not None for row in rows),
        "seeds": rows,
    }
    write_json(options.output / "warm_start.json", result)
    print(
        f"interquartile mean over {len(rows)} seeds: fresh {result['fresh']:.1f} after "
        f"{options.steps:,} steps, warm {result['warm']:.1f} after {options.steps // 2:,}; "
        f"{result['reached_in_half']} of {len(rows)} warm agents reached the fresh one's return"
    )
    return result


if __name__ == "__main__":
    main()
