// Minima, signs, properties and comparisons of floating-point numbers (PTX ISA 9.7.3 to 9.7.7).
#include <algorithm>

#include "numeric.hpp"

namespace {

bool is_packed(uint8_t type) { return type == T_F16X2 || type == T_BF16X2; }
bool is_float(uint8_t type) {
  return type == T_F32 || type == T_F64 || type == T_F16 || type == T_BF16 || is_packed(type);
}

// ---- minimum and maximum

template <bool MAX>
Step extreme_f32(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint32_t flags = inst.flags;
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  const auto* c = inst.c >= 0 ? w.reg<uint32_t>(inst.c) : nullptr;
  const auto in = [flags](uint32_t bits) { return flags & F_FTZ ? flushed(bits) : bits; };
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    uint32_t result = extreme<uint32_t, 0x7f800000u, NAN_F32, MAX>(in(a[l]), in(b[l]), flags);
    if (c) result = extreme<uint32_t, 0x7f800000u, NAN_F32, MAX>(result, in(c[l]), flags);
    return result;
  });
  return Step::Next;
}
template <bool MAX>
Step extreme_f64(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint64_t>(inst.a), *b = w.reg<uint64_t>(inst.b);
  write_lanes(w.reg<uint64_t>(inst.d), mask,
              [=](int l) { return extreme<uint64_t, 0x7ff0000000000000ull, NAN_F64, MAX>(a[l], b[l], 0); });
  return Step::Next;
}
template <class H, bool PAIR, bool MAX>
Step extreme_half(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint32_t flags = inst.flags;
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  const auto one = [flags](uint32_t x, uint32_t y) -> uint32_t {
    if (flags & F_FTZ) x = flush_half<H>(x), y = flush_half<H>(y);
    return extreme<uint16_t, static_cast<uint16_t>(H::infinity), NAN_HALF, MAX>(static_cast<uint16_t>(x),
                                                                                static_cast<uint16_t>(y), flags);
  };
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const uint32_t low = one(a[l] & 0xffff, b[l] & 0xffff);
    return PAIR ? low | one(a[l] >> 16, b[l] >> 16) << 16 : low;
  });
  return Step::Next;
}
template <bool MAX>
Handler choose_extreme(const Inst& inst) {
  switch (inst.type) {
    case T_F32: return extreme_f32<MAX>;
    case T_F64: return extreme_f64<MAX>;
    case T_F16: return extreme_half<Half, false, MAX>;
    case T_F16X2: return extreme_half<Half, true, MAX>;
    case T_BF16: return extreme_half<Brain, false, MAX>;
    case T_BF16X2: return extreme_half<Brain, true, MAX>;
    default: return nullptr;
  }
}

// ---- signs: on bits; subnormals are flushed where .ftz says so

enum class Sign { Clear, Flip };
template <Sign HOW>
Step change_sign(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto change = [](uint64_t bits, uint64_t sign) { return HOW == Sign::Clear ? bits & ~sign : bits ^ sign; };
  const bool ftz = inst.flags & F_FTZ;
  if (inst.type == T_F64) {
    const auto* a = w.reg<uint64_t>(inst.a);
    write_lanes(w.reg<uint64_t>(inst.d), mask, [=](int l) { return change(a[l], 1ull << 63); });
    return Step::Next;
  }
  const auto* a = w.reg<uint32_t>(inst.a);
  const uint32_t sign = inst.type == T_F32                          ? 0x80000000u
                        : inst.type == T_F16 || inst.type == T_BF16 ? 0x8000u
                                                                    : 0x80008000u;
  const bool half = inst.type == T_F16 || inst.type == T_F16X2;
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    uint32_t bits = a[l];
    if (ftz) bits = half ? flush_half<Half>(bits & 0xffff) | flush_half<Half>(bits >> 16) << 16 : flushed(bits);
    return static_cast<uint32_t>(change(bits, sign));
  });
  return Step::Next;
}
template <class R>
Step copy_sign(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  constexpr R sign = R{1} << (sizeof(R) * 8 - 1);
  const auto *a = w.reg<R>(inst.a), *b = w.reg<R>(inst.b);
  write_lanes(w.reg<R>(inst.d), mask, [=](int l) { return (a[l] & sign) | (b[l] & ~sign); });
  return Step::Next;
}
template <class R, R INFINITE, R SMALLEST_NORMAL>
Step test_property(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<R>(inst.a);
  const int64_t which = inst.imm;
  const uint32_t bits = lanes_where([=](int l) {
    const R x = a[l] & static_cast<R>(~R{0} >> 1);
    switch (which) {
      case 0: return x < INFINITE;
      case 1: return x == INFINITE;
      case 2: return x <= INFINITE;
      case 3: return x > INFINITE;
      case 4: return x == 0 || (x >= SMALLEST_NORMAL && x < INFINITE);  // zeros count as normal
      default: return x != 0 && x < SMALLEST_NORMAL;
    }
  });
  w.set_pred(inst.d, mask, bits);
  return Step::Next;
}

// ---- comparisons

