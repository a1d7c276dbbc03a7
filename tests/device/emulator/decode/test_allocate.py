"""Sharing places changes nothing that a thread can read: random programs run on virtual registers and on places."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.device.emulator import ir
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.decode_allocate import Allocation, allocate
from ptxgym.device.emulator.decode_grammar import FIELD, Row
from tests.device.emulator.decode.support import kernel

SIZES = {1: 4, 2: 128, 4: 128, 8: 256, 16: 512}


def row(op: str, **fields: int) -> Row:
    made = [-1 if name in ("guard", "d", "d2", "a", "b", "c", "e") else 0 for name in FIELD]
    made[FIELD["op"]] = ir.OP[op]
    for name, value in fields.items():
        made[FIELD[name]] = value
    return made


def program(chance: random.Random) -> tuple[list[Row], list[int], dict[int, int], list[int]]:
    """Random instructions over few registers of each width, with branches anywhere, guards, vectors and constants."""
    widths, offset = {}, 0
    for width in (1, 2, 4, 8, 16):
        for _ in range(chance.randint(2, 5)):
            widths[offset] = width
            offset += SIZES[width]
    of = {width: [o for o in widths if widths[o] == width] for width in SIZES}
    fixed = [of[4][0], of[8][0]]
    length, pool, rows = chance.randint(3, 24), [], []
    pick = lambda width: chance.choice([o for o in of[width] if o not in fixed])  # noqa: E731
    for _ in range(length):
        guard = {"guard": pick(1), "guard_not": chance.randint(0, 1)} if chance.random() < 0.3 else {}
        kind = chance.randrange(7)
        if kind == 0:
            rows.append(row("BRA", target=chance.randint(0, length), **guard))
        elif kind == 1:
            rows.append(
                row("EXIT", **guard)
                if chance.random() < 0.4
                else row("SETP", d=pick(1), a=pick(4), b=chance.choice(of[4]))
            )
        elif kind == 2:
            width, count = chance.choice([4, 8]), 2
            loads = chance.random() < 0.5
            rows.append(row("LD" if loads else "ST", vec=len(pool), nvec=count, a=chance.choice(of[8]), **guard))
            pool += chance.sample([o for o in of[width] if o not in fixed] + [-1], count)
        elif kind == 3:
            rows.append(row("BRX", a=pick(4), vec=len(pool), nvec=2, **guard))
            pool += [chance.randint(0, length - 1) for _ in range(2)]
        else:
            width = chance.choice([2, 4, 8, 16])
            rows.append(row("ADD", d=pick(width), a=chance.choice(of[width]), b=chance.choice(of[width]), **guard))
    return [*rows, row("EXIT")], pool, widths, fixed


def run(rows: list[Row], pool: list[int], fixed: list[int], choices: list[int], at: dict[int, int]) -> list[object]:
    """Interpret one thread, with registers kept at `at[register]`; return everything that it reads, in order."""
    store: dict[int, object] = {at[offset]: ("fixed", n) for n, offset in enumerate(fixed)}
    trace: list[object] = []
    pc, step = 0, 0

    def read(offset: int) -> object:
        value = store.get(at[offset], 0) if offset >= 0 else None
        trace.append(value)
        return value

    while pc < len(rows) and step < 80:
        r = dict(zip(FIELD, rows[pc], strict=True))
        op, step, choice = ir.OP_NAMES[r["op"]], step + 1, choices[step % len(choices)]
        if r["guard"] >= 0:
            read(r["guard"])
            if choice & 1:
                pc += 1
                continue
        sources = tuple(read(r[field]) for field in ("a", "b", "c", "e"))
        vector = pool[r["vec"] : r["vec"] + r["nvec"]] if op in ("LD", "ST") else []
        if op == "ST":
            sources += tuple(read(offset) for offset in vector)
        for n, offset in enumerate([r["d"], *(vector if op == "LD" else [])]):
            if offset >= 0:
                store[at[offset]] = (step, n, hash(sources))
        if op == "EXIT":
            break
        pc = r["target"] if op == "BRA" else pool[r["vec"] + (choice >> 1) % 2] if op == "BRX" else pc + 1
    return trace


@settings(max_examples=400, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_thread_reads_the_same(chance: random.Random) -> None:
    rows, pool, widths, fixed = program(chance)
    allocation = allocate(rows, pool, widths, fixed)
    apart = {offset: offset for offset in widths}
    for _ in range(4):
        choices = [chance.randrange(4) for _ in range(17)]
        assert run(rows, pool, fixed, choices, apart) == run(rows, pool, fixed, choices, dict(allocation.places))
    check_places(allocation, widths, fixed)


def check_places(allocation: Allocation, widths: dict[int, int], fixed: list[int]) -> None:
    """Places of different widths never overlap, all lie in the file and are aligned, fixed ones are alone."""
    used: dict[int, int] = {}
    for offset, place in allocation.places.items():
        assert used.setdefault(place, widths[offset]) == widths[offset]
        assert place % min(SIZES[widths[offset]], 128) == 0
    spans = sorted((place, SIZES[width]) for place, width in used.items())
    for (start, size), (following, _) in zip(spans, [*spans[1:], (allocation.reg_bytes, 0)], strict=True):
        assert start + size <= following
    for offset in fixed:
        assert [o for o, place in allocation.places.items() if place == allocation.places[offset]] == [offset]


def places(body: str) -> tuple[ir.DecodedKernel, int]:
    decoded = DecodedModule.parse(kernel(".reg .b32 r<40>; .reg .b64 d; .reg .pred p;\n" + body)).kernel("k")
    return decoded, decoded.reg_bytes // 128


def test_a_chain_needs_two_places() -> None:
    chain = "ld.global.u32 r0, [d];\n" + "".join(f"add.s32 r{n + 1}, r{n}, r{n};\n" for n in range(30))
    decoded, lines = places(chain + "st.global.u32 [d], r30;")
    assert lines == 2 + 2  # two registers that take turns, and the address
    assert all(int(i["d"]) != int(i["a"]) for i in decoded.inst[1:31])


def test_a_value_carried_round_a_loop_keeps_its_place() -> None:
    body = "mov.u32 r0, %tid.x;\nL: add.s32 r1, r0, r0;\nadd.s32 r2, r1, r1;\nsetp.eq.s32 p, r2, r1;\n@p bra L;\n"
    decoded, _ = places(body)
    assert int(decoded.inst["d"][0]) not in (int(decoded.inst["d"][1]), int(decoded.inst["d"][2]))


def test_a_value_that_a_false_guard_leaves_alone_survives_the_loop() -> None:
    body = "mov.u32 r9, 0;\nL: @p mov.u32 r0, %tid.x;\nst.global.u32 [d], r0;\nadd.s32 r1, r9, r9;\n"
    body += "st.global.u32 [d], r1;\nbra L;\n"
    decoded, _ = places(body)
    assert int(decoded.inst["d"][1]) != int(decoded.inst["d"][3])
    unguarded, _ = places(body.replace("@p ", ""))
    assert int(unguarded.inst["d"][1]) == int(unguarded.inst["d"][3])


@pytest.mark.parametrize("registers_of_a", [True, False])
def test_registers_of_asynchronous_matrix_instructions_are_never_shared(registers_of_a: bool) -> None:
    """Nothing reads these accumulators, but the tensor core may still write them later."""
    a = "{r4, r5, r6, r7}" if registers_of_a else "d"
    tail = "0" if registers_of_a else "0, 0"
    body = f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{r0, r1, r2, r3}}, {a}, d, p, 1, 1, {tail};\n"
    body += "".join(f"mov.u32 r{n}, %tid.x;\nst.global.u32 [d], r{n};\n" for n in range(10, 20))
    decoded, _ = places(body)
    wgmma = decoded.inst[0]
    pinned = set(decoded.pool[int(wgmma["vec"]) : int(wgmma["vec"]) + 4].tolist())
    if registers_of_a:
        pinned |= set(decoded.pool[int(wgmma["vec2"]) : int(wgmma["vec2"]) + 4].tolist())
    assert len(pinned) == (8 if registers_of_a else 4)
    assert not pinned & {int(i["d"]) for i in decoded.inst[1:]}
    assert {decoded.register_names[place] for place in pinned} == {f"r{n}" for n in range(len(pinned))}
