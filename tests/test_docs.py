"""The documents: generated parts up to date, links that lead somewhere, examples that run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from rl_training.config.strict_yaml import parse_yaml
from rl_training.experiment.registry import resolve_config
from rl_training.runtime.spec_table import packaged_specs

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
FENCE = "```"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE_NAME = re.compile(r"# (\w+\.(?:py|yaml))")
SHORT_RUNS = """\
import runpy
import sys

from rl_training.api.managed import ManagedAlgorithm

learn = ManagedAlgorithm.learn


def learn_briefly(self, *steps, **options):
    enough = self.config.algo_kwargs.get("learning_starts", 1000) + 20
    if self.config.total_timesteps > enough + 200:
        self.config = self.config.with_changes(total_timesteps=enough, final_eval_episodes=2)
    return learn(self, *steps, **options)


ManagedAlgorithm.learn = learn_briefly
runpy.run_path(sys.argv[1], run_name="__main__")
"""


class Block(NamedTuple):
    """A fenced block: its language, the index of its first line in the document, its lines."""

    language: str
    start: int
    lines: list[str]

    @property
    def file_name(self) -> str | None:
        """The name in the first line, if the block is a file."""
        match = FILE_NAME.fullmatch(self.lines[0]) if self.lines else None
        return match[1] if match else None


def blocks(text: str) -> Iterator[Block]:
    opened: Block | None = None
    for number, line in enumerate(text.splitlines()):
        if not line.startswith(FENCE):
            if opened is not None:
                opened.lines.append(line)
        elif opened is None:
            opened = Block(line.removeprefix(FENCE).strip(), number + 1, [])
        else:
            yield opened
            opened = None
    assert opened is None, "a fence is not closed"


def without_code(text: str) -> str:
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[][()]", "", code[0]), text)


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a document."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    broken = []
    for link in LINK.findall(without_code(path.read_text(encoding="utf-8"))):
        if re.match(r"https?://|mailto:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (
            anchor and anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            broken.append(link)
    return broken


def markdown_files() -> list[str]:
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._"]
    found = [*ROOT.glob("*.md"), *(file for folder in folders for file in folder.rglob("*.md"))]
    return sorted(str(path.relative_to(ROOT)) for path in found if "runs" not in path.parts)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_parts_are_up_to_date(
    generate: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def test_a_stale_part_is_noticed_and_only_it_is_replaced(generate: ModuleType) -> None:
    text = "before\n<!-- keys -->\nold\n<!-- /keys -->\nafter\n"
    fresh = generate.updated(text, {"keys": "new"})
    assert fresh == "before\n<!-- keys -->\nnew\n<!-- /keys -->\nafter\n"
    assert generate.updated(fresh, {"keys": "new"}) == fresh
    with pytest.raises(SystemExit, match="expected the markers <!-- other -->"):
        generate.updated(text, {"other": "new"})


def test_every_key_is_listed_with_its_range_default_and_meaning() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for row in (
        "| `num_envs` | an integer from 1 to 4096 | `1` | environments stepped in parallel |",
        "| `gamma` | a number from 0 to 1 | `0.99` | discount of rewards per step (Mnih et al., "
        "2015) |",
    ):
        assert row in text
    epsilon = next(line for line in text.splitlines() if line.startswith("| `epsilon` |"))
    assert "| `{initial: 1.0, final: 0.05, fraction: 0.1}` |" in epsilon


def test_a_key_without_words_is_refused(generate: ModuleType) -> None:
    class Silent(BaseModel):
        unexplained: int = 1

    with pytest.raises(SystemExit, match="give these fields a description: unexplained"):
        generate.check_descriptions([Silent])


@pytest.mark.parametrize("name", markdown_files())
def test_every_internal_link_leads_somewhere(name: str) -> None:
    assert broken_links(ROOT / name) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# The `other` one, again\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) [b](other.md#the-other-one-again) [c](https://example.org)\n"
        "[d](missing.md) [e](other.md#nowhere) [f](#nowhere) `[g](code.md)`\n"
        f"{FENCE}\n[h](code.md)\n{FENCE}\n"
    )
    assert broken_links(page) == ["missing.md", "other.md#nowhere", "#nowhere"]


def python_pages() -> list[str]:
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in PAGES}
    return [name for name in PAGES if f"{FENCE}python" in texts[name]]


@pytest.mark.parametrize("name", python_pages())
def test_the_python_blocks_of_a_page_run_as_one_script(name: str, tmp_path: Path) -> None:
    """Long runs are cut after their first updates."""
    text = (ROOT / name).read_text(encoding="utf-8")
    script = [""] * len(text.splitlines())  # line numbers in a traceback are those of the document
    for block in blocks(text):
        if block.file_name is not None:
            (tmp_path / block.file_name).write_text("\n".join(block.lines) + "\n")
        elif block.language == "python":
            script[block.start : block.start + len(block.lines)] = block.lines
    path = tmp_path / f"{Path(name).stem}_script.py"
    path.write_text("\n".join(script) + "\n")
    (tmp_path / "short_runs.py").write_text(SHORT_RUNS)
    command = [sys.executable, "-W", "error", "short_runs.py", path.name]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_yaml_blocks_are_valid_configurations() -> None:
    """All but the file of mistakes, and those files of which a page's script makes use."""
    examples = [
        (f"{name}:{block.start}", block)
        for name in PAGES
        for block in blocks((ROOT / name).read_text(encoding="utf-8"))
        if block.language == "yaml" and name != "docs/custom.md"
    ]
    assert len(examples) >= 10
    for place, block in examples:
        if block.file_name != "wrong.yaml":
            values, _ = parse_yaml("\n".join(block.lines), place)
            resolve_config({"algo": "dqn", "env_id": "CartPole-v1", **values})


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = {f"docs/{link}" for link in LINK.findall(index)}
    assert [name for name in PAGES[1:] if name not in listed | {"docs/README.md"}] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 165


