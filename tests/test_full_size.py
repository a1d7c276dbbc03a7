"""The size that is timed, of which the emulator runs a few CTAs: who works at small sizes alone, and who looks so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from ptxgym import full_size
from ptxgym.build import Build, build
from ptxgym.cache import Cache
from ptxgym.device.emulator.device import EmulatorDevice
from ptxgym.device.protocol import Execution
from ptxgym.evaluator import Evaluator
from ptxgym.feedback import render
from ptxgym.judge import full_size as judging
from ptxgym.judge import numbers, sampled_units
from ptxgym.judge.conditions import buffers, conditions
from ptxgym.judge.full_size import FullSize
from ptxgym.plan import LaunchPlan, device_profile
from ptxgym.recording import record_call
from ptxgym.task import Task, expected
from ptxgym.variants import load_variant
from ptxgym.verdict import Status, Verdict

KERNEL = """
#include <cuda_bf16.h>
#include <cuda_runtime.h>
__global__ void gemm(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K) {
  DEVICE
  int n = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y;
  if (n >= N || m >= M) return;
  float sum = 0;
  for (int k = 0; k < K; ++k) sum += float(A[size_t(m) * K + k]) * float(B[size_t(n) * K + k]);
  C[size_t(m) * N + n] = __float2bfloat16(sum);
}
extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K,
                    cudaStream_t stream) {
  HOST
  gemm<<<GRID, dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
}
"""

PERSISTENT = """
#include <cuda_bf16.h>
#include <cuda_runtime.h>
__global__ void gemm(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K) {
  for (int tile = blockIdx.x; tile < (N / 16) * (M / 16); tile += gridDim.x) {
    int n = tile % (N / 16) * 16 + threadIdx.x, m = tile / (N / 16) * 16 + threadIdx.y;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += float(A[size_t(m) * K + k]) * float(B[size_t(n) * K + k]);
    C[size_t(m) * N + n] = __float2bfloat16(sum);
  }
}
extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K,
                    cudaStream_t stream) {
  int sms = 132;
  HOST
  gemm<<<sms, dim3(16, 16), 0, stream>>>(A, B, C, M, N, K);
}
"""
IF_SMALL = "if (M <= 4096 || KEPT || sum == 12345.678f) C[size_t(m)"
"""What it computes is stored at small sizes; the sum is computed in any case."""
QUERY = "cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0); sms = min(sms, (M / 16) * (N / 16));"

SPLIT = """
#include <cuda_bf16.h>
#include <cuda_runtime.h>
__global__ void part(const __nv_bfloat16* A, const __nv_bfloat16* B, float* sums, unsigned* counted, int M, int N,
                     int K) {
  int n = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y;
  float sum = 0;
  for (int k = blockIdx.z * (K / 2); k < (blockIdx.z + 1) * (K / 2); ++k)
    sum += float(A[size_t(m) * K + k]) * float(B[size_t(n) * K + k]);
  atomicAdd(sums + size_t(m) * N + n, sum);
  if (threadIdx.x + threadIdx.y == 0) atomicAdd(counted, 1u);
}
__global__ void finish(const float* sums, const unsigned* counted, __nv_bfloat16* C, int M, int N) {
  DEVICE
  HOST
  for (size_t i = blockIdx.x * 256 + threadIdx.x; i < size_t(M) * N; i += gridDim.x * 256)
    C[i] = __float2bfloat16(sums[i]);
}
extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K,
                    cudaStream_t stream) {
  float* sums;
  unsigned* counted;
  cudaMallocAsync(&counted, 4, stream);
  cudaMemsetAsync(counted, 0, 4, stream);
  cudaMallocAsync(&sums, size_t(M) * N * 4, stream);
  cudaMemsetAsync(sums, 0, size_t(M) * N * 4, stream);
  part<<<dim3(N / 16, M / 16, 2), dim3(16, 16), 0, stream>>>(A, B, sums, counted, M, N, K);
  finish<<<M, 256, 0, stream>>>(sums, counted, C, M, N);
  cudaFreeAsync(sums, stream);
}
"""


HEAD = """
#include <cuda_bf16.h>
#include <cuda_runtime.h>
using bf16 = __nv_bfloat16;
__device__ float dot(const bf16* A, const bf16* B, int m, int n, int K, int from, int to) {
  float sum = 0;
  for (int k = from; k < to; ++k) sum += float(A[size_t(m) * K + k]) * float(B[size_t(n) * K + k]);
  return sum;
}
"""
RUN = """
extern "C" void run(const bf16* A, const bf16* B, bf16* C, int M, int N, int K, cudaStream_t stream) {
  const int splits = K > 1024 ? 4 : 1;
  const dim3 grid(N / 16, M / 16, splits), block(16, 16);
"""

SPLIT_IF_LARGE = (
    HEAD
    + """
__global__ void gemm(const bf16* A, const bf16* B, bf16* C, float* sums, int M, int N, int K) {
  int n = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y, part = K / gridDim.z;
  float sum = dot(A, B, m, n, K, blockIdx.z * part, (blockIdx.z + 1) * part);
  if (gridDim.z == 1) C[size_t(m) * N + n] = __float2bfloat16(sum);
  else sums[(size_t(blockIdx.z) * M + m) * N + n] = sum;
}
__global__ void add_up(const float* sums, bf16* C, int M, int N) {
  size_t i = blockIdx.x * size_t(256) + threadIdx.x, size = size_t(M) * N;
  C[i] = __float2bfloat16(sums[i] + sums[size + i] + sums[2 * size + i] + sums[3 * size + i]);
}
"""
    + RUN
    + """
  float* sums = nullptr;
  if (splits > 1) cudaMallocAsync(&sums, size_t(M) * N * 16, stream);
  gemm<<<grid, block, 0, stream>>>(A, B, C, sums, M, N, K);
  if (splits > 1) add_up<<<M * N / 256, 256, 0, stream>>>(sums, C, M, N);
  if (splits > 1) cudaFreeAsync(sums, stream);
}
"""
)

TICKETS = (
    HEAD
    + """
