// Tensor maps that a kernel rewrites: tensormap.replace (PTX ISA 9.7.9.26), tensormap.cp_fenceproxy (9.7.13.16) and
// fence.proxy.tensormap (9.7.13.4).
//
// The tensor-map proxy reads a map through a cache of its own. A map in global memory that this CTA has rewritten, or
// that is not what it was when the CTA last used it, must be acquired before a copy uses it.
#include <algorithm>

#include "lanes.hpp"
#include "tensor.hpp"

namespace {

constexpr uint32_t MAP_ALIGN = 64;

// The map of one lane in memory; nullptr after a fault was recorded. `global` tells in which space it lies.
uint8_t* map_to_edit(Cta& cta, Warp& w, const Inst& inst, int lane, uint64_t& address, bool& global) {
  const uint8_t space = mods_space(inst.mods);
  const bool shared = space == S_SHARED || (space == S_GENERIC && address >= SHARED_WINDOW && address < LOCAL_WINDOW);
  global = !shared;
  if (address % MAP_ALIGN) {
    cta.fault(w, inst, lane, "tensormap.misaligned", "the tensor map at 0x%llx is not aligned to %u bytes",
              static_cast<unsigned long long>(address), MAP_ALIGN);
    return nullptr;
  }
  uint8_t* at = nullptr;
  if (shared) {
    address = cta.own(address);
    if (cta.shared_ok(address, TENSOR_MAP_BYTES)) {
      if (cta.shadow)
        cta.shadow->write(w, cta.index_of(inst), static_cast<uint32_t>(address), TENSOR_MAP_BYTES);
      at = cta.shared(static_cast<uint32_t>(address));
    }
  } else {
    at = cta.global(address, TENSOR_MAP_BYTES, Access::Atomic);
  }
  if (!at) cta.fault_address(w, inst, lane, shared ? S_SHARED : S_GLOBAL, address, TENSOR_MAP_BYTES, MAP_ALIGN, "tensor map");
  return at;
}

const char* field_name(int field) {
  static const char* const names[] = {"global_address", "rank",           "box_dim",      "global_dim",
                                      "global_stride",  "element_stride", "elemtype",     "interleave_layout",
                                      "swizzle_mode",   "swizzle_atomicity", "fill_mode"};
  return names[field];
}

// tensormap.replace numbers element types otherwise than CUtensorMapDataType (PTX ISA 9.7.9.26, table 33).
constexpr TensorType ELEMENT_TYPES[] = {
    TensorType::U8,      TensorType::U16, TensorType::U32,  TensorType::S32,  TensorType::U64,      TensorType::S64,
    TensorType::F16,     TensorType::F32, TensorType::F32_FTZ, TensorType::F64, TensorType::BF16,   TensorType::TF32,
    TensorType::TF32_FTZ, TensorType::U4, TensorType::U4_ALIGN, TensorType::U6_ALIGN,
};
constexpr uint32_t TYPE_COUNT = sizeof ELEMENT_TYPES / sizeof ELEMENT_TYPES[0];

// Mode and atomicity are two fields of a map, in any order; here they are one. Of the modes 128B alone has several.
void set_swizzle(TensorMap& map, uint32_t mode, uint32_t atomicity) {
  map.atomicity = static_cast<uint8_t>(atomicity);
  map.swizzle = static_cast<Swizzle>(mode == static_cast<uint32_t>(Swizzle::B128) ? mode + atomicity : mode);
}
uint32_t mode_of(const TensorMap& map) { return static_cast<uint32_t>(std::min(map.swizzle, Swizzle::B128)); }
uint32_t atomicity_of(const TensorMap& map) {
  if (map.swizzle < Swizzle::B128) return map.atomicity;
  return static_cast<uint32_t>(map.swizzle) - static_cast<uint32_t>(Swizzle::B128);
}

// False: the value means nothing in this field.
bool edit(TensorMap& map, int field, int ordinal, uint64_t value) {
  const auto narrow = static_cast<uint32_t>(value);
  switch (field) {
    case MF_GLOBAL_ADDRESS: return map.address = value, value % 16 == 0;
    case MF_RANK: return map.rank = static_cast<uint8_t>(narrow + 1), narrow < MAX_RANK;
    case MF_BOX_DIM: return map.box[ordinal] = static_cast<uint16_t>(narrow), narrow >= 1 && narrow <= 256;
    case MF_GLOBAL_DIM: return map.last[ordinal] = narrow - 1, narrow >= 1;
    case MF_GLOBAL_STRIDE: return map.strides[ordinal] = value, value % 16 == 0 && value < 1ull << 40;
    case MF_ELEMENT_STRIDE:
      return map.element_strides[ordinal] = static_cast<uint8_t>(narrow), narrow >= 1 && narrow <= 8;
    case MF_ELEMTYPE: return map.type = ELEMENT_TYPES[narrow % TYPE_COUNT], narrow < TYPE_COUNT;
    case MF_SWIZZLE_MODE: return set_swizzle(map, narrow, atomicity_of(map)), narrow <= static_cast<uint32_t>(Swizzle::B128);
    case MF_SWIZZLE_ATOMICITY: return set_swizzle(map, mode_of(map), narrow), narrow <= 3;
    case MF_FILL_MODE: return map.fill = static_cast<OutOfBounds>(narrow), narrow <= 1;
    default: return narrow == 0;  // no interleaving
  }
}

void rewritten(Cta& cta, const Inst& inst, uint64_t address, bool released) {
  MapSeen& seen = cta.maps[address];
  seen.dirty = true;
  seen.released = released;
  seen.inst = cta.index_of(inst);
}

Step replace(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int field = cta.pool(inst.vec2)[0], ordinal = cta.pool(inst.vec2)[1];
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    uint64_t address = lane_address(cta, w, inst.a, inst.mods & M_A64, lane, inst.imm);
    bool global;
    uint8_t* at = map_to_edit(cta, w, inst, lane, address, global);
    if (!at) return Step::Fault;
    TensorMap map;
    std::memcpy(&map, at, sizeof map);
    if (map.magic != TENSOR_MAP_MAGIC)
      return cta.fault(w, inst, lane, "tensormap.no_map",
                       "tensormap.replace of 128 bytes at 0x%llx that hold no tensor map: copy one there first",
                       static_cast<unsigned long long>(address));
    const uint64_t value = inst.type == T_U64 ? w.reg<uint64_t>(inst.b)[lane] : w.reg<uint32_t>(inst.b)[lane];
    if (!edit(map, field, ordinal, value))
      return cta.fault(w, inst, lane, "tensormap.bad_value", "tensormap.replace of %s with %llu, which it cannot be",
                       field_name(field), static_cast<unsigned long long>(value));
    std::memcpy(at, &map, sizeof map);
    cta.stored = true;
    ++cta.effects;
    if (global) rewritten(cta, inst, address, false);
  }
  return Step::Next;
}

