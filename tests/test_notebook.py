"""The notebook `examples/tour.ipynb`: its cells run, and it is kept without output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CELLS = json.loads((ROOT / "examples" / "tour.ipynb").read_text(encoding="utf-8"))["cells"]


def cells(kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == kind]


@pytest.mark.extra("report")
def test_the_cells_run_from_top_to_bottom(tmp_path: Path) -> None:
    """The trainings of the packaged budgets are cut after their first updates."""
    folder = tmp_path / "tour"
    folder.mkdir()
    (folder / "script.py").write_text("\n\n".join(cells("code")) + "\n")
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "tests" / "page_scripts.py", folder],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "MPLBACKEND": "agg", "SDL_VIDEODRIVER": "dummy"},
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "why.png").stat().st_size > 1000


def test_the_notebook_holds_no_output_and_its_links_lead_somewhere() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
    links = re.findall(r"\]\(([^)#\s]+)", "\n".join(cells("markdown")))
    assert links == ["../docs/README.md"]
    assert (ROOT / "examples" / links[0]).exists()