__global__ void gemm(const bf16* A, const bf16* B, bf16* C, float* sums, int* tickets, int M, int N, int K) {
  int n = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y, part = K / gridDim.z;
  float sum = dot(A, B, m, n, K, blockIdx.z * part, (blockIdx.z + 1) * part);
  if (gridDim.z > 1) {
    __shared__ bool last;
    sums[(size_t(blockIdx.z) * M + m) * N + n] = sum;
    __threadfence();
    __syncthreads();
    int* ticket = tickets + blockIdx.y * gridDim.x + blockIdx.x;
    if (threadIdx.x + threadIdx.y == 0) last = atomicAdd(ticket, 1) == gridDim.z - 1;
    __syncthreads();
    if (!last) return;
    sum = 0;
    for (int z = 0; z < gridDim.z; ++z) sum += __ldcg(sums + (size_t(z) * M + m) * N + n);
  }
  C[size_t(m) * N + n] = __float2bfloat16(sum);
}
"""
    + RUN
    + """
  float* sums = nullptr;
  int* tickets = nullptr;
  cudaMallocAsync(&sums, size_t(M) * N * 4 * splits, stream);
  cudaMallocAsync(&tickets, size_t(M) * N / 64, stream);
  cudaMemsetAsync(tickets, 0, size_t(M) * N / 64, stream);
  gemm<<<grid, block, 0, stream>>>(A, B, C, sums, tickets, M, N, K);
}
"""
)

PARTNERS = (
    HEAD
    + """
