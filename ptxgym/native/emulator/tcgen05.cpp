// tcgen05: allocation, loads and stores of tensor memory, waits, fences and commit (PTX ISA 9.7.16.7, .8, .11, .12).
#include "tcgen05.hpp"
#include "lanes.hpp"

namespace {

// .sync.aligned: all threads of the warp execute it (undefined where one has exited, 9.7.16.7.1, 9.7.16.8.3).
bool whole_warp(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask, const char* name) {
  if (mask == FULL_MASK) return true;
  cta.fault(warp, inst, first_lane(~mask), "tcgen05.partial_warp",
            "lanes 0x%08x of warp %d do not execute this %s: all 32 threads of the warp must", ~mask, warp.id, name);
  return false;
}

// The same 32-bit operand in all lanes; false after a fault was recorded.
bool uniform(Cta& cta, Warp& warp, const Inst& inst, int32_t reg, const char* name, uint32_t& value) {
  const uint32_t* lanes = warp.reg<uint32_t>(reg);
  value = lanes[0];
  for (int lane = 1; lane < LANES; ++lane) {
    if (lanes[lane] == value) continue;
    cta.fault(warp, inst, lane, "tcgen05.operands_differ",
              "%s is 0x%x in lane 0 but 0x%x in lane %d: it must be the same in every thread of the warp", name, value,
              lanes[lane], lane);
    return false;
  }
  return true;
}

// ---- allocation

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
  if (memory.relinquished >= 0) {
    return cta.fault(warp, inst, -1, "tmem.alloc_after_relinquish",
                     "tcgen05.alloc after the CTA gave up the right to allocate at {@%d}", memory.relinquished);
  }
  warn_increase(cta, warp, inst, memory, static_cast<int>(columns));
  const int column = memory.allocate(static_cast<int>(columns), at, warp.id);
  if (column < 0) {
    warp.block(mask, Wait{WaitKind::Other, at, 0, 0, "for columns of tensor memory that no tcgen05.dealloc frees"},
               true);
    return Step::Block;
  }
  if (cta.shadow) {
    cta.shadow->write(warp, at, static_cast<uint32_t>(address), 4);
    cta.shadow->tmem_allocated(column, static_cast<int>(columns));
  }
  const auto result = static_cast<uint32_t>(column);
  std::memcpy(cta.shared(static_cast<uint32_t>(address)), &result, sizeof result);
  cta.stored = true;
  return Step::Next;
}

Step dealloc(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (!whole_warp(cta, warp, inst, mask, "tcgen05.dealloc")) return Step::Fault;
  uint32_t columns, address;
  if (!uniform(cta, warp, inst, inst.b, "the number of columns", columns)) return Step::Fault;
  if (!uniform(cta, warp, inst, inst.a, "the tensor memory address", address)) return Step::Fault;
  if (!column_count(cta, warp, inst, "tcgen05.dealloc", columns)) return Step::Fault;
  TensorMemory& memory = tensor_memory(cta);
  TensorMemory::Allocation* allocation = memory.allocation_at(TmemAddress::of(address).column);
  if (!allocation || address >> 16 || allocation->columns != static_cast<int>(columns)) {
    return cta.fault(warp, inst, -1, "tmem.bad_dealloc",
                     "tcgen05.dealloc of %u columns at tensor memory address 0x%x, which is no allocation of that size "
                     "(address and number must be those of a tcgen05.alloc)",
                     columns, address);
  }
  if (cta.shadow) {
    cta.shadow->tmem_access(warp, cta.index_of(inst), TmemUse::Dealloc, 0, allocation->column, allocation->columns,
                            0xFF);
  }
  memory.release(*allocation);
  cta.wake();
  return Step::Next;
}

Step relinquish(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (!whole_warp(cta, warp, inst, mask, "tcgen05.relinquish_alloc_permit")) return Step::Fault;
  tensor_memory(cta).relinquished = cta.index_of(inst);
  return Step::Next;
}

// ---- loads and stores

// What an ld or st covers. Element e of lane l lies in column `column + e` (packed: in the low halves of columns
// `column + 2 e` and the next one, 9.7.16.8.2).
struct Tile {
  int lane, column, split, width;  // split: distance of the second half of 16x32bx2; width: columns of one access
  bool packed;
  uint8_t shape;

  int column_of(int element, int thread) const {
    const int second = shape == TMEM_16X32BX2 && thread >= 16 ? split : 0;
    return column + (packed ? 2 * element : element) + second;
  }
  // A bit per 16 lanes.
  uint32_t lanes() const { return (shape == TMEM_32X32B ? 3u : 1u) << lane / 16; }
};

