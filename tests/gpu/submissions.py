"""Templates of a mixed load on one GPU: good kernels, wrong numbers, faults, hangs, refusals, what each must get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ptxgym.task import Task, load_task
from ptxgym.verdict import Status
from tests.bad_kernels import BAD

OK, WRONG, FAULT, HANG = Status.OK, Status.WRONG_OUTPUT, Status.RUNTIME_FAULT, Status.HANG
REFUSED, PLAN, BUILD = Status.LAUNCH_ERROR, Status.PLAN_ERROR, Status.COMPILE_ERROR


@dataclass(frozen=True)
class Template:
    """One kind of submission."""

    name: str
    kind: str
    """`good`, `wrong`, `fault`, `hang`, `refused` or `broken` (never reaches a device)."""
    text: str
    weight: int
    """How often it comes, relative to the others."""
    expected: tuple[Status, ...]
    """On a GPU; the first is the rule, others may be had where the hardware decides."""
    emulated: tuple[Status, ...]


HEAD = """#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cassert>
#include <cstdio>
using bf16 = __nv_bfloat16;
__device__ __forceinline__ float dot(const bf16* a, const bf16* b, int K) {
  float sum = 0.0f;
  for (int k = 0; k < K; k += 2) {
    const unsigned x = *reinterpret_cast<const unsigned*>(a + k), y = *reinterpret_cast<const unsigned*>(b + k);
    sum = fmaf(__uint_as_float(x << 16), __uint_as_float(y << 16), sum);
    sum = fmaf(__uint_as_float(x & 0xffff0000u), __uint_as_float(y & 0xffff0000u), sum);
  }
  return sum;
}
"""
KERNEL = "__global__ void kernel(const bf16* A, const bf16* B, bf16* C, int M, int N, int K) {\n"
PLACE = (
    "  const size_t row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;\n"
    "  const size_t at = row * N + column;\n"
    "  const bool first = row + column == 0;\n  const float sum = dot(A + row * K, B + column * K, K);\n"
)
RUN = 'extern "C" void run(const bf16* A, const bf16* B, bf16* C, int M, int N, int K, cudaStream_t stream) {\n'
GRID = "dim3(N / 16, M / 16), dim3(16, 16)"
LAUNCH = f"  kernel<<<{GRID}, 0, stream>>>(A, B, C, M, N, K);\n"


def kernel(body: str, before: str = "", launch: str = LAUNCH) -> str:
    """Return a submission: one thread per element of C, with its `sum`, its place `at`, and whether it is `first`."""
    return f"{HEAD}{before}{KERNEL}{PLACE}{body}\n}}\n{RUN}{launch}}}\n"


def good(task: Task) -> list[Template]:
    """Return the proven solutions, and kernels that do something unusual which is allowed."""
    found = [
        Template(Path(s.file).stem, "good", task.source(s), 3 if s.family == "wgmma" else 2, (OK,), (OK,))
        for s in task.solutions["h100"]
    ]
    workspace = """  float* sums;
  cudaMallocAsync(&sums, sizeof(float) * M * N, stream);
  product<<<dim3(N / 16, M / 16), dim3(16, 16), 0, stream>>>(A, B, sums, N, K);
  rounded<<<M * N / 256, 256, 0, stream>>>(sums, C);
  cudaFreeAsync(sums, stream);
"""
    two_kernels = (
        "__global__ void product(const bf16* A, const bf16* B, float* sums, int N, int K) {\n"
        "  const size_t row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;\n"
        "  sums[row * N + column] = dot(A + row * K, B + column * K, K);\n}\n"
        "__global__ void rounded(const float* sums, bf16* C) {\n"
        "  const size_t at = blockIdx.x * 256 + threadIdx.x;\n  C[at] = __float2bfloat16(sums[at]);\n}\n"
    )
    side = f"""  cudaStream_t side;
  cudaEvent_t fork, join;
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
  cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  cudaEventRecord(fork, stream);
  cudaStreamWaitEvent(side, fork, 0);
  kernel<<<{GRID}, 0, side>>>(A, B, C, M, N, K);
  cudaEventRecord(join, side);
  cudaStreamWaitEvent(stream, join, 0);
