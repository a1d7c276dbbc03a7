"""Calls of functions that the compiler did not inline: which functions belong to a kernel, and what a call becomes.

A kernel and the functions that it may call are one stream of instructions over one register file. Parameters and
results lie in local memory; a call copies its arguments to the function's parameters and its results back. Where a
function may come to call itself, the registers and parameters of the caller are put away around the call (SAVE,
RESTORE). PTX ISA 7.1, 9.7.12.5 (call) and 9.7.12.6 (ret).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    GUARD_AT,
    GUARD_NOT_AT,
    IMM_AT,
    MODS_AT,
    NVEC2_AT,
    NVEC_AT,
    OP_AT,
    STYPE_AT,
    T_CODE,
    TARGET_AT,
    TYPE_AT,
    VEC2_AT,
    VEC_AT,
    NotEmulated,
    Row,
    Template,
)
from ptxgym.device.emulator.decode_memory import SPACE_MODS
from ptxgym.device.emulator.decode_move import REGISTER_CLASS
from ptxgym.device.emulator.decode_operands import Context
from ptxgym.device.emulator.ir import FUNCTION_STEP, FUNCTION_WINDOW, INST_FIELDS, OP
from ptxgym.device.emulator.ptx import (
    Function,
    Group,
    Instruction,
    Memory,
    Module,
    Name,
    Operand,
    Register,
    Symbol,
    Variable,
)

BUILTINS = frozenset({"vprintf", "__assertfail"})
"""Functions that the core executes itself."""
PARAMETER_FORM = ".param"
"""Form of the instructions that a call adds: no opcode of the kernel."""
_CHUNKS = ((8, "b64"), (4, "b32"), (2, "b16"), (1, "b8"))


@dataclass(frozen=True)
class Call:
    """A call instruction."""

    callee: Function | Register
    arguments: tuple[Variable, ...]
    results: tuple[Variable, ...]


Signature = tuple[tuple[int, ...], tuple[int, ...]]
"""Bytes of the parameters and of the results."""


@dataclass
class Linked:
    """A kernel and the functions that it may call."""

    functions: tuple[Function, ...]
    """The kernel first."""
    handles: Mapping[str, int]
    """Address of every function of the module that has a body."""
    taken: tuple[Function, ...]
    """Functions that an indirect call may mean."""
    reaches: Mapping[str, frozenset[str]]
    """Function → those that it may call, directly or not."""
    slots: dict[Signature, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    """Where indirect and recursive calls hand over: local addresses of the parameters and of the results."""

    def comes_back(self, caller: Function, call: Call) -> bool:
        """Whether `call` may lead to another call of `caller`."""
        callees = self.taken if isinstance(call.callee, Register) else (call.callee,)
        return any(callee is caller or caller.name in self.reaches[callee.name] for callee in callees)


def function_handles(module: Module) -> dict[str, int]:
    """Return the address of every function of the module that has a body: what `mov` and initialisers hold."""
    defined = (f.name for f in module.functions.values() if not f.is_entry and f.start is not None)
    return {name: FUNCTION_WINDOW + FUNCTION_STEP * index for index, name in enumerate(defined)}


def link(entry: Function) -> Linked:
    """Find the functions that `entry` may call."""
    handles = function_handles(entry.module)
    if not handles:
        return Linked((entry,), {}, (), {})
    known = entry.module.functions
    in_data = [
        known[reference.symbol]
        for variable in entry.module.variables.values()
        for reference in variable.references
        if reference.symbol in handles
    ]
    order: dict[str, Function] = {entry.name: entry}
    taken: dict[str, Function] = {}
    direct: dict[str, set[str]] = {}
    indirect: set[str] = set()
    work = [entry]
    while work:
        function = work.pop()
        direct[function.name] = set()
        for instruction in function.body.instructions:
            if instruction.opcode.startswith("call"):
                call = call_of(instruction, known)
                if call is None:
                    continue
                if isinstance(call.callee, Register):
                    indirect.add(function.name)
                    taken.update((f.name, f) for f in in_data)
                else:
                    direct[function.name].add(call.callee.name)
            elif instruction.opcode.startswith("mov"):
                for operand in instruction.operands[1:]:
                    if isinstance(operand, Name) and operand.text in handles:
                        taken[operand.text] = known[operand.text]
        fresh = [known[name] for name in direct[function.name]] + (list(taken.values()) if indirect else [])
        for callee in fresh:
            if callee.name not in order:
                order[callee.name] = callee
                work.append(callee)
    called = {name: direct[name] | (set(taken) if name in indirect else set()) for name in order}
    return Linked(tuple(order.values()), handles, tuple(taken.values()) if indirect else (), _closure(called))


def _closure(called: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    found = {}
    for name in called:
        reached: set[str] = set()
        work = list(called[name])
        while work:
            callee = work.pop()
            if callee not in reached:
                reached.add(callee)
                work += called[callee]
        found[name] = frozenset(reached)
    return found


def call_of(instruction: Instruction, known: Mapping[str, Function]) -> Call | None:
    """Read a call of a function that has a body, or an indirect one; None for anything else."""
    rest = list(instruction.operands)
    results: tuple[Operand, ...] = rest.pop(0).elements if rest and isinstance(rest[0], Group) else ()  # type: ignore[union-attr]
    callee = rest.pop(0) if rest else None
    arguments = rest.pop(0).elements if rest and isinstance(rest[0], Group) else ()  # type: ignore[union-attr]
    target: Function | Register | None = callee if isinstance(callee, Register) and callee.width == 8 else None
    if isinstance(callee, Name):
        target = known.get(callee.text)
        if target is not None and (target.is_entry or target.start is None):
            target = None
    given, taken = _variables(arguments), _variables(results)
    if target is None or given is None or taken is None:
        return None
    return Call(target, given, taken)


def _variables(operands: Iterable[Operand]) -> tuple[Variable, ...] | None:
    found = [operand.variable for operand in operands if isinstance(operand, Symbol) and not operand.offset]
    return tuple(found) if len(found) == len(tuple(operands)) else None


def memory_parameters(linked: Linked) -> Iterator[Variable]:
    """Yield the parameters and results that lie in local memory: all but those of built-in functions."""
    for function in linked.functions:
        if not function.is_entry:
            yield from (*function.params, *function.returns)
        of_builtins: set[Variable] = set()
        for instruction in function.body.instructions:
            if instruction.opcode.startswith("call") and call_of(instruction, function.module.functions) is None:
                for operand in instruction.operands:
                    if isinstance(operand, Group):
                        of_builtins.update(_variables(operand.elements) or ())
        yield from (v for v in function.body.variables if v.space == "param" and v not in of_builtins)


# ---- what a call becomes

ADDED = Template((), {}, family="call")
"""Template of instructions that a call adds."""


def added_row(op: str) -> tuple[Template, Row]:
    """An instruction that stands for no PTX instruction of its own."""
    row = [0] * len(INST_FIELDS)
    for name in ("guard", "d", "d2", "a", "b", "c", "e"):
        row[FIELD[name]] = -1
    row[OP_AT] = OP[op]
    return ADDED, row


Added = tuple[Template, Row]


class CallBuilder:
    """Turns the calls of one kernel into instructions; `finish` fills in what only the whole kernel tells."""

    def __init__(self, linked: Linked, context: Context, local_bytes: int) -> None:
        self._linked = linked
        self._context = context
        self.local_bytes = local_bytes
        """Of a thread, what calls hand over included."""
        self._temporary: dict[int, int] = {}
        self._targets: list[tuple[Row, str]] = []
        self._tables: list[tuple[Row, Signature]] = []
        self._saves: list[tuple[Row, Function]] = []

    def call(self, caller: Function, instruction: Instruction, call: Call) -> list[Added]:
        """Return the instructions of a call.

        Raises:
            NotEmulated: if the arguments do not fit, or a function with local variables may call itself.
        """
        callee, given = call.callee, _signature(call.arguments, call.results)
        indirect = isinstance(callee, Register)
        if isinstance(callee, Function) and _signature(callee.params, callee.returns) != given:
            raise NotEmulated(
                instruction.opcode,
                f"a call of {callee.name} whose parameters have other sizes than those of the function",
                instruction.line,
            )
        again = self._linked.comes_back(caller, call)
        if again and any(v.space == "local" for v in caller.body.variables):
            raise NotEmulated(
                instruction.opcode,
                f"a call that may come back to {caller.name}, which has local variables: recursive functions with "
                "arrays of their own are not emulated; use an explicit stack",
                instruction.line,
                "emulator.device_call",
            )
        memory = self._context.call_memory
        arguments = [(memory[v], v.size_bytes) for v in call.arguments]
        results = [(memory[v], v.size_bytes) for v in call.results]
        inputs, outputs = self._slots(given)
        added: list[Added] = []
        if again:
            added.append(self._saving("SAVE", caller))
        if isinstance(callee, Register):
            added += self._copies(arguments, inputs)
            template, row = added_row("CALL_INDIRECT")
            row[FIELD["a"]] = self._context.register(callee)
            self._tables.append((row, given))
        else:
            added += self._copies(arguments, [memory[v] for v in callee.params])
            template, row = added_row("CALL")
            self._targets.append((row, callee.name))
        added.append((template, row))
        returned = outputs if indirect else [memory[v] for v in callee.returns]  # type: ignore[union-attr]
        sizes = [size for _, size in results]
        if again:
            if not indirect:
                added += self._copies(list(zip(returned, sizes, strict=True)), outputs)
                returned = outputs
            added.append(self._saving("RESTORE", caller))
        added += self._copies(list(zip(returned, sizes, strict=True)), [at for at, _ in results])
        if instruction.guard is not None:  # the threads that do not call go round it
            template, row = added_row("BRA")
            row[GUARD_AT] = self._context.register(instruction.guard)
            row[GUARD_NOT_AT] = int(not instruction.guard_not)
            row[TARGET_AT] = 1 + len(added)
            added.insert(0, (template, row))
        return added

    def thunks(self) -> Iterator[tuple[Function, Signature, list[Added]]]:
        """Yield what indirect calls jump to: per function, the parameters from where such calls leave them."""
        memory = self._context.call_memory
        for function in self._linked.taken:
            given = _signature(function.params, function.returns)
            inputs, outputs = self._slots(given)
            added = self._copies(list(zip(inputs, given[0], strict=True)), [memory[v] for v in function.params])
            template, row = added_row("CALL")
            self._targets.append((row, function.name))
            added.append((template, row))
            added += self._copies([(memory[v], v.size_bytes) for v in function.returns], outputs)
            added.append(added_row("RET"))
            yield function, given, added

    def finish(
        self,
        starts: Mapping[str, int],
        thunks: Mapping[str, tuple[int, Signature]],
        registers: Mapping[str, tuple[int, ...]],
    ) -> None:
        """Fill in first instructions and registers.

        Args:
            starts: Function → its first instruction.
            thunks: Function → first instruction of what indirect calls jump to, and what it takes.
            registers: Function → its registers.
        """
        pool = self._context.pool
        for row, name in self._targets:
            row[TARGET_AT] = starts[name]
        for row, signature in self._tables:
            row[VEC_AT], row[NVEC_AT] = len(pool), len(self._linked.handles)
            entries = [thunks.get(name) for name in self._linked.handles]
            pool += [entry[0] if entry and entry[1] == signature else 0 for entry in entries]
        for row, function in self._saves:
            self._fill_save(row, function, registers[function.name])

    def _fill_save(self, row: Row, function: Function, registers: Iterable[int]) -> None:
        pool, widths = self._context.pool, self._context.widths
        kinds = ((1,), (2, 4), (8,), (16,))
        classes = [[offset for offset in registers if widths[offset] in kind] for kind in kinds]
        row[VEC_AT], row[NVEC_AT] = len(pool), sum(map(len, classes))
        for offsets in classes:
            pool += offsets
        row[VEC2_AT] = len(pool)
        pool += map(len, classes)
        variables = [v for v in (*function.params, *function.body.variables) if v in self._context.call_memory]
        for variable in variables:
            pool += (self._context.call_memory[variable], variable.size_bytes)
        row[NVEC2_AT] = 4 + 2 * len(variables)

    def _saving(self, op: str, caller: Function) -> Added:
        template, row = added_row(op)
        self._saves.append((row, caller))
        return template, row

    def _slots(self, signature: Signature) -> tuple[tuple[int, ...], tuple[int, ...]]:
        known = self._linked.slots.get(signature)
        if known is None:
            known = self._linked.slots[signature] = (
                tuple(self._reserve(size) for size in signature[0]),
                tuple(self._reserve(size) for size in signature[1]),
            )
        return known

    def _reserve(self, size_bytes: int) -> int:
        at = (self.local_bytes + 15) // 16 * 16
        self.local_bytes = at + size_bytes
        return at

    def _copies(self, sources: list[tuple[int, int]], targets: Iterable[int]) -> list[Added]:
        """Copy (local address, bytes) to local addresses."""
        added = []
        for (source, size), target in zip(sources, targets, strict=True):
            done = 0
            while done < size:
                width, kind = next(
                    chunk for chunk in _CHUNKS if chunk[0] <= size - done and not (source | target | done) % chunk[0]
                )
                register = self._register(max(width, 2))
                for op, at in (("LD", source + done), ("ST", target + done)):
                    template, row = added_row(op)
                    row[TYPE_AT], row[STYPE_AT] = T_CODE[kind], REGISTER_CLASS[max(width, 2)]
                    row[MODS_AT], row[IMM_AT] = SPACE_MODS["local"], at
                    row[VEC_AT], row[NVEC_AT] = len(self._context.pool), 1
                    self._context.pool.append(register)
                    added.append((template, row))
                done += width
        return added

    def _register(self, width: int) -> int:
        if width not in self._temporary:
            self._temporary[width] = self._context.allocate(width)
        return self._temporary[width]


def _signature(parameters: Iterable[Variable], results: Iterable[Variable]) -> Signature:
    return tuple(v.size_bytes for v in parameters), tuple(v.size_bytes for v in results)


def is_parameter_of_call(context: Context, operand: Operand) -> bool:
    """Whether an operand is `[param]` of a call or of a function, in local memory."""
    return (
        isinstance(operand, Memory)
        and isinstance(operand.base, Symbol)
        and operand.base.variable in context.call_memory
    )