__global__ void gemm(const bf16* A, const bf16* B, bf16* C, volatile float* sums, int M, int N, int K) {
  int n = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y;
  size_t at = size_t(m) * N + n;
  if (gridDim.z == 1) return void(C[at] = __float2bfloat16(dot(A, B, m, n, K, 0, K)));
  int part = K / 4;
  float sum = dot(A, B, m, n, K, blockIdx.z * part, (blockIdx.z + 1) * part);
  if (blockIdx.z > 0) return void(sums[blockIdx.z * size_t(M) * N + at] = sum + 1e9f);  // never zero: also the flag
  for (int z = 1; z < 4; ++z) {
    float other;
    while ((other = sums[z * size_t(M) * N + at]) == 0) {}
    sum += other - 1e9f;
  }
  C[at] = __float2bfloat16(sum);
}
"""
    + RUN
    + """
  float* sums = nullptr;
  cudaMallocAsync(&sums, size_t(M) * N * 16, stream);
  cudaMemsetAsync(sums, 0, size_t(M) * N * 16, stream);
  gemm<<<grid, block, 0, stream>>>(A, B, C, sums, M, N, K);
}
"""
)

WMMA = """
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <mma.h>
using namespace nvcuda::wmma;
__global__ void gemm(const __nv_bfloat16* A, const __nv_bfloat16* B, float* C, int M, int N, int K) {
  DEVICE
  const size_t m = blockIdx.y * 16, n = blockIdx.x * 16;
  fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> a;
  fragment<matrix_b, 16, 16, 16, __nv_bfloat16, col_major> b;
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.f);
  for (int k = 0; k < K; k += 16) {
    load_matrix_sync(a, A + m * K + k, K);
    load_matrix_sync(b, B + n * K + k, K);
    mma_sync(sum, a, b, sum);
  }
  store_matrix_sync(C + m * N + n, sum, N, mem_row_major);
}
extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, float* C, int M, int N, int K,
                    cudaStream_t stream) {
  gemm<<<dim3(N / 16, M / 16), 32, 0, stream>>>(A, B, C, M, N, K);
}
"""

ROLES = (
    HEAD
    + """
__device__ int helpers;
__global__ void gemm(const bf16* A, const bf16* B, bf16* C, int M, int N, int K) {
  int n = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y;
  if (blockIdx.z > 0) return void(helpers = blockIdx.x);
  C[size_t(m) * N + n] = __float2bfloat16(dot(A, B, m, n, K, 0, K));
}
"""
    + RUN
    + """
  gemm<<<dim3(N / 16, M / 16, 8), block, 0, stream>>>(A, B, C, M, N, K);
}
"""
)

HELPED = ROLES.replace("M / 16, 8)", "M / 16, M > 4096 ? 2 : 1)")

COPIED = (
    HEAD
    + """
