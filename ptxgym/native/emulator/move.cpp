// Moves, selections, integer comparisons and address conversion (PTX ISA 9.7.6, 9.7.9.1 to 9.7.9.5 and 9.7.9.20).
#include <algorithm>

#include "lanes.hpp"

namespace {

struct Copy {
  template <class V>
  static V apply(V a) {
    return a;
  }
};

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
    case T_U8:
    case T_S8:
    case T_E4M3:
    case T_E5M2: return 1;
    case T_U16:
    case T_S16:
    case T_F16:
    case T_BF16:
    case T_E4M3X2:
    case T_E5M2X2: return 2;
    case T_U64:
    case T_S64:
    case T_F64:
    case T_F32X2: return 8;
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
    for (int i = 0; i < inst.nvec; ++i)
      std::memcpy(value + i * part, w.regs + from[i] + l * lane_bytes(part), static_cast<size_t>(part));
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
template <class Whole, class Part>
Step pack_pair(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int32_t* from = cta.pool(inst.vec);
  const auto *low = w.reg<RegOf<Part>>(from[0]), *high = w.reg<RegOf<Part>>(from[1]);
  write_lanes(w.reg<RegOf<Whole>>(inst.d), mask, [=](int l) {
    return static_cast<Whole>(static_cast<Whole>(high[l]) << BITS<Part> | static_cast<Part>(low[l]));
  });
  return Step::Next;
}

template <class V>
Step select(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto *a = w.reg<RegOf<V>>(inst.a), *b = w.reg<RegOf<V>>(inst.b);
  const uint32_t c = w.pred(inst.c);
  write_lanes(w.reg<RegOf<V>>(inst.d), mask, [=](int l) { return (c >> l & 1) ? a[l] : b[l]; });
  return Step::Next;
}
template <class V, bool FLOAT>
Step select_sign(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
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

// ---- comparisons

template <class V>
uint32_t compare(const RegOf<V>* a, const RegOf<V>* b, uint8_t cmp) {
  const auto where = [=](auto holds) {
    return lanes_where([=](int l) { return holds(from_reg<V>(a[l]), from_reg<V>(b[l])); });
  };
  switch (cmp) {
    case C_EQ: return where([](V x, V y) { return x == y; });
    case C_NE: return where([](V x, V y) { return x != y; });
    case C_LT: return where([](V x, V y) { return x < y; });
    case C_LE: return where([](V x, V y) { return x <= y; });
    case C_GT: return where([](V x, V y) { return x > y; });
    default: return where([](V x, V y) { return x >= y; });
  }
}
template <class V>
Step set_predicate(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint32_t bits = compare<V>(w.reg<RegOf<V>>(inst.a), w.reg<RegOf<V>>(inst.b), mods_low(inst.mods));
  const uint32_t yes = combine(w, inst, bits), no = combine(w, inst, ~bits);
  if (inst.d >= 0) w.set_pred(inst.d, mask, yes);
  if (inst.d2 >= 0) w.set_pred(inst.d2, mask, no);
  return Step::Next;
}
template <class V>
Step set_value(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const uint32_t bits =
      combine(w, inst, compare<V>(w.reg<RegOf<V>>(inst.a), w.reg<RegOf<V>>(inst.b), mods_low(inst.mods)));
  const uint32_t truth = inst.type == T_F32 ? 0x3f800000u : FULL_MASK;
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) { return (bits >> l & 1) ? truth : 0u; });
  return Step::Next;
}

// ---- addresses

uint64_t window_of(uint8_t space) {
  return space == S_SHARED || space == S_CLUSTER ? SHARED_WINDOW
         : space == S_LOCAL                      ? LOCAL_WINDOW
                                                 : 0;  // the others equal their generic addresses
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
      case S_SHARED:  // shared::cta: the own CTA's part
        return x >= SHARED_WINDOW && x < LOCAL_WINDOW && (!cta.cluster || (x & 0xffff'ffff) >> RANK_SHIFT == cta.rank);
      case S_CLUSTER: return x >= SHARED_WINDOW && x < LOCAL_WINDOW;
      case S_LOCAL: return x >= LOCAL_WINDOW && x < PARAM_WINDOW;
      case S_PARAM: return x >= PARAM_WINDOW && x < CONST_WINDOW;
      case S_CONST: {
        const Buffer* buffer = cta.find_buffer(x, 1);
        return buffer && buffer->read_only;
      }
      // 9.7.9.19: the window of kernel parameters lies in that of global memory
      default: return x >= GLOBAL_BASE || (x >= PARAM_WINDOW && x < CONST_WINDOW);
    }
  });
  w.set_pred(inst.d, mask, bits);
  return Step::Next;
}

}  // namespace

Handler bind_move(const Inst& inst) {
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
      if (inst.stype == T_F32)
        return by_bits(inst.type, [](auto v) -> Handler { return select_sign<decltype(v), true>; });
      return by_bits(inst.type, [](auto v) -> Handler { return select_sign<decltype(v), false>; });
    case OP_SETP: return by_integer(inst.type, [](auto v) -> Handler { return set_predicate<decltype(v)>; });
    case OP_SET:
      if (inst.type != T_U32 && inst.type != T_S32 && inst.type != T_F32) return nullptr;
      return by_integer(inst.stype, [](auto v) -> Handler { return set_value<decltype(v)>; });
    default: return nullptr;
  }
}
