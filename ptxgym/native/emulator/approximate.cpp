// Approximate functions (PTX ISA 9.7.3 and 9.7.5): computed in double and rounded once.
#include "numeric.hpp"

namespace {

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
// rsqrt.approx.f64 has the whole range and precision: GPUs compute it in software (PTX ISA 9.7.3.16).
template <class Op>
Step whole_f64(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<uint64_t>(inst.a);
  auto* d = w.reg<uint64_t>(inst.d);
  for_lanes(mask, [=](int l) { d[l] = bits_as<uint64_t>(canonical(Op::apply(bits_as<double>(a[l])))); });
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

}  // namespace

Handler bind_approximation(const Inst& inst) {
  switch (inst.op) {
    case OP_DIV:
      if (!(inst.flags & F_APPROX) || inst.type != T_F32) return nullptr;
      return inst.imm == 1 ? divide_approx<true> : divide_approx<false>;
    case OP_RCP:
      if (!(inst.flags & F_APPROX)) return nullptr;
      return inst.type == T_F64 ? approximate_f64<Rcp> : choose_approximation<Rcp>(inst);
    case OP_SQRT: return (inst.flags & F_APPROX) && inst.type == T_F32 ? approximate<Sqrt> : nullptr;
    case OP_RSQRT:
      if (inst.type != T_F64) return choose_approximation<Rsqrt>(inst);
      return inst.flags & F_FTZ ? approximate_f64<Rsqrt> : whole_f64<Rsqrt>;
    case OP_SIN: return choose_approximation<Sin>(inst);
    case OP_COS: return choose_approximation<Cos>(inst);
    case OP_LG2: return choose_approximation<Lg2>(inst);
    case OP_EX2: return choose_approximation<Ex2>(inst);
    case OP_TANH: return choose_approximation<Tanh>(inst);
    default: return nullptr;
  }
}
