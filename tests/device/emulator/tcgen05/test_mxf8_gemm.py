"""A whole kernel of Blackwell in CUDA C++: an MXFP8 GEMM with TMA, scale factors in tensor memory and warp roles, as
nvcc compiles it, against numpy in double precision."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ptxgym.build import find_toolchain
from ptxgym.device.emulator.core import LaunchOutcome, LaunchShape, Outcome, PlacedBuffer, Program
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.findings import RECORD_DTYPE
from ptxgym.device.emulator.tensor_map import pack
from ptxgym.plan.model import BufferRef, TensorMap
from tests.device.emulator.tcgen05.harness import SCHEDULES, core
from tests.device.emulator.tcgen05.kinds import encode, numbers
from tests.device.emulator.tcgen05.test_block_scale import scale_image, scale_numbers

M, N, K = 256, 128, 512
PLACES = {name: 0x1000_0000_0000 + (index << 28) for index, name in enumerate(("a", "b", "sfa", "sfb", "d"))}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("mxf8") / "gemm.ptx"
    source = Path(__file__).parent / "mxf8_gemm.cu"
    command = [find_toolchain().nvcc, "-std=c++17", "-O3", "-arch=sm_100a", "-ptx", source, "-o", output]
    subprocess.run(command, check=True, capture_output=True)
    return output.read_text()


def program(text: str) -> Program:
    return core().load(DecodedModule.parse(text, "k").kernel("mxf8_gemm"))


def tiled(name: str, rows: int) -> bytes:
    tensor_map = TensorMap(
        data_type="UINT8",
        global_address=BufferRef(buffer=name),
        global_dim=(K, rows),
        global_strides_bytes=(K,),
        box_dim=(128, 128),
        element_strides=(1, 1),
        swizzle="128B",
    )
    return pack(tensor_map, PLACES[name])


def factors(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[rows / 128, K / 128, 512] bytes."""
    blocks = codes.reshape(-1, 128, K // 128, 4).transpose(0, 2, 1, 3).reshape(-1, 128, 4)
    return np.concatenate([scale_image(block, 0)[:512] for block in blocks])


def launch(text: str, schedule: str) -> tuple[LaunchOutcome, NDArray[np.float32], NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    table = numbers("e4m3")[:126]
    a, b = (rng.choice(table, (rows, K)) * rng.choice([-1.0, 1.0], (rows, K)) for rows in (M, N))
    sfa, sfb = (rng.integers(115, 130, (rows, K // 32)).astype(np.uint8) for rows in (M, N))
    d = np.full(M * N * 4, 0xEE, np.uint8)
    arrays = {"a": encode("e4m3", a), "b": encode("e4m3", b), "sfa": factors(sfa), "sfb": factors(sfb), "d": d}
    buffers = [
        PlacedBuffer(name, PLACES[name], array.reshape(-1), is_input=name != "d") for name, array in arrays.items()
    ]
    shape = LaunchShape(
        grid=(N // 128, M // 128, 1), block=(192, 1, 1), dynamic_smem_bytes=3 * 33 * 1024 + 1024, schedule=schedule
    )
    pointers = struct.pack("<QQQii", PLACES["sfa"], PLACES["sfb"], PLACES["d"], N, K)
    done = program(text).launch(shape, buffers, tiled("a", M) + tiled("b", N) + pointers)
    scales = scale_numbers("ue8m0")
    wide_a, wide_b = (x * np.repeat(scales[s], 32, axis=1) for x, s in ((a, sfa), (b, sfb)))
    return done, d.view(np.float32).reshape(M, N), wide_a @ wide_b.T


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gemm_of_mxfp8(text: str, schedule: str) -> None:
    done, seen, want = launch(text, schedule)
    assert done.outcome is Outcome.OK, done.records
    notes = np.frombuffer(done.records, RECORD_DTYPE)
    # The cells of the scale factors are refilled behind the products that read them, as in CUTLASS.
    assert {(note["code"].decode(), int(note["severity"])) for note in notes} == {("tcgen05.unordered", 0)}
    assert all(b"a tcgen05.cp that writes" in note["message"] and b"which reads" in note["message"] for note in notes)
    np.testing.assert_allclose(seen, want, rtol=1e-5, atol=np.abs(want).max() * 1e-6)
    assert done.multiply_adds.sum() == M * N * K
    assert done.tma_bytes >= (M + N) * K


def test_scale_factors_that_nothing_waits_for_are_found(text: str) -> None:
    """Without the wait for a full stage, the product reads bytes on their way."""
    start = text.index("tcgen05.cp.cta_group")
    wait = text.rindex("mbarrier.try_wait", 0, start)
    end = text.index(";", wait)
    broken = text[:wait] + "setp.eq.u32 p, 0, 0" + text[end:]
    done, *_ = launch(broken, "lazy")
    assert b"async.read_early" in done.records or b"smem.read_early" in done.records, done.records[:2000]