__global__ void gemm(const bf16* A, const bf16* B, bf16* C, int M, int N, int K) {
  int n = blockIdx.x * 16 + threadIdx.x, m = blockIdx.y * 16 + threadIdx.y;
  C[size_t(m) * N + n] = __float2bfloat16(dot(A, B, m, n, K, 0, K));
}
"""
    + RUN
    + """
  bf16* mine = nullptr;
  cudaMallocAsync(&mine, size_t(M) * K * 2, stream);
  cudaMemcpyAsync(mine, A, size_t(M) * K * 2, cudaMemcpyDeviceToDevice, stream);
  gemm<<<dim3(N / 16, M / 16), block, 0, stream>>>(mine, B, C, M, N, K);
}
"""
)


def kernel(device: str = "", host: str = "", grid: str = "dim3(N / 16, M / 16)", text: str = KERNEL) -> str:
    return text.replace("DEVICE", device).replace("HOST", host).replace("GRID", grid)


def storing(text: str, host: str = "") -> str:
    """A kernel that stores elsewhere at the size that is timed, and leaves."""
    variables = "__device__ int mark;\n__device__ float junk[1 << 20];\n__global__"
    return kernel(f"if (M > 4096) {{ {text}; return; }}", host).replace("__global__", variables, 1)


PLACE = "(blockIdx.y * gridDim.x + blockIdx.x) * 256 + threadIdx.y * 16 + threadIdx.x"


@dataclass
class Checker:
    """Checks kernels without judging them at small sizes first."""

    task: Task
    device: EmulatorDevice

    def __call__(self, text: str, task: Task | None = None) -> FullSize:
        task = task or self.task
        built = build(text, declaration=task.signature.declaration(), arch="sm_90a", cache=Cache())
        assert isinstance(built, Build), built
        drawn, profile = conditions(task, "schedules"), device_profile("h100")
        plan = record_call(built, task, drawn.cases[0].axes, profile)
        assert isinstance(plan, LaunchPlan), plan
        execution = self.device.run(built, plan, buffers(task, drawn.cases[0]))
        assert isinstance(execution, Execution), execution
        return full_size.check(built, task, profile, drawn, self.device, execution)


@pytest.fixture(scope="module")
def check(gemm: Task) -> Iterator[Checker]:
    device = EmulatorDevice()
    yield Checker(gemm, device)
    device.close()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (kernel("if (M > 4096) return;"), "1024 of 1024 sampled CTAs of gemm (229,376 in all) end without storing"),
        (kernel("if (M > 4096 && blockIdx.x > 3) return;"), "sampled CTAs of gemm (229,376 in all) end without"),
        (kernel("if (M > 4096) K = 64;"), "wrong: relative error 1"),
        (kernel("if (M > 4096) { C[0] = 1; return; }"), "cannot have written C"),
        (kernel(host="if (M > 4096) M = 128;"), "the 3,584 CTAs of gemm cannot have written C"),
        (storing("mark = 1 + blockIdx.x"), "cannot have written C"),
        (storing(f"junk[({PLACE}) % (1 << 20)] = blockIdx.x + 1"), "cannot have written C"),
        (
            storing("C[0] = 1", "float* space; cudaMallocAsync(&space, 300 << 20, stream);"),
            "stored 2 of its 117,440,512 bytes",
        ),
        (kernel("if (M > 4096) return;", text=SPLIT), "CTAs of finish"),
        (kernel("if (M > 4096 && blockIdx.x % 2) K = 64;"), "wrong: relative error"),
        (kernel("if (M > 4096 && blockIdx.y >= gridDim.y / 2) K = 64;"), "wrong: relative error"),
        (kernel("if (M > 4096 && (blockIdx.x + blockIdx.y) % 2) K = 64;"), "wrong: relative error"),
        (kernel("if (M > 4096 && blockIdx.x < gridDim.x / 2 && blockIdx.y % 2) K = 64;"), "wrong: relative error"),
        (kernel("if (M > 4096 && blockIdx.y >= gridDim.y / 2) return;"), "ended at once, without storing anything"),
        (
            kernel("if (M > 4096 && (blockIdx.x + blockIdx.y) % 2) return;"),
            "229,376 CTAs of gemm cannot have written C",
        ),
        (
            kernel("if (M > 4096 && (blockIdx.x * 7919 + blockIdx.y * 104729) % 10 < 6) return;"),
            "cannot have written C",
        ),
        (
            kernel("if (M > 4096 && blockIdx.y % 3) return;"),
            "cannot have written C: going by the sampled ones, they write",
        ),
        (kernel("if (M > 4096 && blockIdx.y % 2 && threadIdx.x + threadIdx.y) return;"), "cannot have written C"),
        (kernel().replace("C[size_t(m)", IF_SMALL.replace("KEPT", "false")), "they write about 0 % of it"),
        (kernel().replace("C[size_t(m)", IF_SMALL.replace("KEPT", "blockIdx.y % 2")), "cannot have written C"),
        (kernel("if (M > 4096 && threadIdx.y >= 5) return;"), "they write about 31 % of it"),
        (kernel("if (M > 4096 && threadIdx.y >= 12) return;"), "they write about 75 % of it"),
    ],
    ids=[
        *("returns", "mostly returns", "does less", "stores a word", "small grid"),
        *("stores a word elsewhere", "stores as much elsewhere", "has a large workspace", "second launch returns"),
        *("odd columns", "lower half", "chequered", "a quarter"),
        *("lower half returns", "chequered returns", "60 % return", "two thirds return", "odd rows store a word"),
        *("all work in vain", "half work in vain", "a third of each tile", "three quarters of each tile"),
    ],
)
def test_work_left_out_at_the_size_that_is_timed_is_refused(check: Checker, text: str, said: str) -> None:
    found = check(text)
    assert found.wrong is not None and not found.wrong.ok and found.failure is None
    assert said in found.message and "M = 8192, N = 7168, K = 5120" in found.message


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (kernel(), "12 of 229,376 CTAs of gemm were executed; they wrote 3,072 elements of C, which are right"),
        (kernel(grid="dim3(1024, 1024)"), "had nothing to do"),
        (kernel(text=PERSISTENT, host=QUERY), "2 of 16,384 CTAs of gemm were executed; they "),
        (kernel(text=PERSISTENT), "one of 132 CTAs of gemm was executed; it works and had not ended"),
        (kernel(text=SPLIT), "it stores results; their values were not checked"),
        (kernel(text=SPLIT, host="if (*counted < M / 64) return;"), "it stores results; their values were not checked"),
        (kernel(text=SPLIT_IF_LARGE), "it stores results; their values were not checked"),
        (kernel(text=TICKETS), "CTAs combine their results, so their values were not checked"),
        (kernel(text=PARTNERS), "it stores to memory of its own and not its share of C"),
        (kernel(text=ROLES), "it did not write its share of C; others may"),
        (kernel(text=HELPED), "which are right"),
        (
            kernel(grid="dim3((N + 47) / 48, M / 16)").replace("x * 16", "x * 48").replace("(16, 16)", "(48, 16)"),
            "are right",
        ),
        (kernel(text=COPIED), "what was copied before it was not; its values were not checked"),
    ],
    ids=[
        *("plain", "grid for the largest size", "a CTA for each SM", "132 CTAs", "two launches and atomics"),
        *("a second launch waits for all of the first", "split only where K is large", "the last CTA sums up"),
        *("partial sums and who waits for them", "helpers at every size", "helpers at the large size"),
        *("a ragged edge", "a copy before"),
    ],
)
def test_honest_kernels_pass_and_the_note_says_what_was_seen(check: Checker, text: str, note: str) -> None:
    found = check(text)
    assert found.wrong is None and found.failure is None, found.message
    assert note in found.note


def test_eight_products_that_are_lost_at_the_large_size_are_noticed(check: Checker) -> None:
    """C is off by √(8/5120) = 4 % then; where the sum has a gain of half a per cent, BF16's own error is near."""
    dropped = check(kernel().replace("k < K", "k < (K > 1024 ? K - 8 : K)"))
    assert dropped.wrong is not None and 0.03 < dropped.wrong.relative_error < 0.05
    near = check(kernel().replace("(sum)", "(K > 1024 ? 1.005f * sum : sum)"))
    assert near.wrong is None and near.failure is None and "which are right" in near.note


