"""What is read from PTX: features, constants, fields of descriptors, rounding."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ptxgym
from ptxgym.audit.facts import two_shapes
from ptxgym.audit.items import ITEMS, REST, item_of
from ptxgym.audit.kernels import FEATURES, KernelCode
from ptxgym.audit.plans import box_bytes
from ptxgym.build.model import KernelResources
from ptxgym.device.emulator.ptx import parse_module
from ptxgym.plan.model import BufferRef, TensorMap
from ptxgym.task import load_task

_MODULE = """
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 raw[];
.entry k()
{{
  .reg .b32 %r<20>;
  .reg .b64 %rd<20>;
{body}
  ret;
}}
"""


def _kernel(body: str) -> KernelCode:
    module = parse_module(_MODULE.format(body=body))
    return KernelCode("k", KernelResources("k", 32, 0, 0, 0, 0, (), ()), module.functions["k"])


def test_constants_are_literals_and_registers_that_are_set_once() -> None:
    kernel = _kernel("""
  mov.u32 %r1, 49152;
  mov.u32 %r2, %r1;
  mov.u32 %r3, 1;
  mov.u32 %r3, 2;
  add.s32 %r4, %r1, 1;
  st.shared.b32 [%r9], %r2;
  st.shared.b32 [%r9], %r3;
  st.shared.b32 [%r9], %r4;
  st.shared.b32 [%r9], 7;
""")
    stored = [i.operands[1] for i in kernel.function.body.instructions if i.opcode.startswith("st.")]
    assert [kernel.constant(operand) for operand in stored] == [49152, None, None, 7]


def test_fields_of_a_descriptor_survive_steps_of_its_address() -> None:
    fields = 1 << 62 | 64 << 32 | 1 << 16  # 128B swizzle, stride 1024 bytes, leading 16 bytes
    kernel = _kernel(f"""
  or.b64 %rd2, %rd1, {fields};
  add.s64 %rd3, %rd2, 2;
  or.b64 %rd4, %rd1, %rd5;
  add.s64 %rd6, %rd2, %rd5;
  st.shared.b64 [%r9], %rd2;
  st.shared.b64 [%r9], %rd3;
  st.shared.b64 [%r9], %rd4;
  st.shared.b64 [%r9], %rd6;
""")
    stored = [i.operands[1] for i in kernel.function.body.instructions if i.opcode.startswith("st.")]
    assert [kernel.high_bits(operand) for operand in stored] == [fields, fields, None, None]


@pytest.mark.parametrize(
    ("rounding", "rounds"),
    [
        ("and.b64 %rd2, %rd1, -1024;", True),
        ("and.b32 %r2, %r1, -1024;", True),
        ("and.b32 %r2, %r1, 1008;", True),  # 1023 without the bits that alignment 16 makes zero
        ("and.b32 %r2, %r1, -128;", False),
        ("and.b32 %r2, %r1, 31;", False),
    ],
)
def test_rounding_of_the_dynamic_array_is_seen(rounding: str, rounds: bool) -> None:
    kernel = _kernel(f"  mov.u32 %r1, raw;\n  {rounding}")
    assert kernel.dynamic_alignment == 16
    assert kernel.rounds_to(1024) is rounds


@pytest.mark.parametrize(
    ("opcode", "features"),
    [
        ("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes", {"copy", "load", "async"}),
        ("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group", {"copy", "store", "bulk_group", "async"}),
        ("cp.async.bulk.commit_group", {"bulk.commit", "async"}),
        ("cp.async.cg.shared.global", {"copy", "cp.async", "async"}),
        ("mbarrier.arrive.expect_tx.shared::cta.b64", {"mbarrier", "expect_tx"}),
        ("tcgen05.wait::ld.sync.aligned", {"tcgen05", "tcgen05.wait_ld", "async"}),
        ("ld.global.b32", set()),
    ],
)
def test_features_of_opcodes(opcode: str, features: set[str]) -> None:
    assert {name for name, pattern in FEATURES.items() if pattern.match(opcode)} == features


def test_box_bytes_count_what_element_strides_leave() -> None:
    def of(box: tuple[int, ...], steps: tuple[int, ...], kind: str = "BFLOAT16") -> int | None:
        dims, strides = (1024,) * len(box), (2048,) * (len(box) - 1)
        return box_bytes(
            TensorMap(
                data_type=kind, global_address=BufferRef(buffer="A"), global_dim=dims, global_strides_bytes=strides,
                box_dim=box, element_strides=steps,
            )
        )  # fmt: skip

    assert of((64, 128), (1, 1)) == 64 * 128 * 2
    assert of((64, 128), (1, 3)) == 64 * 43 * 2
    assert of((64, 128), (2, 1)) == 64 * 128 * 2  # TMA takes no stride in dimension 0
    assert of((32, 8, 2), (1, 1, 1), "FLOAT32") == 32 * 8 * 2 * 4
    assert of((128, 8), (1, 1), "16U4_ALIGN16B") is None


def test_the_second_shape_differs_in_every_axis_that_can() -> None:
    gemm_first, gemm_second = two_shapes(load_task("gemm"))
    assert all(gemm_first[axis] != gemm_second[axis] for axis in gemm_first)
    first, second = two_shapes(load_task("attn_fwd"))
    assert {axis for axis in first if first[axis] == second[axis]} == {"D"}


def test_items_are_distinct_and_need_known_features() -> None:
    names = [item.name for item in ITEMS]
    assert len(set(names)) == len(names)
    codes = [code for item in ITEMS for code in item.codes]
    assert len(set(codes)) == len(codes)
    known = set(FEATURES) | {"map", "swizzle", "cluster", "smem"}
    assert {need for item in ITEMS for need in item.needs} <= known


@pytest.mark.parametrize(
    ("code", "item"),
    [
        ("mbarrier.tx_left", "mbarrier.bytes"),
        ("barrier.count_mismatch", "barrier.named"),
        ("tmem.pair_lane", "tmem.addresses"),
        ("launch.cluster_grid", "launch.cluster"),
        ("cluster.mbarrier_elsewhere", "mbarrier.init"),
        ("cluster.exited_cta", "launch.cluster"),
        ("kernel.trap", REST),
    ],
)
def test_a_code_speaks_against_one_item(code: str, item: str) -> None:
    assert item_of(code) == item


def test_items_name_codes_that_the_emulator_and_the_recorder_have() -> None:
    package = Path(ptxgym.__file__).parent
    texts = "\n".join(path.read_text() for path in (package / "native").rglob("*.[ch]pp"))
    texts += "\n".join(path.read_text() for path in (package / "device" / "emulator").glob("*.py"))
    known = set(re.findall(r'"([a-z0-9_]+\.[a-z_]+)"', texts))
    for item in ITEMS:
        for code in item.codes:
            assert code in known or (code[-1] in "._" and any(one.startswith(code) for one in known)), code
