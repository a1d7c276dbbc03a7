"""Where variables, parameters and symbols of a kernel lie, and what the decoded kernel carries."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import numpy as np
import pytest

from ptxgym.device.emulator import ir
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.decode_grammar import NotEmulated
from tests.device.emulator.decode.support import decode_all, kernel


def decode(body: str, head: str = "", params: str = "") -> ir.DecodedKernel:
    return DecodedModule.parse(kernel(body, head, params)).kernel("k")


def constants(decoded: ir.DecodedKernel) -> dict[int, int]:
    """Register-file offset → value of every constant."""
    return {int(c["offset"]): int(c["lo"]) for c in decoded.consts}


def address(decoded: ir.DecodedKernel, name: str) -> int:
    return next(symbol.address for symbol in decoded.shared if symbol.name == name)


def test_static_shared_in_order_with_alignment() -> None:
    body = ".shared .align 4 .b8 a[6]; .shared .f64 b; .shared .align 128 .b8 c[1];\n.reg .b32 r;\nmov.u32 r, c;"
    decoded = decode(body)
    base = ir.SMEM_BASE
    assert [(s.name, s.address, s.size_bytes) for s in decoded.shared] == [
        ("a", base, 6),
        ("b", base + 8, 8),
        ("c", base + 128, 1),
    ]
    assert decoded.static_smem_bytes == 129 and not decoded.uses_dynamic_smem
    assert constants(decoded)[int(decoded.inst["a"][0])] == base + 128


def test_dynamic_shared_follows_static_at_its_own_alignment() -> None:
    head = ".extern .shared .align 1024 .b8 dyn[];\n.extern .shared .align 16 .b8 small[];\n.shared .b32 unused[64];"
    body = (
        ".shared .b32 flag;\n.reg .b32 r; .reg .b64 d;\nmov.u32 r, dyn;\nst.shared.u32 [small+4], r;\nmov.u64 d, dyn;"
    )
    decoded = decode(body, head)
    assert decoded.static_smem_bytes == 1024 and decoded.uses_dynamic_smem
    assert address(decoded, "dyn") == address(decoded, "small") == ir.SMEM_BASE + 1024
    assert [s.name for s in decoded.shared if not s.dynamic] == ["flag"]
    assert (int(decoded.inst["a"][1]), int(decoded.inst["imm"][1])) == (-1, ir.SMEM_BASE + 1024 + 4)


def test_module_shared_belongs_to_the_kernels_that_name_it() -> None:
    head = ".shared .align 8 .b64 used;\n.shared .b8 other[5000];"
    decoded = decode(".reg .b64 d;\nld.shared.u64 d, [used];", head)
    assert [symbol.name for symbol in decoded.shared] == ["used"] and decoded.static_smem_bytes == 8


def test_shared_initialiser_is_refused() -> None:
    with pytest.raises(NotEmulated, match="initialiser"):
        decode(".reg .b32 r;\nmov.u32 r, s;", ".shared .u32 s = 3;")


def test_local_depot_and_generic_pointer() -> None:
    body = ".local .align 16 .b8 depot[20]; .local .align 8 .b8 more[8];\n"
    body += ".reg .b64 SPL, SP;\nmov.u64 SPL, more;\ncvta.local.u64 SP, SPL;"
    decoded = decode(body)
    assert decoded.local_bytes == 32
    assert constants(decoded)[int(decoded.inst["a"][0])] == 24
    assert int(decoded.inst["op"][1]) == ir.OP["CVTA"]


def test_parameter_offsets_and_their_addresses() -> None:
    params = ".param .u32 n, .param .align 64 .b8 map[128], .param .u8 flag, .param .u64 p"
    body = ".reg .b64 a, b; .reg .b32 r;\nld.param.u64 a, [p];\nmov.b64 b, map;\n"
    body += "ld.param.u32 r, [map+4];\nld.param.u32 r, [b+4];"
    decoded = decode(body, params=params)
    assert [(p.name, p.offset, p.size_bytes) for p in decoded.params] == [
        ("n", 0, 4),
        ("map", 64, 128),
        ("flag", 192, 1),
        ("p", 200, 8),
    ]
    assert decoded.param_bytes == 208
    assert [(int(i["a"]) < 0, int(i["imm"])) for i in decoded.inst[[0, 2]]] == [(True, 200), (True, 68)]
    assert constants(decoded)[int(decoded.inst["a"][1])] == ir.PARAM_WINDOW + 64
    assert int(decoded.inst["imm"][3]) == 4 and int(decoded.inst["a"][3]) >= 0


def test_module_symbols_are_relocated() -> None:
    head = ".global .align 4 .u32 g[4] = {1, 2};\n.const .align 8 .u64 c[2] = {g, generic(g)+4};\n.global .b32 unused;"
    body = ".reg .b64 a; .reg .b32 r;\nmov.u64 a, g+8;\nld.const.u64 a, [c+8];\nld.global.u32 r, [g+4];"
    module = DecodedModule.parse(kernel(body, head))
    decoded = module.kernel("k")
    found = {(int(decoded.consts[r.const]["offset"]), r.symbol, r.addend) for r in decoded.relocations}
    assert found == {
        (int(decoded.inst["a"][0]), "g", 8),
        (int(decoded.inst["a"][1]), "c", 0),
        (int(decoded.inst["a"][2]), "g", 0),
    }
    assert [int(i) for i in decoded.inst["imm"][:3]] == [0, 8, 4]
    assert decoded.uses == {"g", "c"}
    assert module.symbols["g"].initial == np.array([1, 2, 0, 0], np.uint32).tobytes()
    assert [(r.offset, r.symbol, r.addend) for r in module.symbols["c"].relocations] == [(0, "g", 0), (8, "g", 4)]
    assert module.symbols["unused"].initial == bytes(4)


def test_external_variable_is_refused() -> None:
    with pytest.raises(NotEmulated, match="external"):
        decode(".reg .b64 a;\nmov.u64 a, g;", ".extern .global .b32 g;")


def test_tables_of_functions_hold_their_addresses() -> None:
    """Those that `mov` gives too; that of a function without a body is refused where it is used."""
    head = (
        ".func f()\n{\nret;\n}\n.func g()\n{\nret;\n}\n.func elsewhere();\n"
        ".global .align 8 .u64 table[3] = {f, 5, g};\n.global .u64 plain[1] = {generic(table)};\n"
        ".global .u64 bad[1] = {elsewhere};"
    )
    module = DecodedModule.parse(kernel("ret;", head))
    assert module.kernel("k").relocations == () and module.symbols["table"].relocations == ()
    assert [r.symbol for r in module.symbols["plain"].relocations] == ["table"]
    first, number, second = np.frombuffer(module.symbols["table"].initial, "<u8").tolist()
    moved = decode(".reg .b64 a;\nmov.u64 a, f;\nmov.u64 a, g;", head).consts["lo"].tolist()
    assert number == 5 and moved == [first, second] and first >= ir.FUNCTION_WINDOW
    with pytest.raises(NotEmulated, match="address of `elsewhere`"):
        decode(".reg .b64 a;\nmov.u64 a, bad;", head)


def test_constants_are_shared_by_value_and_width() -> None:
    decoded = decode(
        ".reg .b32 r; .reg .b64 d;\nadd.s32 r, r, 7;\nmul.lo.s32 r, 7, 7;\nadd.s64 d, d, 7;\nadd.s32 r, r, -1;"
    )
    found = sorted((int(c["width"]), int(c["lo"])) for c in decoded.consts if c["lo"] & 0xFFFFFFFF != ir.UNSET_REGISTER)
    assert found == [(4, 7), (4, 0xFFFFFFFF), (8, 7)]


def test_registers_do_not_overlap_before_they_share_places() -> None:
    body = (
        ".reg .pred p<40>; .reg .b16 h; .reg .b32 r; .reg .b64 d; .reg .b128 q;\n"
        + "".join(f"setp.eq.s32 p{n}, r, {n};\n" for n in range(40))
        + "mov.b128 q, {d, d};\nmov.u16 h, h;"
    )
    context = decode_all(kernel(body))[0].context
    sizes = {1: 4, 2: 128, 4: 128, 8: 256, 16: 512}
    spans = sorted((offset, sizes[width]) for offset, width in context.widths.items())
    for (start, size), (following, _) in itertools.pairwise(spans):
        assert start + size <= following
    assert spans[-1][0] + spans[-1][1] <= context.reg_bytes
    assert all(offset % 128 == 0 for offset, size in spans if size != 4)


@pytest.mark.parametrize(
    ("body", "appended"),
    [
        ("ret;", 0),
        ("trap;", 1 - 1),
        ("L: bra L;", 0),
        (".reg .pred p;\n@p ret;", 1),
        ("bra E;\nret;\nE:\n", 1),
        ("", 1),
        ("bar.sync 0;", 1),
    ],
)
def test_ret_is_implied_where_control_can_reach_the_end(body: str, appended: int) -> None:
    module = DecodedModule.parse(kernel(body))
    count = len(module.module.functions["k"].body.instructions)
    decoded = module.kernel("k")
    assert len(decoded.inst) == count + appended == len(decoded.forms) == len(decoded.families) == len(decoded.lines)
    if appended:
        assert int(decoded.inst["op"][-1]) == ir.OP["EXIT"]


def test_guards_and_branches() -> None:
    body = ".reg .pred p; .reg .b32 r;\nL: @p bra E;\n@!p add.s32 r, r, 1;\nbra.uni L;\nE: ret;"
    decoded = decode(body)
    assert [int(n) for n in decoded.inst["guard_not"]] == [0, 1, 0, 0]
    assert int(decoded.inst["guard"][0]) == int(decoded.inst["guard"][1]) >= 0 > int(decoded.inst["guard"][2])
    assert [int(n) for n in decoded.inst["target"][[0, 2]]] == [3, 0]


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("", set()),
        ("bar.sync 0;", {"BARRIER"}),
        ("st.shared.u32 [0], 1;", {"SHARED"}),
        (".reg .b64 a;\nred.global.add.u32 [a], 1;", {"COMMUNICATES"}),
        (".reg .b64 a;\nred.add.u32 [a], 1;", {"COMMUNICATES", "SHARED"}),
        ("red.shared.add.u32 [0], 1;", {"SHARED"}),
        (".reg .b64 a; .reg .b32 r;\nld.volatile.global.u32 r, [a];", {"COMMUNICATES"}),
        (".reg .b64 a; .reg .b32 r;\nld.global.u32 r, [a];", set()),
        ("fence.acq_rel.gpu;", {"COMMUNICATES"}),
        ("fence.acq_rel.cta;", set()),
        ("wgmma.fence.sync.aligned;", {"TARGET", "ASYNC", "SHARED"}),
        ("cp.async.commit_group;", {"ASYNC"}),
    ],
)
def test_features(body: str, names: set[str]) -> None:
    features = decode(body).features
    assert {name.removeprefix("FEAT_") for name, bit in ir.FEATURE.items() if features & bit} == names


@pytest.mark.parametrize(
    ("body", "family", "per_thread", "per_warp"),
    [
        ("fma.rn.f32 r, r, r, r;", "fma", 1, 0),
        ("fma.rn.bf16x2 r, r, r, r;", "hfma2", 2, 0),
        ("fma.rn.f64 d, d, d, d;", "fma", 1, 0),
        ("mul.f32 r, r, r;", "fmul", 1, 0),
        ("mul.lo.s32 r, r, r;", "alu", 0, 0),
        ("mad.lo.s32 r, r, r, r;", "alu", 0, 0),
        ("dp4a.s32.s32 r, r, r, r;", "dp4a", 4, 0),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {r,s,t,u},{r,r,r,r},{r,r},{r,s,t,u};", "mma.sync", 0, 2048),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {r,s},{r,r},{r},{r,s};", "mma.sync", 0, 1024),
        (
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {r,s,t,u}, d, d, p, 1, 1, 0, 0;",
            "wgmma",
            0,
            64 * 8 * 16 // 4,
        ),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r}, [0];", "ldmatrix", 0, 0),
        ("mbarrier.init.shared.b64 [0], 1;", "mbarrier", 0, 0),
    ],
)
def test_families_and_multiply_adds(body: str, family: str, per_thread: int, per_warp: int) -> None:
    decoded = decode(".reg .b32 r, s, t, u; .reg .b64 d; .reg .pred p;\n" + body)
    assert decoded.families[0] == family
    assert (int(decoded.thread_multiply_adds[0]), int(decoded.warp_multiply_adds[0])) == (per_thread, per_warp)


def test_instruction_layout_matches_the_core() -> None:
    assert (ir.INST_DTYPE.itemsize, ir.CONST_DTYPE.itemsize, ir.SREG_DTYPE.itemsize) == (72, 24, 16)
    assert ir.OP_NAMES[0] == "MOV" and len(set(ir.OP.values())) == len(ir.OP)
    assert ir.FLAG["F_FTZ"] == 8 and ir.FLAG["F_NOCOMPLETE"] == ir.FLAG["F_NOINC"] and ir.FLAG["F_RNA"] == 1 << 31


def test_wrong_kernel_name() -> None:
    module = DecodedModule.parse(kernel("ret;", ".func f()\n{\nret;\n}"))
    assert module.names == ("k",)
    for name in ("f", "nothing"):
        with pytest.raises(KeyError):
            module.kernel(name)


@pytest.mark.parametrize(
    ("head", "params", "declaration", "space"),
    [
        ("", ".param .align 64 .b8 p[%d]", "", "param"),
        ("", "", ".shared .align 16 .b8 v[%d];", "shared"),
        ("", "", ".local .align 16 .b8 v[%d];", "local"),
    ],
)
def test_variables_beyond_what_a_gpu_has_are_refused(head: str, params: str, declaration: str, space: str) -> None:
    limits = {"param": 32_764, "shared": 262_144, "local": 524_288}
    for size, refused in ((limits[space], False), (limits[space] + 1, True), (1 << 34, True)):
        text = kernel(f"{declaration % size if declaration else ''}\nret;", head, params % size if params else "")
        with pytest.raises(NotEmulated, match=rf"\.{space}: {size} bytes") if refused else nullcontext():
            DecodedModule.parse(text).kernel("k")


def test_module_variables_that_no_machine_holds_are_refused() -> None:
    module = DecodedModule.parse(kernel("ret;", ".global .b8 big[17179869184];\n"))
    with pytest.raises(NotEmulated, match="17179869184 bytes"):
        _ = module.symbols


def test_an_offset_has_32_bits() -> None:
    for offset, refused in (((1 << 31) - 1, False), (-(1 << 31), False), (1 << 31, True), (1 << 70, True)):
        text = kernel(f".reg .b64 a; .reg .b32 b; mov.u64 a, 0; ld.global.u32 b, [a+{offset}]; ret;")
        with pytest.raises(NotEmulated, match="does not fit into 32 bits") if refused else nullcontext():
            DecodedModule.parse(text).kernel("k")
