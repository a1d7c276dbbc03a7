// Conversions of several operands into one register: stochastic rounding (.rs, PTX ISA 9.7.9.21) and cvt.pack (9.7.9.22).
#include <algorithm>

#include "numeric.hpp"

namespace {

// ---- stochastic rounding

// A target format. largest: code of the largest finite number; infinity and nan: what becomes of values that the format
// does not hold (of the formats without infinities, and with satfinite, the largest number).
struct Target {
  int mantissa, exponent;
  uint32_t largest, infinity, nan;
  int bits, random_bits;  // of an element; of what rounds it

  int sign_shift() const { return mantissa + exponent; }
};

Target target_of(uint8_t type) {
  switch (type) {
    case T_F16X2: return {10, 5, HalfFormat::largest, HalfFormat::infinity, NAN_HALF, 16, 13};
    case T_BF16X2: return {7, 8, BrainFormat::largest, BrainFormat::infinity, NAN_HALF, 16, 16};
    case T_E4M3X2: return {3, 4, E4M3Format::largest, E4M3Format::largest, E4M3Format::nan, 8, 16};
    case T_E5M2X2: return {2, 5, E5M2Format::largest, E5M2Format::infinity, E5M2Format::nan, 8, 16};
    case T_E2M1X2: return {1, 2, 7, 7, 7, 4, 16};  // no NaN: the largest number
    case T_E2M3X2: return {3, 2, 31, 31, 31, 8, 16};
    default: return {2, 3, 31, 31, 31, 8, 16};  // e3m2
  }
}

// The random number is added to the discarded bits from the highest one on; its carry rounds away from zero. So the
// result is floor(magnitude / unit + random / 2^random_bits) units; below the least normal number the unit stays the same.
uint32_t rounded(float value, const Target& to, uint32_t random, uint32_t flags) {
  const bool negative = std::signbit(value);
  if (value != value) return to.nan;
  if ((flags & F_RELU) && negative) return 0;
  const uint32_t sign = negative ? 1u << to.sign_shift() : 0;
  const uint32_t beyond = (flags & F_SAT) ? to.largest : to.infinity;
  if (std::isinf(value)) return sign | beyond;
  const int least = 2 - (1 << (to.exponent - 1));  // exponent of the least normal number
  const double magnitude = std::fabs(static_cast<double>(value));
  const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), least) : least;
  const double units = std::ldexp(magnitude, to.mantissa - exponent);
  const double whole = std::floor(units + std::ldexp(static_cast<double>(random), -to.random_bits));
  const auto code = static_cast<int64_t>(whole) + (static_cast<int64_t>(exponent - least) << to.mantissa);
  return sign | (code > static_cast<int64_t>(to.largest) ? beyond : static_cast<uint32_t>(code));
}

uint32_t reversed(uint32_t sixteen) {
  uint32_t result = 0;
  for (int i = 0; i < 16; ++i) result |= (sixteen >> i & 1) << (15 - i);
  return result;
}

// Random bits of element i, 0 being the highest. Two elements have a half each. Of four, the higher two share one
// 16-bit number and the lower two another; the ISA shows in pictures only how they share it: measurements on sm_100a
// (FlashInfer's and torchao's comments) say that the first reads it backwards. Of e2m1 the numbers are the high bytes of
// both halves and the low bytes; that the upper half's byte is the higher one is an assumption.
uint32_t random_of(uint32_t bits, uint8_t type, int count, int i) {
  if (count == 2) return (i == 0 ? bits >> 16 : bits) & (type == T_F16X2 ? 0x1fffu : 0xffffu);
  const bool upper = i < 2;
  const uint32_t shared = type == T_E2M1X2 ? (bits >> (upper ? 24 : 16) & 0xff) << 8 | (bits >> (upper ? 8 : 0) & 0xff)
                                           : (upper ? bits >> 16 : bits & 0xffff);
  return i % 2 == 0 ? reversed(shared) : shared;
}

Step convert_stochastic(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const Target to = target_of(inst.type);
  const int32_t* sources = cta.pool(inst.vec);
  const int count = inst.nvec;
  for_lanes(mask, [&](int l) {
    const uint32_t random = w.reg<uint32_t>(inst.b)[l];
    uint32_t result = 0;
    for (int i = 0; i < count; ++i)
      result |= rounded(w.reg<float>(sources[i])[l], to, random_of(random, inst.type, count, i), inst.flags)
                << (count - 1 - i) * to.bits;
    w.reg<uint32_t>(inst.d)[l] = result;
  });
  return Step::Next;
}

bool stochastic(const Inst& inst) {
  if (inst.type == T_F16X2 || inst.type == T_BF16X2) return inst.nvec == 2;
  return inst.nvec == 4 && (inst.flags & F_SAT) &&
         (inst.type == T_E4M3X2 || inst.type == T_E5M2X2 || (inst.type >= T_E2M1X2 && inst.type <= T_E3M2X2));
}

// ---- cvt.pack

Step pack_integers(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto size = static_cast<int>(inst.imm);
  const bool is_signed = inst.type == T_S32;
  const int32_t low = is_signed ? -(1 << (size - 1)) : 0, high = (1 << (is_signed ? size - 1 : size)) - 1;
  const uint32_t field = (1u << size) - 1;
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  const auto* c = inst.c >= 0 ? w.reg<uint32_t>(inst.c) : nullptr;
  const auto clamped = [=](uint32_t x) {
    return static_cast<uint32_t>(std::clamp(static_cast<int32_t>(x), low, high)) & field;
  };
  write_lanes(w.reg<uint32_t>(inst.d), mask,
              [=](int l) { return (c ? c[l] << 2 * size : 0u) | clamped(a[l]) << size | clamped(b[l]); });
  return Step::Next;
}

}  // namespace

Handler bind_convert_many(const Inst& inst) {
  if (inst.op == OP_CVT_STOCHASTIC) return stochastic(inst) ? convert_stochastic : nullptr;
  if (inst.op != OP_CVT_PACK_INTEGERS || (inst.type != T_S32 && inst.type != T_U32)) return nullptr;
  const bool small = inst.imm == 2 || inst.imm == 4 || inst.imm == 8;
  return (small && inst.c >= 0) || (inst.imm == 16 && inst.c < 0) ? pack_integers : nullptr;
}
