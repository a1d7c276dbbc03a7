"""Each constraint of cuTensorMapEncodeTiled, at the limit and beyond; a refusal names field and value."""

from __future__ import annotations

import pytest

from ptxgym.plan import Argument, device_profile, record
from tests.plan.conftest import ARGUMENTS, LIMITS, SUBMISSIONS, compiled, failed, planned

F32 = "a.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;"
U8 = "a.type = CU_TENSOR_MAP_DATA_TYPE_UINT8;"
PLAIN = "a.swizzle = 0;"
RANK3 = "a.rank = 3; a.dim[2] = 4;"
# Statement, and what the refusal says (None: accepted), on an H100. An H200 with driver 580 gives the same answers
# except where marked: there it is laxer than the documentation, which is what counts here.
ROWS: list[tuple[str, str | None]] = [
    ("", None),
    ("a.rank = 0;", "tensorRank = 0"),
    ("a.rank = 1;", None),
    ("a.rank = 5;", None),
    ("a.rank = 6;", "tensorRank = 6"),
    ("a.rank = 1; a.no_strides = true;", "globalStrides"),
    ("a.misalign = 64;", None),
    ("a.misalign = 32;", "not aligned to 64"),  # laxer
    ("a.address = 16;", None),
    ("a.address = 8;", "globalAddress"),
    ("a.dim[0] = 0;", "globalDim[0] = 0"),
    ("a.dim[1] = 1ull << 32;", None),
    ("a.dim[1] = (1ull << 32) + 1;", "globalDim[1] = 4294967297"),
    ("a.strides[0] = 528;", None),
    ("a.strides[0] = 520;", "globalStrides[0] = 520"),
    ("a.strides[0] = 0;", None),
    ("a.strides[0] = (1ull << 40) - 16;", None),
    ("a.strides[0] = 1ull << 40;", "globalStrides[0] = 1099511627776"),
    (f"{RANK3} a.strides[1] = 256;", None),
    (f"{RANK3} a.strides[1] = 1000;", "globalStrides[1] = 1000"),
    ("a.box[1] = 256;", None),
    ("a.box[1] = 257;", "boxDim[1] = 257"),
    ("a.box[1] = 0;", "boxDim[1] = 0"),
    ("a.box[0] = 8;", None),
    ("a.box[0] = 12;", "boxDim[0] = 12 elements of BFLOAT16 are 24 bytes"),
    (f"{PLAIN} a.box[0] = 256;", None),
    ("a.box[0] = 72;", "144 bytes, more than the 128 bytes of swizzle 128B"),
    ("a.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; a.box[0] = 32;", None),
    ("a.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;", "128 bytes, more than the 64 bytes of swizzle 64B"),
    ("a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; a.box[0] = 16;", None),
    ("a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; a.box[0] = 32;", "64 bytes, more than the 32 bytes of swizzle 32B"),
    (f"{F32} a.box[0] = 32;", None),
    (f"{F32}", "256 bytes, more than the 128 bytes"),
    (f"{PLAIN} {RANK3} a.box[0] = 256; a.box[1] = 228; a.box[2] = 2;", None),
    (f"{PLAIN} {RANK3} a.box[0] = 256; a.box[1] = 229; a.box[2] = 2;", "234496 bytes"),
    (f"{RANK3} a.box[1] = 256; a.box[2] = 14; a.steps[1] = 2;", None),
    ("a.steps[1] = 8;", None),
    ("a.steps[1] = 9;", "elementStrides[1] = 9"),
    ("a.steps[0] = 0;", "elementStrides[0] = 0"),
    ("a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B;", "needs compute capability 10.0"),
    ("a.swizzle = 7;", "swizzle = 7"),
    ("a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; a.box[0] = 128;", "needs compute capability 10.0"),
    ("a.type = 16;", "tensorDataType = 16"),
    ("a.promotion = 3;", None),
    ("a.promotion = 4;", "l2Promotion = 4"),
    ("a.fill = 1;", None),
    (f"{U8} a.fill = 1;", "floating-point type, not UINT8"),
    ("a.fill = 2;", "oobFill = 2"),
    ("a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B;", "tensorRank = 2"),
    (f"{RANK3} a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B;", None),
    (f"{RANK3} a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;", None),
    (f"{RANK3} a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;", "swizzle = 128B must be 32B"),  # laxer
    (
        f"{RANK3} a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; a.address = 16;",
        "multiple of 32",
    ),
    (
        f"{RANK3} a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B; "
        "a.strides[0] = 528;",
        "globalStrides[0] = 528 bytes must be a multiple of 32",
    ),
    ("a.interleave = 3;", "interleave = 3"),
]
PACKED = "a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B; a.box[0] = 128;"
SIX_BITS = PACKED.replace("16U4", "16U6")
BLACKWELL_ROWS: list[tuple[str, str | None]] = [
    ("a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; a.box[0] = 128;", None),
    ("a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; a.box[0] = 128; a.dim[0] = 255;", "globalDim[0] = 255"),
    (f"{PACKED}", None),
    (f"{PACKED} a.box[0] = 64;", "boxDim[0] = 64 must be 128"),
    (f"{PACKED} a.dim[0] = 192;", "globalDim[0] = 192 must be a multiple of 128"),
    (f"{PACKED} a.address = 16;", "multiple of 32"),
    (f"{PACKED} a.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;", "swizzle = 64B is not supported"),
    (f"{PACKED} a.fill = 1;", "not 16U4_ALIGN16B"),
    ("a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B;", None),
    ("a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B;", None),
    ("a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B;", None),
    (f"{SIX_BITS} a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B;", None),
    (
        f"{SIX_BITS} a.swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B_FLIP_8B;",
        "is not supported with tensorDataType 16U6",
    ),
]
ALL_ROWS = [(*row, "h100") for row in ROWS] + [(*row, "b200") for row in BLACKWELL_ROWS]


@pytest.fixture(scope="module")
def source() -> str:
    """The submission with one case per row."""
    cases = "\n".join(f"        case {i}: {statement} break;" for i, (statement, _, _) in enumerate(ALL_ROWS))
    return (SUBMISSIONS / "maps.cu").read_text().replace("/* ROWS */", cases)


@pytest.mark.parametrize("row", range(len(ALL_ROWS)))
def test_constraint(source: str, row: int) -> None:
    _, refusal, profile = ALL_ROWS[row]
    outcome = record(compiled(source), ARGUMENTS, {"mode": row, "n": 0}, device_profile(profile), limits=LIMITS)
    if refusal is None:
        assert len(planned(outcome).tensor_maps) == 1
    else:
        failure = failed(outcome)
        assert failure.code == "plan.tensor_map"
        assert failure.message.startswith("cuTensorMapEncodeTiled: ") and refusal in failure.message


def test_the_address_must_be_device_memory(source: str) -> None:
    row = ALL_ROWS.index(("a.address = 16;", None, "h100"))
    small = (Argument("A", "input", 8), *ARGUMENTS[1:])
    outcome = record(compiled(source), small, {"mode": row, "n": 0}, device_profile("h100"), limits=LIMITS)
    assert failed(outcome).code == "plan.pointer_out_of_bounds"
