// Atomics and reductions (PTX ISA 9.7.13.5 to 9.7.13.7): one lane after the other, halves without flushing.
#include "access.hpp"
#include "reduction.hpp"
#include "numeric.hpp"

namespace {

template <class V>
V atomic_result(uint8_t op, V old, V b, V c) {
  using U = std::conditional_t<sizeof(V) == 8, uint64_t, uint32_t>;
  switch (op) {
    case A_ADD: return static_cast<V>(static_cast<U>(old) + static_cast<U>(b));
    case A_MIN: return std::min(old, b);
    case A_MAX: return std::max(old, b);
    case A_INC: return static_cast<U>(old) >= static_cast<U>(b) ? V{0} : static_cast<V>(old + 1);
    case A_DEC: return old == 0 || static_cast<U>(old) > static_cast<U>(b) ? b : static_cast<V>(old - 1);
    case A_CAS: return old == b ? c : old;
    case A_EXCH: return b;
    case A_AND: return static_cast<V>(old & b);
    case A_OR: return static_cast<V>(old | b);
    default: return static_cast<V>(old ^ b);
  }
}
template <class V>
V canonical_sum(V a, V b) {
  const V sum = a + b;
  if constexpr (sizeof(V) == 4)
    return sum != sum ? bits_as<V>(NAN_F32) : sum;
  else
    return sum != sum ? bits_as<V>(NAN_F64) : sum;
}
// atom.add.f32 on global memory flushes subnormals, on shared memory it does not (PTX ISA 9.7.13.5).
inline uint32_t sum_f32(uint32_t old, uint32_t b, bool flush) {
  const auto in = [flush](uint32_t bits) { return bits_as<float>(flush ? flushed(bits) : bits); };
  const uint32_t sum = bits_as<uint32_t>(canonical_sum(in(old), in(b)));
  return flush ? flushed(sum) : sum;
}
template <class H>
uint32_t half_extreme(uint32_t a, uint32_t b, bool larger) {
  const double x = H::to_float(a), y = H::to_float(b);
  if (x != x) return y != y ? NAN_HALF : b;
  if (y != y) return a;
  if (x == 0 && y == 0) return larger ? (a & b) : (a | b);
  return (larger ? x > y : x < y) ? a : b;
}
template <class H>
uint32_t half_result(uint8_t op, uint32_t old, uint32_t b) {
  if (op == A_ADD) return round_half<H>(static_cast<double>(H::to_float(old)) + H::to_float(b));
  return half_extreme<H>(old, b, op == A_MAX);
}

}  // namespace

