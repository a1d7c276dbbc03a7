"""Why an opcode is refused, in words that say what to use instead. Whatever has no entry here gets a generic reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptxgym.device.emulator.decode_grammar import RULES

_BLACKWELL = "this instruction belongs to sm_100 and is not emulated"

_OPCODES = {
    "wmma": "emulated: fragments of f16, bf16, tf32, f64, u8 and s8 in the shapes of the ISA; use mma.sync for others",
    "alloca": "alloca is not emulated; use a local array of constant size",
    "stacksave": "a dynamic stack is not emulated; use a local array of constant size",
    "stackrestore": "a dynamic stack is not emulated; use a local array of constant size",
    "discard": "discard leaves memory undefined and is not emulated; leave it out",
    "tex": "textures are not emulated; load from global memory",
    "tld4": "textures are not emulated; load from global memory",
    "txq": "textures are not emulated",
    "suld": "surfaces are not emulated; load from global memory",
    "sust": "surfaces are not emulated; store to global memory",
    "sured": "surfaces are not emulated; use red.global",
    "suq": "surfaces are not emulated",
    "istypep": "opaque types are not emulated",
    "multimem": "multicast objects over several GPUs are not emulated",
}  # fmt: skip

Test = Callable[[Sequence[str]], bool]
_CASES: tuple[tuple[str, Test, str], ...] = (
    ("cp", lambda m: any("gather4" in x or "scatter4" in x for x in m),
     "of four rows, .2d loads with .tile::gather4 and .2d stores with .tile::scatter4 are emulated"),
    ("cp", lambda m: "reduce" in m, "this reduction does not exist for its element type (or wants .noftz, for halves)"),
    ("cp", lambda m: any(x.startswith("im2col") for x in m), "im2col tensor copies are not emulated; use tile mode"),
    ("cp", lambda m: "cp_mask" in m, _BLACKWELL),
    ("tcgen05", lambda m: any(x.startswith("sp") for x in m), "sparse matrix instructions are not emulated"),
    ("tcgen05", lambda m: "ashift" in m,
     "a shifted A is not emulated: PTX leaves open which rows are the last ones, that stay"),
    ("tcgen05", lambda m: "mma" in m,
     "emulated: kind::f16, tf32, f8f6f4 and i8 (with .ws too, of one CTA), and with .block_scale kind::mxf8f6f4 (1X), "
     "mxf4 (2X) and mxf4nvf4 (2X or 4X, which must be said)"),
    ("tcgen05", lambda m: "cp" in m,
     "this shape wants another multicast (.64x128b: .warpx2, .32x128b: .warpx4, the others: none), or its source "
     "format is none of .b8x16.b6x16_p32 and .b8x16.b4x16_p64"),
    ("tcgen05", lambda m: "ld" in m and "red" in m, "tcgen05.ld.red does not exist on sm_100a"),
    ("cvt", lambda m: "pack" in m,
     "cvt.pack.sat takes .u16.s32 and .s16.s32, or with a third operand .u8, .s8, .u4, .s4, .u2 and .s2 before .s32.b32"
     ),
    ("cvt", lambda m: "rs" in m,
     "of .rs, the conversions of f32 to f16x2 and bf16x2, and with .satfinite to e4m3x4, e5m2x4, e2m1x4, e2m3x4 and "
     "e3m2x4 are emulated"),
    ("ldmatrix", lambda m: True,
     "emulated: .m8n8 with .b16, .m16n16.trans (.x1, .x2) with .b8, and with .b8x16 from .b6x16_p32 or .b4x16_p64 "
     ".m16n16.trans and .m8n16"),
    ("stmatrix", lambda m: True, "emulated: .m8n8 with .b16 and .m16n8.trans with .b8"),
    ("mma", lambda m: any(x.startswith("sp") for x in m), "sparse matrix instructions are not emulated"),
    ("mma", lambda m: True, "emulated: every dense shape of the ISA but m8n8k4 of f16; not the kinds of sm_120 "
     "(kind::f8f6f4, block scaling)"),
    ("wgmma", lambda m: any(x.startswith("sp") for x in m), "sparse matrix instructions are not emulated"),
    ("wgmma", lambda m: "mma_async" in m,
     "emulated: m64nNk16 with f16 or bf16, m64nNk32 with e4m3 or e5m2, m64nNk8 with tf32 operands; accumulators f32 "
     "(or f16 with f16, e4m3 or e5m2 operands); m64nNk32 with s8 or u8 operands (N 8, 24 or a multiple of 16) and s32 "
     "accumulators; not b1"),
    ("shfl", lambda m: "sync" not in m, "without .sync it does not exist on sm_70 and later; use shfl.sync"),
    ("vote", lambda m: "sync" not in m, "without .sync it does not exist on sm_70 and later; use vote.sync"),
    ("ld", lambda m: "mmio" in m, "memory-mapped input and output is not emulated"),
    ("st", lambda m: "mmio" in m, "memory-mapped input and output is not emulated"),
    ("st", lambda m: "async" in m, "of st.async, the weak form to shared::cluster with an mbarrier is emulated"),
    ("red", lambda m: "async" in m, "of red.async, relaxed.cluster to shared::cluster with an mbarrier is emulated"),
    ("redux", lambda m: "f32" in m, "of f32, .min and .max are emulated, with .abs and .NaN"),
)  # fmt: skip


def reason_for(opcode: str, modifiers: Sequence[str]) -> str:
    """Say why `opcode.modifiers` is not emulated."""
    known = _OPCODES.get(opcode)
    if known:
        return known
    for name, test, reason in _CASES:
        if name == opcode and test(modifiers):
            return reason
    if opcode in RULES:
        return f"this combination of modifiers is not emulated, others of {opcode} are"
    return "this instruction is not emulated"
