"""tcgen05.mma of kinds tf32, f8f6f4 and i8, and .ws, against numpy: types, packing, layouts, signs, sums, lanes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tcgen05.harness import SCHEDULES, fill
from tests.device.emulator.tcgen05.kinds import (
    FLOATS,
    IMAGE,
    START_B,
    TMEM_A,
    Case,
    Place,
    cells,
    instruction,
    multiply,
    numbers,
    result,
    store_rows,
    whole,
)

PAIRS = [("e4m3", kind) for kind in FLOATS] + [(kind, "e5m2") for kind in FLOATS] + [("e2m3", "e3m2"), ("e2m1", "e2m1")]
TIGHT = Place(128, False, 16, 1024)


def narrow(types: tuple[str, str], m: int, n: int, seed: int = 0, **options: object) -> Case:
    rng = np.random.default_rng(seed)
    a, b = whole(rng, m, 32), whole(rng, n, 32)
    return Case("f8f6f4", types, a, b, instruction("f8f6f4", m, n, *types, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_products_of_every_pair_of_types(types: tuple[str, str]) -> None:
    case = narrow(types, 128, 24)
    done = multiply(case, case.issue(), 24)
    assert done.ok and not done.codes(), done.codes()
    np.testing.assert_array_equal(result(done), case.a @ case.b.T)
    assert done.launch.multiply_adds.sum() == 128 * 24 * 32


@pytest.mark.parametrize("tensor_memory", [False, True], ids=["shared", "tmem"])
@pytest.mark.parametrize("kind", FLOATS)
def test_every_code_is_read_as_its_number(kind: str, tensor_memory: bool) -> None:
    """A holds all finite codes, B the unit matrix."""
    table = numbers(kind)
    if kind in ("e4m3", "e5m2"):
        table = np.where(np.abs(table) > {"e4m3": 448, "e5m2": 57344}[kind], 0, table)
    a = np.resize(table, (128, 32))
    case = Case("f8f6f4", (kind, "e4m3"), a, np.eye(32), instruction("f8f6f4", 128, 32, kind, "e4m3"))
    image = case.image(with_a=not tensor_memory)
    if tensor_memory:
        image[: 128 * 32] = cells("f8f6f4", kind, a).tobytes()
    issue = case.issue(a=f"[tmem+{TMEM_A}]" if tensor_memory else "da")
    done = multiply(case, issue, 32, image=image, prepare=store_rows() if tensor_memory else "")
    assert done.ok and not done.codes(), done.codes()
    np.testing.assert_array_equal(result(done), a.astype(np.float32))


def test_nan_and_infinity_of_eight_bits() -> None:
    case = narrow(("e5m2", "e4m3"), 128, 8)
    image = case.image()
    image[0], image[16 * 3 + 1] = 0x7E, 0x7C  # row 0: NaN; row 3, k = 1: infinity (tiles of 8 rows of 16 bytes)
    case.b[:] = 1.0
    image[START_B : START_B + 512] = case.image()[START_B : START_B + 512]
    seen = result(multiply(case, case.issue(), 8, image=image))
    assert np.isnan(seen[0]).all() and (seen[3] == np.inf).all()
    assert np.isfinite(np.delete(seen, (0, 3), axis=0)).all()


@pytest.mark.parametrize(
    "places",
    [
        (TIGHT, Place(64, False, 16, 512)),
        (Place(0, True, 1024, 128), Place(128, True, 2048, 1024)),  # 8 units of 128 rows, each 8 lines of k
        (Place(32, True, 256, 1024), Place(64, True, 512, 1024)),
    ],
    ids=["K", "MN", "MN-swizzled"],
)
@pytest.mark.parametrize("types", [("e4m3", "e5m2"), ("e2m1", "e3m2")], ids="-".join)
def test_layouts_of_eight_bit_operands(types: tuple[str, str], places: tuple[Place, Place]) -> None:
    rng = np.random.default_rng(7)
    a, b = whole(rng, 128, 32), whole(rng, 128, 32)
    idesc = instruction("f8f6f4", 128, 128, *types, transpose=(places[0].mn_major, places[1].mn_major))
    case = Case("f8f6f4", types, a, b, idesc, places)
    done = multiply(case, case.issue(), 128)
    assert done.ok, done.codes()
    np.testing.assert_array_equal(result(done), a @ b.T)


def test_results_in_half_precision_are_rounded_once() -> None:
    """2049 and 2051 lie between halves: ties to even; 2^-15 more, that fp32 would lose, decides as well."""
    a, b = np.zeros((128, 32)), np.ones((8, 32))
    a[:, 0], a[:, 1], a[:, 2] = 448.0, 256.0, 128.0
    b[:, 0], b[:, 1], b[:, 4] = 4.0, 0.5, 2.0**-6
    a[1, 3], a[2, 3], a[3, 3], a[3, 4] = 1.0, 3.0, 1.0, 2.0**-9
    case = Case("f8f6f4", ("e4m3", "e4m3"), a, b, instruction("f8f6f4", 128, 8, "e4m3", "e4m3", "f16"))
    seen = (result(multiply(case, case.issue(), 8), np.uint32) & 0xFFFF).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(seen, (a @ b.T).astype(np.float16))
    assert seen[:4, 0].tolist() == [2048, 2048, 2052, 2050]


def test_sums_keep_twenty_five_places() -> None:
    """As published of Blackwell (arXiv 2511.10909); wgmma on 8-bit elements loses the sixteenths."""
    a, b = np.full((128, 32), 0.25), np.full((8, 32), 0.25)
    a[:, 0] = b[:, 0] = 32.0
    case = Case("f8f6f4", ("e4m3", "e4m3"), a, b, instruction("f8f6f4", 128, 8, "e4m3", "e4m3"))
    assert (result(multiply(case, case.issue(), 8)) == 1024 + 31 / 16).all()


def test_sums_of_wide_ranges_stay_within_a_bracket_of_double_precision() -> None:
    """Any order and rounding of fp32 sums that drop what lies 25 places below the greatest term."""
    rng = np.random.default_rng(1)
    table = numbers("e5m2")[:124]
    a, b = (rng.choice(table, (rows, 32)) * rng.choice([-1.0, 1.0], (rows, 32)) for rows in (128, 16))
    case = Case("f8f6f4", ("e5m2", "e5m2"), a, b, instruction("f8f6f4", 128, 16, "e5m2", "e5m2"))
    greatest = np.abs(a[:, None, :] * b[None]).max(axis=2)
    np.testing.assert_array_less(np.abs(result(multiply(case, case.issue(), 16)) - a @ b.T), greatest * 2.0**-17)


@pytest.mark.parametrize("enable", [False, True])
def test_accumulation_and_signs(enable: bool) -> None:
    case = narrow(("e3m2", "e2m3"), 128, 8, negate=(True, False))
    done = multiply(case, case.issue(enable), 8, before=fill(8, "cvt.rn.f32.u32 {r}, tid;"))
    before = np.arange(128.0)[:, None] if enable else 0
    np.testing.assert_array_equal(result(done), before - case.a @ case.b.T)


def test_disabled_lanes_and_m64() -> None:
    case = narrow(("e4m3", "e2m1"), 64, 16)
    issue = case.issue(more=", {0x00000002, 0, 0x0000ffff, 0}")
    seen = result(multiply(case, issue, 16, before=fill(16, "mov.u32 {r}, 0x42280000;")))
    rows = np.arange(64) // 16 * 32 + np.arange(64) % 16
    want = np.full((128, 16), 42.0)
    want[rows] = case.a @ case.b.T
    want[1] = want[64:80] = 42.0
    np.testing.assert_array_equal(seen, want)


# ---- tf32


@pytest.mark.parametrize(
    "places",
    [
        (Place(), Place()),
        (TIGHT, Place(132, True, 1024, 512)),
        (Place(132, True, 1024, 512), Place(32, False, 16, 256)),
    ],
    ids=["K", "B MN-major", "A MN-major"],
)
def test_tf32(places: tuple[Place, Place]) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-(1 << 10), 1 << 10, (rows, 8)) / 8.0 for rows in (128, 64))
    idesc = instruction("tf32", 128, 64, "tf32", "tf32", transpose=(places[0].mn_major, places[1].mn_major))
    case = Case("tf32", ("tf32", "tf32"), a, b, idesc, places)
    done = multiply(case, case.issue(), 64)
    assert done.ok and not done.codes(), done.codes()
    np.testing.assert_array_equal(result(done), a @ b.T)
    assert done.launch.multiply_adds.sum() == 128 * 64 * 8


def test_tf32_from_tensor_memory_reads_ten_bits_of_the_mantissa() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((128, 8)).astype(np.float32), np.eye(8)
    case = Case("tf32", ("tf32", "tf32"), a, b, instruction("tf32", 128, 8, "tf32", "tf32", negate=(False, True)))
    image = case.image(with_a=False)
    image[: 128 * 32] = a.tobytes()
    before = fill(8, "cvt.rn.f32.u32 {r}, tid;")
    issue = case.issue(True, f"[tmem+{TMEM_A}]").replace(", p;", ", p, 2;")
    done = multiply(case, issue, 8, image=image, prepare=store_rows(), before=before)
    kept = (a.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(np.float64)
    np.testing.assert_allclose(result(done), np.arange(128.0)[:, None] / 4 - kept, rtol=2.0**-22, atol=2.0**-20)


def test_tf32_that_is_mn_major_needs_atoms_of_32_bytes() -> None:
    """K-major ones may have them (table 54), but table 55 has no such layout: that is refused as not emulated."""
    for place, transposed, code in (
        (Place(128, True, 1024, 1024), True, "descriptor.swizzle"),
        (Place(132, False, 16, 1024), False, "emulator.swizzle"),
    ):
        idesc = instruction("tf32", 128, 64, "tf32", "tf32", transpose=(False, transposed))
        case = Case("tf32", ("tf32", "tf32"), np.zeros((128, 8)), np.zeros((64, 8)), idesc, (Place(), place))
        image = bytearray(IMAGE)
        assert multiply(case, case.issue(), 8, image=image).codes(2) == {code}


# ---- i8


@pytest.mark.parametrize("types", [("s8", "s8"), ("u8", "s8"), ("s8", "u8"), ("u8", "u8")], ids="-".join)
def test_integers(types: tuple[str, str]) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.choice(numbers(kind), (rows, 32)) for kind, rows in zip(types, (128, 48), strict=True))
    case = Case("i8", types, a, b, instruction("i8", 128, 48, *types, "s32"))
    done = multiply(case, case.issue(), 48)
    assert done.ok and not done.codes(), done.codes()
    np.testing.assert_array_equal(result(done, np.int32), (a @ b.T).astype(np.int64))


@pytest.mark.parametrize("saturate", [False, True])
def test_integers_wrap_or_saturate(saturate: bool) -> None:
    a, b = np.full((128, 32), 100.0), np.full((8, 32), 100.0)
    a[::2] *= -1
    case = Case("i8", ("s8", "s8"), a, b, instruction("i8", 128, 8, "s8", "s8", "s32", saturate=saturate))
    before = np.where(np.arange(128) % 2, 0x7FFF_FF00, -0x7FFF_FF00)
    value = "and.b32 {r}, tid, 1;\nsetp.eq.u32 q2, {r}, 1;\nselp.b32 {r}, 0x7fffff00, 0x80000100, q2;"
    seen = result(multiply(case, case.issue(True), 8, before=fill(8, value)), np.int32)
    total = before[:, None] + (a @ b.T).astype(np.int64)
    limits = np.iinfo(np.int32)
    np.testing.assert_array_equal(seen, np.clip(total, limits.min, limits.max) if saturate else total.astype(np.int32))


# ---- .ws: layouts D, E and G (9.7.16.10.5), as CUTLASS's tmem_frg_ws states them


def stationary(cells_: np.ndarray, m: int, n: int) -> np.ndarray:
    parts = 128 // m
    return np.concatenate([cells_[part * m : part * m + m, : n // parts] for part in range(parts)], axis=1)


@pytest.mark.parametrize("kind", ["f8f6f4", "f16", "i8", "tf32"])
@pytest.mark.parametrize("m", [32, 64, 128])
def test_weight_stationary_products(m: int, kind: str) -> None:
    rng = np.random.default_rng(m)
    depth = {"f16": 16, "tf32": 8}.get(kind, 32)
    types = {"f8f6f4": ("e2m3", "e4m3"), "f16": ("bf16", "bf16"), "i8": ("s8", "u8"), "tf32": ("tf32", "tf32")}[kind]
    a, b = (rng.integers(0, 4, (rows, depth)).astype(np.float64) for rows in (m, 64))
    d = "s32" if kind == "i8" else "f32"
    case = Case(kind, types, a, b, instruction(kind, m, 64, *types, d))
    issue = case.issue(ws=True).replace(", p;", ", p, 0;" if m == 32 else ", p;")
    done = multiply(case, issue, 64 * m // 128)
    assert done.ok and not done.codes(), done.codes()
    seen = result(done, np.int32 if kind == "i8" else np.float32)
    np.testing.assert_array_equal(stationary(seen, m, 64), a @ b.T)


def test_weight_stationary_a_in_tensor_memory_has_a_copy_for_each_part_of_the_columns() -> None:
    rng = np.random.default_rng(6)
    a, b = whole(rng, 64, 32), whole(rng, 128, 32)
    case = Case("f8f6f4", ("e2m1", "e4m3"), a, b, instruction("f8f6f4", 64, 128, "e2m1", "e4m3"))
    image = case.image(with_a=False)
    image[: 128 * 32] = np.tile(cells("f8f6f4", "e2m1", a), (2, 1)).tobytes()
    done = multiply(case, case.issue(a=f"[tmem+{TMEM_A}]", ws=True), 64, image=image, prepare=store_rows())
    np.testing.assert_array_equal(stationary(result(done), 64, 128), a @ b.T)


SPANS = 1 << 39 | 2 << 40 | 3 << 48
"""Of 9.7.16.4.3's examples: 3 columns are skipped (zero), then 4 used."""
SKIP, USE = "1110000" * 20, "0000111" * 20
MASKS = [
    (128, 0, ["0" * 64]),
    (128, SPANS, [USE]),
    (64, SPANS | 1 << 32, [SKIP, USE]),
    (32, SPANS | 3 << 32 | 1 << 8 | 2 << 16 | 1 << 24, [SKIP, SKIP[1:], USE[2:], USE[1:]]),
]