// Checks lanes (9.7.16.8.1: a warp reaches a quarter), columns and allocation; false after a fault was recorded.
bool resolve(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask, const char* name, Tile& tile) {
  uint32_t bits;
  if (!whole_warp(cta, warp, inst, mask, name)) return false;
  if (!uniform(cta, warp, inst, inst.a, "the tensor memory address", bits)) return false;
  const TmemAddress address = TmemAddress::of(bits + static_cast<uint32_t>(inst.imm));
  const uint8_t shape = mods_low(inst.mods);
  const bool packed = inst.flags & F_PACK;
  const int repetitions = inst.nvec / tmem_shape_registers(shape);
  const int split = inst.nvec2 ? cta.pool(inst.vec2)[0] : 0;
  const int width = repetitions * tmem_shape_columns(shape) * (packed ? 2 : 1);
  tile = {address.lane, address.column, split, width, packed, shape};
  const int first = warp.id % 4 * 32, lanes = tmem_shape_lanes(shape);
  if (address.lane < first || address.lane + lanes > first + 32 || address.lane % 16) {
    cta.fault(warp, inst, -1, "tmem.lanes",
              "%s of warp %d touches lanes %d to %d of tensor memory: warp %d of a warpgroup may only touch lanes %d to "
              "%d (bits 16-31 of the address are the first lane)",
              name, warp.id, address.lane, address.lane + lanes - 1, warp.id % 4, first, first + 31);
    return false;
  }
  return columns_allocated(cta, warp, inst, -1, name, tile.column, width) &&
         (!split || columns_allocated(cta, warp, inst, -1, name, tile.column + split, width));
}

void note_access(Cta& cta, Warp& warp, const Inst& inst, TmemUse use, const Tile& tile) {
  if (!cta.shadow) return;
  const int at = cta.index_of(inst);
  cta.shadow->tmem_access(warp, at, use, 0, tile.column, tile.width, tile.lanes());
  if (tile.split) cta.shadow->tmem_access(warp, at, use, 0, tile.column + tile.split, tile.width, tile.lanes());
}

// Registers receive their values at once: a dependent instruction waits for them on hardware, whatever else orders it
// (9.7.16.6.4.5). That the cells are read any time before tcgen05.wait::ld is for the shadow to check.
Step ld(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  Tile tile;
  if (!resolve(cta, warp, inst, mask, "tcgen05.ld", tile)) return Step::Fault;
  note_access(cta, warp, inst, TmemUse::Load, tile);
  TensorMemory& memory = tensor_memory(cta);
  const int32_t* registers = cta.pool(inst.vec);
  int unwritten = -1;
  for (int r = 0; r < inst.nvec; ++r) {
    uint32_t* out = registers[r] >= 0 ? warp.reg<uint32_t>(registers[r]) : nullptr;
    for (int thread = 0; thread < LANES; ++thread) {
      const TmemElement element = tmem_element(tile.shape, r, thread);
      const int lane = tile.lane + element.lane, column = tile.column_of(element.element, thread);
      uint32_t value = memory.cell(lane, column);
      bool written = memory.written(lane, column);
      if (tile.packed) {
        value = (value & 0xFFFF) | memory.cell(lane, column + 1) << 16;
        written &= memory.written(lane, column + 1);
      }
      if (!written && unwritten < 0) unwritten = lane << 16 | column;
      if (out) out[thread] = value;
    }
  }
  if (unwritten >= 0) {
    report_unwritten_cells(cta, warp, cta.index_of(inst), unwritten >> 16, unwritten & 0xFFFF, "tcgen05.ld",
                           Severity::Warning);
  }
  return Step::Next;
}

struct TmemStore : AsyncOp {
  Tile tile;
  std::vector<uint32_t> values;  // [register][thread]

  void run(Cta& cta) override {
    TensorMemory& memory = tensor_memory(cta);
    for (size_t i = 0; i < values.size(); ++i) {
      const int thread = static_cast<int>(i) % LANES;
      const TmemElement element = tmem_element(tile.shape, static_cast<int>(i) / LANES, thread);
      const int lane = tile.lane + element.lane, column = tile.column_of(element.element, thread);
      if (tile.packed) {
        memory.write(lane, column, values[i] & 0xFFFF);
        memory.write(lane, column + 1, values[i] >> 16);
      } else {
        memory.write(lane, column, values[i]);
      }
    }
  }
};

Step st(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  auto store = std::make_unique<TmemStore>();
  if (!resolve(cta, warp, inst, mask, "tcgen05.st", store->tile)) return Step::Fault;
  note_access(cta, warp, inst, TmemUse::Store, store->tile);
  store->inst = cta.index_of(inst);
  store->values.resize(static_cast<size_t>(inst.nvec) * LANES);
  for (int r = 0; r < inst.nvec; ++r) {
    std::memcpy(&store->values[static_cast<size_t>(r) * LANES], warp.reg<uint32_t>(cta.pool(inst.vec)[r]),
                LANES * sizeof(uint32_t));
  }
  std::vector<uint64_t>& tickets = tensor_state(cta).tmem_stores;
  tickets[static_cast<size_t>(warp.id)] = cta.async.post(cta, std::move(store), tmem_store_queue(warp));
  return Step::Next;
}

// Blocks until all earlier tcgen05.ld (st) of the threads are complete (9.7.16.8.5).
Step wait(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (!whole_warp(cta, warp, inst, mask, inst.imm ? "tcgen05.wait::st" : "tcgen05.wait::ld")) return Step::Fault;
  if (inst.imm) {
    const uint64_t ticket = tensor_state(cta).tmem_stores[static_cast<size_t>(warp.id)];
    if (cta.async.pending(ticket)) cta.async.complete(cta, ticket);
  }
  if (cta.shadow) cta.shadow->tmem_wait(warp, cta.index_of(inst), inst.imm != 0);
  return Step::Next;
}

