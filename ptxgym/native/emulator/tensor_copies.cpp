// Copies without a tensor map: cp.async.bulk (PTX ISA 9.7.9.25.4), cp.async (9.7.9.25.3), and the groups of both.
#include <algorithm>
#include "tensor.hpp"

namespace {

constexpr uint32_t BULK_ALIGN = 16;

void forget_layout(Cta& cta, uint32_t address, uint32_t bytes) {
  if (!bytes) return;
  std::vector<LineLayout>& lines = tensor_state(cta).lines;
  for (uint32_t line = address / LINE_BYTES; line <= (address + bytes - 1) / LINE_BYTES; ++line) lines[line].inst = -1;
}

// ---- bulk copies

struct BulkLoad : AsyncOp {
  const uint8_t* source;
  uint32_t shared, bytes;
  Mbar* mbar;

  void run(Cta& cta) override {
    if (bytes) std::memcpy(cta.shared(shared), source, bytes);
    forget_layout(cta, shared, bytes);
    cta.tma_bytes += bytes;
    complete_transaction(cta, *mbar, bytes);
  }
};

struct BulkStore : GroupCopy {
  uint8_t* target;
  uint32_t shared, bytes;
  std::vector<uint8_t> staged;

  void read_source(Cta& cta) override {
    if (staged.empty()) staged.assign(cta.shared(shared), cta.shared(shared) + bytes);
  }
  void run(Cta& cta) override {
    read_source(cta);
    if (bytes) std::memcpy(target, staged.data(), bytes);
    cta.tma_bytes += bytes;
  }
};

// The host pointer of the global side; nullptr after a fault was recorded.
uint8_t* resolve_bulk(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t shared, uint64_t global,
                      uint32_t bytes, Access access) {
  const auto hex = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  if (bytes % BULK_ALIGN) {
    cta.fault(warp, inst, lane, "bulk.size", "a bulk copy of %u bytes: the size must be a multiple of %u", bytes,
              BULK_ALIGN);
    return nullptr;
  }
  if (shared % BULK_ALIGN || global % BULK_ALIGN) {
    cta.fault(warp, inst, lane, "bulk.misaligned",
              "a bulk copy between shared address 0x%llx and global address 0x%llx: both must be "
              "multiples of %u",
              hex(shared), hex(global), BULK_ALIGN);
    return nullptr;
  }
  if (!cta.shared_ok(shared, bytes)) {
    cta.fault(warp, inst, lane, "bulk.out_of_bounds",
              "a bulk copy of %u bytes at shared address 0x%llx, but shared memory of this CTA "
              "ends at 0x%x",
              bytes, hex(shared), cta.smem_end);
    return nullptr;
  }
  uint8_t* data = cta.global(global, bytes, access);
  if (!data) {
    cta.fault(warp, inst, lane, "bulk.global_out_of_bounds",
              "a bulk copy of %u bytes at global address 0x%llx leaves every buffer", bytes, hex(global));
  }
  return data;
}

Step bulk_load(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    Mbar* mbar = cta.mbar_at(warp, inst, lane, from_shared_window(addresses.c(lane)));
    if (!mbar) return Step::Fault;
    const uint64_t shared = from_shared_window(addresses.a(lane));
    const uint32_t bytes = warp.reg<uint32_t>(inst.e)[lane];
    const uint8_t* source = resolve_bulk(cta, warp, inst, lane, shared, addresses.b(lane), bytes, Access::Read);
    if (!source) return Step::Fault;
    if (Shadow* shadow = cta.shadow.get()) {
      shadow->mbar_use(warp, at, *mbar);
      shadow->async_begin(warp, at, Async::BulkLoad, lane, mbar, bytes);
      shadow->async_write(warp, at, Async::BulkLoad, static_cast<uint32_t>(shared), bytes, mbar);
    }
    auto load = std::make_unique<BulkLoad>();
    load->inst = at;
    load->source = source;
    load->shared = static_cast<uint32_t>(shared);
    load->bytes = bytes;
    load->mbar = mbar;
    cta.async.post(cta, std::move(load));
  }
  return Step::Next;
}

