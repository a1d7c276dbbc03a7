// Micro-kernels that show what a Hopper GPU does, one mechanism each, and a program that runs a file of jobs on them.
//
// cases.py makes the jobs and reads the results; the emulator runs the same kernels from this file's PTX. Needs CUDA only:
//   nvcc -std=c++17 -O2 -gencode arch=compute_90a,code=sm_90a -o conformance conformance.cu && ./conformance JOBS RESULTS
#include <cuda.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

struct alignas(128) Params {
  CUtensorMap map;
  const uint8_t* in;
  uint8_t* out;
  uint32_t in_bytes, out_bytes;
  int32_t args[16];
  uint64_t wide[4];
};

// ---- device helpers

constexpr int POLLS = 20000;

extern __shared__ uint8_t raw_smem[];
__shared__ alignas(8) uint64_t bar[2];

__device__ uint32_t smem_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
// The image starts at a multiple of 1024, the length of the longest swizzle pattern.
__device__ uint8_t* image() { return raw_smem + (1024 - smem_address(raw_smem) % 1024) % 1024; }

__device__ void fill(uint8_t* to, uint32_t bytes, uint8_t value) {
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = value;
}
__device__ void copy(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}
__device__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}
__device__ void init(uint64_t* b, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(b)), "r"(count) : "memory");
}
__device__ void expect(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(b)), "r"(bytes) : "memory");
}
__device__ uint32_t test(uint64_t* b, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done) : "r"(smem_address(b)), "r"(parity) : "memory");
  return done;
}
// Bounded, so that a wrong byte count is a result and not a hang.
__device__ uint32_t poll(uint64_t* b, uint32_t parity) {
  for (int i = 0; i < POLLS; ++i) {
    if (test(b, parity)) return 1;
  }
  return 0;
}

// ---- tensor copies. args: 0 shared offset, 1 bytes to expect, 2 bytes to dump, 3… coordinates.
// out: completed?, 12 bytes unused, then shared memory.

#define COORDS_1 "r"(p.args[3])
#define COORDS_2 COORDS_1, "r"(p.args[4])
#define COORDS_3 COORDS_2, "r"(p.args[5])
#define COORDS_4 COORDS_3, "r"(p.args[6])
#define COORDS_5 COORDS_4, "r"(p.args[7])
#define SLOTS_1 "{%3}"
#define SLOTS_2 "{%3, %4}"
#define SLOTS_3 "{%3, %4, %5}"
#define SLOTS_4 "{%3, %4, %5, %6}"
#define SLOTS_5 "{%3, %4, %5, %6, %7}"

