// Integer arithmetic, logic, bit fields and moves (PTX ISA 9.7.1, 9.7.2, 9.7.6 to 9.7.9).
#include <algorithm>
#include "lanes.hpp"

namespace {

template <class V> using Unsigned = std::make_unsigned_t<V>;
template <class V> constexpr bool IS_SIGNED = std::is_signed_v<V>;
template <class V> constexpr int BITS = static_cast<int>(sizeof(V) * 8);
template <class V> struct WiderOf;
template <> struct WiderOf<uint16_t> { using type = uint32_t; };
template <> struct WiderOf<int16_t> { using type = int32_t; };
template <> struct WiderOf<uint32_t> { using type = uint64_t; };
template <> struct WiderOf<int32_t> { using type = int64_t; };
template <> struct WiderOf<uint64_t> { using type = unsigned __int128; };
template <> struct WiderOf<int64_t> { using type = __int128; };
template <class V> using Wider = typename WiderOf<V>::type;

// Wrapping arithmetic happens in an unsigned type of at least 32 bits: no overflow is undefined then.
template <class V> using Work = std::conditional_t<sizeof(V) == 8, uint64_t, uint32_t>;

struct Add { template <class V> static V apply(V a, V b) { return static_cast<V>(Work<V>(a) + Work<V>(b)); } };
struct Sub { template <class V> static V apply(V a, V b) { return static_cast<V>(Work<V>(a) - Work<V>(b)); } };
struct AddSat {
  template <class V> static V apply(V a, V b) { return static_cast<V>(std::clamp<int64_t>(int64_t{a} + b, INT32_MIN, INT32_MAX)); }
};
struct SubSat {
  template <class V> static V apply(V a, V b) { return static_cast<V>(std::clamp<int64_t>(int64_t{a} - b, INT32_MIN, INT32_MAX)); }
};
struct MulLo { template <class V> static V apply(V a, V b) { return static_cast<V>(Work<V>(a) * Work<V>(b)); } };
struct MulHi { template <class V> static V apply(V a, V b) { return static_cast<V>((Wider<V>(a) * Wider<V>(b)) >> BITS<V>); } };
struct MulWide { template <class V> static Wider<V> apply(V a, V b) { return static_cast<Wider<V>>(Wider<V>(a) * Wider<V>(b)); } };
struct MadLo { template <class V> static V apply(V a, V b, V c) { return Add::apply<V>(MulLo::apply<V>(a, b), c); } };
struct MadHi { template <class V> static V apply(V a, V b, V c) { return Add::apply<V>(MulHi::apply<V>(a, b), c); } };
struct MadHiSat { template <class V> static V apply(V a, V b, V c) { return AddSat::apply<V>(MulHi::apply<V>(a, b), c); } };
struct MadWide {
  template <class V> static Wider<V> apply(V a, V b, Wider<V> c) { return Add::apply<Wider<V>>(MulWide::apply<V>(a, b), c); }
};
// Only the low 24 bits of the operands count.
template <class V> inline int64_t product24(V a, V b) {
  if constexpr (IS_SIGNED<V>)
    return (int64_t{static_cast<int32_t>(uint32_t(a) << 8)} >> 8) * (int64_t{static_cast<int32_t>(uint32_t(b) << 8)} >> 8);
  else return static_cast<int64_t>(uint64_t(a & 0xffffffu) * (b & 0xffffffu));
}
struct Mul24Lo { template <class V> static V apply(V a, V b) { return static_cast<V>(product24(a, b)); } };
struct Mul24Hi { template <class V> static V apply(V a, V b) { return static_cast<V>(product24(a, b) >> 16); } };
struct Mad24Lo { template <class V> static V apply(V a, V b, V c) { return Add::apply<V>(Mul24Lo::apply<V>(a, b), c); } };
struct Mad24Hi { template <class V> static V apply(V a, V b, V c) { return Add::apply<V>(Mul24Hi::apply<V>(a, b), c); } };
struct Mad24HiSat { template <class V> static V apply(V a, V b, V c) { return AddSat::apply<V>(Mul24Hi::apply<V>(a, b), c); } };

// Division by zero is machine specific in PTX: all ones, and the dividend as remainder. MIN / -1 wraps.
struct Div {
  template <class V> static V apply(V a, V b) {
    if (b == 0) return static_cast<V>(~V{0});
    if constexpr (IS_SIGNED<V>) if (b == -1) return Sub::apply<V>(0, a);
    return static_cast<V>(a / b);
  }
};
struct Rem {
  template <class V> static V apply(V a, V b) {
    if (b == 0) return a;
    if constexpr (IS_SIGNED<V>) if (b == -1) return 0;
    return static_cast<V>(a % b);
  }
};
struct Abs { template <class V> static V apply(V a) { return a < 0 ? Sub::apply<V>(0, a) : a; } };
struct Neg { template <class V> static V apply(V a) { return Sub::apply<V>(0, a); } };
struct Min { template <class V> static V apply(V a, V b) { return b < a ? b : a; } };
struct Max { template <class V> static V apply(V a, V b) { return a < b ? b : a; } };
struct MinRelu { template <class V> static V apply(V a, V b) { return std::max<V>(Min::apply<V>(a, b), 0); } };
struct MaxRelu { template <class V> static V apply(V a, V b) { return std::max<V>(Max::apply<V>(a, b), 0); } };
struct Sad {
  template <class V> static V apply(V a, V b, V c) {
    return Add::apply<V>(a < b ? Sub::apply<V>(b, a) : Sub::apply<V>(a, b), c);
  }
};

struct And { template <class V> static V apply(V a, V b) { return static_cast<V>(a & b); } };
struct Or { template <class V> static V apply(V a, V b) { return static_cast<V>(a | b); } };
struct Xor { template <class V> static V apply(V a, V b) { return static_cast<V>(a ^ b); } };
struct Not { template <class V> static V apply(V a) { return static_cast<V>(~a); } };
struct Cnot { template <class V> static V apply(V a) { return a == 0; } };
struct Copy { template <class V> static V apply(V a) { return a; } };

struct Brev {
  template <class V> static V apply(V a) {
    V reversed = 0;
    for (int bit = 0; bit < BITS<V>; ++bit) reversed = static_cast<V>(reversed | ((a >> bit & 1) << (BITS<V> - 1 - bit)));
    return reversed;
  }
};
struct Clz { template <class V> static uint32_t apply(V a) { return a ? static_cast<uint32_t>(__builtin_clzll(a)) - (64 - BITS<V>) : BITS<V>; } };
struct Popc { template <class V> static uint32_t apply(V a) { return static_cast<uint32_t>(__builtin_popcountll(a)); } };
// Position of the highest bit that differs from the sign; all ones where there is none.
template <class V> inline uint32_t highest(V a) {
  Unsigned<V> bits = static_cast<Unsigned<V>>(a);
  if constexpr (IS_SIGNED<V>) if (a < 0) bits = static_cast<Unsigned<V>>(~bits);
  return bits ? 63u - static_cast<uint32_t>(__builtin_clzll(bits)) : ~0u;
}
struct Bfind { template <class V> static uint32_t apply(V a) { return highest(a); } };
struct BfindShift {
  template <class V> static uint32_t apply(V a) {
    const uint32_t at = highest(a);
    return at == ~0u ? at : static_cast<uint32_t>(BITS<V>) - 1 - at;
  }
};

// ---- handlers with mixed operand widths

template <class V> Step shift_left(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<V>>(inst.a);
  const auto* b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    return to_reg<V>(static_cast<V>(b[l] >= BITS<V> ? RegOf<V>{0} : a[l] << (b[l] & (BITS<V> == 64 ? 63 : 31))));
  });
  return Step::Next;
}
template <class V> Step shift_right(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<V>>(inst.a);
  const auto* b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    const V value = from_reg<V>(a[l]);
    if constexpr (IS_SIGNED<V>) return to_reg<V>(static_cast<V>(value >> std::min<uint32_t>(b[l], BITS<V> - 1)));
    else return to_reg<V>(b[l] >= BITS<V> ? V{0} : static_cast<V>(value >> (b[l] & (BITS<V> - 1))));
  });
  return Step::Next;
}

