"""A kernel template: a text with a line for its knobs, and which values each knob may take.

Templates are content: `tasks/<task>/templates/<arch>/<name>.toml` names environment and knobs, `<name>.cu.in` beside it
holds the text. Where that has the line `// ptxgym: knobs`, rendering puts a `constexpr` a knob.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from ptxgym import content
from ptxgym.errors import ContentError, UnknownNameError, UsageError
from ptxgym.verdict import Value

MARK = re.compile(r"^[ \t]*//[ \t]*ptxgym:[ \t]*knobs[ \t]*$", re.MULTILINE)
SUFFIX = ".cu.in"
_IDENTIFIER = r"^[A-Za-z_]\w*$"
_INT = range(-(2**31), 2**31)

Choice = StrictBool | StrictInt | StrictStr
"""A truth value, a number of 32 bits, or a C++ expression, such as the name of an enumerator."""
Setting = dict[str, bool | int | str]
"""A choice for each knob, by its name."""


class Knob(Value):
    """A constant of the kernel, and what it may be."""

    name: Annotated[str, Field(pattern=_IDENTIFIER)]
    """As the text has it."""
    choices: tuple[Choice, ...] = Field(min_length=1)
    """All truth values, all numbers, or all expressions; in an order that means something, where there is one."""
    summary: str = ""

    @field_validator("choices")
    @classmethod
    def _alike(cls, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
        kinds = {type(choice) for choice in choices}
        if len(kinds) > 1:
            raise ValueError("choices must be all truth values, all numbers, or all texts")
        if len(set(choices)) < len(choices):
            raise ValueError("a choice is there twice")
        for choice in choices:
            if type(choice) is int and choice not in _INT:
                raise ValueError(f"{choice} does not fit into an int; write it as an expression, '{choice}ull'")
            if isinstance(choice, str) and not re.fullmatch(r"[^;{}#\\\r\n]*[^;{}#\\\s]", choice):
                raise ValueError(f"{choice!r} must be one C++ expression, without ; {{ }} # or a line break")
        return choices

    def declaration(self, choice: int) -> str:
        """Return the line that gives the knob its choice number `choice`."""
        value = self.choices[choice]
        if isinstance(value, bool):
            return f"constexpr bool {self.name} = {str(value).lower()};"
        return f"constexpr {'int' if isinstance(value, int) else 'auto'} {self.name} = {value};"


class KnobTemplate(Value):
    """A kernel whose schedule is left open.

    Example:
        >>> template = load_template("gemm/h100/ring")
        >>> template.size, template.knobs[0].name, template.knobs[0].choices
        (69120, 'kTileM', (64, 128, 256))
    """

    name: str
    """`<task>/<arch>/<stem>` of one that ships or lies in a content folder."""
    summary: str
    env: str
    """Plain id of the environment that it is written for."""
    variant: str | None = None
    """Of the environment's task, where it is not the environment's own."""
    knobs: tuple[Knob, ...] = Field(min_length=1)
    text: str
    """The kernel, with the line where the knobs go."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        names = [knob.name for knob in self.knobs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two knobs are named {name!r}")
        if (marks := len(MARK.findall(self.text))) != 1:
            raise ValueError(f"the text must have one line `// ptxgym: knobs`, where they go; it has {marks}")
        for name in names:
            if not re.search(rf"\b{name}\b", self.text):
                raise ValueError(f"knob {name!r} stands nowhere in the text, so that it turns nothing")
        return self

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many choices each knob has."""
        return tuple(len(knob.choices) for knob in self.knobs)

    @property
    def size(self) -> int:
        """How many settings there are."""
        return math.prod(self.sizes)

    def action(self, index: int) -> tuple[int, ...]:
        """Return the choices of setting number `index`, the last knob turning fastest.

        Raises:
            UsageError: if there are not so many.
        """
        if not 0 <= index < self.size:
            raise UsageError(f"setting {index} is none of the {self.size} of template {self.name}")
        choices: list[int] = []
        for count in reversed(self.sizes):
            index, choice = divmod(index, count)
            choices.append(choice)
        return tuple(reversed(choices))

    def setting(self, action: Sequence[int]) -> Setting:
        """Return the values that an action chooses.

        Args:
            action: The number of a choice for each knob.

        Raises:
            UsageError: if a number is none of a choice, or there are not as many as knobs.
        """
        return {knob.name: knob.choices[choice] for knob, choice in zip(self.knobs, self._checked(action), strict=True)}

    def choose(self, setting: Mapping[str, bool | int | str]) -> tuple[int, ...]:
        """Return the action that chooses these values.

        Raises:
            UsageError: if a knob is missing or unknown, or has no such choice.
        """
        for name in setting:
            if name not in {knob.name for knob in self.knobs}:
                raise UsageError(content.unknown(f"knob of template {self.name}", name, [k.name for k in self.knobs]))
        found = []
        for knob in self.knobs:
            if knob.name not in setting:
                raise UsageError(f"the setting gives knob {knob.name!r} no value; choices: {knob.choices}")
            found.append(knob.choices.index(self._choice(knob, setting[knob.name])))
        return tuple(found)

    def render(self, action: Sequence[int]) -> str:
        """Return the kernel with the choices of an action.

        Raises:
            UsageError: as `setting`.
        """
        chosen = zip(self.knobs, self._checked(action), strict=True)
        lines = "\n".join(knob.declaration(choice) for knob, choice in chosen)
        return MARK.sub(lambda _: lines, self.text)

    def keep(self, values: Mapping[str, bool | int | str]) -> KnobTemplate:
        """Return the template with some knobs left at one value each; texts of the settings that remain are the same.

        Raises:
            UsageError: if a knob is unknown, or has no such choice.
        """
        known = {knob.name: knob for knob in self.knobs}
        for name, value in values.items():
            if name not in known:
                raise UsageError(content.unknown(f"knob of template {self.name}", name, known))
            known[name] = known[name].model_copy(update={"choices": (self._choice(known[name], value),)})
        return self.model_copy(update={"knobs": tuple(known.values())})

    def _choice(self, knob: Knob, value: bool | int | str) -> bool | int | str:
        if value not in knob.choices or type(value) is not type(knob.choices[0]):
            raise UsageError(f"{knob.name} = {value!r} is no choice of template {self.name}: {knob.choices}")
        return value

    def _checked(self, action: Sequence[int]) -> tuple[int, ...]:
        if len(action) != len(self.knobs):
            raise UsageError(f"template {self.name} has {len(self.knobs)} knobs, the action {len(action)} choices")
        for knob, choice in zip(self.knobs, action, strict=True):
            if not 0 <= choice < len(knob.choices):
                raise UsageError(f"{knob.name} has choices 0 to {len(knob.choices) - 1}, not {choice}: {knob.choices}")
        return tuple(int(choice) for choice in action)


def template_names() -> dict[str, Path]:
    """Return the file of every template by its name, sorted."""
    found = {}
    for root in content.roots():
        for path in sorted((root / "tasks").glob("*/templates/*/*.toml")):
            task, _, arch, file = path.relative_to(root / "tasks").parts
            found[f"{task}/{arch}/{file.removesuffix('.toml')}"] = path
    return dict(sorted(found.items()))


def load_template(name: str) -> KnobTemplate:
    """Load a template by its name, or a file that ends in `.toml`.

    Raises:
        UnknownNameError: if there is none; suggests the nearest.
        ContentError: if one of its two files is missing or wrong.
    """
    if name.endswith(".toml"):
        path = Path(name)
        name = path.stem
    else:
        known = template_names()
        if name not in known:
            raise UnknownNameError(content.unknown("template", name, known))
        path = known[name]
    text = path.with_suffix(SUFFIX)
    try:
        kernel = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if not path.is_file():
            raise ContentError(f"{path}: no such template; known: {', '.join(template_names())}") from error
        raise ContentError(f"{text}: the text of template {path.name} is to lie beside it ({error})") from error
    return content.load(path, KnobTemplate, name=name, text=kernel)
