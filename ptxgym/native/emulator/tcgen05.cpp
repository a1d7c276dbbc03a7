// tcgen05: loads and stores of tensor memory, waits and fences (PTX ISA 9.7.16.8, .11), and what all files share.
#include "tcgen05.hpp"
#include "lanes.hpp"

namespace {

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

// Tensor memory has 128 lanes (9.7.16.1), whose numbers begin with 0 in either CTA of a pair: so does CUTLASS count
// (tmem_frg of mma_traits_sm100_frag.hpp). Published kernels count the rows of an accumulator through and let the odd
// CTA load lanes 128 to 255 (learn-cuda's sm100 matmul 5 to 7), and run right: bit 7 of a lane plays no part there.
void note_pair_lane(Cta& cta, Warp& warp, const Inst& inst, const char* name, int lane) {
  FindingRecord* f = cta.findings.add(cta, &warp, -1, "tmem.pair_lane", Severity::Note, cta.index_of(inst));
  if (!f) return;
  f->say("%s in CTA %u of the pair names lane %d: taken for lane %d, since the tensor memory of a CTA has lanes 0 to %d",
         name, cta.rank, lane, lane - TMEM_LANES, TMEM_LANES - 1);
  f->mend("let the lanes of both CTAs begin with 0");
}

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
  const bool beyond = address.lane >= TMEM_LANES && address.lane < 2 * TMEM_LANES;
  const bool of_pair = beyond && cta.rank & 1 && tensor_memory(cta).paired;
  if (of_pair) note_pair_lane(cta, warp, inst, name, address.lane);
  tile = {of_pair ? address.lane - TMEM_LANES : address.lane, address.column, split, width, packed, shape};
  const int first = warp.id % 4 * 32, lanes = tmem_shape_lanes(shape);
  if (tile.lane < first || tile.lane + lanes > first + 32 || tile.lane % 16) {
    cta.fault(warp, inst, -1, "tmem.lanes",
              "%s of warp %d touches lanes %d to %d of tensor memory: warp %d of a warpgroup may only touch lanes %d to "
              "%d (bits 16-31 of the address are the first lane)",
              name, warp.id, address.lane, address.lane + lanes - 1, warp.id % 4, first, first + 31);
    return false;
  }
  return columns_allocated(cta, warp, inst, -1, name, cta, tile.column, width) &&
         (!split || columns_allocated(cta, warp, inst, -1, name, cta, tile.column + split, width));
}

void note_access(Cta& cta, Warp& warp, const Inst& inst, TmemUse use, const Tile& tile) {
  if (!cta.shadow) return;
  const int at = cta.index_of(inst);
  cta.shadow->tmem_access(warp, at, use, 0, tile.column, tile.width, tile.lanes());
  if (tile.split) cta.shadow->tmem_access(warp, at, use, 0, tile.column + tile.split, tile.width, tile.lanes());
  if (use == TmemUse::Load) cta.shadow->tmem_loaded(warp, at);
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
    report_unwritten_cells(cta, warp, cta.index_of(inst), unwritten >> 16, unwritten & 0xFFFF, "tcgen05.ld");
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

}  // namespace

TensorMemory& tensor_memory(Cta& cta) {
  std::unique_ptr<TensorMemory>& memory = tensor_state(cta).tmem;
  if (!memory) memory = std::make_unique<TensorMemory>();
  return *memory;
}

bool whole_warp(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask, const char* name) {
  if (mask == FULL_MASK) return true;
  cta.fault(warp, inst, first_lane(~mask), "tcgen05.partial_warp",
            "lanes 0x%08x of warp %d do not execute this %s: all 32 threads of the warp must", ~mask, warp.id, name);
  return false;
}

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

bool has_peer(Cta& cta, Warp& warp, const Inst& inst, int lane, const char* name) {
  if (peer_of(cta)) return true;
  cta.fault(warp, inst, lane, "tcgen05.no_pair",
            "%s.cta_group::2 works on a pair of CTAs, ranks 2 i and 2 i + 1 of a cluster, but CTA %u of a cluster of %u "
            "is alone: launch the kernel with a cluster of an even number of CTAs",
            name, cta.rank, cta.grid.cluster_size);
  return false;
}