template <class V>
uint32_t compare(const V* a, const V* b, uint8_t cmp) {
  const auto where = [=](auto holds) { return lanes_where([=](int l) { return holds(a[l], b[l]); }); };
  switch (cmp) {  // the ordered ones fail with a NaN, the unordered ones (…U) hold
    case C_EQ: return where([](V x, V y) { return x == y; });
    case C_NE: return where([](V x, V y) { return x < y || x > y; });
    case C_LT: return where([](V x, V y) { return x < y; });
    case C_LE: return where([](V x, V y) { return x <= y; });
    case C_GT: return where([](V x, V y) { return x > y; });
    case C_GE: return where([](V x, V y) { return x >= y; });
    case C_EQU: return where([](V x, V y) { return !(x < y || x > y); });
    case C_NEU: return where([](V x, V y) { return x != y; });
    case C_LTU: return where([](V x, V y) { return !(x >= y); });
    case C_LEU: return where([](V x, V y) { return !(x > y); });
    case C_GTU: return where([](V x, V y) { return !(x <= y); });
    case C_GEU: return where([](V x, V y) { return !(x < y); });
    case C_NUM: return where([](V x, V y) { return x == x && y == y; });
    default: return where([](V x, V y) { return x != x || y != y; });
  }
}
// Operands of a comparison as doubles or floats, for one half of a packed type.
uint32_t compare_operands(Warp& w, const Inst& inst, uint8_t type, bool upper) {
  const uint8_t cmp = mods_low(inst.mods);
  if (type == T_F64) return compare(w.reg<double>(inst.a), w.reg<double>(inst.b), cmp);
  alignas(64) float x[LANES], y[LANES];
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  const int shift = upper ? 16 : 0;
  const bool ftz = inst.flags & F_FTZ;
  if (type == T_F32) {
    if (!ftz) return compare(w.reg<float>(inst.a), w.reg<float>(inst.b), cmp);
    for (int l = 0; l < LANES; ++l) x[l] = bits_as<float>(flushed(a[l])), y[l] = bits_as<float>(flushed(b[l]));
  } else if (type == T_F16 || type == T_F16X2) {
    const auto in = [=](uint32_t bits) { return Half::to_float(ftz ? flush_half<Half>(bits) : bits); };
    for (int l = 0; l < LANES; ++l) x[l] = in(a[l] >> shift & 0xffff), y[l] = in(b[l] >> shift & 0xffff);
  } else {
    for (int l = 0; l < LANES; ++l)
      x[l] = Brain::to_float(a[l] >> shift & 0xffff), y[l] = Brain::to_float(b[l] >> shift & 0xffff);
  }
  return compare(x, y, cmp);
}
Step set_predicate(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint32_t low = compare_operands(w, inst, inst.type, false);
  const uint32_t second = is_packed(inst.type) ? compare_operands(w, inst, inst.type, true) : ~low;
  const uint32_t first = combine(w, inst, low), other = combine(w, inst, second);
  if (inst.d >= 0) w.set_pred(inst.d, mask, first);
  if (inst.d2 >= 0) w.set_pred(inst.d2, mask, other);
  return Step::Next;
}
Step set_value(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint32_t low = combine(w, inst, compare_operands(w, inst, inst.stype, false));
  const bool packed = is_packed(inst.stype);
  uint32_t truth = packed ? 0xffff : FULL_MASK;  // an integer result holds one half per half of the sources
  switch (inst.type) {
    case T_F32: truth = 0x3f800000u; break;
    case T_F16:
    case T_F16X2: truth = Half::one; break;
    case T_BF16:
    case T_BF16X2: truth = Brain::one; break;
    case T_U16:
    case T_S16: truth = 0xffff; break;
    default: break;
  }
  const uint32_t high = packed ? combine(w, inst, compare_operands(w, inst, inst.stype, true)) : 0;
  write_lanes(w.reg<uint32_t>(inst.d), mask,
              [=](int l) { return ((low >> l & 1) ? truth : 0u) | (packed && (high >> l & 1) ? truth << 16 : 0u); });
  return Step::Next;
}

}  // namespace

Handler bind_float_bits(const Inst& inst) {
  switch (inst.op) {
    case OP_SET: return is_float(inst.stype) ? set_value : nullptr;
    case OP_SETP: return is_float(inst.type) ? set_predicate : nullptr;
    case OP_ABS: return is_float(inst.type) ? change_sign<Sign::Clear> : nullptr;
    case OP_NEG: return is_float(inst.type) ? change_sign<Sign::Flip> : nullptr;
    case OP_MIN: return choose_extreme<false>(inst);
    case OP_MAX: return choose_extreme<true>(inst);
    case OP_COPYSIGN:
      return inst.type == T_F64 ? copy_sign<uint64_t> : inst.type == T_F32 ? copy_sign<uint32_t> : nullptr;
    case OP_TESTP:
      if (inst.type == T_F64) return test_property<uint64_t, 0x7ff0000000000000ull, 0x0010000000000000ull>;
      return inst.type == T_F32 ? test_property<uint32_t, 0x7f800000u, 0x00800000u> : nullptr;
    default: return nullptr;
  }
}
