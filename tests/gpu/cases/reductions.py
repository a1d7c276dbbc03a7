"""Tensor reductions of one, three, four and five dimensions, whole and clipped, and of types that the ISA leaves out.

Each kernel is PTX that is written here. args: 0 bytes of the tensor, 1… coordinates. in: what memory holds, then what
is combined with it, from the start of shared memory on.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.gpu.cases.cluster import NAN_TYPES, reduced_values
from tests.gpu.cases.model import ELEMENT_BYTES, Case, Map
from tests.gpu.cases.values import random_bytes

HEAD = """.visible .entry {name}(.param .align 128 .b8 params[256])
.maxntid 128
{{
.reg .b64 in, out, at, to, map; .reg .b32 tid, cell, image, step, bytes, w0, w1, w2, w3; .reg .b32 c<5>;
.reg .pred first, more;
ld.param.u64 in, [params+128]; ld.param.u64 out, [params+136]; mov.u32 tid, %tid.x; setp.eq.u32 first, tid, 0;
mov.u32 image, dynamic_smem; add.u32 image, image, 1023; and.b32 image, image, -1024;
ld.param.u32 bytes, [params+152]; mov.u64 map, params; cvta.param.u64 map, map;
{coordinates}
mul.lo.u32 step, tid, 16;
COPY: setp.ge.u32 more, step, bytes; @more bra READY;
cvt.u64.u32 at, step; add.u64 to, out, at; add.u64 at, in, at; ld.global.v4.u32 {{w0, w1, w2, w3}}, [at];
st.global.v4.u32 [to], {{w0, w1, w2, w3}}; cvt.u64.u32 to, bytes; add.u64 at, at, to;
ld.global.v4.u32 {{w0, w1, w2, w3}}, [at]; add.u32 cell, image, step; st.shared.v4.u32 [cell], {{w0, w1, w2, w3}};
add.u32 step, step, 2048; bra COPY;
READY: membar.gl; fence.proxy.async; bar.sync 0;
{policy}
@first {issue};
@first cp.async.bulk.commit_group; @first cp.async.bulk.wait_group 0;
ret;
}}
"""
POLICY = ".reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 0f3F800000;"
SHAPES = {
    1: ((4,), (1,)),
    3: ((2, 6, 5), (1, 3, 2)),
    4: ((2, 5, 4, 3), (1, 2, 2, 2)),
    5: ((2, 4, 3, 3, 2), (1, 2, 2, 1, 2)),
}
"""Per rank the tensor and the box; the innermost in units of 64 bytes."""
PLACES = {1: (3,), 3: (1, 2, 3), 4: (1, 1, 2, 1), 5: (1, 1, 1, 2, 0)}
CLIPPED = {1: (7,), 3: (3, 4, 4), 4: (3, 4, 3, 2), 5: (3, 3, 2, 2, 1)}
"""Coordinates, the innermost in units of 32 bytes: boxes inside the tensor, and beyond all its ends."""
OPERATIONS = {
    1: ("add.UINT32", "add.FLOAT16", "min.INT32", "max.UINT64", "inc.UINT32", "dec.UINT32", "and.UINT32", "or.UINT64",
        "xor.INT32", "add.INT32"),
    3: ("add.UINT64", "add.BFLOAT16", "min.UINT64", "max.INT32", "inc.UINT32", "dec.UINT32", "and.INT32", "or.UINT32",
        "xor.UINT64", "min.FLOAT16"),
    4: ("add.FLOAT32", "add.INT32", "min.UINT32", "max.BFLOAT16", "inc.UINT32", "dec.UINT32", "and.UINT64", "or.INT32",
        "xor.UINT32", "max.INT64"),
    5: ("add.FLOAT64", "add.UINT32", "min.INT64", "max.FLOAT16", "inc.UINT32", "dec.UINT32", "and.INT32", "or.UINT64",
        "xor.INT32", "min.BFLOAT16", "max.UINT32", "add.FLOAT32_FTZ"),
}  # fmt: skip
FLAT = (
    "add.INT32", "min.UINT32", "min.UINT64", "min.INT64", "min.FLOAT16", "max.UINT32", "max.INT32", "max.UINT64",
    "max.BFLOAT16", "and.INT32", "and.UINT64", "or.UINT32", "or.INT32", "xor.UINT32", "xor.UINT64",
)  # fmt: skip
"""Of two dimensions, what `cluster` does not have."""
OPEN = (
    "min.FLOAT32", "max.FLOAT64", "add.UINT8", "add.UINT16", "add.TFLOAT32", "inc.INT32", "dec.UINT64", "or.INT64",
    "xor.FLOAT32",
)  # fmt: skip
"""Pairs of operation and type that PTX ISA 9.7.9.25.5.3 does not list: what hardware does with them."""
HINTED = (
    "add.u64", "add.f32", "add.noftz.f16", "min.s64", "max.u32", "inc.u32", "dec.u32", "and.b64", "or.b32", "xor.b64",
    "min.bf16", "max.f16",
)  # fmt: skip
"""Bulk reductions without a tensor, with a cache policy."""


def reduction_cases() -> Iterator[Case]:
    for rank, operations in OPERATIONS.items():
        for number, operation in enumerate(operations):
            yield _case(
                rank,
                operation,
                PLACES[rank],
                170 + 20 * rank + number,
                swizzle=_swizzle(rank, ("NONE", "64B")[number % 2]),
            )
        for number, operation in enumerate(operations[:3]):
            yield _case(rank, operation, CLIPPED[rank], 300 + 20 * rank + number, label="/clip")
        yield _case(rank, operations[0], PLACES[rank], 400 + rank, swizzle=_swizzle(rank, "128B"), label="/hint")
    for number, form in enumerate(HINTED):
        yield _hinted(form, 460 + number)
    for number, operation in enumerate((*FLAT, *OPEN)):
        op, kind = operation.split(".")
        inner = 64 // ELEMENT_BYTES[kind]
        m = Map((inner * 2, 16), (inner, 16), type=kind, over="out")
        name = f"reduce/{'open' if operation in OPEN else 'tensor'}/{op}/{kind}"
        args = (m.tensor_bytes, inner // 2, 3)
        yield Case(name, f"tensor_reduce_{op}", 128, _values(kind, m.tensor_bytes, 420 + number), m.tensor_bytes, args,
                   map=m, nan_type=NAN_TYPES.get(kind, ""))  # fmt: skip


def _swizzle(rank: int, swizzle: str) -> str:
    """Return the swizzle; one line alone has none."""
    return swizzle if rank > 1 else "NONE"


def _hinted(form: str, seed: int) -> Case:
    """A bulk reduction of 2048 bytes into the output."""
    kernel, kind, size = f"bulk_reduce_{form.replace('.', '_')}_hint", form.split(".")[-1], 2048
    bulk = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.{form} [out], [image], bytes, policy"
    text = HEAD.format(name=kernel, coordinates="", policy=POLICY, issue=bulk)
    floating = kind if kind in NAN_TYPES.values() else ""
    data = reduced_values(floating, size, seed) if floating else random_bytes(2 * size, seed)
    name = f"reduce/hint/{form.split('.')[0]}/{kind}"
    return Case(name, kernel, 128, data, size, (size,), nan_type=floating, ptx=text)


def _values(kind: str, size: int, seed: int) -> bytes:
    return reduced_values(NAN_TYPES[kind], size, seed) if kind in NAN_TYPES else random_bytes(2 * size, seed)


def _case(
    rank: int, operation: str, place: tuple[int, ...], seed: int, *, swizzle: str = "NONE", label: str = ""
) -> Case:
    op, kind = operation.split(".")
    inner = 64 // ELEMENT_BYTES[kind]
    dims, box = SHAPES[rank]
    m = Map((dims[0] * inner, *dims[1:]), (box[0] * inner, *box[1:]), type=kind, swizzle=swizzle, over="out")
    hint = label == "/hint"
    kernel = f"tensor_reduce_{rank}d_{op}{'_hint' if hint else ''}"
    text = HEAD.format(
        name=kernel,
        coordinates=" ".join(f"ld.param.u32 c{i}, [params+{156 + 4 * i}];" for i in range(rank)),
        policy=POLICY if hint else "",
        issue=f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}.tile.bulk_group"
        f"{'.L2::cache_hint' if hint else ''} [map, {{{', '.join(f'c{i}' for i in range(rank))}}}], [image]"
        f"{', policy' if hint else ''}",
    )
    args = (m.tensor_bytes, place[0] * inner // 2, *place[1:])
    return Case(f"reduce/{rank}d/{op}/{kind}{label}", kernel, 128, _values(kind, m.tensor_bytes, seed), m.tensor_bytes,
                args, map=m, nan_type=NAN_TYPES.get(kind, ""), ptx=text)  # fmt: skip
