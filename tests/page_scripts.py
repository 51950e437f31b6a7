"""Runs the scripts of documents, one after the other, in one process; long trainings are cut.

python page_scripts.py FOLDER...

A folder has a file `script.py` or none, the files that it uses, and YAML files that have to be
valid configurations. A cut training makes its first updates and ends.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from importlib import import_module
from os import chdir
from pathlib import Path
from typing import Any

from rl_training.api.managed import ManagedAlgorithm
from rl_training.config.strict_yaml import parse_yaml
from rl_training.experiment.registry import get_spec, resolve_config

FEWER = {"learning_starts": 100, "replay_ratio": 0.25, "num_steps": 64, "buffer_size": 2_000}
learn = ManagedAlgorithm.learn


def learn_briefly(self: ManagedAlgorithm, *steps: int, **options: Any) -> Any:
    if self.config.total_timesteps > 400:
        known = get_spec(self.config.algo).hyper.model_fields
        fewer = {key: value for key, value in FEWER.items() if key in known}
        if "replay_memory" in self.config.algo_kwargs:
            fewer.pop("buffer_size")
        kept = {key: value for key, value in self.config.algo_kwargs.items() if key not in fewer}
        self.config = self.config.with_changes(
            total_timesteps=140, final_eval_episodes=1, algo_kwargs=kept | fewer
        )
    return learn(self, *steps, **options)


def run(folder: Path) -> None:
    chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        if (folder / "script.py").exists():
            runpy.run_path("script.py", run_name="__main__")
        for file in folder.glob("*.py"):
            if file.stem != "script":
                import_module(file.stem)
        for file in folder.glob("*.yaml"):
            if file.name != "wrong.yaml":
                values, _ = parse_yaml(file.read_text(encoding="utf-8"), file.name)
                resolve_config({"algo": "dqn", "env_id": "CartPole-v1", **values})
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if Path(getattr(module, "__file__", None) or "/").parent == folder:
                del sys.modules[name]


def main(folders: list[str]) -> int:
    ManagedAlgorithm.learn = learn_briefly  # type: ignore[method-assign]
    failed = 0
    for folder in folders:
        try:
            run(Path(folder).resolve())
        except BaseException:
            failed += 1
            print(f"{Path(folder).name}:", traceback.format_exc(), file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