#define TENSOR_LOAD(RANK)                                                                                             \
  __device__ void issue_load_##RANK(const Params& p, const void* map, uint32_t to) {                                  \
    asm volatile("cp.async.bulk.tensor." #RANK "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, " \
                 SLOTS_##RANK "], [%2];" ::"r"(to), "l"(map), "r"(smem_address(bar)), COORDS_##RANK : "memory");        \
  }                                                                                                                   \
  extern "C" __global__ void tensor_load_##RANK(const __grid_constant__ Params p) {                                   \
    load_box(p, [&](uint32_t to) { issue_load_##RANK(p, &p.map, to); });                                              \
  }                                                                                                                   \
  extern "C" __global__ void tensor_store_##RANK(const __grid_constant__ Params p) {                                  \
    store_box(p, [&](uint32_t from) {                                                                                 \
      asm volatile("cp.async.bulk.tensor." #RANK "d.global.shared::cta.tile.bulk_group [%1, " SLOTS_##RANK "], [%0];" \
                   ::"r"(from), "l"(&p.map), "r"(0), COORDS_##RANK : "memory");                                       \
    });                                                                                                               \
  }

template <class Issue> __device__ void load_box(const Params& p, Issue issue) {
  uint8_t* smem = image();
  fill(smem, p.args[2], 0xCD);
  if (threadIdx.x == 0) init(bar, 1);
  publish();
  if (threadIdx.x == 0) {
    expect(bar, p.args[1]);
    issue(smem_address(smem) + p.args[0]);
  }
  const uint32_t done = poll(bar, 0);
  __syncthreads();
  if (threadIdx.x == 0) *reinterpret_cast<uint32_t*>(p.out) = done;
  copy(p.out + 16, smem, p.args[2]);
}

template <class Issue> __device__ void store_box(const Params& p, Issue issue) {
  uint8_t* smem = image();
  copy(smem, p.in, p.in_bytes);
  publish();
  if (threadIdx.x == 0) {
    issue(smem_address(smem) + p.args[0]);
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  __syncthreads();
}

TENSOR_LOAD(1)
TENSOR_LOAD(2)
TENSOR_LOAD(3)
TENSOR_LOAD(4)
TENSOR_LOAD(5)

// The same load through a copy of the map in global memory, at out + args[8].
extern "C" __global__ void tensor_load_global_map(const __grid_constant__ Params p) {
  uint8_t* map = p.out + p.args[8];
  const uint8_t* from = reinterpret_cast<const uint8_t*>(&p.map);
  for (uint32_t i = threadIdx.x; i < sizeof(CUtensorMap) / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(map)[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
  asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
  __syncthreads();
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
  load_box(p, [&](uint32_t to) { issue_load_2(p, map, to); });
}

// ---- bulk copies. args: 0 shared offset, 1 bytes, 2 bytes to dump, 3 global offset

extern "C" __global__ void bulk_load(const __grid_constant__ Params p) {
  load_box(p, [&](uint32_t to) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(p.in + p.args[3]), "r"(p.args[1]), "r"(smem_address(bar)) : "memory");
  });
}
extern "C" __global__ void bulk_store(const __grid_constant__ Params p) {
  store_box(p, [&](uint32_t from) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(p.out + p.args[3]), "r"(from), "r"(p.args[1])
                 : "memory");
  });
}

// ---- cp.async. One warp; lane l copies SIZE bytes from in + SIZE l to SIZE l. args: 0 multiplier of the source size, 1 lanes whose
// source is ignored (mask), 2 bytes to dump

#define CP_ASYNC(SIZE, CACHE)                                                                                        \
  extern "C" __global__ void cp_async_##SIZE(const __grid_constant__ Params p) {                                     \
    uint8_t* smem = image();                                                                                         \
    fill(smem, p.args[2], 0xCD);                                                                                     \
    __syncthreads();                                                                                                 \
    const uint32_t to = smem_address(smem) + SIZE * threadIdx.x;                                                     \
    const uint8_t* from = p.in + SIZE * threadIdx.x;                                                                 \
    const uint32_t size = threadIdx.x * p.args[0] % (SIZE + 1);                                                      \
    asm volatile("cp.async." CACHE ".shared.global [%0], [%1], " #SIZE ", %2;" ::"r"(to), "l"(from), "r"(size) : "memory"); \
    asm volatile("cp.async.commit_group;" ::: "memory");                                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\ncp.async." CACHE ".shared.global [%0], [%1], " #SIZE ", p;\n}" \
                 ::"r"(to + SIZE * 32), "l"(from), "r"(p.args[1] >> threadIdx.x & 1) : "memory");                    \
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");                                     \
    __syncthreads();                                                                                                 \
    copy(p.out, smem, p.args[2]);                                                                                    \
  }
CP_ASYNC(4, "ca")
CP_ASYNC(8, "ca")
CP_ASYNC(16, "cg")

// Arrivals of cp.async.mbarrier.arrive, with and without .noinc: out[0], out[1] tell whether the phases completed.
extern "C" __global__ void cp_async_arrive(const __grid_constant__ Params p) {
  uint8_t* smem = image();
  if (threadIdx.x == 0) {
    init(&bar[0], 32);
    init(&bar[1], 32);
  }
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(smem) + 4 * threadIdx.x), "l"(p.in + 4 * threadIdx.x)
               : "memory");
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(&bar[0])) : "memory");
  asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(smem_address(&bar[1])) : "memory");
  const uint32_t first = poll(&bar[0], 0);
  const uint32_t early = test(&bar[1], 0);
  __syncwarp();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(&bar[1])) : "memory");
  const uint32_t second = poll(&bar[1], 0);
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* out = reinterpret_cast<uint32_t*>(p.out);
    out[0] = first;
    out[1] = early;
    out[2] = second;
  }
  copy(p.out + 16, smem, 128);
}

