"""Operands → places in the register file: registers, constants, special registers, addresses, vectors.

`Context` is the one mutable thing while a kernel is decoded. A handler made by `dest`, `source`, … checks one
operand's kind and width and enters it into the instruction's row; whatever it does not know is a `RefusedOperand`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from ptxgym.device.emulator.decode_grammar import (
    FIELD,
    FLAGS_AT,
    IMM_AT,
    MODS_AT,
    NVEC2_AT,
    NVEC_AT,
    VEC2_AT,
    VEC_AT,
    Handler,
    RefusedOperand,
    Row,
)
from ptxgym.device.emulator.ir import ADDRESS_WIDTH, FLAG, PARAM_WINDOW, SREG, Relocation
from ptxgym.device.emulator.ptx import (
    TYPE_BYTES,
    Integer,
    Memory,
    Name,
    Not,
    Operand,
    Pair,
    Real,
    Register,
    Sink,
    Special,
    Symbol,
    Variable,
    Vector,
)

_LANES = 32
_SLOT_BYTES = {2: 4 * _LANES, 4: 4 * _LANES, 8: 8 * _LANES, 16: 16 * _LANES}
_PRED_BYTES = 4

_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
_WORDS = (
    "laneid", "warpid", "nwarpid", "smid", "nsmid", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge",
    "lanemask_gt", "cluster_ctarank", "cluster_nctarank",
)  # fmt: skip
FIXED_SREGS: Mapping[str, tuple[int, int]] = {
    **{f"%{name}.{axis}": (SREG[f"SR_{name.upper()}_{axis.upper()}"], 4) for name in _AXES for axis in "xyz"},
    **{f"%{name}": (SREG[f"SR_{name.upper()}"], 4) for name in _WORDS},
    "%total_smem_size": (SREG["SR_TOTAL_SMEM"], 4),
    "%dynamic_smem_size": (SREG["SR_DYNAMIC_SMEM"], 4),
    "%aggr_smem_size": (SREG["SR_AGGR_SMEM"], 4),
    "%gridid": (SREG["SR_GRIDID"], 8),
    "%is_explicit_cluster": (SREG["SR_IS_EXPLICIT_CLUSTER"], 1),
    "%envreg1": (SREG["SR_ENVREG1"], 4),
    "%envreg2": (SREG["SR_ENVREG2"], 4),
}
"""Special registers that do not change while a kernel runs: (`enum Sreg`, bytes). PTX ISA 10."""
CHANGING_SREGS: Mapping[str, tuple[int, int]] = {
    "%clock": (SREG["SR_CLOCK"], 4), "%clock_hi": (SREG["SR_CLOCK_HI"], 4), "%clock64": (SREG["SR_CLOCK64"], 8),
    "%globaltimer": (SREG["SR_GLOBALTIMER"], 8), "%globaltimer_lo": (SREG["SR_GLOBALTIMER_LO"], 4),
    "%globaltimer_hi": (SREG["SR_GLOBALTIMER_HI"], 4),
}  # fmt: skip
_SREG_REASONS = {
    "%envreg": "of the environment registers, 1 and 2 are known: the address of the grid-wide barrier's memory",
    "%pm": "performance monitor registers have no value here",
}


class Context:
    """Register file, constants and symbols of the kernel that is being decoded."""

    def __init__(
        self, params: Mapping[Variable, int], addresses: Mapping[Variable, int], module_variables: frozenset[Variable]
    ):
        self.params = params
        """Kernel parameter → offset in the parameter block."""
        self.addresses = addresses
        """Shared and local variable → address."""
        self.module_variables = module_variables
        """Those of `.global` and `.const`."""
        self.reg_bytes = 0
        self.pool: list[int] = []
        self.consts: list[tuple[int, int, int, int]] = []
        self.sregs: list[tuple[int, int, int, int]] = []
        self.relocations: list[Relocation] = []
        self.slots: dict[Register, int] = {}
        self.shared_used: set[Variable] = set()
        self.shared_bases: dict[int, Variable] = {}
        """Constant → the shared variable whose address (plus an addend) it holds."""
        self.call_params: dict[Variable, int] = {}
        """Parameter of a built-in function → hidden register."""
        self.call_memory: dict[Variable, int] = {}
        """Parameter or result of any other function → local address."""
        self.functions: Mapping[str, int] = {}
        """Function → its address."""
        self.names: dict[int, str] = {}
        self.widths: dict[int, int] = {}
        """Register-file offset → bytes per lane; 1: a predicate."""
        self._predicates_left = 0
        self._next_predicate = 0
        self._const_slots: dict[tuple[int, int], int] = {}
        self._symbol_slots: dict[tuple[Variable, int, int], int] = {}
        self._sreg_slots: dict[str, int] = {}
        self._carry = -1

    def allocate(self, width: int) -> int:
        """Reserve a register of `width` bytes (1: a predicate) and return its offset."""
        if width == 1:
            if not self._predicates_left:
                self._next_predicate = self.reg_bytes
                self.reg_bytes += _PRED_BYTES * _LANES
                self._predicates_left = _LANES
            self._predicates_left -= 1
            offset = self._next_predicate
            self._next_predicate += _PRED_BYTES
        else:
            offset = self.reg_bytes
            self.reg_bytes += _SLOT_BYTES[width]
        self.widths[offset] = width
        return offset

    def register(self, register: Register) -> int:
        """Offset of a declared register."""
        offset = self.slots.get(register)
        if offset is None:
            offset = self.slots[register] = self.allocate(register.width)
            self.names[offset] = register.name
        return offset

    def carry(self) -> int:
        """Offset of the hidden carry flag of `.cc` instructions."""
        if self._carry < 0:
            self._carry = self.allocate(1)
        return self._carry

    def constant(self, value: int, width: int) -> int:
        """Offset of a register that holds `value` in every lane."""
        key = (value, width)
        offset = self._const_slots.get(key)
        if offset is None:
            offset = self._const_slots[key] = self._new_constant(value, width)
        return offset

    def _new_constant(self, value: int, width: int) -> int:
        offset = self.allocate(width)
        self.consts.append((offset, width, value & 0xFFFF_FFFF_FFFF_FFFF, value >> 64))
        self.names[offset] = f"{value:#x}"
        return offset

    def special(self, name: str, width: int) -> int:
        """Offset of a pre-filled special register."""
        known = FIXED_SREGS.get(name)
        if known is None:
            if name in CHANGING_SREGS:
                raise RefusedOperand(f"`{name}` may only be read by mov")
            for prefix, reason in _SREG_REASONS.items():
                if name.startswith(prefix):
                    raise RefusedOperand(f"`{name}`: {reason}")
            raise RefusedOperand(f"`{name}` is not a register that this kernel declares or the emulator knows")
        number, own_width = known
        if width != own_width:
            raise RefusedOperand(f"`{name}` is a {8 * own_width}-bit register, the instruction wants {8 * width} bits")
        offset = self._sreg_slots.get(name)
        if offset is None:
            offset = self._sreg_slots[name] = self.allocate(own_width)
            self.sregs.append((offset, own_width, number, 0))
            self.names[offset] = name
        return offset

    def symbol(self, symbol: Symbol, width: int) -> int:
        """Offset of a register that holds the address of a variable."""
        variable, addend = symbol
        key = (variable, addend, width)
        offset = self._symbol_slots.get(key)
        if offset is not None:
            return offset
        if variable.space in ("shared", "local"):
            if variable.space == "shared":
                self.shared_used.add(variable)
            value = (self.addresses[variable] + addend) & ((1 << (8 * width)) - 1)
            offset = self._new_constant(value, width)  # never shared with a number of the same value
            if variable.space == "shared":
                self.shared_bases[offset] = variable
        elif width != 8:
            raise RefusedOperand(f"the address of `{variable.name}` in a {8 * width}-bit register")
        elif variable in self.params:
            offset = self.constant(PARAM_WINDOW + self.params[variable] + addend, 8)
        elif variable in self.module_variables:
            if variable.unsupported:
                raise RefusedOperand(f"`{variable.name}` has {variable.unsupported}")
            if variable.extern:
                raise RefusedOperand(f"`{variable.name}` is external: a single file must define what it uses")
            offset = self.allocate(8)
            self.relocations.append(Relocation(len(self.consts), variable.name, addend))
            self.consts.append((offset, 8, addend & 0xFFFF_FFFF_FFFF_FFFF, 0))
            self.names[offset] = variable.name
        else:
            raise RefusedOperand(f"the address of `{variable.name}`, a parameter of a call")
        self._symbol_slots[key] = offset
        return offset

    def value(self, operand: Operand, type_name: str) -> int:
        """Offset of a source operand of type `type_name`: register, constant, special register or address."""
        width = TYPE_BYTES[type_name]
        if type(operand) is Register:
            if operand.width != width:
                raise RefusedOperand(f"`{operand.name}` is .{operand.type}, the operand wants {8 * width} bits")
            offset = self.slots.get(operand)
            return self.register(operand) if offset is None else offset
        return self.constant_operand(operand, type_name)

    def constant_operand(self, operand: Operand, type_name: str) -> int:
        """As `value`, for anything but a register."""
        width = TYPE_BYTES[type_name]
        if isinstance(operand, Integer | Real):
            return self.constant(immediate(operand, type_name), width)
        if isinstance(operand, Special):
            return self.special(operand.name, width)
        if isinstance(operand, Symbol):
            if type_name[0] not in "bus":
                raise RefusedOperand(f"the address of `{operand.variable.name}` as a .{type_name} value")
            return self.symbol(operand, width)
        raise RefusedOperand(f"{describe(operand)} where a .{type_name} value is expected")


def describe(operand: Operand) -> str:
    """Name an operand for a message."""
    if isinstance(operand, Register):
        return f"register `{operand.name}`"
    if isinstance(operand, Name):
        return f"undeclared name `{operand.text}`"
    return f"a {type(operand).__name__.lower()} operand"


def immediate(operand: Integer | Real, type_name: str) -> int:
    """Bits of a constant as a value of `type_name`.

    Raises:
        RefusedOperand: if it does not fit, or PTX gives it no meaning for that type.
    """
    width = TYPE_BYTES[type_name]
    if isinstance(operand, Integer):
        value = operand.value
        if type_name == "pred":
            return 0xFFFF_FFFF if value else 0
        if type_name[0] not in "bus" or type_name.startswith("bf"):
            raise RefusedOperand(
                f"the integer constant {value} as a .{type_name} value; write it as a floating-point constant"
            )
        if not -(1 << (8 * width - 1)) <= value < 1 << (8 * width):
            raise RefusedOperand(f"the constant {value} does not fit into {8 * width} bits")
        return value & ((1 << (8 * width)) - 1)
    if width == operand.width and type_name in ("b32", "b64", "f32", "f64"):
        return operand.bits
    if type_name == "f32":
        number: float = struct.unpack("<d", struct.pack("<Q", operand.bits))[0]
        try:
            return int(struct.unpack("<I", struct.pack("<f", number))[0])
        except OverflowError:
            return 0xFF80_0000 if number < 0 else 0x7F80_0000
    raise RefusedOperand(f"a floating-point constant as a .{type_name} value")


# ---- handlers


def dest(field: str, type_name: str, *, sink: bool = False) -> Handler:
    """A destination register of exactly the width of `type_name`; with `sink`, `_` is accepted."""
    at, width = FIELD[field], TYPE_BYTES[type_name]

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if type(operand) is Register and operand.width == width:
            offset = context.slots.get(operand)
            row[at] = context.register(operand) if offset is None else offset
        elif not (sink and isinstance(operand, Sink)):
            raise RefusedOperand(f"{describe(operand)} where a {8 * width}-bit destination is expected")

    return handler


def source(field: str, type_name: str) -> Handler:
    """A source operand of type `type_name`."""
    at, width = FIELD[field], TYPE_BYTES[type_name]

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if type(operand) is Register and operand.width == width:
            offset = context.slots.get(operand)
            row[at] = context.register(operand) if offset is None else offset
        else:
            row[at] = context.value(operand, type_name)

    return handler


def predicate(field: str, not_flag: str | None = None) -> Handler:
    """A source predicate; `!p` sets `not_flag`."""
    at, bit = FIELD[field], FLAG[not_flag] if not_flag else 0

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if isinstance(operand, Not) and bit:
            row[FLAGS_AT] |= bit
            operand = operand.operand
        if isinstance(operand, Register) and operand.type == "pred":
            row[at] = context.register(operand)
        elif isinstance(operand, Integer):
            row[at] = context.constant(immediate(operand, "pred"), 1)
        else:
            raise RefusedOperand(f"{describe(operand)} where a predicate is expected")

    return handler


def pair(first: Handler, second: Handler, *, required: bool = False) -> Handler:
    """`d|p`, or `d` alone unless `required`."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if isinstance(operand, Pair):
            first(context, row, operand.first)
            second(context, row, operand.second)
        elif required:
            raise RefusedOperand(f"{describe(operand)} where a pair `a|b` is expected")
        else:
            first(context, row, operand)

    return handler


