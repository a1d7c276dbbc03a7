// Floating-point formats and exact roundings between them.
#pragma once
#include <cfenv>
#include <cmath>
#include <limits>

#include "lanes.hpp"

constexpr uint32_t NAN_F32 = 0x7fffffffu;  // canonical NaN (PTX ISA 9.7.3)
constexpr uint64_t NAN_F64 = 0x7fffffffffffffffull;
constexpr uint16_t NAN_HALF = 0x7fff;  // f16 and bf16

// A small binary format: MANTISSA stored bits, EXPONENT bits. FINITE_ONLY: no infinities, all ones is NaN (e4m3).
template <int MANTISSA, int EXPONENT, bool FINITE_ONLY>
struct Format {
  static constexpr int mantissa = MANTISSA;
  static constexpr int bias = (1 << (EXPONENT - 1)) - 1;
  static constexpr int min_exponent = 1 - bias;
  static constexpr int sign_shift = MANTISSA + EXPONENT;
  static constexpr uint32_t infinity = ((1u << EXPONENT) - 1) << MANTISSA;
  static constexpr uint32_t nan =
      FINITE_ONLY ? (1u << sign_shift) - 1 : infinity | (infinity >> 1) | ((1u << MANTISSA) - 1);
  static constexpr uint32_t largest = FINITE_ONLY ? nan - 1 : infinity - 1;
  static constexpr bool finite_only = FINITE_ONLY;
};
using HalfFormat = Format<10, 5, false>;
using BrainFormat = Format<7, 8, false>;
using E4M3Format = Format<3, 4, true>;
using E5M2Format = Format<2, 5, false>;
using Tf32Format = Format<10, 8, false>;

enum class Rounding : uint8_t { Nearest, Zero, Down, Up };

// Value -> bits of F, rounded once. Scales the magnitude so that one unit is the format's last place, then rounds to an
// integer.
template <class F>
inline uint32_t encode(double value, Rounding rounding, bool saturate_finite) {
  const uint64_t bits = bits_as<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 63) << F::sign_shift;
  const double magnitude = std::fabs(value);
  if (magnitude != magnitude) return F::nan;
  int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  if (exponent < F::min_exponent) exponent = F::min_exponent;
  const int over = F::bias + 1 + (F::finite_only ? 1 : 0);
  uint32_t code = F::infinity;
  bool overflow = true;
  if (exponent < over) {
    const int last_place = exponent - F::mantissa;
    const double scaled = magnitude * bits_as<double>(static_cast<uint64_t>(1023 - last_place) << 52);
    double whole = std::floor(scaled);
    const double rest = scaled - whole;
    switch (rounding) {
      case Rounding::Nearest: whole += rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) != 0.0); break;
      case Rounding::Zero: break;
      case Rounding::Down: whole += rest > 0 && sign; break;
      case Rounding::Up: whole += rest > 0 && !sign; break;
    }
    code = (static_cast<uint32_t>(exponent - F::min_exponent) << F::mantissa) + static_cast<uint32_t>(whole);
    overflow = code > F::largest;
  }
  if (overflow) {
    const bool exact_infinity = std::isinf(value);
    const bool towards_zero =
        rounding == Rounding::Zero || (rounding == Rounding::Down && !sign) || (rounding == Rounding::Up && sign);
    if (saturate_finite || (towards_zero && !exact_infinity))
      code = F::largest;
    else
      code = F::finite_only ? F::nan : F::infinity;
  }
  return sign | code;
}

template <class F>
inline double decode(uint32_t bits) {
  const uint32_t magnitude = bits & ((1u << F::sign_shift) - 1);
  const bool negative = bits >> F::sign_shift & 1;
  double value;
  if (F::finite_only ? magnitude == F::nan : magnitude > F::infinity) return std::nan("");
  if (!F::finite_only && magnitude == F::infinity)
    value = HUGE_VAL;
  else {
    const int field = static_cast<int>(magnitude >> F::mantissa);
    const uint32_t fraction = magnitude & ((1u << F::mantissa) - 1);
    const double significand = field ? (1u << F::mantissa) + fraction : fraction;
    const int scale = (field ? field : 1) - F::bias - F::mantissa;
    value = significand * bits_as<double>(static_cast<uint64_t>(1023 + scale) << 52);
  }
  return negative ? -value : value;
}

