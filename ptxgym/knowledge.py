"""Knowledge packs: what an agent may be told about a GPU generation, in parts that a configuration composes.

A pack is a folder `knowledge/<arch>/` with a `knowledge.toml` that names its parts, their order, titles and files
(`knowledge/README.md`). Prompts with different parts differ by exactly the sections of these parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from pydantic import Field, model_validator

from ptxgym import content
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.verdict import Value

PartName = Literal["parameters", "templates", "contract", "self_audit", "recipes", "debugging"]
PARTS: tuple[str, ...] = get_args(PartName)
"""In the order in which a configuration keeps them."""
ALL = "all"
PACK_TOKENS = 25_000
"""A whole pack, all recipes included, stays below."""

_LOCAL = re.compile(r'^#(?:pragma once|include ".*")\n', re.MULTILINE)
_FENCED = {".cuh": "c++"}


class Part(Value):
    """One part of a pack: the same files for every task, or a file for each task that has one."""

    name: PartName
    title: str
    files: tuple[str, ...] = ()
    """Relative to the pack's folder, in the order of the prompt."""
    tasks: dict[str, str] = Field(default_factory=dict)
    """The file of each task; a task that is not named gets nothing."""

    @model_validator(mode="after")
    def _one_source(self) -> Part:
        if bool(self.files) == bool(self.tasks):
            raise ValueError(f"part {self.name}: give either files or tasks")
        return self

    def files_for(self, task: str | None) -> tuple[str, ...]:
        """Return the files that a task's prompt takes; with None those of all tasks."""
        if self.files:
            return self.files
        if task is None:
            return tuple(dict.fromkeys(self.tasks.values()))
        return (self.tasks[task],) if task in self.tasks else ()


class Pack(Value):
    """One `knowledge.toml`."""

    name: str
    """Of the architecture: the folder's name."""
    folder: Path
    title: str
    parts: tuple[Part, ...]

    @model_validator(mode="after")
    def _unique(self) -> Pack:
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise ValueError(f"parts are named twice: {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
        return self

    def part(self, name: str) -> Part:
        """Return the part `name`.

        Raises:
            UnknownNameError: if the pack has no such part.
        """
        for part in self.parts:
            if part.name == name:
                return part
        known = [part.name for part in self.parts]
        raise UnknownNameError(content.unknown(f"part of knowledge pack {self.name}", name, known))

    def read(self, file: str) -> str:
        """Return the text of one of the pack's files.

        Raises:
            ContentError: if it lies outside of the packs' folder, or cannot be read.
        """
        path = (self.folder / file).resolve()
        if not path.is_relative_to(self.folder.parent.resolve()):
            raise ContentError(f"{self.folder / 'knowledge.toml'}: {file} lies outside of {self.folder.parent}")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ContentError(f"{self.folder / 'knowledge.toml'}: {file}: {error}") from error


def expand(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of parts without repetition, in the order of `PARTS`; `all` stands for all of them.

    Raises:
        UsageError: if `names` is a single text, not several names.
        UnknownNameError: if there is no such part; suggests the nearest.
    """
    if isinstance(names, str):
        raise UsageError(f"knowledge must be a list of names of parts, such as [{names!r}], not one text")
    if not isinstance(names, Iterable):
        raise UsageError(f"knowledge must be a list of names of parts, such as ['parameters'], not {names!r}")
    wanted = set(names)
    for name in wanted:
        if name != ALL and name not in PARTS:
            raise UnknownNameError(content.unknown("part of knowledge", str(name), (*PARTS, ALL)))
    return tuple(part for part in PARTS if part in wanted or ALL in wanted)


def parse_parts(text: str) -> tuple[str, ...]:
    """Return the parts that a text names, separated by commas, as `expand` orders them.

    Raises:
        UnknownNameError: if there is no such part; suggests the nearest.
    """
    return expand(tuple(name.strip() for name in text.split(",") if name.strip()))


def load_pack(arch: str) -> Pack:
    """Load the pack of an architecture.

    Raises:
        UnknownNameError: if it has none; suggests the nearest.
        ContentError: if its file is malformed.
    """
    path = content.locate("knowledge", arch)
    return content.load(path, Pack, name=arch, folder=path.parent)


def render_part(pack: Pack, name: str, task: str | None) -> str:
    """Render a part as a section of a prompt, without a line break at its end.

    Args:
        pack: Of the architecture.
        name: Of the part.
        task: Whose recipe; None for the recipes of all tasks.

    Returns:
        The section; nothing where the part has no file for the task.

    Raises:
        UnknownNameError: if the pack has no such part.
        ContentError: if one of its files cannot be read.
    """
    part = pack.part(name)
    files = part.files_for(task)
    if not files:
        return ""
    return "\n\n".join((f"## {part.title}", *(_shown(file, pack.read(file)) for file in files)))


def render_knowledge(arch: str, names: Sequence[str], task: str | None) -> tuple[tuple[str, str], ...]:
    """Render parts of an architecture's pack: name and section of each that says something, in the pack's order.

    Raises:
        UnknownNameError: if the architecture has no pack, or the pack no such part.
        ContentError: if a file of the pack is malformed or missing.
    """
    if not names:
        return ()
    pack = load_pack(arch)
    wanted = {pack.part(name).name for name in expand(names)}
    sections = ((part.name, render_part(pack, part.name, task)) for part in pack.parts if part.name in wanted)
    return tuple((name, section) for name, section in sections if section)


def template_text(pack: Pack) -> str:
    """Return the template functions of a pack as one text for the compiler."""
    return "".join(_own_text(pack.read(file)) for file in pack.part("templates").files)


def _shown(file: str, text: str) -> str:
    language = _FENCED.get(Path(file).suffix)
    if language is None:
        return text.strip("\n")
    return f"```{language}\n// {Path(file).name}\n{_own_text(text).strip()}\n```"


def _own_text(text: str) -> str:
    """The text without what only a file of its own needs."""
    return _LOCAL.sub("", text)


_PIECE = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]+|\n+|[ \t]{2,}")


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a language model's tokenizer makes of a text.

    Words, numbers and runs of signs are counted by their lengths; the weights were fitted to `o200k_base` on the packs
    themselves, where they are within a few per cent (`docs/knowledge.md`). Other tokenizers differ by more than that.
    """
    total = 0.0
    for piece in _PIECE.findall(text):
        if piece[0].isascii() and piece[0].isalpha():
            total += math.ceil(len(piece) / 7)
        elif piece[0].isdigit():
            total += math.ceil(len(piece) / 3)
        elif piece[0].isspace():
            total += 0.5
        else:
            total += math.ceil(len(piece) / 2)
    return math.ceil(total)
