// Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.6): IEEE results in the stated rounding, canonical NaNs, and
// approximations computed in double and rounded once.
#include <algorithm>
#include <limits>

#include "numeric.hpp"

namespace {

// ---- f32 and f64

struct FAdd {
  template <class V>
  static V apply(V a, V b) {
    return a + b;
  }
};
struct FSub {
  template <class V>
  static V apply(V a, V b) {
    return a - b;
  }
};
struct FMul {
  template <class V>
  static V apply(V a, V b) {
    return a * b;
  }
};
struct FDiv {
  template <class V>
  static V apply(V a, V b) {
    return a / b;
  }
};
struct FFma {
  template <class V>
  static V apply(V a, V b, V c) {
    return std::fma(a, b, c);
  }
};
struct FRcp {
  template <class V>
  static V apply(V a) {
    return V{1} / a;
  }
};
struct FSqrt {
  template <class V>
  static V apply(V a) {
    return std::sqrt(a);
  }
};

template <class V>
inline V canonical(V value) {
  if constexpr (sizeof(V) == 4)
    return value != value ? bits_as<V>(NAN_F32) : value;
  else
    return value != value ? bits_as<V>(NAN_F64) : value;
}
template <bool FTZ, bool SAT, class V>
inline V finish(V value) {
  if constexpr (FTZ && sizeof(V) == 4) value = flushed(value);
  if constexpr (SAT) return value > V{0} ? (value < V{1} ? value : V{1}) : V{0};  // NaN becomes +0
  return canonical(value);
}
template <bool FTZ, class V>
inline V operand(RegOf<V> bits) {
  if constexpr (FTZ && sizeof(V) == 4)
    return from_reg<V>(flushed(bits));
  else
    return from_reg<V>(bits);
}

template <class Op, class V, bool FTZ, bool SAT>
Step float1(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const RoundingScope scope(inst.flags);
  const auto* a = w.reg<RegOf<V>>(inst.a);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask,
              [=](int l) { return to_reg<V>(finish<FTZ, SAT>(Op::template apply<V>(operand<FTZ, V>(a[l])))); });
  return Step::Next;
}
template <class Op, class V, bool FTZ, bool SAT>
Step float2(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const RoundingScope scope(inst.flags);
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    return to_reg<V>(finish<FTZ, SAT>(Op::template apply<V>(operand<FTZ, V>(a[l]), operand<FTZ, V>(b[l]))));
  });
  return Step::Next;
}
template <class Op, class V, bool FTZ, bool SAT>
Step float3(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const RoundingScope scope(inst.flags);
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b), *c = w.reg<RegOf<V>>(inst.c);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    return to_reg<V>(
        finish<FTZ, SAT>(Op::template apply<V>(operand<FTZ, V>(a[l]), operand<FTZ, V>(b[l]), operand<FTZ, V>(c[l]))));
  });
  return Step::Next;
}
// Pairs of f32 in a 64-bit register.
template <class Op, bool FTZ, int SOURCES>
Step float_pair(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const RoundingScope scope(inst.flags);
  const auto *a = w.reg<uint64_t>(inst.a), *b = w.reg<uint64_t>(inst.b),
             *c = w.reg<uint64_t>(SOURCES == 3 ? inst.c : inst.b);
  const auto half = [](uint64_t bits, int i) { return operand<FTZ, float>(static_cast<uint32_t>(bits >> (32 * i))); };
  write_lanes(w.reg<uint64_t>(inst.d), mask, [=](int l) {
    uint64_t result = 0;
    for (int i = 0; i < 2; ++i) {
      float value;
      if constexpr (SOURCES == 3)
        value = Op::template apply<float>(half(a[l], i), half(b[l], i), half(c[l], i));
      else
        value = Op::template apply<float>(half(a[l], i), half(b[l], i));
      result |= static_cast<uint64_t>(to_reg<float>(finish<FTZ, false>(value))) << (32 * i);
    }
    return result;
  });
  return Step::Next;
}

