"""`ptxgym corpus`: which kernels of a folder would the emulator execute?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from ptxgym.build import build
from ptxgym.cli.console import out, plain
from ptxgym.device.emulator.forms import check_module
from ptxgym.device.emulator.ptx import PtxSyntaxError
from ptxgym.errors import UsageError
from ptxgym.task import load_arch
from ptxgym.verdict import Failure

_ENTRY = 'extern "C" void ptxgym_corpus_entry()'


@dataclass(frozen=True)
class Checked:
    """What became of one file."""

    kernels: int = 0
    refused: tuple[str, ...] = ()
    """Forms with place and reason, distinct."""
    failure: str | None = None
    """Why it does not compile, is not PTX, or cannot be read."""


def check_corpus(folder: Path, arch: str) -> bool:
    """Print a line per file; return whether every file compiles and decodes.

    A `.cu` file is compiled by itself, as a submission is. Whatever needs a library's headers is compiled by its own
    build (`nvcc -ptx`) and given as `.ptx`.

    Raises:
        UsageError: if there is no such folder, or neither `.cu` nor `.ptx` in it.
        InfrastructureError: if there is no compiler, or the machine failed.
    """
    code = load_arch(arch).code
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".cu", ".ptx") and not file.is_dir())
    if not files:
        raise UsageError(f"{folder} is no folder with .cu or .ptx files")
    table = Table("file", "kernels", "verdict", "why", box=None, header_style="bold")
    forms: Counter[str] = Counter()
    good = 0
    for file in files:
        checked = check_file(file, code)
        forms.update({line.partition(" ")[0] for line in checked.refused})
        name = plain(str(file.relative_to(folder)))
        if checked.failure is not None:
            verdict = "is no PTX" if file.suffix == ".ptx" else "does not compile"
            verdict = verdict if file.is_file() else "cannot be read"
            table.add_row(name, "-", plain(verdict, "yellow"), plain(checked.failure))
        elif checked.refused:
            table.add_row(name, str(checked.kernels), plain("refused", "red"), plain("\n".join(checked.refused)))
        else:
            good += 1
            table.add_row(name, str(checked.kernels), plain("decodes", "green"), "")
    out.print(table)
    out.print(plain(f"{good} of {len(files)} files decode wholly"))
    for form, count in forms.most_common():
        out.print(plain(f"  refused in {count} file{'s' if count > 1 else ''}: {form}"))
    return good == len(files)


def check_file(file: Path, code: str) -> Checked:
    """Decode every kernel of a file; CUDA C++ is compiled for `code` (such as `sm_90a`), without an entry point."""
    if not file.is_file():
        return Checked(failure="it is a link to nothing, or no plain file")
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".cu":
        built = build(f"{text}\n{_ENTRY} {{}}\n", declaration=_ENTRY, arch=code)
        if isinstance(built, Failure):
            return Checked(failure=built.message)
        text = built.ptx.read_text(encoding="utf-8", errors="replace")
    try:
        modules = check_module(text, "/kernel.cu")
    except PtxSyntaxError as error:
        return Checked(failure=str(error))
    refused = dict.fromkeys(str(form) for forms in modules.values() for form in forms)
    return Checked(kernels=len(modules), refused=tuple(refused))
