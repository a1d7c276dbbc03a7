"""More lines for `lanes`: every modifier and type that Hopper has, where the table of accepted forms has an example.

A pattern stands for several lines. Braces in its opcode hold alternatives, one of each is taken; `#` is the width of
the opcode's last type, `$` that of the type before it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator


def alternatives(opcode: str) -> list[str]:
    """Return the opcodes that a pattern of one stands for."""
    parts = re.split(r"\{([^}]*)\}", opcode)
    choices = [part.split(",") if index % 2 else [part] for index, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def width(kind: str) -> str:
    """Return the width of the register of a type; 8 bits lie in one of 16."""
    size = int(re.sub(r"x2$", "", re.sub(r"^[a-z]+", "", kind))) * (2 if kind.endswith("x2") else 1)
    return str(max(size, 16))


def expanded(pattern: str) -> Iterator[str]:
    """Yield the lines that a pattern stands for."""
    opcodes, _, operands = pattern.partition(" ")
    for opcode in alternatives(opcodes):
        kinds = [m for m in opcode.split(".") if re.fullmatch(r"(?:b?f|[busd])\d+(?:x2)?", m)]
        text = operands.replace("#", width(kinds[-1]) if kinds else "")
        yield f"{opcode} {text.replace('$', width(kinds[-2]) if len(kinds) > 1 else '')}"


COMPARISONS = "{eq,ne,lt,le,gt,ge}"
UNSIGNED = "{eq,ne,lt,le,gt,ge,lo,ls,hi,hs}"
FLOATING = "{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}"
ROUNDINGS, TO_WHOLE = "{rn,rz,rm,rp}", "{rni,rzi,rmi,rpi}"
INTEGERS = "{u16,s16,u32,s32,u64,s64}"
ARITHMETIC = (
    f"{{add,sub,div,rem,min,max,mul.lo,mul.hi}}.{INTEGERS} d#, a#, b#",
    "add.s16x2 d#, a#, b#",
    "{min,max}.relu.s16x2 d#, a#, b#",
    "mul.wide.u16 d32, a16, b16",
    "mul.wide.s32 d64, a32, b32",
    "mad.wide.s16 d32, a16, b16, c32",
    f"{{mad.lo,mad.hi,sad}}.{INTEGERS} d#, a#, b#, c#",
    "mad24.{lo,hi}.{u32,s32} d#, a#, b#, c#",
    "{abs,neg}.{s16,s32,s64,f32,f64,f16,f16x2,bf16,bf16x2,ftz.f32,ftz.f16x2} d#, a#",
    f"{{add,sub,mul,div}}.{ROUNDINGS}.{{f32,f64}} d#, a#, b#",
    "{add,sub,mul}.{ftz.f32,sat.f32,rp.ftz.sat.f32,rn.bf16,bf16x2} d#, a#, b#",
    "{add,sub,mul}.{rn,ftz,sat}.{f16,f16x2} d#, a#, b#",
    f"{{fma,mad}}.{ROUNDINGS}.{{f32,f64}} d#, a#, b#, c#",
    "{fma,mad}.rm.ftz.sat.f32 d#, a#, b#, c#",
    "fma.rn.{sat,ftz,ftz.sat,ftz.relu}.{f16,f16x2} d#, a#, b#, c#",
    "fma.rn.{relu.bf16,bf16x2} d#, a#, b#, c#",
    f"{{rcp,sqrt}}.{ROUNDINGS}.{{f32,f64}} d#, a#",
    "{rcp,sqrt}.rm.ftz.f32 d#, a#",
    "div.rp.ftz.f32 d#, a#, b#",
    "{min,max}.{f32,f64,f16,bf16,f16x2,bf16x2,ftz.f32,NaN.f32,ftz.f16,NaN.f16x2,NaN.bf16,NaN.bf16x2} d#, a#, b#",
    "{min,max}.{f32,ftz.NaN.xorsign.abs.f32,ftz.xorsign.abs.f16x2,NaN.xorsign.abs.f16} d#, a#, b#",
    "{min,max}.{xorsign.abs.f16,NaN.xorsign.abs.bf16,NaN.xorsign.abs.bf16x2} d#, a#, b#",
    "copysign.f32 d#, a#, b#",
    "testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64} dp, a#",
)
BITS = (
    "{and,or,xor}.{b16,b32,b64} d#, a#, b#",
    "{not,cnot}.{b16,b32,b64} d#, a#",
    "{shl.b16,shr.b16,shr.b64,shr.u16,shr.s64} d#, a#, b32",
    "prmt.b32.{f4e,b4e,rc8,ecl,ecr} d32, a32, b32, c32",
    "bfe.{u64,s32} d#, a#, b32, c32",
    "{popc,clz}.{b32,b64} d32, a#",
    "bfind.{u64,s32,shiftamt.s64} d32, a#",
    "brev.b32 d#, a#",
    "match.any.sync.b32 d32, a32, e32",
    "match.all.sync.b64 d32|d2p, a64, e32",
)
COMPARISON = (
    f"setp.{UNSIGNED}.u32 dp, a#, b#",
    f"setp.{COMPARISONS}.s16 dp, a#, b#",
    "setp.{le.and,hi.or,ls.xor}.{u16,u64} dp|d2p, a#, b#, cp",
    "setp.{le.or,gt.xor}.s64 dp|d2p, a#, b#, !cp",
    "setp.{eq.and,ne.or}.{b16,b32,b64} dp, a#, b#, cp",
    f"setp.{FLOATING}.{{f32,f64,f16,bf16}} dp, a#, b#",
    "setp.{eq.and,ltu.xor,geu.or}.{f16x2,bf16x2} dp|d2p, a#, b#, cp",
    "setp.{gt.and,neu.xor}.{ftz.f32,f64} dp, a#, b#, cp",
    f"set.{UNSIGNED}.{{s32.u16,f32.u64,s32.u32}} d$, a#, b#",
    f"set.{COMPARISONS}.{{u32.s16,s32.s32,f32.s64}} d$, a#, b#",
    "set.{eq,ne}.{s32,f32}.{b16,b32,b64} d$, a#, b#",
    "set.{eq.and,ne.or,eq.xor}.u32.{b16,b32,b64} d$, a#, b#, cp",
    "set.{lt.and,ge.or,ne.xor}.{u32,f32}.{u16,u64,s16,s32,s64,f32,f64} d$, a#, b#, cp",
    f"set.{FLOATING}.{{f32.f32,u32.f64,f16.f16,s16.bf16,s32.f16x2,bf16x2.bf16x2}} d$, a#, b#",
    "set.{leu.and,gt.or,nan.xor}.{ftz.s32.f16,u32.bf16,ftz.f16x2.f16x2,s32.bf16x2} d$, a#, b#, cp",
    "selp.{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64} d#, a#, b#, cp",
    "slct.{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}.{s32,f32} d$, a$, b$, c32",
    "slct.ftz.{u64,s16}.f32 d$, a$, b$, c32",
)
EIGHT = "{u8,s8,u16,s16,u32,s32,u64,s64}"
CONVERSIONS = (
    f"cvt.{EIGHT}.{EIGHT} d$, a#",
    "cvt.sat.{u8,s8}.{u16,s16,u32,s32,u64,s64} d$, a#",
    "cvt.sat.{u16,s16}.{u32,s32,u64,s64} d$, a#",
    "cvt.sat.{u16.s16,s16.u16,u32.s32,s32.u32,u32.u64,u32.s64,s32.u64,s32.s64} d$, a#",
    f"cvt.{TO_WHOLE}.{{s32,u64}}.{{f32,f64,f16,bf16}} d$, a#",
    "cvt.rzi.{u8,s8,u16,s16,u32,s64}.{f32,f64,f16} d$, a#",
    "cvt.rzi.{u16,s16,u32,s64}.bf16 d$, a#",
    "cvt.rni.sat.{s32,u8}.{f16,f64} d$, a#",
    f"cvt.{ROUNDINGS}.{{f16,f32,f64,bf16}}.{{u32,s64}} d$, a#",
    "cvt.rn.{f16,f32,f64}.{u8,s8,u16,s16,s32,u64} d$, a#",
    "cvt.rn.bf16.{u16,s16,s32,u64} d$, a#",
    "cvt.rz.sat.{f16.s16,f32.s32,f64.u16} d$, a#",
    f"cvt.{ROUNDINGS}.{{f32.f64,f16.f32,f16.f64,bf16.f32,bf16.f16,bf16.f64,f16.bf16}} d$, a#",
    "cvt.rn.{ftz.f16.f32,sat.f16.f32,ftz.sat.f16.f32,ftz.f32.f64,sat.f16.f64} d$, a#",
    "cvt.{rz.relu.f16.f32,ftz.f32.f32} d$, a#",
    "cvt.{sat.f32.f16,sat.f64.f32,sat.f64.f16,f64.bf16,sat.f16.f16,sat.f64.f64} d$, a#",
    f"cvt.{TO_WHOLE}.{{f32.f32,f64.f64,f16.f16,bf16.bf16}} d$, a#",
    "cvt.rmi.sat.{f32.f32,f64.f64,f16.f16} d$, a#",
    "cvt.{rn,rz}.{relu.satfinite,satfinite}.{f16x2,bf16x2}.f32 d32, a32, b32",
    "cvt.rn.satfinite.relu.{e4m3x2,e5m2x2}.f32 d16, a32, b32",
    "cvt.rn.relu.f16x2.{e4m3x2,e5m2x2} d32, a16",
)
ORDERS, SCOPES = "{relaxed,acquire,release,acq_rel}", "{cta,cluster,gpu,sys}"
UPDATES = "{add.u32,add.s32,add.u64,add.f32,add.f64,min.u32,min.s32,min.u64,min.s64,max.u32,max.s32,max.u64,max.s64"
UPDATES += ",inc.u32,dec.u32,and.b32,and.b64,or.b32,or.b64,xor.b32,xor.b64"
HALVES = ",add.noftz.f16,add.noftz.f16x2,add.noftz.bf16,add.noftz.bf16x2}"
MEMORY = (
    f"atom.global.{UPDATES},exch.b32,exch.b64{HALVES} d#, [a64], b#",
    f"atom.shared.{UPDATES},exch.b32,exch.b64{HALVES} d#, [a32], b#",
    "atom.global.cas.{b16,b32,b64} d#, [a64], b#, c#",
    "atom.shared::cta.cas.{b16,b32,b64} d#, [a32], b#, c#",
    f"red.global.{UPDATES}{HALVES} [a64], b#",
    f"atom.shared::cluster.{UPDATES},exch.b32,exch.b64}} d#, [a32], b#",
    f"red.relaxed.cluster.shared::cluster.{UPDATES}}} [a32], b#",
    f"red.shared.{UPDATES}{HALVES} [a32], b#",
    f"atom.{ORDERS}.{SCOPES}.global.add.u32 d#, [a64], b#",
    f"atom.{ORDERS}.cta.shared.max.u64 d#, [a32], b#",
    f"red.{{relaxed,release}}.{SCOPES}.global.xor.b32 [a64], b#",
    "atom.global.add.v2.f32 {v0, v1}, [a64], {x0, x1}",
    "atom.global.add.v4.f32 {v0, v1, v2, v3}, [a64], {x0, x1, x2, x3}",
    "atom.global.{add,min,max}.noftz.v2.{f16x2,bf16x2} {v0, v1}, [a64], {x0, x1}",
    "atom.global.{add,min,max}.noftz.v4.{f16,bf16} {vh0, vh1, vh2, vh3}, [a64], {xh0, xh1, xh2, xh3}",
    "red.global.add.v2.f32 [a64], {x0, x1}",
    "red.global.{add,min,max}.noftz.v4.{f16x2,bf16x2} [a64], {x0, x1, x2, x3}",
    "red.global.{add,min,max}.noftz.v2.{f16,bf16} [a64], {xh0, xh1}",
    f"ld.{{relaxed,acquire}}.{SCOPES}.global.u32 v0, [a64]",
    f"st.{{relaxed,release}}.{SCOPES}.global.u32 [a64], x0",
    "ld.{weak.shared,volatile.shared,relaxed.cta.shared::cta}.u32 v0, [a32]",
    "st.{weak.shared,volatile.shared,release.cta.shared::cta}.u32 [a32], x0",
    "ld.global.{b8,u8,s8,b16,u16,s16} vh0, [a64]",
    "ld.global.{b32,u32,s32,f32} v0, [a64]",
    "ld.global.{b64,u64,s64,f64} vd0, [a64]",
    "ld.shared.v2.{b16,s16} {vh0, vh1}, [a32]",
    "ld.shared.v2.{b64,f64} {vd0, vd1}, [a32]",
    "st.global.{b8,u8,s8,b16,u16,s16} [a64], xh0",
    "st.global.{b32,u32,s32,f32} [a64], x0",
    "st.global.{b64,u64,s64,f64} [a64], xd0",
    "st.shared.v4.{b8,s16} [a32], {xh0, xh1, xh2, xh3}",
    "st.shared.v2.{b64,f64} [a32], {xd0, xd1}",
)
FENCED = (
    *(
        f"st.global.u32 [a64], b32; {fence}; ld.global.u32 v0, [a64]"
        for fence in (
            *alternatives("fence.{sc,acq_rel}.{cta,cluster,gpu,sys}"),
            *alternatives("fence.{acquire,release}.{cta,cluster,gpu,sys}"),
            *alternatives("membar.{cta,gl,sys}"),
            "fence.proxy.async",
            "fence.proxy.tensormap::generic.release.cta",
        )
    ),
)
"""A word that goes through a fence, of every order and scope."""
WIDE = (
    ".reg .b128 q; ld.global.b128 q, [a64]; mov.b128 {vd0, vd1}, q",
    ".reg .b128 q; mov.b128 q, {b64, c64}; st.global.b128 [a64], q",
    ".reg .b128 q, r; mov.b128 r, {b64, c64}; atom.global.exch.b128 q, [a64], r; mov.b128 {vd0, vd1}, q",
    ".reg .b128 q, r, s; mov.b128 r, {c64, e64}; mov.b128 s, {e64, b64}; atom.global.cas.b128 q, [a64], r, s; "
    "mov.b128 {vd0, vd1}, q",
    ".reg .b128 q, r, s; mov.b128 r, {b64, c64}; mov.b128 s, {e64, b64}; atom.global.cas.b128 q, [a64], r, s; "
    "mov.b128 {vd0, vd1}, q",
)
"""Registers of 128 bits are declared by those that use them. The cell holds c and e at its address."""

LEVEL_1 = "{ca,cg,cs,lu,cv,L1::evict_normal,L1::evict_unchanged,L1::evict_first,L1::evict_last,L1::no_allocate}"
ONLY_READ = "{ca,cg,cs,L1::evict_normal,L1::evict_unchanged,L1::evict_first,L1::evict_last,L1::no_allocate}"
WRITTEN = "{wb,cg,cs,wt,L1::evict_normal,L1::evict_unchanged,L1::evict_first,L1::evict_last,L1::no_allocate}"
AHEAD = "{L2::64B,L2::128B,L2::256B}"
POLICY = "createpolicy.fractional.L2::evict_{}.b64 low, {};"
EVERY, HALF = "0f3F800000", "0f3F000000"
INPUT = "mad.wide.u32 at, tid, {}, in;"
"""The kernel's input, which nothing writes: what non-coherent loads may read."""
_PREFETCHES = (
    "prefetch.global.L1 [a64]", "prefetch.global.L2 [a64]", "prefetch.L1 [a64]", "prefetch.L2 [a64]",
    "prefetch.global.L2::evict_last [a64]", "prefetch.global.L2::evict_normal [a64]", "prefetchu.L1 [a64]",
    ".local .align 16 .b8 mine[16]; prefetch.local.L1 [mine]",
    ".local .align 16 .b8 mine[16]; prefetch.local.L2 [mine]",
    "and.b64 low, a64, -128; applypriority.global.L2::evict_normal [low], 128",
    "and.b64 low, a64, -128; applypriority.L2::evict_normal [low], 128",
    "cp.async.bulk.prefetch.L2.global [a64], 16",
)  # fmt: skip
_POLICIES = (
    *(POLICY.format(first, EVERY) for first in ("last", "normal", "first", "unchanged")),
    POLICY.format("last.L2::evict_first", HALF),
    POLICY.format("first.L2::evict_unchanged", HALF),
    *(f"createpolicy.range.global.L2::evict_{first}.b64 low, [out], 4096, 8192;" for first in ("last", "first")),
    "createpolicy.range.L2::evict_normal.L2::evict_unchanged.b64 low, [out], 4096, 4096;",
    "createpolicy.range.global.L2::evict_unchanged.L2::evict_first.b64 low, [out], 4096, 4096;",
)
HINTS = (
    f"ld.global.{LEVEL_1}.u32 v0, [a64]",
    f"ld.global.{AHEAD}.v4.u32 {{v0, v1, v2, v3}}, [a64]",
    f"ld.global.L1::evict_last.{AHEAD}.u16 vh0, [a64+2]",
    f"st.global.{WRITTEN}.v2.b32 [a64], {{x0, x1}}",
    *(f"{prefetch}; ld.global.u64 vd0, [a64]" for prefetch in _PREFETCHES),
    *(f"{policy} ld.global.L2::cache_hint.v2.u64 {{vd0, vd1}}, [a64], low" for policy in _POLICIES),
    *(f"{policy} st.global.L2::cache_hint.v4.f32 [a64], {{x0, x1, x2, x3}}, low" for policy in _POLICIES[:6]),
    f"{_POLICIES[0]} ld.global.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {{v0, v1, v2, v3}}, [a64], low",
    f"{_POLICIES[2]} atom.global.add.L2::cache_hint.u32 d32, [a64], b32, low",
    f"{_POLICIES[2]} atom.global.max.L2::cache_hint.s64 d64, [a64], b64, low",
    f"{_POLICIES[1]} red.global.add.L2::cache_hint.f32 [a64], b32, low",
    f"{_POLICIES[1]} red.global.add.noftz.L2::cache_hint.v4.bf16x2 [a64], {{x0, x1, x2, x3}}, low",
    f"{_POLICIES[0]} cp.async.bulk.prefetch.L2.global.L2::cache_hint [a64], 16, low; ld.global.u64 vd0, [a64]",
    "nanosleep.u32 20; mov.b32 d32, a32",
    "mov.b32 d32, a32; pmevent 1; pmevent.mask 5",
)
"""What concerns speed alone, around an access whose value is seen."""
ONLY = (
    *(
        f"{INPUT.format(size)} {load} {operand}, [at]"
        for size, operand, loads in (
            (2, "vh0", "ld.global.nc.{b8,u8,s8,b16,u16,s16}"),
            (4, "v0", "ld.global.nc.{b32,u32,s32,f32}"),
            (8, "vd0", "ld.global.nc.{b64,u64,s64,f64}"),
            (4, "{vh0, vh1}", "ld.global.nc.v2.{u8,b16}"),
            (8, "{v0, v1}", "ld.global.nc.v2.f32"),
            (16, "{vd0, vd1}", "ld.global.nc.v2.{b64,f64}"),
            (8, "{vh0, vh1, vh2, vh3}", "ld.global.nc.v4.{s8,u16}"),
            (16, "{v0, v1, v2, v3}", "ld.global.nc.v4.{b32,s32,f32}"),
            (16, "{v0, v1, v2, v3}", f"ld.global.nc.{ONLY_READ}.v4.u32"),
            (4, "v0", f"ld.global.nc.L1::no_allocate.{AHEAD}.f32"),
        )
        for load in alternatives(loads)
    ),
    f"{_POLICIES[0]} {INPUT.format(16)} ld.global.nc.L1::no_allocate.L2::cache_hint.L2::128B.v4.f32 "
    "{v0, v1, v2, v3}, [at], low",
    f".reg .b128 q; {INPUT.format(16)} ld.global.nc.b128 q, [at]; mov.b128 {{vd0, vd1}}, q",
    *(
        f"shr.u32 word, tid, 5; mad.wide.u32 at, word, 16, in; {load} {operand}, [at]"
        for operand, loads in (
            ("vh0", "ldu.global.{b8,u8,s8,b16,u16,s16}"),
            ("v0", "ldu.global.{b32,u32,s32,f32}"),
            ("vd0", "ldu.global.{b64,u64,s64,f64}"),
            ("v0", "ldu.u32"),
            ("{vh0, vh1}", "ldu.global.v2.u16"),
            ("{vd0, vd1}", "ldu.global.v2.f64"),
            ("{v0, v1, v2, v3}", "ldu.global.v4.f32"),
        )
        for load in alternatives(loads)
    ),
)
"""Loads of what nothing writes; those of `ldu` at one address for a warp."""


