"""A training set on disk: rows as JSONL and Parquet, a report, and a manifest that everything can be checked against.

The same records, recipe and seed give the same bytes (of the Parquet file: with the same pyarrow).
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import ptxgym
from ptxgym.errors import InfrastructureError, UsageError
from ptxgym.fixit.build import Built
from ptxgym.fixit.recipe import FixitRecipe
from ptxgym.fixit.records import Row, digest
from ptxgym.fixit.report import card
from ptxgym.fixit.workshop import Front
from ptxgym.store.lines import to_json, write_whole
from ptxgym.store.records import SCHEMA
from ptxgym.verdict import Value

MANIFEST = "manifest.json"
JSONL = "rows.jsonl"
PARQUET = "rows.parquet"
CARD = "README.md"


class File(Value):
    """A file of a set."""

    sha256: str
    size_bytes: int


class Manifest(Value):
    """What a set is, what it was made of, and the hashes of its files."""

    schema_version: int = SCHEMA
    name: str
    direct: bool
    ptxgym: str
    recipe: FixitRecipe
    recipe_sha256: str
    seed: int
    runs: tuple[str, ...]
    teachers: tuple[str, ...]
    rows: int
    rows_sha256: str
    """Of the rows' own hashes, in order."""
    dropped: dict[str, int]
    stages: dict[str, int]
    files: dict[str, File]


def write_set(
    folder: Path, front: Front, built: Built, teachers: Iterable[str], *, direct: bool, parquet: bool
) -> Manifest:
    """Write a set.

    Args:
        folder: New, or an earlier set, which is replaced; the manifest comes last.
        front: Of the workshop.
        built: The rows.
        teachers: Names of agents.
        direct: Whether these are direct rows.
        parquet: Whether to write Parquet beside JSONL.

    Raises:
        UsageError: if there are no rows, the folder holds something else, or pyarrow is missing.
        InfrastructureError: if it cannot be written.
    """
    if not built.rows:
        why = ", ".join(f"{reason} {count}" for reason, count in built.dropped.items())
        raise UsageError(f"no row is left for the set; dropped: {why or 'nothing'}; stages: {built.stages}")
    tool = _pyarrow() if parquet else None
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()) and not (folder / MANIFEST).is_file():
        raise UsageError(f"{folder} holds something that is no training set; choose another folder")
    for name in (MANIFEST, PARQUET):
        (folder / name).unlink(missing_ok=True)
    lines = [to_json(row) for row in built.rows]
    write_whole(folder / JSONL, "".join(f"{line}\n" for line in lines))
    write_whole(folder / CARD, card(front, built, direct))
    if tool is not None:
        _write_parquet(tool, folder / PARQUET, built.rows)
    names = (JSONL, CARD, *((PARQUET,) if parquet else ()))
    manifest = Manifest(
        name=front.recipe.name,
        direct=direct,
        ptxgym=ptxgym.__version__,
        recipe=front.recipe,
        recipe_sha256=digest(to_json(front.recipe)),
        seed=front.seed,
        runs=front.runs,
        teachers=tuple(sorted(set(teachers))),
        rows=len(lines),
        rows_sha256=_rows_sha256(lines),
        dropped=built.dropped,
        stages=built.stages,
        files={name: _file(folder / name) for name in names},
    )
    write_whole(folder / MANIFEST, json.dumps(json.loads(to_json(manifest)), indent=2) + "\n")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a set.

    Raises:
        UsageError: if there is none, or it is no manifest.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UsageError(f"{folder} holds no training set: there is no {MANIFEST}; `ptxgym fixit build` writes one")
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def read_rows(folder: Path) -> tuple[Row, ...]:
    """Read the rows of a set.

    Raises:
        UsageError: if the file is missing, or a line is no row.
    """
    path, rows = folder / JSONL, []
    if not path.is_file():
        raise UsageError(f"{path} is missing; build the set again")
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            rows.append(Row.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(f"{path}, line {number}: {error.errors()[0]['msg']}") from error
    return tuple(rows)


def problems(folder: Path) -> tuple[str, ...]:
    """Check a set against its manifest; return what does not fit, nothing where all does.

    Raises:
        UsageError: if there is no manifest, or the set has Parquet and pyarrow is missing.
    """
    manifest = read_manifest(folder)
    found = [
        f"{path.name}: not in the manifest"
        for path in sorted(folder.iterdir())
        if path.name not in (*manifest.files, MANIFEST)
    ]
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"{name}: missing")
        elif (actual := _file(path)) != expected:
            found.append(f"{name}: SHA-256 is {actual.sha256[:16]}…, the manifest says {expected.sha256[:16]}…")
    if digest(to_json(manifest.recipe)) != manifest.recipe_sha256:
        found.append("recipe: it is not the one of recipe_sha256")
    if not (folder / JSONL).is_file():
        return tuple(found)
    lines = (folder / JSONL).read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) != manifest.rows:
        found.append(f"{JSONL}: {len(lines)} rows, the manifest says {manifest.rows}")
    if _rows_sha256(lines) != manifest.rows_sha256:
        found.append(f"{JSONL}: the rows are not those of rows_sha256")
    if not found and PARQUET in manifest.files:
        same = [_plain(row) for row in read_rows(folder)] == read_parquet(folder / PARQUET)
        found += [] if same else [f"{PARQUET}: its rows are not those of {JSONL}"]
    return tuple(found)


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """Read rows from Parquet.

    Raises:
        UsageError: if pyarrow is missing.
    """
    _pyarrow()
    rows: list[dict[str, Any]] = importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
    return rows


def _write_parquet(pa: Any, path: Path, rows: Sequence[Row]) -> None:
    messages = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    types = {
        "prompt": messages,
        "completion": messages,
        "turn": pa.int64(),
        "tokens": pa.int64(),
        "score": pa.float64(),
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in Row.model_fields])
    table = pa.Table.from_pylist([_plain(row) for row in rows], schema=schema)
    try:
        importlib.import_module("pyarrow.parquet").write_table(table, path, compression="zstd")
    except OSError as error:
        raise InfrastructureError(f"cannot write {path}: {error}") from error


def _plain(row: Row) -> dict[str, Any]:
    return row.model_dump(mode="json")


def _pyarrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise UsageError(
            "Parquet needs the package pyarrow: pip install 'ptxgym[parquet]', or build with --jsonl-only"
        ) from error


def _rows_sha256(lines: Iterable[str]) -> str:
    return digest("\n".join(digest(line) for line in lines))


def _file(path: Path) -> File:
    data = path.read_bytes()
    return File(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