def test_a_planned_card_that_is_missing_says_so(generate: ModuleType) -> None:
    cards = generate.evidence_cards(generate.CARDS)
    del cards["dqn/cartpole"]
    seeds = generate.planned_cards()["dqn/cartpole"].seeds
    assert f"| `dqn/cartpole` |  | {seeds} |  | missing |  |  |" in generate.short_results(cards)
    assert (
        "`dqn/cartpole`" in re.findall("Planned, but not made yet: .*", generate.results(cards))[0]
    )


def test_a_solved_task_that_is_lost_again_is_counted(generate: ModuleType) -> None:
    def seed(returns: list[float], bias: float = 0.0) -> SimpleNamespace:
        measured = dict.fromkeys(
            ("q_bias_normalized_mean", "q_bias_normalized_std"),
            SimpleNamespace(values=[bias] * len(returns)),
        )
        return SimpleNamespace(curve=SimpleNamespace(returns=returns), measured=measured)

    steady, lost, never = seed([1, 9, 9]), seed([9, 4, 9, 9], 0.25), seed([1, 2, 8])
    assert generate._relapses(SimpleNamespace(seeds=[steady, never])) == "0 of 1"
    assert generate._relapses(SimpleNamespace(seeds=[steady, lost, never])) == (
        "1 of 4; to 4, with a bias of 0.2 and a spread of 0.25"
    )


def test_an_update_is_understood_from_the_types_and_eight_files(generate: ModuleType) -> None:
    lists = {spec.name: generate.reading_order(spec) for spec in packaged_specs().values()}
    assert {files[0] for files in lists.values()} == {"data/types.py"}
    assert {name: files for name, files in lists.items() if len(files[1:]) > 8} == {}
    assert lists["dqn"] == [
        "data/types.py",
        "algorithms/dqn.py",
        "algorithms/value_based.py",
        "algorithms/optimization.py",
        "algorithms/base.py",
        "models/mlp_q_network.py",
        "models/blocks.py",
    ]


def test_an_algorithm_without_a_page_is_noticed(generate: ModuleType) -> None:
    unknown = replace(packaged_specs()["dqn"], name="unknown")
    with pytest.raises(SystemExit, match="name the page of unknown in FAMILIES"):
        generate.page_of(unknown)