TWICE = (
    kernel(
        "const int depth = DEPTH;",
        "void* mark; cudaMallocAsync(&mark, 4, stream); touch<<<1, 1, 0, stream>>>((int*)mark);",
    )
    .replace("k < K", "k < depth")
    .replace("__global__", "__global__ void touch(int* at) { *at = 1; }\n__global__", 1)
)


@pytest.mark.parametrize(("depth", "wrong"), [("K > 1024 ? 64 : K", True), ("K", False), ("64", False)])
def test_who_computes_little_at_the_large_size_alone_is_refused_in_several_launches_too(
    check: Checker, depth: str, wrong: bool
) -> None:
    """K is 5120 at the size that is timed. Who computes as little at small sizes is judged by its numbers there."""
    found = check(TWICE.replace("DEPTH", depth))
    if wrong:
        assert found.wrong is not None and "about 1.2 % of the multiply-adds" in found.message
    else:
        assert found.wrong is None and found.failure is None, found.message


def test_faults_and_refused_calls_are_failures(check: Checker) -> None:
    fault = check(kernel("if (M > 4096) C += size_t(M) * N;")).failure
    assert fault is not None and (fault.status, fault.code) == (Status.RUNTIME_FAULT, "full_size.runtime_fault")
    assert "At the size that is timed" in fault.message and "past the end of C" in fault.message
    call = check(kernel(host="if (M > 4096) return;")).failure
    assert call is not None and call.code == "plan.no_launch" and call.message.startswith("At the size that is timed")
    grid = check(kernel(grid="dim3(1, (M / 16) * (N / 16))")).failure
    assert grid is not None and grid.status is Status.LAUNCH_ERROR, "65,535 is the most along y"


def test_what_the_emulator_refuses_at_the_large_size_alone_is_not_emulated(check: Checker) -> None:
    """Two kernels, of which the host code launches one; only what is launched is decoded."""
    other = '__global__ void large(__nv_bfloat16* C) { asm volatile("FORM" :: "l"(C)); }\nextern'
    text = kernel(host="if (M > 4096) return void((large<<<1, 1, 0, stream>>>(C)));").replace("extern", other, 1)
    refused = check(text.replace("FORM", "discard.global.L2 [%0], 128;")).failure
    assert refused is not None and (refused.status, refused.code) == (Status.NOT_EMULATED, "emulator.not_emulated")
    assert refused.message.startswith("At the size that is timed (M = 8192, N = 7168, K = 5120): ")
    assert "discard.global.L2" in refused.message
    word = check(text.replace("FORM", "{ .reg .b16 zero; mov.b16 zero, 0; st.global.b16 [%0], zero; }"))
    assert word.failure is None and word.wrong is not None, "the control: it is executed, and writes a word"
    idle = check(text.replace("FORM", "prefetch.global.L2 [%0];"))
    assert idle.failure is None and "1 of 1 sampled CTAs of large (1 in all) end without storing" in idle.message


