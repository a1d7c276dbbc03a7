"""PTX → `DecodedKernel`: closed decoding by grammar.

Every instruction of a kernel is either one that the core executes exactly, or the kernel is refused before anything
runs, with the form, the line and what to use instead.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ptxgym.device.emulator import (  # noqa: F401  (each adds its rules to the grammar)
    decode_alu,
    decode_async,
    decode_atomic,
    decode_bits,
    decode_cluster,
    decode_control,
    decode_hints,
    decode_launch,
    decode_matrix,
    decode_memory,
    decode_move,
    decode_tcgen05,
    decode_wmma,
)
from ptxgym.device.emulator.decode_allocate import Allocation, allocate, relocate
from ptxgym.device.emulator.decode_calls import ADDED, PARAMETER_FORM, CallBuilder, Linked, call_of, link
from ptxgym.device.emulator.decode_grammar import (
    GUARD_AT,
    GUARD_NOT_AT,
    NVEC_AT,
    OP_AT,
    TARGET_AT,
    VEC_AT,
    NotEmulated,
    RefusedOperand,
    Row,
    Template,
    resolve,
)
from ptxgym.device.emulator.decode_layout import Layout, align_up, dimensions, lay_out, module_symbols
from ptxgym.device.emulator.decode_operands import Context
from ptxgym.device.emulator.decode_suspects import early_read_table, early_reads, extents, unset_registers
from ptxgym.device.emulator.ir import (
    CONST_DTYPE,
    INST_DTYPE,
    OP,
    SHARED_ADDRESS,
    SREG_DTYPE,
    DecodedKernel,
    ModuleSymbol,
    SharedExtent,
)
from ptxgym.device.emulator.ptx import Function, Instruction, Module, parse_module

Array = TypeVar("Array", bound=NDArray[Any])
_PACK = struct.Struct("<HBBIIiIiiiiiiiiiiiq")
assert _PACK.size == INST_DTYPE.itemsize
_template = lru_cache(maxsize=4096)(resolve)
_BRANCHES = frozenset({OP["BRA"], OP["BRX"]})
_ENDS = frozenset({OP["EXIT"], OP["TRAP"], OP["BRA"], OP["BRX"], OP["RET"]})
_CALLS = frozenset({OP["CALL"], OP["CALL_INDIRECT"]})


class DecodedModule:
    """Kernels of one module in the core's form, decoded as they are asked for."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._kernels: dict[str, DecodedKernel] = {}
        self._symbols: Mapping[str, ModuleSymbol] | None = None

    @classmethod
    def parse(cls, ptx_text: str, source: str | None = None) -> DecodedModule:
        """Parse a module; `source` is the submission's path, whose lines are reported.

        Raises:
            PtxSyntaxError: if the text is not PTX.
        """
        return cls(parse_module(ptx_text, source))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kernels."""
        return tuple(entry.name for entry in self.module.entries)

    @property
    def symbols(self) -> Mapping[str, ModuleSymbol]:
        """Module-level `.global` and `.const` variables by name."""
        if self._symbols is None:
            self._symbols = module_symbols(self.module)
        return self._symbols

    def kernel(self, name: str) -> DecodedKernel:
        """Return kernel `name`.

        Raises:
            NotEmulated: if the kernel holds a form that the emulator would not execute exactly.
            PtxSyntaxError: if its body is malformed.
            KeyError: if the module has no such kernel.
        """
        known = self._kernels.get(name)
        if known is None:
            function = self.module.functions[name]
            if not function.is_entry:
                raise KeyError(name)
            known = self._kernels[name] = decode_function(function)
        return known


def decode_function(function: Function) -> DecodedKernel:
    """Decode one kernel.

    Raises:
        NotEmulated: at the first form that is not accepted.
        PtxSyntaxError: if the body is malformed.
    """
    linked = link(function)
    layout = lay_out(function, linked)
    context = layout.context
    stream = _Stream(linked, layout)
    rows = stream.rows
    fixed = [entry[0] for entry in (*context.consts, *context.sregs)]
    suspects = (
        early_reads(rows, context.pool, context.widths, fixed),
        extents(rows, context.pool, context.shared_bases, context.addresses),
    )
    allocation = allocate(rows, context.pool, context.widths, fixed)
    relocate(rows, context.pool, allocation)
    return _assemble(function, layout, allocation, stream, suspects)


def refused_forms(function: Function) -> list[NotEmulated]:
    """Decode one kernel and return every refusal instead of stopping at the first.

    Raises:
        PtxSyntaxError: if the body is malformed.
    """
    linked = link(function)
    try:
        layout = lay_out(function, linked)
    except NotEmulated as refusal:
        return [refusal]
    found = []
    calls = CallBuilder(linked, layout.context, layout.local_bytes)
    for each in linked.functions:
        for instruction in each.body.instructions:
            try:
                _decode(calls, layout.context, each, instruction)
            except NotEmulated as refusal:
                found.append(refusal)
    return found


def _decode(
    calls: CallBuilder, context: Context, function: Function, instruction: Instruction
) -> list[tuple[Template, Row]]:
    """Decode one instruction of `function`; a call becomes several."""
    if instruction.opcode.startswith("call"):
        call = call_of(instruction, function.module.functions)
        if call is not None:
            _template(instruction.opcode)  # refuses what is no form of call
            return calls.call(function, instruction, call)
    template, row = decode_instruction(context, instruction)
    if row[OP_AT] == OP["EXIT"] and not function.is_entry and instruction.opcode.startswith("ret"):
        row[OP_AT] = OP["RET"]
    return [(template, row)]


class _Stream:
    """The instructions of a kernel and of the functions that it may call, one function after the other."""

    def __init__(self, linked: Linked, layout: Layout) -> None:
        self.rows: list[Row] = []
        self.templates: list[Template] = []
        self.forms: list[str] = []
        self.lines: list[int] = []
        self.origins: list[tuple[str, int]] = []
        """Function and instruction of its body; -1 where the decoder added one."""
        context = layout.context
        calls = CallBuilder(linked, context, layout.local_bytes)
        starts: dict[str, int] = {}
        registers: dict[str, tuple[int, ...]] = {}
        for function in linked.functions:
            starts[function.name] = len(self.rows)
            known = len(context.slots)
            self._function(calls, context, function)
            registers[function.name] = tuple(context.slots.values())[known:]
        thunks = {}
        for function, signature, added in calls.thunks():
            thunks[function.name] = (len(self.rows), signature)
            self._append(function, -1, PARAMETER_FORM, 0, added)
        calls.finish(starts, thunks, registers)
        self.local_bytes = calls.local_bytes

    def _append(
        self, function: Function, index: int, form: str, line: int, decoded: Sequence[tuple[Template, Row]]
    ) -> None:
        for template, row in decoded:
            self.rows.append(row)
            self.templates.append(template)
            self.forms.append(form if template is not ADDED or row[OP_AT] in _CALLS else PARAMETER_FORM)
            self.lines.append(line)
            self.origins.append((function.name, index))

    def _function(self, calls: CallBuilder, context: Context, function: Function) -> None:
        rows, first = self.rows, len(self.rows)
        instructions = function.body.instructions
        positions = []
        for index, instruction in enumerate(instructions):
            positions.append(len(rows))
            decoded = _decode(calls, context, function, instruction)
            if len(decoded) == 1:
                self.rows.append(decoded[0][1])
                self.templates.append(decoded[0][0])
                self.forms.append(instruction.opcode)
                self.lines.append(instruction.line)
                self.origins.append((function.name, index))
            else:
                self._append(function, index, instruction.opcode, instruction.line, decoded)
        positions.append(len(rows))
        moved = len(rows) - first != len(instructions) or first > 0
        for at in range(first, len(rows)):
            row = rows[at]
            op = row[OP_AT]
            if op == OP["BRA"] and self.templates[at] is ADDED:
                row[TARGET_AT] += at  # round a call
            elif op == OP["BRA"] and moved:
                row[TARGET_AT] = positions[row[TARGET_AT]]
            elif op == OP["BRX"] and moved:
                table = range(row[VEC_AT], row[VEC_AT] + row[NVEC_AT])
                for place in table:
                    context.pool[place] = positions[context.pool[place]]
        self._end(function, first)

    def _end(self, function: Function, first: int) -> None:
        """Add the ret that PTX implies at the end of a body, where control can reach it."""
        rows, count = self.rows, len(self.rows)
        last = rows[-1] if count > first else None
        falls = last is None or last[OP_AT] not in _ENDS or last[GUARD_AT] >= 0
        body = rows[first:]
        jumps = any(row[OP_AT] == OP["BRA"] and row[TARGET_AT] >= count for row in body)
        if falls or jumps or any(row[OP_AT] == OP["BRX"] for row in body):
            template = _template("ret")
            row = list(template.row)
            if not function.is_entry:
                row[OP_AT] = OP["RET"]
            self._append(function, -1, "ret", 0, [(template, row)])


def decode_instruction(context: Context, instruction: Instruction) -> tuple[Template, Row]:
    """Decode one instruction into a row of `INST_FIELDS`.

    Raises:
        NotEmulated: if its form or an operand is not accepted.
    """
    opcode, operands, guard, guard_not, line, _ = instruction
    try:
        template = _template(opcode)
        row = list(template.row)
        if guard is not None:
            row[GUARD_AT] = context.register(guard)
            row[GUARD_NOT_AT] = int(guard_not)
        if template.custom is not None:
            template.custom(context, row, operands)
        else:
            shape = template.shapes.get(len(operands))
            if shape is None:
                expected = " or ".join(str(count) for count in sorted(template.shapes))
                raise RefusedOperand(f"{len(operands)} operands, the form has {expected}")
            for handler, operand in zip(shape, operands, strict=True):
                handler(context, row, operand)
    except NotEmulated as refusal:
        raise NotEmulated(refusal.form, refusal.reason, line, refusal.code) from None
    except RefusedOperand as refusal:
        raise NotEmulated(opcode, str(refusal), line, refusal.code) from None
    return template, row


def _assemble(
    function: Function,
    layout: Layout,
    allocation: Allocation,
    stream: _Stream,
    suspects: tuple[list[tuple[int, int]], tuple[SharedExtent, ...]],
) -> DecodedKernel:
    places, context, rows, templates = allocation.places, layout.context, stream.rows, stream.templates
    pack = _PACK.pack
    inst = np.frombuffer(b"".join([pack(*row) for row in rows]), dtype=INST_DTYPE)
    early, accesses = suspects
    addresses = context.shared_bases
    constants = [
        (places[at], width | (SHARED_ADDRESS if at in addresses else 0), low, high)
        for at, width, low, high in context.consts
    ]
    features = 0
    for template in templates:
        features |= template.features
    return DecodedKernel(
        name=function.name,
        inst=inst,
        pool=_frozen(np.array(context.pool, dtype=np.int32)),
        consts=_frozen(np.array([*constants, *unset_registers(early, places, context.widths)], dtype=CONST_DTYPE)),
        sregs=_frozen(np.array([(places[s[0]], *s[1:]) for s in context.sregs], dtype=SREG_DTYPE)),
        reg_bytes=allocation.reg_bytes,
        static_smem_bytes=layout.static_smem_bytes,
        shared=layout.shared,
        uses_dynamic_smem=any(symbol.dynamic for symbol in layout.shared),
        local_bytes=align_up(stream.local_bytes, 16),
        params=layout.parameters,
        param_bytes=layout.param_bytes,
        features=features,
        forms=tuple(stream.forms),
        families=tuple(template.family for template in templates),
        thread_multiply_adds=_numbers(template.thread_multiply_adds for template in templates),
        warp_multiply_adds=_numbers(template.warp_multiply_adds for template in templates),
        lines=_frozen(np.array(stream.lines, dtype=np.int32)),
        origins=tuple(stream.origins),
        relocations=tuple(context.relocations),
        max_ntid=dimensions(function.directives.get("maxntid")),
        req_ntid=dimensions(function.directives.get("reqntid")),
        cluster=dimensions(function.directives.get("reqnctapercluster")),
        early_reads=_frozen(early_read_table(rows, early, places, context.widths)),
        extents=accesses,
        register_names=_names(context, allocation),
    )


def _names(context: Context, allocation: Allocation) -> dict[int, str]:
    """Names of the places that belong to one register alone."""
    owners = Counter(allocation.places.values())
    return {
        place: context.names[offset]
        for offset, place in allocation.places.items()
        if owners[place] == 1 and offset in context.names
    }


def _numbers(values: Iterable[int]) -> NDArray[np.int64]:
    return _frozen(np.array(list(values), dtype=np.int64))


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array
