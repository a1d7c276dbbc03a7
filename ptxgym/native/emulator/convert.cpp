// Conversions (PTX ISA 9.7.9.21 and 9.7.9.22). Every source value is exact in a double, except 64-bit integers, whose
// lost bits are kept as a sticky bit; the result is rounded once. The pairs that kernels use all the time have vector
// loops of their own.
#include <algorithm>
#include <limits>

#include "numeric.hpp"

namespace {

bool is_integer(uint8_t type) { return type >= T_U8 && type <= T_S64; }
bool is_signed(uint8_t type) { return type >= T_S8 && type <= T_S64; }
int integer_bits(uint8_t type) {
  switch (type) {
    case T_U8:
    case T_S8: return 8;
    case T_U16:
    case T_S16: return 16;
    case T_U32:
    case T_S32: return 32;
    default: return 64;
  }
}
bool wide(uint8_t register_class) {
  return register_class == T_U64 || register_class == T_S64 || register_class == T_F64;
}
bool known(uint8_t type) {
  return is_integer(type) || type == T_F16 || type == T_BF16 || type == T_F32 || type == T_F64 || type == T_TF32;
}

uint64_t extended(uint64_t bits, uint8_t type) {
  const int n = integer_bits(type);
  if (n == 64) return bits;
  const uint64_t low = bits & ((1ull << n) - 1);
  return is_signed(type) && (low >> (n - 1) & 1) ? low | ~((1ull << n) - 1) : low;
}

Rounding rounding_of(uint32_t flags) {
  switch (flags & F_RND_MASK) {
    case F_RZ:
    case F_RZI: return Rounding::Zero;
    case F_RM:
    case F_RMI: return Rounding::Down;
    case F_RP:
    case F_RPI: return Rounding::Up;
    default: return Rounding::Nearest;
  }
}
bool to_integral(uint32_t flags) { return (flags & F_RND_MASK) >= F_RNI; }

double round_integral(double value, Rounding rounding) {
  switch (rounding) {
    case Rounding::Zero: return std::trunc(value);
    case Rounding::Down: return std::floor(value);
    case Rounding::Up: return std::ceil(value);
    default: return std::nearbyint(value);
  }
}

// A NaN becomes zero, except where source or result has 64 bits: there it is the result's highest bit (PTX ISA 9.7.9.21;
// an H200 does so).
uint64_t float_to_integer(double value, uint8_t type, uint8_t from, Rounding rounding) {
  const int n = integer_bits(type);
  if (value != value) return from == T_F64 || n == 64 ? 1ull << (n - 1) : 0;
  const double whole = round_integral(value, rounding);
  if (is_signed(type)) {
    const double limit = std::ldexp(1.0, n - 1);
    if (whole >= limit) return (1ull << (n - 1)) - 1;
    if (whole < -limit) return 1ull << (n - 1);
    return static_cast<uint64_t>(static_cast<int64_t>(whole));
  }
  if (whole >= std::ldexp(1.0, n)) return n == 64 ? ~0ull : (1ull << n) - 1;
  return whole <= 0 ? 0 : static_cast<uint64_t>(whole);
}
// Saturating integer conversion.
uint64_t clamp_integer(uint64_t bits, uint8_t from, uint8_t to) {
  const int n = integer_bits(to);
  const __int128 value =
      is_signed(from) ? static_cast<__int128>(static_cast<int64_t>(bits)) : static_cast<__int128>(bits);
  const __int128 one = 1;
  const __int128 low = is_signed(to) ? -(one << (n - 1)) : 0,
                 high = is_signed(to) ? (one << (n - 1)) - 1 : (one << n) - 1;
  return static_cast<uint64_t>(std::clamp(value, low, high));
}
// An integer as a double; bits beyond the 53rd are folded into the last one, which keeps every rounding to at most 51
// bits right.
double sticky_double(uint64_t bits, bool is_signed_type) {
  const bool negative = is_signed_type && static_cast<int64_t>(bits) < 0;
  const uint64_t magnitude = negative ? 0 - bits : bits;
  const uint64_t reduced = magnitude >> 53 ? (magnitude >> 11 << 11) | (magnitude & 0x7ff ? 0x800u : 0) : magnitude;
  const double value = static_cast<double>(reduced);
  return negative ? -value : value;
}

double float_source(uint64_t bits, uint8_t type, bool ftz) {
  switch (type) {
    case T_F16: return decode<HalfFormat>(static_cast<uint32_t>(bits) & 0xffff);
    case T_BF16: return decode<BrainFormat>(static_cast<uint32_t>(bits) & 0xffff);
    case T_F64: return bits_as<double>(bits);
    default: return bits_as<float>(ftz ? flushed(static_cast<uint32_t>(bits)) : static_cast<uint32_t>(bits));
  }
}
uint64_t float_result(double value, uint8_t type, uint32_t flags, Rounding rounding) {
  const bool saturate = flags & F_SAT, ftz = flags & F_FTZ;
  if ((flags & F_RELU) && value < 0) value = 0;
  if ((flags & F_RELU) && value == 0) value = 0;  // −0 too
  if (saturate && type != T_TF32) value = value > 0 ? (value < 1 ? value : 1) : 0;
  switch (type) {
    case T_F16: return encode<HalfFormat>(value, rounding, false);
    case T_BF16: return encode<BrainFormat>(value, rounding, false);
    case T_TF32: return encode<Tf32Format>(value, rounding, saturate) << 13;
    case T_F64: return value != value ? NAN_F64 : bits_as<uint64_t>(value);
    default: {  // the caller has set the host's rounding mode
      const float narrow = static_cast<float>(value);
      if (narrow != narrow) return NAN_F32;
      const uint32_t bits = bits_as<uint32_t>(narrow);
      return ftz ? flushed(bits) : bits;
    }
  }
}

uint64_t converted(uint64_t bits, const Inst& inst) {
  const uint8_t to = inst.type, from = inst.stype;
  const Rounding rounding = rounding_of(inst.flags);
  if (is_integer(from)) {
    const uint64_t value = extended(bits, from);
    if (is_integer(to)) return (inst.flags & F_SAT) ? clamp_integer(value, from, to) : value;
    if (to == T_F64 && !(inst.flags & F_SAT)) {  // one rounding, in the host's mode: both parts are exact
      if (is_signed(from)) return bits_as<uint64_t>(static_cast<double>(static_cast<int64_t>(value)));
      return bits_as<uint64_t>(static_cast<double>(static_cast<int64_t>(value >> 32)) * 0x1p32 +
                               static_cast<double>(static_cast<int64_t>(value & 0xffffffffu)));
    }
    return float_result(sticky_double(value, is_signed(from)), to, inst.flags, rounding);
  }
  const double value = float_source(bits, from, inst.flags & F_FTZ);
  if (is_integer(to)) return float_to_integer(value, to, from, rounding);
  const double whole = to_integral(inst.flags) ? std::copysign(round_integral(value, rounding), value) : value;
  return float_result(whole, to, inst.flags, rounding);
}

Step convert_any(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint8_t to_class = inst.imm ? static_cast<uint8_t>(inst.imm & 255) : inst.type;
  const uint8_t from_class = inst.imm ? static_cast<uint8_t>(inst.imm >> 8 & 255) : inst.stype;
  const RoundingScope scope(to_integral(inst.flags) ? 0 : inst.flags);
  for_lanes(mask, [&](int l) {
    const uint64_t source = wide(from_class) ? w.reg<uint64_t>(inst.a)[l] : w.reg<uint32_t>(inst.a)[l];
    uint64_t result = converted(source, inst);
    if (is_integer(inst.type)) result = extended(result, inst.type);
    if (wide(to_class))
      w.reg<uint64_t>(inst.d)[l] = result;
    else
      w.reg<uint32_t>(inst.d)[l] = static_cast<uint32_t>(
          integer_bits(to_class) == 16 || to_class == T_F16 || to_class == T_BF16 ? result & 0xffff : result);
  });
  return Step::Next;
}

// ---- vector loops

template <class To, class From>
Step convert_integer(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<From>>(inst.a);
  write_lanes(w.reg<RegOf<To>>(inst.d), mask, [=](int l) { return to_reg<To>(static_cast<To>(from_reg<From>(a[l]))); });
  return Step::Next;
}
template <class To>
Handler from_integer(uint8_t from) {
  return by_integer(from, [](auto v) -> Handler { return convert_integer<To, decltype(v)>; });
}
template <class From>
Step integer_to_f32(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<From>>(inst.a);
  write_lanes(w.reg<uint32_t>(inst.d), mask,
              [=](int l) { return bits_as<uint32_t>(static_cast<float>(from_reg<From>(a[l]))); });
  return Step::Next;
}
Step f32_to_s32_zero(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<float>(inst.a);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const float x = a[l], bounded = x < 0x1p31f ? (x >= -0x1p31f ? x : -0x1p31f) : 0.0f;
    const uint32_t value = static_cast<uint32_t>(static_cast<int32_t>(bounded));
    return x != x ? 0u : x >= 0x1p31f ? 0x7fffffffu : value;
  });
  return Step::Next;
}
template <class H>
Step half_to_f32(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<uint32_t>(inst.a);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const float value = H::to_float(a[l] & 0xffff);
    return value != value ? NAN_F32 : bits_as<uint32_t>(value);
  });
  return Step::Next;
}
template <class H>
inline uint32_t narrow_half(uint32_t bits) {
  if constexpr (std::is_same_v<H, Brain>)
    return round_brain(bits);
  else
    return round_half<H>(bits_as<float>(bits));
}
template <class H>
Step f32_to_half(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<uint32_t>(inst.a);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) { return narrow_half<H>(a[l]); });
  return Step::Next;
}
template <class H>
Step f32_to_half_pair(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *high = w.reg<uint32_t>(inst.a), *low = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<uint32_t>(inst.d), mask,
              [=](int l) { return narrow_half<H>(low[l]) | narrow_half<H>(high[l]) << 16; });
  return Step::Next;
}

