// Elements of 8, 6 and 4 bits: their packing and their values (PTX ISA 5.2.3, 9.7.16.10.4; OCP microscaling formats).
#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include "matrix_sum.hpp"
#include "tcgen05_descriptor.hpp"

// Elements of 4 and 6 bits in shared memory, for kinds that mix widths: 16 of them side by side, and padding up to 16
// bytes (9.7.16.10.4.4; the formats .b4x16_p64 and .b6x16_p32 of tcgen05.cp).
inline void unpack_padded(const uint8_t* chunk, int bits, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    const int at = i * bits;
    const unsigned pair = chunk[at / 8] | static_cast<unsigned>(chunk[at / 8 + 1]) << 8;
    codes[i] = static_cast<uint8_t>(pair >> at % 8 & ((1u << bits) - 1));
  }
}

constexpr int narrow_bits(uint32_t type) { return type <= NARROW_E5M2 ? 8 : type == NARROW_E2M1 ? 4 : 6; }
// In the 8-bit containers of tensor memory 4-bit elements stand in the middle, bits 2 to 5, 6-bit ones in bits 0 to 5
// (9.7.16.10.4.3). The ISA has pictures; Triton (fp4_padded of its TensorMemoryLayout) states the first in words.
constexpr int container_shift(int bits) { return bits == 4 ? 2 : 0; }

struct NarrowTable {
  std::array<float, 256> value;
  std::array<int16_t, 256> exponent;  // as in matrix_sum.hpp
};

inline NarrowTable narrow_table(uint32_t type, bool negate) {
  struct Format {
    int exponent_bits, mantissa_bits;
  };
  const Format format = type == NARROW_E4M3   ? Format{4, 3}
                        : type == NARROW_E5M2 ? Format{5, 2}
                        : type == NARROW_E2M3 ? Format{2, 3}
                        : type == NARROW_E3M2 ? Format{3, 2}
                                              : Format{2, 1};
  const int bits = 1 + format.exponent_bits + format.mantissa_bits, fields = 1 << format.exponent_bits;
  const int bias = fields / 2 - 1, fractions = 1 << format.mantissa_bits;
  NarrowTable table{};
  for (int code = 0; code < 256; ++code) {
    const int mantissa = code & (fractions - 1), field = code >> format.mantissa_bits & (fields - 1);
    const bool negative = (code >> (bits - 1) & 1) != negate, last = field == fields - 1;
    const int exponent = (field ? field : 1) - bias;
    float value = std::ldexp(static_cast<float>((field ? fractions : 0) + mantissa), exponent - format.mantissa_bits);
    int kept = mantissa || field ? exponent : NO_EXPONENT;
    // Only e5m2 has infinities; e4m3 has one NaN, 6 and 4 bits have none.
    if (type == NARROW_E5M2 && last) value = mantissa ? NAN : INFINITY;
    if (type == NARROW_E4M3 && last && mantissa == fractions - 1) value = NAN;
    if (!std::isfinite(value)) kept = SPECIAL_EXPONENT;
    const auto at = static_cast<size_t>(code);
    table.value[at] = negative ? -value : value;
    table.exponent[at] = static_cast<int16_t>(kept);
  }
  return table;
}
