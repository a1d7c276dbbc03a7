// Matrices of a warp: ldmatrix, stmatrix, movmatrix, mma.sync.
#pragma once
#include "device.cuh"

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

// The only shape of eight rows: one register each of A and B, two of C.
MMA(mma_s8_m8, "m8n8k16.row.col.s32.s8.s8.s32", 2, 1, 1, "%0, %1", "%2", "%3", "%4, %5", D2, "r"(w[0]), "r"(w[1]), W2(2))
MMA(mma_su8_m8, "m8n8k16.row.col.s32.s8.u8.s32", 2, 1, 1, "%0, %1", "%2", "%3", "%4, %5", D2, "r"(w[0]), "r"(w[1]), W2(2))
MMA_INT(su8, "s32.s8.u8.s32")
