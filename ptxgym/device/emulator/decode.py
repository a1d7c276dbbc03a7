"""PTX → `DecodedKernel`: closed decoding by grammar.

Every instruction of a kernel is either one that the core executes exactly, or the kernel is refused before anything
runs, with the form, the line and what to use instead.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
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
    decode_matrix,
    decode_memory,
    decode_move,
    decode_tcgen05,
)
from ptxgym.device.emulator.decode_allocate import Allocation, allocate, relocate
from ptxgym.device.emulator.decode_grammar import (
    GUARD_AT,
    GUARD_NOT_AT,
    OP_AT,
    TARGET_AT,
    NotEmulated,
    RefusedOperand,
    Row,
    Template,
    resolve,
)
from ptxgym.device.emulator.decode_layout import Layout, dimensions, lay_out, module_symbols
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
_ENDS = frozenset({OP["EXIT"], OP["TRAP"], OP["BRA"], OP["BRX"]})


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
    layout = lay_out(function)
    context = layout.context
    instructions = function.body.instructions
    rows, templates = [], []
    for instruction in instructions:
        template, row = decode_instruction(context, instruction)
        rows.append(row)
        templates.append(template)
    _end(function, rows, templates)
    fixed = [entry[0] for entry in (*context.consts, *context.sregs)]
    suspects = (
        early_reads(rows, context.pool, context.widths, fixed),
        extents(rows, context.pool, context.shared_bases, context.addresses),
    )
    allocation = allocate(rows, context.pool, context.widths, fixed)
    relocate(rows, context.pool, allocation)
    return _assemble(function, layout, allocation, rows, templates, suspects)


def refused_forms(function: Function) -> list[NotEmulated]:
    """Decode one kernel and return every refusal instead of stopping at the first.

    Raises:
        PtxSyntaxError: if the body is malformed.
    """
    try:
        context = lay_out(function).context
    except NotEmulated as refusal:
        return [refusal]
    found = []
    for instruction in function.body.instructions:
        try:
            decode_instruction(context, instruction)
        except NotEmulated as refusal:
            found.append(refusal)
    return found


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


def _end(function: Function, rows: list[Row], templates: list[Template]) -> None:
    """Add the ret that PTX implies at the end of a body, where control can reach it."""
    count = len(rows)
    last = rows[-1] if rows else None
    falls = last is None or last[OP_AT] not in _ENDS or last[GUARD_AT] >= 0
    jumps = any(row[OP_AT] == OP["BRA"] and row[TARGET_AT] >= count for row in rows)
    if falls or jumps or any(row[OP_AT] == OP["BRX"] for row in rows):
        template = _template("ret")
        rows.append(list(template.row))
        templates.append(template)


def _assemble(
    function: Function,
    layout: Layout,
    allocation: Allocation,
    rows: list[Row],
    templates: list[Template],
    suspects: tuple[list[tuple[int, int]], tuple[SharedExtent, ...]],
) -> DecodedKernel:
    places = allocation.places
    context, instructions = layout.context, function.body.instructions
    pack = _PACK.pack
    inst = np.frombuffer(b"".join([pack(*row) for row in rows]), dtype=INST_DTYPE)
    implied = len(rows) - len(instructions)
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
        local_bytes=layout.local_bytes,
        params=layout.parameters,
        param_bytes=layout.param_bytes,
        features=features,
        forms=(*(instruction.opcode for instruction in instructions), *["ret"] * implied),
        families=tuple(template.family for template in templates),
        thread_multiply_adds=_numbers(template.thread_multiply_adds for template in templates),
        warp_multiply_adds=_numbers(template.warp_multiply_adds for template in templates),
        lines=_frozen(np.array([instruction.line for instruction in instructions] + [0] * implied, dtype=np.int32)),
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
