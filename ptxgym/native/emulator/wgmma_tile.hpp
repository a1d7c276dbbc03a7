// The arithmetic of one m64nNk16 collective, on operands that were gathered from shared memory or registers, by the
// accumulation model of matrix_sum.hpp.
//
// Layout: accumulator register j * 4 + half * 2 + parity of warp w holds in lane l the element of row 16w + 8 half + l
// / 4 and column 8j + 2 (l % 4) + parity (PTX ISA 9.7.15.5.1.1.1). So a vector of lanes needs A by lane, and B repeated
// with period 4.
#pragma once
#include <algorithm>
#include <cstdint>
#include "matrix_sum.hpp"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

constexpr int TILE_M = 64, TILE_K = 16, MAX_TILE_N = 256, TILE_LANES = 32, PERIOD = 4;

#if defined(__AVX512F__)
constexpr int VECTOR = 16;
#elif defined(__AVX2__)
constexpr int VECTOR = 8;
#else
constexpr int VECTOR = 4;
#endif
constexpr int PARTS = TILE_LANES / VECTOR;
typedef float Floats __attribute__((vector_size(VECTOR * 4), aligned(4), may_alias));
typedef int32_t Ints __attribute__((vector_size(VECTOR * 4), aligned(4), may_alias));
typedef double Doubles __attribute__((vector_size(VECTOR * 8), aligned(4), may_alias));
typedef int64_t Longs __attribute__((vector_size(VECTOR * 8), aligned(4), may_alias));
typedef int16_t Shorts __attribute__((vector_size(VECTOR * 2), aligned(2), may_alias));
typedef int64_t ShortPeriods __attribute__((vector_size(VECTOR * 2), aligned(2), may_alias));

template <class Vector, class T>
inline Vector load(const T* from) {
  return *reinterpret_cast<const Vector*>(from);
}

inline Floats repeat(const float* period) {
#if defined(__AVX512F__)
  return reinterpret_cast<Floats>(_mm512_maskz_broadcast_f32x4(0xFFFF, _mm_loadu_ps(period)));
#elif defined(__AVX2__)
  return reinterpret_cast<Floats>(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(period)));
#else
  return load<Floats>(period);
#endif
}
inline Shorts repeat(const int16_t* period) {
  int64_t four;
  std::memcpy(&four, period, sizeof four);
  return reinterpret_cast<Shorts>(ShortPeriods{} + four);
}

// Exponents for which products and their scaled values are exact in fp32: neither subnormal, infinite, NaN nor far from
// one.
template <size_t Count>
inline bool all_tame(const int16_t (&exponents)[Count], size_t used) {
  constexpr int16_t limit = 48;
  int16_t wild = 0;
  for (size_t i = 0; i < used; ++i)
    wild |= (exponents[i] > limit) | ((exponents[i] < -limit) & (exponents[i] != NO_EXPONENT));
  return !wild;
}

// A by lane: every element stands in the four lanes that need it.
struct TileA {
  alignas(64) float value[4 * 2 * TILE_K * TILE_LANES];
  alignas(64) int16_t exponent[4 * 2 * TILE_K * TILE_LANES];
  bool tame;

  static constexpr int at(int warp, int half) { return (warp * 2 + half) * TILE_K * TILE_LANES; }
  static constexpr int at(int row, int k, int) { return at(row / 16, row / 8 % 2) + k * TILE_LANES + row % 8 * PERIOD; }
  void set(int row, int k, float v, int16_t e) {
    const int first = at(row, k, 0);
    for (int i = 0; i < PERIOD; ++i) {
      value[first + i] = v;
      exponent[first + i] = e;
    }
  }
  Element get(int row, int k) const { return {value[at(row, k, 0)], exponent[at(row, k, 0)]}; }
  void judge(int) { tame = all_tame(exponent, sizeof exponent / sizeof exponent[0]); }
};

