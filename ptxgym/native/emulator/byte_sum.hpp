// 8-bit floating-point elements of wgmma and mma.sync, and their sums by wgmma (those of mma.sync: mma.cpp).
//
// With them a Hopper tensor core keeps 13 binary places below the greatest exponent, and 13 of an fp32 result's mantissa; an
// fp16 result is rounded from the sum itself. An H200 agrees bit for bit on tests/golden (wgmma/elements); MMA-Sim, arXiv
// 2511.10909, says the same of fp32 results.
#pragma once
#include "matrix_sum.hpp"

constexpr int BYTE_FRACTION_BITS = 13;

// e4m3 has no infinity; only all ones is NaN (PTX ISA 5.2.3).
inline Element e4m3_element(uint8_t bits) {
  const int field = bits >> 3 & 15, mantissa = bits & 7, exponent = (field ? field : 1) - 7;
  const float sign = bits & 0x80 ? -1.0f : 1.0f;
  if ((bits & 0x7F) == 0x7F) return {bits_as<float>(TENSOR_CORE_NAN), SPECIAL_EXPONENT};
  if (!(bits & 0x7F)) return {sign * 0.0f, NO_EXPONENT};
  return {sign * std::ldexp(static_cast<float>(field ? 8 + mantissa : mantissa), exponent - 3),
          static_cast<int16_t>(exponent)};
}

// e5m2 is the upper half of an fp16 number.
inline Element e5m2_element(uint8_t bits) { return half_element(static_cast<uint16_t>(bits << 8)); }

// Finite 8-bit elements: every truncated term and their sum are small integers. The sum has at most 19 bits, so that it is
// exact in fp32 where it is to be rounded to fp16.
inline float byte_sum(int count, const Element* a, const Element* b, float accumulator, bool accumulate, bool to_half) {
  int greatest = accumulate ? float_exponent(accumulator) : NO_EXPONENT;
  for (int k = 0; k < count; ++k) greatest = std::max(greatest, a[k].exponent + b[k].exponent);
  if (greatest <= NO_EXPONENT / 2) return 0.0f;  // nothing but zeros
  const double scale = std::ldexp(1.0, BYTE_FRACTION_BITS - greatest);
  int64_t total = accumulate ? static_cast<int64_t>(accumulator * scale) : 0;
  for (int k = 0; k < count; ++k)
    total += static_cast<int64_t>(static_cast<double>(a[k].value * b[k].value) * scale);
  const float sum = truncate_to_float(std::ldexp(static_cast<double>(total), greatest - BYTE_FRACTION_BITS));
  if (to_half) return sum;
  return bits_as<float>(bits_as<uint32_t>(sum) & ~((1u << (23 - BYTE_FRACTION_BITS)) - 1));
}

