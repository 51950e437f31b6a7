"""Forged runs that name code, paths and addresses, through every command that reads a run.

    python -m campaign.malicious [--control]

Each case changes a real run as an attacker would and signs it again. A process of its own then
gives it to one command, with an audit hook that notes every import of the attacker's module, every
process, socket and change of a file outside the run. No case may cause one, and each must be
refused in one paragraph wherever what it names is needed. With `--control` the runs are trusted,
and the hook has to notice.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from campaign.forging import Forgery, honest_run

CANARY = "canary"
EVIL = """\
from pathlib import Path

Path({path!r}).write_text("imported")

import gymnasium


def call(*arguments, **keys):
    Path({path!r}).write_text("called")


class Env(gymnasium.Env):
    def __init__(self, *arguments, **keys):
        call()
"""
OBSERVATION = "[0.0, 0.1, 0.0, -0.1]"


class Case(NamedTuple):
    """A change to a forgery, and the commands that need what it names, which must refuse it."""

    change: Callable[[Forgery, Path], None]
    refused_by: tuple[str, ...]

    @property
    def commands(self) -> list[str]:
        """All but `evidence` where a card could not hold what was changed."""
        in_card = "evidence" in self.refused_by
        return [name for name in COMMANDS if in_card or name != "evidence"]


def config(refused_by: tuple[str, ...], **keys: Any) -> Case:
    """A configuration in the manifest and in config.yaml with other values."""

    def change(forgery: Forgery, canary: Path) -> None:
        text = json.dumps(keys).replace("CANARY", str(canary))
        forgery.config.update(json.loads(text))

    return Case(change, refused_by)


def hyper(refused_by: tuple[str, ...], **keys: Any) -> Case:
    """Other hyper-parameters."""

    def change(forgery: Forgery, _: Path) -> None:
        forgery.config["algo_kwargs"].update(keys)

    return Case(change, refused_by)


def algorithm(path: str) -> Case:
    """An algorithm that is imported from a path."""

    def change(forgery: Forgery, _: Path) -> None:
        forgery.info.update(algo="evil_algorithm", algo_path=path)
        forgery.config["algo"] = path

    return Case(change, ALL)


def env_state(**attributes: Any) -> Case:
    """A state of the environment with other attributes."""

    def change(forgery: Forgery, canary: Path) -> None:
        structure = forgery.structure("loop")
        encoded = structure["dict"]["envs"]["dict"]["envs"]["list"][0]["encoded"]
        text = json.dumps(attributes).replace("CANARY", str(canary))
        encoded["layers"][-1]["attributes"].update(json.loads(text))
        forgery.write("loop", structure, forgery.tensors("loop"))

    return Case(change, ("resume",))


def link(name: str) -> Case:
    """A part of the run directory that leads out of it."""

    def change(forgery: Forgery, canary: Path) -> None:
        outside = canary.parent / "outside"
        if (forgery.run / name).exists():
            shutil.move(forgery.run / name, outside)
            if name == "checkpoints":
                forgery.path = outside / forgery.path.name
        else:
            outside.mkdir()
        os.symlink(outside, forgery.run / name)

    return Case(change, ("resume",))


def made(name: str, **attributes: Any) -> dict[str, Any]:
    return {"object": name, "attributes": attributes}


ENV = ("eval", "resume", "evaluate", "evidence", "video")  # what builds the environment
ALL = ("predict", "eval", "resume", "load", "evaluate", "evidence", "video")
RESUME = ("resume", "evidence")
COMMAND = {"command": "touch CANARY"}
CASES: dict[str, Case] = {
    "a command": config(ENV, env_id="os:system", env_kwargs=COMMAND),
    "a process": config(ENV, env_id="subprocess:run", env_kwargs={"args": ["touch", "CANARY"]}),
    "popen": config(ENV, env_id="subprocess:Popen", env_kwargs={"args": ["touch", "CANARY"]}),
    "eval": config(ENV, env_id="builtins:eval", env_kwargs={"source": "1"}),
    "exec": config(ENV, env_id="builtins:exec", env_kwargs={}),
    "rmtree": config(ENV, env_id="shutil:rmtree", env_kwargs={"path": "CANARY"}),
    "a file": config(ENV, env_id="pathlib:Path.touch", env_kwargs={"self": "CANARY"}),
    "runpy": config(ENV, env_id="runpy:run_path", env_kwargs={"path_name": "evil.py"}),
    "a socket": config(ENV, env_id="socket:create_connection", env_kwargs={"address": []}),
    "an address": config(ENV, env_id="urllib.request:urlopen", env_kwargs={"url": "http://[::1]"}),
    "a module here": config(ENV, env_id="evil:Env"),
    "a function here": config(ENV, env_id="evil:call"),
    "a registering module": config(ENV, env_id="evil:Env-v0"),
    "a dotted module": config(ENV, env_id="evil.inner:Env-v0"),
    "our entry point": config(ENV, env_id="rl_training.__main__:main"),
    "our own function": config(ENV, env_id="rl_training.cli:main"),
    "a class we import": config(ENV, env_id="rl_training.envs.factory:gym.Env"),
    "an old gym id": config(
        ENV, env_id="GymV26Environment-v0", env_kwargs={"env_id": "evil:Env-v0"}
    ),
    "a path": config(ENV, env_kwargs={"xml_file": "CANARY"}),
    "a nested path": config(ENV, env_kwargs={"options": {"log": ["CANARY"]}}),
    "a path for evaluations": config(ENV, eval_env_kwargs={"log": "x"}),
    "a window": config(ENV, env_kwargs={"render_mode": "human"}),
    "a video": config(ENV, wrappers=[{"RecordVideo": {"video_folder": "CANARY"}}]),
    "a wrapper here": config(ENV, wrappers=["evil:Env"]),
    "a wrapper of the system": config(ENV, wrappers=[{"os:system": COMMAND}]),
    "a function as wrapper": config(ENV, wrappers=[{"TransformReward": {"func": "os:system"}}]),
    "a converter": config(ENV, wrappers=["JaxToNumpy"]),
    "a callback": config(RESUME, callbacks=[{"os:system": COMMAND}]),
    "a callback here": config(RESUME, callbacks=["evil:call"]),
    "a callback of ours": config(RESUME, callbacks=["rl_training.cli:main"]),
    "a network": hyper(ALL, network="os:system"),
    "a network here": hyper(ALL, network="evil:call"),
    "a network of torch": hyper(ALL, network="torch:load"),
    "a network of ours": hyper(ALL, network="rl_training.models.blocks:nn.Linear"),
    "an algorithm": algorithm("evil:call"),
    "an algorithm of ours": algorithm("rl_training.__main__:main"),
    "a place to write": config((), output_dir="CANARY-runs", run_name="mine"),
    "checkpoints elsewhere": link("checkpoints"),
    "abandoned elsewhere": link("abandoned"),
    "a state that imports": env_state(np_random=made("six:MovedModule", mod="evil")),
    "a state that makes": env_state(
        _np_random=made("gymnasium.envs.registration:EnvSpec", id="x", entry_point="os:system")
    ),
    "a state over a method": env_state(step=made("gymnasium.vector.utils.misc:CloudpickleWrapper")),
    "a state of what is built": env_state(spec=None),
}

COMMANDS: dict[str, list[str]] = {
    "eval": ["eval", "--checkpoint", "RUN", "--episodes", "1"],
    "resume": ["resume", "--checkpoint", "RUN"],
    "predict": ["predict", "--checkpoint", "RUN", "--observation", OBSERVATION],
    "video": ["video", "--checkpoint", "RUN", "--out", "RUN/a.gif", "--max-steps", "3"],
    "list": ["list", "RUN"],
    "seeds": [],
    "evidence": [],
    "load": [],
    "evaluate": [],
}


class Verdict(NamedTuple):
    """What a command did: its exit code, what it wrote, what the hook noted."""

    code: int
    output: str
    events: list[str]

    def trouble(self, refused: bool) -> str:
        """What is wrong with it; empty if nothing is."""
        if self.events:
            return f"did {self.events[:3]}"
        if "Traceback" in self.output or "This was not expected" in self.output:
            return f"untyped: {self.output[-300:]}"
        if refused and self.code == 0:
            return "was not refused"
        message = self.output.rpartition("error: ")[2].strip()
        if refused and (not message or "\n\n" in message or len(message) > 2000):
            return f"no paragraph: {message[:300]}"
        return ""


def attempt(name: str, case: str, honest: Path, folder: Path, *, trust: bool = False) -> Verdict:
    """Forge the run in an empty folder and give it to a command in a process of its own."""
    parent, child = multiprocessing.Pipe(duplex=False)
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_attempt, args=(child, name, case, honest, folder, trust))
    process.start()
    child.close()
    try:
        return Verdict(*parent.recv())
    except EOFError:
        return Verdict(-1, "Traceback: the process died", [])
    finally:
        process.join(60)


def _attempt(answer: Any, name: str, case: str, honest: Path, folder: Path, trust: bool) -> None:
    from typer.testing import CliRunner

    from rl_training.cli import app

    folder.mkdir(parents=True)
    os.chdir(folder)
    sys.path[:] = [path for path in sys.path if path not in ("", ".")]
    canary = folder / CANARY
    (folder / "evil.py").write_text(EVIL.format(path=str(canary)))
    forgery = Forgery(honest, folder / "run")
    CASES[case].change(forgery, canary)
    run = forgery.sign()
    events: list[str] = []
    noting = [True]
    sys.addaudithook(lambda event, arguments: _note(event, arguments, run, events, noting))
    words = [word.replace("RUN", str(run)) for word in COMMANDS[name]]
    if words:
        result = CliRunner().invoke(app, [*words, *(["--trust"] if trust else [])])
        code, output = result.exit_code, result.output
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            output += f"\nTraceback: {result.exception!r}"
    else:
        code, output = _in_python(name, run, trust)
    noting[0] = False
    if canary.exists():
        events.append(f"canary {canary.read_text()}" if canary.is_file() else "canary")
    answer.send((code, output, events))
    answer.close()
    os._exit(0)


def _in_python(name: str, run: Path, trust: bool) -> tuple[int, str]:
    from rl_training.errors import RLTrainingError

    try:
        IN_PYTHON[name](run, trust)
    except RLTrainingError as error:
        return 1, f"error: {error}"
    except BaseException as error:
        return 1, f"Traceback: {error!r}"
    return 0, ""


def _load(run: Path, trust: bool) -> None:
    from rl_training.api.managed import load

    load(run, trust=trust).predict([0.0, 0.1, 0.0, -0.1])


def _evaluate(run: Path, trust: bool) -> None:
    from rl_training.api.managed import load

    load(run, trust=trust).evaluate(1)


def _seeds(run: Path, _: bool) -> None:
    """The user's own experiment, in whose directory a seed was replaced by the forged run."""
    from rl_training.experiment.manager import ExperimentManager
    from rl_training.experiment.registry import train_config

    manager = ExperimentManager(_own_config(run), [0], directory=run.parent / "experiment")
    manager.directory.mkdir()
    seed = manager.directory / "seed-0"
    shutil.move(run, seed)
    assert manager._outcome(0).status in ("interrupted", "missing")
    config = manager.config.with_changes(
        seed=0, output_dir=str(manager.directory), run_name=seed.name
    )
    try:
        train_config(config, auto_resume=True)  # what the process of a seed does
    finally:
        shutil.move(seed, run)