def _chains() -> Iterator[str]:
    """Carries through chains of every length up to four, of both widths, by every instruction that hands one on."""
    for kind in ("u32", "s32", "u64", "s64"):
        w = kind[1:]
        a, b, c, e, d, d2 = (f"{name}{w}" for name in ("a", "b", "c", "e", "d", "d2"))
        last, rest = ("v0", "v1") if w == "32" else ("vd0", "vd1")
        for op in ("add", "sub"):
            yield f"{op}.cc.{kind} {d}, {a}, {b}; {op}c.{kind} {d2}, {c}, {e}"
            yield f"{op}.cc.{kind} {d}, {a}, {b}; {op}c.cc.{kind} {d2}, {c}, {e}; {op}c.{kind} {last}, {b}, {a}"
            yield (
                f"{op}.cc.{kind} {d}, {a}, {b}; {op}c.cc.{kind} {d2}, {c}, {e}; {op}c.cc.{kind} {last}, {b}, {c}; "
                f"{op}c.{kind} {rest}, 0, 0"
            )
        for first, then in itertools.product(("lo", "hi"), repeat=2):
            yield f"mad.{first}.cc.{kind} {d}, {a}, {b}, {c}; madc.{then}.{kind} {d2}, {a}, {b}, {e}"
            yield (
                f"mad.{first}.cc.{kind} {d}, {a}, {b}, {c}; madc.{then}.cc.{kind} {d2}, {a}, {e}, {e}; "
                f"addc.{kind} {last}, 0, 0"
            )
        yield (
            f"mad.lo.cc.{kind} {d}, {a}, {b}, {c}; madc.hi.cc.{kind} {d2}, {a}, {b}, {e}; "
            f"madc.lo.cc.{kind} {last}, {c}, {e}, {a}; madc.hi.{kind} {rest}, {c}, {e}, {b}"
        )
        yield f"add.cc.{kind} {d}, {a}, {b}; madc.lo.cc.{kind} {d2}, {c}, {e}, {a}; addc.{kind} {last}, {e}, {e}"


CHAINS = tuple(_chains())
MIXED = (
    "sub.cc.u32 d32, a32, b32; addc.u32 d232, c32, e32",
    "add.cc.u32 d32, a32, b32; subc.u32 d232, c32, e32",
    "sub.cc.u64 d64, a64, b64; addc.u64 d264, c64, e64",
    "mad.lo.cc.u32 d32, a32, b32, c32; subc.u32 d232, a32, e32",
    "sub.cc.s32 d32, a32, b32; madc.lo.s32 d232, a32, c32, e32",
)
"""A borrow that is taken for a carry, and the other way round: the ISA has one flag for both."""


def more_lines() -> Iterator[str]:
    """Yield every line, some of which may stand elsewhere too."""
    for pattern in (*ARITHMETIC, *BITS, *COMPARISON, *CONVERSIONS, *MEMORY):
        yield from expanded(pattern)
    for pattern in HINTS:
        yield from expanded(pattern) if ";" not in pattern else (pattern,)
    yield from (*FENCED, *WIDE, *ONLY, *CHAINS, *MIXED)
