// Loads, stores and atomics (PTX ISA 9.7.9.8 to 9.7.9.12, 9.7.13.5 and 9.7.13.6).
//
// The addresses of a warp are computed and checked together: smallest and largest address inside one buffer and no low
// bit set is the common case. Only where that fails does a lane loop find the culprit.
#include <algorithm>

#include "numeric.hpp"

namespace {

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
void collect(Addresses& out, Warp& w, const Inst& inst, uint32_t mask, uint64_t window) {
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

// Calls visit(address, bytes) for the ranges that the lanes cover, neighbours joined.
template <class Visit>
void for_ranges(const Addresses& a, uint32_t mask, Visit visit) {
  if (a.pattern == Pattern::Dense) return visit(a.low, a.each * LANES);
  if (a.pattern == Pattern::Uniform) return visit(a.low, a.each);
  uint64_t from = 0, to = 0;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const uint64_t x = a.at[first_lane(rest)];
    if (to && x >= from && x <= to) {
      to = std::max(to, x + a.each);
    } else {
      if (to) visit(from, to - from);
      from = x;
      to = x + a.each;
    }
  }
  visit(from, to - from);
}

enum class Kind : uint8_t { Load, Store, Atomic };
const char* verb(Kind kind) { return kind == Kind::Load ? "load" : kind == Kind::Store ? "store" : "atomic operation"; }

Access access_of(Kind kind) {
  return kind == Kind::Load ? Access::Read : kind == Kind::Store ? Access::Write : Access::Atomic;
}

uint64_t window_of(Space space) {
  return space == S_SHARED ? SHARED_WINDOW : space == S_LOCAL ? LOCAL_WINDOW : space == S_PARAM ? PARAM_WINDOW : 0;
}

void read_uninitialised(Cta& cta, Warp& w, const Inst& inst, const Buffer& buffer, const Addresses& a, uint32_t mask) {
  const uint64_t each = a.each;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t offset = a.of(lane) - buffer.base;
    const void* gap = std::memchr(buffer.initialised + offset, 0, each);
    if (!gap) continue;
    const uint64_t byte = static_cast<uint64_t>(static_cast<const uint8_t*>(gap) - buffer.initialised);
    if (FindingRecord* f =
            cta.findings.add(cta, &w, lane, "memory.uninitialised", Severity::Warning, cta.index_of(inst))) {
      f->address = buffer.base + byte;
      f->say("load of %llu bytes at byte %llu of %s reads memory that nothing has written",
             static_cast<unsigned long long>(each), static_cast<unsigned long long>(offset), buffer.name);
      f->mend("write %s (a kernel or a memset) before it is read", buffer.name);
    }
    return;
  }
}