"""
    store = "  C[at] = __float2bfloat16(sum);"
    return [
        *found,
        Template("workspace", "good", f"{HEAD}{two_kernels}{RUN}{workspace}}}\n", 2, (OK,), (OK,)),
        Template("side_stream", "good", kernel(store, launch=side), 1, (OK,), (OK,)),
        Template("prints_a_line", "good", kernel(f'{store}\n  if (first) printf("sum %f\\n", sum);'), 1, (OK,), (OK,)),
        Template(
            "prints_a_flood",
            "good",
            kernel(f'{store}\n  if (row == 0) for (int i = 0; i < 64; ++i) printf("score: 1.0 %d %f\\n", i, sum);'),
            1,
            (OK,),
            (OK,),
        ),
    ]


def wrong() -> list[Template]:
    """Return kernels that run clean and compute something else."""
    bodies = {
        "zeros": "  C[at] = __float2bfloat16(0.0f * sum);",
        "scaled": "  C[at] = __float2bfloat16(1.01f * sum);",
        "cut": "  C[at] = __float2bfloat16_rz(sum);",
        "half_written": "  if (row < M / 2) C[at] = __float2bfloat16(sum);",
        "unwritten_column": "  if (column != N - 1) C[at] = __float2bfloat16(sum);",
        "one_nan": "  C[at] = __float2bfloat16(first ? __int_as_float(0x7fffffff) : sum);",
        "last_slice_missing": "  const size_t last = K - 64;\n"
        "  C[at] = __float2bfloat16(sum - dot(A + row * K + last, B + column * K + last, 64));",
        "tiles_swapped": "  C[(row ^ 16) * N + column] = __float2bfloat16(sum);",
        "by_the_clock": "  unsigned long long now;\n"
        '  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));\n'
        "  C[at] = __float2bfloat16(now % 7 ? sum : 0.0f);",
    }
    templates = [Template(name, "wrong", kernel(body), 2, (WRONG,), (WRONG,)) for name, body in bodies.items()]
    mutation = "  C[at] = __float2bfloat16(sum);\n  if (first) const_cast<bf16*>(A)[1] = __float2bfloat16(3.0f);"
    return [
        *templates,
        Template("input_mutation", "wrong", kernel(mutation), 2, (Status.INTEGRITY,), (Status.INTEGRITY,)),
    ]


def faults() -> list[Template]:
    """Return kernels that break, each in another way."""
    store = "  C[at] = __float2bfloat16(sum);\n"
    barrier = """  __shared__ unsigned long long barrier;
  const unsigned b = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  if (threadIdx.x + threadIdx.y == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
  __syncthreads();
  asm volatile("{\\n.reg .pred p;\\nWAIT:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\\n@!p bra WAIT;\\n}"
               ::"r"(b) : "memory");
"""
    odd_copy = """  __shared__ alignas(16) unsigned char to[128];
  __shared__ unsigned long long barrier;
  const unsigned b = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
  const unsigned odd = static_cast<unsigned>(__cvta_generic_to_shared(to)) + 8;
  if (first) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\nfence.proxy.async.shared::cta;" ::"r"(b) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 48, [%2];"
                 ::"r"(odd), "l"(A), "r"(b) : "memory");
    for (volatile int i = 0; i < 10000; i = i + 1) {}
  }"""
    odd_store = """  const char* odd = reinterpret_cast<char*>(C) + 2;
  if (first) asm volatile("st.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(odd), "r"(0) : "memory");"""
    far_read = "  C[at] = __float2bfloat16(sum + dot(B + static_cast<size_t>(N) * K + (1 << 21) * row, B, 64));"
    far_shared = "  extern __shared__ int mine[];\n  if (first) C[at] = __int2bfloat16_rn(mine[1 << 22]);"
    bodies = {
        "write_far": "  if (first) C[1ll << 36] = __float2bfloat16(sum);",
        "write_past_the_end": "  if (at == static_cast<size_t>(M) * N - 1) *reinterpret_cast<int*>(C + at + 1) = 1;",
        "read_past_the_end": far_read,
        "null_pointer": "  if (first) *reinterpret_cast<volatile int*>(16) = 1;",
        "misaligned": odd_store,
        "trap": '  if (first) asm volatile("trap;");',
        "assertion": "  assert(!first);",
        "shared_out_of_bounds": far_shared,
        "misaligned_bulk_copy": odd_copy,
    }
    hangs = {
        "endless_loop": "  for (volatile int i = 0; first; i = i + 1) {}",
        "mbarrier_deadlock": barrier,
        "flag_that_never_comes": "  if (first) while (*reinterpret_cast<volatile unsigned short*>(C + at + 1) != 1) {}",
    }
    budget = (Status.BUDGET, HANG)
    return [
        *(Template(name, "fault", kernel(store + body), 2, (FAULT,), (FAULT,)) for name, body in bodies.items()),
        *(Template(name, "hang", kernel(body + "\n" + store), 1, (HANG,), budget) for name, body in hangs.items()),
    ]


def refusals() -> list[Template]:
    """Return submissions that no device takes, or that never get to one."""
    bare = HEAD + KERNEL + PLACE + "  C[at] = __float2bfloat16(sum);\n}\n" + RUN
    threads = "  kernel<<<dim3(1, 1), dim3(64, 32), 0, stream>>>(A, B, C, M, N, K);\n}\n"
    shared = f"  kernel<<<{GRID}, 240 * 1024, stream>>>(A, B, C, M, N, K);\n}}\n"
    memory = (
        "  void* much;\n  cudaMalloc(&much, 150ull << 30);\n  cudaMemsetAsync(much, 0, 64, stream);\n" + LAUNCH + "}\n"
    )
    cluster = (
        HEAD + KERNEL.replace("__global__", "__global__ __cluster_dims__(16, 2, 1)") + PLACE
        + "  C[at] = __float2bfloat16(sum);\n}\n" + RUN + LAUNCH + "}\n"
    )  # fmt: skip
    unlaunchable = (REFUSED, PLAN)
    bad = {
        "syntax_error": (BUILD,),
        "no_run": (Status.REJECTED,),
        "wrong_signature": (Status.REJECTED,),
        "infinite_template": (BUILD,),
        "empty": (Status.REJECTED,),
        "host_abort": (PLAN,),
        "host_segfault": (PLAN,),
        "host_exit": (PLAN,),
        "reads_device_pointer": (PLAN,),
        "reads_file": (PLAN,),
        "depends_on_time": (PLAN,),
        "launches_nothing": (PLAN,),
    }
    return [
        Template("too_many_threads", "refused", bare + threads, 2, unlaunchable, unlaunchable),
        Template("too_much_shared", "refused", bare + shared, 2, unlaunchable, unlaunchable),
        Template("out_of_memory", "refused", bare + memory, 2, unlaunchable, (*unlaunchable, OK)),
        Template("cluster_too_large", "refused", cluster, 1, unlaunchable, (*unlaunchable, Status.NOT_EMULATED)),
        *(Template(name, "broken", str(BAD[name]), 1, status, status) for name, status in bad.items()),
    ]


def templates() -> list[Template]:
    """Return all of them; names are unique."""
    found = [*good(load_task("gemm")), *wrong(), *faults(), *refusals()]
    assert len({template.name for template in found}) == len(found)
    return found