uint64_t combined(uint8_t type, uint8_t op, uint64_t old, uint64_t b, uint64_t c, bool flush) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  switch (type) {
    case T_U16:
      return static_cast<uint16_t>(atomic_result<uint32_t>(op, low(old) & 0xffff, low(b) & 0xffff, low(c) & 0xffff));
    case T_S32:
      return low(static_cast<uint32_t>(
          atomic_result<int32_t>(op, static_cast<int32_t>(old), static_cast<int32_t>(b), static_cast<int32_t>(c))));
    case T_U32: return atomic_result<uint32_t>(op, low(old), low(b), low(c));
    case T_S64:
      return static_cast<uint64_t>(
          atomic_result<int64_t>(op, static_cast<int64_t>(old), static_cast<int64_t>(b), static_cast<int64_t>(c)));
    case T_F32: return sum_f32(low(old), low(b), flush);
    case T_F64: return bits_as<uint64_t>(canonical_sum(bits_as<double>(old), bits_as<double>(b)));
    case T_F16: return half_result<Half>(op, low(old), low(b) & 0xffff);
    case T_BF16: return half_result<Brain>(op, low(old), low(b) & 0xffff);
    case T_F16X2:
      return half_result<Half>(op, low(old) & 0xffff, low(b) & 0xffff) |
             half_result<Half>(op, low(old) >> 16, low(b) >> 16) << 16;
    case T_BF16X2:
      return half_result<Brain>(op, low(old) & 0xffff, low(b) & 0xffff) |
             half_result<Brain>(op, low(old) >> 16, low(b) >> 16) << 16;
    default: return atomic_result<uint64_t>(op, old, b, c);
  }
}
namespace {

bool is_shared(const Cta& cta, const uint8_t* base) {
  if (!cta.cluster) return base == cta.smem.data();
  const std::vector<Cta*>& ctas = cta.cluster->ctas;
  return std::any_of(ctas.begin(), ctas.end(), [=](const Cta* each) { return base == each->smem.data(); });
}
// One that finds memory as it leaves it, and tells, asks for something that others must do.
void note(Cta& cta, Warp& w, bool changed, bool tells) {
  cta.stored |= changed;
  cta.effects += changed;
  w.polls += !changed && tells;
}

Step atomic(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const uint8_t op = mods_low(inst.mods), type = inst.type;
  const size_t bytes = memory_bytes(type);
  const bool reduction = inst.op == OP_RED;
  const int count = inst.nvec2 > 0 ? inst.nvec2 : 1;
  const uint64_t each = bytes * static_cast<uint64_t>(count);
  bool changed = false;
  const auto update = [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
    const auto value = [&](int32_t reg, int l) {
      return reg < 0 ? 0 : bytes == 8 ? w.reg<uint64_t>(reg)[l] : w.reg<uint32_t>(reg)[l];
    };
    const bool flush = !is_shared(cta, base);
    // Sums of words, which most atomics are.
    const auto words = [&](auto sum) {
      const uint32_t* b = w.reg<uint32_t>(inst.b);
      uint32_t* const result = reduction || inst.d < 0 ? nullptr : w.reg<uint32_t>(inst.d);
      for_lanes(lanes, [&](int l) {
        uint8_t* at = place(base, a.of(l));
        uint32_t old;
        std::memcpy(&old, at, sizeof old);
        const uint32_t fresh = sum(old, b[l]);
        std::memcpy(at, &fresh, sizeof fresh);
        changed |= fresh != old;
        if (result) result[l] = old;
      });
    };
    if (inst.nvec2 <= 0 && inst.b >= 0 && op == A_ADD) {
      if (type == T_U32 || type == T_S32) return words([](uint32_t old, uint32_t b) { return old + b; });
      if (type == T_F32) return words([flush](uint32_t old, uint32_t b) { return sum_f32(old, b, flush); });
    }
    for_lanes(lanes, [&](int l) {  // one lane after the other: every atomic sees its predecessors
      for (int i = 0; i < count; ++i) {
        const int32_t source = inst.nvec2 > 0 ? cta.pool(inst.vec2)[i] : inst.b;
        const int32_t result = reduction ? -1 : inst.nvec2 > 0 ? cta.pool(inst.vec)[i] : inst.d;
        uint8_t* at = place(base, a.of(l) + bytes * static_cast<uint64_t>(i));
        uint64_t old = 0;
        std::memcpy(&old, at, bytes);
        const uint64_t fresh = combined(type, op, old, value(source, l), value(inst.c, l), flush);
        std::memcpy(at, &fresh, bytes);
        changed |= fresh != old;
        if (result >= 0 && bytes == 8)
          w.reg<uint64_t>(result)[l] = old;
        else if (result >= 0)
          w.reg<uint32_t>(result)[l] = static_cast<uint32_t>(old);
      }
    });
  };
  const Step step = for_spaces(cta, w, inst, mask, Kind::Atomic, each, update);
  note(cta, w, changed, !reduction);
  return step;
}
Step atomic_128(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const bool swaps = mods_low(inst.mods) == A_CAS;
  bool changed = false;
  const auto update = [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
    for_lanes(lanes, [&](int l) {
      uint8_t old[16], *at = place(base, a.of(l));
      std::memcpy(old, at, 16);
      const uint8_t *b = w.regs + inst.b + 16 * l, *c = swaps ? w.regs + inst.c + 16 * l : nullptr;
      if (!swaps)
        std::memcpy(at, b, 16);
      else if (std::memcmp(old, b, 16) == 0)
        std::memcpy(at, c, 16);
      changed |= std::memcmp(old, at, 16) != 0;
      if (inst.d >= 0) std::memcpy(w.regs + inst.d + 16 * l, old, 16);
    });
  };
  const Step step = for_spaces(cta, w, inst, mask, Kind::Atomic, 16, update);
  note(cta, w, changed, true);
  return step;
}

}  // namespace

Handler bind_atomic(const Inst& inst) {
  if (inst.op != OP_ATOM && inst.op != OP_RED) return nullptr;
  const uint8_t op = mods_low(inst.mods);
  switch (inst.type) {
    case T_B128: return op == A_CAS || op == A_EXCH ? atomic_128 : nullptr;
    case T_U16: return op == A_CAS ? atomic : nullptr;
    case T_F32:
    case T_F64: return op == A_ADD ? atomic : nullptr;
    case T_F16:
    case T_BF16:
    case T_F16X2:
    case T_BF16X2: return op == A_ADD || op == A_MIN || op == A_MAX ? atomic : nullptr;
    case T_U32:
    case T_S32:
    case T_U64:
    case T_S64: return atomic;
    default: return nullptr;
  }
}