template <class Op, template <class, class, bool, bool> class Pick>
Handler choose_float(const Inst& inst) {
  const bool ftz = inst.flags & F_FTZ, sat = inst.flags & F_SAT;
  if (inst.type == T_F64) return Pick<Op, double, false, false>::handler;
  if (inst.type != T_F32) return nullptr;
  if (sat) return ftz ? Pick<Op, float, true, true>::handler : Pick<Op, float, false, true>::handler;
  return ftz ? Pick<Op, float, true, false>::handler : Pick<Op, float, false, false>::handler;
}
template <class Op, class V, bool FTZ, bool SAT>
struct Pick1 {
  static constexpr Handler handler = float1<Op, V, FTZ, SAT>;
};
template <class Op, class V, bool FTZ, bool SAT>
struct Pick2 {
  static constexpr Handler handler = float2<Op, V, FTZ, SAT>;
};
template <class Op, class V, bool FTZ, bool SAT>
struct Pick3 {
  static constexpr Handler handler = float3<Op, V, FTZ, SAT>;
};

// ---- f16 and bf16: computed in double, rounded once. Sums and products of halves are exact in double or the double
// has more than twice the precision, so that rounding twice equals rounding once (Figueroa 1995). A fused product with
// a far smaller addend can lose the bit that breaks a tie; rounding the sum to odd keeps it (Boldo and Melquiond 2008).

struct HAdd {
  static double apply(double a, double b, double) { return a + b; }
};
struct HSub {
  static double apply(double a, double b, double) { return a - b; }
};
struct HMul {
  static double apply(double a, double b, double) { return a * b; }
};
struct HFma {
  static double apply(double a, double b, double c) {
    const double product = a * b, sum = product + c;
    const double back = sum - product, error = (product - (sum - back)) + (c - back);
    const uint64_t bits = bits_as<uint64_t>(sum);
    const bool adjust = error != 0 && error == error && !(bits & 1) && (bits >> 52 & 0x7ff) != 0x7ff;
    const uint64_t step = (error > 0) == (sum > 0) ? 1 : ~0ull;
    return adjust ? bits_as<double>(bits + step) : sum;
  }
};

struct HalfMode {
  bool ftz, sat, relu;
  explicit HalfMode(uint32_t flags) : ftz(flags & F_FTZ), sat(flags & F_SAT), relu(flags & F_RELU) {}
};
template <class H>
inline uint32_t flush_half(uint32_t bits) {
  return (bits & H::infinity) == 0 ? bits & 0x8000u : bits;
}
template <class H>
inline uint32_t finish_half(uint32_t bits, HalfMode mode) {
  if (mode.ftz) bits = flush_half<H>(bits);
  const bool nan = (bits & 0x7fffu) > H::infinity, negative = bits >> 15;
  if (mode.sat) return nan || negative ? 0 : std::min(bits, H::one);
  if (mode.relu) return nan ? NAN_HALF : negative ? 0 : bits;
  return bits;
}
template <class H, class Op>
inline uint32_t half_op(uint32_t a, uint32_t b, uint32_t c, HalfMode mode) {
  if (mode.ftz) a = flush_half<H>(a), b = flush_half<H>(b), c = flush_half<H>(c);
  return finish_half<H>(round_half<H>(Op::apply(H::to_float(a), H::to_float(b), H::to_float(c))), mode);
}
template <class H, class Op, bool PAIR, int SOURCES>
Step half_arith(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const HalfMode mode(inst.flags);
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b),
             *c = w.reg<uint32_t>(SOURCES == 3 ? inst.c : inst.b);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const uint32_t low = half_op<H, Op>(a[l] & 0xffff, b[l] & 0xffff, c[l] & 0xffff, mode);
    if (!PAIR) return low;
    return low | half_op<H, Op>(a[l] >> 16, b[l] >> 16, c[l] >> 16, mode) << 16;
  });
  return Step::Next;
}
template <class Op, int SOURCES>
Handler choose_half(const Inst& inst) {
  switch (inst.type) {
    case T_F16: return half_arith<Half, Op, false, SOURCES>;
    case T_F16X2: return half_arith<Half, Op, true, SOURCES>;
    case T_BF16: return half_arith<Brain, Op, false, SOURCES>;
    case T_BF16X2: return half_arith<Brain, Op, true, SOURCES>;
    default: return nullptr;
  }
}

