// Device memory: finding the buffer of an address, proving that CTAs are independent, and naming a bad address.
#include <algorithm>

#include "core.hpp"

namespace {

constexpr uint32_t MANY_READERS = 0xffffffffu;
constexpr uint64_t NULL_PAGE = 4096;

// Marks the granules of an access and looks whether another CTA of this launch was there. Mark first, then look, both
// sequentially consistent: of two CTAs that meet in a granule at least one sees the other.
bool collides(Buffer& buffer, uint64_t offset, uint64_t bytes, uint32_t me, bool writes) {
  bool found = false;
  for (uint64_t i = offset / 16, last = (offset + bytes - 1) / 16; i <= last; ++i) {
    GranuleTag& tag = buffer.tags[i];
    if (writes) {
      uint32_t before = __atomic_load_n(&tag.writer, __ATOMIC_SEQ_CST);
      if (before != me) before = __atomic_exchange_n(&tag.writer, me, __ATOMIC_SEQ_CST);
      const uint32_t reader = __atomic_load_n(&tag.reader, __ATOMIC_SEQ_CST);
      found |= (before && before != me) || (reader && reader != me);
    } else {
      uint32_t before = __atomic_load_n(&tag.reader, __ATOMIC_SEQ_CST);
      while (before != me && before != MANY_READERS &&
             !__atomic_compare_exchange_n(&tag.reader, &before, before ? MANY_READERS : me, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST)) {}
      const uint32_t writer = __atomic_load_n(&tag.writer, __ATOMIC_SEQ_CST);
      found |= writer && writer != me;
    }
  }
  return found;
}

}  // namespace

const char* space_name(Space space) {
  switch (space) {
    case S_GENERIC: return "generic";
    case S_GLOBAL: return "global";
    case S_SHARED: return "shared";
    case S_CLUSTER: return "shared::cluster";
    case S_LOCAL: return "local";
    case S_CONST: return "const";
    case S_PARAM: return "param";
  }
  return "?";
}

Buffer* Cta::find_buffer(uint64_t address, uint64_t bytes) {
  std::vector<Buffer>& all = grid.buffers;
  if (hot_buffer < all.size()) {
    Buffer& hot = all[hot_buffer];
    if (address >= hot.base && bytes <= hot.size && address - hot.base <= hot.size - bytes) return &hot;
  }
  auto after =
      std::upper_bound(all.begin(), all.end(), address, [](uint64_t a, const Buffer& b) { return a < b.base; });
  if (after == all.begin()) return nullptr;
  Buffer& buffer = *--after;
  if (bytes > buffer.size || address - buffer.base > buffer.size - bytes) return nullptr;
  hot_buffer = static_cast<size_t>(&buffer - all.data());
  return &buffer;
}

bool Cta::note_access(Buffer& buffer, uint64_t offset, uint64_t bytes, Access access) {
  const bool writes = access != Access::Read;
  if (access != Access::Write) look_at(buffer);
  if (grid.track && bytes) {
    if (!buffer.tags && writes) {  // nothing is kept with which this buffer could be restored
      grid.conflict.store(true, std::memory_order_relaxed);
      outcome = Outcome::Conflict;
      return false;
    }
    if (buffer.tags && collides(buffer, offset, bytes, static_cast<uint32_t>(unit) + 1, writes))
      grid.conflict.store(true, std::memory_order_relaxed);
  }
  if (__builtin_expect(buffer.stamps != nullptr, false)) note_dependency(buffer, offset, bytes, access);
  if (writes && buffer.initialised) {
    uint8_t* const marks = buffer.initialised + offset;
    if (bytes == 4)
      std::memcpy(marks, "\1\1\1\1", 4);
    else
      std::memset(marks, 1, bytes);
  }
  return true;
}

uint8_t* Cta::global(uint64_t address, uint64_t bytes, Access access) {
  Buffer* buffer = find_buffer(address, bytes);
  if (!buffer || (buffer->read_only && access != Access::Read)) return nullptr;
  if (!note_access(*buffer, address - buffer->base, bytes, access)) return nullptr;
  return buffer->data + (address - buffer->base);
}

std::string Cta::describe_global(uint64_t address) {
  char text[256];
  const Buffer *before = nullptr, *after = nullptr;
  for (const Buffer& buffer : grid.buffers) {
    if (buffer.base <= address)
      before = &buffer;
    else if (!after)
      after = &buffer;
  }
  const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  if (address < NULL_PAGE)
    std::snprintf(text, sizeof text, "address 0x%llx, a null pointer", number(address));
  else if (before && address - before->base < before->size)
    std::snprintf(text, sizeof text, "byte %llu of %s (%llu bytes)", number(address - before->base), before->name,
                  number(before->size));
  else if (before && address == before->base + before->size)
    std::snprintf(text, sizeof text, "right behind the end of %s (%llu bytes)", before->name, number(before->size));
  else if (before && (!after || address - (before->base + before->size) <= after->base - address))
    std::snprintf(text, sizeof text, "%llu bytes past the end of %s (%llu bytes)",
                  number(address - before->base - before->size), before->name, number(before->size));
  else if (after && after->base - address < (1ull << 40))
    std::snprintf(text, sizeof text, "%llu bytes before the start of %s", number(after->base - address), after->name);
  else
    std::snprintf(text, sizeof text, "address 0x%llx, which belongs to no buffer", number(address));
  return text;
}

