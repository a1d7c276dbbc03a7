// Exchanges between the lanes of a warp (PTX ISA 9.7.9.6, 9.7.13.7 to 9.7.13.12). The warp loop has brought the members
// together.
#include <algorithm>

#include "numeric.hpp"

namespace {

// The undefined cases that leave a trace: a lane outside its own member mask.
void check_members(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* members = w.reg<uint32_t>(inst.e);
  const uint32_t outside = lanes_where([=](int l) { return !(members[l] >> l & 1); }) & mask;
  if (!outside) return;
  const int lane = first_lane(outside);
  if (FindingRecord* f =
          cta.findings.add(cta, &w, lane, "warp.mask_excludes_self", Severity::Error, cta.index_of(inst))) {
    f->say("lane %d of warp %d executes a .sync instruction whose member mask 0x%x does not name it", lane, w.id,
           members[lane]);
    f->mend("name every lane that executes it in the member mask");
  }
}

enum Shuffle { UP = 0, DOWN = 1, BUTTERFLY = 2, INDEX = 3 };

template <Shuffle MODE>
Step shuffle(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  check_members(cta, w, inst, mask);
  const auto *a = w.reg<uint32_t>(inst.a), *b = w.reg<uint32_t>(inst.b), *c = w.reg<uint32_t>(inst.c),
             *members = w.reg<uint32_t>(inst.e);
  uint32_t values[LANES], source[LANES], valid = 0;
  for (int l = 0; l < LANES; ++l) {
    const int offset = static_cast<int>(b[l] & 31), clamp = static_cast<int>(c[l] & 31),
              segment = static_cast<int>(c[l] >> 8 & 31);
    const int last = (l & segment) | (clamp & ~segment), first = l & segment;
    const int from = MODE == UP          ? l - offset
                     : MODE == DOWN      ? l + offset
                     : MODE == BUTTERFLY ? l ^ offset
                                         : first | (offset & ~segment);
    const bool in_range = MODE == UP ? from >= last : from <= last;
    source[l] = static_cast<uint32_t>(in_range ? from & 31 : l);
    values[l] = a[source[l]];
    valid |= static_cast<uint32_t>(in_range) << l;
  }
  const uint32_t absent = lanes_where([&](int l) { return !((mask & members[l]) >> source[l] & 1); }) & mask;
  if (absent) {
    const int lane = first_lane(absent);
    if (FindingRecord* f =
            cta.findings.add(cta, &w, lane, "warp.shfl_inactive_source", Severity::Warning, cta.index_of(inst))) {
      f->say("lane %d of warp %d reads lane %u, which does not take part in the shuffle: the value is undefined", lane,
             w.id, source[lane]);
      f->mend("let every source lane execute the shuffle, or do not use the value");
    }
  }
  if (inst.d >= 0) write_lanes(w.reg<uint32_t>(inst.d), mask, [&](int l) { return values[l]; });
  if (inst.d2 >= 0) w.set_pred(inst.d2, mask, valid);
  return Step::Next;
}

enum Vote { ALL = 0, ANY = 1, UNIFORM = 2, BALLOT = 3 };

template <Vote MODE>
Step vote(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  check_members(cta, w, inst, mask);
  const auto* members = w.reg<uint32_t>(inst.e);
  const uint32_t p = (inst.flags & F_A_NOT) ? ~w.pred(inst.a) : w.pred(inst.a);
  if constexpr (MODE == BALLOT) {
    write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) { return p & mask & members[l]; });
    return Step::Next;
  }
  const uint32_t result = lanes_where([=](int l) {
    const uint32_t here = mask & members[l], yes = p & here;
    return MODE == ALL ? yes == here : MODE == ANY ? yes != 0 : yes == here || yes == 0;
  });
  w.set_pred(inst.d, mask, result);
  return Step::Next;
}

template <class V, bool ALL_EQUAL>
Step match(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  check_members(cta, w, inst, mask);
  const auto* members = w.reg<uint32_t>(inst.e);
  const auto* a = w.reg<RegOf<V>>(inst.a);
  uint32_t result[LANES] = {}, equal = 0;
  for_lanes(mask, [&](int l) {
    const uint32_t here = mask & members[l];
    uint32_t same = 0;
    for_lanes(here, [&](int other) { same |= static_cast<uint32_t>(a[other] == a[l]) << other; });
    equal |= static_cast<uint32_t>(same == here) << l;
    result[l] = ALL_EQUAL ? (same == here ? here : 0) : same;
  });
  if (inst.d >= 0) write_lanes(w.reg<uint32_t>(inst.d), mask, [&](int l) { return result[l]; });
  if (inst.d2 >= 0) w.set_pred(inst.d2, mask, equal);
  return Step::Next;
}

