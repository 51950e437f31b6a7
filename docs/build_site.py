"""Builds the documentation site: gathers its pages, has them built into site/, checks its links.

python docs/build_site.py            # all three
python docs/build_site.py --gather   # the first alone, for another builder of mkdocs.yml

The pages are the Markdown files of the repository, which read well there too. On the way to the
site their links to code lead to pages that show it, pictures and cards are copied, formulas become
MathML, and a page per package is made from the table of exports. The site needs no network.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from os.path import relpath
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag

from rl_training.exports import EXPORTS

ROOT = Path(__file__).resolve().parent.parent
GATHERED = ROOT / "build" / "docs"
SITE = ROOT / "site"
NOT_ON_THE_SITE = ("docs/package_index.md",)
RENAMED = {
    "README.md": "index.md",
    "docs/README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
WIDE = ("docs/results.md",)  # pages whose tables take the room of the list of contents
COPIED = {".png", ".svg", ".gif", ".webp", ".json"}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "sh"}
CODE = re.compile(r"^(```+)(\w*).*?^\1$|(?<!`)`[^`\n]+`(?!`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FORMULA = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SYMBOL = re.compile(r"\$`([^`\n]+)`\$")
MARKER = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
API_INTRODUCTION = """\
# {package}

{about}

| name | what it is |
| --- | --- |
{rows}
"""


def main(arguments: list[str]) -> int:
    """Build and check the site; the exit code."""
    if lacking := [name for name in ("zensical", "latex2mathml") if find_spec(name) is None]:
        print(f"not installed: {', '.join(lacking)}; pip install -c constraints.txt -e '.[docs]'")
        return 1
    gather(GATHERED)
    if "--gather" in arguments:
        return 0
    shutil.rmtree(SITE, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--clean"]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        return code
    # From a disk a page may not fetch the index; the theme then asks for it as a script.
    index = (SITE / "search.json").read_text(encoding="utf-8")
    (SITE / "search.js").write_text(f"var __index = {index};\n", encoding="utf-8")
    faults = faults_of_site(SITE)
    print("\n".join(faults) or f"{len(list(SITE.rglob('*.html')))} pages, no broken link")
    return 1 if faults else 0


def gather(target: Path) -> None:
    """Put everything that the site is built from into a directory, which is emptied first."""
    shutil.rmtree(target, ignore_errors=True)
    site = Gathering(target)
    for path in pages():
        site.add_page(path)
    site.write("site.css", (ROOT / "docs" / "site.css").read_text(encoding="utf-8"))
    site.write("decisions/index.md", decisions())
    for package in EXPORTS:
        site.write(api_address(package), api_page(package))
    site.add_linked()


def pages() -> list[Path]:
    """The Markdown files that are pages of the site."""
    found = [*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    return sorted(path for path in found if str(path.relative_to(ROOT)) not in NOT_ON_THE_SITE)


def address(path: Path) -> str:
    """Where a file or directory of the repository is on the site."""
    name = str(path.relative_to(ROOT))
    if name in RENAMED:
        return RENAMED[name]
    if name == "docs/decisions":
        return "decisions/index.md"
    if path.suffix == ".md" and path in pages():
        return name.removeprefix("docs/")
    if path.suffix in COPIED:
        return f"files/{name}"
    return f"source/{name}/index.md" if path.is_dir() else f"source/{name}.md"


class Gathering:
    """The directory of the site's pages as it fills."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.linked: dict[Path, None] = {}  # what pages link to and is no page, in order

    def write(self, name: str, text: str) -> None:
        """Write a page."""
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def add_page(self, path: Path) -> None:
        """Write a Markdown file of the repository as a page, with its links moved."""
        name = address(path)
        text = MARKER.sub("", path.read_text(encoding="utf-8"))
        text = SYMBOL.sub(lambda found: mathml(found[1], "inline"), text)
        text = FORMULA.sub(lambda found: mathml(found[1], "block"), text)

        def moved(link: re.Match[str]) -> str:
            return f"{link[1]}{self.moved(link[2], path, name)}{link[3]}"

        text = outside_code(text, lambda part: LINK.sub(moved, part))
        wide = str(path.relative_to(ROOT)) in WIDE
        self.write(name, f"---\nhide:\n  - toc\n---\n\n{text}" if wide else text)

    def moved(self, link: str, path: Path, name: str) -> str:
        """A link of a file as it is on the page that the file becomes."""
        file, fragment = urldefrag(link)
        if not file or re.match(r"\w+:", file):
            return link
        aim = (path.parent / unquote(file)).resolve()
        if not aim.exists() or ROOT not in aim.parents:
            raise SystemExit(f"{path.relative_to(ROOT)}: {link} leads nowhere")
        # `evidence` and `configs` are links to packaged files; the shorter name is the public one.
        aim = ROOT / relpath(path.parent / unquote(file), ROOT)
        if aim.suffix != ".md" and address(aim) != "decisions/index.md":
            self.linked[aim] = None
        to = relpath(address(aim), Path(name).parent)
        return f"{to}#{fragment}" if fragment else to

    def add_linked(self) -> None:
        """Copy pictures and data that were linked, and make pages of linked code."""
        for path in list(self.linked):
            if path.is_dir():
                files = sorted(file for file in path.iterdir() if file.suffix in LANGUAGES)
                self.linked |= dict.fromkeys(files)
                lines = [f"- [`{file.name}`]({file.name}.md)" for file in files]
                self.write(address(path), "\n".join([f"# {path.name}", "", *lines, ""]))
        for path in self.linked:
            if path.suffix in COPIED:
                copy = self.target / address(path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
            elif path.is_file():
                self.write(address(path), source_page(path))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text, changed, but for its code."""
    codes: list[str] = []

    def hidden(code: re.Match[str]) -> str:
        codes.append(code[0])
        return f"\0{len(codes) - 1}\0"

    changed = change(CODE.sub(hidden, text))
    return re.sub(r"\0(\d+)\0", lambda mark: codes[int(mark[1])], changed)


def mathml(latex: str, display: str) -> str:
    """A formula as browsers draw it by themselves."""
    from latex2mathml.converter import convert

    text = convert(latex.strip(), display=display)
    space, function = '<mspace width="0.17em" />', "<mi>(?:log|exp|tanh)</mi>"
    text = re.sub(rf"(?<!<msup>)({function})", rf"\1{space}", text)
    text = re.sub(rf"(?<=</mi>)(?={function})", space, text)
    # Markdown would take these signs for its own, and a formula that begins a line for a block.
    text = re.sub(r"[*_]", lambda sign: f"&#{ord(sign[0])};", text)
    return f"<span>{text}</span>" if display == "inline" else f'<div class="formula">{text}</div>'


def decisions() -> str:
    """The list of the decisions."""
    lines = [
        f"- [{path.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}]({path.name})"
        for path in sorted((ROOT / "docs" / "decisions").glob("*.md"))
    ]
    return "\n".join(
        ["# Decisions", "", "Why it is built this way, one page each.", "", *lines, ""]
    )


def source_page(path: Path) -> str:
    """A page that shows a file."""
    name = path.relative_to(ROOT)
    code = path.read_text(encoding="utf-8").rstrip()
    language = LANGUAGES.get(path.suffix, "text")
    return (
        f"---\nsearch:\n  exclude: true\nhide:\n  - toc\n---\n\n# {path.name}\n\n`{name}`\n\n"
        f"````{language}\n{code}\n````\n"
    )


def api_address(package: str) -> str:
    """The page of a package."""
    return f"api/{package.replace('.', '_')}.md"


def home_of(name: str, module: str) -> str:
    """The package on whose page a public name is described: the nearest that exports it."""
    packages = [package for package, names in EXPORTS.items() if names.get(name) == module]
    return max(packages, key=lambda package: (module.startswith(f"{package}."), len(package)))


def api_page(package: str) -> str:
    """What a package exports: a table, then a section for each name that is at home there."""
    rows, sections = [], []
    for name, module in EXPORTS[package].items():
        home = home_of(name, module)
        page = "" if home == package else Path(api_address(home)).name
        rows.append(f"| [`{name}`]({page}#{module}.{name}) | {first_line(module, name)} |")
        if home == package:
            sections.append(f"::: {module}.{name}\n    options:\n{api_options(module, name)}")
    about = f"What `from {package} import …` offers."
    introduction = API_INTRODUCTION.format(package=package, about=about, rows="\n".join(rows))
    return "\n".join([introduction, *sections])


def api_options(module: str, name: str) -> str:
    """What is shown of a public name: of a configuration no fields, of a named tuple all."""
    if module.startswith("rl_training.config."):
        return "      members: false\n"  # the algorithms' pages have tables of them
    fields = hasattr(getattr(import_module(module), name), "_fields")
    return f"      show_if_no_docstring: {str(fields).lower()}\n"


def first_line(module: str, name: str) -> str:
    """The first sentence of a public name's docstring."""
    value = getattr(import_module(module), name)
    text = value.__doc__ if isinstance(value, type) or callable(value) else None
    if not text or not (isinstance(value, type) or hasattr(value, "__name__")):
        return f"{type(value).__name__}"
    return " ".join(text.strip().split("\n\n")[0].split()).replace("|", "\\|")


class Page(NamedTuple):
    """What a built page links to, what it loads, and its anchors."""

    links: list[str]
    loads: list[str]
    anchors: set[str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page([], [], set())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value is not None}
        self.page.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.page.loads.append(values.get("href", ""))
        elif "src" in values:
            self.page.loads.append(values["src"])


def faults_of_site(site: Path) -> list[str]:
    """Links that lead nowhere, anchors included, and what would be loaded from elsewhere."""
    read = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    return [
        f"{path.relative_to(site)}: {fault}"
        for path, page in read.items()
        for fault in _faults(path, page, read)
    ]


def _read(path: Path) -> Page:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def _faults(path: Path, page: Page, read: dict[Path, Page]) -> Iterator[str]:
    yield from (f"loads {load}" for load in page.loads if re.match(r"(\w+:)?//", load))
    local = [link for link in (*page.links, *page.loads) if not re.match(r"(\w+:|//)", link)]
    for link in dict.fromkeys(local):
        file, fragment = urldefrag(html.unescape(link))
        if path.name == "404.html":
            file = file.removeprefix("/")
        aim = (path.parent / unquote(file)).resolve() if file else path
        if aim.is_dir():
            aim /= "index.html"
        if not aim.exists():
            yield f"{link} leads nowhere"
        elif fragment and aim in read and unquote(fragment) not in read[aim].anchors:
            yield f"{link}: the page has no such place"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