Step fence(Cta& cta, Warp& warp, const Inst& inst, uint32_t) {
  if (cta.shadow) cta.shadow->tcgen05_fence(warp, cta.index_of(inst), inst.imm != 0);
  return Step::Next;
}

// ---- commit

// Arrives once, when all mma, cp and shift that the thread issued before are complete (9.7.16.12.1).
struct Commit : AsyncOp {
  Mbar* mbar;
  int released = 0;

  void run(Cta& cta) override {
    if (!mbar->valid || !mbar->pending) return report(cta);
    if (cta.shadow) cta.shadow->tcgen05_arrive(released, *mbar);
    mbar->last_arrive_inst = inst;
    cta.mbar_arrive(*mbar, 1);
  }
  void report(Cta& cta) const {
    FindingRecord* f = cta.findings.add(cta, nullptr, -1, "mbarrier.over_arrival", Severity::Error, inst, mbar->init_inst);
    if (!f) return;
    f->address = mbar->address;
    f->say("tcgen05.commit arrives at the mbarrier at shared 0x%x, %s", mbar->address,
           mbar->valid ? "whose phase misses no arrival any more" : "which is not valid any more");
    f->party(0, "tcgen05.commit", "arrived at mbarrier 0x%x", mbar->address);
    f->party(1, "mbarrier.init", "set its count to %u", mbar->expected);
    f->mend("count the arrivals of commits in mbarrier.init, and keep the barrier until they have come");
  }
};

Step commit(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t address = cta.own(lane_address(cta, warp, inst.a, inst.mods & M_A64, lane, inst.imm));
    auto op = std::make_unique<Commit>();
    op->mbar = cta.mbar_at(warp, inst, lane, address);
    if (!op->mbar) return Step::Fault;
    op->inst = at;
    if (Shadow* shadow = cta.shadow.get()) {
      shadow->mbar_use(warp, at, *op->mbar);
      op->released = shadow->tcgen05_commit(warp, at, lane);
    }
    cta.async.post(cta, std::move(op), tcgen05_queue(warp, lane));
  }
  return Step::Next;
}

}  // namespace

TensorMemory& tensor_memory(Cta& cta) {
  std::unique_ptr<TensorMemory>& memory = tensor_state(cta).tmem;
  if (!memory) memory = std::make_unique<TensorMemory>();
  return *memory;
}

bool columns_allocated(Cta& cta, Warp& warp, const Inst& inst, int lane, const char* what, int column, int columns) {
  if (column + columns > TMEM_COLUMNS) {
    cta.fault(warp, inst, lane, "tmem.out_of_bounds",
              "%s touches columns %d to %d of tensor memory, which has %d (bits 0-15 of the address are the first column)",
              what, column, column + columns - 1, TMEM_COLUMNS);
    return false;
  }
  const int missing = tensor_memory(cta).unallocated(column, columns);
  if (missing < 0) return true;
  cta.fault(warp, inst, lane, "tmem.not_allocated",
            "%s touches columns %d to %d of tensor memory, but column %d is not allocated (or no longer)", what, column,
            column + columns - 1, missing);
  return false;
}

void report_unwritten_cells(Cta& cta, const Warp& warp, int inst, int lane, int column, const char* reader,
                            Severity severity) {
  FindingRecord* f = cta.findings.add(cta, &warp, -1, "tmem.uninitialised", severity, inst);
  if (!f) return;
  f->say("%s reads lane %d, column %d of tensor memory, which nothing has written since its allocation: the value is "
         "arbitrary on a GPU, and NaN here",
         reader, lane, column);
  f->party(0, reader, "reads lane %d, column %d", lane, column);
  f->mend("Let the first tcgen05.mma of a tile have enable-input-d false, and check lanes and columns of the address.");
}

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
    f->mend("tcgen05.dealloc with the same address and number, by a whole warp, after the last access");
  }
}

Handler bind_tcgen05(const Inst& inst) {
  if (Handler handler = bind_tcgen05_mma(inst)) return handler;
  if (Handler handler = bind_tcgen05_copy(inst)) return handler;
  switch (inst.op) {
    case OP_TCGEN05_ALLOC: return alloc;
    case OP_TCGEN05_DEALLOC: return dealloc;
    case OP_TCGEN05_RELINQUISH: return relinquish;
    case OP_TCGEN05_LD:
    case OP_TCGEN05_ST: {
      const uint8_t shape = mods_low(inst.mods);
      if (shape > TMEM_16X32BX2 || inst.nvec < 1 || inst.nvec % tmem_shape_registers(shape)) return nullptr;
      return inst.op == OP_TCGEN05_LD ? ld : st;
    }
    case OP_TCGEN05_WAIT: return wait;
    case OP_TCGEN05_COMMIT: return commit;
    case OP_TCGEN05_FENCE: return fence;
    default: return nullptr;
  }
}