// Every lane of the warp names the same copy, which is done once.
Step copy_and_release(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, w, inst);
  const int lane = first_lane(mask);
  const uint64_t to = addresses.a(lane), from = cta.own(addresses.b(lane));
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int other = first_lane(rest);
    if (addresses.a(other) == to && cta.own(addresses.b(other)) == from) continue;
    return cta.fault(w, inst, other, "tensormap.divergent_copy",
                     "the lanes of a tensormap.cp_fenceproxy name different addresses: it is one copy of the warp");
  }
  if (to % MAP_ALIGN || from % MAP_ALIGN)
    return cta.fault(w, inst, lane, "tensormap.misaligned",
                     "tensormap.cp_fenceproxy from shared 0x%llx to global 0x%llx: both must be aligned to %u bytes",
                     static_cast<unsigned long long>(from), static_cast<unsigned long long>(to), MAP_ALIGN);
  if (!cta.shared_ok(from, TENSOR_MAP_BYTES))
    return cta.fault_address(w, inst, lane, S_SHARED, from, TENSOR_MAP_BYTES, MAP_ALIGN, "tensor map");
  uint8_t* target = cta.global(to, TENSOR_MAP_BYTES, Access::Write);
  if (!target) return cta.fault_address(w, inst, lane, S_GLOBAL, to, TENSOR_MAP_BYTES, MAP_ALIGN, "tensor map");
  if (cta.shadow) cta.shadow->read(w, cta.index_of(inst), static_cast<uint32_t>(from), TENSOR_MAP_BYTES);
  std::memcpy(target, cta.shared(static_cast<uint32_t>(from)), TENSOR_MAP_BYTES);
  cta.stored = true;
  ++cta.effects;
  rewritten(cta, inst, to, true);
  return Step::Next;
}

void warn(Cta& cta, Warp& w, const Inst& inst, int lane, uint64_t address, const MapSeen& seen, bool acquired) {
  const char* code = acquired ? "tensormap.no_release" : "tensormap.no_acquire";
  FindingRecord* f = cta.findings.add(cta, &w, lane, code, Severity::Warning, cta.index_of(inst), seen.inst);
  if (!f) return;
  f->address = address;
  if (acquired) {
    f->say("the tensor map at 0x%llx was rewritten and is acquired here, but nobody has released it to the tensor-map "
           "proxy",
           static_cast<unsigned long long>(address));
    f->mend("execute fence.proxy.tensormap::generic.release after the rewriting, or write it by tensormap.cp_fenceproxy");
  } else {
    f->say("a copy uses the tensor map at 0x%llx, which has been rewritten since this CTA last acquired it: the "
           "tensor-map proxy may still hold the old one",
           static_cast<unsigned long long>(address));
    f->mend("execute fence.proxy.tensormap::generic.acquire of its 128 bytes before the copy");
  }
  f->party(0, acquired ? "the fence" : "tensor copy", "%s the map", acquired ? "acquires" : "uses");
  if (seen.inst >= 0) f->party(1, "the rewriting", "changed it");
}

}  // namespace

void fence_tensor_maps(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  if (mods_order(inst.mods) == O_RELEASE) {
    for (auto& [address, seen] : cta.maps) seen.released = true;
    return;
  }
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t address = lane_address(cta, w, inst.a, true, lane, 0);
    const Buffer* buffer = cta.find_buffer(address, TENSOR_MAP_BYTES);
    if (!buffer) continue;
    MapSeen& seen = cta.maps[address];
    if (seen.dirty && !seen.released) warn(cta, w, inst, lane, address, seen, true);
    std::memcpy(seen.content, buffer->data + (address - buffer->base), TENSOR_MAP_BYTES);
    seen.known = true;
    seen.dirty = false;
  }
}

void use_tensor_map(Cta& cta, Warp& w, const Inst& inst, int lane, uint64_t address, const uint8_t* bytes) {
  MapSeen& seen = cta.maps[address];
  const bool changed = seen.known && std::memcmp(seen.content, bytes, TENSOR_MAP_BYTES);
  if (seen.dirty || changed) warn(cta, w, inst, lane, address, seen, false);
  if (seen.known && !changed) return;
  std::memcpy(seen.content, bytes, TENSOR_MAP_BYTES);
  seen.known = true;
}

Handler bind_tensor_map(const Inst& inst) {
  switch (inst.op) {
    case OP_TENSORMAP_REPLACE: return replace;
    case OP_TENSORMAP_COPY: return copy_and_release;
    default: return nullptr;
  }
}