// ---- minimum and maximum, on ordered bit patterns: -0 < +0

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
      case 4: return x >= SMALLEST_NORMAL && x < INFINITE;
      default: return x != 0 && x < SMALLEST_NORMAL;
    }
  });
  w.set_pred(inst.d, mask, bits);
  return Step::Next;
}

// ---- approximations

struct Ex2 {
  static double apply(double x) { return std::exp2(x); }
};
struct Lg2 {
  static double apply(double x) { return x < 0 ? std::nan("") : std::log2(x); }
};
struct Sin {
  static double apply(double x) { return std::sin(x); }
};
struct Cos {
  static double apply(double x) { return std::cos(x); }
};
struct Tanh {
  static double apply(double x) { return std::tanh(x); }
};
struct Rcp {
  static double apply(double x) { return 1.0 / x; }
};
struct Sqrt {
  static double apply(double x) { return std::sqrt(x); }
};
struct Rsqrt {
  static double apply(double x) { return 1.0 / std::sqrt(x); }
};

template <class Op>
Step approximate(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const bool ftz = inst.flags & F_FTZ;
  const auto* a = w.reg<uint32_t>(inst.a);
  auto* d = w.reg<uint32_t>(inst.d);
  for_lanes(mask, [=](int l) {
    const float x = bits_as<float>(ftz ? flushed(a[l]) : a[l]);
    const float result = canonical(static_cast<float>(Op::apply(x)));
    d[l] = bits_as<uint32_t>(ftz ? flushed(result) : result);
  });
  return Step::Next;
}
// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 work on the upper half of the operand and deliver the upper half of the
// result.
template <class Op>
Step approximate_f64(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto flush = [](uint64_t bits) { return (bits & 0x7ff0000000000000ull) == 0 ? bits & (1ull << 63) : bits; };
  const auto* a = w.reg<uint64_t>(inst.a);
  auto* d = w.reg<uint64_t>(inst.d);
  for_lanes(mask, [=](int l) {
    const double x = bits_as<double>(flush(a[l] & 0xffffffff00000000ull));
    d[l] = flush(bits_as<uint64_t>(canonical(Op::apply(x)))) & 0xffffffff00000000ull;
  });
  return Step::Next;
}
template <class Op, class H, bool PAIR>
Step approximate_half(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const bool ftz = inst.flags & F_FTZ;
  const auto one = [ftz](uint32_t bits) {
    if (ftz) bits = flush_half<H>(bits);
    const uint32_t result = round_half<H>(Op::apply(H::to_float(bits)));
    return ftz ? flush_half<H>(result) : result;
  };
  const auto* a = w.reg<uint32_t>(inst.a);
  auto* d = w.reg<uint32_t>(inst.d);
  for_lanes(mask, [=](int l) { d[l] = one(a[l] & 0xffff) | (PAIR ? one(a[l] >> 16) << 16 : 0); });
  return Step::Next;
}
template <class Op>
Handler choose_approximation(const Inst& inst) {
  switch (inst.type) {
    case T_F32: return approximate<Op>;
    case T_F16: return approximate_half<Op, Half, false>;
    case T_F16X2: return approximate_half<Op, Half, true>;
    case T_BF16: return approximate_half<Op, Brain, false>;
    case T_BF16X2: return approximate_half<Op, Brain, true>;
    default: return nullptr;
  }
}
// a times the reciprocal of b; beyond 2^126 the reciprocal is flushed (PTX ISA 9.7.3.8). div.full has the whole range.
template <bool FULL>
Step divide_approx(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const bool ftz = inst.flags & F_FTZ;
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const uint32_t x = ftz ? flushed(a[l]) : a[l], y = ftz ? flushed(b[l]) : b[l];
    const double dividend = bits_as<float>(x), divisor = bits_as<float>(y);
    float result = static_cast<float>(dividend / divisor);
    const bool flushes = !FULL && std::fabs(divisor) > 0x1p126 && std::fabs(divisor) < 0x1p128;
    if (flushes) result = bits_as<float>((x & 0x7fffffffu) >= 0x7f800000u ? NAN_F32 : (x ^ y) & 0x80000000u);
    result = canonical(result);
    return bits_as<uint32_t>(ftz ? flushed(result) : result);
  });
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
bool is_packed(uint8_t type) { return type == T_F16X2 || type == T_BF16X2; }
bool is_float(uint8_t type) {
  return type == T_F32 || type == T_F64 || type == T_F16 || type == T_BF16 || is_packed(type);
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
  uint32_t truth = FULL_MASK;
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
  const bool packed = is_packed(inst.type);
  const uint32_t high = packed ? combine(w, inst, compare_operands(w, inst, inst.stype, true)) : 0;
  write_lanes(w.reg<uint32_t>(inst.d), mask,
              [=](int l) { return ((low >> l & 1) ? truth : 0u) | (packed && (high >> l & 1) ? truth << 16 : 0u); });
  return Step::Next;
}