def literal(low: int, high: int, *, name: str) -> Handler:
    """An integer constant in [low, high] that becomes `imm`."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Integer):
            raise RefusedOperand(f"{describe(operand)} where the {name} must be a constant")
        if not low <= operand.value <= high:
            raise RefusedOperand(f"{name} {operand.value} is outside {low} … {high}")
        row[IMM_AT] = operand.value

    return handler


def policy(context: Context, row: Row, operand: Operand) -> None:
    """The 64-bit cache policy of a `.L2::cache_hint`: checked, then dropped, since it has no effect on results."""
    if not (isinstance(operand, Integer) or (isinstance(operand, Register) and operand.width == 8)):
        raise RefusedOperand(f"{describe(operand)} where a 64-bit cache policy is expected")


_ADDRESS_BITS = {"a": ADDRESS_WIDTH["M_A64"], "b": ADDRESS_WIDTH["M_B64"], "c": ADDRESS_WIDTH["M_C64"]}


def enter_address(context: Context, row: Row, field: str, memory: Memory, space: str) -> int:
    """Enter the base of `memory` into `field`, its width into mods, and return the offset that is left."""
    offset = _offset_from(context, row, field, memory, space)
    if not -(1 << 31) <= offset < 1 << 31:
        raise RefusedOperand(f"the offset {offset}, which does not fit into 32 bits")
    return offset


def _offset_from(context: Context, row: Row, field: str, memory: Memory, space: str) -> int:
    base, offset, extra = memory
    space = "shared" if space == "shared::cluster" else space  # a variable's address is that of the own CTA's copy
    if extra:
        raise RefusedOperand("coordinates in an address that has none")
    if type(base) is Register:
        if base.width == 8:
            row[MODS_AT] |= _ADDRESS_BITS[field]
        elif base.width != 4 or space not in ("shared", "local"):
            raise RefusedOperand(f"`{base.name}` is .{base.type}, an address in {space or 'generic'} space has 64 bits")
        row[FIELD[field]] = context.register(base)
        return offset
    if isinstance(base, Symbol):
        variable = base.variable
        if variable.space != space and not (space == "" and variable.space in ("global", "const")):
            raise RefusedOperand(f"`{variable.name}` lies in {variable.space} space, not in {space or 'generic'} space")
        if variable in context.params:
            return context.params[variable] + base.offset + offset  # absolute: the field stays -1
        if variable.space in ("shared", "local"):
            context.symbol(base, 4)
            return context.addresses[variable] + base.offset + offset
        row[MODS_AT] |= _ADDRESS_BITS[field]
        row[FIELD[field]] = context.symbol(Symbol(variable, 0), 8)
        return base.offset + offset
    if isinstance(base, Integer) and space in ("shared", "local"):
        return base.value + offset
    if isinstance(base, Integer):
        row[MODS_AT] |= _ADDRESS_BITS[field]
        row[FIELD[field]] = context.constant(base.value & 0xFFFF_FFFF_FFFF_FFFF, 8)
        return offset
    raise RefusedOperand(f"{describe(base)} as an address")


def memory(field: str, space: str) -> Handler:
    """The only address of an instruction; its offset becomes `imm`. `space` is empty for generic addresses."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        if not isinstance(operand, Memory):
            raise RefusedOperand(f"{describe(operand)} where an address in brackets is expected")
        row[IMM_AT] = enter_address(context, row, field, operand, space)

    return handler


