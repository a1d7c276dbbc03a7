"""Submissions that go wrong, each in one way: data for the tests of bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

HEAD = """#include <cuda_bf16.h>
#include <cuda_runtime.h>
"""
SIGNATURE = (
    'extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K, '
    "cudaStream_t stream)"
)
EMPTY_KERNEL = "__global__ void kernel(__nv_bfloat16* C) { C[threadIdx.x] = __float2bfloat16(0.0f); }\n"
LAUNCH = "  kernel<<<1, 32, 0, stream>>>(C);\n"


def host(body: str, head: str = "") -> str:
    """Return a submission whose host code does `body` before it launches a kernel that writes zeros."""
    return f"{head}{HEAD}{EMPTY_KERNEL}{SIGNATURE} {{\n{body}\n{LAUNCH}}}\n"


def device(body: str, launch: str = "kernel<<<1, 64, 0, stream>>>(C);", head: str = "") -> str:
    """Return a submission whose kernel does `body`."""
    return f"{head}{HEAD}__global__ void kernel(__nv_bfloat16* C) {{\n{body}\n}}\n{SIGNATURE} {{ {launch} }}\n"


def include_oracle(bait: Path) -> str:
    """Try to compile a file of the machine into the submission."""
    return f'#include "{bait}"\n' + host("")


def incbin_oracle(bait: Path) -> str:
    """Try to assemble a file of the machine into the host library."""
    return host("", f'asm(".section .rodata\\nbait: .incbin \\"{bait}\\"\\n.previous");\n')


def has_include_oracle(bait: Path) -> str:
    """Try to learn whether a file of the machine exists."""
    return f'#if __has_include("{bait}")\n#error bait is there\n#endif\n' + host("")


# By name: the text, or a function of a bait file that only the machine's owner may read.
BAD: dict[str, str | Callable[[Path], str]] = {
    "empty": "",
    "blank": " \n\t\n",
    "ten_megabytes": "// " + "x" * (10 << 20) + "\n" + host(""),
    "binary": "\x7fELF\x02\x01\x01\0\0\0\0\0",
    "lone_surrogate": "// \ud800\n" + host(""),
    "syntax_error": host("  int x = ;"),
    "no_run": HEAD + EMPTY_KERNEL,
    "wrong_signature": HEAD
    + EMPTY_KERNEL
    + 'extern "C" void run(__nv_bfloat16* C, cudaStream_t stream) {\n'
    + LAUNCH
    + "}\n",
    "include_outside": include_oracle,
    "incbin_outside": incbin_oracle,
    "has_include_outside": has_include_oracle,
    "infinite_template": "template <int N> struct Deep { static constexpr int value = Deep<N + 1>::value + 1; };\n"
    + host("  volatile int depth = Deep<0>::value;"),
    "endless_constexpr": "constexpr int f(int n) { return f(n + 1); }\n"
    + host("  constexpr int depth = f(0);\n  (void)depth;"),
    "host_abort": host("  abort();", "#include <cstdlib>\n"),
    "host_exit": host("  exit(0);", "#include <cstdlib>\n"),
    "host_segfault": host("  *reinterpret_cast<volatile int*>(8) = 1;"),
    "host_infinite_loop": host("  for (volatile int i = 0;; i = i + 1) {}"),
    "fork_bomb": host("  for (;;) { if (fork() < 0) break; }", "#include <unistd.h>\n"),
    "reads_device_pointer": host("  volatile unsigned short first = *reinterpret_cast<const unsigned short*>(A);"),
    "opens_socket": host(
        "  int s = socket(AF_INET, SOCK_STREAM, 0);\n  if (s >= 0) abort();",
        "#include <cstdlib>\n#include <sys/socket.h>\n",
    ),
    "writes_file": host(
        '  FILE* f = fopen("/tmp/ptxgym-was-here", "w");\n  if (f != nullptr) { fputs("x", f); fclose(f); }',
        "#include <cstdio>\n",
    ),
    "reads_file": host(
        '  FILE* f = fopen("/etc/passwd", "r");\n  if (f != nullptr) abort();',
        "#include <cstdio>\n#include <cstdlib>\n",
    ),
    "depends_on_time": host(
        "  timespec now{};\n  clock_gettime(CLOCK_MONOTONIC, &now);\n"
        "  cudaMemsetAsync(C, static_cast<int>(now.tv_nsec >> 4) & 127, 64, stream);",
        "#include <ctime>\n",
    ),
    "depends_on_random": host(
        "  std::random_device source;\n  cudaMemsetAsync(C, static_cast<int>(source() & 127), 64, stream);",
        "#include <random>\n",
    ),
    "depends_on_address": host(
        "  const auto address = reinterpret_cast<unsigned long long>(C);\n"
        "  cudaMemsetAsync(C, static_cast<int>(address >> 32) & 127, 64, stream);"
    ),
    "launches_nothing": HEAD + EMPTY_KERNEL + SIGNATURE + " {}\n",
    "too_many_threads": device("  C[0] = C[1];", "kernel<<<1, 2048, 0, stream>>>(C);"),
    "too_much_shared": device("  C[0] = C[1];", "kernel<<<1, 32, 300000, stream>>>(C);"),
    "billion_iterations": device(
        "  float x = threadIdx.x;\n"
        '  for (int i = 0; i < 1000000000; ++i) asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(x));\n'
        "  C[threadIdx.x] = __float2bfloat16(x);"
    ),
    "infinite_kernel": device("  for (volatile int i = 0;; i = i + 1) {}"),
    "barrier_deadlock": device('  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory");\n  C[0] = C[1];'),
    "mbarrier_deadlock": device(
        "  __shared__ unsigned long long barrier;\n"
        "  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));\n"
        '  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");\n'
        "  __syncthreads();\n"
        '  asm volatile("{\\n.reg .pred p;\\nWAIT:\\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\\n"\n'
        '               "@!p bra WAIT;\\n}" ::"r"(at) : "memory");\n'
        "  C[0] = C[1];"
    ),
    "device_malloc": device(
        "  auto* p = static_cast<__nv_bfloat16*>(malloc(64));\n  p[threadIdx.x & 31] = C[0];\n  C[1] = p[0];"
    ),
    "out_of_bounds": device("  C[1ll << 34] = __float2bfloat16(1.0f);"),
    "trap": device('  asm volatile("trap;");'),
    "assert_fails": device("  assert(C == nullptr);", head="#include <cassert>\n"),
    "copies_to_host": host("  float h[4];\n  cudaMemcpyAsync(h, C, 16, cudaMemcpyDeviceToHost, stream);"),
    "graph_capture": host("  cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);"),
    "writes_input": device("  const_cast<__nv_bfloat16*>(A)[threadIdx.x] = C[0];", "")
    .replace("kernel(__nv_bfloat16* C)", "kernel(const __nv_bfloat16* A, __nv_bfloat16* C)")
    .replace("{  }", "{ kernel<<<1, 64, 0, stream>>>(A, C); }"),
    "wrong_output": host(""),
}
