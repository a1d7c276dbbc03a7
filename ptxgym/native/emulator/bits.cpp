// Logic, shifts, bit fields and byte permutation (PTX ISA 9.7.1, 9.7.8 and 9.7.9.7).
#include <algorithm>

#include "lanes.hpp"

namespace {

struct And {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(a & b);
  }
};
struct Or {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(a | b);
  }
};
struct Xor {
  template <class V>
  static V apply(V a, V b) {
    return static_cast<V>(a ^ b);
  }
};
struct Not {
  template <class V>
  static V apply(V a) {
    return static_cast<V>(~a);
  }
};
struct Cnot {
  template <class V>
  static V apply(V a) {
    return a == 0;
  }
};

struct Brev {
  template <class V>
  static V apply(V a) {
    V reversed = 0;
    for (int bit = 0; bit < BITS<V>; ++bit)
      reversed = static_cast<V>(reversed | ((a >> bit & 1) << (BITS<V> - 1 - bit)));
    return reversed;
  }
};
struct Clz {
  template <class V>
  static uint32_t apply(V a) {
    return a ? static_cast<uint32_t>(__builtin_clzll(a)) - (64 - BITS<V>) : BITS<V>;
  }
};
struct Popc {
  template <class V>
  static uint32_t apply(V a) {
    return static_cast<uint32_t>(__builtin_popcountll(a));
  }
};
// Position of the highest bit that differs from the sign; all ones where there is none.
template <class V>
inline uint32_t highest(V a) {
  Unsigned<V> bits = static_cast<Unsigned<V>>(a);
  if constexpr (IS_SIGNED<V>)
    if (a < 0) bits = static_cast<Unsigned<V>>(~bits);
  return bits ? 63u - static_cast<uint32_t>(__builtin_clzll(bits)) : ~0u;
}
struct Bfind {
  template <class V>
  static uint32_t apply(V a) {
    return highest(a);
  }
};
struct BfindShift {
  template <class V>
  static uint32_t apply(V a) {
    const uint32_t at = highest(a);
    return at == ~0u ? at : static_cast<uint32_t>(BITS<V>) - 1 - at;
  }
};

// ---- handlers with mixed operand widths

template <class V>
Step shift_left(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<V>>(inst.a);
  const auto* b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    return to_reg<V>(static_cast<V>(b[l] >= BITS<V> ? RegOf<V>{0} : a[l] << (b[l] & (BITS<V> == 64 ? 63 : 31))));
  });
  return Step::Next;
}
template <class V>
Step shift_right(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<V>>(inst.a);
  const auto* b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    const V value = from_reg<V>(a[l]);
    if constexpr (IS_SIGNED<V>)
      return to_reg<V>(static_cast<V>(value >> std::min<uint32_t>(b[l], BITS<V> - 1)));
    else
      return to_reg<V>(b[l] >= BITS<V> ? V{0} : static_cast<V>(value >> (b[l] & (BITS<V> - 1))));
  });
  return Step::Next;
}

template <bool LEFT, bool WRAP>
Step funnel_shift(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const uint32_t n = WRAP ? c[l] & 31 : std::min(c[l], 32u);
    const uint64_t both = uint64_t{b[l]} << 32 | a[l];
    return static_cast<uint32_t>(LEFT ? (both << n) >> 32 : both >> n);
  });
  return Step::Next;
}

