"""The documents: generated parts up to date, links that lead somewhere, examples that run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from rl_training.experiment.registry import resolve_config
from rl_training.experiment.yaml_strict import parse_yaml

ROOT = Path(__file__).resolve().parent.parent
FENCE = "```"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE_NAME = re.compile(r"# (\w+\.(?:py|yaml))")


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
        "| `num_envs` | an integer from 1 to 4096 | `1` | environments stepped together |",
        "| `gamma` | a number from 0 to 1 | `0.99` | discount of rewards per step |",
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


@pytest.mark.parametrize("name", ["configuration.md", "custom.md"])
def test_the_python_blocks_run_as_one_script(name: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    script = [""] * len(text.splitlines())  # line numbers in a traceback are those of the document
    for block in blocks(text):
        if block.file_name is not None:
            (tmp_path / block.file_name).write_text("\n".join(block.lines) + "\n")
        elif block.language == "python":
            script[block.start : block.start + len(block.lines)] = block.lines
    path = tmp_path / f"{Path(name).stem}_script.py"
    path.write_text("\n".join(script) + "\n")
    command = [sys.executable, "-W", "error", path.name]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_yaml_blocks_are_valid_configurations() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    examples = [block for block in blocks(text) if block.language == "yaml"]
    assert len(examples) >= 7
    for block in examples:
        if block.file_name != "wrong.yaml":
            values, _ = parse_yaml("\n".join(block.lines), f"configuration.md:{block.start}")
            resolve_config({"algo": "dqn", "env_id": "CartPole-v1", **values})