template <bool LEFT, bool WRAP> Step funnel_shift(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const uint32_t n = WRAP ? c[l] & 31 : std::min(c[l], 32u);
    const uint64_t both = uint64_t{b[l]} << 32 | a[l];
    return static_cast<uint32_t>(LEFT ? (both << n) >> 32 : both >> n);
  });
  return Step::Next;
}

template <class V> Step extract_field(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<V>>(inst.a);
  const auto *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    const uint32_t pos = b[l] & 255, len = c[l] & 255, msb = BITS<V> - 1;
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
template <class V> Step insert_field(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  const auto *c = w.reg<uint32_t>(inst.c), *e = w.reg<uint32_t>(inst.e);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    const uint32_t pos = c[l] & 255, len = e[l] & 255, msb = BITS<V> - 1;
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

template <bool WRAP> Step bit_mask(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    const uint32_t from = WRAP ? a[l] & 31 : std::min(a[l], 32u), size = WRAP ? b[l] & 31 : std::min(b[l], 32u);
    const uint64_t low = ~0ull << from, high = ~0ull << std::min(from + size, 32u);
    return static_cast<uint32_t>(low & ~high);
  });
  return Step::Next;
}
template <bool WRAP, bool SIGNED> Step extend_sign(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) {
    if (!WRAP && b[l] >= 32) return a[l];
    const uint32_t bits = b[l] & 31, upper = ~0u << bits;
    const bool sign = SIGNED && bits && (a[l] >> (bits - 1) & 1);
    return (a[l] & ~upper) | (sign ? upper : 0);
  });
  return Step::Next;
}

