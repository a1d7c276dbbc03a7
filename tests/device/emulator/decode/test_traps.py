"""What real kernels hold that a careless decoder misreads: each trap, and beside it what must stay accepted."""

from __future__ import annotations

import pytest

from ptxgym.device.emulator import ir
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.decode_grammar import NotEmulated
from ptxgym.device.emulator.ptx import PtxSyntaxError, parse_module
from tests.device.emulator.decode.support import decode_all, decode_one, kernel

LOAD = (
    "cp.async.bulk.tensor.2d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes [a32], [b64, {{v0, v1}}], [c32]"
)
CALL = """
.reg .b64 f, a; .reg .b32 r;
{{
.reg .b32 temp_param_reg;
.param .b64 param0;
st.param.b64 [param0+0], f;
.param .b64 param1;
st.param.b64 [param1+0], a;
.param .b32 retval0;
call.uni (retval0),
{name},
(
param0,
param1
);
ld.param.b32 r, [retval0+0];
}}
st.global.u32 [a], r;
"""


def decode(body: str, head: str = "", params: str = "") -> ir.DecodedKernel:
    return DecodedModule.parse(kernel(body, head, params)).kernel("k")


def operations(decoded: ir.DecodedKernel) -> list[str]:
    return [ir.OP_NAMES[int(op)] for op in decoded.inst["op"]]


def test_printf_call_sequence_becomes_moves_and_one_printf() -> None:
    decoded = decode(CALL.format(name="vprintf"))
    assert operations(decoded)[:5] == ["MOV", "MOV", "PRINTF", "MOV", "ST"]
    assert decoded.features & ir.FEATURE["FEAT_PRINTF"]
    first, second, call, result, _ = (one.row for one in decode_all(kernel(CALL.format(name="vprintf"))))
    assert (call["a"], call["b"], call["d"]) == (first["d"], second["d"], result["a"])
    names = decode_all(kernel(CALL.format(name="vprintf")))[0].context.names
    assert [names[offset] for offset in (first["a"], second["a"], result["d"])] == ["f", "a", "r"]


def test_two_calls_do_not_share_parameters() -> None:
    rows = [
        one.row for one in decode_all(kernel(CALL.format(name="vprintf") + "{" + CALL.format(name="vprintf") + "}"))
    ]
    assert rows[0]["d"] != rows[5]["d"]


def test_assertfail_takes_five_registers() -> None:
    sequence = "".join(
        f".param .b{bits} p{n};\nst.param.b{bits} [p{n}+0], {value};\n"
        for n, (bits, value) in enumerate(((64, "a"), (64, "a"), (32, "11"), (64, "a"), (64, "1")))
    )
    body = ".reg .b64 a;\n{\n" + sequence + "call.uni __assertfail, (p0, p1, p2, p3, p4);\n}\n"
    assert operations(decode(body))[5] == "ASSERTFAIL"
    *moves, call = decode_all(kernel(body))
    start = call.row["vec"]
    assert call.context.pool[start : start + call.row["nvec"]] == [move.row["d"] for move in moves]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("malloc", "device_malloc"),
        ("free", "device_malloc"),
        ("cudaLaunchDeviceV2", "device_launch"),
        ("_Z3fooid", "device_call"),
    ],
)
def test_other_calls_are_refused_by_name(name: str, code: str) -> None:
    with pytest.raises(NotEmulated, match=f"call of device function {name}") as caught:
        decode(CALL.format(name=name))
    assert caught.value.code == f"emulator.{code}"


def test_an_indirect_call_takes_the_function_from_a_register() -> None:
    head = ".func f()\n{\nret;\n}\n.func g(.param .b32 n)\n{\nret;\n}\n"
    body = ".reg .b64 r;\nmov.u64 r, f;\nmov.u64 r, g;\ncall (), r, (), P;\nP: .callprototype ()_ ();\n"
    decoded = decode(body, head)
    call = decoded.inst[operations(decoded).index("CALL_INDIRECT")]
    first, second = decoded.pool[call["vec"] : call["vec"] + call["nvec"]]
    assert operations(decoded)[first] == "CALL" and second == 0, "g takes what the call does not give"
    with pytest.raises(NotEmulated, match="neither a function nor a 64-bit register"):
        decode(".reg .b32 r;\ncall (), r, (), P;\nP: .callprototype ()_ ();\n")


def test_local_depot_after_loc_prefix() -> None:
    decoded = decode(".local .align 8 .b8 __local_depot0[24];\n.reg .b64 d;\nmov.u64 d, __local_depot0;")
    assert decoded.local_bytes == 32


def test_string_constants_and_sized_module_shared() -> None:
    head = ".global .align 1 .b8 $str[3] = {97, 98};\n.shared .align 4 .b8 sized[40];"
    decoded = decode(".reg .b64 d; .reg .b32 r;\nmov.u64 d, $str;\nmov.u32 r, sized;", head)
    assert decoded.uses == {"$str"} and decoded.static_smem_bytes == 40


