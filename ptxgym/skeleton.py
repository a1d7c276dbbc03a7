"""A kernel of which only marked regions may change.

A region is what stands between a line `// ptxgym: begin <name>` and the next line `// ptxgym: end`. Everything else,
the marking lines included, is fixed. A region may not leave open what would switch fixed text off: an `#if`, a comment,
a raw string.
"""

from __future__ import annotations

import re

from ptxgym.build.text import left_open
from ptxgym.errors import UsageError
from ptxgym.verdict import Failure, Stage, Status, Value

_BEGIN = re.compile(r"^[ \t]*//[ \t]*ptxgym:[ \t]*begin[ \t]+(\w+)[ \t]*$", re.MULTILINE)
_END = re.compile(r"^[ \t]*//[ \t]*ptxgym:[ \t]*end[ \t]*$", re.MULTILINE)


class Skeleton(Value):
    """The fixed parts of a kernel, and the names of the regions between them."""

    text: str
    fixed: tuple[str, ...]
    """One more than there are regions."""
    regions: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Skeleton:
        """Split `text` at its regions.

        Raises:
            UsageError: if it has no region, one is not ended, or two have the same name.
        """
        fixed: list[str] = []
        names: list[str] = []
        start = 0
        while begin := _BEGIN.search(text, start):
            end = _END.search(text, begin.end())
            if end is None:
                raise UsageError(f"skeleton: region {begin[1]!r} is not ended by a line `// ptxgym: end`")
            if begin[1] in names:
                raise UsageError(f"skeleton: two regions are named {begin[1]!r}")
            names.append(begin[1])
            fixed.append(text[start : begin.end() + 1])
            start = end.start()
        if not names:
            raise UsageError("skeleton: no region; mark one by lines `// ptxgym: begin <name>` and `// ptxgym: end`")
        return cls(text=text, fixed=(*fixed, text[start:].rstrip("\n")), regions=tuple(names))

    def check(self, submission: str) -> Failure | None:
        """Return why `submission` changes a fixed part or switches it off, or None if it does not."""
        position = 0
        for index, part in enumerate(self.fixed):
            last = index == len(self.fixed) - 1
            found = submission.rstrip("\n").rfind(part) if last else submission.find(part, position)
            misplaced = (index == 0 and found != 0) or (last and found + len(part) != len(submission.rstrip("\n")))
            if found < position or misplaced:
                place = f"before region {self.regions[index]!r}" if not last else f"after region {self.regions[-1]!r}"
                return Failure(
                    stage=Stage.SUBMISSION,
                    status=Status.REJECTED,
                    code="submission.skeleton_changed",
                    message=f"The text {place} differs from the skeleton; only the marked regions may change.",
                )
            if index > 0 and (what := left_open(submission[position:found])) is not None:
                return Failure(
                    stage=Stage.SUBMISSION,
                    status=Status.REJECTED,
                    code="submission.skeleton_changed",
                    message=f"Region {self.regions[index - 1]!r} leaves {what} open and so changes what follows.",
                )
            position = found + len(part)
        return None
