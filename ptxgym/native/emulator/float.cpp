// Floating-point arithmetic (PTX ISA 9.7.3 to 9.7.5): IEEE results in the stated rounding, canonical NaNs.
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

template <class Op, class HalfOp>
Handler bind2(const Inst& inst) {
  if (Handler handler = choose_half<HalfOp, 2>(inst)) return handler;
  if (inst.type == T_F32X2) return inst.flags & F_FTZ ? float_pair<Op, true, 2> : float_pair<Op, false, 2>;
  return choose_float<Op, Pick2>(inst);
}

}  // namespace

Handler bind_float(const Inst& inst) {
  if (inst.flags & F_APPROX) return nullptr;
  switch (inst.op) {
    case OP_ADD: return bind2<FAdd, HAdd>(inst);
    case OP_SUB: return bind2<FSub, HSub>(inst);
    case OP_MUL: return bind2<FMul, HMul>(inst);
    case OP_FMA:
      if (Handler handler = choose_half<HFma, 3>(inst)) return handler;
      if (inst.type == T_F32X2) return inst.flags & F_FTZ ? float_pair<FFma, true, 3> : float_pair<FFma, false, 3>;
      return choose_float<FFma, Pick3>(inst);
    case OP_DIV: return choose_float<FDiv, Pick2>(inst);
    case OP_RCP: return choose_float<FRcp, Pick1>(inst);
    case OP_SQRT: return choose_float<FSqrt, Pick1>(inst);
    default: return nullptr;
  }
}
