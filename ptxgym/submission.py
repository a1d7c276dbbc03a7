"""What an agent hands in: the text of a kernel file, found in its answer and checked before anything is compiled."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal

from ptxgym.build.text import code_only
from ptxgym.verdict import Failure, Stage, Status

MAX_SOURCE_BYTES = 256 * 1024
"""The largest kernel file that is accepted, in UTF-8."""
CUDA_LABELS = frozenset({"cuda", "cu", "cpp", "c++", "cc", "cxx", "c", "cuda-cpp", "cuda-c++", "cudacpp", "cuda_cpp"})
"""Labels of fenced blocks that are taken for CUDA C++ without a look at their text."""

_FENCE = re.compile(r"^[ \t]{0,3}(?P<marks>`{3,}+|~{3,}+)[ \t]*+(?P<label>[^\s`{]*+)[^\n`]*+$", re.MULTILINE)
_LOOKS_LIKE_KERNEL = re.compile(r'__global__|\bextern\s*"C"|#\s*include\s*[<"]cuda')
_NOT_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")
_BACKTICKS = re.compile(r"^[ \t]*```", re.MULTILINE)
_IF = re.compile(r"^[ \t]*#[ \t]*if", re.MULTILINE)
_ENDIF = re.compile(r"^[ \t]*#[ \t]*endif", re.MULTILINE)
_C_LINKAGE = re.compile(r'\bextern\s*"C"')


@dataclass(frozen=True)
class Submission:
    """A kernel file."""

    text: str
    language: Literal["cuda"] = "cuda"

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the text in UTF-8 (a lone surrogate is encoded as such)."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Extracted:
    """What `extract` found in an answer."""

    text: str
    """The kernel file; empty if `code` is set."""
    code: Literal["no_code", "truncated_response"] | None = None
    notes: tuple[str, ...] = ()
    """`several_blocks` if the answer held more than one candidate, of which the last was taken."""

    @property
    def failure(self) -> Failure | None:
        """The `Failure` of an answer without a kernel file."""
        if self.code is None:
            return None
        return _failure(f"submission.{self.code}", _EXTRACT_MESSAGES[self.code])


_EXTRACT_MESSAGES = {
    "no_code": "The answer holds no kernel file. Put the whole file into one fenced block that starts with ```cuda.",
    "truncated_response": "The answer was cut off before the end of its code block. Give a shorter answer, or only the "
    "file in one ```cuda block.",
}


def extract(answer: str, *, cut_off: bool = False) -> Extracted:
    """Find the kernel file in a model's answer.

    The rule: candidates are the fenced blocks that are labelled as CUDA or C++, or are not labelled and look like a
    kernel file. Of the complete candidates the last that has a function with C linkage is taken, else the last; the
    note `several_blocks` says that there were more. A candidate that is opened after them and never closed means that
    the answer was cut off: `truncated_response`. An answer without any fence is itself taken as the file if it looks
    like one, and so is what stands before a lone fence at its end. Everything else is `no_code`.

    Args:
        answer: The whole answer.
        cut_off: Whether the answer is known to have reached its limit: without a complete block it holds no file then.
    """
    blocks, open_block = _blocks(answer)
    if not blocks and open_block is not None and (head := _before_lone_fence(answer, *open_block)) is not None:
        return Extracted(head)
    candidates = [text for label, text in blocks if _is_kernel(label, text)]
    if open_block is not None and _is_kernel(*open_block):
        return Extracted("", "truncated_response")
    if candidates:
        whole = [text for text in candidates if _C_LINKAGE.search(text)] or candidates
        return Extracted(whole[-1], notes=("several_blocks",) if len(candidates) > 1 else ())
    if not blocks and open_block is None and not cut_off and _LOOKS_LIKE_KERNEL.search(answer):
        return Extracted(answer)
    return Extracted("", "truncated_response" if cut_off else "no_code")


def check_text(text: str, max_bytes: int = MAX_SOURCE_BYTES) -> Failure | None:
    """Return why `text` cannot be a kernel file at all, or None.

    Codes: `submission.too_large` (more than `max_bytes` in UTF-8), `submission.not_text` (NUL or other control
    characters, or lone surrogates, which no UTF-8 file holds), `submission.empty` (nothing but white space),
    `submission.markdown` (a fence of Markdown among the code, where no compiler accepts one).
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        return _failure(
            "submission.too_large", f"The file has {size:,} bytes; at most {max_bytes:,} are accepted. Shorten it."
        )
    bad = _NOT_TEXT.search(text)
    if bad is not None:
        what = "is UTF-16" if _is_utf16(text) else f"{_named(bad)}, so it is not plain UTF-8 text"
        return _failure("submission.not_text", f"The file {what}. Send the source text of one .cu file in UTF-8.")
    if not text.strip("\ufeff \t\n\r\f\v"):
        return _failure("submission.empty", "The file is empty. Send the source text of one .cu file.")
    return _markdown(text)


