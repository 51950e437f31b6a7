"""Writes what follows from the code: parts of the documents, between their markers, and stubs.

python docs/generate.py           # bring README.md, docs/*.md, pictures and stubs up to date
python docs/generate.py --check   # write nothing; fail if one of them is not
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rl_training.config import other_packages
from rl_training.config.base import plain
from rl_training.config.loading import find_config, packaged_configs
from rl_training.config.messages import describe_field
from rl_training.config.schedule import Schedule
from rl_training.config.strict_yaml import dump_flow, parse_yaml
from rl_training.config.train_config import TrainConfig
from rl_training.data.types import EnvSpec
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.registry import resolve_config
from rl_training.experiment.statistics import share_interval
from rl_training.exports import EXPORTS
from rl_training.runtime.compatibility import in_plain_words
from rl_training.runtime.spec import AlgorithmSpec
from rl_training.runtime.spec_table import packaged_specs
from rl_training.tools.comparison import compare
from rl_training.tools.comparison_output import tables
from rl_training.tools.evidence.card import (
    Card,
    Figures,
    Published,
    read_cards,
    seeds_text,
)
from rl_training.tools.evidence.make import planned_cards
from rl_training.tools.evidence.plot import draw_card, is_drawn
from rl_training.tools.evidence.seeds import figures_over
from rl_training.tools.evidence.tasks import TaskFigure, draw_task, is_task_drawn, task_figures
from rl_training.tools.plot import default_path
from rl_training.tools.plotting import paper_name
from rl_training.tools.results import read_results

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the benchmarks are no part of the installed package
SOURCE = ROOT / "src"
CARDS = ROOT / "evidence"
PICTURES = ROOT / "docs" / "pictures"
BENCHMARKS = ROOT / "benchmarks" / "results"
STUB_HEADER = "# Generated from rl_training/exports.py by docs/generate.py; change the table there."

CALL = r"[\w.]+\([^()]*(?:\([^()]*\)[^()]*)*\)"
TYPED = re.compile(
    rf"rl-training \w+(?: --env CartPole-v1)?|{CALL}(?:\.\w+\(\))?"
    r"|\b\w+=(?:\[[^]]*\]|\{[^}]*\}|'[^']*'|\.\.\.|\w+(?:\([^)]*\))?)?"
    r"|\b\w+(?:[._]\w+)+\b"
)
"""What a reader types in an answer: commands, calls, arguments, names with a dot or underscore."""

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
    specs = packaged_specs().values()
    models = [TrainConfig, Schedule, *(spec.hyper for spec in specs)]
    check_descriptions(models)
    cards = evidence_cards(CARDS)
    return {
        "README.md": {
            "algorithms": algorithm_table("docs/"),
            "results": short_results(cards),
            "speed": speed(),
        },
        **{f"docs/{page_of(spec)}": algorithm_page(spec, cards) for spec in specs},
        "docs/choosing.md": {"algorithms": algorithm_table("")},
        "docs/from_sb3.md": {
            "keys": table(("there", "here"), ours_by_theirs(other_packages.KEYS)),
            "other keys": answers(other_packages.KEY_ANSWERS),
            "arguments": answers(other_packages.ARGUMENTS),
            "imports": answers(other_packages.IMPORTS),
            "attributes": answers(other_packages.ATTRIBUTES),
        },
        "docs/recurrent.md": {
            "masked": comparison(
                cards,
                {
                    "DRQN": "drqn/cartpole_masked",
                    "recurrent PPO": "recurrent_ppo/cartpole_masked",
                    "DQN, feed-forward": "dqn/cartpole_masked",
                },
            ),
            "initial states": comparison(
                cards,
                {
                    "the stored state, refreshed by 8 rows of burn-in": "drqn/cartpole_masked",
                    "the stored state, unchanged": "drqn/cartpole_masked_stored",
                    "zeros": "drqn/cartpole_masked_zero",
                },
            ),
        },
        "docs/actor_critic.md": {
            "update ratio": comparison(
                cards,
                {
                    "SAC, 1 update per step": "sac/pendulum_1500",
                    "REDQ, 20 updates per step": "redq/pendulum",
                    "SAC, 1 update per step, for longer": "sac/pendulum",
                },
            ),
            "bias": bias_table(
                cards, {"`sac`": "sac/inverted_pendulum", "`redq`": "redq/inverted_pendulum"}
            ),
        },
        "docs/pixels.md": {
            "point": comparison(
                cards,
                {"with shifts": "drq/point_pixels", "without shifts": "drq/point_pixels_plain"},
            ),
            "pendulum": comparison(
                cards,
                {
                    "DrQ, batches of 64": "drq/pendulum_pixels",
                    "DrQ-v2, batches of 128": "drqv2/pendulum_pixels",
                },
            ),
        },
        "docs/comparing.md": {
            "compared": compared(
                "drqn/cartpole_masked", "dqn/cartpole_masked", "recurrent_ppo/cartpole_masked"
            )
        },
        "docs/configuration.md": {
            "top-level keys": key_table(TrainConfig),
            "schedule keys": key_table(Schedule),
            "mistakes": mistakes_example(),
        },
        "docs/package_index.md": {"algorithms": algorithm_table()},
        "docs/performance.md": {"benchmarks": benchmarks(), "replay": replay()},
        "docs/results.md": {"results": results(cards)},
    }


def updated(text: str, parts: dict[str, str]) -> str:
    """The document with each part between `<!-- name -->` and `<!-- /name -->` replaced."""
    for name, part in parts.items():
        markers = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if len(markers.findall(text)) != 1:
            raise SystemExit(f"expected the markers <!-- {name} --> and <!-- /{name} --> once")
        text = markers.sub(lambda match, part=part: f"{match[1]}{part}\n{match[2]}", text)
    return text


def algorithm_table(folder: str | None = None) -> str:
    """One row per algorithm, which links to its page if there is a folder of pages."""
    header = ("algorithm", "what", "observations", "actions", "packaged configurations")
    configs = {name: _algo_of(name) for name in packaged_configs()}
    rows = (
        (
            f"`{spec.name}`" if folder is None else f"[`{spec.name}`]({folder}{page_of(spec)})",
            f"{spec.title} ({spec.paper})",
            in_plain_words(spec.observations),
            in_plain_words(spec.actions),
            ", ".join(f"`{name}`" for name, algo in configs.items() if algo == spec.name),
        )
        for spec in packaged_specs().values()
    )
    return table(header, rows)


def page_of(spec: AlgorithmSpec) -> str:
    """The page of an algorithm, in docs/."""
    name = f"algorithms/{spec.name}.md"
    if not (ROOT / "docs" / name).exists():
        raise SystemExit(f"write the page of {spec.name}, docs/{name}")
    return name


def algorithm_page(spec: AlgorithmSpec, cards: dict[str, Card]) -> dict[str, str]:
    """The generated parts of an algorithm's page."""
    configs = [name for name in packaged_configs() if _algo_of(name) == spec.name]
    rows = (
        ("paper", spec.paper),
        ("observations", in_plain_words(spec.observations)),
        ("actions", in_plain_words(spec.actions)),
        ("packaged configurations", ", ".join(f"`{name}`" for name in configs)),
    )
    found = {name: card for name, card in cards.items() if card.configuration["algo"] == spec.name}
    return {
        "facts": table((f"`{spec.name}`", spec.title), rows),
        "keys": key_table(spec.hyper),
        "evidence": evidence_table(found),
        "reading": reading(spec),
    }


