from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.build import build, disassemble, find_toolchain
from ptxgym.build.model import Build
from ptxgym.device.cuda.sass import Sass, unknown_opcodes
from ptxgym.device.emulator.decode_grammar import FAMILIES

# Per instruction: family, multiply-adds of 128 threads (four warps, one warpgroup). The texts are ptxas's own.
CASES = {
    "HGMMA.64x256x16.F32.BF16 R24, gdesc[UR24], R24, gsb0": ("wgmma", 64 * 256 * 16),
    "HGMMA.64x8x8.F32.TF32 R24, gdesc[UR24], R24": ("wgmma", 64 * 8 * 8),
    "QGMMA.64x128x32.F32.E4M3.E4M3 R24, R4, gdesc[UR4], R24": ("wgmma", 64 * 128 * 32),
    "HGMMA.SP.64x256x32.F32.BF16 R24, gdesc[UR24], R24, R2, 0x0": ("wgmma", 64 * 256 * 32 // 2),
    "WARPGROUP.DEPBAR.LE gsb0, 0x1": ("wgmma", 0),
    "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8], tmem[UR10], idesc[UR11], UP0": ("tcgen05", 0),
    "LDTM.x32 R4, tmem[UR4]": ("tcgen05", 0),
    "@P0 UTMALDG.2D [UR16], [UR14]": ("tma", 0),
    "UBLKCP.S.G [UR4], [UR6], UR5": ("tma", 0),
    "UTMACMDFLUSH": ("tma", 0),
    "HMMA.16816.F32.BF16 R4, R8, R12, R4": ("mma.sync", 4 * 16 * 8 * 16),
    "HMMA.1688.F32.TF32 R8, R4, R44, R8": ("mma.sync", 4 * 16 * 8 * 8),
    "IMMA.16832.S8.S8 R20, R4.ROW, R2.COL, R16": ("mma.sync", 4 * 16 * 8 * 32),
    "DMMA.8x8x4 R32, R8, R10, R32": ("mma.sync", 4 * 8 * 8 * 4),
    "DMMA.16x8x16 R16, R16, R8, R32": ("mma.sync", 4 * 16 * 8 * 16),
    "HMMA.SP.16832.F32.BF16 R8, R4, R8, R40, R44, 0x0": ("mma.sync", 4 * 16 * 8 * 32 // 2),
    "FFMA.FTZ R0, R1, R2.reuse, -R3": ("fma", 128),
    "DFMA R12, R6, R14, R12": ("fma", 128),
    "HFMA2.BF16_V2 R7, R0, R7, R13": ("hfma2", 256),
    "HFMA2.BF16_V2 R7, R0, 1, 1, R13": ("alu", 0),
    "HFMA2.MMA R26, -RZ, RZ, 0, 0": ("alu", 0),
    "FMUL R3, R0, R3": ("fmul", 128),
    "HMUL2 R15, R3, R12": ("fmul", 256),
    "HADD2.BF16_V2 R0, R0, R3": ("alu", 0),
    "IDP.4A.S8.S8 R5, R0, R5, R14": ("dp4a", 512),
    "IMAD R13, R13, R20, RZ": ("alu", 128),
    "IMAD.HI.U32 R2, R3, R13, R2": ("alu", 128),
    "IMAD.WIDE.U32 R8, P0, R24, R25, R6": ("alu", 128),
    "IMAD R10, R10, 0x3, RZ": ("alu", 128),
    "UIMAD UR5, UR9, UR5, UR6": ("alu", 4),
    "IMAD.MOV.U32 R26, RZ, RZ, R3": ("alu", 0),
    "IMAD.U32 R5, RZ, RZ, UR4": ("alu", 0),
    "IMAD.SHL.U32 R15, R15, 0x800000, RZ": ("alu", 0),
    "IMAD.U32 R5, R4, 0x10000, RZ": ("alu", 0),
    "IMAD.IADD R6, R3, 0x1, -R0": ("alu", 0),
    "IMAD.WIDE R8, R4.reuse, 0x4, R8": ("alu", 0),
    "IMAD.X R3, RZ, RZ, R10, P2": ("alu", 0),
    "MUFU.EX2 R2, R17": ("alu", 0),
    "F2FP.BF16.F32.PACK_AB R4, R5, R6": ("cvt", 0),
    "LDG.E.128.CONSTANT R16, desc[UR6][R2.64+-0x20]": ("ld", 0),
    "LDS R3, [R4]": ("ld", 0),
    "LDSM.16.M88.4 R4, [R8]": ("ldmatrix", 0),
    "STSM.16.M88.4 [R8], R4": ("stmatrix", 0),
    "STG.E desc[UR4][R2.64], R7": ("st", 0),
    "REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR8][R12.64], R17": ("atom", 0),
    "ATOMS.ADD R3, [R4], R5": ("atom", 0),
    "LDGSTS.E.BYPASS.128 [R3], desc[UR4][R2.64]": ("cp.async", 0),
    "DEPBAR.LE SB0, 0x1": ("cp.async", 0),
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR15+0x38000], R3": ("mbarrier", 0),
    "BAR.SYNC.DEFER_BLOCKING 0x0": ("barrier", 0),
    "UCGABAR_WAIT": ("barrier", 0),
    "FENCE.VIEW.ASYNC.S": ("fence", 0),
    "MEMBAR.ALL.GPU": ("fence", 0),
    "SHFL.BFLY PT, R19, R17, 0x1, 0x1f": ("warp", 0),
    "@!UP1 BRA `(.L_x_1)": ("control", 0),
    "NOP;": ("hint", 0),
}
OPCODES = Path(__file__).with_name("opcodes.cu")


@pytest.mark.parametrize("text", CASES)
def test_family_and_multiply_adds(text: str) -> None:
    sass = Sass.parse(text)
    assert (sass.family, sass.multiply_adds(128)) == CASES[text]
    assert sass.known


def test_families_are_those_that_the_emulator_counts() -> None:
    assert {family for family, _ in CASES.values()} <= set(FAMILIES)


def test_an_unknown_opcode_is_counted_as_ordinary_and_listed() -> None:
    sass = Sass.parse("FROB.X4 R1, R2")
    assert (sass.family, sass.multiply_adds(128), sass.known) == ("alu", 0, False)
    listing = "        /*0010*/                   FROB.X4 R1, R2 ;\n        /*0020*/              @!P0 EXIT ;\n"
    assert unknown_opcodes(listing) == ("FROB.X4",)


@pytest.mark.parametrize("text", ["", ".L_x_0:", "/*0010*/", "@P0"])
def test_what_is_no_instruction_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a SASS instruction"):
        Sass.parse(text)


@given(
    st.sampled_from(["", "@P0 ", "@!P3   ", "@UP1 ", "@!UPT "]),
    st.from_regex(r"[A-Z][A-Z0-9]{1,7}(\.[A-Za-z0-9_]{1,6}){0,3}", fullmatch=True),
    st.lists(st.from_regex(r"-?U?R[0-9]{1,3}|0x[0-9a-f]{1,4}|\[R[0-9]\.64\+0x10\]", fullmatch=True), max_size=4),
    st.sampled_from(["", " ", " ;", ";"]),
)
def test_guards_and_ends_do_not_change_what_an_instruction_is(
    guard: str, opcode: str, operands: list[str], end: str
) -> None:
    text = ", ".join(operands)
    assert Sass.parse(f"   {guard}{opcode} {text}{end}") == Sass(opcode, text)


@pytest.fixture(scope="module")
def many_opcodes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SASS of opcodes.cu."""
    toolchain = find_toolchain()
    assert toolchain.nvdisasm is not None
    cubin = tmp_path_factory.mktemp("opcodes") / "opcodes.cubin"
    subprocess.run(
        [toolchain.nvcc, "-arch=sm_90a", "-w", "-cubin", "-o", cubin, OPCODES], check=True, capture_output=True
    )
    return subprocess.run(
        [toolchain.nvdisasm, "--print-code", cubin], check=True, capture_output=True, text=True
    ).stdout


def test_every_opcode_of_a_kernel_that_uses_many_is_known(many_opcodes: str) -> None:
    assert unknown_opcodes(many_opcodes) == ()
    assert "UBLKRED" in many_opcodes and "DMMA" in many_opcodes


@pytest.fixture(scope="module", params=["naive", "mma_sync", "wgmma", "oracle"])
def solution(request: pytest.FixtureRequest, gemm, kernels) -> tuple[str, Build]:  # type: ignore[no-untyped-def]
    """A proven kernel, compiled."""
    built = build(kernels[request.param][1], declaration=gemm.signature.declaration(), arch="sm_90a")
    assert isinstance(built, Build), built
    return request.param, built


MAIN = {"naive": {"fma"}, "mma_sync": {"mma.sync"}, "wgmma": {"wgmma", "tma"}, "oracle": {"wgmma", "tma"}}


def test_every_opcode_of_the_solutions_is_known(solution: tuple[str, Build]) -> None:
    name, built = solution
    text = disassemble(built).read_text()
    assert unknown_opcodes(text) == ()
    instructions = [Sass.parse(line.partition("*/")[2]) for line in text.splitlines() if line.startswith("        /*")]
    multiplying = {sass.family for sass in instructions if sass.multiply_adds(128)}
    assert multiplying - {"alu"} == MAIN[name] - {"tma"}
    assert MAIN[name] <= {sass.family for sass in instructions}