// ---- mbarrier. One thread; out: a list of what is seen after each step.
extern "C" __global__ void mbarrier_trace(const __grid_constant__ Params p) {
  if (threadIdx.x) return;
  uint32_t* out = reinterpret_cast<uint32_t*>(p.out);
  const uint32_t b = smem_address(bar);
  int at = 0;
  uint64_t state;
  const auto pending = [&](uint64_t token) {
    uint32_t count;
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(count) : "l"(token));
    return count;
  };
  const auto look = [&] {
    out[at++] = test(bar, 0);
    out[at++] = test(bar, 1);
  };
  const auto by_state = [&](uint64_t token) {
    uint32_t done;
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(b), "l"(token) : "memory");
    return done;
  };
  init(bar, 3);
  look();  // phase 0 not complete; the phase before counts as complete
  asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
  out[at++] = pending(state);
  out[at++] = by_state(state);
  look();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(b) : "memory");
  out[at++] = by_state(state);
  look();
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 %0, [%1], 64;" : "=l"(state) : "r"(b) : "memory");
  out[at++] = pending(state);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(b) : "memory");
  look();  // all arrived, 64 bytes missing
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 48;" ::"r"(b) : "memory");
  look();
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
  look();
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
  asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(b) : "memory");
  look();  // no arrivals: still phase 2
  asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
  out[at++] = pending(state);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(b) : "memory");
  look();  // phase 2 complete; from here two arrivals make a phase
  asm volatile("mbarrier.arrive.noComplete.shared::cta.b64 %0, [%1], 1;" : "=l"(state) : "r"(b) : "memory");
  out[at++] = pending(state);
  look();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
  look();
}

// ---- wgmma. args: 0 image bytes, 1 steps, 2 scale-d of the first step, 3 and 4 bytes by which a step moves the starts of A and B.
// wide: 0 and 1 the descriptors, their starts counted from the image. in: image, accumulators [128][registers], A registers
// [steps][128][4]. out: accumulators.

#define LIST_2 "%0, %1"
#define LIST_4 "%0, %1, %2, %3"
#define LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define LIST_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define LIST_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
                "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST_128 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
                "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
                "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
                "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
                "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, " \
                "%97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
                "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define REGS_2(C) C(d[0]), C(d[1])
#define REGS_4(C) REGS_2(C), C(d[2]), C(d[3])
#define REGS_4_AT(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3])
#define REGS_8(C) REGS_4(C), REGS_4_AT(C, 4)
#define REGS_16_AT(C, i) REGS_4_AT(C, i), REGS_4_AT(C, i + 4), REGS_4_AT(C, i + 8), REGS_4_AT(C, i + 12)
#define REGS_16(C) REGS_16_AT(C, 0)
#define REGS_32(C) REGS_16_AT(C, 0), REGS_16_AT(C, 16)
#define REGS_128(C) REGS_32(C), REGS_16_AT(C, 32), REGS_16_AT(C, 48), REGS_16_AT(C, 64), REGS_16_AT(C, 80), REGS_16_AT(C, 96), REGS_16_AT(C, 112)
#define AS_FLOAT(x) "+f"(x)
#define AS_WORD(x) "+r"(x)

template <class T, int COUNT, class Issue> __device__ void run_wgmma(const Params& p, Issue issue) {
  uint8_t* smem = image();
  copy(smem, p.in, p.args[0]);
  const T* before = reinterpret_cast<const T*>(p.in + p.args[0]) + threadIdx.x * COUNT;
  T d[COUNT];
  for (int i = 0; i < COUNT; ++i) d[i] = before[i];
  const uint64_t base = smem_address(smem) >> 4;
  publish();
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int step = 0; step < p.args[1]; ++step) {
    const uint64_t a = p.wide[0] + base + (step * p.args[3] >> 4), b = p.wide[1] + base + (step * p.args[4] >> 4);
    issue(d, a, b, step ? 1 : p.args[2], step);
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  T* after = reinterpret_cast<T*>(p.out) + threadIdx.x * COUNT;
  for (int i = 0; i < COUNT; ++i) after[i] = d[i];
}