// To tf32, ties away from zero, as an H200 does it: half a unit is added to what is finite, then the 13 low bits go,
// those of a NaN too. What is infinite then, or not a number, satfinite lowers by one tf32 unit. So a signalling NaN
// with a small payload (0x7f800001) becomes an infinity or the largest number; a quiet one stays a NaN.
template <bool SATURATE>
Step f32_to_tf32_away(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  constexpr uint32_t infinity = 0x7f800000u, unit = 0x2000u;
  const auto* a = w.reg<uint32_t>(inst.a);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const bool finite = (a[l] & infinity) != infinity;
    const uint32_t rounded = (a[l] + (finite ? unit / 2 : 0)) & ~(unit - 1);
    return SATURATE && (rounded & infinity) == infinity ? rounded - unit : rounded;
  });
  return Step::Next;
}

// ---- packed results

// The formats of fewer than eight bits have no infinity and no NaN; a NaN becomes their largest number (PTX ISA 9.7.9.21).
struct SmallFormat {
  int mantissa, exponent;

  uint32_t largest() const { return (1u << (mantissa + exponent)) - 1; }
  double value(uint32_t magnitude) const {
    const int bias = (1 << (exponent - 1)) - 1, field = static_cast<int>(magnitude >> mantissa);
    const uint32_t fraction = magnitude & ((1u << mantissa) - 1);
    const double significand = field ? (1u << mantissa) + fraction : fraction;
    return std::ldexp(significand, (field ? field : 1) - bias - mantissa);
  }
  uint32_t encode(double x) const {
    if (x != x) return largest();
    const double magnitude = std::fabs(x);
    uint32_t code = 0;
    while (code < largest()) {  // upwards while the next number is nearer, or as near and even
      const double middle = (value(code) + value(code + 1)) / 2;
      if (magnitude < middle || (magnitude == middle && !(code & 1))) break;
      ++code;
    }
    return code | (std::signbit(x) ? 1u << (mantissa + exponent) : 0);
  }
  double decode(uint32_t bits) const {
    const double magnitude = value(bits & largest());
    return bits >> (mantissa + exponent) & 1 ? -magnitude : magnitude;
  }
};
constexpr SmallFormat E2M1{1, 2}, E2M3{3, 2}, E3M2{2, 3};

