"""Products of a warp that came later (8-bit floats, nibbles, bits, doubles, wmma); tensor maps that kernels rewrite.

Each kernel is PTX that is written here. The layout of wmma fragments is open, so these cases load, multiply and store
whole matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.gpu.cases.model import Case, Map
from tests.gpu.cases.values import SPREADS, random_bytes, spread_words

HEAD = """.visible .entry {name}(.param .align 128 .b8 params[256])
{{
.reg .b64 in, out, at, from; .reg .b32 tid, word; .reg .pred first, done;
ld.param.u64 in, [params+128]; ld.param.u64 out, [params+136]; mov.u32 tid, %tid.x;
{body}
ret;
}}
"""


@dataclass(frozen=True)
class Product:
    """A form of mma.sync, with its registers of A, B, C and D per lane and their bytes."""

    form: str
    registers: tuple[int, int, int, int]
    kind: str
    """Of what the registers of A and B hold."""
    result: str = "s32"
    register_bytes: int = 4


PRODUCTS = {
    "e4m3_k32": Product("m16n8k32.row.col.f32.e4m3.e4m3.f32", (4, 2, 4, 4), "e4m3", "f32"),
    "e5m2_k32": Product("m16n8k32.row.col.f32.e5m2.e5m2.f32", (4, 2, 4, 4), "e5m2", "f32"),
    "e4m3_e5m2_k16": Product("m16n8k16.row.col.f32.e4m3.e5m2.f32", (2, 1, 4, 4), "e4m3", "f32"),
    "e4m3_half_k32": Product("m16n8k32.row.col.f16.e4m3.e4m3.f16", (4, 2, 2, 2), "e4m3", "f16"),
    "e5m2_half_k16": Product("m16n8k16.row.col.f16.e5m2.e5m2.f16", (2, 1, 2, 2), "e5m2", "f16"),
    "e4m3_k16": Product("m16n8k16.row.col.f32.e4m3.e4m3.f32", (2, 1, 4, 4), "e4m3", "f32"),
    "e5m2_e4m3_k32": Product("m16n8k32.row.col.f32.e5m2.e4m3.f32", (4, 2, 4, 4), "e5m2", "f32"),
    "e4m3_e5m2_half_k32": Product("m16n8k32.row.col.f16.e4m3.e5m2.f16", (4, 2, 2, 2), "e4m3", "f16"),
    "s4_m8": Product("m8n8k32.row.col.s32.s4.u4.s32", (1, 1, 2, 2), "bits"),
    "u4_k32": Product("m16n8k32.row.col.s32.u4.s4.s32", (2, 1, 4, 4), "bits"),
    "s4_k64": Product("m16n8k64.row.col.s32.s4.s4.s32", (4, 2, 4, 4), "bits"),
    "u4_sat_k64": Product("m16n8k64.row.col.satfinite.s32.u4.u4.s32", (4, 2, 4, 4), "bits"),
    "b1_m8_and": Product("m8n8k128.row.col.s32.b1.b1.s32.and.popc", (1, 1, 2, 2), "bits"),
    "b1_k128_and": Product("m16n8k128.row.col.s32.b1.b1.s32.and.popc", (2, 1, 4, 4), "bits"),
    "b1_k256_and": Product("m16n8k256.row.col.s32.b1.b1.s32.and.popc", (4, 2, 4, 4), "bits"),
    "b1_m8_xor": Product("m8n8k128.row.col.s32.b1.b1.s32.xor.popc", (1, 1, 2, 2), "bits"),
    "b1_k128_xor": Product("m16n8k128.row.col.s32.b1.b1.s32.xor.popc", (2, 1, 4, 4), "bits"),
    "b1_k256_xor": Product("m16n8k256.row.col.s32.b1.b1.s32.xor.popc", (4, 2, 4, 4), "bits"),
    "f64_m8": Product("m8n8k4.row.col.f64.f64.f64.f64", (1, 1, 2, 2), "f64", "f64", 8),
    "f64_k4": Product("m16n8k4.row.col.f64.f64.f64.f64", (2, 1, 4, 4), "f64", "f64", 8),
    "f64_k8": Product("m16n8k8.row.col.f64.f64.f64.f64", (4, 2, 4, 4), "f64", "f64", 8),
    "f64_k16": Product("m16n8k16.row.col.f64.f64.f64.f64", (8, 4, 4, 4), "f64", "f64", 8),
}


def product_cases() -> Iterator[Case]:
    for name, product in PRODUCTS.items():
        if product.kind in ("e4m3", "e5m2"):
            for spread in SPREADS:
                yield _product(name, product, spread)
        else:
            yield _product(name, product, "")
    for name, wmma in WMMA.items():
        for spread in SPREADS if wmma.factor in ("f16", "bf16", "tf32") else ("",):
            yield _wmma(name, wmma, spread)
    yield from map_cases()


def _entry(name: str, body: str) -> str:
    return HEAD.format(name=name, body=body)


def _names(prefix: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"{prefix}{i}" for i in range(first, first + count)) + "}"


def _product(name: str, product: Product, spread: str) -> Case:
    na, nb, nc, nd = product.registers
    size, count = product.register_bytes, na + nb + nc
    kind = f"b{8 * size}"
    lines = [f".reg .{kind} x<{count}>; .reg .{kind} y<{nd}>;", f"mad.wide.u32 at, tid, {size * count}, in;"]
    lines += [f"ld.global.{kind} x{i}, [at+{size * i}];" for i in range(count)]
    operands = f"{_names('y', 0, nd)}, {_names('x', 0, na)}, {_names('x', na, nb)}, {_names('x', na + nb, nc)}"
    lines += [f"mma.sync.aligned.{product.form} {operands};", f"mad.wide.u32 at, tid, {size * nd}, out;"]
    lines += [f"st.global.{kind} [at+{size * i}], y{i};" for i in range(nd)]
    kernel = f"mma_{name}"
    text, data = _entry(kernel, "\n".join(lines)), _operands(product, spread).tobytes()
    label = f"mma/{name}/{spread}" if spread else f"mma/{name}"
    return Case(label, kernel, 32, data, 32 * size * nd, probe=bool(spread), ptx=text)


def _operands(product: Product, spread: str) -> np.ndarray:
    na, nb, nc, _ = product.registers
    rng = np.random.default_rng(sum(product.form.encode()))
    if product.kind == "f64":
        return rng.standard_normal((32, na + nb + nc)) * 2.0 ** rng.integers(-20, 21, (32, na + nb + nc))
    factors = rng.integers(0, 2**32, (32, na + nb), dtype=np.uint32)
    if product.kind == "bits":
        edges = np.array([0, 1000, -1000, 2**31 - 5, -(2**31) + 5], np.int64)
        return np.concatenate([factors, rng.choice(edges, (32, nc)).astype(np.int32).view(np.uint32)], axis=1)
    infinite = 0x7F if product.kind == "e4m3" else 0x7C  # NaN and infinities have cases of wgmma
    codes = factors.view(np.uint8)
    codes[(codes & 0x7F) >= infinite] &= 0x9F
    factors = codes.view(np.uint32)
    halves = 2 if product.result == "f16" else 1
    c = spread_words(spread, product.result, (32, nc, halves), 73)
    addend = c[..., 0] | (c[..., 1] << 16 if halves == 2 else 0)
    return np.concatenate([factors.reshape(32, -1), addend.astype(np.uint32)], axis=1)


# ---- wmma


@dataclass(frozen=True)
class Wmma:
    """Shape, element types and layouts of A, B and D."""

    shape: str
    factor: str
    result: str
    layouts: tuple[str, str, str] = ("row", "col", "row")
    limit: str = ""
    """`.satfinite`, or nothing."""

    def registers(self, elements: int, kind: str, is_factor: bool) -> int:
        if kind == "f16" and is_factor:
            return 8
        return elements // 32 * BYTES[kind] // (8 if kind == "f64" else 4)


BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4, "s32": 4, "f64": 8, "s8": 1, "u8": 1}
WMMA = {
    "f16": Wmma("m16n16k16", "f16", "f32"),
    "f16_half": Wmma("m16n16k16", "f16", "f16", ("col", "row", "col")),
    "f16_m8": Wmma("m8n32k16", "f16", "f32", ("row", "row", "row")),
    "f16_m32": Wmma("m32n8k16", "f16", "f32", ("col", "col", "row")),
    "bf16": Wmma("m16n16k16", "bf16", "f32"),
    "tf32": Wmma("m16n16k8", "tf32", "f32"),
    "s8": Wmma("m16n16k16", "s8", "s32"),
    "u8_m8": Wmma("m8n32k16", "u8", "s32", ("col", "row", "col")),
    "f64": Wmma("m8n8k4", "f64", "f64"),
    "bf16_m8": Wmma("m8n32k16", "bf16", "f32", ("row", "row", "col")),
    "bf16_m32": Wmma("m32n8k16", "bf16", "f32", ("col", "col", "row")),
    "tf32_col": Wmma("m16n16k8", "tf32", "f32", ("col", "row", "col")),
    "s8_m32": Wmma("m32n8k16", "s8", "s32", ("col", "col", "row")),
    "u8_limited": Wmma("m16n16k16", "u8", "s32", ("col", "row", "row"), ".satfinite"),
    "s8_limited": Wmma("m32n8k16", "s8", "s32", ("row", "col", "col"), ".satfinite"),
    "f64_col": Wmma("m8n8k4", "f64", "f64", ("col", "row", "col")),
}


def _wmma(name: str, wmma: Wmma, spread: str) -> Case:
    m, rest = wmma.shape[1:].split("n")
    n, k = rest.split("k")
    extents = {"a": int(m) * int(k), "b": int(k) * int(n), "c": int(m) * int(n)}
    kinds = {"a": wmma.factor, "b": wmma.factor, "c": wmma.result}
    counts = {name: wmma.registers(extents[name], kinds[name], name != "c") for name in "abc"}
    register = "f64" if wmma.factor == "f64" else "b32"
    lists = {name: _names(name, 0, counts[name]) for name in "abc"}
    lines = [f".reg .{register} {name}<{counts[name]}>;" for name in "abc"]
    at = 0
    data = []
    for index, name_ in enumerate("abc"):
        lines.append(f"add.u64 from, in, {at};")
        layout, kind = wmma.layouts[index], kinds[name_]
        lines.append(f"wmma.load.{name_}.sync.aligned.{layout}.{wmma.shape}.global.{kind} {lists[name_]}, [from];")
        data.append(_elements("ends" if wmma.limit and name_ == "c" else kind, extents[name_], spread, 80 + index))
        at += extents[name_] * BYTES[kind]
    factors = "" if wmma.factor == "f16" else f".{wmma.factor}.{wmma.factor}"
    form = f"{wmma.layouts[0]}.{wmma.layouts[1]}.{wmma.shape}.{wmma.result}{factors}.{wmma.result}{wmma.limit}"
    lines.append(f"wmma.mma.sync.aligned.{form} {lists['c']}, {lists['a']}, {lists['b']}, {lists['c']};")
    lines.append(f"wmma.store.d.sync.aligned.{wmma.layouts[2]}.{wmma.shape}.global.{wmma.result} [out], {lists['c']};")
    kernel, size = f"wmma_{name}", extents["c"] * BYTES[wmma.result]
    label = f"wmma/{name}/{spread}" if spread else f"wmma/{name}"
    return Case(label, kernel, 32, b"".join(data), size, probe=bool(spread), ptx=_entry(kernel, "\n".join(lines)))


def _elements(kind: str, count: int, spread: str, seed: int) -> bytes:
    if kind in ("s8", "u8"):
        return random_bytes(count, seed)
    if kind == "ends":  # of s32, so near that sums overflow
        return np.random.default_rng(seed).choice((-(2**31) + 5, 2**31 - 5), count).astype(np.int32).tobytes()
    if kind == "s32":
        return np.random.default_rng(seed).integers(-(2**20), 2**20, count).astype(np.int32).tobytes()
    if kind == "f64":
        return np.random.default_rng(seed).standard_normal(count).tobytes()
    words = spread_words("wide" if spread == "low" and seed == 81 else spread, kind, (count,), seed)
    return words.astype(np.uint16 if BYTES[kind] == 2 else np.uint32).tobytes()


# ---- tensor maps

COLUMNS, ROWS, BOX = 64, 24, (16, 8)
EDITS = {
    "none": ("element_stride 0, 1",),
    "dim": ("global_dim 0, 20", "global_dim 1, 5"),
    "stride": (f"global_stride 0, {8 * COLUMNS}", "global_dim 1, 12"),
    "box": ("box_dim 1, 4",),
    "steps": ("element_stride 1, 2",),
    "fill": ("global_dim 1, 5", "fill_mode 1"),
    "type": ("global_dim 1, 5", "fill_mode 1", "elemtype 2"),
    "type_zeros": ("global_dim 1, 5", "elemtype 2"),
    "type_floating": ("global_dim 1, 5", "fill_mode 1", "elemtype 8"),
    "swizzle": ("swizzle_mode 2", "interleave_layout 0"),
    "rank": ("rank 1",),
    "address": ("global_address in",),
}
"""Fields that a kernel rewrites: name, ordinal, value."""
HALF_BOX = ("box", "steps")


def map_cases() -> Iterator[Case]:
    for name, fields in EDITS.items():
        tile_bytes = 256 if name in HALF_BOX else 512
        data = np.arange(COLUMNS * ROWS, dtype="<f4").tobytes() + bytes(128)
        kernel = f"tensormap_{name}"
        text = _entry(kernel, _map_body(fields, tile_bytes))
        over = Map((COLUMNS, ROWS), BOX, type="FLOAT32", offset=4 * COLUMNS if name == "address" else 0)
        yield Case(f"tensormap/{name}", kernel, 32, data, 512, map=over, ptx=text)


def _map_body(fields: tuple[str, ...], tile_bytes: int) -> str:
    """Copy the parameter's map to shared memory, rewrite it, publish it behind the data, and load a tile by it."""
    lines = [
        ".shared .align 1024 .b8 tile[1024]; .shared .align 128 .b8 draft[128]; .shared .align 8 .b8 bar[8];",
        ".reg .b32 cell, value; .reg .b64 map;",
        "setp.eq.u32 first, tid, 0; mov.u32 cell, draft; mad.lo.u32 cell, tid, 4, cell;",
        "mov.u64 from, params; cvta.param.u64 from, from; mad.wide.u32 from, tid, 4, from; ld.u32 value, [from];",
        f"st.shared.u32 [cell], value; add.u64 map, in, {4 * COLUMNS * ROWS};",
        "mov.u32 cell, tile; mad.lo.u32 cell, tid, 16, cell; mov.u32 value, 0;",
        "st.shared.v4.u32 [cell], {value, value, value, value}; fence.proxy.async.shared::cta;",
        "@first mbarrier.init.shared::cta.b64 [bar], 1; @first fence.mbarrier_init.release.cluster; bar.sync 0;",
    ]
    for field in fields:
        name, _, rest = field.partition(" ")
        kind = "b64" if name in ("global_address", "global_stride") else "b32"
        lines.append(f"@first tensormap.replace.tile.{name}.shared::cta.b1024.{kind} [draft], {rest};")
    lines += [
        "bar.warp.sync -1;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [map], [draft], 128;",
        "fence.proxy.tensormap::generic.acquire.gpu [map], 128;",
        f"@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], {tile_bytes};",
        "@first cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [tile], "
        "[map, {16, 0}], [bar];",
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [bar], 0; @!done bra WAIT;",
        "mov.u32 cell, tile; mad.lo.u32 cell, tid, 16, cell; mad.wide.u32 at, tid, 16, out;",
    ]
    lines += [f"ld.shared.u32 value, [cell+{i}]; st.global.u32 [at+{i}], value;" for i in range(0, 16, 4)]
    return "\n".join(lines)
