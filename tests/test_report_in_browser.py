"""Reports in a real browser: charts are drawn, tables sort, and nothing is asked of a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import PROGRAM, Chromium, chromium
from rl_training.tools.report.write import write_report
from test_report import hostile_run, write_run

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no chromium (Debian: apt install chromium)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([write_run(tmp_path_factory.mktemp("report") / "run")])


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_charts_are_drawn_without_a_complaint(
    browser: Chromium, page: Path, width: int, dark: bool
) -> None:
    browser.open(page, width=width, dark=dark)
    heights = "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().height)"
    drawn = [height for height in browser.value(heights) if height]
    assert len(drawn) == 3  # the learning curve, the histogram, the loss
    assert min(drawn) > 100
    lines = "[...document.querySelectorAll('path.line[data-x]')].filter(p => p.checkVisibility())"
    assert browser.value(f"Math.max(...{lines}.map(line => line.getTotalLength()))") > 100
    assert browser.value("document.documentElement.scrollWidth") <= width
    paper = browser.value("getComputedStyle(document.documentElement).backgroundColor")
    assert paper == ("rgb(21, 23, 27)" if dark else "rgb(253, 252, 250)")
    assert browser.problems == []


def test_a_table_sorts_by_its_numbers_and_back(browser: Chromium, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment"
    for seed, value in enumerate((9.0, 100.0, -20.0)):
        named = {"algo": "dqn", "env_id": "CartPole-v1", "seed": seed}
        summary = {"status": "finished", "global_step": 8000, "eval_return_mean": value}
        write_run(experiment / f"seed-{seed}", config=named, metadata=named, summary=summary)
    browser.open(write_report([experiment]))
    seeds = "[...document.querySelectorAll('tbody')[0].rows].map(row => row.cells[3].textContent)"
    assert browser.value(seeds) == ["9", "100.0", "\u221220.0"]
    for expected in (["\u221220.0", "9", "100.0"], ["100.0", "9", "\u221220.0"]):
        browser.click("th:nth-child(4) button")
        assert browser.value(seeds) == expected
    assert browser.value("document.querySelector('th:nth-child(4)').ariaSort") == "descending"
    assert browser.problems == []


def test_the_values_of_a_curve_are_shown_under_the_pointer(browser: Chromium, page: Path) -> None:
    browser.open(page)
    box = browser.value(
        "(b => [b.left, b.top, b.width, b.height])"
        "(document.querySelector('svg').getBoundingClientRect())"
    )
    left, top, width, height = box
    # Between the steps 4,000 and 5,000, nearer to the first: there the training return was 40.
    at = {"x": left + 0.53 * width, "y": top + height / 2}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
    shown = browser.value("document.getElementById('tip').innerText")
    assert shown.split("\n") == ["at 4,000", "training return 40"]
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert browser.value("document.getElementById('tip').hidden") is True


def test_the_colours_can_be_switched(browser: Chromium, page: Path) -> None:
    browser.open(page)
    colour = "getComputedStyle(document.documentElement).backgroundColor"
    light = browser.value(colour)
    browser.click("button.theme")
    assert browser.value(colour) != light
    browser.click("button.theme")
    assert browser.value(colour) == light


def test_the_page_is_whole_without_script(browser: Chromium, page: Path) -> None:
    browser.open(page, script=False)
    root = browser.call("DOM.getDocument", depth=-1)["root"]["nodeId"]
    found = {
        selector: len(
            browser.call("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"]
        )
        for selector in ("svg", "tbody tr", "button:not([hidden])", "#tip")
    }
    assert found == {"svg": 4, "tbody tr": 2, "button:not([hidden])": 0, "#tip": 0}
    assert browser.problems == []


def test_a_forged_run_runs_nothing(browser: Chromium, tmp_path: Path) -> None:
    browser.open(write_report([hostile_run(tmp_path)], tmp_path / "page.html"))
    tags = browser.value("[...new Set([...document.querySelectorAll('*')].map(e => e.localName))]")
    assert not {"img", "iframe", "object", "use"} & set(tags)
    assert browser.value("document.scripts.length") == 1
    assert browser.problems == []


def test_what_the_policy_does_not_admit_is_not_run(browser: Chromium, page: Path) -> None:
    """Should a text ever get through unescaped, the browser would still refuse it."""
    text = page.read_text()
    attack = (
        "<script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"
    )
    injected = page.with_name("injected.html")
    injected.write_text(text.replace("</main>", f"{attack}</main>"))
    browser.open(injected)
    assert browser.value("document.title") == "Deep Q-network on CartPole-v1"
    refused = [problem for problem in browser.problems if "Content Security Policy" in problem]
    assert len(refused) >= 2, json.dumps(browser.problems)