// B by column block, parity and k: the four columns that repeat.
struct TileB {
  alignas(64) float value[MAX_TILE_N / 8 * 2 * TILE_K * PERIOD];
  alignas(64) int16_t exponent[MAX_TILE_N / 8 * 2 * TILE_K * PERIOD];
  bool tame;

  static constexpr int at(int block, int parity) { return (block * 2 + parity) * TILE_K * PERIOD; }
  static constexpr int at(int column, int k, int) { return at(column / 8, column % 2) + k * PERIOD + column % 8 / 2; }
  void set(int column, int k, float v, int16_t e) {
    value[at(column, k, 0)] = v;
    exponent[at(column, k, 0)] = e;
  }
  Element get(int column, int k) const { return {value[at(column, k, 0)], exponent[at(column, k, 0)]}; }
  void judge(int columns) { tame = all_tame(exponent, static_cast<size_t>(columns) * TILE_K); }
};

// One register of 32 lanes: accumulator ← accumulator + A × B for tame operands (a, a_exponents: [k][lane]; b,
// b_exponents: [k][period]). False, with nothing written, where an accumulator is so large or special that only
// tensor_core_sum will do. `to_half`: the last bit of a result says too that something was cut (sticky_to_float).
inline bool accumulate_tame(const float* a, const int16_t* a_exponents, const float* b, const int16_t* b_exponents,
                            float* accumulator, bool accumulate, bool to_half) {
  constexpr int greatest_allowed = 110, least = -100;
  Ints exponents[PARTS], too_large{};
  for (int part = 0; part < PARTS; ++part) {
    Shorts products = load<Shorts>(a_exponents + part * VECTOR) + repeat(b_exponents);
    for (int k = 1; k < TILE_K; ++k) {
      const Shorts sum = load<Shorts>(a_exponents + k * TILE_LANES + part * VECTOR) + repeat(b_exponents + k * PERIOD);
      products = sum > products ? sum : products;
    }
    exponents[part] = __builtin_convertvector(products, Ints);
    if (accumulate) {  // −127 of zeros and subnormal numbers is below every tame product
      const Ints bits = reinterpret_cast<Ints>(load<Floats>(accumulator + part * VECTOR));  // not load<Ints>: a template
      const Ints before = (bits >> 23 & 0xFF) - 127;  // argument loses may_alias
      exponents[part] = before > exponents[part] ? before : exponents[part];
    }
    too_large |= exponents[part] > greatest_allowed;
  }
  int any = 0;
  for (int i = 0; i < VECTOR; ++i) any |= too_large[i];
  if (any) return false;
  for (int part = 0; part < PARTS; ++part) {
    const Ints kept = exponents[part] < least;  // every product is zero
    const Ints greatest = kept ? Ints{} + least : exponents[part];
    const Floats scale = reinterpret_cast<Floats>((FRACTION_BITS + 127 - greatest) << 23);
    const Floats unit = reinterpret_cast<Floats>((greatest - FRACTION_BITS + 127) << 23);
    Ints sum{};  // 16 terms below 2^27
    for (int k = 0; k < TILE_K; ++k) {
      const Floats product = load<Floats>(a + k * TILE_LANES + part * VECTOR) * repeat(b + k * PERIOD);
      sum += __builtin_convertvector(product * scale, Ints);
    }
    Floats* result = reinterpret_cast<Floats*>(accumulator + part * VECTOR);
    const Floats before = accumulate ? *result : Floats{};
    const Ints addend = __builtin_convertvector(before * scale, Ints);
    const Doubles total = __builtin_convertvector(sum, Doubles) + __builtin_convertvector(addend, Doubles);
    constexpr int64_t last = int64_t{1} << 29;  // fp32 keeps 23 of 52 mantissa bits
    const Longs bits = reinterpret_cast<Longs>(total);
    Longs truncated = bits & ~(last - 1);
    if (to_half) truncated |= ((bits & (last - 1)) != 0) & last;
    *result = kept ? before : __builtin_convertvector(reinterpret_cast<Doubles>(truncated), Floats) * unit;
  }
  return true;
}