template <class V>
Step reduce(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  check_members(cta, w, inst, mask);
  const auto *members = w.reg<uint32_t>(inst.e), *a = w.reg<uint32_t>(inst.a);
  const uint8_t op = mods_low(inst.mods);
  uint32_t result[LANES] = {};
  for_lanes(mask, [&](int l) {
    bool first = true;
    V total{};
    for_lanes(mask & members[l], [&](int other) {
      const V value = static_cast<V>(a[other]);
      if (first)
        total = value;
      else
        switch (op) {
          case A_ADD: total = static_cast<V>(static_cast<uint32_t>(total) + static_cast<uint32_t>(value)); break;
          case A_MIN: total = std::min(total, value); break;
          case A_MAX: total = std::max(total, value); break;
          case A_AND: total &= value; break;
          case A_OR: total |= value; break;
          default: total ^= value; break;
        }
      first = false;
    });
    result[l] = static_cast<uint32_t>(total);
  });
  write_lanes(w.reg<uint32_t>(inst.d), mask, [&](int l) { return result[l]; });
  return Step::Next;
}

// Without .NaN only the numbers count, and the result is the canonical NaN where there is none.
template <bool MAX>
Step reduce_f32(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  check_members(cta, w, inst, mask);
  const auto *members = w.reg<uint32_t>(inst.e), *a = w.reg<uint32_t>(inst.a);
  const auto best = [&](uint32_t x, uint32_t y) {
    return extreme<uint32_t, 0x7f800000u, NAN_F32, MAX>(x, y, inst.flags);
  };
  uint32_t result[LANES] = {};
  for_lanes(mask, [&](int l) {
    const uint32_t here = mask & members[l];
    uint32_t total = here ? a[first_lane(here)] : a[l];
    total = best(total, total);
    for_lanes(here, [&](int other) { total = best(total, a[other]); });
    result[l] = total;
  });
  write_lanes(w.reg<uint32_t>(inst.d), mask, [&](int l) { return result[l]; });
  return Step::Next;
}

Step active_mask(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int) { return mask; });
  return Step::Next;
}

// The lowest lane of the member mask: the same mask elects the same leader every time.
Step elect(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  check_members(cta, w, inst, mask);
  const auto* members = w.reg<uint32_t>(inst.e);
  uint32_t leaders[LANES] = {}, chosen = 0;
  for_lanes(mask, [&](int l) {
    const uint32_t here = mask & members[l];
    leaders[l] = static_cast<uint32_t>(here ? first_lane(here) : l);
    chosen |= static_cast<uint32_t>(leaders[l] == static_cast<uint32_t>(l)) << l;
  });
  if (inst.d >= 0) write_lanes(w.reg<uint32_t>(inst.d), mask, [&](int l) { return leaders[l]; });
  if (inst.d2 >= 0) w.set_pred(inst.d2, mask, chosen);
  return Step::Next;
}

Step warp_barrier(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  check_members(cta, w, inst, mask);
  return Step::Next;
}

}  // namespace

Handler bind_warp(const Inst& inst) {
  switch (inst.op) {
    case OP_SHFL:
      switch (inst.imm) {
        case UP: return shuffle<UP>;
        case DOWN: return shuffle<DOWN>;
        case BUTTERFLY: return shuffle<BUTTERFLY>;
        case INDEX: return shuffle<INDEX>;
        default: return nullptr;
      }
    case OP_VOTE:
      switch (inst.imm) {
        case ALL: return vote<ALL>;
        case ANY: return vote<ANY>;
        case UNIFORM: return vote<UNIFORM>;
        case BALLOT: return vote<BALLOT>;
        default: return nullptr;
      }
    case OP_MATCH:
      if (inst.type == T_U64) return inst.imm ? match<uint64_t, true> : match<uint64_t, false>;
      return inst.imm ? match<uint32_t, true> : match<uint32_t, false>;
    case OP_REDUX:
      if (inst.type == T_F32) return mods_low(inst.mods) == A_MAX ? reduce_f32<true> : reduce_f32<false>;
      return inst.type == T_S32 ? reduce<int32_t> : inst.type == T_U32 ? reduce<uint32_t> : nullptr;
    case OP_ACTIVEMASK: return active_mask;
    case OP_ELECT: return elect;
    case OP_BAR_WARP_SYNC: return warp_barrier;
    default: return nullptr;
  }
}