// ue8m0: a power of two from 2^-127 to 2^127, or NaN (all ones). The sign of a number plays no part (the vendor's cuda_fp8.hpp).
uint32_t encode_scale(double value, Rounding rounding, bool saturate) {
  constexpr uint32_t nan = 255, largest = 254;
  if (value != value) return nan;
  value = std::fabs(value);
  if (value >= std::ldexp(1.0, 128)) return saturate ? largest : nan;
  if (value == 0) return 0;
  int exponent;
  const double fraction = std::frexp(value, &exponent);  // in [0.5, 1)
  int power = exponent - 1;
  if (rounding == Rounding::Up && fraction != 0.5) ++power;
  if (power > 127) return saturate ? largest : nan;
  return static_cast<uint32_t>(std::max(power, -127) + 127);
}

// One element of a packed type from a double, and back.
uint32_t encode_element(double value, uint8_t packed, uint32_t flags) {
  if ((flags & F_RELU) && value <= 0) value = 0;
  switch (packed) {
    case T_F16X2: return encode<HalfFormat>(value, rounding_of(flags), flags & F_SAT);
    case T_BF16X2: return encode<BrainFormat>(value, rounding_of(flags), flags & F_SAT);
    case T_E4M3X2: return encode<E4M3Format>(value, Rounding::Nearest, true);
    case T_E2M1X2: return E2M1.encode(value);
    case T_E2M3X2: return E2M3.encode(value);
    case T_E3M2X2: return E3M2.encode(value);
    case T_UE8M0X2: return encode_scale(value, rounding_of(flags), flags & F_SAT);
    default: return value != value ? E5M2Format::nan : encode<E5M2Format>(value, Rounding::Nearest, true);
  }
}
double decode_element(uint32_t bits, uint8_t packed) {
  switch (packed) {
    case T_F16X2: return decode<HalfFormat>(bits & 0xffff);
    case T_BF16X2: return decode<BrainFormat>(bits & 0xffff);
    case T_E4M3X2: return decode<E4M3Format>(bits & 255);
    case T_E2M1X2: return E2M1.decode(bits & 15);
    case T_E2M3X2: return E2M3.decode(bits & 63);
    case T_E3M2X2: return E3M2.decode(bits & 63);
    case T_UE8M0X2: return (bits & 255) == 255 ? std::nan("") : std::ldexp(1.0, static_cast<int>(bits & 255) - 127);
    default: return decode<E5M2Format>(bits & 255);
  }
}
int element_bits(uint8_t packed) { return packed == T_F16X2 || packed == T_BF16X2 ? 16 : packed == T_E2M1X2 ? 4 : 8; }
bool is_packed(uint8_t type) {
  return type == T_F16X2 || type == T_BF16X2 || type == T_E4M3X2 || type == T_E5M2X2 ||
         (type >= T_E2M1X2 && type <= T_UE8M0X2);
}

