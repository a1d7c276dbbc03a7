// How a Hopper tensor core adds: the accumulation model of wgmma and mma.sync.
//
// The terms of one result are the exact products of the instruction's whole K and the accumulator. The exponent of a
// product is the sum of its factors' exponents, before any carry; subnormal numbers have the least exponent of their
// type. Every term is truncated towards zero to 25 binary places below the greatest exponent, the truncated terms are
// added exactly, and the sum is truncated to fp32; an fp16 result is rounded once, to nearest even, from the sum itself.
// The order of terms plays no part, every NaN is the same one. PTX leaves all this open (9.7.15.5.2); an H200 agrees bit
// for bit on the operands of tests/golden: normal, over many binades, subnormal, arbitrary bits. Public studies of tensor
// cores (arXiv 2511.10909) find the same rule.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include "matrix_types.hpp"

constexpr int FRACTION_BITS = 25;
constexpr int NO_EXPONENT = -1000;      // of zero
constexpr int SPECIAL_EXPONENT = 1000;  // of infinities and NaNs

// An element of an operand: its value, exact in fp32, and its exponent.
struct Element {
  float value;
  int16_t exponent;
};

template <int ExponentBits, int MantissaBits>
inline int16_t exponent_of(uint32_t bits) {
  constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  constexpr int greatest = (1 << ExponentBits) - 1;
  const int field = bits >> MantissaBits & greatest;
  const bool zero = !(bits & ((1u << (ExponentBits + MantissaBits)) - 1));
  const int finite = zero ? NO_EXPONENT : (field ? field : 1) - bias;
  return static_cast<int16_t>(field == greatest ? SPECIAL_EXPONENT : finite);
}
inline int16_t float_exponent(float value) { return exponent_of<8, 23>(bits_as<uint32_t>(value)); }

inline Element bf16_element(uint16_t bits) { return {bf16_to_float(bits), exponent_of<8, 7>(bits)}; }
inline Element half_element(uint16_t bits) { return {half_to_float(bits), exponent_of<5, 10>(bits)}; }
inline Element tf32_element(uint32_t bits) { return {tf32_to_float(bits), exponent_of<8, 10>(bits >> 13)}; }

constexpr uint32_t TENSOR_CORE_NAN = 0x7FFF'FFFF;

// Truncates towards zero; beyond the range of fp32 is infinity.
inline float truncate_to_float(double value) {
  float nearest = static_cast<float>(value);
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value) && std::isfinite(nearest))
    nearest = std::nextafterf(nearest, 0.0f);
  return nearest;
}

// Truncates, but keeps a bit of what it cut, so that rounding what is left to fp16 rounds the whole.
inline float sticky_to_float(double value) {
  const float cut = truncate_to_float(value);
  const bool exact = !std::isfinite(cut) || static_cast<double>(cut) == value;
  return exact ? cut : bits_as<float>(bits_as<uint32_t>(cut) | 1u);
}

// a(k) and b(k) are the elements. `to_half`: the caller rounds to fp16.
template <class A, class B>
inline float tensor_core_sum(int count, A a, B b, float accumulator, bool accumulate, bool to_half) {
  int greatest = accumulate ? float_exponent(accumulator) : NO_EXPONENT * 2;
  double special = accumulate && !std::isfinite(accumulator) ? accumulator : 0;  // sum of infinite and NaN terms
  for (int k = 0; k < count; ++k) {
    const Element x = a(k), y = b(k);
    greatest = std::max(greatest, x.exponent + y.exponent);
    const double product = static_cast<double>(x.value) * y.value;
    if (!std::isfinite(product)) special += product;
  }
  if (special != 0 || std::isnan(special))
    return std::isnan(special) ? bits_as<float>(TENSOR_CORE_NAN) : static_cast<float>(special);
  const int shift = FRACTION_BITS - greatest;
  double total = accumulate ? std::trunc(std::ldexp(static_cast<double>(accumulator), shift)) : 0;
  for (int k = 0; k < count; ++k) total += std::trunc(std::ldexp(static_cast<double>(a(k).value) * b(k).value, shift));
  const double sum = std::ldexp(total, -shift);
  return to_half ? sticky_to_float(sum) : truncate_to_float(sum);
}
