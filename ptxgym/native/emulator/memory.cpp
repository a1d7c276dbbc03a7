// Loads and stores (PTX ISA 9.7.9.8 to 9.7.9.12).
#include "access.hpp"

namespace {

enum class Width : uint8_t { As16, As32, As64 };  // of the register

// Signed elements are sign-extended to the width of the register, others zero-extended.
template <class Elem, Width WIDTH>
inline auto register_value(Elem value) {
  if constexpr (WIDTH == Width::As64)
    return static_cast<uint64_t>(value);
  else if constexpr (WIDTH == Width::As32)
    return static_cast<uint32_t>(value);
  else
    return static_cast<uint32_t>(static_cast<uint16_t>(value));
}

template <class Elem, Width WIDTH>
Step load(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  using Reg = std::conditional_t<WIDTH == Width::As64, uint64_t, uint32_t>;
  const uint64_t each = sizeof(Elem) * static_cast<uint64_t>(inst.nvec);
  return for_spaces(cta, w, inst, mask, Kind::Load, each, [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
    for (int i = 0; i < inst.nvec; ++i) {
      const int32_t to = cta.pool(inst.vec)[i];
      if (to < 0) continue;
      Reg* d = w.reg<Reg>(to);
      const uint64_t shift = sizeof(Elem) * static_cast<uint64_t>(i);
      const auto value_at = [](const uint8_t* from) {
        Elem value;
        std::memcpy(&value, from, sizeof value);
        return static_cast<Reg>(register_value<Elem, WIDTH>(value));
      };
      switch (a.pattern) {
        case Pattern::Uniform: {
          const Reg value = value_at(place(base, a.low + shift));
          write_lanes(d, lanes, [=](int) { return value; });
          break;
        }
        case Pattern::Dense: {
          const uint8_t* from = place(base, a.low + shift);
          const uint64_t stride = a.each;
          if (stride == sizeof(Elem))
            for (int l = 0; l < LANES; ++l) d[l] = value_at(from + static_cast<size_t>(l) * sizeof(Elem));
          else
            for (int l = 0; l < LANES; ++l) d[l] = value_at(from + static_cast<size_t>(l) * stride);
          break;
        }
        case Pattern::Any: for_lanes(lanes, [&](int l) { d[l] = value_at(place(base, a.at[l] + shift)); }); break;
      }
    }
  });
}
Step load_128(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const uint64_t each = 16 * static_cast<uint64_t>(inst.nvec);
  return for_spaces(cta, w, inst, mask, Kind::Load, each, [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
    for (int i = 0; i < inst.nvec; ++i) {
      const int32_t to = cta.pool(inst.vec)[i];
      if (to < 0) continue;
      for_lanes(lanes, [&](int l) {
        std::memcpy(w.regs + to + 16 * l, place(base, a.of(l) + 16 * static_cast<uint64_t>(i)), 16);
      });
    }
  });
}

// Two lanes of one store at one address with different values: which one stays is not defined (PTX ISA 9.7.9.12).
// `differ(one, other)` compares what two lanes store.
template <class Differ>
void check_lanes(Cta& cta, Warp& w, const Inst& inst, const Addresses& a, uint32_t lanes, Differ differ) {
  if (a.pattern == Pattern::Dense || !(lanes & (lanes - 1))) return;
  int one = -1, other = -1;
  if (a.pattern == Pattern::Uniform) {
    one = first_lane(lanes);
    for (uint32_t rest = lanes & (lanes - 1); rest && other < 0; rest &= rest - 1)
      if (differ(one, first_lane(rest))) other = first_lane(rest);
  } else {
    int order[LANES], count = 0;
    bool ascending = true;
    if (lanes == FULL_MASK) {
      uint32_t back = 0;
      for (int l = 1; l < LANES; ++l) back |= static_cast<uint32_t>(a.at[l] <= a.at[l - 1]);
      if (!back) return;
    }
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      order[count] = first_lane(rest);
      ascending &= !count || a.at[order[count - 1]] < a.at[order[count]];
      ++count;
    }
    if (ascending) return;
    std::sort(order, order + count, [&](int l, int r) { return a.at[l] != a.at[r] ? a.at[l] < a.at[r] : l < r; });
    for (int i = 1; i < count && other < 0; ++i)
      if (a.at[order[i - 1]] == a.at[order[i]] && differ(order[i - 1], order[i])) one = order[i - 1], other = order[i];
  }
  if (other < 0) return;
  FindingRecord* f = cta.findings.add(cta, &w, one, "memory.lane_conflict", Severity::Warning, cta.index_of(inst));
  if (!f) return;
  char who[sizeof f->who[0]];
  std::snprintf(who, sizeof who, "lanes %d and %d of warp %d", one, other, w.id);
  f->say("%s store different values to one address with one instruction: which of them stays is not defined", who);
  f->party(0, who, "stored to one address");
  f->mend("let one lane store (a guard, or a reduction over the lanes first), or use an atomic operation");
}

