"""Where a kernel's variables live: shared memory, the local depot, the parameter block, module symbols."""

from __future__ import annotations

from dataclasses import dataclass

from ptxgym.device.emulator.decode_calls import Linked, function_handles, link, memory_parameters
from ptxgym.device.emulator.decode_grammar import NotEmulated
from ptxgym.device.emulator.decode_operands import Context
from ptxgym.device.emulator.ir import SMEM_BASE, ModuleSymbol, Parameter, SharedSymbol, SymbolRelocation
from ptxgym.device.emulator.ptx import Function, Integer, Memory, Module, Operand, Symbol, Variable, Vector

_DYNAMIC_ALIGN = 16
_MOST_BYTES = {"param": 32_764, "shared": 256 << 10, "local": 512 << 10, "const": 64 << 10, "global": 1 << 30}
"""What a kernel, a CTA, a thread or a module can have (PTX ISA 4.1.9, CUDA C++ Programming Guide, compute capabilities;
shared rounded up, since the launch checks it; of global variables what this machine can be asked to hold)."""


@dataclass(frozen=True)
class Layout:
    """Addresses of a kernel's variables, and the context to decode it in."""

    context: Context
    parameters: tuple[Parameter, ...]
    param_bytes: int
    static_smem_bytes: int
    local_bytes: int
    shared: tuple[SharedSymbol, ...]
    """In order of address."""


def align_up(offset: int, align: int) -> int:
    """Round `offset` up to a multiple of `align`."""
    return (offset + align - 1) // align * align


def dimensions(values: tuple[int, ...] | None) -> tuple[int, int, int] | None:
    """Three extents from a directive that may leave out the last ones."""
    if values is None:
        return None
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def lay_out(function: Function, linked: Linked | None = None) -> Layout:
    """Place the variables of `function` and of those that it may call: what they declare, and the module's shared
    variables that they name.

    Static shared variables come first, in the order of their declaration; every dynamic (`.extern`) array begins where
    they end, rounded up to the largest alignment that a dynamic array asks for.
    """
    linked = linked or link(function)
    parameters, param_bytes = _parameters(function)
    declared = [variable for each in linked.functions for variable in each.body.variables]
    named = {variable for each in linked.functions for variable in _named_shared(each)}
    shared = [v for v in function.module.variables.values() if v in named] + [
        v for v in declared if v.space == "shared"
    ]
    addresses: dict[Variable, int] = {}
    offset = 0
    for variable in shared:
        if not variable.extern:
            if variable.initial:
                raise NotEmulated(".shared", f"`{variable.name}` has an initialiser, which shared memory cannot hold")
            offset = align_up(offset, variable.align)
            addresses[variable] = SMEM_BASE + offset
            offset += variable.size_bytes
    dynamic = [variable for variable in shared if variable.extern]
    if dynamic:
        offset = align_up(offset, max(_DYNAMIC_ALIGN, *(variable.align for variable in dynamic)))
    addresses.update(dict.fromkeys(dynamic, SMEM_BASE + offset))
    symbols = tuple(
        SharedSymbol(v.name, addresses[v], 0 if v.extern else v.size_bytes, v.align, v.extern)
        for v in sorted(shared, key=lambda v: addresses[v])
    )
    local_bytes = 0
    for variable in declared:
        if variable.space == "local":
            local_bytes = align_up(local_bytes, variable.align)
            addresses[variable] = local_bytes
            local_bytes += variable.size_bytes
    _bounded("param", param_bytes)
    _bounded("shared", offset)
    module_variables = frozenset(v for v in function.module.variables.values() if v.space in ("global", "const"))
    offsets = {v: p.offset for v, p in zip(function.params, parameters, strict=True)}
    context = Context(offsets, addresses, module_variables)
    context.functions = linked.handles
    for variable in memory_parameters(linked):
        local_bytes = align_up(local_bytes, variable.align)
        context.call_memory[variable] = local_bytes
        local_bytes += variable.size_bytes
    _bounded("local", local_bytes)
    return Layout(context, parameters, param_bytes, offset, align_up(local_bytes, 16), symbols)


def _bounded(space: str, size_bytes: int) -> None:
    if size_bytes > _MOST_BYTES[space]:
        raise NotEmulated(f".{space}", f"{size_bytes} bytes of variables, at most {_MOST_BYTES[space]} are possible")


def _parameters(function: Function) -> tuple[tuple[Parameter, ...], int]:
    found, offset = [], 0
    for variable in function.params:
        offset = align_up(offset, variable.align)
        found.append(Parameter(variable.name, offset, variable.size_bytes, variable.align))
        offset += variable.size_bytes
    return tuple(found), offset


def _named_shared(function: Function) -> set[Variable]:
    """Module-level shared variables that the body mentions; a kernel owns no others."""
    candidates = {v for v in function.module.variables.values() if v.space == "shared"}
    named: set[Variable] = set()
    if not candidates:
        return named

    def visit(operand: Operand) -> None:
        if isinstance(operand, Symbol):
            if operand.variable in candidates:
                named.add(operand.variable)
        elif isinstance(operand, Memory):
            if isinstance(operand.base, Symbol):
                visit(operand.base)
        elif isinstance(operand, Vector):
            for element in operand.elements:
                visit(element)

    for instruction in function.body.instructions:
        for operand in instruction.operands:
            if not isinstance(operand, Integer):
                visit(operand)
    return named


def module_symbols(module: Module) -> dict[str, ModuleSymbol]:
    """The module's `.global` and `.const` variables, with their initial bytes.

    Raises:
        NotEmulated: if there are too many bytes of them.
    """
    symbols = {}
    for space in ("global", "const"):
        _bounded(space, sum(v.size_bytes for v in module.variables.values() if v.space == space and not v.extern))
    handles = function_handles(module)
    for variable in module.variables.values():
        if variable.space not in ("global", "const") or variable.extern:
            continue
        initial = variable.initial or bytes(variable.size_bytes)
        references = () if variable.unsupported else variable.references  # no kernel that decodes uses the unsupported
        for offset, name, addend in references:
            if name in handles:
                value = (handles[name] + addend).to_bytes(8, "little")
                initial = initial[:offset] + value + initial[offset + 8 :]
        relocations = tuple(SymbolRelocation(*reference) for reference in references if reference.symbol not in handles)
        symbols[variable.name] = ModuleSymbol(
            variable.name, variable.space, variable.size_bytes, variable.align, initial, relocations
        )
    return symbols