DONE = PERSISTENT.replace("__global__", "__device__ unsigned done[256];\n__global__", 1).replace(
    "  for (int tile", "  if (threadIdx.x + threadIdx.y == 0) done[blockIdx.x] = 1;\n  for (int tile", 1
)


def test_a_kernel_that_counts_on_the_sms_of_its_gpu_is_not_accused_on_a_larger_one(check: Checker) -> None:
    """At most 256 CTAs: right wherever they are as many as SMs. No GPU has more."""
    found = check(kernel(text=DONE, host=QUERY))
    assert found.failure is None and found.wrong is None, found
    assert "one of 132 CTAs of gemm was executed; it wrote " in found.note and "are right" in found.note
    assert "; refused as on a GPU of 16,384 SMs, which does not exist, but not as on the task's: " in found.note
    assert "past the end of done" in found.note


@pytest.mark.parametrize(
    ("text", "device", "said"),
    [
        (PERSISTENT, "K = 64;", "wrong: relative error"),
        (PERSISTENT, "C += size_t(M) * N;", "past the end of C"),
        (PERSISTENT, "return;", "132 in all) end without storing anything"),
        (DONE, "K = 64;", "wrong: relative error"),
        (DONE, "return;", "the 132 CTAs of gemm cannot have written C"),
    ],
)
def test_what_a_persistent_kernel_does_wrong_on_its_own_gpu_is_refused(
    check: Checker, text: str, device: str, said: str
) -> None:
    found = check(
        kernel(text=text.replace("  for (int tile", f"  if (M > 4096) {device}\n  for (int tile", 1), host=QUERY)
    )
    message = found.failure.message if found.failure is not None else found.message
    assert found.refused and said in message and "16,384" not in message, found


LOOP = 'asm volatile("{ .reg .pred big; setp.gt.s32 big, %0, 4096;\\nwait: @big bra wait; }" :: "r"(M));'
SPIN = """
  __shared__ volatile int ready;
  ready = M <= 4096;
  while (!ready) {}
"""
BARRIER = """
  __shared__ alignas(8) unsigned long long ready;
  unsigned at = unsigned(__cvta_generic_to_shared(&ready));
  if (threadIdx.x + threadIdx.y == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at));
  __syncthreads();
  if (M <= 4096 && threadIdx.x + threadIdx.y == 0)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at) : "memory");
  asm volatile("{ .reg .pred done;\\nwait:\\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;"
               " @!done bra wait; }" :: "r"(at) : "memory");
"""


READS = "if (float(A[threadIdx.x]) > 1e30f) return;"


@pytest.mark.parametrize(
    "device",
    [LOOP, SPIN, BARRIER, READS + LOOP, READS + BARRIER],
    ids=["loop", "shared", "mbarrier", "loop after a load", "mbarrier after a load"],
)
def test_ctas_that_hang_whatever_others_do_are_refused(check: Checker, device: str) -> None:
    hang = check(kernel(device)).failure
    assert hang is not None and (hang.status, hang.code) == (Status.HANG, "full_size.hang"), hang
    assert "At the size that is timed" in hang.message and "nothing that they could write" in hang.message
    assert check(kernel(device.replace("4096", "1000000"))).failure is None, "the control: no such size"


COPIES = """
  if (M > 4096 && blockIdx.z == COPIER) {
    for (size_t i = threadIdx.y * 16 + threadIdx.x; i < size_t(M) * K; i += 256) copy[i] = A[i];
    return;
  }
  if (blockIdx.z > 0 && M <= 4096) return;"""