def _evidence(run: Path, trust: bool) -> None:
    """A card whose configuration is the forged run's, made again."""
    from rl_training.tools.evidence.card import Card, write_card
    from rl_training.tools.evidence.make import outdated
    from rl_training.tools.evidence.reproduce import reproduce

    configuration = json.loads(next(run.glob("checkpoints/step_*/manifest.json")).read_text())
    plain = configuration["info"]["config"]
    for key in ("seed", "output_dir", "run_name"):
        plain.pop(key)
    figures = {"iqm": 1.0, "interval_95": (1.0, 1.0), "lowest": 1.0}
    record = {
        **{"seed": 0, "return_mean": 1.0, "return_std": 0.0, "episodes": 1, "steps": 1},
        **{"seconds": 1.0, "sessions": 1, "device": "cpu", "threads": 1, "commit": "x"},
        **{"versions": {}, "curve": {"steps": (1,), "returns": (1.0,)}},
    }
    card = Card(
        **{"config": "dqn/cartpole", "command": "x", "date": "x", "budget": 1, "tolerance": 0.0},
        **{"evaluation": {"episodes": 1, "deterministic": True}, "figures": figures},
        **{"published": None, "note": None, "seeds": (record,), "configuration": plain},
        **{"commit": "x", "versions": {}},
        machine={"cpu": "x", "cores": 1, "cores_usable": 1, "memory": "x", "platform": "x"},
    )
    path = run / "card.json"
    write_card(path, card.sealed())
    outdated(card)
    reproduce(path, runs=run / "runs", trust=trust, report=lambda _: None)


