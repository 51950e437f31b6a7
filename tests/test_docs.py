"""The documents: generated parts up to date, links that lead somewhere, examples that run."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
import typer
import yaml
from pydantic import BaseModel
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from rl_training.cli import app
from rl_training.config.loading import packaged_configs
from rl_training.exports import EXPORTS
from rl_training.runtime.spec_table import packaged_specs

ROOT = Path(__file__).resolve().parent.parent
FENCE = "```"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FILE_NAME = re.compile(r"# (\w+\.(?:py|yaml))")
NEEDS = re.compile(r"<!-- needs (\w+) -->")
LANGUAGES = {"python", "yaml", "toml", "sh", "bash", "console", "math", "text", ""}
COMMAND = re.compile(r"(?:.*[|;&] *|\S*/|\$ |srun )?rl-training (?P<arguments>.*)")


class Block(NamedTuple):
    """A fenced block: its language, its first line in the document, its lines, what it needs."""

    language: str
    start: int
    lines: list[str]
    package: str | None = None

    @property
    def file_name(self) -> str | None:
        """The name in the first line, if the block is a file."""
        match = FILE_NAME.fullmatch(self.lines[0]) if self.lines else None
        return match[1] if match else None


def blocks(text: str) -> Iterator[Block]:
    opened: Block | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.startswith(FENCE):
            if opened is not None:
                opened.lines.append(line)
        elif opened is None:
            needs = NEEDS.fullmatch(lines[number - 1]) if number else None
            language = line.removeprefix(FENCE).strip()
            opened = Block(language, number + 1, [], needs[1] if needs else None)
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
    built = {"build", "site", "dist"}
    folders = [path for path in ROOT.iterdir() if path.is_dir() and path.name[0] not in "._"]
    folders = [path for path in folders if path.name not in built]
    found = [*ROOT.glob("*.md"), *(file for folder in folders for file in folder.rglob("*.md"))]
    return sorted(str(path.relative_to(ROOT)) for path in found if "runs" not in path.parts)


PAGES = [name for name in markdown_files() if name == "README.md" or name.startswith("docs/")]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def program(name: str) -> ModuleType:
    """A program of the documentation, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return program("generate")


@pytest.fixture(scope="module")
def build_site() -> ModuleType:
    return program("build_site")


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
    row = "| `num_envs` | an integer from 1 to 4096 | `1` | environments stepped in parallel |"
    assert row in text_of("docs/configuration.md")
    text = text_of("docs/algorithms/dqn.md")
    row = "| `gamma` | a number from 0 to 1 | `0.99` | discount of rewards per step (Mnih et al., "
    assert f"{row}2015) |" in text
    epsilon = next(line for line in text.splitlines() if "| probability of a random" in line)
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


def test_every_block_is_of_a_kind_that_is_checked() -> None:
    kinds = {(name, block.language) for name in PAGES for block in blocks(text_of(name))}
    assert [kind for kind in sorted(kinds) if kind[1] not in LANGUAGES] == []


def write_page(name: str, folder: Path) -> None:
    """The script and the files of a page; line numbers are those of the document."""
    script = [""] * len(text_of(name).splitlines())
    for block in blocks(text_of(name)):
        lines = block.lines
        if block.package is not None and importlib.util.find_spec(block.package) is None:
            continue
        if block.language == "yaml" or block.file_name is not None:
            file = block.file_name or f"line_{block.start}.yaml"
            (folder / file).write_text("\n".join(lines) + "\n")
        elif block.language == "python":
            script[block.start : block.start + len(lines)] = lines
    if any(script):
        (folder / "script.py").write_text("\n".join(script) + "\n")