// Finds the memory behind the addresses of one space: afterwards lane l accesses base + a.of(l). Reports the access to
// shadow, proof and counters. False: a fault was recorded.
bool resolve(Cta& cta, Warp& w, const Inst& inst, uint32_t mask, Space space, Kind kind, Addresses& a, uint8_t*& base) {
  const uint64_t each = a.each, span = a.high - a.low + each;
  const bool misaligned = a.bits & (each - 1);
  const auto first_bad = [&](auto bad) {
    for (uint32_t rest = mask; rest; rest &= rest - 1)
      if (bad(a.of(first_lane(rest)))) return first_lane(rest);
    return first_lane(mask);
  };
  const auto refuse = [&](auto inside) {
    const int lane = first_bad([&](uint64_t x) { return (x & (each - 1)) || !inside(x); });
    cta.fault_address(w, inst, lane, space, a.of(lane), each, each, verb(kind));
    return false;
  };
  switch (space) {
    case S_SHARED: {
      if (misaligned || !cta.shared_ok(a.low, span)) return refuse([&](uint64_t x) { return cta.shared_ok(x, each); });
      base = cta.smem.data();
      if (Shadow* shadow = cta.shadow.get()) {
        const int at = cta.index_of(inst);
        for_ranges(a, mask, [&](uint64_t from, uint64_t bytes) {
          const uint32_t address = static_cast<uint32_t>(from), size = static_cast<uint32_t>(bytes);
          if (kind == Kind::Load)
            shadow->read(w, at, address, size);
          else if (kind == Kind::Store)
            shadow->write(w, at, address, size);
          else
            shadow->atomic(w, at, address, size);
        });
      }
      return true;
    }
    case S_LOCAL: {
      const uint64_t size = static_cast<uint64_t>(cta.program.kernel.local_bytes);
      const auto inside = [&](uint64_t x) { return each <= size && x <= size - each; };
      if (misaligned || !inside(a.high) || !inside(a.low)) return refuse(inside);
      base = cta.local.data();
      a.expand();  // lanes never share a place
      const uint64_t first = static_cast<uint64_t>(w.id) * LANES * size;
      for (int l = 0; l < LANES; ++l) a.at[l] += first + static_cast<uint64_t>(l) * size;
      return true;
    }
    case S_PARAM: {
      const uint64_t size = static_cast<uint64_t>(cta.program.kernel.param_bytes);
      const auto inside = [&](uint64_t x) { return each <= size && x <= size - each; };
      if (kind != Kind::Load || misaligned || !inside(a.high) || !inside(a.low)) return refuse(inside);
      base = const_cast<uint8_t*>(cta.grid.params);
      return true;
    }
    default: {
      Buffer* buffer = cta.find_buffer(a.low, span);
      const auto usable = [&](const Buffer* b) { return b && (kind == Kind::Load || !b->read_only); };
      if (misaligned || !usable(buffer)) {
        bool all = !misaligned;  // the lanes may lie in several buffers
        for_lanes(mask, [&](int l) { all = all && usable(cta.find_buffer(a.of(l), each)); });
        if (!all) return refuse([&](uint64_t x) { return usable(cta.find_buffer(x, each)); });
        base = nullptr;  // from here on a.at holds host addresses
        a.expand();
        bool allowed = true;
        for_lanes(mask, [&](int l) {
          Buffer& own = *cta.find_buffer(a.at[l], each);
          if (kind != Kind::Store && own.initialised) read_uninitialised(cta, w, inst, own, a, 1u << l);
          allowed &= cta.note_access(own, a.at[l] - own.base, each, access_of(kind));
          a.at[l] = reinterpret_cast<uint64_t>(own.data) + (a.at[l] - own.base);
        });
        return allowed;
      }
      if (kind != Kind::Store && buffer->initialised) read_uninitialised(cta, w, inst, *buffer, a, mask);
      bool allowed = true;
      const bool proving = cta.grid.track && (buffer->tags || kind != Kind::Load);
      if (proving || (kind != Kind::Load && buffer->initialised))
        for_ranges(a, mask, [&](uint64_t from, uint64_t bytes) {
          allowed &= cta.note_access(*buffer, from - buffer->base, bytes, access_of(kind));
        });
      if (!allowed) return false;
      base = buffer->data;
      a.shift(buffer->base);
      return true;
    }
  }
}

Space space_of_generic(uint64_t address) {
  if (address >= SHARED_WINDOW && address < LOCAL_WINDOW) return S_SHARED;
  if (address >= LOCAL_WINDOW && address < PARAM_WINDOW) return S_LOCAL;
  if (address >= PARAM_WINDOW && address < CONST_WINDOW) return S_PARAM;
  return S_GLOBAL;
}

// Runs access(base, addresses, lanes) once per state space that the lanes address; usually that is one.
template <class Accessor>
Step for_spaces(Cta& cta, Warp& w, const Inst& inst, uint32_t mask, Kind kind, uint64_t each, Accessor access) {
  Addresses addresses;
  addresses.each = each;
  const Space stated = static_cast<Space>(mods_space(inst.mods));
  if (mods_order(inst.mods) != O_WEAK && kind == Kind::Load) ++w.polls;
  if (kind == Kind::Store && stated != S_LOCAL) cta.stored = true;
  for (uint32_t left = mask; left;) {
    Space space = stated;
    uint32_t lanes = left;
    uint64_t window = 0;
    if (stated == S_GENERIC) {
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
    }
    if (stated != S_GENERIC || window || lanes != left) collect(addresses, w, inst, lanes, window);
    uint8_t* base = nullptr;
    if (!resolve(cta, w, inst, lanes, space, kind, addresses, base)) return Step::Fault;
    access(base, addresses, lanes);
    left &= ~lanes;
  }
  return Step::Next;
}

