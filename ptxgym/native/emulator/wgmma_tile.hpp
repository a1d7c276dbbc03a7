// The arithmetic of one m64nNk16 collective, on operands that were gathered from shared memory or registers.
//
// Accumulation model: products of two 16-bit elements are exact in fp32; the 16 products of a slice are summed in ascending k, each
// addition rounded to nearest in fp32; the sum is then added to the accumulator (fp32, or fp16 rounded once). Hardware aligns
// the terms to their largest exponent and truncates, in an order that the ISA leaves open (9.7.15.5.2, "Precision and rounding"),
// so results differ from it in the last bits; they never depend on schedule, threads or vector width.
//
// Layout: accumulator register j * 4 + half * 2 + parity of warp w holds in lane l the element of row 16w + 8 half + l / 4 and
// column 8j + 2 (l % 4) + parity (9.7.15.5.1.1.1). Operands are spread so that a vector of lanes needs one vector of each: A by lane,
// B repeated with period 4.
#pragma once
#include <cstdint>
#include "matrix_types.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

constexpr int TILE_M = 64, TILE_K = 16, MAX_TILE_N = 256, TILE_LANES = 32;

#if defined(__AVX512F__)
constexpr int VECTOR = 16;
#elif defined(__AVX2__)
constexpr int VECTOR = 8;
#else
constexpr int VECTOR = 4;
#endif
typedef float Lanes __attribute__((vector_size(VECTOR * sizeof(float)), aligned(4), may_alias));
constexpr int PARTS = TILE_LANES / VECTOR;

// Products are exact, so a fused and a separate addition round alike.
inline Lanes multiply_add(Lanes a, Lanes b, Lanes sum) {
#if defined(__AVX512F__)
  return reinterpret_cast<Lanes>(_mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(sum)));
#elif defined(__AVX2__) && defined(__FMA__)
  return reinterpret_cast<Lanes>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(sum)));
#else
  return a * b + sum;
#endif
}

// Elements as fp32, row by row: value[row][k] (row of A, column of B).
struct PanelA { alignas(64) float value[TILE_M][TILE_K]; };
struct PanelB { alignas(64) float value[MAX_TILE_N][TILE_K]; };

struct SpreadA {
  alignas(64) float value[4][2][TILE_K][TILE_LANES];  // warp, half, k, lane

  void fill(const PanelA& panel) {
    for (int warp = 0; warp < 4; ++warp) {
      for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < TILE_K; ++k) {
          for (int row = 0; row < 8; ++row) {
            const float element = panel.value[warp * 16 + half * 8 + row][k];
            for (int i = 0; i < 4; ++i) value[warp][half][k][row * 4 + i] = element;
          }
        }
      }
    }
  }
};

struct SpreadB {
  alignas(64) float value[MAX_TILE_N / 8][TILE_K][2][VECTOR];  // column block, k, parity, lane modulo 4

  void fill(const PanelB& panel, int columns) {
    for (int block = 0; block < columns / 8; ++block) {
      for (int k = 0; k < TILE_K; ++k) {
        for (int parity = 0; parity < 2; ++parity) {
          float* to = value[block][k][parity];
          for (int i = 0; i < 4; ++i) to[i] = panel.value[block * 8 + i * 2 + parity][k];
          for (int i = 4; i < VECTOR; ++i) to[i] = to[i - 4];
        }
      }
    }
  }
};

// Sums of `Blocks` column blocks for the rows of one warp and half: sums[block][parity][lane].
template <int Blocks>
inline void multiply(const float (*a)[TILE_LANES], const float (*b)[TILE_K][2][VECTOR], float (*sums)[2][TILE_LANES]) {
  Lanes sum[Blocks][2][PARTS] = {};
  for (int k = 0; k < TILE_K; ++k) {
    Lanes left[PARTS];
    for (int part = 0; part < PARTS; ++part) left[part] = *reinterpret_cast<const Lanes*>(a[k] + part * VECTOR);
    for (int block = 0; block < Blocks; ++block) {
      for (int parity = 0; parity < 2; ++parity) {
        const Lanes right = *reinterpret_cast<const Lanes*>(b[block][k][parity]);
        for (int part = 0; part < PARTS; ++part) {
          sum[block][parity][part] = multiply_add(left[part], right, sum[block][parity][part]);
        }
      }
    }
  }
  for (int block = 0; block < Blocks; ++block) {
    for (int parity = 0; parity < 2; ++parity) {
      for (int part = 0; part < PARTS; ++part) {
        *reinterpret_cast<Lanes*>(sums[block][parity] + part * VECTOR) = sum[block][parity][part];
      }
    }
  }
}

// Column blocks that keep all sums in registers: 32 vector registers of AVX-512, 16 elsewhere.
constexpr int BLOCKS_AT_ONCE = VECTOR == 16 ? 4 : 1;
