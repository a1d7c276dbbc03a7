// The addresses of a warp, computed and checked together: smallest and largest inside one buffer and no low bit set is
// the common case. Only where that fails does a lane loop find the culprit.
#pragma once
#include <algorithm>

#include "lanes.hpp"

enum class Pattern : uint8_t {
  Uniform,  // every lane the same address
  Dense,    // full warp, each lane right behind the one before
  Any,
};

// Where the lanes of one instruction access memory. `at` is filled for Pattern::Any only; the others follow from `low`.
struct Addresses {
  alignas(64) uint64_t at[LANES];
  uint64_t low, high;  // smallest and largest
  uint64_t bits;       // its low bits are zero if and only if every lane is aligned
  uint64_t each;       // bytes that one lane accesses
  Pattern pattern;

  uint64_t of(int lane) const {
    switch (pattern) {
      case Pattern::Uniform: return low;
      case Pattern::Dense: return low + static_cast<uint64_t>(lane) * each;
      default: return at[lane];
    }
  }
  void shift(uint64_t origin) {  // addresses become offsets
    low -= origin;
    high -= origin;
    if (pattern == Pattern::Any)
      for (int lane = 0; lane < LANES; ++lane) at[lane] -= origin;
  }
  void expand() {
    if (pattern == Pattern::Any) return;
    for (int lane = 0; lane < LANES; ++lane) at[lane] = of(lane);
    pattern = Pattern::Any;
  }
};

// Looks at the addresses of a warp. `address(lane)` is cheap and safe for every lane.
template <class F>
void collect(Addresses& out, uint32_t mask, F address) {
  if (mask == FULL_MASK) {
    const uint64_t first = address(0);
    uint64_t differs = 0, gaps = 0;
    for (int lane = 0; lane < LANES; ++lane) {
      const uint64_t x = address(lane);
      differs |= x ^ first;
      gaps |= x ^ (first + static_cast<uint64_t>(lane) * out.each);
    }
    if (differs == 0 || gaps == 0) {
      out.pattern = differs == 0 ? Pattern::Uniform : Pattern::Dense;
      out.low = out.bits = first;
      out.high = differs == 0 ? first : first + (LANES - 1) * out.each;
      return;
    }
  }
  const uint64_t any = address(first_lane(mask));
  uint64_t low = ~0ull, high = 0, bits = 0;
  for (int lane = 0; lane < LANES; ++lane) {
    const uint64_t x = (mask >> lane & 1) ? address(lane) : any;
    out.at[lane] = x;
    low = std::min(low, x);
    high = std::max(high, x);
    bits |= x;
  }
  out.low = low;
  out.high = high;
  out.bits = bits;
  out.pattern = low == high ? Pattern::Uniform : Pattern::Any;
}
inline void collect(Addresses& out, Warp& w, const Inst& inst, uint32_t mask, uint64_t window) {
  const uint64_t offset = static_cast<uint64_t>(inst.imm) - window;
  if (inst.a < 0) return collect(out, mask, [=](int) { return offset; });
  if (inst.mods & M_A64) {
    const auto* a = w.reg<uint64_t>(inst.a);
    return collect(out, mask, [=](int lane) { return a[lane] + offset; });
  }
  const auto* a = w.reg<uint32_t>(inst.a);
  const uint32_t narrow = static_cast<uint32_t>(offset);
  return collect(out, mask, [=](int lane) { return uint64_t{a[lane] + narrow}; });
}

// Lanes, and lane 0, that stand neither where the lane before them does nor right behind it.
inline uint32_t chain_heads(const Addresses& a) {
  uint32_t heads = 1;
  for (int lane = 1; lane < LANES; ++lane) {
    const uint64_t step = a.at[lane] - a.at[lane - 1];
    heads |= static_cast<uint32_t>((step != 0) & (step != a.each)) << lane;
  }
  return heads;
}