def _named(bad: re.Match[str]) -> str:
    """Say what a character is and where; bytes that were no UTF-8 come as U+DC80 to U+DCFF (PEP 383)."""
    code, line = ord(bad.group()), bad.string.count("\n", 0, bad.start()) + 1
    what = f"byte 0x{code - 0xDC00:02X}" if 0xDC80 <= code <= 0xDCFF else f"character U+{code:04X}"
    return f"holds the {what} in line {line}"


def _is_utf16(text: str) -> bool:
    """Whether the bytes of UTF-16 were taken for UTF-8: every other one of ASCII text is 0."""
    few, many = sorted((text[::2].count("\0"), text[1::2].count("\0")))
    return text.startswith(("\udcff\udcfe", "\udcfe\udcff")) or many > max(1, len(text) // 4, 4 * few)


def _markdown(text: str) -> Failure | None:
    """Find a fence that is code to the compiler: in no comment, no literal, and no `#if`, which may skip it."""
    fence = _BACKTICKS.search(code_only(text)) if "```" in text else None
    if fence is None:
        return None
    before = code_only(text)[: fence.start()]
    if len(_IF.findall(before)) > len(_ENDIF.findall(before)):
        return None
    number = before.count("\n") + 1
    line = text.split("\n")[number - 1].strip()
    return _failure(
        "submission.markdown",
        f"Line {number} is a Markdown fence, {line[:40]}: this is an answer with the file inside. Send the "
        "bare text of the file; ptxgym.submission.extract(answer) takes it out of an answer.",
    )


def _blocks(answer: str) -> tuple[list[tuple[str, str]], tuple[str, str] | None]:
    """Split into complete fenced blocks (label, text) and the block that is still open at the end, if any.

    A block ends at a fence of the same character, at least as long, without a label (CommonMark 4.5).
    """
    answer = answer.replace("\r\n", "\n")
    complete: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(answer):
        if opened is None:
            opened = fence
        elif _closes(opened["marks"], fence):
            complete.append((opened["label"], answer[opened.end() + 1 : fence.start()]))
            opened = None
    if opened is None:
        return complete, None
    return complete, (opened["label"], answer[opened.end() + 1 :])


def _before_lone_fence(answer: str, label: str, rest: str) -> str | None:
    """Return what stands before the only fence if that one ends a kernel file whose opening fence was left out."""
    if label or rest.strip():
        return None
    answer = answer.replace("\r\n", "\n")
    fence = next(_FENCE.finditer(answer))
    head = answer[: fence.start()]
    return head if _LOOKS_LIKE_KERNEL.search(head) else None


def _closes(marks: str, fence: re.Match[str]) -> bool:
    return fence["marks"][0] == marks[0] and len(fence["marks"]) >= len(marks) and not fence["label"]


def _is_kernel(label: str, text: str) -> bool:
    if label.lower() in CUDA_LABELS:
        return bool(text.strip())
    return not label and _LOOKS_LIKE_KERNEL.search(text) is not None


def _failure(code: str, message: str) -> Failure:
    return Failure(stage=Stage.SUBMISSION, status=Status.REJECTED, code=code, message=message)
