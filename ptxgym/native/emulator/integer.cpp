// Integer arithmetic (PTX ISA 9.7.1 and 9.7.2).
#include <algorithm>

#include "lanes.hpp"

namespace {

template <class V>
struct WiderOf;
template <>
struct WiderOf<uint16_t> {
  using type = uint32_t;
};
template <>
struct WiderOf<int16_t> {
  using type = int32_t;
};
template <>
struct WiderOf<uint32_t> {
  using type = uint64_t;
};
template <>
struct WiderOf<int32_t> {
  using type = int64_t;
};
template <>
struct WiderOf<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct WiderOf<int64_t> {
  using type = __int128;
};
template <class V>
using Wider = typename WiderOf<V>::type;

// Wrapping arithmetic happens in an unsigned type of at least 32 bits: no overflow is undefined then.
template <class V>
using Work = std::conditional_t<sizeof(V) == 8, uint64_t, uint32_t>;

struct Add {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(Work<V>(a) + Work<V>(b));
  }
};
struct Sub {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(Work<V>(a) - Work<V>(b));
  }
};
// The same on two halves of 16 bits.
template <class Op, class Half>
struct Halves {
  template <class V>
  static V apply(V a, V b) {
    const auto half = [&](int shift) {
      const Half result = Op::template apply<Half>(static_cast<Half>(a >> shift), static_cast<Half>(b >> shift));
      return static_cast<uint32_t>(static_cast<uint16_t>(result)) << shift;
    };
    return half(0) | half(16);
  }
};
template <class Op>
Handler packed2(const Inst& inst) {
  if (inst.type == T_U16X2) return binary<Halves<Op, uint16_t>, uint32_t>;
  return binary<Halves<Op, int16_t>, uint32_t>;
}

struct AddSat {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(std::clamp<int64_t>(int64_t{a} + b, INT32_MIN, INT32_MAX));
  }
};
struct SubSat {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(std::clamp<int64_t>(int64_t{a} - b, INT32_MIN, INT32_MAX));
  }
};
struct MulLo {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(Work<V>(a) * Work<V>(b));
  }
};
struct MulHi {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>((Wider<V>(a) * Wider<V>(b)) >> BITS<V>);
  }
};
struct MulWide {
  template <class V>
  static Wider<V> apply(V a, V b) {
    return static_cast<Wider<V>>(Wider<V>(a) * Wider<V>(b));
  }
};
struct MadLo {
  template <class V>
  static V apply(V a, V b, V c) {
    return Add::apply<V>(MulLo::apply<V>(a, b), c);
  }
};
struct MadHi {
  template <class V>
  static V apply(V a, V b, V c) {
    return Add::apply<V>(MulHi::apply<V>(a, b), c);
  }
};
struct MadHiSat {
  template <class V>
  static V apply(V a, V b, V c) {
    return AddSat::apply<V>(MulHi::apply<V>(a, b), c);
  }
};
struct MadWide {
  template <class V>
  static Wider<V> apply(V a, V b, Wider<V> c) {
    return Add::apply<Wider<V>>(MulWide::apply<V>(a, b), c);
  }
};
// Only the low 24 bits of the operands count.
template <class V>
inline int64_t product24(V a, V b) {
  if constexpr (IS_SIGNED<V>)
    return (int64_t{static_cast<int32_t>(uint32_t(a) << 8)} >> 8) *
           (int64_t{static_cast<int32_t>(uint32_t(b) << 8)} >> 8);
  else
    return static_cast<int64_t>(uint64_t(a & 0xffffffu) * (b & 0xffffffu));
}
struct Mul24Lo {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(product24(a, b));
  }
};
struct Mul24Hi {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(product24(a, b) >> 16);
  }
};
struct Mad24Lo {
  template <class V>
  static V apply(V a, V b, V c) {
    return Add::apply<V>(Mul24Lo::apply<V>(a, b), c);
  }
};
struct Mad24Hi {
  template <class V>
  static V apply(V a, V b, V c) {
    return Add::apply<V>(Mul24Hi::apply<V>(a, b), c);
  }
};
struct Mad24HiSat {
  template <class V>
  static V apply(V a, V b, V c) {
    return AddSat::apply<V>(Mul24Hi::apply<V>(a, b), c);
  }
};