// Calls visit(address, bytes) for the ranges that the lanes cover, neighbours joined.
template <class Visit>
void for_ranges(const Addresses& a, uint32_t mask, Visit visit) {
  if (a.pattern == Pattern::Dense) return visit(a.low, a.each * LANES);
  if (a.pattern == Pattern::Uniform) return visit(a.low, a.each);
  const bool full = mask == FULL_MASK;
  const uint32_t heads = full ? chain_heads(a) : mask;
  uint64_t from = 0, to = 0;
  for (uint32_t rest = heads; rest;) {
    const int first = first_lane(rest);
    rest &= rest - 1;
    const int last = !full ? first : rest ? first_lane(rest) - 1 : LANES - 1;
    const uint64_t x = a.at[first], end = a.at[last] + a.each;
    if (to && x >= from && x <= to) {
      to = std::max(to, end);
    } else {
      if (to) visit(from, to - from);
      from = x;
      to = end;
    }
  }
  visit(from, to - from);
}

enum class Kind : uint8_t { Load, Store, Atomic };

uint64_t window_of(Space);  // start of a space in the generic address space
Space space_of_generic(uint64_t address);
// Bytes of an element in memory.
inline size_t memory_bytes(uint8_t type) {
  switch (type) {
    case T_U16:
    case T_F16:
    case T_BF16: return 2;
    case T_U64:
    case T_S64:
    case T_F64: return 8;
    case T_B128: return 16;
    default: return 4;
  }
}

// Finds the memory behind the addresses of one space: afterwards lane l accesses base + a.of(l). Reports the access to
// shadow, proof and counters. False: a fault was recorded. `owner` is the CTA whose shared memory is meant.
bool resolve(Cta&, Cta& owner, Warp&, const Inst&, uint32_t mask, Space, Kind, Addresses&, uint8_t*& base);

// Of the lanes, those whose shared::cluster addresses (behind `window`) name the same CTA as the first: that CTA, with
// `a` as offsets in its memory. nullptr after a fault was recorded.
Cta* owner_of(Cta&, Warp&, const Inst&, uint32_t& lanes, uint64_t window, Kind, Addresses& a);

// Runs access(base, addresses, lanes) once per state space (and CTA of the cluster) that the lanes address; usually
// that is one.
template <class Accessor>
Step for_spaces(Cta& cta, Warp& w, const Inst& inst, uint32_t mask, Kind kind, uint64_t each, Accessor access) {
  Addresses addresses;
  addresses.each = each;
  const Space stated = static_cast<Space>(mods_space(inst.mods));
  if (mods_order(inst.mods) != O_WEAK && kind == Kind::Load) ++w.polls;
  if (kind == Kind::Store && stated != S_LOCAL) {
    cta.stored = true;
    ++cta.effects;
  }
  for (uint32_t left = mask; left;) {
    Space space = stated;
    uint32_t lanes = left;
    uint64_t window = 0;
    if (stated == S_GLOBAL) {
      // its addresses are what they say
    } else if (stated == S_GENERIC) {
      collect(addresses, w, inst, left, 0);
      space = space_of_generic(addresses.of(first_lane(left)));
      if (space_of_generic(addresses.low) != space || space_of_generic(addresses.high) != space) {
        lanes = 0;
        for_lanes(left,
                  [&](int l) { lanes |= static_cast<uint32_t>(space_of_generic(addresses.of(l)) == space) << l; });
      }
      window = window_of(space);
    } else if (stated == S_PARAM && inst.a >= 0) {
      window = PARAM_WINDOW;
    } else if (stated == S_SHARED && inst.a >= 0) {
      window = cta.tag;
    } else if (stated == S_CLUSTER) {
      space = S_SHARED;
    }
    Cta* owner = &cta;
    if (__builtin_expect(cta.cluster != nullptr, false) && space == S_SHARED && stated != S_SHARED && inst.a >= 0) {
      owner = owner_of(cta, w, inst, lanes, window, kind, addresses);
      if (!owner) return Step::Fault;
    } else if (stated != S_GENERIC || window || lanes != left) {
      collect(addresses, w, inst, lanes, window);
    }
    uint8_t* base = nullptr;
    if (!resolve(cta, *owner, w, inst, lanes, space, kind, addresses, base)) return Step::Fault;
    access(base, addresses, lanes);
    left &= ~lanes;
  }
  return Step::Next;
}

inline uint8_t* place(uint8_t* base, uint64_t offset) {
  return reinterpret_cast<uint8_t*>(reinterpret_cast<uint64_t>(base) + offset);
}
