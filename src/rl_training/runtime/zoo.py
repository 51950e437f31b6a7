"""Finds agents: packaged ones by name, all others by path."""

from __future__ import annotations

import logging
from functools import cache
from importlib import resources
from pathlib import Path

from rl_training.config.loading import packaged_configs
from rl_training.config.messages import show_value
from rl_training.errors import CheckpointError, did_you_mean
from rl_training.storage.manifest import MANIFEST_NAME

logger = logging.getLogger("rl_training")


@cache
def packaged_policies() -> dict[str, Path]:
    """The agents that come with the package, by name, such as `dqn/cartpole`."""
    return policies_in(Path(str(resources.files("rl_training.assets") / "zoo")))


def policies_in(folder: Path) -> dict[str, Path]:
    """The policies under a folder, by name."""
    found = (path.parent for path in folder.glob(f"*/*/{MANIFEST_NAME}"))
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def find_agent(source: str | Path) -> Path:
    """The directory of an agent: of a packaged one by its name, of any other by its path.

    A string that is the name of a packaged agent always means that agent, as with configurations
    and cards: nothing in the current directory can take its place. A directory of that name is
    `./dqn/cartpole`, or a Path.
    """
    path = Path(source)
    if isinstance(source, Path):
        return path
    packaged = packaged_policies()
    if source in packaged:
        if _exists(path):
            logger.warning(
                "%s is the agent that comes with the package; the directory of that name here is "
                "./%s",
                source,
                source,
            )
        return packaged[source]
    if _exists(path):
        return path
    if source in packaged_configs():
        raise CheckpointError(
            f"{source} is a packaged configuration, and no trained agent of it comes with the "
            f"package: `rl-training train {source}` trains one, `rl-training zoo` lists those "
            "there are"
        )
    hint = did_you_mean(source, packaged, count=3)
    raise CheckpointError(
        "expected a run directory, a checkpoint in one, or the name of an agent that comes with "
        f"the package, found {show_value(source)}{hint or '; `rl-training zoo` lists those'}"
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False
