// Checks of memory accesses: bounds, alignment, uninitialised reads, and what shadow and proof must know.
#include "access.hpp"
#include "global_order.hpp"

namespace {

const char* verb(Kind kind) { return kind == Kind::Load ? "load" : kind == Kind::Store ? "store" : "atomic operation"; }

Access access_of(Kind kind) {
  return kind == Kind::Load ? Access::Read : kind == Kind::Store ? Access::Write : Access::Atomic;
}

constexpr uint32_t WRITTEN = 0x01010101u;  // marks of a word

// The first byte of [at, at + bytes) that is 0, or nullptr.
const void* gap_in(const uint8_t* at, uint64_t bytes) {
  uint32_t word = 0;
  if (bytes == sizeof word) std::memcpy(&word, at, sizeof word);
  return word == WRITTEN ? nullptr : std::memchr(at, 0, bytes);
}

// Whether every lane's word has been written.
bool all_written(const Buffer& buffer, const Addresses& a) {
  uint32_t marks = WRITTEN;
  for (int lane = 0; lane < LANES; ++lane) {
    uint32_t word;
    std::memcpy(&word, buffer.initialised + (a.at[lane] - buffer.base), sizeof word);
    marks &= word;
  }
  return marks == WRITTEN;
}

void report_unwritten(Cta& cta, Warp& w, const Inst& inst, int lane, const Buffer& buffer, uint64_t offset,
                      uint64_t bytes, const void* gap, const char* what) {
  FindingRecord* f = cta.findings.add(cta, &w, lane, "memory.uninitialised", Severity::Warning, cta.index_of(inst));
  if (!f) return;
  f->address = buffer.base + static_cast<uint64_t>(static_cast<const uint8_t*>(gap) - buffer.initialised);
  f->say("%s of %llu bytes at byte %llu of %s reads memory that nothing has written", what,
         static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(offset), buffer.name);
  f->mend("write %s (a kernel or a memset) before it is read", buffer.name);
}

void read_uninitialised(Cta& cta, Warp& w, const Inst& inst, const Buffer& buffer, const Addresses& a, uint32_t mask) {
  const uint64_t each = a.each;
  if (a.pattern != Pattern::Any && !gap_in(buffer.initialised + (a.low - buffer.base), a.high + each - a.low)) return;
  if (a.pattern == Pattern::Any && each == sizeof WRITTEN && mask == FULL_MASK && all_written(buffer, a)) return;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t offset = a.of(lane) - buffer.base;
    const void* gap = gap_in(buffer.initialised + offset, each);
    if (!gap) continue;
    report_unwritten(cta, w, inst, lane, buffer, offset, each, gap, "load");
    return;
  }
}

// Marks as initialised, in the sizes that most stores of lanes and warps have.
inline void mark(uint8_t* marks, uint64_t bytes) {
  switch (bytes) {
    case 4: std::memset(marks, 1, 4); break;
    case 16: std::memset(marks, 1, 16); break;
    case 128: std::memset(marks, 1, 128); break;
    default: std::memset(marks, 1, bytes);
  }
}

// Tells proof, later launches and order of an access inside one buffer. False: the proof forbids it.
__attribute__((noinline)) bool note_lanes(Cta& cta, Warp& w, const Inst& inst, uint32_t mask, Kind kind,
                                          Buffer& buffer, const Addresses& a, bool notes, bool orders) {
  Ranges ranges;
  for_ranges(a, mask, [&](uint64_t from, uint64_t bytes) { ranges.add(from, bytes); });
  if (notes && !cta.grid.track && !buffer.stamps)
    for (const Range& range : ranges) mark(buffer.initialised + (range.address - buffer.base), range.bytes);
  else if (notes)
    for (const Range& range : ranges)
      if (!cta.note_access(buffer, range.address - buffer.base, range.bytes, access_of(kind))) return false;
  if (orders) order_global(cta, w, inst, buffer, ranges, a.each, access_of(kind));
  return true;
}

}  // namespace

bool note_unwritten(Cta& cta, Warp& w, const Inst& inst, int lane, uint64_t address, uint64_t bytes, const char* what) {
  const Buffer* buffer = bytes ? cta.find_buffer(address, bytes) : nullptr;
  if (!buffer || !buffer->initialised) return false;
  const uint64_t offset = address - buffer->base;
  const void* gap = std::memchr(buffer->initialised + offset, 0, bytes);
  if (gap) report_unwritten(cta, w, inst, lane, *buffer, offset, bytes, gap, what);
  return gap != nullptr;
}