#define WGMMA_SS(NAME, T, C, SHAPE, COUNT, A, B, S, SCALE_A, SCALE_B, TRANS_A, TRANS_B)                                  \
  extern "C" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ Params p) {                           \
    run_wgmma<T, COUNT>(p, [](T* d, uint64_t a, uint64_t b, int scale, int) {                                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " S ", 0;\nwgmma.mma_async.sync.aligned." SHAPE                   \
                   " {" LIST_##COUNT "}, " A ", " B ", p, " SCALE_A ", " SCALE_B ", " TRANS_A ", " TRANS_B ";\n}"       \
                   : REGS_##COUNT(C) : "l"(a), "l"(b), "r"(scale) : "memory");                                         \
    });                                                                                                                \
  }

#define WGMMA_SS_MAJOR(NAME, T, C, SHAPE, COUNT, A, B, S)                        \
  WGMMA_SS(NAME##_kk, T, C, SHAPE, COUNT, A, B, S, "1", "1", "0", "0")           \
  WGMMA_SS(NAME##_km, T, C, SHAPE, COUNT, A, B, S, "1", "1", "0", "1")           \
  WGMMA_SS(NAME##_mk, T, C, SHAPE, COUNT, A, B, S, "1", "1", "1", "0")           \
  WGMMA_SS(NAME##_mm, T, C, SHAPE, COUNT, A, B, S, "1", "1", "1", "1")

WGMMA_SS_MAJOR(wgmma_bf16_n8, float, AS_FLOAT, "m64n8k16.f32.bf16.bf16", 4, "%4", "%5", "%6")
WGMMA_SS_MAJOR(wgmma_bf16_n64, float, AS_FLOAT, "m64n64k16.f32.bf16.bf16", 32, "%32", "%33", "%34")
WGMMA_SS_MAJOR(wgmma_bf16_n256, float, AS_FLOAT, "m64n256k16.f32.bf16.bf16", 128, "%128", "%129", "%130")
WGMMA_SS_MAJOR(wgmma_f16_n64, float, AS_FLOAT, "m64n64k16.f32.f16.f16", 32, "%32", "%33", "%34")
WGMMA_SS_MAJOR(wgmma_half_n64, uint32_t, AS_WORD, "m64n64k16.f16.f16.f16", 16, "%16", "%17", "%18")
WGMMA_SS(wgmma_half_n8, uint32_t, AS_WORD, "m64n8k16.f16.f16.f16", 2, "%2", "%3", "%4", "1", "1", "0", "0")
WGMMA_SS(wgmma_bf16_n8_negate_a, float, AS_FLOAT, "m64n8k16.f32.bf16.bf16", 4, "%4", "%5", "%6", "-1", "1", "0", "0")
WGMMA_SS(wgmma_bf16_n8_negate_b, float, AS_FLOAT, "m64n8k16.f32.bf16.bf16", 4, "%4", "%5", "%6", "1", "-1", "0", "0")
WGMMA_SS(wgmma_f16_n8, float, AS_FLOAT, "m64n8k16.f32.f16.f16", 4, "%4", "%5", "%6", "1", "1", "0", "0")

// `A` names the four A registers, `R` the list of their operands.
#define WGMMA_RS(NAME, T, C, SHAPE, COUNT, A, B, S, TRANS_B)                                                            \
  extern "C" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ Params p) {                           \
    const uint32_t* fragments = reinterpret_cast<const uint32_t*>(p.in + p.args[0] + 128 * COUNT * 4);                 \
    run_wgmma<T, COUNT>(p, [&](T* d, uint64_t, uint64_t b, int scale, int step) {                                      \
      const uint32_t* from = fragments + (step * 128 + threadIdx.x) * 4;                                               \
      const uint32_t a[4] = {from[0], from[1], from[2], from[3]};                                                      \
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " S ", 0;\nwgmma.mma_async.sync.aligned." SHAPE                   \
                   " {" LIST_##COUNT "}, " A ", " B ", p, 1, 1, " TRANS_B ";\n}"                                       \
                   : REGS_##COUNT(C) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale) : "memory");     \
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");                \
    });                                                                                                                \
  }
WGMMA_RS(wgmma_bf16_n8_reg_k, float, AS_FLOAT, "m64n8k16.f32.bf16.bf16", 4, "{%4, %5, %6, %7}", "%8", "%9", "0")
WGMMA_RS(wgmma_bf16_n64_reg_k, float, AS_FLOAT, "m64n64k16.f32.bf16.bf16", 32, "{%32, %33, %34, %35}", "%36", "%37", "0")
WGMMA_RS(wgmma_bf16_n64_reg_m, float, AS_FLOAT, "m64n64k16.f32.bf16.bf16", 32, "{%32, %33, %34, %35}", "%36", "%37", "1")
WGMMA_RS(wgmma_half_n64_reg_k, uint32_t, AS_WORD, "m64n64k16.f16.f16.f16", 16, "{%16, %17, %18, %19}", "%20", "%21", "0")

// ---- ldmatrix, stmatrix, movmatrix. One warp; the row of lane l lies at args[0] * (l * args[1] % 32). args[2] bytes of shared memory.

__device__ uint32_t row_address(const Params& p) { return smem_address(image()) + p.args[0] * (threadIdx.x * p.args[1] % 32); }

#define LDMATRIX(NUM, SUFFIX, TRANS, LIST, REGS)                                                                     \
  extern "C" __global__ void ldmatrix_##NUM##SUFFIX(const __grid_constant__ Params p) {                              \
    copy(image(), p.in, p.args[2]);                                                                                  \
    __syncthreads();                                                                                                 \
    uint32_t d[4] = {};                                                                                              \
    asm volatile("ldmatrix.sync.aligned.m8n8.x" #NUM TRANS ".shared.b16 {" LIST "}, [%" #NUM "];"                    \
                 : REGS : "r"(row_address(p)) : "memory");                                                           \
    for (int i = 0; i < NUM; ++i) reinterpret_cast<uint32_t*>(p.out)[threadIdx.x * NUM + i] = d[i];                  \
  }
#define STMATRIX(NUM, SUFFIX, TRANS, LIST, ADDRESS, REGS)                                                            \
  extern "C" __global__ void stmatrix_##NUM##SUFFIX(const __grid_constant__ Params p) {                              \
    fill(image(), p.args[2], 0xCD);                                                                                  \
    __syncthreads();                                                                                                 \
    uint32_t d[4] = {};                                                                                              \
    for (int i = 0; i < NUM; ++i) d[i] = reinterpret_cast<const uint32_t*>(p.in)[threadIdx.x * NUM + i];             \
    asm volatile("stmatrix.sync.aligned.m8n8.x" #NUM TRANS ".shared.b16 [" ADDRESS "], {" LIST "};"                  \
                 ::REGS, "r"(row_address(p)) : "memory");                                                            \
    __syncthreads();                                                                                                 \
    copy(p.out, image(), p.args[2]);                                                                                 \
  }
#define OUT(x) "=r"(x)
#define IN(x) "r"(x)
#define PICK_1(C) C(d[0])
#define PICK_2(C) C(d[0]), C(d[1])
#define PICK_4(C) C(d[0]), C(d[1]), C(d[2]), C(d[3])
LDMATRIX(1, , "", "%0", PICK_1(OUT))
LDMATRIX(2, , "", "%0, %1", PICK_2(OUT))
LDMATRIX(4, , "", "%0, %1, %2, %3", PICK_4(OUT))
LDMATRIX(1, t, ".trans", "%0", PICK_1(OUT))
LDMATRIX(2, t, ".trans", "%0, %1", PICK_2(OUT))
LDMATRIX(4, t, ".trans", "%0, %1, %2, %3", PICK_4(OUT))
STMATRIX(1, , "", "%0", "%1", PICK_1(IN))
STMATRIX(2, , "", "%0, %1", "%2", PICK_2(IN))
STMATRIX(4, , "", "%0, %1, %2, %3", "%4", PICK_4(IN))
STMATRIX(1, t, ".trans", "%0", "%1", PICK_1(IN))
STMATRIX(2, t, ".trans", "%0, %1", "%2", PICK_2(IN))
STMATRIX(4, t, ".trans", "%0, %1, %2, %3", "%4", PICK_4(IN))

extern "C" __global__ void movmatrix(const __grid_constant__ Params p) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(reinterpret_cast<const uint32_t*>(p.in)[threadIdx.x]));
  reinterpret_cast<uint32_t*>(p.out)[threadIdx.x] = d;
}

