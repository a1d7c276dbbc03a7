// Typed lanes of registers: how a value of type V sits in its register, and loops over the lanes of a warp.
#pragma once
#include <type_traits>

#include "core.hpp"

template <class To, class From>
inline To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "same width");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Storage of a lane: 64-bit values in u64 lanes, everything narrower zero-extended in u32 lanes.
template <class V>
using RegOf = std::conditional_t<sizeof(V) == 8, uint64_t, uint32_t>;

template <class V>
inline V from_reg(RegOf<V> bits) {
  if constexpr (std::is_floating_point_v<V>)
    return bits_as<V>(bits);
  else
    return static_cast<V>(bits);
}
template <class V>
inline RegOf<V> to_reg(V value) {
  if constexpr (std::is_floating_point_v<V>)
    return bits_as<RegOf<V>>(value);
  else
    return static_cast<RegOf<V>>(static_cast<std::make_unsigned_t<V>>(value));
}

template <class V>
using Unsigned = std::make_unsigned_t<V>;
template <class V>
constexpr bool IS_SIGNED = std::is_signed_v<V>;
template <class V>
constexpr int BITS = static_cast<int>(sizeof(V) * 8);

// d[lane] = value(lane) for the lanes of mask. The lanes are computed all, which is safe for anything without side
// effects.
template <class R, class F>
inline void write_lanes(R* d, uint32_t mask, F value) {
  if (mask == FULL_MASK) {
#pragma GCC ivdep
    for (int lane = 0; lane < LANES; ++lane) d[lane] = value(lane);
  } else {
#pragma GCC ivdep
    for (int lane = 0; lane < LANES; ++lane) {
      const R result = value(lane);
      d[lane] = (mask >> lane & 1) ? result : d[lane];
    }
  }
}

// Lane mask of a condition.
template <class F>
inline uint32_t lanes_where(F holds) {
  uint32_t bits = 0;
  for (int lane = 0; lane < LANES; ++lane) bits |= static_cast<uint32_t>(holds(lane) ? 1u : 0u) << lane;
  return bits;
}

// A comparison joined with predicate c, as SETP and SET say.
inline uint32_t combine(Warp& w, const Inst& inst, uint32_t bits) {
  const uint8_t how = mods_space(inst.mods);
  if (how == B_NONE) return bits;
  const uint32_t c = (inst.flags & F_C_NOT) ? ~w.pred(inst.c) : w.pred(inst.c);
  return how == B_AND ? bits & c : how == B_OR ? bits | c : bits ^ c;
}

// Unary, binary and ternary operations: Op::apply on values of V giving values of D.
template <class Op, class V, class D = V>
Step unary(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<RegOf<V>>(inst.a);
  write_lanes(w.reg<RegOf<D>>(inst.d), mask,
              [=](int l) { return to_reg<D>(Op::template apply<V>(from_reg<V>(a[l]))); });
  return Step::Next;
}
template <class Op, class V, class D = V>
Step binary(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  write_lanes(w.reg<RegOf<D>>(inst.d), mask,
              [=](int l) { return to_reg<D>(Op::template apply<V>(from_reg<V>(a[l]), from_reg<V>(b[l]))); });
  return Step::Next;
}
template <class Op, class V, class D = V>
Step ternary(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  const auto* c = w.reg<RegOf<D>>(inst.c);
  write_lanes(w.reg<RegOf<D>>(inst.d), mask, [=](int l) {
    return to_reg<D>(Op::template apply<V>(from_reg<V>(a[l]), from_reg<V>(b[l]), from_reg<D>(c[l])));
  });
  return Step::Next;
}

// Calls pick.template operator()<V>() with the C++ type of an integer Type; nullptr for other types.
template <class Pick>
inline Handler by_integer(uint8_t type, Pick pick) {
  switch (type) {
    case T_U16: return pick(uint16_t{});
    case T_U32: return pick(uint32_t{});
    case T_U64: return pick(uint64_t{});
    case T_S16: return pick(int16_t{});
    case T_S32: return pick(int32_t{});
    case T_S64: return pick(int64_t{});
    default: return nullptr;
  }
}
// The same for operations on bits, where the sign plays no part.
template <class Pick>
inline Handler by_bits(uint8_t type, Pick pick) {
  switch (type) {
    case T_U8:
    case T_S8:
    case T_U16:
    case T_S16:
    case T_F16:
    case T_BF16: return pick(uint16_t{});
    case T_U32:
    case T_S32:
    case T_F32:
    case T_F16X2:
    case T_BF16X2:
    case T_TF32: return pick(uint32_t{});
    case T_U64:
    case T_S64:
    case T_F64:
    case T_F32X2: return pick(uint64_t{});
    default: return nullptr;
  }
}