@pytest.mark.parametrize("part", [0, 1])
def test_the_blocks_of_a_page_run_as_one_script_and_are_valid(part: int, tmp_path: Path) -> None:
    """Long trainings are cut after their first updates; what fails is printed with its page."""
    folders = []
    for name in PAGES[part::2]:
        folder = tmp_path / name.replace("/", "_")
        folder.mkdir()
        write_page(name, folder)
        folders.append(str(folder))
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "tests" / "page_scripts.py", *folders],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def commands(text: str) -> Iterator[str]:
    """The arguments of each `rl-training` that a reader is shown, in blocks and in backticks."""
    for block in blocks(text):
        if block.language in ("sh", "bash", "console", ""):
            lines = re.sub(r"\\\n\s*", "", "\n".join(block.lines)).splitlines()
            yield from (found["arguments"] for line in lines if (found := COMMAND.match(line)))
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`rl-training ([^`\n]+)`", plain)


def parsed(arguments: str) -> typer.Context:
    """What the command line makes of the arguments; raises if it does not take them."""
    arguments = re.sub(r"\.\.\.|…|[][]", "", arguments)  # optional parts, which may be repeated
    arguments = re.sub(r"(?<= )[A-Z]\b|\$\w+", "100", arguments)
    words = shlex.split(arguments.split(" >")[0], comments=True)
    command = get_command(app)
    while isinstance(command, TyperGroup):
        group, command = command, None
        _, command, words = group.resolve_command(typer.Context(group), words)
    assert command is not None
    return command.make_context(command.name, words)


@pytest.mark.parametrize("name", PAGES)
def test_the_command_line_takes_every_command_of_a_page(name: str) -> None:
    for arguments in commands(text_of(name)):
        context = parsed(arguments)
        values = context.params
        config = values.get("name") or values.get("config")
        settings = values.get("settings") or []
        if context.info_name != "train" or config not in packaged_configs():
            continue
        if not any(":" in setting for setting in settings):  # code that the page describes
            words = ["config", config, *(word for pair in settings for word in ("--set", pair))]
            shown = CliRunner().invoke(app, words)
            assert shown.exit_code == 0, f"{arguments}: {shown.output}"


def test_a_command_that_is_mistyped_is_noticed() -> None:
    with pytest.raises(typer.BadParameter.__base__, match="No such option: --sed"):
        parsed("train dqn/cartpole --sed 1")
    with pytest.raises(typer.BadParameter.__base__, match="No such command 'trian'"):
        parsed("trian dqn/cartpole")
    assert parsed("evidence reproduce dqn/cartpole").params["card"] == Path("dqn/cartpole")


@pytest.mark.parametrize("command", ["list", "evidence list", "config dqn/cartpole"])
def test_the_cheap_commands_of_the_pages_run(command: str) -> None:
    assert CliRunner().invoke(app, command.split()).exit_code == 0


def test_the_index_lists_every_page() -> None:
    listed = {f"docs/{link}" for link in LINK.findall(text_of("docs/README.md"))}
    kept_apart = ("docs/README.md", "docs/package_index.md", "docs/decisions/")
    found = [name for name in PAGES[1:] if not name.startswith(kept_apart)]
    assert [name for name in found if name not in listed] == []


def in_the_navigation(entries: object) -> Iterator[str]:
    """The pages that the navigation of the site leads to."""
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, list):
        for entry in entries:
            yield from in_the_navigation(entry)
    elif isinstance(entries, dict):
        yield from in_the_navigation(list(entries.values()))


def test_the_navigation_has_every_page(build_site: ModuleType) -> None:
    text = text_of("mkdocs.yml")
    nav = yaml.safe_load(text[text.index("nav:") :])["nav"]
    pages = {build_site.address(path) for path in build_site.pages()}
    pages |= {build_site.api_address(package) for package in EXPORTS} | {"decisions/index.md"}
    listed = list(in_the_navigation(nav))
    assert sorted(listed) == sorted(set(listed)), "a page is there twice"
    assert (pages - set(listed), set(listed) - pages) == (set(), set())


def test_the_api_pages_describe_every_public_name_once(build_site: ModuleType) -> None:
    pages = "\n".join(map(build_site.api_page, EXPORTS))
    described = re.findall(r"^::: (\S+)$", pages, flags=re.MULTILINE)
    public = {f"{module}.{name}" for names in EXPORTS.values() for name, module in names.items()}
    assert sorted(described) == sorted(public)


@pytest.mark.extra("docs")
def test_the_pages_of_the_site_have_no_broken_link(build_site: ModuleType, tmp_path: Path) -> None:
    build_site.gather(tmp_path)
    gathered = sorted(tmp_path.rglob("*.md"))
    assert len(gathered) > len(PAGES)
    broken = {path: broken_links(path) for path in gathered if path.parent.name != "api"}
    assert {path: links for path, links in broken.items() if links} == {}
    assert "<msup><mi>tanh</mi><mn>2</mn></msup>" in build_site.mathml(r"\tanh^2 u", "block")
    formulas = (tmp_path / "algorithms" / "dqn.md").read_text(encoding="utf-8")
    assert formulas.count("<math") == text_of("docs/algorithms/dqn.md").count("$`") + 3


def test_what_a_built_page_lacks_or_loads_is_noticed(
    build_site: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "other.html").write_text('<h1 id="here">Other</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="other.html#here"></a><a href="other.html#there"></a><a href="missing.html"></a>'
        '<a href="https://example.org"></a><script src="https://example.org/x.js"></script>'
    )
    assert build_site.faults_of_site(tmp_path) == [
        "index.html: loads https://example.org/x.js",
        "index.html: other.html#there: the page has no such place",
        "index.html: missing.html leads nowhere",
    ]


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
    with pytest.raises(SystemExit, match=r"write the page of unknown, docs/algorithms/unknown.md"):
        generate.page_of(unknown)