// ---- moves

Step move_pred(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  w.set_pred(inst.d, mask, w.pred(inst.a));
  return Step::Next;
}
Step move_128(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  for_lanes(mask, [&](int l) { std::memmove(w.regs + inst.d + 16 * l, w.regs + inst.a + 16 * l, 16); });
  return Step::Next;
}

int width_of(uint8_t type) {
  switch (type) {
    case T_U8: case T_S8: case T_E4M3: case T_E5M2: return 1;
    case T_U16: case T_S16: case T_F16: case T_BF16: case T_E4M3X2: case T_E5M2X2: return 2;
    case T_U64: case T_S64: case T_F64: case T_F32X2: return 8;
    case T_B128: return 16;
    default: return 4;
  }
}
int lane_bytes(int width) { return width <= 4 ? 4 : width; }

Step pack(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int32_t* from = cta.pool(inst.vec);
  const int whole = width_of(inst.type), part = width_of(inst.stype);
  for_lanes(mask, [&](int l) {
    uint8_t value[16] = {};
    for (int i = 0; i < inst.nvec; ++i) std::memcpy(value + i * part, w.regs + from[i] + l * lane_bytes(part), static_cast<size_t>(part));
    std::memcpy(w.regs + inst.d + l * lane_bytes(whole), value, static_cast<size_t>(lane_bytes(whole)));
  });
  return Step::Next;
}
Step unpack(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int32_t* to = cta.pool(inst.vec);
  const int whole = width_of(inst.type), part = width_of(inst.stype);
  for_lanes(mask, [&](int l) {
    uint8_t value[16];
    std::memcpy(value, w.regs + inst.a + l * lane_bytes(whole), static_cast<size_t>(lane_bytes(whole)));
    for (int i = 0; i < inst.nvec; ++i) {
      if (to[i] < 0) continue;
      uint64_t element = 0;
      std::memcpy(&element, value + i * part, static_cast<size_t>(part));
      std::memcpy(w.regs + to[i] + l * lane_bytes(part), &element, static_cast<size_t>(lane_bytes(part)));
    }
  });
  return Step::Next;
}
// The two halves of a 32-bit register and of a 64-bit one: what address and bf16 code does all the time.
template <class Whole, class Part> Step pack_pair(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int32_t* from = cta.pool(inst.vec);
  const auto *low = w.reg<RegOf<Part>>(from[0]), *high = w.reg<RegOf<Part>>(from[1]);
  write_lanes(w.reg<RegOf<Whole>>(inst.d), mask,
              [=](int l) { return static_cast<Whole>(static_cast<Whole>(high[l]) << BITS<Part> | static_cast<Part>(low[l])); });
  return Step::Next;
}

template <class V> Step select(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  const uint32_t c = w.pred(inst.c);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) { return (c >> l & 1) ? a[l] : b[l]; });
  return Step::Next;
}
template <class V, bool FLOAT> Step select_sign(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  const auto* c = w.reg<uint32_t>(inst.c);
  const bool flush = inst.flags & F_FTZ;
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) {
    if (!FLOAT) return static_cast<int32_t>(c[l]) >= 0 ? a[l] : b[l];
    const bool tiny = flush && (c[l] & 0x7f800000u) == 0;
    return tiny || bits_as<float>(c[l]) >= 0.0f ? a[l] : b[l];
  });
  return Step::Next;
}