Step bulk_store(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t shared = from_shared_window(addresses.b(lane));
    const uint32_t bytes = warp.reg<uint32_t>(inst.e)[lane];
    uint8_t* target = resolve_bulk(cta, warp, inst, lane, shared, addresses.a(lane), bytes, Access::Write);
    if (!target) return Step::Fault;
    if (Shadow* shadow = cta.shadow.get()) {
      shadow->async_begin(warp, at, Async::BulkStore, lane, nullptr, 0);
      shadow->async_read(warp, at, Async::BulkStore, static_cast<uint32_t>(shared), bytes, nullptr);
    }
    auto store = std::make_unique<BulkStore>();
    store->inst = at;
    store->target = target;
    store->shared = static_cast<uint32_t>(shared);
    store->bytes = bytes;
    GroupCopy* op = store.get();
    const uint64_t ticket = cta.async.post(cta, std::move(store));
    tensor_state(cta).bulk_stores[static_cast<size_t>(warp.id)].issued(cta, ticket, 1u << lane, op);
  }
  return Step::Next;
}

Step bulk_commit(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  for_lanes(mask, [&](int lane) {
    tensor_state(cta).bulk_stores[static_cast<size_t>(warp.id)].commit(cta, lane);
    if (cta.shadow) cta.shadow->group_commit(warp, cta.index_of(inst), Async::BulkStore, lane);
  });
  return Step::Next;
}

Step bulk_wait(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const bool read_only = inst.flags & F_READ;
  for_lanes(mask, [&](int lane) {
    tensor_state(cta).bulk_stores[static_cast<size_t>(warp.id)].wait(cta, lane, inst.imm, read_only);
    if (cta.shadow) cta.shadow->group_wait(warp, cta.index_of(inst), Async::BulkStore, lane, inst.imm, read_only);
  });
  return Step::Next;
}

// ---- cp.async

struct LaneCopies : GroupCopy {
  struct Piece {
    const uint8_t* source;
    uint32_t shared, bytes, filled;  // `bytes` from the source, then zeros up to `filled`
  };
  std::vector<Piece> pieces;

  void read_source(Cta&) override {}
  void run(Cta& cta) override {
    for (const Piece& piece : pieces) {
      uint8_t* target = cta.shared(piece.shared);
      if (piece.bytes) std::memcpy(target, piece.source, piece.bytes);
      std::memset(target + piece.bytes, 0, piece.filled - piece.bytes);
      forget_layout(cta, piece.shared, piece.filled);
    }
  }
};

Step cp_async(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  const uint32_t size = static_cast<uint32_t>(inst.imm);
  uint32_t ignored = inst.e >= 0 ? warp.pred(inst.e) : 0;
  if (inst.e >= 0 && inst.flags & F_C_NOT) ignored = ~ignored;
  auto copies = std::make_unique<LaneCopies>();
  copies->inst = at;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t shared = from_shared_window(addresses.a(lane)), global = addresses.b(lane);
    uint32_t bytes = inst.c >= 0 ? warp.reg<uint32_t>(inst.c)[lane] : size;
    if (bytes > size) {
      return cta.fault(warp, inst, lane, "cp_async.source_size", "cp.async of %u bytes with a source size of %u", size,
                       bytes);
    }
    if (ignored >> lane & 1) bytes = 0;
    if (shared % size || !cta.shared_ok(shared, size))
      return cta.fault_address(warp, inst, lane, S_SHARED, shared, size, size, "cp.async to");
    const uint8_t* source = nullptr;
    if (bytes && (global % size || !(source = cta.global(global, bytes, Access::Read)))) {
      return cta.fault_address(warp, inst, lane, S_GLOBAL, global, bytes, size, "cp.async from");
    }
    copies->pieces.push_back({source, static_cast<uint32_t>(shared), bytes, size});
  }
  if (Shadow* shadow = cta.shadow.get()) {
    shadow->async_begin(warp, at, Async::CpAsync, first_lane(mask), nullptr, 0);
    // Neighbouring lanes usually fill neighbouring bytes: one range for each run of them.
    uint32_t begin = copies->pieces[0].shared, end = begin;
    for (const LaneCopies::Piece& piece : copies->pieces) {
      if (piece.shared != end) {
        shadow->async_write(warp, at, Async::CpAsync, begin, end - begin, nullptr);
        begin = piece.shared;
      }
      end = piece.shared + size;
    }
    shadow->async_write(warp, at, Async::CpAsync, begin, end - begin, nullptr);
  }
  GroupCopy* op = copies.get();
  const uint64_t ticket = cta.async.post(cta, std::move(copies));
  tensor_state(cta).cp_async[static_cast<size_t>(warp.id)].issued(cta, ticket, mask, op);
  return Step::Next;
}