def evidence_table(cards: dict[str, Card]) -> str:
    """The cards of an algorithm, with the learning curve of the first."""
    if not cards:
        return "There is no card yet."
    header = ("card", "environment", "steps", "seeds", "interquartile mean [95 %]", "published")
    rows = (
        (
            f"[`{name}`](../results.md#{name.replace('/', '')})",
            card.configuration["env_id"],
            f"{card.budget:,}",
            seeds_text(card.seed_numbers),
            _interval(card),
            _published(card.published),
        )
        for name, card in cards.items()
    )
    first, card = next(iter(cards.items()))
    title = f"{paper_name(card.configuration['algo'])} on {card.configuration['env_id']}"
    picture = f"![Learning curve of {title}](../../evidence/{first}.png)"
    return f"{table(header, rows)}\n\n{picture}"


def reading(spec: AlgorithmSpec) -> str:
    """The files to read for an algorithm: importers first, networks last."""
    return "\n".join(
        f"{number}. [`{name}`](../../src/rl_training/{name}): {_what_it_holds(name)}"
        for number, name in enumerate(reading_order(spec), 1)
    )


def _what_it_holds(name: str) -> str:
    """The first sentence of a module's docstring."""
    tree = ast.parse((SOURCE / "rl_training" / name).read_text(encoding="utf-8"))
    docstring = ast.get_docstring(tree) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def ours_by_theirs(keys: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Rows of names: theirs, and those of ours that it may mean."""
    for theirs, ours in sorted(keys.items()):
        yield f"`{theirs}`", " or ".join(f"`{name}`" for name in ours)


def answers(known: Mapping[str, str]) -> str:
    """A table of what others write, and what the package answers."""
    rows = ((f"`{name}`", _as_code(answer)) for name, answer in sorted(known.items()))
    return table(("there", "here"), rows)


def _as_code(answer: str) -> str:
    """An answer with what a reader types set as code."""
    return TYPED.sub(r"`\g<0>`", answer)


def reading_order(spec: AlgorithmSpec) -> list[str]:
    """What an update is made of: what it is given, `algorithms`, then `models`."""
    images = "vector" not in spec.observations
    env = EnvSpec(
        env_id="example",
        obs_shape=(9, 84, 84) if images else (4,),
        obs_dtype="uint8" if images else "float32",
        action_kind="discrete" if "discrete" in spec.actions else "continuous",
        num_actions=2 if "discrete" in spec.actions else 0,
        action_dim=0 if "discrete" in spec.actions else 1,
    )
    network = type(spec.model(env, spec.hyper())).__module__.replace(".", "/")
    start = [f"rl_training/algorithms/{spec.name}", network]
    importers: dict[str, set[str]] = {name: set() for name in start}
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        for imported in imported_files(name):
            if imported not in importers:
                importers[imported] = set()
                waiting.append(imported)
            importers[imported].add(name)
    found = [f"{name.removeprefix('rl_training/')}.py" for name in _in_order(importers)]
    # Stable, and first of all the batch, the clock and the shapes that everything is given.
    return ["data/types.py", *sorted(found, key=lambda name: name.startswith("models"))]


def imported_files(name: str) -> list[str]:
    """The modules of `algorithms` and `models` that one of them imports, sorted."""
    tree = ast.parse((SOURCE / f"{name}.py").read_text(encoding="utf-8"))
    found = {
        path
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for path in (
            node.module.replace(".", "/"),
            *(f"{node.module.replace('.', '/')}/{alias.name}" for alias in node.names),
        )
        if re.match("rl_training/(algorithms|models)/", path)
    }
    return sorted(path for path in found if (SOURCE / f"{path}.py").exists())


def _in_order(importers: Mapping[str, set[str]]) -> list[str]:
    """The names, each after those that import it; equals by name."""
    sorter = TopologicalSorter(importers)
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += ready
        sorter.done(*ready)
    return order


def key_table(model: type[BaseModel]) -> str:
    """One row per field: name, what it takes, default, meaning."""
    rows = (
        (
            f"`{name}`",
            _grouped(describe_field(model, (name,))),
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
    from benchmarks.summary import markdown_tables

    return "\n\n".join(map(markdown_tables, latest_benchmarks()))


def speed() -> str:
    """The same in one table, of the ratios alone."""
    from benchmarks.summary import speed_table

    return speed_table(latest_benchmarks())


def latest_benchmarks() -> list[dict[str, Any]]:
    """The latest benchmark of all workloads, and those of single ones after it."""
    files = [BENCHMARKS / "latest.json", *sorted(BENCHMARKS.glob("latest-*.json"))]
    newest, *others = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    return [newest, *(results for results in others if results["date"] > newest["date"])]


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
        f"and ends with exit code 2:\n\n```text\n{answer}\n```"
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
    header = ("card", "algorithm", "environment", "steps", "seeds", "failed")
    header += ("interquartile mean [95 %]", "each seed", "published", "one seed takes")
    rows = (
        (
            f"[`{name}`](#{name.replace('/', '')})",
            card.configuration["algo"],
            card.configuration["env_id"],
            f"{card.budget:,}",
            seeds_text(card.seed_numbers),
            _failed(card),
            _interval(card),
            _returns(card),
            _published(card.published),
            f"{sum(seed.seconds for seed in card.seeds) / len(card.seeds):,.0f} s",
        )
        for name, card in cards.items()
    )
    pictures = [
        f"![Learning curves of all cards on {figure.task}](pictures/{figure.file_name})"
        for figure in task_figures(cards)
    ]
    by_task = ["## By task", *pictures] if pictures else []
    sections = (_card_section(name, card) for name, card in cards.items())
    missing = ", ".join(f"`{name}`" for name in planned_cards() if name not in cards)
    note = [f"Planned, but not made yet: {missing}."] if missing else []
    return "\n\n".join([table(header, rows), *note, *by_task, *sections])


def _returns(card: Card) -> str:
    """Each seed's return in the order of the seeds; of many seeds, how often each return occurs."""
    figures = [_figure(value) for value in card.returns]
    if len(figures) <= 20:
        return ", ".join(figures)
    often = Counter(_figure(value) for value in sorted(card.returns, reverse=True))
    return ", ".join(f"{n} x {figure}" if n > 1 else figure for figure, n in often.items())


def short_results(cards: dict[str, Card]) -> str:
    """A row per planned card but variants, for the README; cards that are missing say so."""
    header = ("configuration", "steps", "seeds", "failed")
    header += ("interquartile mean [95 %]", "lowest", "published")
    rows = [
        (
            f"[`{name}`](docs/results.md#{name.replace('/', '')})",
            f"{card.budget:,}",
            seeds_text(card.seed_numbers),
            _failed(card),
            _interval(card),
            _figure(card.figures.lowest),
            _published(card.published, link=False),
        )
        for name, card in cards.items()
        if not is_variant(name)
    ]
    planned = planned_cards().items()
    rows += [
        (f"`{name}`", "", plan.seeds, "", "missing", "", "")
        for name, plan in planned
        if name not in cards and not is_variant(name)
    ]
    return table(header, rows)


def is_variant(name: str) -> bool:
    """Whether a card varies another, whose name its own begins with: an ablation, a comparison."""
    return any(name.startswith(f"{other}_") for other in planned_cards())


def comparison(cards: dict[str, Card], names: Mapping[str, str]) -> str:
    """Cards beside each other, by what is compared."""
    header = ("", "card", "steps", "seeds", "interquartile mean [95 %]", "lowest seed")
    rows = (
        (
            label,
            f"[`{name}`](results.md#{name.replace('/', '')})",
            f"{cards[name].budget:,}",
            seeds_text(cards[name].seed_numbers),
            _interval(cards[name]),
            _figure(cards[name].figures.lowest),
        )
        for label, name in names.items()
    )
    return table(header, rows)


def compared(*names: str) -> str:
    """What `rl-training compare` prints for cards."""
    results = read_results([CARDS / f"{name}.json" for name in names])
    comparison = compare(results)
    lines = [f"$ rl-training compare {' '.join(names)}", tables(comparison)]
    lines += [f"picture: {default_path(results, prefix='compare')}", *comparison.sentences]
    return "\n".join(["```", *lines, "```"])


def bias_table(cards: dict[str, Card], names: Mapping[str, str]) -> str:
    """How far the critics are off, and what becomes of a policy once it has solved the task."""
    found = [cards[name] for name in names.values()]
    spread = ("q_bias_normalized_mean", "q_bias_normalized_std")
    ends = [[_last(card, name) for card in found] for name in spread]
    rows = [
        ("return at the end", *map(_interval, found)),
        ("Q bias at the end, in mean returns", *map(_bias_figures, ends[0])),
        ("its spread over states", *map(_bias_figures, ends[1])),
        ("evaluations below the best one, once it was reached", *map(_relapses, found)),
    ]
    links = (f"[{label}](results.md#{name.replace('/', '')})" for label, name in names.items())
    return table(("", *links), rows)


def _last(card: Card, name: str) -> Figures:
    """The last value that the callbacks of each seed measured, over the seeds."""
    return figures_over([seed.measured[name].values[-1] for seed in card.seeds])


def _relapses(card: Card) -> str:
    """How many evaluations fell below the best return after it was first reached, and how far."""
    best = max(point for seed in card.seeds for point in seed.curve.returns)
    count, falls = 0, []
    for seed in card.seeds:
        curve = seed.curve.returns
        if best not in curve:
            continue
        later = range(curve.index(best) + 1, len(curve))
        count += len(later)
        falls += [(seed, at) for at in later if curve[at] < best]
    text = f"{len(falls)} of {count}"
    for seed, at in falls:
        bias, spread = (
            seed.measured[name].values[at]
            for name in ("q_bias_normalized_mean", "q_bias_normalized_std")
        )
        text += f"; to {_figure(seed.curve.returns[at])}, with a bias of {bias:.1f}"
        text += f" and a spread of {spread:.2f}"
    return text


def _card_section(name: str, card: Card) -> str:
    machine, published = card.machine, card.published
    title = f"{paper_name(card.configuration['algo'])} on {card.configuration['env_id']}"
    seeds = seeds_text(card.seed_numbers)
    facts = [
        f"- Result: interquartile mean {_interval(card)} over seeds {seeds}, lowest "
        f"{_figure(card.figures.lowest)}."
        if len(card.seeds) > 1
        else f"- Result: {_interval(card)}, seed {seeds} alone.",
        *([f"- {_failures(card)}"] if card.failure_below is not None else []),
        f"- Protocol: {card.budget:,} environment steps, then {card.evaluation.episodes} episodes "
        "with the final policy, acting deterministically.",
        f"- Published: {published.what}: {_published(published)}."
        if published
        else "- No published figure is known.",
        f"- Trained {card.date} on {machine.cpu} ({machine.cores_usable} of {machine.cores} cores, "
        f"{machine.memory}), commit {', '.join(map(_short, card.commit.split(', ')))}, with "
        f"{', '.join(f'{package} {version}' for package, version in card.versions.items())}.",
    ]
    if all("q_bias_normalized_mean" in seed.measured for seed in card.seeds):
        facts.insert(1, _bias(card))
    if card.note:
        facts.append(f"- {card.note}")
    return "\n\n".join(
        [
            f"## `{name}`",
            f"![Learning curve of {title}](../evidence/{name}.png)",
            "\n".join(facts),
            f"[The card](../evidence/{name}.json), made by `{card.command}`, is checked by:",
            f"```\nrl-training evidence reproduce {name}\n```",
        ]
    )


def _failed(card: Card) -> str:
    """How many seeds failed, where the card says what a failure is."""
    failed = card.failed()
    return "" if failed is None else f"{failed} of {len(card.seeds)}"


def _failures(card: Card) -> str:
    """The failed seeds, and the interval of their share."""
    low, high = share_interval(card.failed() or 0, len(card.seeds))
    return (
        f"Failed, with a return below {card.failure_below:g}: {_failed(card)} seeds; the share of "
        f"failures is between {low:.1%} and {high:.1%} (95 %)."
    )


def _bias(card: Card) -> str:
    """The critics' bias at the end of the runs, in units of the mean return."""
    mean, spread = (_last(card, f"q_bias_normalized_{name}") for name in ("mean", "std"))
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


def _published(published: Published | None, *, link: bool = True) -> str:
    if published is None:
        return "none known"
    spread = "" if published.return_std is None else f" ± {_figure(published.return_std)}"
    figure = f"{_figure(published.return_mean)}{spread} at {published.steps:,}"
    return f"{figure} ([source]({published.source}))" if link else figure


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


def stub(package: str) -> str:
    """The `__init__.pyi` of a package, by which type checkers and editors see its exports."""
    names = sorted(EXPORTS[package].items(), key=lambda item: (item[1], item[0]))
    lines = [f"from {module} import {name} as {name}" for name, module in names]
    version = ["", "__version__: str"] if package == "rl_training" else []
    return "\n".join([STUB_HEADER, "", *lines, *version, ""])


def stub_path(package: str) -> Path:
    """Where the stub of a package is."""
    return ROOT.joinpath("src", *package.split("."), "__init__.pyi")


def main(arguments: list[str]) -> int:
    """Write the documents, pictures and stubs, or with `--check` compare them; the exit code."""
    stale = [*_stale(), *_stale_pictures(), *_stale_stubs()]
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


def _stale_pictures() -> Iterator[tuple[Path, Card | TaskFigure]]:
    cards = evidence_cards(CARDS)
    for name, card in cards.items():
        path = CARDS / f"{name}.png"
        if not is_drawn(card, path):
            yield path, card
    for figure in task_figures(cards):
        path = PICTURES / figure.file_name
        if not is_task_drawn(figure, path):
            yield path, figure


def _stale_stubs() -> Iterator[tuple[Path, str]]:
    for package in EXPORTS:
        path = stub_path(package)
        if not path.exists() or path.read_text(encoding="utf-8") != stub(package):
            yield path, stub(package)


def _write(path: Path, content: str | Card | TaskFigure) -> None:
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif isinstance(content, TaskFigure):
        draw_task(content, path)
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