@pytest.mark.parametrize("kind", ["f8f6f4", "i8"])
@pytest.mark.parametrize(("m", "bits", "parts"), MASKS, ids=[f"example {i + 1}" for i in range(4)])
def test_zero_column_masks(kind: str, m: int, bits: int, parts: list[str]) -> None:
    a, b = np.ones((m, 32)), np.ones((64, 32))
    types, d = (("s8", "s8"), "s32") if kind == "i8" else (("e4m3", "e4m3"), "f32")
    case = Case(kind, types, a, b, instruction(kind, m, 64, *types, d))
    issue = f"mov.b64 off, {bits};\n" + case.issue(ws=True).replace(", p;", ", p, off;")
    done = multiply(case, issue, 64 * m // 128)
    assert done.ok, done.codes()
    seen = stationary(result(done, np.int32 if kind == "i8" else np.float32), m, 64)
    zero = "".join(part[: 64 // len(parts)] for part in parts)
    np.testing.assert_array_equal(seen, np.tile([0.0 if bit == "1" else 32.0 for bit in zero], (m, 1)))


def test_a_shifted_zero_column_mask_is_refused_by_name() -> None:
    case = narrow(("e4m3", "e4m3"), 128, 64)
    issue = f"mov.b64 off, {1 << 56};\n" + case.issue(ws=True).replace(", p;", ", p, off;")
    done = multiply(case, issue, 64)
    assert not done.ok and "not emulated" in done.message("tcgen05.zero_column_mask")


# ---- what a kind does not have


def test_ablation_delivers_zeros() -> None:
    case = narrow(("e4m3", "e4m3"), 128, 8)
    assert not result(multiply(case, case.issue(), 8, zero=True)).any()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_agree(schedule: str) -> None:
    case = narrow(("e4m3", "e5m2"), 128, 16)
    np.testing.assert_array_equal(result(multiply(case, case.issue(), 16, schedule=schedule)), case.a @ case.b.T)


WRONG = [
    ("f8f6f4", instruction("f8f6f4", 128, 8, "e4m3", "e4m3") | 2 << 7, "e4m3 (0)"),
    ("f8f6f4", instruction("f8f6f4", 128, 8, "e4m3", "e4m3", transpose=(False, True)), "transposed"),
    ("tf32", instruction("tf32", 128, 8, "bf16", "tf32"), "tf32 (2)"),
    ("tf32", instruction("tf32", 128, 8, "tf32", "tf32", "f16"), "fp32 (1)"),
    ("i8", instruction("i8", 128, 40, "s8", "s8", "s32"), "multiple of 16"),
    ("i8", instruction("i8", 128, 8, "s8", "s8", "s32", negate=(True, False)), "does not negate"),
    ("i8", instruction("i8", 128, 8, "s8", "s8"), "s32 (2)"),
]


@pytest.mark.parametrize(("kind", "idesc", "words"), WRONG, ids=[words for *_, words in WRONG])
def test_instruction_descriptors_of_other_kinds(kind: str, idesc: int, words: str) -> None:
    case = Case(kind, ("e4m3", "e4m3"), np.zeros((128, 32)), np.zeros((8, 32)), idesc)
    done = multiply(case, case.issue(), 8, image=bytearray(IMAGE))
    assert not done.ok and words in done.message("tcgen05.instruction_descriptor")