// ---- mma.sync. One warp; in: per lane the registers of A, B and C; out: those of D.

#define MMA(NAME, FORM, ND, NA, NB, D, A, B, C, OUT_REGS, A_REGS, B_REGS, C_REGS)                                      \
  extern "C" __global__ void NAME(const __grid_constant__ Params p) {                                                \
    const uint32_t* w = reinterpret_cast<const uint32_t*>(p.in) + threadIdx.x * (NA + NB + ND);                      \
    uint32_t d[4];                                                                                                   \
    asm volatile("mma.sync.aligned." FORM " {" D "}, {" A "}, {" B "}, {" C "};" : OUT_REGS : A_REGS, B_REGS, C_REGS); \
    for (int i = 0; i < ND; ++i) reinterpret_cast<uint32_t*>(p.out)[threadIdx.x * ND + i] = d[i];                    \
  }
// 32-bit results: four accumulator registers.
#define MMA_F32(NAME, FORM, NA, NB, A, B, A_REGS, B_REGS)                                                             \
  extern "C" __global__ void NAME(const __grid_constant__ Params p) {                                                \
    const uint32_t* w = reinterpret_cast<const uint32_t*>(p.in) + threadIdx.x * (NA + NB + 4);                       \
    float d[4];                                                                                                      \
    for (int i = 0; i < 4; ++i) d[i] = __uint_as_float(w[NA + NB + i]);                                              \
    asm volatile("mma.sync.aligned." FORM " {%0, %1, %2, %3}, {" A "}, {" B "}, {%0, %1, %2, %3};"                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : A_REGS, B_REGS);                                 \
    for (int i = 0; i < 4; ++i) reinterpret_cast<float*>(p.out)[threadIdx.x * 4 + i] = d[i];                         \
  }