inline uint8_t* place(uint8_t* base, uint64_t offset) {
  return reinterpret_cast<uint8_t*>(reinterpret_cast<uint64_t>(base) + offset);
}

// ---- ld, st

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

template <class Elem, class Reg>
Step store(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const uint64_t each = sizeof(Elem) * static_cast<uint64_t>(inst.nvec);
  return for_spaces(cta, w, inst, mask, Kind::Store, each, [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
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

// ---- atom, red

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

// Memory value of `type` after the operation. atom.add.f32 on global memory flushes subnormals, on shared memory it
// does not (PTX ISA 9.7.13.5).
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
    case T_F32: {
      const auto in = [flush](uint32_t bits) { return bits_as<float>(flush ? flushed(bits) : bits); };
      const uint32_t sum = bits_as<uint32_t>(canonical_sum(in(low(old)), in(low(b))));
      return flush ? flushed(sum) : sum;
    }
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
size_t memory_bytes(uint8_t type) {
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

Step atomic(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const uint8_t op = mods_low(inst.mods), type = inst.type;
  const size_t bytes = memory_bytes(type);
  const bool reduction = inst.op == OP_RED;
  const int count = inst.nvec2 > 0 ? inst.nvec2 : 1;
  const uint64_t each = bytes * static_cast<uint64_t>(count);
  if (op == A_CAS || op == A_EXCH) ++w.polls;
  return for_spaces(cta, w, inst, mask, Kind::Atomic, each, [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
    const auto value = [&](int32_t reg, int l) {
      return reg < 0 ? 0 : bytes == 8 ? w.reg<uint64_t>(reg)[l] : w.reg<uint32_t>(reg)[l];
    };
    const bool flush = base != cta.smem.data();
    for_lanes(lanes, [&](int l) {  // one lane after the other: every atomic sees its predecessors
      for (int i = 0; i < count; ++i) {
        const int32_t source = inst.nvec2 > 0 ? cta.pool(inst.vec2)[i] : inst.b;
        const int32_t result = reduction ? -1 : inst.nvec2 > 0 ? cta.pool(inst.vec)[i] : inst.d;
        uint8_t* at = place(base, a.of(l) + bytes * static_cast<uint64_t>(i));
        uint64_t old = 0;
        std::memcpy(&old, at, bytes);
        const uint64_t fresh = combined(type, op, old, value(source, l), value(inst.c, l), flush);
        std::memcpy(at, &fresh, bytes);
        cta.stored |= fresh != old;
        if (result >= 0 && bytes == 8)
          w.reg<uint64_t>(result)[l] = old;
        else if (result >= 0)
          w.reg<uint32_t>(result)[l] = static_cast<uint32_t>(old);
      }
    });
  });
}
Step atomic_128(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const bool swaps = mods_low(inst.mods) == A_CAS;
  ++w.polls;
  return for_spaces(cta, w, inst, mask, Kind::Atomic, 16, [&](uint8_t* base, const Addresses& a, uint32_t lanes) {
    for_lanes(lanes, [&](int l) {
      uint8_t old[16], *at = place(base, a.of(l));
      std::memcpy(old, at, 16);
      const uint8_t *b = w.regs + inst.b + 16 * l, *c = swaps ? w.regs + inst.c + 16 * l : nullptr;
      if (!swaps)
        std::memcpy(at, b, 16);
      else if (std::memcmp(old, b, 16) == 0)
        std::memcpy(at, c, 16);
      if (inst.d >= 0) std::memcpy(w.regs + inst.d + 16 * l, old, 16);
    });
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
