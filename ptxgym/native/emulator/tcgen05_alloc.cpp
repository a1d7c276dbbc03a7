// Allocation of tensor memory: tcgen05.alloc, dealloc, relinquish_alloc_permit (PTX ISA 9.7.16.7.1).
//
// With .cta_group::2 one warp of each CTA of the pair executes alloc and dealloc, "in order to collectively perform the
// operation" (9.7.16.5, table 46): the first one waits here until the other has come. For dealloc the ISA says that it
// may block; here it always does, so that a kernel which relies on the contrary (table 48) hangs.
#include "tcgen05.hpp"

namespace {

constexpr const char* NO_ROOM = "for columns of tensor memory that no tcgen05.dealloc frees";

bool column_count(Cta& cta, Warp& warp, const Inst& inst, const char* name, uint32_t columns) {
  if (columns >= 32 && columns <= 512 && !(columns & (columns - 1))) return true;
  cta.fault(warp, inst, -1, "tmem.bad_columns", "%s with %u columns: the number must be a power of two from 32 to 512",
            name, columns);
  return false;
}

// "The number of columns allocated should not increase between any two allocations" (9.7.16.7.1).
void warn_increase(Cta& cta, Warp& warp, const Inst& inst, const TensorMemory& memory, int columns) {
  if (memory.allocations().empty() || memory.allocations().back().columns >= columns) return;
  const TensorMemory::Allocation& last = memory.allocations().back();
  FindingRecord* f =
      cta.findings.add(cta, &warp, -1, "tmem.alloc_increases", Severity::Warning, cta.index_of(inst), last.inst);
  if (!f) return;
  f->say("tcgen05.alloc of %d columns after one of %d: the number must not increase between allocations of a CTA",
         columns, last.columns);
  f->party(0, "tcgen05.alloc", "asks for %d columns", columns);
  f->party(1, "tcgen05.alloc", "asked for %d columns", last.columns);
  f->mend("allocate the larger part first, or everything at once");
}

Step wait_for(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask, WaitKind kind, const char* what) {
  warp.block(mask, Wait{kind, cta.index_of(inst), 0, 0, what}, true);
  return Step::Block;
}

// ---- the two calls of a pair

// Whether both CTAs ask for the same; false after a fault was recorded.
bool calls_agree(Cta& cta, Warp& warp, const Inst& inst, const char* name, const PairCall& own, const PairCall& other) {
  if (own.columns == other.columns && (inst.op == OP_TCGEN05_ALLOC || own.address == other.address)) return true;
  cta.fault(warp, inst, -1, "tmem.pair_differs",
            "%s of %u columns (tensor memory address 0x%x), but warp %d of CTA %u of the pair asks for %u (0x%x) at "
            "{@%d}: both CTAs must execute it alike",
            name, own.columns, inst.op == OP_TCGEN05_ALLOC ? 0 : own.address, other.warp, cta.rank ^ 1, other.columns,
            inst.op == OP_TCGEN05_ALLOC ? 0 : other.address, other.inst);
  return false;
}

// The ISA asks for one warp of each CTA and no more. CUTLASS (tmem_allocator_sm100.hpp, Allocator2Sm) also wants the
// same warp and the same place for the address in both.
void warn_unlike(Cta& cta, Warp& warp, const Inst& inst, const PairCall& own, const PairCall& other) {
  const bool place = inst.op == OP_TCGEN05_ALLOC && own.address != other.address;
  if (own.warp == other.warp && !place) return;
  FindingRecord* f =
      cta.findings.add(cta, &warp, -1, "tmem.pair_unlike", Severity::Note, cta.index_of(inst), other.inst);
  if (!f) return;
  char who[sizeof f->who[0]], partner[sizeof f->who[0]];
  std::snprintf(who, sizeof who, "warp %d of CTA %u", own.warp, cta.rank);
  std::snprintf(partner, sizeof partner, "warp %d of CTA %u", other.warp, cta.rank ^ 1);
  f->say("%s and %s allocate or free tensor memory together: CUTLASS wants the same warp%s of both CTAs, the PTX ISA "
         "does not say",
         who, partner, place ? " and the same shared address for the result" : "");
  f->party(0, who, "came second");
  f->party(1, partner, "waited for it");
  f->mend("let the same warp of both CTAs execute it, with the same address operand");
}

// Takes part in a collective call. `act` performs it for both CTAs, or says that it cannot yet; `finish` is what this
// CTA's warp does then.
template <class Act, class Finish>
Step take_part(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask, const char* name, const char* waiting,
               PairCall& own, PairCall& other, uint32_t columns, uint32_t address, Act act, Finish finish) {
  if (own.warp >= 0 && own.warp != warp.id)
    return wait_for(cta, warp, inst, mask, WaitKind::Other, "for another warp of its CTA that waits for the pair");
  if (!own.done) own = {warp.id, cta.index_of(inst), columns, address, -1, false};
  if (!own.done && other.waits()) {
    if (!calls_agree(cta, warp, inst, name, own, other)) return Step::Fault;
    const int column = act();
    if (column < 0) return wait_for(cta, warp, inst, mask, WaitKind::Other, NO_ROOM);
    warn_unlike(cta, warp, inst, own, other);
    own.column = other.column = column;
    own.done = other.done = true;
    peer_of(cta)->wake();
  }
  if (!own.done) return wait_for(cta, warp, inst, mask, WaitKind::PeerCta, waiting);
  const PairCall made = own;
  own = PairCall();
  return finish(made.column);
}

// ---- alloc

void take_columns(Cta& cta, int column, int columns, bool paired) {
  TensorMemory& memory = tensor_memory(cta);
  memory.paired = paired;
  if (cta.shadow) cta.shadow->tmem_allocated(column, columns);
}

Step deliver(Cta& cta, Warp& warp, const Inst& inst, uint32_t address, int column) {
  if (cta.shadow) cta.shadow->write(warp, cta.index_of(inst), address, 4);
  const auto result = static_cast<uint32_t>(column);
  std::memcpy(cta.shared(address), &result, sizeof result);
  cta.stored = true;
  return Step::Next;
}

Step alloc(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (!whole_warp(cta, warp, inst, mask, "tcgen05.alloc")) return Step::Fault;
  const int at = cta.index_of(inst);
  uint32_t columns;
  if (!uniform(cta, warp, inst, inst.b, "the number of columns", columns)) return Step::Fault;
  if (!column_count(cta, warp, inst, "tcgen05.alloc", columns)) return Step::Fault;
  const uint64_t address = cta.own(lane_address(cta, warp, inst.a, inst.mods & M_A64, 0, inst.imm));
  if (address & 3 || !cta.shared_ok(address, 4))
    return cta.fault_address(warp, inst, 0, S_SHARED, address, 4, 4, "tcgen05.alloc to");
  TensorMemory& memory = tensor_memory(cta);
  if (memory.relinquished >= 0 && !tensor_state(cta).pair_alloc.done) {
    return cta.fault(warp, inst, -1, "tmem.alloc_after_relinquish",
                     "tcgen05.alloc after the CTA gave up the right to allocate at {@%d}", memory.relinquished);
  }
  const int count = static_cast<int>(columns);
  const auto to = static_cast<uint32_t>(address);
  if (!(inst.flags & F_PAIR)) {
    warn_increase(cta, warp, inst, memory, count);
    const int column = memory.allocate(count, at, warp.id);
    if (column < 0) return wait_for(cta, warp, inst, mask, WaitKind::Other, NO_ROOM);
    take_columns(cta, column, count, false);
    return deliver(cta, warp, inst, to, column);
  }
  if (!has_peer(cta, warp, inst, -1, "tcgen05.alloc")) return Step::Fault;
  Cta& peer = *peer_of(cta);
  PairCall& own = tensor_state(cta).pair_alloc;
  PairCall& other = tensor_state(peer).pair_alloc;
  if (own.warp < 0) warn_increase(cta, warp, inst, memory, count);
  return take_part(
      cta, warp, inst, mask, "tcgen05.alloc", "for a warp of the other CTA of its pair to execute tcgen05.alloc as well",
      own, other, columns, to,
      [&] {  // both CTAs have made the same allocations, so the same columns are free
        const int column = memory.allocate(count, at, warp.id);
        if (column < 0) return column;
        tensor_memory(peer).allocate(count, other.inst, other.warp);
        take_columns(cta, column, count, true);
        take_columns(peer, column, count, true);
        return column;
      },
      [&](int column) { return deliver(cta, warp, inst, to, column); });
}

// ---- dealloc

Step dealloc(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (!whole_warp(cta, warp, inst, mask, "tcgen05.dealloc")) return Step::Fault;
  const int at = cta.index_of(inst);
  uint32_t columns, address;
  if (!uniform(cta, warp, inst, inst.b, "the number of columns", columns)) return Step::Fault;
  if (!uniform(cta, warp, inst, inst.a, "the tensor memory address", address)) return Step::Fault;
  if (!column_count(cta, warp, inst, "tcgen05.dealloc", columns)) return Step::Fault;
  const bool pair = inst.flags & F_PAIR;
  if (pair && !has_peer(cta, warp, inst, -1, "tcgen05.dealloc")) return Step::Fault;
  PairCall& own = tensor_state(cta).pair_dealloc;
  if (pair && own.warp == warp.id && own.done) {
    own = PairCall();
    return Step::Next;
  }
  TensorMemory& memory = tensor_memory(cta);
  TensorMemory::Allocation* allocation = memory.allocation_at(TmemAddress::of(address).column);
  if (!allocation || address >> 16 || allocation->columns != static_cast<int>(columns)) {
    return cta.fault(warp, inst, -1, "tmem.bad_dealloc",
                     "tcgen05.dealloc of %u columns at tensor memory address 0x%x, which is no allocation of that size "
                     "(address and number must be those of a tcgen05.alloc)",
                     columns, address);
  }
  if (cta.shadow && !(pair && own.warp == warp.id)) {
    cta.shadow->tmem_access(warp, at, TmemUse::Dealloc, 0, allocation->column, allocation->columns, 0xFF);
    if (pair) peer_of(cta)->shadow->tmem_peer_dealloc(warp, at, allocation->column, allocation->columns);
  }
  if (!pair) {
    memory.release(*allocation);
    cta.wake();
    return Step::Next;
  }
  Cta& peer = *peer_of(cta);
  return take_part(
      cta, warp, inst, mask, "tcgen05.dealloc",
      "for a warp of the other CTA of its pair to execute tcgen05.dealloc as well", own, tensor_state(peer).pair_dealloc,
      columns, address,
      [&] {
        const int column = allocation->column;
        memory.release(*allocation);
        tensor_memory(peer).release(*tensor_memory(peer).allocation_at(column));
        cta.wake();
        return column;
      },
      [](int) { return Step::Next; });
}

Step relinquish(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (!whole_warp(cta, warp, inst, mask, "tcgen05.relinquish_alloc_permit")) return Step::Fault;
  if (inst.flags & F_PAIR && !has_peer(cta, warp, inst, -1, "tcgen05.relinquish_alloc_permit")) return Step::Fault;
  tensor_memory(cta).relinquished = cta.index_of(inst);
  return Step::Next;
}

}  // namespace

