"""What the PTX of the launched kernels says before anything runs: features, lines, constants of operands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ptxgym.build.model import Build, KernelResources
from ptxgym.device.emulator.decode_grammar import NotEmulated
from ptxgym.device.emulator.places import call_chains
from ptxgym.device.emulator.ptx import (
    Function,
    Instruction,
    Integer,
    Operand,
    PtxSyntaxError,
    Register,
    Vector,
    parse_module,
)

_STORED = re.compile(r"cp\.(?:reduce\.)?async\.bulk[\w.]*\.global\.shared")
FEATURES: dict[str, re.Pattern[str]] = {
    "copy": re.compile(r"cp\.(?:reduce\.)?async(?![\w.]*\.(?:commit_|wait_|mbarrier\.|prefetch))"),
    "load": re.compile(r"cp\.async\.bulk[\w.]*\.shared::\w+\.global"),
    "store": _STORED,
    "bulk_group": _STORED,
    "cp.async": re.compile(r"cp\.async\.(?:ca|cg)\."),
    "cp.async.commit": re.compile(r"cp\.async\.(?:commit_group|mbarrier|wait_all)"),
    "cp.async.wait": re.compile(r"cp\.async\.(?:wait_|mbarrier)"),
    "bulk.commit": re.compile(r"cp\.async\.bulk\.commit_group"),
    "bulk.wait": re.compile(r"cp\.async\.bulk\.wait_group"),
    "mbarrier": re.compile(r"mbarrier\."),
    "expect_tx": re.compile(r"mbarrier\.(?:arrive\.)?expect_tx"),
    "init": re.compile(r"mbarrier\.init"),
    "try_wait": re.compile(r"mbarrier\.(?:try|test)_wait"),
    "bar.sync": re.compile(r"(?:bar|barrier)\.(?:cta\.)?(?:sync|arrive|red)"),
    "setmaxnreg": re.compile(r"setmaxnreg\."),
    "wgmma": re.compile(r"wgmma\.mma_async"),
    "wgmma.fence": re.compile(r"wgmma\.fence"),
    "wgmma.commit": re.compile(r"wgmma\.commit_group"),
    "wgmma.wait": re.compile(r"wgmma\.wait_group"),
    "tcgen05": re.compile(r"tcgen05\."),
    "tcgen05.mma": re.compile(r"tcgen05\.mma"),
    "tcgen05.commit": re.compile(r"tcgen05\.commit"),
    "tcgen05.ld": re.compile(r"tcgen05\.ld"),
    "tcgen05.st": re.compile(r"tcgen05\.st"),
    "tcgen05.wait_ld": re.compile(r"tcgen05\.wait::ld"),
    "tcgen05.wait_st": re.compile(r"tcgen05\.wait::st"),
    "tcgen05.fence": re.compile(r"tcgen05\.fence"),
    "tmem": re.compile(r"tcgen05\.(?:alloc|ld|st|mma)"),
    "alloc": re.compile(r"tcgen05\.alloc"),
    "dealloc": re.compile(r"tcgen05\.dealloc"),
    "relinquish": re.compile(r"tcgen05\.relinquish"),
    "descriptor": re.compile(r"wgmma\.mma_async|tcgen05\.(?:mma|cp)"),
    "async": re.compile(r"cp\.async|wgmma\.mma_async|tcgen05\."),
    "fence.mbarrier_init": re.compile(r"fence\.mbarrier_init"),
    "proxy": re.compile(r"fence\.proxy\.async"),
}
"""Names for groups of opcodes; items apply to kernels that use them, and need some of them together."""

_NO_RESULT = re.compile(r"(?:st|red|mbarrier|cp|wgmma|tcgen05\.(?!ld)|bar|barrier|fence|bra|setmaxnreg|ret|prefetch)\b")


@dataclass(frozen=True)
class Use:
    """One instruction of a launched kernel."""

    kernel: KernelCode
    instruction: Instruction
    line: int | None
    """Of the innermost call that is not of a wrapper."""


@dataclass(frozen=True, eq=False)
class KernelCode:
    """A launched kernel."""

    name: str
    resources: KernelResources
    function: Function

    @cached_property
    def uses(self) -> dict[str, tuple[Use, ...]]:
        """Instructions by feature."""
        found: dict[str, list[Use]] = defaultdict(list)
        chains = call_chains(self.function)
        for instruction, chain in zip(self.function.body.instructions, chains, strict=True):
            line = next(iter(chain), instruction.line) or None
            for feature, pattern in FEATURES.items():
                if pattern.match(instruction.opcode):
                    found[feature].append(Use(self, instruction, line))
        return {feature: tuple(uses) for feature, uses in found.items()}

    @cached_property
    def _definitions(self) -> dict[Register, list[Instruction]]:
        found: dict[Register, list[Instruction]] = defaultdict(list)
        for instruction in self.function.body.instructions:
            if instruction.operands and not _NO_RESULT.match(instruction.opcode):
                first = instruction.operands[0]
                for target in first.elements if isinstance(first, Vector) else (first,):
                    if isinstance(target, Register):
                        found[target].append(instruction)
        return found

    def constant(self, operand: Operand) -> int | None:
        """Return the value of an operand that is an integer, or a register that one `mov` sets to it; else None."""
        if isinstance(operand, Integer):
            return operand.value
        made = self._made(operand)
        return self.constant(made.operands[1]) if made is not None and made.opcode.startswith("mov.") else None

    def high_bits(self, operand: Operand, depth: int = 4) -> int | None:
        """Return the constant part above bit 15 of a shared memory descriptor; None where it is computed otherwise.

        Descriptors are made by or-ing constant fields to an address of 14 bits; later steps add to the address alone.
        """
        value = self.constant(operand)
        if value is not None:
            return value & ~0xFFFF & (1 << 64) - 1
        made = self._made(operand)
        if made is None or depth == 0:
            return None
        if made.opcode.startswith(("or.b64", "add.s64")):
            left, right = made.operands[1], made.operands[2]
            fields = self.constant(right)
            if fields is None:
                return None
            if fields & (1 << 64) - 1 < 1 << 14:
                return self.high_bits(left, depth - 1)
            return fields & ~0xFFFF & (1 << 64) - 1 if made.opcode.startswith("or.") else None
        return None

    def _made(self, operand: Operand) -> Instruction | None:
        made = self._definitions.get(operand, []) if isinstance(operand, Register) else []
        return made[0] if len(made) == 1 and len(made[0].operands) > 1 else None

    @cached_property
    def dynamic_alignment(self) -> int:
        """Greatest alignment declared for a dynamic shared array, in bytes; 0 without one."""
        module = self.function.module
        own = (*module.variables.values(), *self.function.body.variables)
        return max((v.align for v in own if v.space == "shared" and v.size_bytes == 0), default=0)

    def rounds_to(self, alignment: int) -> bool:
        """Return whether an address is rounded to `alignment`: an `and` with its negative, or with one less than it.

        The compiler leaves out the low bits of a mask that the declared alignment makes zero.
        """
        least = alignment - 1 & -max(self.dynamic_alignment, 1)
        for instruction in self.function.body.instructions:
            if instruction.opcode.startswith("and.b") and len(instruction.operands) == 3:
                mask = self.constant(instruction.operands[2])
                bits = 64 if instruction.opcode.startswith("and.b64") else 32
                if mask is not None and mask % (1 << bits) in ((1 << bits) - alignment, alignment - 1, least):
                    return True
        return False


def read_kernels(build: Build, launched: Iterable[str]) -> tuple[KernelCode, ...] | None:
    """Return the launched kernels of a build, in the order given; None where its PTX cannot be read."""
    try:
        module = parse_module(build.ptx.read_text(encoding="utf-8"), str(build.source))
        found = [(name, module.functions[name]) for name in dict.fromkeys(launched)]
        for _, function in found:
            _ = function.body
    except (PtxSyntaxError, NotEmulated, KeyError):
        return None
    return tuple(KernelCode(name, build.kernel(name), function) for name, function in found)


def uses(kernels: Iterable[KernelCode], feature: str) -> Iterator[Use]:
    """Yield the instructions of a feature in all kernels."""
    for kernel in kernels:
        yield from kernel.uses.get(feature, ())


def source_lines(path: Path) -> list[str]:
    """Return the lines of a submission, as compilers count."""
    return path.read_text(encoding="utf-8", errors="replace").split("\n")