// The two half formats as the arithmetic sees them: exact widening, single rounding from double to nearest even.
struct Half {
  static constexpr uint32_t one = 0x3c00;
  static constexpr uint32_t infinity = 0x7c00;
  using format = HalfFormat;
  static float to_float(uint32_t bits) {
    const float scaled = bits_as<float>((bits & 0x7fffu) << 13) * 0x1p112f;  // subnormals come out right
    const uint32_t wide = bits_as<uint32_t>(scaled) | ((bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u);
    return bits_as<float>(wide | (bits & 0x8000u) << 16);
  }
};
struct Brain {
  static constexpr uint32_t one = 0x3f80;
  static constexpr uint32_t infinity = 0x7f80;
  using format = BrainFormat;
  static float to_float(uint32_t bits) { return bits_as<float>(bits << 16); }
};

// Double to a half format, nearest even, branch free: works on the bits, so that lane loops vectorise.
template <class H>
inline uint32_t round_half(double value) {
  using F = typename H::format;
  const uint64_t bits = bits_as<uint64_t>(value);
  const uint32_t sign = static_cast<uint32_t>(bits >> 48) & 0x8000u;
  const double magnitude = std::fabs(value);
  int64_t exponent = static_cast<int64_t>(bits >> 52 & 0x7ff) - 1023;
  exponent = exponent < F::min_exponent ? F::min_exponent : exponent > F::bias + 1 ? F::bias + 1 : exponent;
  const int64_t last_place = exponent - F::mantissa;
  const double scaled = magnitude * bits_as<double>(static_cast<uint64_t>(1023 - last_place) << 52);
  const double bounded = scaled < 0x1p20 ? scaled : 0x1p20;
  const double whole = (bounded + 0x1p52) - 0x1p52;  // nearest even
  uint32_t code = static_cast<uint32_t>((exponent - F::min_exponent) << F::mantissa) +
                  static_cast<uint32_t>(static_cast<int32_t>(whole));
  code = code > F::infinity ? F::infinity : code;
  return magnitude != magnitude ? NAN_HALF : (sign | code);
}
// Float to bfloat16, nearest even.
inline uint32_t round_brain(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return (bits & 0x7fffffffu) > 0x7f800000u ? NAN_HALF : rounded;
}

inline uint32_t flushed(uint32_t bits) { return (bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits; }
inline float flushed(float value) { return bits_as<float>(flushed(bits_as<uint32_t>(value))); }

template <class V>
inline V canonical(V value) {
  if constexpr (sizeof(V) == 4)
    return value != value ? bits_as<V>(NAN_F32) : value;
  else
    return value != value ? bits_as<V>(NAN_F64) : value;
}
template <class H>
inline uint32_t flush_half(uint32_t bits) {
  return (bits & H::infinity) == 0 ? bits & 0x8000u : bits;
}

// Minimum or maximum on ordered bit patterns: -0 < +0. INFINITE: bits of infinity, QUIET: the format's canonical NaN.
template <class R>
inline std::make_signed_t<R> ordered(R bits) {
  using S = std::make_signed_t<R>;
  const S value = static_cast<S>(bits);
  return value < 0 ? static_cast<S>(value ^ std::numeric_limits<S>::max()) : value;
}
template <class R, R INFINITE, R QUIET, bool MAX>
inline R extreme(R a, R b, uint32_t flags) {
  constexpr R sign = static_cast<R>(R{1} << (sizeof(R) * 8 - 1));
  const auto is_nan = [](R x) { return static_cast<R>(x & static_cast<R>(~sign)) > INFINITE; };
  const R xor_sign = static_cast<R>((a ^ b) & sign);
  if (flags & F_ABS) a = static_cast<R>(a & static_cast<R>(~sign)), b = static_cast<R>(b & static_cast<R>(~sign));
  R result;
  if (is_nan(a) || is_nan(b)) {
    if ((flags & F_NAN) || (is_nan(a) && is_nan(b))) return QUIET;
    result = is_nan(a) ? b : a;
  } else {
    result = (MAX ? ordered(a) > ordered(b) : ordered(a) < ordered(b)) ? a : b;
  }
  if (flags & F_XORSIGN) result = static_cast<R>((result & static_cast<R>(~sign)) | xor_sign);
  if ((flags & F_RELU) && (result & sign)) result = 0;
  return result;
}

// Host rounding mode for the lanes of one instruction. Operands are loaded from and results stored to memory inside the
// scope, and the library calls are opaque, so the compiler cannot move the arithmetic across its ends.
struct RoundingScope {
  explicit RoundingScope(uint32_t flags) {
    switch (flags & F_RND_MASK) {
      case F_RZ: mode = FE_TOWARDZERO; break;
      case F_RM: mode = FE_DOWNWARD; break;
      case F_RP: mode = FE_UPWARD; break;
      default: break;
    }
    if (mode != FE_TONEAREST) std::fesetround(mode);
  }
  ~RoundingScope() {
    if (mode != FE_TONEAREST) std::fesetround(FE_TONEAREST);
  }
  RoundingScope(const RoundingScope&) = delete;
  RoundingScope& operator=(const RoundingScope&) = delete;

 private:
  int mode = FE_TONEAREST;
};
