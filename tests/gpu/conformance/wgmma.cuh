// Matrices of a warpgroup.
#pragma once
#include "device.cuh"

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

