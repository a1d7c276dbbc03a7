"""Tensor maps that a kernel rewrites: more fields and ranks than `products` has, in shared and in global memory.

Each kernel is PTX that is written here: it copies the map of its parameter, rewrites it in one thread, publishes it and
loads a tile by it. Output: shared memory from the start of the tile on, zeros where nothing was loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tests.gpu.cases.model import Case, Map

COLUMNS, ROWS = 64, 24
WHOLE = Map((COLUMNS, ROWS), (16, 8), type="FLOAT32")
DUMP = 1024


@dataclass(frozen=True)
class Edit:
    """Fields that are rewritten (name, ordinal, value), and the map that comes of it."""

    fields: tuple[str, ...]
    after: Map
    place: tuple[int, ...] = (16, 2)


EDITS = {
    "none": Edit(("element_stride 0, 1",), WHOLE),
    "dim": Edit(("global_dim 0, 20", "global_dim 1, 5"), Map((20, 5), (16, 8), (4 * COLUMNS,), "FLOAT32")),
    "stride": Edit(
        (f"global_stride 0, {8 * COLUMNS}", "global_dim 1, 12"),
        Map((COLUMNS, 12), (16, 8), (8 * COLUMNS,), "FLOAT32"),
    ),
    "box": Edit(("box_dim 1, 4",), replace(WHOLE, box=(16, 4))),
    "box_inner": Edit(("box_dim 0, 8",), replace(WHOLE, box=(8, 8))),
    "steps": Edit(("element_stride 1, 2",), replace(WHOLE, element_strides=(1, 2))),
    "fill": Edit(
        ("global_dim 1, 5", "fill_mode 1"),
        Map((COLUMNS, 5), (16, 8), (4 * COLUMNS,), "FLOAT32", fill="NAN_REQUEST_ZERO_FMA"),
    ),
    "narrow": Edit(("elemtype 1",), Map((COLUMNS, ROWS), (16, 8), (4 * COLUMNS,), "UINT16")),
    "swizzle_32": Edit(("box_dim 0, 8", "swizzle_mode 1"), replace(WHOLE, box=(8, 8), swizzle="32B")),
    "swizzle_64": Edit(("swizzle_mode 2", "interleave_layout 0"), replace(WHOLE, swizzle="64B")),
    "swizzle_128": Edit(
        ("box_dim 0, 32", "box_dim 1, 6", "swizzle_mode 3"),
        replace(WHOLE, box=(32, 6), swizzle="128B"),
    ),
    "line": Edit(("rank 0",), Map((COLUMNS,), (16,), type="FLOAT32"), (20,)),
    "cube": Edit(
        ("rank 2", "global_dim 1, 6", "global_dim 2, 4", f"global_stride 1, {24 * COLUMNS}", "box_dim 1, 3",
         "box_dim 2, 2", "element_stride 2, 1"),
        Map((COLUMNS, 6, 4), (16, 3, 2), (4 * COLUMNS, 24 * COLUMNS), "FLOAT32"),
        (16, 4, 1),
    ),
    "address": Edit(
        (f"global_address from, {8 * COLUMNS}", "global_dim 1, 20"),
        Map((COLUMNS, 20), (16, 8), (), "FLOAT32", offset=8 * COLUMNS),
    ),
}  # fmt: skip


def map_edit_cases() -> Iterator[Case]:
    for space in ("shared", "global"):
        for name, edit in EDITS.items():
            data = np.arange(COLUMNS * ROWS, dtype="<f4").tobytes() + bytes(128)
            kernel = f"tensormap_{space}_{name}"
            yield Case(f"tensormap/{space}/{name}", kernel, 32, data, DUMP, map=WHOLE, ptx=_text(kernel, space, edit))


def _text(kernel: str, space: str, edit: Edit) -> str:
    rank = edit.after.rank
    lines = [
        f".visible .entry {kernel}(.param .align 128 .b8 params[256])",
        "{",
        ".reg .b64 in, out, at, from, map; .reg .b32 tid, cell, value; .reg .pred first, done;",
        f".shared .align 1024 .b8 tile[{DUMP}]; .shared .align 128 .b8 draft[128]; .shared .align 8 .b8 bar[8];",
        "ld.param.u64 in, [params+128]; ld.param.u64 out, [params+136]; mov.u32 tid, %tid.x;",
        "setp.eq.u32 first, tid, 0; mov.u64 from, params; cvta.param.u64 from, from; mad.wide.u32 from, tid, 4, from;",
        f"ld.u32 value, [from]; add.u64 map, in, {4 * COLUMNS * ROWS}; mad.wide.u32 at, tid, 4, map;",
        "mov.u32 cell, draft; mad.lo.u32 cell, tid, 4, cell;",
        "@first prefetch.param.tensormap [params];",
        "st.shared.u32 [cell], value;" if space == "shared" else "st.global.u32 [at], value;",
        f"mov.u32 cell, tile; mad.lo.u32 cell, tid, {DUMP // 32}, cell; mov.u32 value, 0;",
        *(f"st.shared.u32 [cell+{i}], value;" for i in range(0, DUMP // 32, 4)),
        "fence.proxy.async.shared::cta; @first mbarrier.init.shared::cta.b64 [bar], 1;",
        "@first fence.mbarrier_init.release.cluster; bar.sync 0;",
    ]
    where = "shared::cta" if space == "shared" else "global"
    for field in edit.fields:
        name, _, rest = field.partition(" ")
        kind = "b64" if name in ("global_address", "global_stride") else "b32"
        if name == "global_address":
            lines.append(f"add.u64 from, in, {rest.partition(', ')[2]};")
            rest = "from"
        target = "draft" if space == "shared" else "map"
        lines.append(f"@first tensormap.replace.tile.{name}.{where}.b1024.{kind} [{target}], {rest};")
    lines += ["bar.warp.sync -1;"]
    lines += (
        ["tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [map], [draft], 128;"]
        if space == "shared"
        else ["fence.proxy.tensormap::generic.release.gpu;"]
    )
    lines += [
        "fence.proxy.tensormap::generic.acquire.gpu [map], 128;",
        f"@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {edit.after.box_bytes};",
        f"@first cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], "
        f"[map, {{{', '.join(map(str, edit.place))}}}], [bar];",
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [bar], 0; @!done bra WAIT;",
        f"mov.u32 cell, tile; mad.lo.u32 cell, tid, {DUMP // 32}, cell; mad.wide.u32 at, tid, {DUMP // 32}, out;",
        *(f"ld.shared.u32 value, [cell+{i}]; st.global.u32 [at+{i}], value;" for i in range(0, DUMP // 32, 4)),
        "ret;",
        "}",
    ]
    return "\n".join(lines) + "\n"