#define W2(i) "r"(w[i]), "r"(w[i + 1])
#define W4(i) W2(i), W2(i + 2)
#define D2 "=r"(d[0]), "=r"(d[1])
#define D4 D2, "=r"(d[2]), "=r"(d[3])
MMA_F32(mma_bf16_k16, "m16n8k16.row.col.f32.bf16.bf16.f32", 4, 2, "%4, %5, %6, %7", "%8, %9", W4(0), W2(4))
MMA_F32(mma_f16_k16, "m16n8k16.row.col.f32.f16.f16.f32", 4, 2, "%4, %5, %6, %7", "%8, %9", W4(0), W2(4))
MMA_F32(mma_bf16_k8, "m16n8k8.row.col.f32.bf16.bf16.f32", 2, 1, "%4, %5", "%6", W2(0), "r"(w[2]))
MMA_F32(mma_f16_k8, "m16n8k8.row.col.f32.f16.f16.f32", 2, 1, "%4, %5", "%6", W2(0), "r"(w[2]))
MMA_F32(mma_tf32_k4, "m16n8k4.row.col.f32.tf32.tf32.f32", 2, 1, "%4, %5", "%6", W2(0), "r"(w[2]))
MMA_F32(mma_tf32_k8, "m16n8k8.row.col.f32.tf32.tf32.f32", 4, 2, "%4, %5, %6, %7", "%8, %9", W4(0), W2(4))
MMA(mma_half_k16, "m16n8k16.row.col.f16.f16.f16.f16", 2, 4, 2, "%0, %1", "%2, %3, %4, %5", "%6, %7", "%8, %9", D2, W4(0), W2(4), W2(6))
MMA(mma_half_k8, "m16n8k8.row.col.f16.f16.f16.f16", 2, 2, 1, "%0, %1", "%2, %3", "%4", "%5, %6", D2, W2(0), "r"(w[2]), W2(3))
#define MMA_INT(NAME, TYPES)                                                                                              \
  MMA(mma_##NAME##_k16, "m16n8k16.row.col." TYPES, 4, 2, 1, "%0, %1, %2, %3", "%4, %5", "%6", "%7, %8, %9, %10", D4, W2(0), \
      "r"(w[2]), W4(3))                                                                                                   \
  MMA(mma_##NAME##_k32, "m16n8k32.row.col." TYPES, 4, 4, 2, "%0, %1, %2, %3", "%4, %5, %6, %7", "%8, %9",                  \
      "%10, %11, %12, %13", D4, W4(0), W2(4), W4(6))