CtaGroup group_of(Cta& cta, Warp& warp, const Inst& inst, int lane, const char* name) {
  if (!(inst.flags & F_PAIR)) return {{&cta, nullptr}, 1};
  if (!has_peer(cta, warp, inst, lane, name)) return {{}, 0};
  Cta& peer = *peer_of(cta);
  if (!peer.ended && peer.shadow) peer.shadow->from_afar(warp, cta.index_of(inst));
  Cta* const ctas[2] = {cta.cluster->ctas[cta.rank & ~1u], cta.cluster->ctas[cta.rank | 1u]};
  return {{ctas[0], ctas[1]}, 2};
}

void issue(Cta& cta, std::unique_ptr<TensorOp> op) {
  if (op->group.count == 2) {
    op->peer = peer_of(cta);
    for (const AsyncEngine::Entry& entry : op->peer->async.ops)
      if (entry.queue == TCGEN05_QUEUE) op->after = entry.op->ticket;
  }
  cta.async.post(cta, std::move(op), TCGEN05_QUEUE);
}

// What the peer issued before has nothing of this CTA to wait for that has not run.
void TensorOp::run(Cta& cta) {
  if (after && peer->async.pending(after)) peer->async.complete(*peer, after);
  execute(cta);
}

void report_exited_peer(Cta& cta, const Warp& warp, int inst, const char* name) {
  const Cta* peer = peer_of(cta);
  if (!peer || !peer->ended || cta.ended) return;
  FindingRecord* f = cta.findings.add(cta, &warp, -1, "cluster.exited_cta", Severity::Error, inst);
  if (!f) return;
  f->say("the %s of the pair reads and writes memory of CTA %u of its cluster, which has exited", name, peer->rank);
  f->party(0, name, "touched CTA %u", peer->rank);
  f->mend("keep both CTAs until the operations of the pair are complete: wait for their commit in both "
          "(.multicast::cluster), or barrier.cluster before the end");
}

bool columns_allocated(Cta& cta, Warp& warp, const Inst& inst, int lane, const char* what, Cta& owner, int column,
                       int columns) {
  const std::string where = &owner == &cta ? "" : of_cta(owner);
  if (column + columns > TMEM_COLUMNS) {
    cta.fault(warp, inst, lane, "tmem.out_of_bounds",
              "%s touches columns %d to %d of tensor memory, which has %d (bits 0-15 of the address are the first column)",
              what, column, column + columns - 1, TMEM_COLUMNS);
    return false;
  }
  const int missing = tensor_memory(owner).unallocated(column, columns);
  if (missing < 0) return true;
  cta.fault(warp, inst, lane, "tmem.not_allocated",
            "%s touches columns %d to %d of tensor memory%s, but column %d is not allocated (or no longer)", what, column,
            column + columns - 1, where.c_str(), missing);
  return false;
}

// A warning, as for registers: NaN shows in the output where the value matters.
void report_unwritten_cells(Cta& owner, const Warp& reader, int inst, int lane, int column, const char* name) {
  Cta& cta = *reader.home;
  FindingRecord* f = cta.findings.add(cta, &reader, -1, "tmem.uninitialised", Severity::Warning, inst);
  if (!f) return;
  f->say("%s reads lane %d, column %d of tensor memory%s, which nothing has written since its allocation: the value is "
         "arbitrary on a GPU, and NaN here",
         name, lane, column, &owner == &cta ? "" : of_cta(owner).c_str());
  f->party(0, name, "reads lane %d, column %d", lane, column);
  f->mend("Let the first tcgen05.mma of a tile have enable-input-d false, and check lanes and columns of the address.");
}

Handler bind_tcgen05(const Inst& inst) {
  for (Handler (*bind)(const Inst&) : {bind_tcgen05_alloc, bind_tcgen05_mma, bind_tcgen05_copy, bind_tcgen05_commit}) {
    if (Handler handler = bind(inst)) return handler;
  }
  switch (inst.op) {
    case OP_TCGEN05_LD:
    case OP_TCGEN05_ST: {
      const uint8_t shape = mods_low(inst.mods);
      if (shape > TMEM_16X32BX2 || inst.nvec < 1 || inst.nvec % tmem_shape_registers(shape)) return nullptr;
      return inst.op == OP_TCGEN05_LD ? ld : st;
    }
    case OP_TCGEN05_WAIT: return wait;
    case OP_TCGEN05_FENCE: return fence;
    default: return nullptr;
  }
}