def test_pack_unpack_with_sinks_and_pairs() -> None:
    assert decode_one("mov.b64 {_, v1}, a64").vector("vec") == ["_", "v1"]
    assert decode_one("elect.sync _|d2p, 0xffffffff").row["d"] == -1
    assert decode_one("shfl.sync.idx.b32 d32|d2p, a32, b32, c32, -1").row["d2"] >= 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "stmatrix.sync.aligned.m8n8.x4.shared.b16[a32],{v0, v1, v2, v3}",
            "stmatrix.sync.aligned.x4.m8n8.shared.b16 [a32], {v0, v1, v2, v3}",
        ),
        (
            LOAD.format(mode=".tile"),
            LOAD.format(mode=""),
        ),
        ("mbarrier.arrive.shared::cta.b64 _, [a32]", "mbarrier.arrive.release.cta.shared.b64 _, [a32]"),
        (
            "mbarrier.try_wait.parity.shared::cta.b64 dp, [a32], b32",
            "mbarrier.try_wait.parity.acquire.cta.shared.b64 dp, [a32], b32",
        ),
    ],
)
def test_spellings_of_one_meaning(one: str, other: str) -> None:
    assert decode_one(one).row == decode_one(other).row


def test_b128_and_256_bit_accesses() -> None:
    assert decode_one("ld.shared.b128 vq0, [a32]").row["stype"] == ir.TYPE["T_B128"]
    assert decode_one("ld.global.v8.b32 {v0, v1, v2, v3, v4, v5, v6, v7}, [a64]").row["nvec"] == 8
    with pytest.raises(NotEmulated):
        decode_one("ld.shared.v8.b32 {v0, v1, v2, v3, v4, v5, v6, v7}, [a32]")


def test_parameter_base_in_a_register() -> None:
    decoded = decode(
        ".reg .b64 d, e;\nmov.b64 d, map;\nadd.s64 e, d, 64;\nld.param.u64 e, [e+8];",
        params=".param .align 64 .b8 map[128]",
    )
    assert operations(decoded)[2] == "LD" and int(decoded.inst["mods"][2]) & ir.ADDRESS_WIDTH["M_A64"]


def test_wait_styles_differ_in_the_register_they_take() -> None:
    state, parity = (
        decode_one("mbarrier.try_wait.shared.b64 dp, [a32], b64"),
        decode_one("mbarrier.try_wait.parity.shared.b64 dp, [a32], b32"),
    )
    assert not state.row["flags"] & ir.FLAG["F_PARITY"] and parity.row["flags"] & ir.FLAG["F_PARITY"]
    with pytest.raises(NotEmulated):
        decode_one("mbarrier.try_wait.shared.b64 dp, [a32], b32")


def test_wait_whose_predicate_nobody_wants() -> None:
    assert decode_one("mbarrier.test_wait.parity.shared.b64 _, [a32], b32").row["d"] == -1


def test_clocks_are_read_when_executed_not_before() -> None:
    for name in ("%clock64", "%globaltimer"):
        assert decode_one(f"mov.u64 d64, {name}").row["op"] == ir.OP["MOV_SREG"]
    with pytest.raises(NotEmulated, match="mov"):
        decode_one("add.u64 d64, %clock64, 1")


def test_cluster_shared_address_of_the_own_cta() -> None:
    row = decode_one(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [a32+64], [b64, {v0, 3}], [c32+8]"
    )
    start = row.row["vec2"]
    assert row.context.pool[start : start + 3] == [64, 0, 8] and row.row["nvec2"] == 3
    assert row.name(row.context.pool[row.row["vec"] + 1]) == "0x3"


def test_cache_policy_does_not_shift_operands() -> None:
    plain = decode_one("st.global.u32 [a64], v0").row
    hinted = decode_one("st.global.L2::cache_hint.u32 [a64], v0, b64").row
    assert plain == hinted
    with pytest.raises(NotEmulated):
        decode_one("st.global.L2::cache_hint.u32 [a64], v0")
    with pytest.raises(NotEmulated):
        decode_one("st.global.u32 [a64], v0, b64")


def test_dynamic_alignment_of_1024_is_kept() -> None:
    decoded = decode(".shared .b64 bar;\n.reg .b32 r;\nmov.u32 r, smem;", ".extern .shared .align 1024 .b8 smem[];")
    assert {s.name: s.address for s in decoded.shared} == {"bar": ir.SMEM_BASE, "smem": ir.SMEM_BASE + 1024}


def test_named_barriers_and_unaligned_barrier() -> None:
    assert decode_one("bar.arrive 1, 256").row["flags"] & ir.FLAG["F_ALIGNED"]
    assert not decode_one("barrier.sync a32").row["flags"] & ir.FLAG["F_ALIGNED"]


