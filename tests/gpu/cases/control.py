"""Control flow: tables of branches, calls, loops that lanes leave one by one, lanes that exit before warps exchange.

Each kernel is PTX that is written here. Four words of input and of output per thread: w0 to w3, r0 to r3.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.gpu.cases.model import Case
from tests.gpu.cases.values import random_bytes

HEAD = """{functions}.visible .entry {name}(.param .align 128 .b8 params[256])
.maxntid 128
{{
.reg .b64 in, out, at, from, wide, far; .reg .b32 tid, lane, mask, i, n, t, u; .reg .pred p, q, last;
.reg .b32 w<4>, r<4>;
ld.param.u64 in, [params+128]; ld.param.u64 out, [params+136]; mov.u32 tid, %tid.x; mov.u32 lane, %laneid;
mad.wide.u32 from, tid, 16, in; mad.wide.u32 at, tid, 16, out; ld.global.v4.u32 {{w0, w1, w2, w3}}, [from];
mov.u32 r0, 0; mov.u32 r1, 0; mov.u32 r2, 0; mov.u32 r3, 0;
{body}
st.global.v4.u32 [at], {{r0, r1, r2, r3}};
ret;
}}
"""
TABLE = """and.b32 t, w0, 3; and.b32 u, tid, 32; shr.u32 u, u, 5;
LANES: .branchtargets ADD, SUB, MUL, XOR;
brx.idx t, LANES;
ADD: add.u32 r0, w1, w2; bra JOIN;
SUB: sub.u32 r0, w1, w2; bra JOIN;
MUL: mul.lo.u32 r0, w1, w2; bra JOIN;
XOR: xor.b32 r0, w1, w2;
JOIN:
WARPS: .branchtargets EVEN, ODD;
brx.idx.uni u, WARPS;
EVEN: add.u32 r1, r0, w3; bra.uni DONE;
ODD: xor.b32 r1, r0, w3;
DONE: add.u32 r2, r0, r1;"""
"""Lanes of a warp take four ways, warps two."""
MACHINE = """mov.u32 i, 0; mov.u32 r0, w0; and.b32 r1, w1, 3;
STATES: .branchtargets S0, S1, S2, S3;
STEP: brx.idx r1, STATES;
S0: add.u32 r0, r0, w2; and.b32 r1, r0, 3; bra NEXT;
S1: mad.lo.u32 r0, r0, 5, w3; shr.u32 t, r0, 3; and.b32 r1, t, 3; bra NEXT;
S2: xor.b32 r0, r0, w1; add.u32 r2, r2, 1; mov.u32 r1, 3; bra NEXT;
S3: shf.l.wrap.b32 r0, r0, r0, 7; setp.gt.s32 p, r0, 0; selp.u32 r1, 0, 1, p;
NEXT: add.u32 i, i, 1; setp.lt.u32 p, i, 9; @p bra STEP;"""
"""A state machine: nine steps, each a branch by the lane's state."""
LOOPS = """and.b32 n, w0, 31; mov.u32 i, 0;
LOOP: setp.ge.u32 p, i, n; @p bra LEFT;
mad.lo.u32 r0, r0, 3, w1; add.u32 i, i, 1; bra LOOP;
LEFT: bar.warp.sync -1; shfl.sync.bfly.b32 r1, r0, 1, 31, -1;
and.b32 t, w2, 0xFF; add.u32 t, t, 1; mov.u32 i, 0;
COLLATZ: setp.eq.u32 p, t, 1; @p bra ONE;
and.b32 u, t, 1; setp.eq.u32 q, u, 0; @q bra HALF;
mad.lo.u32 t, t, 3, 1; add.u32 i, i, 1; setp.gt.u32 q, t, 4000; @q bra.uni ONE;
bra COLLATZ;
HALF: shr.u32 t, t, 1; add.u32 i, i, 1; bra COLLATZ;
ONE: mov.u32 r2, i; and.b32 n, w3, 7; mov.u32 i, 0;
OUTER: setp.gt.u32 p, i, n; @p bra END;
mov.u32 t, 0;
INNER: add.u32 r3, r3, t; xor.b32 r3, r3, i; setp.gt.u32 p, r3, 300; @p bra END;
add.u32 t, t, 1; setp.lt.u32 p, t, i; @p bra INNER;
add.u32 i, i, 1; bra OUTER;
END:"""
"""A count per lane; halves and threes with two ways back; two levels of which the inner one leaves both."""
FUNCTIONS = """.func (.param .b32 result) {name}_mix
(.param .b32 x, .param .b64 y, .param .b32 z, .param .align 8 .b8 pair[16])
{{
.reg .b32 a, b, c, d; .reg .b64 e, f; .reg .pred p;
ld.param.u32 a, [x]; ld.param.u64 e, [y]; ld.param.u32 b, [z]; ld.param.u32 c, [pair+4]; ld.param.u64 f, [pair+8];
setp.lt.s32 p, a, 0; @p bra NEGATIVE;
xor.b64 e, e, f; cvt.u32.u64 d, e; mad.lo.u32 a, a, b, d; st.param.b32 [result], a; ret;
NEGATIVE: sub.u32 a, b, c; st.param.b32 [result], a; ret;
}}
.func (.param .align 8 .b8 result[16]) {name}_pair (.param .b32 x, .param .b32 y)
{{
.reg .b32 a, b, c; .reg .b64 d;
ld.param.u32 a, [x]; ld.param.u32 b, [y]; mul.wide.u32 d, a, b; add.u32 c, a, b;
st.param.b64 [result], d; st.param.b32 [result+8], c; xor.b32 c, a, b; st.param.b32 [result+12], c; ret.uni;
}}
.func (.param .b32 result) {name}_gcd (.param .b32 x, .param .b32 y)
{{
.reg .b32 a, b, c; .reg .pred p;
ld.param.u32 a, [x]; ld.param.u32 b, [y]; setp.eq.u32 p, b, 0; @p bra DONE;
rem.u32 c, a, b;
{{
.param .b32 x1; .param .b32 y1; .param .b32 result1;
st.param.b32 [x1], b; st.param.b32 [y1], c; call (result1), {name}_gcd, (x1, y1); ld.param.b32 a, [result1];
}}
DONE: st.param.b32 [result], a; ret;
}}
.func (.param .b32 result) {name}_add (.param .b32 x, .param .b32 y)
{{
.reg .b32 a, b;
ld.param.u32 a, [x]; ld.param.u32 b, [y]; add.u32 a, a, b; st.param.b32 [result], a; ret;
}}
.func (.param .b32 result) {name}_sub (.param .b32 x, .param .b32 y)
{{
.reg .b32 a, b;
ld.param.u32 a, [x]; ld.param.u32 b, [y]; sub.u32 a, a, b; st.param.b32 [result], a; ret;
}}
.func {name}_leave (.param .b32 x)
{{
.reg .b32 a; .reg .pred p;
ld.param.u32 a, [x]; setp.eq.u32 p, a, 0; @p exit; ret;
}}
"""
CALLS = """
{{
.param .b32 x; .param .b64 y; .param .b32 z; .param .align 8 .b8 pair[16]; .param .b32 result;
mov.b64 wide, {{w1, w2}}; st.param.b32 [x], w0; st.param.b64 [y], wide; st.param.b32 [z], w3;
st.param.b32 [pair], w1; st.param.b32 [pair+4], w2; mov.b64 wide, {{w3, w0}}; st.param.b64 [pair+8], wide;
call.uni (result), {name}_mix, (x, y, z, pair); ld.param.b32 r0, [result];
}}
and.b32 t, w1, 0xFFF; and.b32 u, w2, 0xFFF;
{{
.param .b32 x; .param .b32 y; .param .b32 result;
st.param.b32 [x], t; st.param.b32 [y], u; call (result), {name}_gcd, (x, y); ld.param.b32 r1, [result];
}}
and.b32 t, w0, 1; setp.eq.u32 p, t, 0; @p bra SKIP;
{{
.param .b32 x; .param .b32 y; .param .align 8 .b8 result[16];
st.param.b32 [x], w2; st.param.b32 [y], w3; call (result), {name}_pair, (x, y);
ld.param.b32 r2, [result+4]; ld.param.b32 t, [result+8]; ld.param.b32 u, [result+12];
}}
xor.b32 r2, r2, t; add.u32 r2, r2, u;
SKIP: and.b32 t, w3, 2; setp.eq.u32 p, t, 0; mov.u64 wide, {name}_add; mov.u64 far, {name}_sub;
selp.b64 wide, wide, far, p;
{{
.param .b32 x; .param .b32 y; .param .b32 result;
SHAPE: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
st.param.b32 [x], w2; st.param.b32 [y], w3; call (result), wide, (x, y), SHAPE; ld.param.b32 r3, [result];
}}"""
"""Parameters of every size, a structure back, recursion that ends lane by lane, calls of some lanes, by addresses."""
LEFT = 0xB6DB6DB6
"""Lanes whose number is no multiple of three: the others have exited."""
_EXCHANGES = f"""mov.u32 mask, {LEFT:#x}; bar.warp.sync mask; activemask.b32 r0;
setp.lt.s32 p, w1, 0; vote.sync.ballot.b32 r1, p, mask; vote.sync.any.pred q, p, mask; selp.u32 t, 1, 0, q;
vote.sync.all.pred q, !p, mask; selp.u32 u, 2, 0, q; or.b32 r2, t, u;
redux.sync.add.u32 t, w2, mask; xor.b32 r2, r2, t; and.b32 t, w3, 1; match.any.sync.b32 t, t, mask; add.u32 r2, r2, t;
elect.sync t|q, mask; selp.u32 u, 64, 0, q; add.u32 r2, r2, u; add.u32 r2, r2, t;
add.u32 u, lane, 1; rem.u32 t, u, 3; setp.eq.u32 p, t, 0; @p add.u32 u, u, 1; and.b32 u, u, 31;
setp.eq.u32 p, u, 0; selp.u32 u, 1, u, p; shfl.sync.idx.b32 r3, w0, u, 31, mask;"""
"""Over the lanes that are left: who they are, votes, a sum, equals, a leader, the next one's word."""
_THIRD = "rem.u32 t, lane, 3; setp.eq.u32 p, t, 0;"
EXITS = {
    "exit": f"{_THIRD} @p exit; {_EXCHANGES}",
    "ret": f"{_THIRD} @p ret; {_EXCHANGES}",
    "branch": f"{_THIRD} @!p bra STAY; st.global.u32 [at], w3; exit; STAY: {_EXCHANGES}",
    "function": f"""rem.u32 t, lane, 3;
{{{{
.param .b32 x; st.param.b32 [x], t; call {{name}}_leave, (x);
}}}}
{_EXCHANGES}""",
}
BARRIERS = """setp.lt.u32 p, tid, 32; @p exit;
setp.eq.u32 p, lane, 5; @p exit;
.shared .align 16 .b8 tile[2048]; mov.u32 t, tile; mad.lo.u32 u, tid, 16, t;
st.shared.v4.u32 [u], {{w0, w1, w2, w3}}; bar.sync 0;
and.b32 u, tid, 32; shl.b32 u, u, 1; xor.b32 u, u, tid; mad.lo.u32 u, u, 16, t;
ld.shared.v4.u32 {{r0, r1, r2, r3}}, [u]; barrier.sync 1;"""
"""A warp has gone, and a lane of each other one: barriers of a CTA wait for those that are left."""
HALVES = """setp.lt.u32 p, lane, 16; @!p bra HIGH;
bar.warp.sync 0xFFFF; activemask.b32 r0; shfl.sync.up.b32 r1, w0, 3, 0, 0xFFFF; redux.sync.max.s32 r2, w1, 0xFFFF;
setp.lt.s32 q, w2, 0; vote.sync.ballot.b32 r3, q, 0xFFFF; bra BOTH;
HIGH: bar.warp.sync 0xFFFF0000; activemask.b32 r0; shfl.sync.down.b32 r1, w0, 5, 31, 0xFFFF0000;
redux.sync.xor.b32 r2, w1, 0xFFFF0000; setp.lt.s32 q, w2, 0; vote.sync.ballot.b32 r3, !q, 0xFFFF0000;
BOTH: bar.warp.sync -1; shfl.sync.bfly.b32 t, w3, 16, 31, -1; xor.b32 r1, r1, t;"""
"""Each half of a warp exchanges words, then all of it."""
SPACES = """.local .align 16 .b8 mine[64]; .reg .b64 base; mov.b64 wide, {{w2, w3}}; cvt.u32.u64 r0, wide;
mov.u64 base, mine; st.local.v4.u32 [mine], {{w0, w1, w2, w3}};
st.local.v2.u64 [mine+16], {{in, out}}; st.local.u8 [mine+32], w3; and.b32 t, w1, 3; mul.wide.u32 wide, t, 4;
add.u64 base, base, wide; ld.local.u32 r1, [base]; ld.local.s8 t, [base+1]; add.u32 r1, r1, t;
cvta.local.u64 far, base; ld.u16 t, [far+2]; xor.b32 r1, r1, t; ld.local.u64 wide, [mine+16]; sub.u64 wide, wide, in;
cvt.u32.u64 t, wide; add.u32 r1, r1, t; ld.local.u8 t, [mine+32]; add.u32 r1, r1, t;
mov.u64 wide, params; cvta.param.u64 far, wide; ld.u32 r2, [far+144]; ld.param.u32 t, [params+148]; add.u32 r2, r2, t;
isspacep.param p, far; selp.u32 t, 1, 0, p; isspacep.param p, out; selp.u32 u, 2, 0, p; or.b32 r3, t, u;
isspacep.global p, far; selp.u32 t, 4, 0, p; or.b32 r3, r3, t; isspacep.shared p, far; selp.u32 t, 8, 0, p;
or.b32 r3, r3, t;"""
"""A thread's own array and parameters, by their spaces and by generic addresses."""
ROUND = """setp.ne.u32 p, w0, 0; setp.lt.s32 q, w1, 0;
bar.cta.sync 1; barrier.cta.sync.aligned 2, 128; barrier.cta.sync 3;
barrier.cta.red.popc.aligned.u32 r0, 4, q; bar.cta.red.popc.u32 t, 5, 128, !q; mad.lo.u32 r0, t, 256, r0;
bar.cta.red.and.pred last, 6, p; selp.u32 r1, 1, 0, last; barrier.cta.red.and.aligned.pred last, 7, q;
selp.u32 t, 2, 0, last; or.b32 r1, r1, t; barrier.cta.red.or.aligned.pred last, 8, 128, q; selp.u32 t, 4, 0, last;
or.b32 r1, r1, t; barrier.cta.red.and.pred last, 9, 128, p; selp.u32 t, 8, 0, last; or.b32 r1, r1, t;
.shared .align 16 .b8 tile[2048]; mov.u32 t, tile; mad.lo.u32 u, tid, 16, t; st.shared.u32 [u], w2;
setp.lt.u32 p, tid, 64; @p bra BRING;
bar.cta.sync 10, 128; xor.b32 u, tid, 64; mad.lo.u32 u, u, 16, t; ld.shared.u32 r2, [u];
barrier.cta.sync.aligned 11, 128; bra DONE;
BRING: bar.cta.arrive 10, 128; barrier.cta.arrive.aligned 11, 128;
DONE: barrier.cta.sync 0, 128;"""
"""Barriers by every spelling with `.cta`: sums, both junctions, and warps that only arrive."""


def control_cases() -> Iterator[Case]:
    bodies = {
        "table": TABLE,
        "machine": MACHINE,
        "loops": LOOPS,
        "barriers": BARRIERS,
        "halves": HALVES,
        "round": ROUND,
    }
    for number, (name, body) in enumerate(bodies.items()):
        yield _case(name, body, "", number)
    yield _case("calls", CALLS, FUNCTIONS, 20)
    yield _case("spaces", SPACES, "", 21)
    for number, (name, body) in enumerate(EXITS.items()):
        yield _case(f"exits/{name}", body, FUNCTIONS if name == "function" else "", 22 + number)
    for name in ("trap", "brkpt"):
        yield _case(name, f"setp.eq.u32 p, tid, 77; @p {name};", "", 30)


def _case(name: str, body: str, functions: str, seed: int) -> Case:
    kernel = f"control_{name.replace('/', '_')}"
    spelled = body.format(name=kernel) if "{" in body else body
    text = HEAD.format(name=kernel, body=spelled, functions=functions.format(name=kernel))
    return Case(f"control/{name}", kernel, 128, random_bytes(128 * 16, 150 + seed), 128 * 16, ptx=text)