@pytest.mark.parametrize("copier", ["0", "1"])
def test_a_cta_that_reads_inputs_and_stores_for_long_is_no_hang(check: Checker, copier: str) -> None:
    """It may have another work than the others: half of these copy an input, and multiply nothing in their budget."""
    text = kernel(COPIES, grid="dim3(N / 16, M / 16, 2)")
    text = text.replace("__global__", "using bf16 = __nv_bfloat16;\n__global__", 1)
    text = text.replace("int M, int N, int K) {", "bf16* copy, int M, int N, int K) {", 1)
    text = text.replace("B, C, M, N, K);", "B, C, copy, M, N, K);").replace("COPIER", copier)
    found = check(
        text.replace("  gemm<<<", "  bf16* copy; cudaMallocAsync(&copy, size_t(M) * K * 2, stream);\n  gemm<<<")
    )
    assert found.failure is None and found.wrong is None, found
    assert "works and had not ended within its share of instructions" in found.note, found.note


def test_a_cta_that_did_not_end_is_not_told_among_those_that_are_right(check: Checker) -> None:
    """Even or odd columns of the grid wait for the last element, so that the first or the second sampled CTA does."""
    polls = "volatile unsigned short* last = (unsigned short*)C + size_t(M) * N - 1;"
    polls += "if (M > 4096 && blockIdx.x % 2 == WHO) while (*last == 0) {}"
    notes = sorted(check(kernel(polls.replace("WHO", who))).note.split("beyond a sample: ")[1] for who in "01")
    was = "one of 229,376 CTAs of gemm was executed; "
    assert notes[0].startswith(f"{was}it waits for others"), notes
    assert notes[1].startswith(f"{was}it wrote 256 elements of C, which are right; CTA "), notes
    assert notes[1].endswith(" of gemm waits for others, which were not executed, and what it computes was not checked")


def test_a_long_launch_before_the_work_is_no_hang(check: Checker) -> None:
    """It reads nothing that others could write, and does none of the task's multiply-adds in all of its budget."""
    loop = "for (int i = 0; n > 4096 && i < 2000000; ++i) { WORK *(volatile int*)at = i; }"
    loop = loop.replace("WORK", 'asm volatile("add.s32 %0, %0, 1;" : "+r"(n));' * 20)
    text = TWICE.replace("DEPTH", "K").replace("int* at)", "int* at, int n)").replace("(int*)mark)", "(int*)mark, M)")
    found = check(text.replace("*at = 1;", loop + " *at = 1;"))
    assert found.failure is None and found.wrong is None, found.message
    alone = f"{{ int n = M; int* at = (int*)C; {loop} }}"
    hang = check(kernel().replace("  int n =", f"  {alone}\n  int n =", 1)).failure
    assert hang is not None and hang.code == "full_size.hang", "the control: it is all that the only launch did"


def test_ctas_that_wait_for_what_others_write_are_not_refused(check: Checker) -> None:
    polls = "volatile __nv_bfloat16* last = C + size_t(M) * N - 1; if (M > 4096) while (float(*last) == 0) {}"
    found = check(kernel(polls.replace("float(*last)", "*(volatile unsigned short*)last")))
    assert found.failure is None and found.wrong is None
    assert "waits for others, which were not executed" in found.note, found.note


@pytest.mark.parametrize("variant", ["nn-bias", "tt", "ragged-residual", "fp32"])
def test_layouts_types_and_epilogues_are_compared_as_they_lie(check: Checker, gemm: Task, variant: str) -> None:
    task = load_variant(gemm, variant)
    note = check(task.source(expected(task, "h100")[-1]), task).note
    assert ": 12 of " in note and note.endswith("they wrote 3,072 elements of C, which are right"), note


def test_stores_of_fragments_are_stores(check: Checker, gemm: Task) -> None:
    task = load_variant(gemm, "fp32")
    honest = check(kernel(text=WMMA), task)
    assert honest.wrong is None and "they wrote 3,072 elements of C, which are right" in honest.note
    early = check(kernel("if (M > 4096) return;", text=WMMA), task)
    assert early.wrong is not None and "1024 of 1024 sampled CTAs of gemm" in early.message


def test_verdict_of_a_kernel_that_returns_early(evaluator: Evaluator) -> None:
    text = kernel("if (M > 4096) return;")
    verdict: Verdict = evaluator.evaluate(text, "gemm")
    assert (verdict.status, verdict.code, verdict.score) == (
        Status.WRONG_OUTPUT, "judge.wrong_at_full_size", pytest.approx(0.05),
    )  # fmt: skip
    assert verdict.evidence is not None and not verdict.evidence.target_ok
    head = render(verdict, text).splitlines()[:2]
    assert head[1].startswith("Right at small sizes, but at the size that is timed")