template <class Op, class HalfOp>
Handler bind2(const Inst& inst) {
  if (Handler handler = choose_half<HalfOp, 2>(inst)) return handler;
  if (inst.type == T_F32X2) return inst.flags & F_FTZ ? float_pair<Op, true, 2> : float_pair<Op, false, 2>;
  return choose_float<Op, Pick2>(inst);
}

}  // namespace

Handler bind_float(const Inst& inst) {
  const bool approx = inst.flags & F_APPROX;
  if (inst.op == OP_SET) return is_float(inst.stype) ? set_value : nullptr;
  if (inst.op == OP_SETP) return is_float(inst.type) ? set_predicate : nullptr;
  switch (inst.op) {
    case OP_ADD: return bind2<FAdd, HAdd>(inst);
    case OP_SUB: return bind2<FSub, HSub>(inst);
    case OP_MUL: return bind2<FMul, HMul>(inst);
    case OP_FMA:
      if (Handler handler = choose_half<HFma, 3>(inst)) return handler;
      if (inst.type == T_F32X2) return inst.flags & F_FTZ ? float_pair<FFma, true, 3> : float_pair<FFma, false, 3>;
      return choose_float<FFma, Pick3>(inst);
    case OP_DIV:
      if (!approx) return choose_float<FDiv, Pick2>(inst);
      return inst.type != T_F32 ? nullptr : inst.imm == 1 ? divide_approx<true> : divide_approx<false>;
    case OP_RCP:
      if (!approx) return choose_float<FRcp, Pick1>(inst);
      return inst.type == T_F64 ? approximate_f64<Rcp> : choose_approximation<Rcp>(inst);
    case OP_SQRT:
      if (!approx) return choose_float<FSqrt, Pick1>(inst);
      return inst.type == T_F32 ? approximate<Sqrt> : nullptr;
    case OP_RSQRT: return inst.type == T_F64 ? approximate_f64<Rsqrt> : choose_approximation<Rsqrt>(inst);
    case OP_SIN: return choose_approximation<Sin>(inst);
    case OP_COS: return choose_approximation<Cos>(inst);
    case OP_LG2: return choose_approximation<Lg2>(inst);
    case OP_EX2: return choose_approximation<Ex2>(inst);
    case OP_TANH: return choose_approximation<Tanh>(inst);
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