// Bytes of {b:a} by a selector of four nibbles, lowest first; the named modes are tables of such selectors (PTX ISA 9.7.9.7).
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

template <class Op> Step logic_pred(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
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

template <class V> uint32_t compare(const RegOf<V>* a, const RegOf<V>* b, uint8_t cmp) {
  const auto where = [=](auto holds) { return lanes_where([=](int l) { return holds(from_reg<V>(a[l]), from_reg<V>(b[l])); }); };
  switch (cmp) {
    case C_EQ: return where([](V x, V y) { return x == y; });
    case C_NE: return where([](V x, V y) { return x != y; });
    case C_LT: return where([](V x, V y) { return x < y; });
    case C_LE: return where([](V x, V y) { return x <= y; });
    case C_GT: return where([](V x, V y) { return x > y; });
    default: return where([](V x, V y) { return x >= y; });
  }
}
uint32_t combine(Warp& w, const Inst& inst, uint32_t bits) {
  const uint8_t how = mods_space(inst.mods);
  if (how == B_NONE) return bits;
  const uint32_t c = (inst.flags & F_C_NOT) ? ~w.pred(inst.c) : w.pred(inst.c);
  return how == B_AND ? bits & c : how == B_OR ? bits | c : bits ^ c;
}
template <class V> Step set_predicate(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint32_t bits = compare<V>(w.reg<RegOf<V>>(inst.a), w.reg<RegOf<V>>(inst.b), mods_low(inst.mods));
  const uint32_t yes = combine(w, inst, bits), no = combine(w, inst, ~bits);
  if (inst.d >= 0) w.set_pred(inst.d, mask, yes);
  if (inst.d2 >= 0) w.set_pred(inst.d2, mask, no);
  return Step::Next;
}
template <class V> Step set_value(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint32_t bits =
      combine(w, inst, compare<V>(w.reg<RegOf<V>>(inst.a), w.reg<RegOf<V>>(inst.b), mods_low(inst.mods)));
  const uint32_t truth = inst.type == T_F32 ? 0x3f800000u : FULL_MASK;
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) { return (bits >> l & 1) ? truth : 0u; });
  return Step::Next;
}

// ---- carry chains: the carry flag is a hidden predicate, named in e and d2

