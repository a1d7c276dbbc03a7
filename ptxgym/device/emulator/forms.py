"""What the emulator accepts and refuses, in words: checks of whole modules, failures, and the grammar as a list.

`check_module` serves `ptxgym corpus`; `refusal` turns a typed error of the decoder into the `Failure` that an agent
reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxgym.device.emulator import decode
from ptxgym.device.emulator.decode_grammar import RULES, NotEmulated
from ptxgym.device.emulator.ir import DecodedKernel
from ptxgym.device.emulator.ptx import PtxSyntaxError, parse_module
from ptxgym.verdict import Diagnostic, Failure, Severity, Stage, Status

_MOST_DIAGNOSTICS = 20


@dataclass(frozen=True)
class RefusedForm:
    """One instruction that the emulator would refuse."""

    kernel: str
    form: str
    """Full opcode as written."""
    reason: str
    line: int | None
    """Line of the submission."""
    code: str

    def __str__(self) -> str:
        place = f" at line {self.line}" if self.line else ""
        return f"{self.form}{place}: {self.reason}"


@dataclass(frozen=True)
class AcceptedForm:
    """One line of the grammar."""

    opcode: str
    syntax: str
    """Opcode with its modifier slots: `.{a,b}` is obligatory, `{.a}` or `.{a,b}?` may be left out."""
    operands: str
    """Operands of an example, where they help."""
    note: str


def check_module(ptx_text: str, source: str | None = None) -> dict[str, tuple[RefusedForm, ...]]:
    """Decode every kernel of a module and return what is refused, by kernel; an empty tuple means that it would run.

    Args:
        ptx_text: A PTX module.
        source: Path of the submission, whose lines are reported.

    Raises:
        PtxSyntaxError: if the text is not PTX.
    """
    module = parse_module(ptx_text, source)
    return {
        entry.name: tuple(_refused(entry.name, error) for error in decode.refused_forms(entry))
        for entry in module.entries
    }


def _refused(kernel: str, error: NotEmulated) -> RefusedForm:
    return RefusedForm(kernel, error.form, error.reason, error.line or None, error.code)


def refusal(kernel: str, error: NotEmulated | PtxSyntaxError) -> Failure:
    """Turn what the decoder raised for `kernel` into the failure that ends the evaluation.

    The message names the form, the line and what to use instead; status `not_emulated`.
    """
    if isinstance(error, PtxSyntaxError):
        return Failure(
            stage=Stage.EXECUTE,
            status=Status.NOT_EMULATED,
            code="emulator.not_parsed",
            message=f"The emulator cannot read the PTX of kernel {kernel}: {error}.",
        )
    place = f" (line {error.line})" if error.line else ""
    message = f"The emulator does not execute {error.form}{place} in kernel {kernel}: {error.reason}."
    diagnostic = Diagnostic(
        severity=Severity.ERROR, message=f"not emulated: {error.form}: {error.reason}", line=error.line or None
    )
    return Failure(
        stage=Stage.EXECUTE, status=Status.NOT_EMULATED, code=error.code, message=message, diagnostics=(diagnostic,)
    )


def decode_kernels(module: decode.DecodedModule, names: tuple[str, ...]) -> dict[str, DecodedKernel] | Failure:
    """Decode the kernels that a plan launches.

    Returns the first refusal as a `Failure`; its diagnostics list every refused form of that kernel, at most 20.
    """
    decoded = {}
    for name in names:
        try:
            decoded[name] = module.kernel(name)
        except PtxSyntaxError as error:
            return refusal(name, error)
        except NotEmulated as error:
            first = refusal(name, error)
            others = decode.refused_forms(module.module.functions[name])[1:_MOST_DIAGNOSTICS]
            more = tuple(refusal(name, other).diagnostics[0] for other in others)
            return first.model_copy(update={"diagnostics": (*first.diagnostics, *more)})
    return decoded


def accepted_forms() -> tuple[AcceptedForm, ...]:
    """List the grammar: every rule, by opcode."""
    return tuple(
        AcceptedForm(opcode, rule.text(), rule.example, rule.note) for opcode in sorted(RULES) for rule in RULES[opcode]
    )