// Division by zero is machine specific in PTX: quotient and remainder are all ones on an H200. MIN / -1 wraps.
struct Div {
  template <class V>
  static V apply(V a, V b) {
    if (b == 0) return static_cast<V>(~V{0});
    if constexpr (IS_SIGNED<V>)
      if (b == -1) return Sub::apply<V>(0, a);
    return static_cast<V>(a / b);
  }
};
struct Rem {
  template <class V>
  static V apply(V a, V b) {
    if (b == 0) return static_cast<V>(~V{0});
    if constexpr (IS_SIGNED<V>)
      if (b == -1) return 0;
    return static_cast<V>(a % b);
  }
};
struct Abs {
  template <class V>
  static V apply(V a) {
    return a < 0 ? Sub::apply<V>(0, a) : a;
  }
};
struct Neg {
  template <class V>
  static V apply(V a) {
    return Sub::apply<V>(0, a);
  }
};
struct Min {
  template <class V>
  static V apply(V a, V b) {
    return b < a ? b : a;
  }
};
struct Max {
  template <class V>
  static V apply(V a, V b) {
    return a < b ? b : a;
  }
};
struct MinRelu {
  template <class V>
  static V apply(V a, V b) {
    return std::max<V>(Min::apply<V>(a, b), 0);
  }
};
struct MaxRelu {
  template <class V>
  static V apply(V a, V b) {
    return std::max<V>(Max::apply<V>(a, b), 0);
  }
};
struct Sad {
  template <class V>
  static V apply(V a, V b, V c) {
    return Add::apply<V>(a < b ? Sub::apply<V>(b, a) : Sub::apply<V>(a, b), c);
  }
};

// ---- carry chains: the carry flag is a hidden predicate, named in e and d2

struct AddPair {
  template <class W>
  static W apply(W a, W b, W carry, bool& out) {
    const unsigned __int128 sum = static_cast<unsigned __int128>(a) + b + carry;
    out = (sum >> BITS<W>)&1;
    return static_cast<W>(sum);
  }
};
// A subtraction adds the complement: its flag says that nothing is borrowed, also to an addition that follows
// (tests/golden, lanes/sub.cc.u32 …; addc.u32 …).
struct SubPair {
  template <class W>
  static W apply(W a, W b, W carry, bool& out) {
    return AddPair::apply<W>(a, static_cast<W>(~b), carry, out);
  }
};
enum class Source { Plain, MadLo, MadHi };
template <class V, class Op, Source SOURCE>
Step carry(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  using W = Unsigned<V>;
  const int32_t flag = inst.e >= 0 ? inst.e : inst.d2;
  const uint32_t in = (inst.flags & F_CC_IN) ? w.pred(flag) : std::is_same_v<Op, SubPair> ? ~0u : 0;
  uint32_t out = 0;
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  const auto* c = SOURCE == Source::Plain ? nullptr : w.reg<RegOf<V>>(inst.c);
  auto* d = w.reg<RegOf<V>>(inst.d);
  for_lanes(mask, [&](int l) {
    W x = static_cast<W>(a[l]), y = static_cast<W>(b[l]);
    if constexpr (SOURCE == Source::MadLo)
      x = static_cast<W>(MulLo::apply<V>(from_reg<V>(a[l]), from_reg<V>(b[l]))), y = static_cast<W>(c[l]);
    if constexpr (SOURCE == Source::MadHi)
      x = static_cast<W>(MulHi::apply<V>(from_reg<V>(a[l]), from_reg<V>(b[l]))), y = static_cast<W>(c[l]);
    bool carried = false;
    d[l] = Op::template apply<W>(x, y, static_cast<W>(in >> l & 1), carried);
    out |= static_cast<uint32_t>(carried) << l;
  });
  if (inst.flags & F_CC_OUT) w.set_pred(flag, mask, out);
  return Step::Next;
}

// ---- dot products of bytes

int32_t byte_of(uint32_t word, int index, bool is_signed) {
  const uint32_t byte = word >> (8 * index) & 255;
  return is_signed ? static_cast<int8_t>(byte) : static_cast<int32_t>(byte);
}
Step dot4(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  const bool as = inst.stype == T_S32, bs = inst.flags & F_B_SIGNED;
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    uint32_t sum = c[l];
    for (int i = 0; i < 4; ++i) sum += static_cast<uint32_t>(byte_of(a[l], i, as) * byte_of(b[l], i, bs));
    return sum;
  });
  return Step::Next;
}
Step dot2(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  const bool as = inst.stype == T_S32, bs = inst.flags & F_B_SIGNED;
  const int upper = inst.flags & F_HI ? 2 : 0;
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    uint32_t sum = c[l];
    for (int i = 0; i < 2; ++i) {
      const uint32_t half = a[l] >> (16 * i) & 0xffff;
      const int32_t x = as ? static_cast<int16_t>(half) : static_cast<int32_t>(half);
      sum += static_cast<uint32_t>(x * byte_of(b[l], upper + i, bs));
    }
    return sum;
  });
  return Step::Next;
}

