"""Alignment and stride of wmma in memory: PTX ISA 9.7.14.4.2 and .3, and what ptxas for sm_90a makes of each form."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.core.harness import Run, kernel, run

MOVED = [
    # operation, registers, bytes that the SASS of ptxas 13 moves at once in global memory (LDG.E, STG.E.128, …)
    ("load.a.sync.aligned.row.m16n16k16.{}.f16", "r8", 4),
    ("load.a.sync.aligned.col.m8n32k16.{}.f16", "r8", 4),
    ("load.b.sync.aligned.row.m16n16k16.{}.bf16", "r4", 4),
    ("load.a.sync.aligned.row.m16n16k8.{}.tf32", "r4", 4),
    ("load.a.sync.aligned.row.m16n16k16.{}.u8", "r2", 4),
    ("load.b.sync.aligned.col.m16n16k16.{}.s8", "r2", 4),
    ("load.a.sync.aligned.col.m16n16k16.{}.u8", "r2", 1),
    ("load.b.sync.aligned.row.m32n8k16.{}.s8", "r1", 1),
    ("load.a.sync.aligned.row.m8n8k4.{}.f64", "fd1", 8),
    ("load.c.sync.aligned.row.m16n16k16.{}.f16", "r4", 4),
    ("load.c.sync.aligned.row.m16n16k16.{}.f32", "f8", 8),
    ("load.c.sync.aligned.col.m16n16k16.{}.f32", "f8", 4),
    ("load.c.sync.aligned.row.m32n8k16.{}.s32", "r8", 8),
    ("load.c.sync.aligned.row.m8n32k16.{}.f32", "f8", 4),
    ("load.c.sync.aligned.col.m8n32k16.{}.s32", "r8", 8),
    ("load.c.sync.aligned.col.m8n8k4.{}.f64", "fd2", 8),
    ("store.d.sync.aligned.row.m8n8k4.{}.f64", "fd2", 16),
    ("store.d.sync.aligned.row.m16n16k8.{}.f32", "f8", 8),
    ("store.d.sync.aligned.col.m32n8k16.{}.f16", "r4", 4),
]
FACTOR = "load.a.sync.aligned.row.m16n16k16.{}.f16"


def moved(operation: str, registers: str, offset: int = 0, stride: int = 32, space: str = "global") -> Run:
    """One wmma at `offset` bytes in a buffer, or in shared memory, of rows that are `stride` elements apart."""
    name, count = registers.rstrip("0123456789"), int(registers.lstrip("rfd"))
    fragment = "{" + ", ".join(f"%{name}{i + (20 if name == 'r' else 0)}" for i in range(count)) + "}"
    start = "%rd1" if space == "global" else "%rd10"
    address = f"[%rd11], {fragment}" if operation.startswith("store") else f"{fragment}, [%rd11]"
    values = " ".join(f"mov.b{'64' if name == 'fd' else '32'} {register}, 0;" for register in fragment[1:-1].split(","))
    opcode = operation.format(space).replace("..", ".")
    body = f"""
      .shared .align 32 .b8 tile[8192]; mov.u64 %rd10, tile; mov.u32 %r10, tile; mov.u32 %r11, 0; {values}
    FILL: mad.lo.u32 %r12, %r0, 4, %r10; add.u32 %r12, %r12, %r11; st.shared.u32 [%r12], 0; add.u32 %r11, %r11, 128;
      setp.lt.u32 %p1, %r11, 8192; @%p1 bra FILL; bar.sync 0; {"cvta.shared.u64 %rd10, %rd10;" if not space else ""}
      add.s64 %rd11, {start}, {offset}; wmma.{opcode} {address}, {stride};
    """
    return run(kernel(body), {"out": np.zeros(4, "<u4"), "x": np.zeros(8192, np.uint8)})


@pytest.mark.parametrize(("operation", "registers", "access"), MOVED, ids=[item[0] for item in MOVED])
def test_rows_where_a_gpu_faults_and_where_the_isa_leaves_them_open(
    operation: str, registers: str, access: int
) -> None:
    wanted = min(16, int(registers.lstrip("rfd")) * (8 if "fd" in registers else 4))
    assert moved(operation, registers).codes == moved(operation, registers, wanted).codes == []
    done = moved(operation, registers, access)
    assert done.launch.outcome == 0 and done.codes == (["wmma.misaligned_rows"] if access < wanted else [])
    if access > 1:
        assert moved(operation, registers, access // 2).fatal == "memory.misaligned"


def test_rows_that_a_stride_puts_off_their_alignment() -> None:
    """17 halves to a row are the usual slip; 24 are how real kernels pad: a multiple of 16 bytes."""
    assert moved(FACTOR, "r8", stride=17).fatal == "memory.misaligned"
    odd = moved(FACTOR, "r8", stride=18)
    assert odd.codes == ["wmma.misaligned_rows"] and odd.records[0]["severity"] == 1
    assert "multiple of 16 bytes" in odd.message("wmma.misaligned_rows") and odd.launch.outcome == 0
    assert moved(FACTOR, "r8", stride=24).codes == []


def test_factors_in_shared_memory_are_read_by_ldmatrix() -> None:
    """16 bytes at once where the space is written; by a generic address as in global memory."""
    assert moved(FACTOR, "r8", stride=20, space="shared").fatal == "memory.misaligned"
    assert moved(FACTOR, "r8", stride=24, space="shared").codes == []
    assert moved(FACTOR, "r8", stride=20, space="").codes == ["wmma.misaligned_rows"]
    bytes_of_rows = "load.a.sync.aligned.row.m16n16k16.{}.u8"
    assert moved(bytes_of_rows, "r2", 8, space="shared").fatal == "memory.misaligned"
    assert moved(bytes_of_rows.replace("row", "col"), "r2", 8, space="shared").codes == []
    assert moved("load.c.sync.aligned.row.m16n16k16.{}.f32", "f8", stride=18, space="shared").codes == [
        "wmma.misaligned_rows"
    ]


@pytest.mark.parametrize(
    ("operation", "registers", "stride", "severity"),
    [
        (FACTOR, "r8", 8, 1),
        (FACTOR, "r8", 0, 0),
        (FACTOR, "r8", 16, None),
        ("store.d.sync.aligned.row.m16n16k16.{}.f32", "f8", 0, 1),
        ("store.d.sync.aligned.row.m16n16k16.{}.f32", "f8", 16, None),
        ("load.c.sync.aligned.row.m8n32k16.{}.f32", "f8", 16, 1),
        ("load.c.sync.aligned.col.m8n32k16.{}.f32", "f8", 8, None),
    ],
)
def test_rows_that_overlap(operation: str, registers: str, stride: int, severity: int | None) -> None:
    """9.7.14.4.3: below the default it is undefined. One row for all, as of a bias, is what real kernels do."""
    found = [(r["code"].decode(), int(r["severity"])) for r in moved(operation, registers, stride=stride).records]
    assert found == ([] if severity is None else [("wmma.short_stride", severity)])
