"""The command `doctor`: what this machine offers, and whether an environment is fit to train in."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.errors import RLTrainingError, UsageError
from rl_training.experiment.run_metadata import usable_cpus

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.env_check import EnvCheck
    from rl_training.runtime.env_play import Finding

_PACKAGE = "rl-training"
_COMPILERS = ("c++", "g++", "clang++", "cl")
_ENV_KEYS = ("env_kwargs", "vectorization", "wrappers")
_DEFAULT_SECONDS = 3.0


def register(app: typer.Typer) -> None:
    """Add the command to a command line."""

    @app.command()
    def doctor(
        env: Annotated[
            str | None,
            typer.Option("--env", help="Check this environment: an id or package.module:Class."),
        ] = None,
        settings: Annotated[
            list[str] | None,
            typer.Option(
                "--set", metavar="KEY=VALUE", help="With --env: env_kwargs.x=..., wrappers=[...]."
            ),
        ] = None,
        seconds: Annotated[
            float | None,
            typer.Option("--seconds", min=0.01, max=3600, help="With --env: time to take [3]."),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    ) -> None:
        """Show versions, devices and extras; with --env, check an environment."""
        try:
            if env is not None:
                code = _examine(env, settings or (), seconds or _DEFAULT_SECONDS, as_json=as_json)
            elif settings or seconds is not None:
                raise UsageError("--set and --seconds go with --env; name an environment")
            else:
                code = _show_machine(as_json=as_json)
        except RLTrainingError as error:
            # Also an environment whose constructor raised, which in training is no usage error.
            if debug:
                traceback.print_exc()
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(UsageError.exit_code) from None
        except KeyboardInterrupt:
            raise typer.Exit(128 + signal.SIGINT) from None
        raise typer.Exit(code)


def machine_report() -> dict[str, Any]:
    """Versions, platform, devices, threads, memory, extras and compiler, as plain values."""
    import torch

    from rl_training.data.memory import available_memory

    return {
        "versions": versions(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "devices": _devices(),
        "cpu_count": os.cpu_count(),
        "cpu_usable": usable_cpus(),
        "torch_threads": torch.get_num_threads(),
        "memory_available": available_memory(),
        "extras": extras(),
        "compiler": compiler(),
    }


def versions() -> dict[str, str | None]:
    """Of the package, Python and everything the package requires; None if not installed."""
    from rl_training import __version__

    required = [requirement.name for requirement in _requirements(_PACKAGE, extra="")]
    found = {name: _version(name) for name in required}
    return {_PACKAGE: __version__, "python": platform.python_version(), **found}


def extras() -> dict[str, list[str]]:
    """The extras the package declares, each with the packages that it lacks."""
    try:
        declared = importlib.metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {extra: sorted(set(_missing(_PACKAGE, extra))) for extra in sorted(declared)}


def compiler() -> str | None:
    """The C++ compiler that would be used, or None."""
    candidates = [os.environ.get("CXX") or "", *_COMPILERS]
    return next((name for name in candidates if name and shutil.which(name)), None)


def machine_findings(report: dict[str, Any]) -> list[Finding]:
    """A report of the machine as lines."""
    from rl_training.data.memory import format_bytes
    from rl_training.runtime.env_play import Finding

    findings = [
        Finding("ok" if version else "error", "version", f"{name} {version or 'is not installed'}")
        for name, version in report["versions"].items()
    ]
    findings.append(Finding("ok", "platform", report["platform"]))
    findings += [
        Finding("ok", "device", f"{name}: {text}") for name, text in report["devices"].items()
    ]
    threads = f"torch uses {report['torch_threads']} of {report['cpu_usable']} usable CPUs"
    findings.append(Finding("ok", "threads", f"{threads} ({report['cpu_count']} in all)"))
    memory = report["memory_available"]
    text = "the system does not say" if memory is None else f"{format_bytes(memory)} available"
    findings.append(Finding("note" if memory is None else "ok", "memory", text))
    for extra, missing in report["extras"].items():
        text = f"{extra}: lacks {', '.join(missing)}; pip install '{_PACKAGE}[{extra}]'"
        findings.append(
            Finding("note", "extra", text) if missing else Finding("ok", "extra", f"{extra}: there")
        )
    found = report["compiler"]
    text = "no C++ compiler found; torch.compile on the CPU needs one"
    findings.append(
        Finding("ok", "compiler", found) if found else Finding("note", "compiler", text)
    )
    return findings


def environment_report(env: str, check: EnvCheck) -> dict[str, Any]:
    """A check of an environment as plain values."""
    resets = check.play.reset_seconds
    return {
        "env_id": env,
        "passed": check.passed,
        "findings": [finding._asdict() for finding in check.findings],
        "steps": check.play.steps,
        "episodes": len(check.play.episodes),
        "steps_per_second": check.play.steps_per_second,
        "reset_seconds": sum(resets) / len(resets) if resets else None,
        "resume": None if check.resume is None else check.resume._asdict(),
        "algorithms": [vars(fit) for fit in check.fits],
    }


def _show_machine(*, as_json: bool) -> int:
    report = machine_report()
    findings = machine_findings(report)
    passed = all(finding.mark != "error" for finding in findings)
    _show(report, findings, as_json=as_json)
    return 0 if passed else 1


def _examine(env: str, settings: Sequence[str], seconds: float, *, as_json: bool) -> int:
    from rl_training.runtime.env_check import check_environment

    config = _environment_config(env, settings)
    check = check_environment(
        env,
        env_kwargs=config.env_kwargs,
        wrappers=config.wrappers,
        vectorization=config.vectorization,
        seconds=seconds,
    )
    _show(environment_report(env, check), check.findings, as_json=as_json)
    return 0 if check.passed else 1


def _environment_config(env: str, settings: Sequence[str]) -> TrainConfig:
    """The settings, checked as those of a run are; the keys that would have no effect refused."""
    from rl_training.experiment.registry import resolve_config
    from rl_training.runtime.spec import all_specs

    for setting in settings:
        key = re.split(r"[.=]", setting, maxsplit=1)[0].strip()
        if key not in _ENV_KEYS:
            raise UsageError(
                f"--set {setting}: expected a key of {' or '.join(_ENV_KEYS)}, found {key!r}; "
                "other keys change nothing about an environment"
            )
    return resolve_config({"algo": min(all_specs()), "env_id": env}, overrides=settings).config


def _show(report: dict[str, Any], findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        from rl_training.experiment.files import jsonable

        typer.echo(json.dumps(jsonable(report), indent=2))
        return
    for finding in findings:
        typer.echo(f"{finding.mark:<8}{finding.topic:<12} {finding.text}")


def _devices() -> dict[str, str]:
    import torch

    from rl_training.data.memory import format_bytes

    devices = {"cpu": platform.processor() or platform.machine()}
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{device.name}, {format_bytes(device.total_memory)}"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    return devices


def _requirements(package: str, extra: str) -> Iterator[Any]:
    """What a package, or only an extra of it, requires on this machine."""
    from packaging.requirements import Requirement

    try:
        texts = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for text in texts:
        requirement = Requirement(text)
        marker = requirement.marker
        wanted = marker is None or marker.evaluate({"extra": extra})
        always = marker is None or marker.evaluate({"extra": ""})
        if wanted and (always is not bool(extra)):
            yield requirement


def _missing(package: str, extra: str) -> Iterator[str]:
    """What an extra of a package requires, itself or by extras of others, and is not there."""
    for requirement in _requirements(package, extra):
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            yield requirement.name
            continue
        for inner in requirement.extras:
            yield from _missing(requirement.name, inner)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
