"""Writes the parts of the documents that follow from the code, between their markers.

python docs/generate.py           # bring README.md, docs/*.md and the cards' pictures up to date
python docs/generate.py --check   # write nothing; fail if one of them is not
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.config import Schedule, TrainConfig
from rl_training.experiment.config_base import plain
from rl_training.experiment.config_loading import find_config, packaged_configs
from rl_training.experiment.config_words import expected_at
from rl_training.experiment.evidence_card import Card, Figures, Measured, Published, read_cards
from rl_training.experiment.evidence_picture import draw_card, is_drawn, shown_name
from rl_training.experiment.evidence_plan import seeds_text
from rl_training.experiment.evidence_record import figures_of
from rl_training.experiment.registry import resolve_config
from rl_training.experiment.yaml_strict import dump_flow, parse_yaml
from rl_training.runtime.compatibility import in_plain_words
from rl_training.runtime.spec import AlgorithmSpec, all_specs

ROOT = Path(__file__).resolve().parent.parent
CARDS = ROOT / "evidence"
BENCHMARKS = ROOT / "benchmarks" / "results"

WRONG = """\
# wrong.yaml
algo: dqn
env_id: CartPole-v1
total_timestep: 50_000
seed: one
algo_kwargs:
  gamma: 1.2
  lr: 1e-3
  double: yes
  epsilon: {initial: 1.0, kind: linear}
"""


def generated_parts() -> dict[str, dict[str, str]]:
    """The text between each pair of markers, by file and by the markers' name."""
    models = [TrainConfig, Schedule, *(spec.hyper for spec in all_specs().values())]
    check_descriptions(models)
    return {
        "README.md": {
            "algorithms": algorithm_table(),
            "results": short_results(evidence_cards(CARDS)),
            "benchmarks": benchmarks(),
        },
        "docs/configuration.md": {
            "top-level keys": key_table(TrainConfig),
            "schedule keys": key_table(Schedule),
            "algorithm keys": "\n\n".join(map(algorithm_section, all_specs().values())),
            "mistakes": mistakes_example(),
        },
        "docs/performance.md": {"benchmarks": benchmarks(), "replay": replay()},
        "docs/results.md": {"results": results(evidence_cards(CARDS))},
    }


def updated(text: str, parts: dict[str, str]) -> str:
    """The document with each part between `<!-- name -->` and `<!-- /name -->` replaced."""
    for name, part in parts.items():
        markers = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if len(markers.findall(text)) != 1:
            raise SystemExit(f"expected the markers <!-- {name} --> and <!-- /{name} --> once")
        text = markers.sub(lambda match, part=part: f"{match[1]}{part}\n{match[2]}", text)
    return text


def algorithm_table() -> str:
    """One row per algorithm."""
    header = ("algorithm", "what", "observations", "actions", "packaged configurations")
    configs = {name: _algo_of(name) for name in packaged_configs()}
    rows = (
        (
            f"`{spec.name}`",
            f"{spec.title} ({spec.paper})",
            in_plain_words(spec.observations),
            in_plain_words(spec.actions),
            ", ".join(f"`{name}`" for name, algo in configs.items() if algo == spec.name),
        )
        for spec in all_specs().values()
    )
    return table(header, rows)


def algorithm_section(spec: AlgorithmSpec) -> str:
    """A heading and the table of one algorithm's hyper-parameters."""
    return f"### `{spec.name}`: {spec.title}, {spec.paper}\n\n{key_table(spec.hyper)}"