// Start or length of a bit field. The PTX ISA restricts them to 0…255 and takes their lowest byte; an H200 does so in
// the 32-bit forms only: those of 64 bits are shifts by the whole operand, so that all from 64 on are the same.
template <class V>
inline uint32_t field_number(uint32_t operand) {
  return BITS<V> == 64 ? std::min(operand, 255u) : operand & 255;
}
template <class V>
Step extract_field(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<V>>(inst.a);
  const auto *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    const uint32_t pos = field_number<V>(b[l]), len = field_number<V>(c[l]), msb = BITS<V> - 1;
    const Unsigned<V> value = static_cast<Unsigned<V>>(a[l]);
    if (len == 0) return to_reg<V>(V{0});
    const bool sign = IS_SIGNED<V> && (value >> std::min(pos + len - 1, msb) & 1);
    const Unsigned<V> shifted = pos > msb ? 0 : static_cast<Unsigned<V>>(value >> pos);
    const uint32_t valid = pos > msb ? 0 : std::min(len, msb - pos + 1);
    const Unsigned<V> field = valid > msb ? ~Unsigned<V>{0} : static_cast<Unsigned<V>>((Unsigned<V>{1} << valid) - 1);
    return to_reg<V>(static_cast<V>((shifted & field) | (sign ? ~field : 0)));
  });
  return Step::Next;
}
template <class V>
Step insert_field(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  const auto *c = w.reg<uint32_t>(inst.c), *e = w.reg<uint32_t>(inst.e);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    const uint32_t pos = field_number<V>(c[l]), len = field_number<V>(e[l]), msb = BITS<V> - 1;
    if (pos > msb || len == 0) return b[l];
    const V ones = len > msb ? ~V{0} : static_cast<V>((V{1} << len) - 1);
    const V field = static_cast<V>(ones << pos);
    return to_reg<V>(static_cast<V>((b[l] & ~field) | ((a[l] << pos) & field)));
  });
  return Step::Next;
}

// mask a, base b, offset c
Step find_nth_set(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const int64_t offset = static_cast<int32_t>(c[l]);
    int64_t left = offset < 0 ? -offset : offset;
    if (offset == 0) return b[l] < 32 && (a[l] >> b[l] & 1) ? b[l] : ~0u;
    for (int64_t pos = b[l]; pos >= 0 && pos < 32; pos += offset > 0 ? 1 : -1)
      if ((a[l] >> pos & 1) && --left == 0) return static_cast<uint32_t>(pos);
    return ~0u;
  });
  return Step::Next;
}

template <bool WRAP>
Step bit_mask(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const uint32_t from = WRAP ? a[l] & 31 : std::min(a[l], 32u), size = WRAP ? b[l] & 31 : std::min(b[l], 32u);
    const uint64_t low = ~0ull << from, high = ~0ull << std::min(from + size, 32u);
    return static_cast<uint32_t>(low & ~high);
  });
  return Step::Next;
}
template <bool WRAP, bool SIGNED>
Step extend_sign(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    if (!WRAP && b[l] >= 32) return a[l];
    const uint32_t bits = b[l] & 31, upper = ~0u << bits;
    const bool sign = SIGNED && bits && (a[l] >> (bits - 1) & 1);
    return (a[l] & ~upper) | (sign ? upper : 0);
  });
  return Step::Next;
}

// Bytes of {b:a} by a selector of four nibbles, lowest first; the named modes are tables of such selectors (PTX
// ISA 9.7.9.7).
Step permute(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  static constexpr uint16_t modes[7][4] = {
      {0, 0, 0, 0},
      {0x3210, 0x4321, 0x5432, 0x6543},  // f4e
      {0x5670, 0x6701, 0x7012, 0x0123},  // b4e
      {0x0000, 0x1111, 0x2222, 0x3333},  // rc8
      {0x3210, 0x3211, 0x3222, 0x3333},  // ecl
      {0x0000, 0x1110, 0x2210, 0x3210},  // ecr
      {0x1010, 0x3232, 0x1010, 0x3232},  // rc16
  };
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  const int64_t mode = inst.imm;
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const uint64_t bytes = uint64_t{b[l]} << 32 | a[l];
    const uint32_t selector = mode ? modes[mode][c[l] & 3] : c[l];
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t nibble = selector >> (4 * i) & 15;
      uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7))) & 255;
      if (nibble & 8) byte = byte & 128 ? 255 : 0;
      result |= byte << (8 * i);
    }
    return result;
  });
  return Step::Next;
}

// ---- predicates

template <class Op>
Step logic_pred(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  w.set_pred(inst.d, mask, Op::template apply<uint32_t>(w.pred(inst.a), w.pred(inst.b)));
  return Step::Next;
}
Step not_pred(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  w.set_pred(inst.d, mask, ~w.pred(inst.a));
  return Step::Next;
}

