// Conversions between the element types of matrix instructions and fp32.
#pragma once
#include <cstdint>
#include <cstring>

template <class To, class From>
inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From), "same size");
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

inline float bf16_to_float(uint16_t bits) { return bits_as<float>(static_cast<uint32_t>(bits) << 16); }

// Branch-free, so that loops over it vectorise: the product by 2^112 moves the exponent's bias and normalises
// subnormals.
inline float half_to_float(uint16_t bits) {
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7FFF) << 13;
  const uint32_t finite = bits_as<uint32_t>(bits_as<float>(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7F80'0000u;
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  return bits_as<float>((magnitude >= 0x0F80'0000u ? special : finite) | sign);
}

// Round to nearest even; overflow gives infinity, NaN stays a NaN.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = bits_as<uint32_t>(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFF'FFFF;
  if (magnitude > 0x7F80'0000) return static_cast<uint16_t>(sign | 0x7FFF);
  if (magnitude >= 0x4780'0000) return static_cast<uint16_t>(sign | 0x7C00);  // 2^16 and more
  if (magnitude <
      0x3880'0000) {  // below 2^-14: the addition leaves the subnormal half in the low mantissa bits, rounded
    const float shifted = bits_as<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_as<uint32_t>(shifted) - 0x3F00'0000u));
  }
  const uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x3800'0000u) >> 13));
}

// tf32 operands are fp32 registers whose low 13 bits are not read (PTX ISA 9.7.15.5.2, "truncate").
inline float tf32_to_float(uint32_t bits) { return bits_as<float>(bits & 0xFFFF'E000u); }