def key_table(model: type[BaseModel]) -> str:
    """One row per field: name, what it takes, default, meaning."""
    rows = (
        (
            f"`{name}`",
            _grouped(expected_at(model, (name,))),
            _default(field),
            field.description or "",
        )
        for name, field in model.model_fields.items()
    )
    return table(("key", "takes", "default", "meaning"), rows)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    columns = list(header)
    lines = [
        columns,
        ["---"] * len(columns),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def benchmarks() -> str:
    """The tables of the latest benchmark, and of those of single workloads after it."""
    sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package
    from benchmarks.summary import markdown_tables

    files = [BENCHMARKS / "latest.json", *sorted(BENCHMARKS.glob("latest-*.json"))]
    newest, *others = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    newer = [results for results in others if results["date"] > newest["date"]]
    return "\n\n".join(map(markdown_tables, [newest, *newer]))


def replay() -> str:
    """What the latest measurement of the replay of images found."""
    from benchmarks.summary import replay_table

    results = json.loads((BENCHMARKS / "replay-latest.json").read_text(encoding="utf-8"))
    return replay_table(results)


def mistakes_example() -> str:
    """A file full of mistakes and what the command line answers to it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "wrong.yaml"
        path.write_text(WRONG, encoding="utf-8")
        try:
            resolve_config(path)
        except ConfigError as error:
            answer = f"error: {error}"
    return (
        f"For this file\n\n```yaml\n{WRONG}```\n\n`rl-training train --config wrong.yaml` prints, "
        f"and ends with exit code 2:\n\n```\n{answer}\n```"
    )


def evidence_cards(folder: Path) -> dict[str, Card]:
    """The cards by name; none is taken that was changed by hand."""
    try:
        return read_cards(folder)
    except RLTrainingError as error:
        raise SystemExit(f"error: {error}") from error


def results(cards: dict[str, Card]) -> str:
    """A row per card, then a section per card; a function of the cards alone."""
    if not cards:
        return "There is no card yet; `make evidence` makes them."
    header = ("card", "algorithm", "environment", "steps", "seeds")
    header += ("interquartile mean [95 %]", "each seed", "published", "one seed takes")
    rows = (
        (
            f"[`{name}`](#{name.replace('/', '')})",
            card.configuration["algo"],
            card.configuration["env_id"],
            f"{card.budget:,}",
            seeds_text(card.seed_numbers),
            _interval(card),
            ", ".join(map(_figure, card.returns)),
            _published(card.published),
            f"{sum(seed.seconds for seed in card.seeds) / len(card.seeds):,.0f} s",
        )
        for name, card in cards.items()
    )
    sections = (_card_section(name, card) for name, card in cards.items())
    return "\n\n".join([table(header, rows), *sections])


def short_results(cards: dict[str, Card]) -> str:
    """A row per card, for the README."""
    header = (
        "configuration",
        "steps",
        "seeds",
        "interquartile mean [95 %]",
        "each seed",
        "published",
    )
    rows = (
        (
            f"[`{name}`](docs/results.md#{name.replace('/', '')})",
            f"{card.budget:,}",
            seeds_text(card.seed_numbers),
            _interval(card),
            ", ".join(map(_figure, card.returns)),
            _published(card.published),
        )
        for name, card in cards.items()
    )
    return table(header, rows)


def _card_section(name: str, card: Card) -> str:
    machine, published = card.machine, card.published
    title = f"{shown_name(card.configuration['algo'])} on {card.configuration['env_id']}"
    seeds = seeds_text(card.seed_numbers)
    facts = [
        f"- Result: interquartile mean {_interval(card)} over seeds {seeds}, lowest "
        f"{_figure(card.figures.lowest)}."
        if len(card.seeds) > 1
        else f"- Result: {_interval(card)}, seed {seeds} alone.",
        f"- Protocol: {card.budget:,} environment steps, then {card.evaluation.episodes} episodes "
        "with the final policy, acting deterministically.",
        f"- Published: {published.what}: {_published(published)}."
        if published
        else "- No published figure is known.",
        f"- Trained {card.date} on {machine.cpu} ({machine.cores_usable} of {machine.cores} cores, "
        f"{machine.memory}), commit {', '.join(map(_short, card.commit.split(', ')))}, with "
        f"{', '.join(f'{package} {version}' for package, version in card.versions.items())}.",
    ]
    if biases := [s.measured for s in card.seeds if "q_bias_normalized_mean" in s.measured]:
        facts.insert(1, _bias(biases))
    if card.note:
        facts.append(f"- {card.note}")
    return "\n\n".join(
        [
            f"## `{name}`",
            f"![Learning curve of {title}](../evidence/{name}.png)",
            "\n".join(facts),
            f"[The card](../evidence/{name}.json), made by `{card.command}`, is checked by:",
            f"```\nrl-training evidence reproduce evidence/{name}.json\n```",
        ]
    )


def _bias(measured: list[dict[str, Measured]]) -> str:
    """The critics' bias at the end of the runs, in units of the mean return."""
    names = ("q_bias_normalized_mean", "q_bias_normalized_std")
    mean, spread = (figures_of([seed[name].values[-1] for seed in measured]) for name in names)
    return (
        f"- Q bias at the end, in mean returns: {_bias_figures(mean)}, spread over states "
        f"{_bias_figures(spread)}."
    )


def _bias_figures(figures: Figures) -> str:
    low, high = figures.interval_95
    return f"{figures.iqm:.3f} [{low:.3f}, {high:.3f}]"


def _interval(card: Card) -> str:
    """The figure with its interval, of which one seed has none."""
    figure, (low, high) = _figure(card.figures.iqm), card.figures.interval_95
    return f"{figure} [{_figure(low)}, {_figure(high)}]" if len(card.seeds) > 1 else figure


def _published(published: Published | None) -> str:
    if published is None:
        return "none known"
    spread = "" if published.return_std is None else f" ± {_figure(published.return_std)}"
    figure = f"{_figure(published.return_mean)}{spread} at {published.steps:,}"
    return f"{figure} ([source]({published.source}))"


def _figure(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _short(commit: str) -> str:
    name, dash, dirty = commit.partition("-")
    return f"`{name[:10]}{dash}{dirty}`"


def check_descriptions(models: Iterable[type[BaseModel]]) -> None:
    """Refuse a field without words."""
    fields = [(name, field) for model in models for name, field in model.model_fields.items()]
    if silent := sorted({name for name, field in fields if not field.description}):
        raise SystemExit(f"give these fields a description: {', '.join(silent)}")


def main(arguments: list[str]) -> int:
    """Write the documents and pictures, or with `--check` compare them; the exit code."""
    stale = [*_stale(), *_stale_pictures()]
    for path, content in stale:
        if "--check" not in arguments:
            _write(path, content)
        print(f"{path.relative_to(ROOT)}: {'stale' if '--check' in arguments else 'written'}")
    if stale and "--check" in arguments:
        print("run: python docs/generate.py")
        return 1
    return 0


def _stale() -> Iterator[tuple[Path, str]]:
    for name, parts in generated_parts().items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if (wanted := updated(text, parts)) != text:
            yield path, wanted


def _stale_pictures() -> Iterator[tuple[Path, Card]]:
    for name, card in evidence_cards(CARDS).items():
        path = CARDS / f"{name}.png"
        if not is_drawn(card, path):
            yield path, card


def _write(path: Path, content: str | Card) -> None:
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        draw_card(content, path)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Schedule):
        changed = value.model_dump(exclude_defaults=True)
        return f"`{{{', '.join(f'{key}: {dump_flow(end)}' for key, end in changed.items())}}}`"
    return f"`{_grouped(dump_flow(plain(value)))}`"


def _grouped(text: str) -> str:
    """Long whole numbers with the underscores that YAML and Python both read."""
    return re.sub(r"(?<![\d.])\d{5,}", lambda match: f"{int(match[0]):_}", text)


def _algo_of(config: str) -> Any:
    path = find_config(config)
    return parse_yaml(path.read_text(encoding="utf-8"), path.name)[0]["algo"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