template <class Op>
Handler integer2(const Inst& inst) {
  return by_integer(inst.type, [](auto v) -> Handler { return binary<Op, decltype(v)>; });
}
template <class Op>
Handler integer3(const Inst& inst) {
  return by_integer(inst.type, [](auto v) -> Handler { return ternary<Op, decltype(v)>; });
}
template <class Op, Source SOURCE>
Handler with_carry(const Inst& inst) {
  switch (inst.type) {
    case T_U32: return carry<uint32_t, Op, SOURCE>;
    case T_S32: return carry<int32_t, Op, SOURCE>;
    case T_U64: return carry<uint64_t, Op, SOURCE>;
    case T_S64: return carry<int64_t, Op, SOURCE>;
    default: return nullptr;
  }
}

}  // namespace

Handler bind_integer(const Inst& inst) {
  const bool chained = inst.flags & (F_CC_IN | F_CC_OUT), saturating = inst.flags & F_SAT;
  const bool relu = inst.flags & F_RELU, signed32 = inst.type == T_S32;
  const bool packed16 = inst.type == T_U16X2 || inst.type == T_S16X2;
  switch (inst.op) {
    case OP_ADD:
      if (packed16) return packed2<Add>(inst);
      return chained       ? with_carry<AddPair, Source::Plain>(inst)
             : !saturating ? integer2<Add>(inst)
             : signed32    ? binary<AddSat, int32_t>
                           : nullptr;
    case OP_SUB:
      return chained       ? with_carry<SubPair, Source::Plain>(inst)
             : !saturating ? integer2<Sub>(inst)
             : signed32    ? binary<SubSat, int32_t>
                           : nullptr;
    case OP_MUL_LO: return integer2<MulLo>(inst);
    case OP_MUL_HI: return integer2<MulHi>(inst);
    case OP_MAD_LO: return chained ? with_carry<AddPair, Source::MadLo>(inst) : integer3<MadLo>(inst);
    case OP_MAD_HI:
      return chained       ? with_carry<AddPair, Source::MadHi>(inst)
             : !saturating ? integer3<MadHi>(inst)
             : signed32    ? ternary<MadHiSat, int32_t>
                           : nullptr;
    case OP_MUL_WIDE:
      switch (inst.stype) {
        case T_U16: return binary<MulWide, uint16_t, uint32_t>;
        case T_S16: return binary<MulWide, int16_t, int32_t>;
        case T_U32: return binary<MulWide, uint32_t, uint64_t>;
        case T_S32: return binary<MulWide, int32_t, int64_t>;
        default: return nullptr;
      }
    case OP_MAD_WIDE:
      switch (inst.stype) {
        case T_U16: return ternary<MadWide, uint16_t, uint32_t>;
        case T_S16: return ternary<MadWide, int16_t, int32_t>;
        case T_U32: return ternary<MadWide, uint32_t, uint64_t>;
        case T_S32: return ternary<MadWide, int32_t, int64_t>;
        default: return nullptr;
      }
    case OP_MUL24:
      if (inst.imm) return signed32 ? binary<Mul24Hi, int32_t> : binary<Mul24Hi, uint32_t>;
      return signed32 ? binary<Mul24Lo, int32_t> : binary<Mul24Lo, uint32_t>;
    case OP_MAD24:
      if (inst.imm && saturating) return signed32 ? ternary<Mad24HiSat, int32_t> : nullptr;
      if (inst.imm) return signed32 ? ternary<Mad24Hi, int32_t> : ternary<Mad24Hi, uint32_t>;
      return signed32 ? ternary<Mad24Lo, int32_t> : ternary<Mad24Lo, uint32_t>;
    case OP_DIV: return integer2<Div>(inst);
    case OP_REM: return integer2<Rem>(inst);
    case OP_ABS:
      return inst.type == T_S16   ? unary<Abs, int16_t>
             : signed32           ? unary<Abs, int32_t>
             : inst.type == T_S64 ? unary<Abs, int64_t>
                                  : nullptr;
    case OP_NEG: return by_integer(inst.type, [](auto v) -> Handler { return unary<Neg, decltype(v)>; });
    case OP_MIN:
      if (packed16) return relu ? packed2<MinRelu>(inst) : packed2<Min>(inst);
      return inst.c >= 0 ? nullptr : !relu ? integer2<Min>(inst) : signed32 ? binary<MinRelu, int32_t> : nullptr;
    case OP_MAX:
      if (packed16) return relu ? packed2<MaxRelu>(inst) : packed2<Max>(inst);
      return inst.c >= 0 ? nullptr : !relu ? integer2<Max>(inst) : signed32 ? binary<MaxRelu, int32_t> : nullptr;
    case OP_SAD: return integer3<Sad>(inst);
    case OP_DP4A: return dot4;
    case OP_DP2A: return dot2;
    default: return nullptr;
  }
}