template <class Elem, class Reg>
Step store(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const uint64_t each = sizeof(Elem) * static_cast<uint64_t>(inst.nvec);
  return for_spaces(cta, w, inst, mask, Kind::Store, each, [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
    check_lanes(cta, w, inst, a, lanes, [&](int one, int other) {
      for (int i = 0; i < inst.nvec; ++i) {
        const Reg* from = w.reg<Reg>(cta.pool(inst.vec)[i]);
        if (static_cast<Elem>(from[one]) != static_cast<Elem>(from[other])) return true;
      }
      return false;
    });
    for (int i = 0; i < inst.nvec; ++i) {
      const Reg* from = w.reg<Reg>(cta.pool(inst.vec)[i]);
      const uint64_t shift = sizeof(Elem) * static_cast<uint64_t>(i);
      if (a.pattern == Pattern::Dense && inst.nvec == 1) {
        uint8_t* to = place(base, a.low);
        for (int l = 0; l < LANES; ++l) {
          const Elem value = static_cast<Elem>(from[l]);
          std::memcpy(to + static_cast<size_t>(l) * sizeof value, &value, sizeof value);
        }
      } else {
        for_lanes(lanes, [&](int l) {
          const Elem value = static_cast<Elem>(from[l]);
          std::memcpy(place(base, a.of(l) + shift), &value, sizeof value);
        });
      }
    }
  });
}
Step store_128(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const uint64_t each = 16 * static_cast<uint64_t>(inst.nvec);
  return for_spaces(cta, w, inst, mask, Kind::Store, each, [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
    for (int i = 0; i < inst.nvec; ++i) {
      const int32_t from = cta.pool(inst.vec)[i];
      for_lanes(lanes, [&](int l) {
        std::memcpy(place(base, a.of(l) + 16 * static_cast<uint64_t>(i)), w.regs + from + 16 * l, 16);
      });
    }
  });
}

template <class Elem>
Handler pick_load(uint8_t register_class) {
  switch (register_class) {
    case T_U16: return load<Elem, Width::As16>;
    case T_U32: return load<Elem, Width::As32>;
    case T_U64: return load<Elem, Width::As64>;
    default: return nullptr;
  }
}
template <class Elem>
Handler pick_store(uint8_t register_class) {
  return register_class == T_U64 ? store<Elem, uint64_t> : store<Elem, uint32_t>;
}
uint8_t class_of(const Inst& inst) {  // of the register; LD and ST say it in stype
  if (inst.stype != T_NONE) return inst.stype;
  switch (memory_bytes(inst.type)) {
    case 8: return T_U64;
    case 16: return T_B128;
    default: return T_U32;
  }
}

}  // namespace

Handler bind_memory(const Inst& inst) {
  const uint8_t register_class = class_of(inst);
  if (inst.op == OP_LD) {
    switch (inst.type) {
      case T_U8: return pick_load<uint8_t>(register_class);
      case T_S8: return pick_load<int8_t>(register_class);
      case T_U16:
      case T_F16:
      case T_BF16: return pick_load<uint16_t>(register_class);
      case T_S16: return pick_load<int16_t>(register_class);
      case T_U32:
      case T_F32:
      case T_F16X2:
      case T_BF16X2: return pick_load<uint32_t>(register_class);
      case T_S32: return pick_load<int32_t>(register_class);
      case T_U64:
      case T_S64:
      case T_F64:
      case T_F32X2: return pick_load<uint64_t>(register_class);
      case T_B128: return load_128;
      default: return nullptr;
    }
  }
  if (inst.op == OP_ST) {
    switch (inst.type) {
      case T_U8:
      case T_S8: return pick_store<uint8_t>(register_class);
      case T_U16:
      case T_S16:
      case T_F16:
      case T_BF16: return pick_store<uint16_t>(register_class);
      case T_U32:
      case T_S32:
      case T_F32:
      case T_F16X2:
      case T_BF16X2: return pick_store<uint32_t>(register_class);
      case T_U64:
      case T_S64:
      case T_F64:
      case T_F32X2: return pick_store<uint64_t>(register_class);
      case T_B128: return store_128;
      default: return nullptr;
    }
  }
  return nullptr;
}