MMA_INT(s8, "s32.s8.s8.s32")
MMA_INT(u8, "s32.u8.u8.s32")
MMA_INT(us8, "s32.u8.s8.s32")
MMA_INT(s8_sat, "satfinite.s32.s8.s8.s32")

// ---- host: jobs in, results out

#pragma pack(push, 1)
struct MapSpec {
  int32_t over;  // -1 none, 0 in, 1 out
  uint32_t offset, type, rank, swizzle, fill;
  uint64_t dims[5], strides[4];
  uint32_t box[5], element_strides[5];
};
struct Job {
  char kernel[48];
  uint32_t threads, smem_bytes, in_bytes, out_bytes;
  int32_t args[16];
  uint64_t wide[4];
  MapSpec map;
};
#pragma pack(pop)

using Kernel = void (*)(Params);
struct Entry {
  const char* name;
  Kernel kernel;
};
#define ENTRY(name) {#name, name}
#define ENTRIES_MAJOR(name) ENTRY(name##_kk), ENTRY(name##_km), ENTRY(name##_mk), ENTRY(name##_mm)
const Entry ENTRIES[] = {
    ENTRY(tensor_load_1), ENTRY(tensor_load_2), ENTRY(tensor_load_3), ENTRY(tensor_load_4), ENTRY(tensor_load_5),
    ENTRY(tensor_store_1), ENTRY(tensor_store_2), ENTRY(tensor_store_3), ENTRY(tensor_store_4), ENTRY(tensor_store_5),
    ENTRY(tensor_load_global_map), ENTRY(bulk_load), ENTRY(bulk_store), ENTRY(cp_async_4), ENTRY(cp_async_8), ENTRY(cp_async_16),
    ENTRY(cp_async_arrive), ENTRY(mbarrier_trace),
    ENTRIES_MAJOR(wgmma_bf16_n8), ENTRIES_MAJOR(wgmma_bf16_n64), ENTRIES_MAJOR(wgmma_bf16_n256), ENTRIES_MAJOR(wgmma_f16_n64),
    ENTRIES_MAJOR(wgmma_half_n64), ENTRY(wgmma_half_n8), ENTRY(wgmma_bf16_n8_negate_a), ENTRY(wgmma_bf16_n8_negate_b),
    ENTRY(wgmma_f16_n8), ENTRY(wgmma_bf16_n8_reg_k), ENTRY(wgmma_bf16_n64_reg_k), ENTRY(wgmma_bf16_n64_reg_m),
    ENTRY(wgmma_half_n64_reg_k),
    ENTRY(ldmatrix_1), ENTRY(ldmatrix_2), ENTRY(ldmatrix_4), ENTRY(ldmatrix_1t), ENTRY(ldmatrix_2t), ENTRY(ldmatrix_4t),
    ENTRY(stmatrix_1), ENTRY(stmatrix_2), ENTRY(stmatrix_4), ENTRY(stmatrix_1t), ENTRY(stmatrix_2t), ENTRY(stmatrix_4t),
    ENTRY(movmatrix), ENTRY(mma_bf16_k16), ENTRY(mma_f16_k16), ENTRY(mma_bf16_k8), ENTRY(mma_f16_k8), ENTRY(mma_tf32_k4),
    ENTRY(mma_tf32_k8), ENTRY(mma_half_k16), ENTRY(mma_half_k8), ENTRY(mma_s8_k16), ENTRY(mma_s8_k32), ENTRY(mma_u8_k16),
    ENTRY(mma_u8_k32), ENTRY(mma_us8_k16), ENTRY(mma_us8_k32), ENTRY(mma_s8_sat_k16), ENTRY(mma_s8_sat_k32),
};

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                            const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

