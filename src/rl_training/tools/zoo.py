"""The agents that come with the package: the policy of each card's median seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from pydantic import ConfigDict, Field, ValidationError

from rl_training.config.base import ConfigModel
from rl_training.config.loading import packaged_configs
from rl_training.config.messages import show_value
from rl_training.config.train_config import TrainConfig
from rl_training.data.memory import format_bytes
from rl_training.errors import CheckpointError, RunError, UsageError, did_you_mean
from rl_training.experiment.manager import ExperimentManager
from rl_training.experiment.registry import load_agent, open_checkpoint, resolve_config
from rl_training.runtime.saved_info import saved_info
from rl_training.runtime.zoo import packaged_policies, policies_in
from rl_training.storage.checkpoints import Checkpoint, write_checkpoint
from rl_training.storage.files import replace_directory
from rl_training.storage.manifest import MANIFEST_NAME, damaged
from rl_training.tools.evidence.card import Card, card_files, read_card
from rl_training.tools.evidence.seeds import RUNS, Report, TrainedSeeds, train_seeds

ZOO = Path("zoo")
MAX_BYTES = 3 << 20
"""Size limit of an agent in the wheel, so that all of them together stay a small download."""

_KEPT = ("algo", "algo_path", "env_id", "updates", "execution", "device", "threads", "versions")


class PolicyRecord(ConfigModel):
    """The seed of a policy and the return it reached where it was trained.

    The return is over `episodes` episodes of the final policy. The seed is the median of a card
    that may come from another processor; `cpu` and the return are those of this policy's run.
    """

    model_config = ConfigDict(extra="ignore")

    seed: int = Field(ge=0)
    return_mean: float
    return_std: float = Field(ge=0)
    episodes: int = Field(ge=1)
    cpu: str = Field(max_length=200)


@dataclass(frozen=True)
class Policy:
    """A trained agent with its record, its size and how long it was trained."""

    name: str
    path: Path
    env_id: str
    env_steps: int
    num_bytes: int
    record: PolicyRecord


def make_policy(
    name: str, *, runs: Path = RUNS, output: Path | None = None, report: Report = print
) -> Path:
    """Write the policy of a card's median seed and return its directory.

    The seed's run is the one under `runs`/evidence, where `evidence run` trains it: kept if it is
    finished, else trained now.
    """
    cards = card_files()
    if name not in cards or name not in packaged_configs():
        raise UsageError(
            f"expected the name of a packaged configuration that has a card, found "
            f"{show_value(name)}{did_you_mean(name, cards) or '; see `rl-training evidence list`'}"
        )
    card = read_card(cards[name])
    if card.config != name:  # a file may have any name
        raise RunError(f"{cards[name]}: expected the card of {name}, found {card.config!r:.80}")
    config = resolve_config(name).config
    config = config.with_changes(output_dir=str(runs / "evidence"), run_name=None)
    manager = ExperimentManager(config, [card.median_seed], report=report)
    report(f"{card.config}: seed {card.median_seed}, the median, runs in {manager.directory}")
    renewal = f"`rl-training evidence run {card.config} --fresh`"
    trained = train_seeds(manager, fresh=False, renewal=renewal)
    return write_policy(card, trained, output, report)


def write_policy(card: Card, trained: TrainedSeeds, output: Path | None, report: Report) -> Path:
    """Write the policy of a card's median seed from its run and return its directory."""
    seed = card.median_seed
    evaluated = next(record for record in trained.records if record.seed == seed)
    record = PolicyRecord(
        seed=seed,
        return_mean=evaluated.return_mean,
        return_std=evaluated.return_std,
        episodes=evaluated.episodes,
        cpu=trained.machine.cpu,
    )
    checkpoint, config = open_checkpoint(trained.run_dirs[seed])
    if checkpoint.env_steps != evaluated.steps:
        raise CheckpointError(
            f"{checkpoint.path}: expected the policy after {evaluated.steps} steps, which was "
            f"evaluated, found the one after {checkpoint.env_steps}"
        )
    target = (output or ZOO) / card.config
    _write(checkpoint, config, record, target)
    size = _num_bytes(Checkpoint.open(target))
    large = f", more than the {format_bytes(MAX_BYTES)} that may go into the wheel"
    report(f"policy: {target} ({format_bytes(size)}{large if size > MAX_BYTES else ''})")
    return target


def _write(checkpoint: Checkpoint, config: TrainConfig, record: PolicyRecord, target: Path) -> None:
    agent = load_agent(checkpoint, config)
    plain = config.with_changes(run_name=None).to_plain()
    plain["output_dir"] = TrainConfig.model_fields["output_dir"].default
    saved = saved_info(checkpoint).to_plain()
    info: dict[str, Any] = {
        **{key: saved[key] for key in _KEPT},
        "resume_level": "none",
        "exact": False,
        "config": plain,
        "eval_return_mean": record.return_mean,
        "policy": record.to_plain(),
    }

    def write(folder: Path) -> Path:
        return write_checkpoint(
            folder,
            kind="best",
            env_steps=checkpoint.env_steps,
            parts=agent.policy_parts(),
            info=info,
        )

    replace_directory(target, write)


def read_policy(name: str, path: Path) -> Policy:
    """A policy as its manifest describes it."""
    checkpoint = Checkpoint.open(path)
    try:
        record = PolicyRecord.model_validate(checkpoint.info.get("policy"))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, ("info.policy", *first["loc"])))
        raise damaged(path / MANIFEST_NAME, f"{where}: {first['msg']}") from error
    return Policy(
        name=name,
        path=path,
        env_id=saved_info(checkpoint).env_id,
        env_steps=checkpoint.env_steps,
        num_bytes=_num_bytes(checkpoint),
        record=record,
    )


def read_policies(folder: Path | None = None) -> list[Policy]:
    """The policies in a folder, by default those that come with the package."""
    if folder is not None and not folder.is_dir():
        raise UsageError(f"expected a folder of policies, found none at {folder}")
    paths = packaged_policies() if folder is None else policies_in(folder)
    return [read_policy(name, path) for name, path in paths.items()]


def show_zoo(*, as_json: bool = False) -> None:
    """List the agents that come with the package, with their returns."""
    policies = read_policies()
    if as_json:
        plain = [
            {
                "name": policy.name,
                "env_id": policy.env_id,
                "env_steps": policy.env_steps,
                "bytes": policy.num_bytes,
                **policy.record.to_plain(),
            }
            for policy in policies
        ]
        typer.echo(json.dumps(plain, indent=2))
        return
    rows = [["agent", "environment", "steps", "return"]]
    for policy in policies:
        mean, std = policy.record.return_mean, policy.record.return_std
        rows.append(
            [policy.name, policy.env_id, f"{policy.env_steps:,}", f"{mean:.1f} ± {std:.1f}"]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        cells[2] = row[2].rjust(widths[2])
        typer.echo("  ".join(cells).rstrip())
    total = format_bytes(sum(policy.num_bytes for policy in policies))
    typer.echo(
        f"\n{len(policies)} agents, {total}; each is the median seed of its card, and its return\n"
        "the mean of 100 episodes and their standard deviation. Use them as runs:\n"
        'rl-training watch dqn/cartpole, or rl_training.load("dqn/cartpole")'
    )


def _num_bytes(checkpoint: Checkpoint) -> int:
    return sum(entry.size for entry in checkpoint.files.values())