Step convert_pack(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const bool ftz = inst.flags & F_FTZ;
  const int shift = element_bits(inst.type);
  for_lanes(mask, [&](int l) {
    const double high = float_source(w.reg<uint32_t>(inst.a)[l], T_F32, ftz),
                 low = float_source(w.reg<uint32_t>(inst.b)[l], T_F32, ftz);
    w.reg<uint32_t>(inst.d)[l] =
        encode_element(low, inst.type, inst.flags) | encode_element(high, inst.type, inst.flags) << shift;
  });
  return Step::Next;
}
Step convert_packed(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const int to = element_bits(inst.type), from = element_bits(inst.stype);
  for_lanes(mask, [&](int l) {
    const uint32_t bits = w.reg<uint32_t>(inst.a)[l];
    w.reg<uint32_t>(inst.d)[l] = encode_element(decode_element(bits, inst.stype), inst.type, inst.flags) |
                                 encode_element(decode_element(bits >> from, inst.stype), inst.type, inst.flags) << to;
  });
  return Step::Next;
}

Handler bind_fast(const Inst& inst) {
  if (inst.imm || (inst.flags & (F_SAT | F_FTZ | F_RELU))) return nullptr;
  const uint32_t rounding = inst.flags & F_RND_MASK;
  if (is_integer(inst.stype)) {
    switch (inst.type) {
      case T_U16:
      case T_S16: return from_integer<uint16_t>(inst.stype);
      case T_U32:
      case T_S32: return from_integer<uint32_t>(inst.stype);
      case T_U64:
      case T_S64: return from_integer<uint64_t>(inst.stype);
      case T_F32:
        if (rounding != F_RN) return nullptr;
        return inst.stype == T_S32 ? integer_to_f32<int32_t> : inst.stype == T_U32 ? integer_to_f32<uint32_t> : nullptr;
      default: return nullptr;
    }
  }
  if (inst.type == T_F32 && inst.stype == T_BF16) return half_to_f32<Brain>;
  if (inst.type == T_F32 && inst.stype == T_F16) return half_to_f32<Half>;
  if (inst.stype != T_F32) return nullptr;
  if (inst.type == T_S32 && rounding == F_RZI) return f32_to_s32_zero;
  if (rounding != F_RN) return nullptr;
  return inst.type == T_BF16 ? f32_to_half<Brain> : inst.type == T_F16 ? f32_to_half<Half> : nullptr;
}

}  // namespace

Handler bind_convert(const Inst& inst) {
  if (inst.op == OP_CVT_PACK) {
    if (!is_packed(inst.type)) return nullptr;
    if (!(inst.flags & (F_SAT | F_FTZ | F_RELU)) && (inst.flags & F_RND_MASK) == F_RN) {
      if (inst.type == T_BF16X2) return f32_to_half_pair<Brain>;
      if (inst.type == T_F16X2) return f32_to_half_pair<Half>;
    }
    return convert_pack;
  }
  if (inst.op != OP_CVT) return nullptr;
  if (is_packed(inst.type) && is_packed(inst.stype)) return convert_packed;
  if (!known(inst.type) || !known(inst.stype)) return nullptr;
  if (inst.flags & F_RNA) return inst.flags & F_SAT ? f32_to_tf32_away<true> : f32_to_tf32_away<false>;
  if (Handler fast = bind_fast(inst)) return fast;
  return convert_any;
}