Step lop3(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  uint32_t term[8];
  for (int i = 0; i < 8; ++i) term[i] = (inst.imm >> i & 1) ? FULL_MASK : 0;
  uint32_t result[LANES];
  for (int l = 0; l < LANES; ++l) {
    const uint32_t x = a[l], y = b[l], z = c[l];
    result[l] = (term[0] & ~x & ~y & ~z) | (term[1] & ~x & ~y & z) | (term[2] & ~x & y & ~z) | (term[3] & ~x & y & z) |
                (term[4] & x & ~y & ~z) | (term[5] & x & ~y & z) | (term[6] & x & y & ~z) | (term[7] & x & y & z);
  }
  if (inst.d2 >= 0) {
    const uint32_t q = (inst.flags & F_C_NOT) ? ~w.pred(inst.e) : w.pred(inst.e);
    const uint32_t some = lanes_where([&](int l) { return result[l] != 0; });
    w.set_pred(inst.d2, mask, mods_space(inst.mods) == B_AND ? (some & q) : (some | q));
  }
  if (inst.d >= 0) write_lanes(w.reg<uint32_t>(inst.d), mask, [&](int l) { return result[l]; });
  return Step::Next;
}

template <class Op>
Handler logic(const Inst& inst) {
  if (inst.type == T_PRED) return logic_pred<Op>;
  return by_bits(inst.type, [](auto v) -> Handler { return binary<Op, decltype(v)>; });
}
template <class Op>
Handler count_bits(const Inst& inst) {
  switch (inst.type) {
    case T_U32: return unary<Op, uint32_t, uint32_t>;
    case T_U64: return unary<Op, uint64_t, uint32_t>;
    case T_S32: return unary<Op, int32_t, uint32_t>;
    case T_S64: return unary<Op, int64_t, uint32_t>;
    default: return nullptr;
  }
}
}  // namespace

Handler bind_bits(const Inst& inst) {
  const bool wrap = inst.flags & F_WRAP, left = inst.flags & F_LEFT;
  switch (inst.op) {
    case OP_AND: return logic<And>(inst);
    case OP_OR: return logic<Or>(inst);
    case OP_XOR: return logic<Xor>(inst);
    case OP_NOT:
      return inst.type == T_PRED ? not_pred
                                 : by_bits(inst.type, [](auto v) -> Handler { return unary<Not, decltype(v)>; });
    case OP_CNOT: return by_bits(inst.type, [](auto v) -> Handler { return unary<Cnot, decltype(v)>; });
    case OP_LOP3: return lop3;
    case OP_SHL: return by_bits(inst.type, [](auto v) -> Handler { return shift_left<decltype(v)>; });
    case OP_SHR: return by_integer(inst.type, [](auto v) -> Handler { return shift_right<decltype(v)>; });
    case OP_SHF:
      return left ? (wrap ? funnel_shift<true, true> : funnel_shift<true, false>)
                  : (wrap ? funnel_shift<false, true> : funnel_shift<false, false>);
    case OP_BFE:
      return by_integer(inst.type,
                        [](auto v) -> Handler { return sizeof(v) < 4 ? nullptr : extract_field<decltype(v)>; });
    case OP_BFI:
      return inst.type == T_U64 ? insert_field<uint64_t> : inst.type == T_U32 ? insert_field<uint32_t> : nullptr;
    case OP_BFIND: return inst.flags & F_SHIFTAMT ? count_bits<BfindShift>(inst) : count_bits<Bfind>(inst);
    case OP_BREV: return inst.type == T_U64 ? unary<Brev, uint64_t> : unary<Brev, uint32_t>;
    case OP_CLZ: return inst.type == T_U64 ? unary<Clz, uint64_t, uint32_t> : unary<Clz, uint32_t, uint32_t>;
    case OP_POPC: return inst.type == T_U64 ? unary<Popc, uint64_t, uint32_t> : unary<Popc, uint32_t, uint32_t>;
    case OP_PRMT: return permute;
    case OP_FNS: return find_nth_set;
    case OP_BMSK: return wrap ? bit_mask<true> : bit_mask<false>;
    case OP_SZEXT:
      if (inst.type == T_S32) return wrap ? extend_sign<true, true> : extend_sign<false, true>;
      return wrap ? extend_sign<true, false> : extend_sign<false, false>;
    default: return nullptr;
  }
}