uint64_t window_of(Space space) {
  return space == S_SHARED ? SHARED_WINDOW : space == S_LOCAL ? LOCAL_WINDOW : space == S_PARAM ? PARAM_WINDOW : 0;
}

Space space_of_generic(uint64_t address) {
  if (address >= SHARED_WINDOW && address < LOCAL_WINDOW) return S_SHARED;
  if (address >= LOCAL_WINDOW && address < PARAM_WINDOW) return S_LOCAL;
  if (address >= PARAM_WINDOW && address < CONST_WINDOW) return S_PARAM;
  return S_GLOBAL;
}

Cta* owner_of(Cta& cta, Warp& w, const Inst& inst, uint32_t& lanes, uint64_t window, Kind kind, Addresses& a) {
  collect(a, w, inst, lanes, window);
  const int first = first_lane(lanes);
  const uint64_t address = a.of(first), rank = address >> RANK_SHIFT;
  if (rank != a.low >> RANK_SHIFT || rank != a.high >> RANK_SHIFT) {
    uint32_t same = 0;
    for_lanes(lanes, [&](int l) { same |= static_cast<uint32_t>(a.of(l) >> RANK_SHIFT == rank) << l; });
    lanes = same;
  }
  const SharedPlace place = locate(cta, address);
  if (!place.owner) {
    cta.fault_address(w, inst, first, S_CLUSTER, address, a.each, a.each, verb(kind));
    return nullptr;
  }
  reach(cta, w, inst, first, *place.owner);
  collect(a, w, inst, lanes, window + (rank << RANK_SHIFT));
  return place.owner;
}

bool resolve(Cta& cta, Cta& owner, Warp& w, const Inst& inst, uint32_t mask, Space space, Kind kind, Addresses& a,
             uint8_t*& base) {
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
      base = owner.smem.data();
      if (Shadow* shadow = owner.shadow.get()) {
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
      // const memory takes loads only, and ld.const reads nothing else
      const auto usable = [&](const Buffer* b) { return b && (b->read_only ? kind == Kind::Load : space != S_CONST); };
      if (misaligned || !usable(buffer)) {
        // the lanes may lie in several buffers; kernel parameters are part of the window of global memory (9.7.9.19)
        const auto size = static_cast<uint64_t>(cta.program.kernel.param_bytes);
        const auto parameter = [&](uint64_t x) {
          return space == S_GLOBAL && kind == Kind::Load && x >= PARAM_WINDOW && each <= size &&
                 x - PARAM_WINDOW <= size - each;
        };
        const auto inside = [&](uint64_t x) { return parameter(x) || usable(cta.find_buffer(x, each)); };
        bool all = !misaligned;
        for_lanes(mask, [&](int l) { all = all && inside(a.of(l)); });
        if (!all) return refuse(inside);
        base = nullptr;  // from here on a.at holds host addresses
        a.expand();
        bool allowed = true;
        for_lanes(mask, [&](int l) {
          if (parameter(a.at[l])) {
            a.at[l] = reinterpret_cast<uint64_t>(cta.grid.params) + (a.at[l] - PARAM_WINDOW);
            return;
          }
          Buffer& own = *cta.find_buffer(a.at[l], each);
          if (kind != Kind::Store && own.initialised) read_uninitialised(cta, w, inst, own, a, 1u << l);
          allowed &= cta.note_access(own, a.at[l] - own.base, each, access_of(kind));
          if (cta.order && !own.read_only)
            order_global(cta, w, inst, own, Ranges(a.at[l], each), each, access_of(kind));
          a.at[l] = reinterpret_cast<uint64_t>(own.data) + (a.at[l] - own.base);
        });
        return allowed;
      }
      if (kind != Kind::Store) cta.look_at(*buffer);
      if (kind != Kind::Store && buffer->initialised) read_uninitialised(cta, w, inst, *buffer, a, mask);
      const bool proving = cta.grid.track && (buffer->tags || kind != Kind::Load);
      const bool notes = proving || buffer->stamps || (kind != Kind::Load && buffer->initialised);
      const bool orders =
          cta.order && (kind != Kind::Load || buffer->ordered || mods_order(inst.mods) != O_WEAK);
      const bool fresh = kind == Kind::Store && orders && a.pattern == Pattern::Dense && !buffer->stamps &&
                         cta.order->fresh_store(cta, w, cta.index_of(inst), *buffer, a.low - buffer->base, span);
      if (fresh && buffer->initialised) mark(buffer->initialised + (a.low - buffer->base), span);
      if (!fresh && (notes || orders) && !note_lanes(cta, w, inst, mask, kind, *buffer, a, notes, orders)) return false;
      base = buffer->data;
      a.shift(buffer->base);
      return true;
    }
  }
}
