"""The names of checkpoints and of their files, and the manifest, which describes one.

A manifest says what a checkpoint is, and the size and SHA-256 of each of its files. The bytes on
disk must equal the one canonical way to write the content, which carries a SHA-256 of itself: no
byte can change unnoticed, and nothing is parsed before its hash was checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import CheckpointError, UsageError
from rl_training.storage.files import jsonable, parse_json

MANIFEST_NAME = "manifest.json"
FORMAT = "rl_training.checkpoint"
VERSION = 3
MAX_MANIFEST_BYTES = 16 << 20
MAX_ENV_STEPS = 10**18
SUFFIXES = (".json", ".safetensors")
KINDS = ("step", "best")
CHECKPOINT_DIRECTORY = re.compile(rf"({'|'.join(KINDS)})_([0-9]{{12,18}})(?:-([0-9]{{1,9}}))?")

_PART = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SEGMENT = re.compile(r"([a-z][a-z0-9_]{0,63})\.([0-9]{12})\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class FileEntry(NamedTuple):
    """What the manifest promises about one file."""

    size: int
    sha256: str


class Manifest(NamedTuple):
    """The content of a manifest; `info` is the writer's JSON, `files` maps names."""

    kind: str
    env_steps: int
    info: dict[str, Any]
    files: dict[str, FileEntry]


def list_checkpoints(folder: Path, kind: str) -> list[str]:
    """The names of the checkpoints of one kind, oldest first."""
    names = (name for name in os.listdir(folder) if CHECKPOINT_DIRECTORY.fullmatch(name))
    return sorted((name for name in names if name.startswith(kind)), key=step_and_revision)


def step_and_revision(name: str) -> tuple[int, int]:
    """The step of a checkpoint, and which of those with that step it is."""
    match = CHECKPOINT_DIRECTORY.fullmatch(name)
    assert match is not None
    return int(match[2]), int(match[3] or 1)


def check_part_name(part: str) -> None:
    """Refuse a part name that is not a short lower-case word, or that the manifest uses."""
    if not _PART.fullmatch(part) or part == "manifest":
        raise UsageError(
            f"expected a part name of lower-case letters, digits and underscores other than "
            f"'manifest', found {part!r}: rename the part"
        )


def segment_name(part: str, number: int) -> str:
    """The file of one segment of a part's rows."""
    return f"{part}.{number:012d}.safetensors"


def segment_part(name: str) -> str | None:
    """The part that a segment's file belongs to; None for another file."""
    match = _SEGMENT.fullmatch(name)
    return match[1] if match else None


def manifest_bytes(
    kind: str, env_steps: int, info: Mapping[str, Any], files: Mapping[str, FileEntry]
) -> bytes:
    """The manifest file; NaN and infinities in `info` become null."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "env_steps": env_steps,
        "info": jsonable(info),
        "files": {name: entry._asdict() for name, entry in files.items()},
    }
    data = _canonical({**body, "sha256": _digest(body)})
    if len(data) > MAX_MANIFEST_BYTES:
        raise UsageError(f"the checkpoint info needs {len(data)} bytes: keep large data in parts")
    return data


def parse_manifest(path: Path, data: bytes) -> Manifest:
    """The content of the manifest read from `path`; CheckpointError if anything is off."""
    try:
        body = parse_json(data)
    except ValueError as error:
        raise damaged(path, f"not a manifest ({error})") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise damaged(path, "not a manifest of this package")
    version = body.get("version")
    if type(version) is int and version != VERSION:
        remedy = "Upgrade rl-training" if version > VERSION else "Use the rl-training that wrote it"
        raise CheckpointError(
            f"{path}: the checkpoint has format version {version}, this package reads version "
            f"{VERSION}. {remedy} to load it."
        )
    if _canonical(body) != data or body.pop("sha256", None) != _digest(body):
        raise damaged(path, "the manifest does not match its own SHA-256")
    try:
        return _manifest(body)
    except ValueError as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, reason: str) -> CheckpointError:
    """The error for a file that cannot be trusted."""
    return CheckpointError(
        f"{path}: {reason}. Nothing was loaded from it; use another checkpoint of the run or "
        "restore this one from a copy."
    )


def _canonical(body: Mapping[str, Any]) -> bytes:
    try:
        return (json.dumps(body, indent=1, allow_nan=False) + "\n").encode()
    except (ValueError, RecursionError):  # 1e999 was read as infinity, or it is nested too deep
        return b""


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(body)).hexdigest()


def _manifest(body: dict[str, Any]) -> Manifest:
    if set(body) != {"format", "version", "kind", "env_steps", "info", "files"}:
        raise ValueError("fields are missing or unknown")
    if type(body["version"]) is not int or body["kind"] not in KINDS:
        raise ValueError("unknown version or kind")
    if type(body["env_steps"]) is not int or not 0 <= body["env_steps"] < MAX_ENV_STEPS:
        raise ValueError(f"env_steps is not a natural number below {MAX_ENV_STEPS:.0e}")
    if not isinstance(body["info"], dict) or not isinstance(body["files"], dict):
        raise ValueError("info and files must be objects")
    files = {name: _entry(name, fields) for name, fields in body["files"].items()}
    parts = {name.partition(".")[0] for name in files}
    others = {name for name in files if segment_part(name) is None}
    if others != {part + suffix for part in parts for suffix in SUFFIXES}:
        raise ValueError("a part needs exactly one .json and one .safetensors file")
    return Manifest(body["kind"], body["env_steps"], body["info"], files)


def _entry(name: str, fields: object) -> FileEntry:
    part, dot, _ = name.partition(".")
    if not dot or not _PART.fullmatch(part) or part == "manifest":
        raise ValueError(f"the file name {name[:80]!r} is not allowed")
    if not isinstance(fields, dict) or set(fields) != {"size", "sha256"}:
        raise ValueError(f"malformed entry for {name}")
    size, sha256 = fields["size"], fields["sha256"]
    if type(size) is not int or size < 0:
        raise ValueError(f"malformed size of {name}")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError(f"malformed SHA-256 of {name}")
    return FileEntry(size, sha256)
