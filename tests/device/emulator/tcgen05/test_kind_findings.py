"""Order around products of other kinds than f16, and around copies that decompress: kernels with a mistake, and twins
without it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tcgen05.harness import SCHEDULES, Body, allocated, copy_in, dump, freed, run
from tests.device.emulator.tcgen05.kinds import COMMIT, IMAGE, TMEM_A, Case, instruction, multiply, result, whole

TYPES = {"f8f6f4": ("e4m3", "e2m1"), "tf32": ("tf32", "tf32"), "i8": ("s8", "s8")}
AFTER = "tcgen05.fence::after_thread_sync;"


def case_of(kind: str) -> Case:
    rng = np.random.default_rng(1)
    depth = 8 if kind == "tf32" else 32
    a, b = (rng.integers(0, 3, (rows, depth)).astype(np.float64) for rows in (128, 64))
    return Case(kind, TYPES[kind], a, b, instruction(kind, 128, 64, *TYPES[kind], "s32" if kind == "i8" else "f32"))


def begun(case: Case, issue: str) -> Body:
    return allocated().add(copy_in(IMAGE)).add(case.descriptors()).fenced_sync().thread(0, issue)


@pytest.mark.parametrize("ws", [False, True], ids=["mma", "mma.ws"])
@pytest.mark.parametrize("kind", TYPES)
def test_an_operand_that_is_overwritten_before_the_commit(kind: str, ws: bool) -> None:
    case = case_of(kind)

    def kernel(wait: bool) -> Body:
        body = begun(case, case.issue(ws=ws))
        if wait:
            body.wait()
        return freed(body.thread(32, "st.shared.u32 [data], tid;").wait())

    image = bytes(case.image())
    assert "async.overwrite" in run(kernel(False), image).codes(2)
    assert not run(kernel(True), image).codes()


@pytest.mark.parametrize("kind", TYPES)
def test_sums_that_are_loaded_before_the_commit(kind: str) -> None:
    case = case_of(kind)
    image = bytes(case.image())
    early = freed(begun(case, case.issue()).add(AFTER).add(dump(8)).wait())
    late = freed(begun(case, case.issue()).wait().add(AFTER).add(dump(8)))
    assert "tmem.read_early" in run(early, image, out_bytes=128 * 32).codes(2)
    assert not run(late, image, out_bytes=128 * 32).codes()


COPY = f"tcgen05.cp.cta_group::1.128x256b.b8x16.{{}} [tmem+{TMEM_A}], da;\n"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("type_", "source"), [("e2m1", "b4x16_p64"), ("e3m2", "b6x16_p32"), ("e2m3", "b6x16_p32")], ids=str
)
def test_a_that_a_copy_decompresses_is_a_that_a_product_reads(type_: str, source: str, schedule: str) -> None:
    """The padded elements of shared memory become the containers that A has in tensor memory."""
    rng = np.random.default_rng(2)
    a, b = whole(rng, 128, 32), whole(rng, 16, 32)
    case = Case("f8f6f4", (type_, "e5m2"), a, b, instruction("f8f6f4", 128, 16, type_, "e5m2"))
    done = multiply(case, COPY.format(source) + case.issue(a=f"[tmem+{TMEM_A}]"), 16, schedule=schedule)
    assert done.ok and not done.codes(), done.codes()
    np.testing.assert_array_equal(result(done), a @ b.T)


def test_what_a_copy_decompresses_is_loaded_after_its_commit() -> None:
    case = case_of("f8f6f4")
    image = bytes(case.image())
    copy = COPY.format("b6x16_p32") + COMMIT
    load = f"add.u32 tmem, tmem, {TMEM_A};\n{dump(8)}\nsub.u32 tmem, tmem, {TMEM_A};"
    early = freed(begun(case, copy).add(AFTER).add(load).wait())
    late = freed(begun(case, copy).wait().add(AFTER).add(load))
    assert "tmem.read_early" in run(early, image, out_bytes=128 * 32).codes(2)
    assert not run(late, image, out_bytes=128 * 32).codes()
