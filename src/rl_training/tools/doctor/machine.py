"""What this machine offers: versions, devices, threads, memory, extras and a compiler."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from collections.abc import Iterator
from typing import TypedDict

import torch
from packaging.requirements import Requirement

from rl_training import __version__
from rl_training.data.memory import available_memory, format_bytes
from rl_training.storage.runs import usable_cpus
from rl_training.tools.doctor.report import Finding, has_errors, show_report

_PACKAGE = "rl-training"
_COMPILERS = ("c++", "g++", "clang++", "cl")


class MachineReport(TypedDict):
    """What `doctor --json` prints; `extras` lists the packages that each of them lacks."""

    versions: dict[str, str | None]
    platform: str
    devices: dict[str, str]
    cpu_count: int | None
    cpu_usable: int
    torch_threads: int
    memory_available: int | None
    extras: dict[str, list[str]]
    compiler: str | None


def examine_machine(*, as_json: bool) -> bool:
    """Show the machine; whether everything that the package requires is installed."""
    report = machine_report()
    findings = machine_findings(report)
    show_report(report, findings, as_json=as_json)
    return not has_errors(findings)


def machine_report() -> MachineReport:
    """The machine as plain values."""
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


def machine_findings(report: MachineReport) -> list[Finding]:
    """A report of the machine as lines."""
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
            Finding("note", "extra", text)
            if missing
            else Finding("ok", "extra", f"{extra}: installed")
        )
    if report["compiler"]:
        findings.append(Finding("ok", "compiler", report["compiler"]))
    else:
        text = "no C++ compiler found; torch.compile on the CPU needs one"
        findings.append(Finding("note", "compiler", text))
    return findings


def versions() -> dict[str, str | None]:
    """Of the package, Python and everything the package requires; None if not installed."""
    required = [requirement.name for requirement in _requirements(_PACKAGE, extra="")]
    return {
        _PACKAGE: __version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in required},
    }


def extras() -> dict[str, list[str]]:
    """The extras the package declares, each with the packages that it lacks."""
    try:
        declared = importlib.metadata.metadata(_PACKAGE).get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {extra: sorted(set(_missing(_PACKAGE, extra))) for extra in sorted(declared)}


def compiler() -> str | None:
    """The C++ compiler that torch.compile would use."""
    candidates = [os.environ.get("CXX") or "", *_COMPILERS]
    return next((name for name in candidates if name and shutil.which(name)), None)


def _devices() -> dict[str, str]:
    devices = {"cpu": platform.processor() or platform.machine()}
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = f"{device.name}, {format_bytes(device.total_memory)}"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    return devices


def _requirements(package: str, extra: str) -> Iterator[Requirement]:
    """What a package, or only an extra of it, requires on this machine."""
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
    """What an extra requires, directly or by extras of others, and is not installed."""
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