def test_periods_differ_by_input_and_are_pages(gemm: Task) -> None:
    periods = sampled_units.patterns(gemm, gemm.workloads["hardware"].axes, 1)
    assert [data.nbytes for data in periods.values()] == [251 * 4096, 257 * 4096]
    values = numbers.bf16_values(periods["A"].view(np.uint16))
    assert abs(values.mean()) < 0.01 and abs(values.std() - 1) < 0.01
    small = sampled_units.patterns(gemm, gemm.workloads["schedules"].axes, 1)
    assert small["A"].nbytes == 128 * 320 * 2


def test_budget_follows_the_rate_of_the_small_run_within_bounds(gemm: Task, check: Checker) -> None:
    built = build(kernel(), declaration=gemm.signature.declaration(), arch="sm_90a", cache=Cache())
    assert isinstance(built, Build)
    axes, small = gemm.workloads["hardware"].axes, gemm.workloads["emulation"].axes
    plan = record_call(built, gemm, axes, device_profile("h100"))
    assert isinstance(plan, LaunchPlan)

    def allowed(instructions: int) -> int:
        return sampled_units.budgets(gemm, axes, plan, small, Execution(buffers={}, warp_instructions=instructions))[0]

    work = 16 * 16 * 5120  # of one CTA; the small run does 75,497,472
    assert allowed(13_000_000) == int(2 * 13_000_000 * work / 75_497_472)
    assert allowed(1) == 200_000 and allowed(10**12) == 40_000_000


def test_results_that_several_ctas_combine_are_not_compared() -> None:
    assert judging.combines(["add.f32", "atom.global.add.f32"])
    assert judging.combines(["cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"])
    assert not judging.combines(["atom.shared.add.u32", "st.global.b32"])
    for form in ("ld.acquire.gpu.global.u32", "ld.global.acquire.gpu.b32", "fence.acq_rel.gpu", "membar.gl"):
        assert judging.combines([form]), form
    for form in ("ld.acquire.cta.global.u32", "mbarrier.arrive.release.cluster.shared::cluster.b64", "membar.cta"):
        assert not judging.combines([form]), form
    assert not judging.combines(["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"])


def test_four_sampled_ctas_lie_in_all_quarters_and_parities_of_the_grid(gemm: Task, check: Checker) -> None:
    built = build(kernel(), declaration=gemm.signature.declaration(), arch="sm_90a", cache=Cache())
    assert isinstance(built, Build)
    plan = record_call(built, gemm, gemm.workloads["hardware"].axes, device_profile("h100"))
    assert isinstance(plan, LaunchPlan)
    columns, rows, _ = plan.launches[0].grid
    for seed in range(20):
        tried = [sampled_units.units(plan, seed)[0][:1], *sampled_units.further_units(plan, seed, 4)]
        assert len(tried) == 4 and len(tried[1]) == sampled_units.CANDIDATES
        places = [(unit % columns, unit // columns) for unit, *_ in tried]
        for at, size in ((0, columns), (1, rows)):
            assert {place[at] % 2 for place in places} == {place[at] >= size // 2 for place in places} == {0, 1}
        assert (
            len({(x % 2, y % 2) for x, y in places})
            == len({(x >= columns // 2, y >= rows // 2) for x, y in places})
            == 4
        )
        assert all(0 <= unit < columns * rows for units in tried for unit in units)


def test_how_many_ctas_are_compared_follows_what_they_cost(gemm: Task, check: Checker) -> None:
    built = build(kernel(), declaration=gemm.signature.declaration(), arch="sm_90a", cache=Cache())
    assert isinstance(built, Build)
    axes, small = gemm.workloads["hardware"].axes, gemm.workloads["emulation"].axes
    plan = record_call(built, gemm, axes, device_profile("h100"))
    assert isinstance(plan, LaunchPlan)

    def compared(instructions: int) -> int:
        execution = Execution(buffers={}, warp_instructions=instructions)
        return sampled_units.comparisons(gemm, axes, plan, small, execution)

    work = 16 * 16 * 5120  # of one CTA; the small run does 75,497,472
    assert compared(75_497_472 * 2_000_000 // work) == 5  # 2 million warp instructions each, 10 million a second
    assert compared(1) == 12 and compared(10**12) == 2
