"""What the package's pictures share: matplotlib if it is installed, colours and the frame."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from rl_training.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#1f5fa8", "#c2571a", "#5a5a5a"
_DPI = 100
_SPELLINGS = {"drq": "DrQ", "drqv2": "DrQ-v2", "recurrent_ppo": "Recurrent PPO"}


def require_matplotlib() -> None:
    """Refuse to begin work that would end with a picture that cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise MissingExtra(
            "a picture needs matplotlib, which is not installed: pip install 'rl-training[report]'"
        )


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """A figure that needs no display and leaves pyplot's state alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_grid(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Light lines across the axis, behind what is drawn, and no box around it."""
    axes.grid(axis=axis, color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def paper_name(algo: str) -> str:
    """An algorithm's name as papers write it: `qr_dqn` is QR-DQN."""
    return _SPELLINGS.get(algo, algo.upper().replace("_", "-"))
