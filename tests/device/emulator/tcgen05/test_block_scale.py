"""Block-scaled kinds against numpy: scale factors in tensor memory by CUTLASS's layout (tmem_sf_frg), ids, vector
sizes, their types, A in tensor memory, and what is wrong with them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tcgen05.harness import SCHEDULES, Body, allocated, copy_in, freed, run
from tests.device.emulator.tcgen05.kinds import (
    COMMIT,
    IMAGE,
    START_SFA,
    START_SFB,
    TMEM_A,
    TMEM_SFA,
    TMEM_SFB,
    Case,
    Codes,
    Floats,
    cells,
    instruction,
    multiply,
    numbers,
    result,
    store_rows,
    whole,
)

SIZES = {
    ("mxf8f6f4", 1): ".block_scale.scale_vec::1X",
    ("mxf4", 2): ".block_scale.scale_vec::2X",
    ("mxf4nvf4", 2): ".block_scale.scale_vec::2X",
    ("mxf4nvf4", 4): ".block_scale.scale_vec::4X",
}


def scale_numbers(kind: str) -> Floats:
    return 2.0 ** (np.arange(256) - 127.0) if kind == "ue8m0" else numbers("e4m3")[:128]


def scale_image(codes: Codes, byte: int) -> Codes:
    """Shared memory of the factors [rows, count]: 32 rows of 16 bytes, four of them for each of rows r, r + 32, …
    (CUTLASS, Sm1xxBlockScaledBasicChunk); 2 KiB, two copies of 128 rows each 512 bytes long."""
    memory = np.full(2048, 0x55, np.uint8)
    for row, factors in enumerate(codes):
        at = row // 128 * 512 + row % 32 * 16 + row % 128 // 32 * 4 + byte
        memory[at : at + len(factors)] = factors
    return memory


def copies(sides: tuple[tuple[int, int, int], ...] = ((START_SFA, TMEM_SFA, 1), (START_SFB, TMEM_SFB, 2))) -> str:
    """tcgen05.cp of the factors of A and B into all quarters; four columns for each 128 rows."""
    lines = []
    for start, column, blocks in sides:
        for block in range(blocks):
            bits = 1 << 46 | 128 >> 4 << 32
            lines.append(
                f"cvt.u64.u32 off, data;\nadd.u64 off, off, {start + 512 * block};\nshr.u64 off, off, 4;\n"
                f"or.b64 off, off, {bits};\n"
                f"tcgen05.cp.cta_group::1.32x128b.warpx4 [tmem+{column + 4 * block}], off;"
            )
    return "\n".join(lines) + "\n"


SCALES = f", [tmem+{TMEM_SFA}], [tmem+{TMEM_SFB}]"


def scaled(
    kind: str, count: int, n: int, *, types: tuple[str, str] | None = None, ids: tuple[int, int] = (0, 0),
    scale: str = "ue8m0", seed: int = 0,
) -> tuple[Case, tuple[Codes, Codes], Floats]:  # fmt: skip
    """A product, the codes of its factors, and D by numpy in double precision."""
    rng = np.random.default_rng(seed)
    types = types or ("e2m1", "e2m1")
    depth = 32 if kind == "mxf8f6f4" else 64
    a, b = whole(rng, 128, depth), whole(rng, n, depth)
    low, high = (121, 134) if scale == "ue8m0" else (0x20, 0x58)
    factors = tuple(rng.integers(low, high, (rows, count)).astype(np.uint8) for rows in (128, n))
    table = scale_numbers(scale)
    each = depth // count
    wide = [matrix * np.repeat(table[codes], each, axis=1) for matrix, codes in zip((a, b), factors, strict=True)]
    idesc = instruction(kind, 128, n, *types, ids=ids, scale=scale)
    return Case(kind, types, a, b, idesc), (factors[0], factors[1]), wide[0] @ wide[1].T


def image_of(
    case: Case, factors: tuple[Codes, Codes], ids: tuple[int, int] = (0, 0), *, with_a: bool = True
) -> bytearray:
    image = case.image(with_a=with_a)
    for start, codes, byte in zip((START_SFA, START_SFB), factors, ids, strict=True):
        image[start : start + 2048] = scale_image(codes, byte).tobytes()
    return image


def check(case: Case, factors: tuple[Codes, Codes], want: Floats, suffix: str, ids: tuple[int, int] = (0, 0)) -> None:
    n = want.shape[1]
    issue = copies() + case.issue(more=SCALES, suffix=suffix)
    done = multiply(case, issue, n, image=image_of(case, factors, ids))
    assert done.ok and not done.codes(), done.codes()
    np.testing.assert_allclose(result(done)[:, :n], want, rtol=2.0**-18, atol=np.abs(want).max() * 2.0**-18)
    assert done.launch.multiply_adds.sum() == 128 * n * case.a.shape[1]


@pytest.mark.parametrize("types", [("e4m3", "e4m3"), ("e5m2", "e2m1"), ("e3m2", "e2m3")], ids="-".join)
@pytest.mark.parametrize(("n", "ids"), [(8, (0, 0)), (256, (3, 1)), (40, (2, 2))])
def test_mxf8f6f4(n: int, ids: tuple[int, int], types: tuple[str, str]) -> None:
    case, factors, want = scaled("mxf8f6f4", 1, n, types=types, ids=ids)
    check(case, factors, want, suffix=SIZES["mxf8f6f4", 1] if n > 8 else ".block_scale", ids=ids)


@pytest.mark.parametrize(("n", "ids"), [(128, (0, 2)), (16, (2, 0))])
@pytest.mark.parametrize("kind", ["mxf4", "mxf4nvf4"])
def test_two_factors_for_64_elements(kind: str, n: int, ids: tuple[int, int]) -> None:
    case, factors, want = scaled(kind, 2, n, ids=ids)
    check(case, factors, want, suffix=SIZES[kind, 2] if n > 16 else ".block_scale.block32", ids=ids)


@pytest.mark.parametrize("scale", ["ue8m0", "ue4m3"])
@pytest.mark.parametrize("n", [24, 256])
def test_four_factors_for_64_elements(n: int, scale: str) -> None:
    case, factors, want = scaled("mxf4nvf4", 4, n, scale=scale)
    check(case, factors, want, suffix=SIZES["mxf4nvf4", 4] if n > 24 else ".block_scale.block16")


def test_every_scale_factor_is_read_as_its_number() -> None:
    """Rows of ones: D is the factor itself. 255 of ue8m0 and 127 of ue4m3 are NaN."""
    for kind, count, scale, codes in (
        ("mxf8f6f4", 1, "ue8m0", np.arange(128, 256)),
        ("mxf8f6f4", 1, "ue8m0", np.arange(1, 129)),
        ("mxf4nvf4", 4, "ue4m3", np.arange(128)),
    ):
        depth = 32 if count == 1 else 64
        a, b = np.zeros((128, depth)), np.zeros((8, depth))
        a[:, 0] = b[:, 0] = 1.0
        case = Case(kind, ("e2m1", "e2m1"), a, b, instruction(kind, 128, 8, "e2m1", "e2m1", scale=scale))
        ones = 127 if scale == "ue8m0" else 0x38
        factors = (np.full((128, count), ones, np.uint8), np.full((8, count), ones, np.uint8))
        factors[0][:, 0] = codes
        issue = copies() + case.issue(more=SCALES, suffix=SIZES[kind, count])
        seen = result(multiply(case, issue, 8, image=image_of(case, factors)))
        want = scale_numbers(scale)[codes]
        want = np.where(codes == (255 if scale == "ue8m0" else 127), np.nan, want).astype(np.float32)
        np.testing.assert_array_equal(seen, np.tile(want[:, None], (1, 8)))


@pytest.mark.parametrize(
    ("kind", "count", "type_"), [("mxf8f6f4", 1, "e2m1"), ("mxf4", 2, "e2m1"), ("mxf8f6f4", 1, "e3m2")]
)
def test_a_in_tensor_memory(kind: str, count: int, type_: str) -> None:
    case, factors, want = scaled(kind, count, 16, types=(type_, "e2m1"))
    image = image_of(case, factors, with_a=False)
    image[: 128 * 32] = cells(kind, type_, case.a).tobytes()
    issue = copies() + case.issue(a=f"[tmem+{TMEM_A}]", more=SCALES, suffix=SIZES[kind, count])
    done = multiply(case, issue, 16, image=image, prepare=store_rows())
    assert done.ok and not done.codes(), done.codes()
    np.testing.assert_allclose(result(done), want, rtol=2.0**-18, atol=np.abs(want).max() * 2.0**-18)


def test_accumulation_of_packed_elements() -> None:
    case, factors, want = scaled("mxf4", 2, 8)
    issue = copies() + case.issue(more=SCALES, suffix=SIZES["mxf4", 2]).replace(COMMIT, "")
    issue += case.issue(True, more=SCALES, suffix=SIZES["mxf4", 2])
    seen = result(multiply(case, issue, 8, image=image_of(case, factors)))
    np.testing.assert_allclose(seen, 2 * want, rtol=2.0**-18, atol=np.abs(want).max() * 2.0**-18)


# ---- mistakes, and the same kernels without them


def codes_of(prepare: str, issue: str, schedule: str = "fair", case_seed: int = 0) -> set[str]:
    case, factors, _ = scaled("mxf4", 2, 8, seed=case_seed)
    text = issue.replace("PRODUCT", case.issue(more=SCALES, suffix=SIZES["mxf4", 2]))
    return multiply(case, text, 8, image=image_of(case, factors), prepare=prepare, schedule=schedule).codes()


STORE = (
    f"add.u32 r1, tmem, rowbits;\nmov.u32 r4, 0x7f7f7f7f;\n"
    f"tcgen05.st.sync.aligned.32x32b.x4.b32 [r1+{TMEM_SFA}], {{r4, r4, r4, r4}};\n"
    f"tcgen05.st.sync.aligned.32x32b.x1.b32 [r1+{TMEM_SFB}], {{r4}};\n"
)
WAIT = "tcgen05.wait::st.sync.aligned;\n"


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_factors_that_are_stored_must_be_waited_for(schedule: str) -> None:
    assert codes_of(STORE + WAIT, "PRODUCT", schedule) == set()
    assert "tmem.read_early" in codes_of(STORE, "PRODUCT", schedule)


def test_factors_that_nothing_wrote() -> None:
    assert codes_of("", copies() + "PRODUCT") == set()
    assert codes_of("", copies(((START_SFA, TMEM_SFA, 1),)) + "PRODUCT") == {"tmem.uninitialised"}


def test_factors_that_one_quarter_lacks() -> None:
    """A copy to one quarter only (128x128b of 32 rows and others): its other quarters hold something else."""
    other = copies().replace("32x128b.warpx4", "128x128b")
    assert codes_of("", other + "PRODUCT") == {"tmem.scale_copies"}


def test_overwriting_factors_before_the_product_is_over() -> None:
    case, factors, _ = scaled("mxf4", 2, 8)
    product = copies() + case.issue(more=SCALES, suffix=SIZES["mxf4", 2])

    def kernel(wait: bool) -> Body:
        body = allocated().add(copy_in(IMAGE)).add(case.descriptors()).fenced_sync().thread(0, product)
        if wait:
            body.wait().add("tcgen05.fence::after_thread_sync;")
        return freed(body.add(STORE + WAIT).wait())

    image = bytes(image_of(case, factors))
    assert "tmem.overwrite" in run(kernel(False), image).codes(2)
    assert not run(kernel(True), image).codes()


WRONG = [
    ("mxf8f6f4", 1, instruction("mxf8f6f4", 128, 8, "e4m3", "e4m3", scale="ue4m3"), "ue8m0"),
    ("mxf4", 2, instruction("mxf4", 128, 8, "e2m1", "e2m1", ids=(1, 0)), "half word"),
    ("mxf4nvf4", 4, instruction("mxf4nvf4", 128, 8, "e2m1", "e2m1", ids=(0, 2)), "whole word"),
    ("mxf4nvf4", 2, instruction("mxf4nvf4", 128, 8, "e2m1", "e2m1", scale="ue4m3"), "32 elements"),
    ("mxf4", 2, instruction("mxf4", 128, 8, "e2m1", "e2m1") | 1 << 31, "sm_103a"),
    ("mxf4", 2, instruction("mxf4", 128, 8, "e2m1", "e2m1", transpose=(True, False)), "K-major"),
    ("mxf8f6f4", 1, instruction("mxf8f6f4", 256, 8, "e4m3", "e4m3"), "must be 128"),
]


@pytest.mark.parametrize(("kind", "count", "idesc", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_instruction_descriptors_that_a_kind_does_not_have(kind: str, count: int, idesc: int, words: str) -> None:
    case = Case(kind, ("e2m1", "e2m1"), np.zeros((128, 64)), np.zeros((8, 64)), idesc)
    issue = copies() + case.issue(more=SCALES, suffix=SIZES[kind, count])
    done = multiply(case, issue, 8, image=bytearray(IMAGE))
    assert not done.ok and words in done.message("tcgen05.instruction_descriptor")


def test_factors_begin_at_lane_0() -> None:
    case, factors, _ = scaled("mxf4", 2, 8)
    product = case.issue(more=SCALES.replace("tmem+272", "r3"), suffix=SIZES["mxf4", 2])
    for bits, fits in ((1 << 30, True), (16 << 16, False)):  # bits 30 and 31 hold the byte in CUTLASS
        issue = copies() + f"add.u32 r3, tmem, {TMEM_SFA + bits};\n" + product
        done = multiply(case, issue, 8, image=image_of(case, factors))
        assert done.ok == fits and ("tmem.lanes" in done.codes()) != fits