def test_registers_of_the_grid_wide_barrier_and_of_clusters() -> None:
    low = decode(".reg .b32 r;\nmov.u32 r, %envreg2;\nmov.u32 r, %envreg1;").sregs["sreg"].tolist()
    assert low == [ir.SREG["SR_ENVREG2"], ir.SREG["SR_ENVREG1"]]
    with pytest.raises(NotEmulated, match="grid-wide"):
        decode(".reg .b32 r;\nmov.u32 r, %envreg3;")
    text = kernel("ret;").replace("k()\n", "k()\n.explicitcluster\n.reqnctapercluster 2, 1, 1\n")
    assert DecodedModule.parse(text).kernel("k").cluster == (2, 1, 1)
    alone = kernel("ret;").replace("k()\n", "k()\n.reqnctapercluster 1, 1, 1\n")
    assert DecodedModule.parse(alone).kernel("k").cluster == (1, 1, 1)
    explicit = decode(".reg .pred p;\nmov.pred p, %is_explicit_cluster;").sregs
    assert explicit["sreg"].tolist() == [ir.SREG["SR_IS_EXPLICIT_CLUSTER"]] and explicit["width"].tolist() == [1]
    assert decode(".reg .b32 r;\nmov.u32 r, %cluster_ctarank;\nmov.u32 r, %smid;").sregs["sreg"].tolist() == [
        ir.SREG["SR_CLUSTER_CTARANK"],
        ir.SREG["SR_SMID"],
    ]


def test_order_of_types_is_their_meaning() -> None:
    there, back = decode_one("cvt.rn.bf16.f16 d16, a16").row, decode_one("cvt.rn.f16.bf16 d16, a16").row
    assert (there["type"], there["stype"]) == (back["stype"], back["type"])


def test_predicate_constants() -> None:
    for text, value in (("0", 0), ("-1", 0xFFFFFFFF), ("1", 0xFFFFFFFF)):
        decoded = decode_one(f"mov.pred dp, {text}")
        assert decoded.context.consts[0][2] == value


def test_float_constants_become_the_bits_of_their_type() -> None:
    for instruction, bits in (
        ("add.f32 d32, a32, 0f3F800000", 0x3F800000),
        ("add.f32 d32, a32, 1.0", 0x3F800000),
        ("mov.b32 d32, 0fBF800000", 0xBF800000),
        ("add.f64 d64, a64, 1.5", 0x3FF8000000000000),
        ("fma.rn.f32 d32, a32, b32, 0d3FF0000000000000", 0x3F800000),
        ("add.f32 d32, a32, 1e99", 0x7F800000),
        ("st.global.f32 [a64], 0.1", 0x3DCCCCCD),
    ):
        assert decode_one(instruction).context.consts[0][2] == bits, instruction
    for instruction in ("add.f64 d64, a64, 0f3F800000", "add.f16 d16, a16, 1.0", "fma.rn.bf16x2 d32, a32, b32, 1"):
        with pytest.raises(NotEmulated):
            decode_one(instruction)


def test_narrow_loads_say_the_width_of_their_register() -> None:
    for text, kind, register in (
        ("ld.global.s8 vh0, [a64]", "S8", "U16"),
        ("ld.global.s8 v0, [a64]", "S8", "U32"),
        ("ld.global.s8 vd0, [a64]", "S8", "U64"),
    ):
        row = decode_one(text).row
        assert (row["type"], row["stype"]) == (ir.TYPE["T_" + kind], ir.TYPE["T_" + register])
    with pytest.raises(NotEmulated, match="different widths"):
        decode_one("ld.global.v2.u8 {vh0, v0}, [a64]")


def test_carry_is_one_hidden_predicate() -> None:
    body = ".reg .b32 r; .reg .pred p;\nadd.cc.u32 r, r, 1;\naddc.cc.u32 r, r, 0;\nmadc.hi.u32 r, r, r, 0;\n"
    *carried, compare = (one.row for one in decode_all(kernel(body + "setp.eq.s32 p, r, 0;")))
    assert len({row["e"] for row in carried} | {row["d2"] for row in carried}) == 1
    assert compare["d"] != carried[0]["e"] and compare["e"] == -1


def test_deep_nesting_and_huge_numbers_are_typed_errors() -> None:
    for body in (
        "{" * 5000,
        "mov.u32 a, " + "(" * 5000,
        "mov.u32 a, " + "-" * 5000 + "1;",
        "mov.u32 a, " + "9" * 5000 + ";",
    ):
        with pytest.raises((PtxSyntaxError, NotEmulated)):
            DecodedModule.parse(kernel(body)).kernel("k")
    with pytest.raises(PtxSyntaxError):
        parse_module(kernel("ret;", ".global .b8 x[99999999999999];"))


def test_a_line_beyond_all_files_is_no_line() -> None:
    for line in ("4294967296", "1" * 5000):
        text = kernel(f".reg .b32 r;\n.loc 1 {line} 0\nmov.u32 r, 1; ret;", '.file 1 "k.cu"\n')
        assert DecodedModule.parse(text).kernel("k").lines.tolist() == [0, 0]
