"""ldmatrix and stmatrix of bytes (PTX ISA 9.7.14.5.15, .16), by definitions in numpy.

The ISA shows the fragments in pictures. What stands here is how others say it: a map measured on sm_120a for
`.m16n16.trans` (lane l holds the rows 4 (l % 4) … + 3 of columns l / 4 and l / 4 + 8), and the layouts of CUTLASS, in
which that load, two byte permutations and `stmatrix.m16n8.x2.trans` make a copy.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.device.emulator.core import Outcome
from tests.device.emulator.core.harness import Run, kernel, run

Bytes = NDArray[np.uint8]
TILE = ".shared .align 128 .b8 tile[1024];"
FILL = """
  shl.b32 %r10, %r0, 4; cvt.u64.u32 %rd10, %r10; add.u64 %rd11, %rd0, %rd10;
  ld.global.v4.b32 {%r11, %r12, %r13, %r14}, [%rd11]; mov.u32 %r15, tile; add.u32 %r16, %r15, %r10;
  st.shared.v4.b32 [%r16], {%r11, %r12, %r13, %r14}; bar.sync 0;
"""
"""Thread t fills bytes 16 t … 16 t + 15 of the tile; %r16 is its address."""
LANE, E = np.arange(32)[:, None], np.arange(4)[None, :]


def loaded(form: str, registers: int, memory: Bytes, address: str = "") -> NDArray[np.uint8]:
    """Run a load whose row r lies at 16 r, or where `address` puts %r16; return bytes [register, lane, 4]."""
    names = ", ".join(f"%r{30 + i}" for i in range(registers))
    stores = "".join(f"st.global.b32 [%rd12+{128 * i}], %r{30 + i};" for i in range(registers))
    body = f"""{FILL}{address} ldmatrix.sync.aligned.{form} {{{names}}}, [%r16];
      mul.wide.u32 %rd12, %r0, 4; add.u64 %rd12, %rd12, %rd1; {stores}
    """
    done = run(kernel(body, TILE), {"in": memory, "out": np.zeros(128 * registers, np.uint8)}, inputs=["in"])
    assert done.launch.outcome == Outcome.OK and done.codes == [], done.records
    return done.words("out", "u1").reshape(registers, 32, 4)


def noise(size: int) -> Bytes:
    return np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)


def unpacked(rows: Bytes, bits: int) -> Bytes:
    """Sixteen elements of `bits` side by side, lowest first, in the low bits of a byte each."""
    places = np.unpackbits(rows, axis=1, bitorder="little")[:, : 16 * bits].reshape(len(rows), 16, bits)
    return np.packbits(places, axis=2, bitorder="little")[:, :, 0]


FORMATS = {"b8": 8, "b8x16.b6x16_p32": 6, "b8x16.b4x16_p64": 4}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("elements", FORMATS)
def test_squares_are_transposed(count: int, elements: str) -> None:
    memory = noise(512)
    rows = memory.reshape(32, 16)
    matrices = (rows if elements == "b8" else unpacked(rows, FORMATS[elements])).reshape(2, 16, 16)
    got = loaded(f"m16n16.x{count}.trans.shared.{elements}", 2 * count, memory)
    for register in range(2 * count):
        want = matrices[register // 2][4 * (LANE % 4) + E, LANE // 4 + 8 * (register % 2)]
        np.testing.assert_array_equal(got[register], want)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("elements", ["b8x16.b6x16_p32", "b8x16.b4x16_p64"])
def test_rows_of_narrow_elements(count: int, elements: str) -> None:
    memory = noise(512)
    matrices = unpacked(memory.reshape(32, 16), FORMATS[elements]).reshape(4, 8, 16)
    got = loaded(f"m8n16.x{count}.shared.{elements}", count, memory)
    for register in range(count):
        np.testing.assert_array_equal(got[register], matrices[register][LANE // 4, 4 * (LANE % 4) + E])


def test_rows_may_lie_anywhere() -> None:
    memory = noise(512)
    other = "xor.b32 %r17, %r0, 21; shl.b32 %r17, %r17, 4; add.u32 %r16, %r15, %r17;"
    got = loaded("m16n16.x2.trans.shared.b8", 4, memory, other)
    rows = memory.reshape(32, 16)[np.arange(32) ^ 21].reshape(2, 16, 16)
    np.testing.assert_array_equal(got[3], rows[1][4 * (LANE % 4) + E, LANE // 4 + 8])


def stored(count: int, registers: Bytes) -> Run:
    names = ", ".join(f"%r{30 + i}" for i in range(count))
    loads = "".join(f"ld.global.b32 %r{30 + i}, [%rd12+{128 * i}];" for i in range(count))
    body = f"""
      mul.wide.u32 %rd12, %r0, 4; add.u64 %rd12, %rd12, %rd0; {loads}
      shl.b32 %r10, %r0, 4; mov.u32 %r15, tile; add.u32 %r16, %r15, %r10;
      stmatrix.sync.aligned.m16n8.x{count}.trans.shared.b8 [%r16], {{{names}}}; bar.sync 0;
      setp.lt.u32 %p1, %r0, {8 * count}; @!%p1 bra END;
      ld.shared.v4.b32 {{%r11, %r12, %r13, %r14}}, [%r16]; cvt.u64.u32 %rd10, %r10; add.u64 %rd11, %rd1, %rd10;
      st.global.v4.b32 [%rd11], {{%r11, %r12, %r13, %r14}};
    END:
    """
    return run(kernel(body, TILE), {"in": registers, "out": np.zeros(128 * count, np.uint8)}, inputs=["in"])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_columns_of_an_accumulator_are_stored(count: int) -> None:
    """Lane l has rows l / 4 and l / 4 + 8 of columns 2 (l % 4) and 2 (l % 4) + 1, as of mma: columns become rows."""
    registers = noise(128 * count)
    done = stored(count, registers)
    assert done.launch.outcome == Outcome.OK and done.codes == [], done.records
    matrix = np.zeros((count, 16, 8), np.uint8)
    matrix[:, LANE // 4 + 8 * (E // 2), 2 * (LANE % 4) + E % 2] = registers.reshape(count, 32, 4)
    np.testing.assert_array_equal(done.words("out", "u1").reshape(count, 8, 16), matrix.transpose(0, 2, 1))


def test_a_transposing_load_and_store_make_a_copy() -> None:
    """As CUTLASS pairs them: rows 0, 1, 8, 9, 2, 3, 10, 11 … are loaded, bytes of both registers permuted."""
    memory = noise(512)
    body = f"""{FILL}
      and.b32 %r17, %r0, 1; bfe.u32 %r18, %r0, 1, 1; bfe.u32 %r19, %r0, 2, 2;
      mad.lo.u32 %r17, %r18, 8, %r17; mad.lo.u32 %r17, %r19, 2, %r17; shl.b32 %r17, %r17, 4; add.u32 %r17, %r17, %r15;
      ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {{%r30, %r31}}, [%r17];
      prmt.b32 %r32, %r30, %r31, 0x5410; prmt.b32 %r33, %r30, %r31, 0x7632; bar.sync 0;
      stmatrix.sync.aligned.m16n8.x2.trans.shared.b8 [%r16+512], {{%r32, %r33}}; bar.sync 0;
      setp.lt.u32 %p1, %r0, 16; @!%p1 bra END;
      ld.shared.v4.b32 {{%r11, %r12, %r13, %r14}}, [%r16+512]; add.u64 %rd11, %rd1, %rd10;
      st.global.v4.b32 [%rd11], {{%r11, %r12, %r13, %r14}};
    END:
    """
    done = run(kernel(body, TILE), {"in": memory, "out": np.zeros(256, np.uint8)}, inputs=["in"])
    assert done.launch.outcome == Outcome.OK and done.codes == [], done.records
    np.testing.assert_array_equal(done.words("out", "u1"), memory[:256])


PADDED = "mov.u32 %r15, tile; shl.b32 %r10, %r0, 4; add.u32 %r16, %r15, %r10; st.shared.b64 [%r16], %rd0; bar.sync 0;"


def test_padding_need_not_be_written() -> None:
    """Eight of sixteen bytes are: .b4x16_p64 reads no more, .b6x16_p32 would."""

    def codes(form: str) -> list[str]:
        body = f"{PADDED} ldmatrix.sync.aligned.m8n16.x1.shared.{form} {{%r30}}, [%r16];"
        return run(kernel(body, TILE), {"out": np.zeros(16, np.uint8)}).codes

    assert codes("b8x16.b4x16_p64") == []
    assert codes("b8x16.b6x16_p32") == ["smem.uninitialised"]


def test_a_row_that_is_not_aligned_is_a_fault() -> None:
    body = f"{FILL} add.u32 %r16, %r16, 8; ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {{%r30, %r31}}, [%r16];"
    done = run(kernel(body, TILE), {"in": noise(512)}, inputs=["in"])
    assert done.launch.outcome == Outcome.RUNTIME_FAULT
    assert "16" in done.records[0]["message"].decode()