void report_tensor_memory_leaks(Cta& cta) {
  const std::unique_ptr<TensorMemory>& memory = tensor_state(cta).tmem;
  if (!memory) return;
  for (const TensorMemory::Allocation& allocation : memory->allocations()) {
    if (!allocation.live) continue;
    FindingRecord* f = cta.findings.add("tmem.leak", Severity::Error, allocation.inst);
    if (!f) continue;
    f->cta = cta.linear;
    f->warp = allocation.warp;
    f->say("columns %d to %d of tensor memory are still allocated at the end of the CTA: every tcgen05.alloc must be "
           "followed by a tcgen05.dealloc before the kernel exits, or the next CTA of this SM may wait for ever",
           allocation.column, allocation.column + allocation.columns - 1);
    f->party(0, "tcgen05.alloc", "allocated %d columns", allocation.columns);
    f->mend("tcgen05.dealloc with the same address and number, by a whole warp%s, after the last access",
            memory->paired ? " of each CTA of the pair" : "");
  }
}

Handler bind_tcgen05_alloc(const Inst& inst) {
  switch (inst.op) {
    case OP_TCGEN05_ALLOC: return alloc;
    case OP_TCGEN05_DEALLOC: return dealloc;
    case OP_TCGEN05_RELINQUISH: return relinquish;
    default: return nullptr;
  }
}