Step cp_async_commit(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  for_lanes(mask, [&](int lane) { tensor_state(cta).cp_async[static_cast<size_t>(warp.id)].commit(cta, lane); });
  if (cta.shadow) cta.shadow->group_commit(warp, cta.index_of(inst), Async::CpAsync, first_lane(mask));
  return Step::Next;
}

// wait_all (imm -1) is a commit and a wait for every group.
Step cp_async_wait(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (inst.imm < 0) cp_async_commit(cta, warp, inst, mask);
  const int64_t pending = inst.imm < 0 ? 0 : inst.imm;
  for_lanes(mask, [&](int lane) {
    tensor_state(cta).cp_async[static_cast<size_t>(warp.id)].wait(cta, lane, pending, false);
  });
  if (cta.shadow) cta.shadow->group_wait(warp, cta.index_of(inst), Async::CpAsync, first_lane(mask), pending, false);
  return Step::Next;
}

// The arrival that follows the completion of all earlier cp.async of some lanes (PTX ISA 9.7.13.15.15).
struct CopyArrival : AsyncOp {
  int warp;
  uint32_t lanes;
  uint64_t last_ticket;
  Mbar* mbar;

  void run(Cta& cta) override {
    tensor_state(cta).cp_async[static_cast<size_t>(warp)].complete(cta, lanes, last_ticket);
    const uint32_t count = static_cast<uint32_t>(__builtin_popcount(lanes));
    if (mbar->pending < count) {
      if (FindingRecord* finding = cta.findings.add(cta, &cta.warps[static_cast<size_t>(warp)], first_lane(lanes),
                                                    "mbarrier.over_arrival", Severity::Error, inst, mbar->init_inst)) {
        finding->say(
            "cp.async.mbarrier.arrive brings %u arrivals to the mbarrier at 0x%x, which misses %u in this phase", count,
            mbar->address, mbar->pending);
        finding->party(0, "cp.async", "arrived here");
        finding->party(1, "mbarrier", "was initialised here for %u arrivals", mbar->expected);
        finding->mend("initialise the mbarrier with one arrival for each cp.async.mbarrier.arrive.noinc of a phase");
      }
      return;
    }
    cta.mbar_arrive(*mbar, count);
  }
};

Step cp_async_mbar(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    Mbar* mbar = cta.mbar_at(warp, inst, lane,
                             from_shared_window(lane_address(warp, inst.a, inst.mods & M_A64, lane, inst.imm)));
    if (!mbar) return Step::Fault;
    if (!(inst.flags & F_NOINC)) ++mbar->pending;
    if (cta.shadow) {
      cta.shadow->mbar_use(warp, at, *mbar);
      cta.shadow->cp_async_arrive(warp, at, *mbar);
    }
    auto arrival = std::make_unique<CopyArrival>();
    arrival->inst = at;
    arrival->warp = warp.id;
    arrival->lanes = 1u << lane;
    arrival->last_ticket = CopyQueue::newest(cta);
    arrival->mbar = mbar;
    cta.async.post(cta, std::move(arrival));
  }
  return Step::Next;
}

}  // namespace

Handler bind_copies(const Inst& inst) {
  switch (inst.op) {
    case OP_BULK_LOAD: return bulk_load;
    case OP_BULK_STORE: return bulk_store;
    case OP_BULK_COMMIT: return bulk_commit;
    case OP_BULK_WAIT: return bulk_wait;
    case OP_CP_ASYNC: return cp_async;
    case OP_CP_ASYNC_COMMIT: return cp_async_commit;
    case OP_CP_ASYNC_WAIT: return cp_async_wait;
    case OP_CP_ASYNC_MBAR: return cp_async_mbar;
    default: return nullptr;
  }
}