struct AddPair { template <class W> static W apply(W a, W b, W carry, bool& out) {
  const unsigned __int128 sum = static_cast<unsigned __int128>(a) + b + carry;
  out = (sum >> BITS<W>) & 1;
  return static_cast<W>(sum);
} };
struct SubPair { template <class W> static W apply(W a, W b, W borrow, bool& out) {
  out = static_cast<unsigned __int128>(a) < static_cast<unsigned __int128>(b) + borrow;
  return static_cast<W>(a - b - borrow);
} };
enum class Source { Plain, MadLo, MadHi };
template <class V, class Op, Source SOURCE> Step carry(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  using W = Unsigned<V>;
  const int32_t flag = inst.e >= 0 ? inst.e : inst.d2;
  const uint32_t in = (inst.flags & F_CC_IN) ? w.pred(flag) : 0;
  uint32_t out = 0;
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  const auto* c = SOURCE == Source::Plain ? nullptr : w.reg<RegOf<V>>(inst.c);
  auto* d = w.reg<RegOf<V>>(inst.d);
  for_lanes(mask, [&](int l) {
    W x = static_cast<W>(a[l]), y = static_cast<W>(b[l]);
    if constexpr (SOURCE == Source::MadLo) x = static_cast<W>(MulLo::apply<V>(from_reg<V>(a[l]), from_reg<V>(b[l]))), y = static_cast<W>(c[l]);
    if constexpr (SOURCE == Source::MadHi) x = static_cast<W>(MulHi::apply<V>(from_reg<V>(a[l]), from_reg<V>(b[l]))), y = static_cast<W>(c[l]);
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

// ---- addresses

uint64_t window_of(uint8_t space) {
  return space == S_SHARED ? SHARED_WINDOW : space == S_LOCAL ? LOCAL_WINDOW : 0;  // the others equal their generic addresses
}
Step convert_address(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint64_t window = window_of(mods_space(inst.mods));
  const bool to_space = inst.flags & F_TO;
  const auto* a = w.reg<uint64_t>(inst.a);
  write_lanes(w.reg<uint64_t>(inst.d), mask, [=](int l) { return to_space ? a[l] - window : a[l] + window; });
  return Step::Next;
}
Step is_space(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const uint8_t space = mods_space(inst.mods);
  const auto* a = w.reg<uint64_t>(inst.a);
  const uint32_t bits = lanes_where([&](int l) {
    const uint64_t x = a[l];
    switch (space) {
      case S_SHARED: return x >= SHARED_WINDOW && x < LOCAL_WINDOW;
      case S_LOCAL: return x >= LOCAL_WINDOW && x < PARAM_WINDOW;
      case S_PARAM: return x >= PARAM_WINDOW && x < CONST_WINDOW;
      case S_CONST: {
        const Buffer* buffer = cta.find_buffer(x, 1);
        return buffer && buffer->read_only;
      }
      default: return x >= GLOBAL_BASE;
    }
  });
  w.set_pred(inst.d, mask, bits);
  return Step::Next;
}

template <class Op> Handler logic(const Inst& inst) {
  if (inst.type == T_PRED) return logic_pred<Op>;
  return by_bits(inst.type, [](auto v) -> Handler { return binary<Op, decltype(v)>; });
}
template <class Op> Handler integer2(const Inst& inst) {
  return by_integer(inst.type, [](auto v) -> Handler { return binary<Op, decltype(v)>; });
}
template <class Op> Handler integer3(const Inst& inst) {
  return by_integer(inst.type, [](auto v) -> Handler { return ternary<Op, decltype(v)>; });
}
template <class Op> Handler count_bits(const Inst& inst) {
  switch (inst.type) {
    case T_U32: return unary<Op, uint32_t, uint32_t>;
    case T_U64: return unary<Op, uint64_t, uint32_t>;
    case T_S32: return unary<Op, int32_t, uint32_t>;
    case T_S64: return unary<Op, int64_t, uint32_t>;
    default: return nullptr;
  }
}
template <class Op, Source SOURCE> Handler with_carry(const Inst& inst) {
  switch (inst.type) {
    case T_U32: return carry<uint32_t, Op, SOURCE>;
    case T_S32: return carry<int32_t, Op, SOURCE>;
    case T_U64: return carry<uint64_t, Op, SOURCE>;
    case T_S64: return carry<int64_t, Op, SOURCE>;
    default: return nullptr;
  }
}

Handler bind_arithmetic(const Inst& inst) {
  const bool chained = inst.flags & (F_CC_IN | F_CC_OUT), saturating = inst.flags & F_SAT;
  const bool relu = inst.flags & F_RELU, signed32 = inst.type == T_S32;
  switch (inst.op) {
    case OP_ADD: return chained ? with_carry<AddPair, Source::Plain>(inst) : !saturating ? integer2<Add>(inst) : signed32 ? binary<AddSat, int32_t> : nullptr;
    case OP_SUB: return chained ? with_carry<SubPair, Source::Plain>(inst) : !saturating ? integer2<Sub>(inst) : signed32 ? binary<SubSat, int32_t> : nullptr;
    case OP_MUL_LO: return integer2<MulLo>(inst);
    case OP_MUL_HI: return integer2<MulHi>(inst);
    case OP_MAD_LO: return chained ? with_carry<AddPair, Source::MadLo>(inst) : integer3<MadLo>(inst);
    case OP_MAD_HI: return chained ? with_carry<AddPair, Source::MadHi>(inst) : !saturating ? integer3<MadHi>(inst) : signed32 ? ternary<MadHiSat, int32_t> : nullptr;
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
    case OP_ABS: return inst.type == T_S16 ? unary<Abs, int16_t> : signed32 ? unary<Abs, int32_t> : inst.type == T_S64 ? unary<Abs, int64_t> : nullptr;
    case OP_NEG: return by_integer(inst.type, [](auto v) -> Handler { return unary<Neg, decltype(v)>; });
    case OP_MIN: return inst.c >= 0 ? nullptr : !relu ? integer2<Min>(inst) : signed32 ? binary<MinRelu, int32_t> : nullptr;
    case OP_MAX: return inst.c >= 0 ? nullptr : !relu ? integer2<Max>(inst) : signed32 ? binary<MaxRelu, int32_t> : nullptr;
    case OP_SAD: return integer3<Sad>(inst);
    case OP_DP4A: return dot4;
    case OP_DP2A: return dot2;
    default: return nullptr;
  }
}

Handler bind_bits(const Inst& inst) {
  const bool wrap = inst.flags & F_WRAP, left = inst.flags & F_LEFT;
  switch (inst.op) {
    case OP_AND: return logic<And>(inst);
    case OP_OR: return logic<Or>(inst);
    case OP_XOR: return logic<Xor>(inst);
    case OP_NOT: return inst.type == T_PRED ? not_pred : by_bits(inst.type, [](auto v) -> Handler { return unary<Not, decltype(v)>; });
    case OP_CNOT: return by_bits(inst.type, [](auto v) -> Handler { return unary<Cnot, decltype(v)>; });
    case OP_LOP3: return lop3;
    case OP_SHL: return by_bits(inst.type, [](auto v) -> Handler { return shift_left<decltype(v)>; });
    case OP_SHR: return by_integer(inst.type, [](auto v) -> Handler { return shift_right<decltype(v)>; });
    case OP_SHF: return left ? (wrap ? funnel_shift<true, true> : funnel_shift<true, false>) : (wrap ? funnel_shift<false, true> : funnel_shift<false, false>);
    case OP_BFE: return by_integer(inst.type, [](auto v) -> Handler { return sizeof(v) < 4 ? nullptr : extract_field<decltype(v)>; });
    case OP_BFI: return inst.type == T_U64 ? insert_field<uint64_t> : inst.type == T_U32 ? insert_field<uint32_t> : nullptr;
    case OP_BFIND: return inst.flags & F_SHIFTAMT ? count_bits<BfindShift>(inst) : count_bits<Bfind>(inst);
    case OP_BREV: return inst.type == T_U64 ? unary<Brev, uint64_t> : unary<Brev, uint32_t>;
    case OP_CLZ: return inst.type == T_U64 ? unary<Clz, uint64_t, uint32_t> : unary<Clz, uint32_t, uint32_t>;
    case OP_POPC: return inst.type == T_U64 ? unary<Popc, uint64_t, uint32_t> : unary<Popc, uint32_t, uint32_t>;
    case OP_FNS: return find_nth_set;
    case OP_BMSK: return wrap ? bit_mask<true> : bit_mask<false>;
    case OP_SZEXT:
      if (inst.type == T_S32) return wrap ? extend_sign<true, true> : extend_sign<false, true>;
      return wrap ? extend_sign<true, false> : extend_sign<false, false>;
    default: return nullptr;
  }
}

Handler bind_moves(const Inst& inst) {
  switch (inst.op) {
    case OP_MOV:
      if (inst.type == T_PRED) return move_pred;
      if (inst.type == T_B128) return move_128;
      return by_bits(inst.type, [](auto v) -> Handler { return unary<Copy, decltype(v)>; });
    case OP_MOV_PACK:
      if (inst.nvec == 2 && width_of(inst.type) == 8 && width_of(inst.stype) == 4) return pack_pair<uint64_t, uint32_t>;
      if (inst.nvec == 2 && width_of(inst.type) == 4 && width_of(inst.stype) == 2) return pack_pair<uint32_t, uint16_t>;
      return pack;
    case OP_MOV_UNPACK: return unpack;
    case OP_CVTA: return convert_address;
    case OP_ISSPACEP: return is_space;
    case OP_SELP: return by_bits(inst.type, [](auto v) -> Handler { return select<decltype(v)>; });
    case OP_SLCT:
      if (inst.stype == T_F32) return by_bits(inst.type, [](auto v) -> Handler { return select_sign<decltype(v), true>; });
      return by_bits(inst.type, [](auto v) -> Handler { return select_sign<decltype(v), false>; });
    case OP_PRMT: return permute;
    case OP_SETP: return by_integer(inst.type, [](auto v) -> Handler { return set_predicate<decltype(v)>; });
    case OP_SET:
      if (inst.type != T_U32 && inst.type != T_S32 && inst.type != T_F32) return nullptr;
      return by_integer(inst.stype, [](auto v) -> Handler { return set_value<decltype(v)>; });
    default: return nullptr;
  }
}

}  // namespace

Handler bind_alu(const Inst& inst) {
  if (Handler handler = bind_arithmetic(inst)) return handler;
  if (Handler handler = bind_bits(inst)) return handler;
  return bind_moves(inst);
}