Step Cta::fault_address(Warp& w, const Inst& inst, int lane, Space space, uint64_t address, uint64_t bytes,
                        uint64_t align, const char* what) {
  const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  const bool device = space == S_GLOBAL || space == S_CONST || space == S_GENERIC;
  const Step step = [&] {
    if (device) {
      Buffer* buffer = find_buffer(address, bytes);
      const std::string where = describe_global(address);
      if (buffer && align > 1 && address % align)
        return fault(w, inst, lane, "memory.misaligned",
                     "%s of %llu bytes at %s is not aligned to %llu bytes (address 0x%llx)", what, number(bytes),
                     where.c_str(), number(align), number(address));
      if (buffer && space == S_CONST)
        return fault(w, inst, lane, "memory.out_of_bounds",
                     "%s of %llu bytes at const memory out of bounds: %s is global memory; read it with ld.global, or "
                     "declare it __constant__ (.const)",
                     what, number(bytes), where.c_str());
      if (buffer)
        return fault(w, inst, lane, "memory.read_only", "%s of %llu bytes at %s: const memory cannot be written", what,
                     number(bytes), where.c_str());
      return fault(w, inst, lane, "memory.out_of_bounds", "%s of %llu bytes at %s memory out of bounds: %s", what,
                   number(bytes), space_name(space), where.c_str());
    }
    if (space == S_CLUSTER)
      return fault(w, inst, lane, "memory.out_of_bounds",
                   "%s of %llu bytes at shared::cluster 0x%llx is out of bounds: there is no CTA %llu in a cluster of %u",
                   what, number(bytes), number(address), number((address & 0xffff'ffff) >> RANK_SHIFT),
                   grid.cluster_size);
    if (space == S_SHARED && cluster && address >> RANK_SHIFT) {
      const uint64_t full = (address + tag) & 0xffff'ffff;
      return fault(w, inst, lane, "memory.out_of_bounds",
                   "%s of %llu bytes at shared 0x%llx: the address names CTA %llu of the cluster, but this instruction "
                   "reaches only the memory of its own CTA, %u",
                   what, number(bytes), number(full), number(full >> RANK_SHIFT), rank);
    }
    uint64_t low = 0, size = 0;
    if (space == S_SHARED)
      low = SMEM_BASE, size = smem_end - SMEM_BASE;
    else if (space == S_LOCAL)
      size = static_cast<uint64_t>(program.kernel.local_bytes);
    else
      size = static_cast<uint64_t>(program.kernel.param_bytes);
    const bool inside = address >= low && bytes <= size && address - low <= size - bytes;
    if (inside && align > 1 && address % align)
      return fault(w, inst, lane, "memory.misaligned", "%s of %llu bytes at %s 0x%llx is not aligned to %llu bytes",
                   what, number(bytes), space_name(space), number(address), number(align));
    if (address == low + size)
      return fault(w, inst, lane, "memory.out_of_bounds",
                   "%s of %llu bytes at %s 0x%llx is out of bounds: right behind the end (%llu bytes%s)", what,
                   number(bytes), space_name(space), number(address), number(size),
                   space == S_SHARED ? ", static and dynamic" : "");
    if (address >= low + size)
      return fault(w, inst, lane, "memory.out_of_bounds",
                   "%s of %llu bytes at %s 0x%llx is out of bounds: %llu bytes past the end (%llu bytes%s)", what,
                   number(bytes), space_name(space), number(address), number(address - low - size), number(size),
                   space == S_SHARED ? ", static and dynamic" : "");
    if (address < low)
      return fault(w, inst, lane, "memory.out_of_bounds",
                   "%s of %llu bytes at %s 0x%llx is out of bounds: below the first address 0x%llx", what,
                   number(bytes), space_name(space), number(address), number(low));
    return fault(w, inst, lane, "memory.out_of_bounds",
                 "%s of %llu bytes at %s 0x%llx is out of bounds: it ends %llu bytes past the end (%llu bytes%s)", what,
                 number(bytes), space_name(space), number(address), number(address + bytes - low - size), number(size),
                 space == S_SHARED ? ", static and dynamic" : "");
  }();
  if (!findings.records.empty()) findings.records.back().address = address;
  return step;
}