constexpr int UNKNOWN_KERNEL = -1, ENCODE_FAILED = -2;

int run(const Job& job, const std::vector<uint8_t>& input, std::vector<uint8_t>& output, Encode encode) {
  Kernel kernel = nullptr;
  for (const Entry& entry : ENTRIES) {
    if (!strcmp(entry.name, job.kernel)) kernel = entry.kernel;
  }
  if (!kernel) return UNKNOWN_KERNEL;
  uint8_t *in, *out;
  cudaMalloc(&in, job.in_bytes + 16);
  cudaMalloc(&out, job.out_bytes + 16);
  cudaMemcpy(in, input.data(), job.in_bytes, cudaMemcpyHostToDevice);
  cudaMemset(out, 0xEE, job.out_bytes);
  Params p{};
  p.in = in;
  p.out = out;
  p.in_bytes = job.in_bytes;
  p.out_bytes = job.out_bytes;
  memcpy(p.args, job.args, sizeof p.args);
  memcpy(p.wide, job.wide, sizeof p.wide);
  const MapSpec spec = job.map;
  if (spec.over >= 0) {
    uint64_t dims[5], strides[4];
    uint32_t box[5], element_strides[5];
    memcpy(dims, spec.dims, sizeof dims);
    memcpy(strides, spec.strides, sizeof strides);
    memcpy(box, spec.box, sizeof box);
    memcpy(element_strides, spec.element_strides, sizeof element_strides);
    void* base = (spec.over ? out : in) + spec.offset;
    const CUresult made = encode(&p.map, static_cast<CUtensorMapDataType>(spec.type), spec.rank, base, reinterpret_cast<cuuint64_t*>(dims),
                                 reinterpret_cast<cuuint64_t*>(strides), box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 static_cast<CUtensorMapSwizzle>(spec.swizzle), CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                 static_cast<CUtensorMapFloatOOBfill>(spec.fill));
    if (made != CUDA_SUCCESS) return ENCODE_FAILED;
  }
  cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(job.smem_bytes));
  kernel<<<1, job.threads, job.smem_bytes>>>(p);
  cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) error = cudaMemcpy(output.data(), out, job.out_bytes, cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) fprintf(stderr, "%s: %s\n", job.kernel, cudaGetErrorString(error));
  cudaFree(in);
  cudaFree(out);
  return error;
}

// Results: per job its status and, where that is 0, its output. After a fault the context is lost, so the program stops.
int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: conformance JOBS RESULTS\n");
    return 2;
  }
  void* symbol = nullptr;
  cudaDriverEntryPointQueryResult found;
  cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &symbol, 12000, cudaEnableDefault, &found);
  FILE* jobs = fopen(argv[1], "rb");
  FILE* results = fopen(argv[2], "wb");
  if (!symbol || !jobs || !results) {
    fprintf(stderr, "no driver, or a file cannot be opened\n");
    return 3;
  }
  Job job;
  while (fread(&job, sizeof job, 1, jobs) == 1) {
    std::vector<uint8_t> input(job.in_bytes), output(job.out_bytes);
    if (job.in_bytes && fread(input.data(), job.in_bytes, 1, jobs) != 1) return 3;
    const int32_t status = run(job, input, output, reinterpret_cast<Encode>(symbol));
    fwrite(&status, sizeof status, 1, results);
    if (status == 0) fwrite(output.data(), output.size(), 1, results);
    if (status > 0) break;
  }
  fclose(results);
  return 0;
}
