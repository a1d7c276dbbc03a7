// What only the values of a run can tell about instructions that the decoder picked: registers that they may read
// before anything has written them, and shared addresses that may leave the array they are computed from.
#include <algorithm>

#include "core.hpp"
#include "element.hpp"

namespace {

// Lanes whose register holds what the decoder put there in place of a value.
uint32_t untouched(Warp& w, const EarlyRead& read, uint32_t mask) {
  uint32_t lanes = 0;
  for_lanes(mask, [&](int lane) {
    const uint32_t* words = w.reg<uint32_t>(read.offset) + lane * (read.width < 4 ? 1 : read.width / 4);
    const uint32_t count = read.width < 4 ? 1 : read.width / 4;
    lanes |= static_cast<uint32_t>(std::count(words, words + count, UNSET_REGISTER) == count) << lane;
  });
  return lanes;
}

void check_registers(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  const Kernel& kernel = cta.program.kernel;
  const EarlyRead* end = kernel.early_reads + kernel.nearly_reads;
  const auto before = [](const EarlyRead& each, int index) { return each.inst < index; };
  const EarlyRead* read = std::lower_bound(kernel.early_reads, end, at, before);
  for (; read != end && read->inst == at; ++read) {
    const uint32_t lanes = untouched(w, *read, mask);
    if (!lanes) continue;
    FindingRecord* f =
        cta.findings.add(cta, &w, first_lane(lanes), "register.uninitialised", Severity::Warning, at);
    if (!f) return;
    char who[sizeof f->who[0]];
    std::snprintf(who, sizeof who, "lane %d of warp %d", first_lane(lanes), w.id);
    f->say("line {@%d} uses a variable that nothing has set: its value is arbitrary on a GPU, and NaN here",
           at);
    f->party(0, who, "read it");
    f->mend("give the variable a value where it is declared, such as float sum = 0.0f");
    return;
  }
}

void check_extent(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  const Kernel& kernel = cta.program.kernel;
  const auto before = [](const Extent& each, int index) { return each.inst < index; };
  const Extent& array = *std::lower_bound(kernel.extents, kernel.extents + kernel.nextents, at, before);
  const bool load = inst.op == OP_LD, store = inst.op == OP_ST;
  const uint32_t elements = load || store ? static_cast<uint32_t>(inst.nvec) : 1u;
  const uint32_t bytes = element_bytes(inst.type) * elements;
  const uint32_t offset_mask = cta.cluster ? (1u << RANK_SHIFT) - 1 : ~0u;
  const auto outside = [&](int lane) {
    const uint64_t base = inst.mods & M_A64 ? w.reg<uint64_t>(inst.a)[lane] : w.reg<uint32_t>(inst.a)[lane];
    const uint32_t address = static_cast<uint32_t>(base + static_cast<uint64_t>(inst.imm)) & offset_mask;
    return address < array.begin || uint64_t{address} + bytes > array.end;
  };
  uint32_t lanes = 0;
  for_lanes(mask, [&](int lane) { lanes |= static_cast<uint32_t>(outside(lane)) << lane; });
  if (!lanes) return;
  const int lane = first_lane(lanes);
  const Severity severity = load ? Severity::Warning : Severity::Error;
  FindingRecord* f = cta.findings.add(cta, &w, lane, "smem.out_of_array", severity, at);
  if (!f) return;
  const uint64_t base = inst.mods & M_A64 ? w.reg<uint64_t>(inst.a)[lane] : w.reg<uint32_t>(inst.a)[lane];
  const uint32_t address = static_cast<uint32_t>(base + static_cast<uint64_t>(inst.imm)) & offset_mask;
  f->address = address;
  char who[sizeof f->who[0]], where[96];
  std::snprintf(who, sizeof who, "lane %d of warp %d", lane, w.id);
  if (address < array.begin)
    std::snprintf(where, sizeof where, "%u bytes before its start", array.begin - address);
  else
    std::snprintf(where, sizeof where, "at byte %u", address - array.begin);
  f->say("%s %s %u bytes through the shared array %s (%u bytes) %s: outside of it", who, load ? "reads" : "writes",
         bytes, array.name, array.end - array.begin, where);
  f->party(0, who, "%s %u bytes at shared 0x%x", load ? "read" : "wrote", bytes, address);
  f->mend("check the index and the size of %s: what lies behind it belongs to another array", array.name);
}

}  // namespace

void check_suspect(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const uint8_t what = cta.program.suspects[static_cast<size_t>(cta.index_of(inst))];
  if (what & SUSPECT_REGISTER) check_registers(cta, w, inst, mask);
  if (what & SUSPECT_EXTENT) check_extent(cta, w, inst, mask);
}