def _own_config(run: Path) -> Any:
    from campaign.forging import SMALL
    from rl_training.config.train_config import TrainConfig

    return TrainConfig(
        algo="dqn", output_dir=str(run.parent), total_timesteps=32, eval_interval=0, **SMALL["dqn"]
    )


IN_PYTHON: dict[str, Callable[[Path, bool], None]] = {
    "load": _load,
    "evaluate": _evaluate,
    "seeds": _seeds,
    "evidence": _evidence,
}

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate")
STARTS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "os.fork", "pty.spawn")


def _note(event: str, arguments: Any, run: Path, events: list[str], noting: list[bool]) -> None:
    if not noting[0]:
        return
    if event == "open" and os.path.basename(str(arguments[0])).startswith("evil."):
        events.append("import evil")  # its source or its bytecode was read
    elif event in STARTS and not _is_git(arguments):
        events.append(f"{event} {str(arguments)[:80]}")
    elif event.startswith("socket.") and event != "socket.gethostname":
        events.append(event)
    elif event == "open" and isinstance(arguments[0], str | bytes) and arguments[2]:
        if arguments[2] & WRITING and not _inside(arguments[0], run):
            events.append(f"open {arguments[0]!r}")
    elif event in CHANGES:
        paths = [path for path in arguments if isinstance(path, str | bytes | os.PathLike)]
        base = next((f"/proc/self/fd/{n}" for n in arguments if type(n) is int and n > 2), ".")
        places = [os.path.join(os.path.realpath(base), os.fsdecode(path)) for path in paths]
        events.extend(f"{event} {place}" for place in places if not _inside(place, run))


