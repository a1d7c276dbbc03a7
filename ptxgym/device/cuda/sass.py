"""SASS instructions: which family each belongs to, and the multiply-adds that one execution does.

Families are those of the emulator, so that evidence sums both alike. Opcode names: CUDA Binary Utilities, "Instruction
Set Reference" (Hopper, Blackwell); what NVIDIA leaves out there was read off code that ptxas 13.0 wrote for sm_90a.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

WARP_THREADS = 32
WARPGROUP_THREADS = 128

_FAMILIES: Mapping[str, str] = {
    opcode: family
    for family, opcodes in {
        "wgmma": "HGMMA IGMMA QGMMA BGMMA WARPGROUP WARPGROUPSET",
        "tcgen05": "UTCHMMA UTCQMMA UTCIMMA UTCOMMA UTCCP UTCSHIFT UTCBAR UTCATOMSWS UVIRTCOUNT LDTM STTM LDT STT",
        "tma": "UTMALDG UTMASTG UTMAREDG UTMACMDFLUSH UBLKCP UBLKRED",
        "mma.sync": "HMMA IMMA QMMA OMMA BMMA DMMA",
        "ldmatrix": "LDSM",
        "stmatrix": "STSM",
        "mbarrier": "SYNCS SYNCSU",
        "cp.async": "LDGSTS LDGDEPBAR ARRIVES",
        "barrier": "BAR B2R CGABAR_ARV CGABAR_WAIT CGABAR_GET CGABAR_SET UCGABAR_ARV UCGABAR_WAIT UCGABAR_GET",
        "fence": "MEMBAR FENCE ERRBAR CGAERRBAR CCTL CCTLL DEPBAR",
        "fma": "FFMA FFMA32I DFMA FHFMA UFFMA",
        "hfma2": "HFMA2 HFMA2_32I FFMA2",
        "fmul": "FMUL FMUL32I FMUL2 DMUL HMUL2 HMUL2_32I UFMUL",
        "dp4a": "IDP IDP4A",
        "cvt": "F2F F2FP F2I F2IP FRND I2F I2FP I2I I2IP UF2F UF2FP UF2I UFRND UI2F UI2FP UI2I UI2IP",
        "ld": "LD LDC LDCU LDG LDGMC LDL LDS SULD TEX TLD TLD4 TXD TXQ ULDC",
        "st": "ST STAS STG STL STS SUST USTGR",
        "atom": "ATOM ATOMG ATOMS RED REDAS REDG SUATOM SURED UREDGR",
        "warp": "CREDUX ELECT MATCH MOVM R2UR REDUX S2UR SHFL VOTE VOTEU WARPSYNC",
        "control": "ACQBULK BMOV BPT BRA BREAK BRX BRXU BSSY BSYNC CALL ENDCOLLECTIVE EXIT JMP JMX JMXU KILL LEPC "
        "NANOSLEEP PREEXIT RET RPCMOV RTT UGETNEXTWORKID WARPSYNC YIELD",
        "hint": "CREATEPOLICY GETLMEMBASE NOP PMTRIG SETCTAID SETLMEMBASE UBLKPF USETMAXREG UTMACCTL UTMAPF",
        "alu": "BMSK BREV CS2R CS2UR DADD DMNMX DSET DSETP FADD FADD2 FADD32I FCHK FHADD FLO FMNMX FMNMX3 FSEL FSET "
        "FSETP FSWZADD HADD2 HADD2_32I HMNMX2 HSET2 HSETP2 IABS IADD IADD3 IADD32I IMAD IMNMX IMUL IMUL32I ISCADD "
        "ISCADD32I ISETP LEA LOP LOP3 LOP32I MOV MOV32I MUFU P2R PLOP3 POPC PRMT PSETP QSPC R2P S2R SEL SGXT SHF SHL "
        "SHR UBMSK UBREV UCLEA UFADD UFLO UFMNMX UFSEL UFSET UFSETP UIADD3 UIMAD UIMNMX UISETP ULEA ULOP ULOP3 "
        "ULOP32I UMOV UP2UR UPLOP3 UPOPC UPRMT UPSETP UR2UP USEL USGXT USHF USHL USHR UVIADD UVIMNMX VABSDIFF "
        "VABSDIFF4 VHMNMX VIADD VIADDMNMX VIMAD VIMNMX VIMNMX3",
    }.items()
    for opcode in opcodes.split()
}
_INTEGER = frozenset({"IMAD", "UIMAD", "IMUL", "IMUL32I", "VIMAD"})
_UNIFORM = frozenset({"UIMAD", "UFFMA", "UFMUL"})
"""Done once for a warp, though counted for each of its threads."""
_PACKED = frozenset({"HFMA2", "HFMA2_32I", "FFMA2", "FMUL2", "HMUL2", "HMUL2_32I"})
_SHAPE_SUFFIX = re.compile(r"\.(\d+)x(\d+)x(\d+)(?:\.|$)")
_SHAPE_DIGITS = re.compile(r"\.(16|8)8(\d{1,3})(?:\.|$)")
_LISTED = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(\S.*?)\s*;", re.MULTILINE)
_TEXT = re.compile(r"^\s*(?:@!?U?P[T\d]+\s+)?([A-Z][A-Za-z0-9_.]*)\s*(.*?)\s*;?\s*$")
_MOVES = (".MOV", ".SHL", ".IADD", ".X")
_PREDICATE = re.compile(r"!?U?P[T\d]")
_ZERO_REGISTER = re.compile(r"-?U?RZ(?:\.\w+)*")
_ONE = re.compile(r"-?(?:1|1\.0)")


@dataclass(frozen=True)
class Sass:
    """One instruction, as text."""

    opcode: str
    """With its modifiers, such as `HGMMA.64x256x16.F32.BF16`."""
    operands: str = ""

    @classmethod
    def parse(cls, text: str) -> Sass:
        """Read one disassembled instruction, with or without its guard predicate.

        Raises:
            ValueError: if the text is not an instruction.
        """
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"not a SASS instruction: {text!r}")
        return cls(match[1], match[2])

    @property
    def mnemonic(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def known(self) -> bool:
        """Whether a table here names the opcode."""
        return self.mnemonic in _FAMILIES

    @property
    def family(self) -> str:
        """The family under which its executions are summed; `alu` where nothing is known of the opcode.

        Packed fmas whose product is nothing but a constant or a copy are `alu`: ptxas moves constants through the
        multipliers (`HFMA2.MMA R1, -RZ, RZ, 0, 0`). So are integer multiply-adds, as in PTX.
        """
        if self.mnemonic == "DEPBAR" and ".LE" in self.opcode:
            return "cp.async"  # cp.async.wait_group
        found = _FAMILIES.get(self.mnemonic, "alu")
        return found if found != "hfma2" or self._multiplies() else "alu"

    def multiply_adds(self, threads: int) -> int:
        """Return the multiply-adds that executions by `threads` threads in total (predicate on) do.

        Tensor-core instructions carry their shape, m × n × k for a warp or warpgroup; sparse ones do half of it. The
        shape of Blackwell's UTC*MMA lies in a run-time descriptor, so that they return 0 here; see `counterparts`.
        Multiplications count as in `judge.evidence`: of floats one, two where packed; of integers one, unless they
        only move or shift.
        """
        family = self.family
        if family in ("wgmma", "mma.sync"):
            m, n, k = self.shape or (0, 0, 0)
            dense = threads * m * n * k // (WARPGROUP_THREADS if family == "wgmma" else WARP_THREADS)
            return dense // 2 if ".SP" in self.opcode else dense
        if family == "dp4a":
            return threads * (2 if ".2A" in self.opcode else 4)
        if family in ("fma", "fmul", "hfma2") or (self.mnemonic in _INTEGER and self._multiplies()):
            times = -(-threads // WARP_THREADS) if self.mnemonic in _UNIFORM else threads
            return times * (2 if self.mnemonic in _PACKED else 1)
        return 0

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """(m, n, k) of a tensor-core instruction: `64x256x16`, `16816`, `1688`, `884`; None where it names none."""
        match = _SHAPE_SUFFIX.search(self.opcode)
        if match:
            return int(match[1]), int(match[2]), int(match[3])
        match = _SHAPE_DIGITS.search(self.opcode)
        return (int(match[1]), 8, int(match[2])) if match else None

    def _multiplies(self) -> bool:
        """Whether a packed fma or an integer multiply-add does more than move, shift or add."""
        operands = [part.strip().removesuffix(".reuse") for part in self.operands.split(",")][1:]
        if self.mnemonic in _INTEGER:
            if any(f"{modifier}." in f"{self.opcode}." for modifier in _MOVES):
                return False
            factors = [part for part in operands if not _PREDICATE.fullmatch(part)][:2]
            return not any(_is_trivial_factor(factor) for factor in factors)
        if any(_ZERO_REGISTER.fullmatch(part) for part in operands[:2]):
            return False
        return not any(_ONE.fullmatch(a) and _ONE.fullmatch(b) for a, b in itertools.pairwise(operands[:3]))


def _is_trivial_factor(factor: str) -> bool:
    """Whether a product with `factor` is zero, a copy or a shift."""
    if _ZERO_REGISTER.fullmatch(factor):
        return True
    literal = re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", factor)
    value = int(literal[1], 0) if literal else -1
    return value >= 0 and value & (value - 1) == 0


def unknown_opcodes(text: str) -> tuple[str, ...]:
    """Return the opcodes in nvdisasm's output that no table here names, sorted."""
    instructions = (Sass.parse(match[1]) for match in _LISTED.finditer(text))
    return tuple(sorted({instruction.opcode for instruction in instructions if not instruction.known}))