def enter_offsets(context: Context, row: Row, offsets: tuple[int, int, int]) -> None:
    """Keep the offsets of an instruction with several addresses in vec2, unless all are zero."""
    if any(offsets):
        row[VEC2_AT], row[NVEC2_AT] = len(context.pool), 3
        context.pool += offsets


def elements(operand: Operand, count: int | None) -> tuple[Operand, ...]:
    """The elements of a vector operand, checked for their number."""
    if not isinstance(operand, Vector):
        if count == 1 and not isinstance(operand, Memory):
            return (operand,)
        raise RefusedOperand(f"{describe(operand)} where a vector in braces is expected")
    if count is not None and len(operand.elements) != count:
        raise RefusedOperand(f"a vector of {len(operand.elements)} elements, the form has {count}")
    return operand.elements


def vector_dest(count: int, type_name: str, *, sinks: bool = False) -> Handler:
    """`vec` = `count` destination registers."""

    def handler(context: Context, row: Row, operand: Operand) -> None:
        width, found = TYPE_BYTES[type_name], []
        for element in elements(operand, count):
            if isinstance(element, Sink) and sinks:
                found.append(-1)
            elif isinstance(element, Register) and element.width == width:
                found.append(context.register(element))
            else:
                raise RefusedOperand(f"{describe(element)} where a {8 * width}-bit destination is expected")
        real = [offset for offset in found if offset >= 0]
        if len(set(real)) != len(real):
            raise RefusedOperand("one register twice among the destinations")
        row[VEC_AT], row[NVEC_AT] = len(context.pool), count
        context.pool += found

    return handler


def vector_source(count: int, type_name: str, *, second: bool = False) -> Handler:
    """`vec` (or `vec2`) += `count` source operands."""
    at, count_at = (VEC2_AT, NVEC2_AT) if second else (VEC_AT, NVEC_AT)

    def handler(context: Context, row: Row, operand: Operand) -> None:
        found = [context.value(element, type_name) for element in elements(operand, count)]
        if row[count_at]:  # appended to what an earlier operand has just entered
            assert row[at] + row[count_at] == len(context.pool)
        else:
            row[at] = len(context.pool)
        row[count_at] += count
        context.pool += found

    return handler