def _is_git(arguments: Any) -> bool:
    """Every run asks git for the commit it is made with."""
    return isinstance(arguments[1], list) and arguments[1][:1] == ["git"]


def _inside(path: Any, run: Path) -> bool:
    """In the run, or in a directory that only this process knows or that holds no files."""
    place = os.path.realpath(os.fsdecode(path))
    homes = (str(run), str(run.parent / "experiment"), str(run.parent / "runs"), "/dev", "/proc")
    return place.startswith(tuple(os.path.realpath(home) for home in homes))


def campaign(folder: Path, *, trust: bool = False, report: Callable[[str], None] = print) -> int:
    """Every case through every command (trusted, through one); gives how many went wrong."""
    honest = honest_run("dqn", folder / "honest")
    wrong = 0
    for number, (case, forged) in enumerate(CASES.items()):
        for name in forged.refused_by[:1] if trust else forged.commands:
            where = folder / f"{number}-{name}"
            verdict = attempt(name, case, honest, where, trust=trust)
            trouble = verdict.trouble(not trust and name in forged.refused_by)
            if trouble:
                wrong += 1
                report(f"{case}, {name}: {trouble}")
            with suppress(OSError):
                shutil.rmtree(where)
    return wrong


def main() -> int:
    """Run the campaign; the exit code is 0 if it went as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wrong = campaign(Path(folder), trust=options.control)
    counts = (1 if options.control else len(case.commands) for case in CASES.values())
    print(f"{len(CASES)} forged runs, {sum(counts)} attempts: {wrong} went wrong")
    return int(bool(wrong) != options.control)


if __name__ == "__main__":
    sys.exit(main())
