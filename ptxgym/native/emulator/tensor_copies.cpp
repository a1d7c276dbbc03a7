// Copies without a tensor map: cp.async.bulk (PTX ISA 9.7.9.25.4), cp.async (9.7.9.25.3), and the groups of both.
#include <algorithm>
#include "global_access.hpp"
#include "tensor.hpp"

namespace {

constexpr uint32_t BULK_ALIGN = 16;

void forget_layout(Cta& cta, uint32_t address, uint32_t bytes) {
  if (!bytes || !cta.tensor) return;
  std::vector<LineLayout>& lines = tensor_state(cta).lines;
  for (uint32_t line = address / LINE_BYTES; line <= (address + bytes - 1) / LINE_BYTES; ++line) lines[line].inst = -1;
}

// ---- bulk copies

struct BulkLoad : AsyncOp {
  const uint8_t* source;
  uint32_t shared, bytes;
  std::vector<CopyTarget> targets;

  void run(Cta& cta) override {
    for (const CopyTarget& target : targets) {
      if (bytes) std::memcpy(target.cta->shared(shared), source, bytes);
      forget_layout(*target.cta, shared, bytes);
      cta.tma_bytes += bytes;
      complete_transaction(*target.mbar->home, *target.mbar, bytes);
    }
  }
};

struct BulkStore : GroupCopy {
  uint8_t* target;
  uint32_t shared, bytes;
  const Inst* reduction = nullptr;  // BULK_REDUCE
  std::vector<uint8_t> staged;

  void read_source(Cta& cta) override {
    if (staged.empty()) staged.assign(cta.shared(shared), cta.shared(shared) + bytes);
  }
  void run(Cta& cta) override {
    read_source(cta);
    if (reduction)  // an H200 keeps subnormals of f32, too, unlike atom and red (tests/golden, reduce/bulk/add/f32)
      reduce(reduction->type, mods_low(reduction->mods), false, target, staged.data(), bytes);
    else if (bytes)
      std::memcpy(target, staged.data(), bytes);
    cta.tma_bytes += bytes;
  }
};

// From the own shared memory into that of a CTA of the cluster (PTX ISA 9.7.9.25.4.1, 4.3).
struct BulkShare : AsyncOp {
  uint32_t from, to, bytes;
  const Inst* reduction = nullptr;
  CopyTarget target;

  void run(Cta& cta) override {
    uint8_t* data = target.cta->shared(to);
    if (reduction)
      reduce(reduction->type, mods_low(reduction->mods), false, data, cta.shared(from), bytes);
    else if (bytes)
      std::memmove(data, cta.shared(from), bytes);
    forget_layout(*target.cta, to, bytes);
    cta.tma_bytes += bytes;
    complete_transaction(*target.mbar->home, *target.mbar, bytes);
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
    return nullptr;
  }
  if (access == Access::Read) note_unwritten(cta, warp, inst, lane, global, bytes, "bulk copy");
  if (cta.order) order_copy(cta, warp, inst, lane, global, bytes, access);
  return data;
}

Step bulk_load(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    uint64_t shared;
    const bool multicast = inst.nvec > 0;
    const uint32_t ctas = multicast ? warp.reg<uint32_t>(cta.pool(inst.vec)[0])[lane] : 0;
    std::vector<CopyTarget> targets =
        copy_targets(cta, warp, inst, lane, addresses.a(lane), addresses.c(lane), multicast, ctas, 0, shared);
    if (targets.empty()) return Step::Fault;
    const uint32_t bytes = warp.reg<uint32_t>(inst.e)[lane];
    const uint8_t* source = resolve_bulk(cta, warp, inst, lane, shared, addresses.b(lane), bytes, Access::Read);
    if (!source) return Step::Fault;
    for (const CopyTarget& target : targets) {
      if (!target.cta->shadow) continue;
      Shadow& counter = *target.mbar->home->shadow;
      counter.mbar_use(warp, at, *target.mbar);
      counter.async_begin(warp, at, Async::BulkLoad, lane, target.mbar, bytes);
      target.cta->shadow->async_write(warp, at, Async::BulkLoad, static_cast<uint32_t>(shared), bytes, target.mbar);
    }
    auto load = std::make_unique<BulkLoad>();
    load->inst = at;
    load->source = source;
    load->shared = static_cast<uint32_t>(shared);
    load->bytes = bytes;
    load->targets = std::move(targets);
    cta.async.post(cta, std::move(load));
  }
  return Step::Next;
}

// Asynchronous operations on the shared memory of the cluster start from the own shared memory.
Step bulk_share(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  const bool reduces = inst.op == OP_BULK_SHARE_REDUCE;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    uint64_t to;
    const std::vector<CopyTarget> targets =
        copy_targets(cta, warp, inst, lane, addresses.a(lane), addresses.c(lane), false, 0, 0, to);
    if (targets.empty()) return Step::Fault;
    const CopyTarget target = targets.front();
    const uint64_t from = cta.own(addresses.b(lane));
    const uint32_t bytes = warp.reg<uint32_t>(inst.e)[lane];
    if (bytes % BULK_ALIGN)
      return cta.fault(warp, inst, lane, "bulk.size",
                       "a bulk copy of %u bytes: the size must be a multiple of %u", bytes, BULK_ALIGN);
    for (const uint64_t address : {to, from}) {
      if (address % BULK_ALIGN || !cta.shared_ok(address, bytes))
        return cta.fault_address(warp, inst, lane, S_SHARED, address, bytes, BULK_ALIGN, "bulk copy");
    }
    if (cta.shadow) {
      Shadow& there = *target.cta->shadow;
      const Async kind = reduces ? Async::BulkReduce : Async::BulkLoad;
      there.mbar_use(warp, at, *target.mbar);
      there.async_begin(warp, at, kind, lane, target.mbar, bytes);
      cta.shadow->async_read(warp, at, Async::BulkStore, static_cast<uint32_t>(from), bytes, target.mbar);
      there.async_write(warp, at, kind, static_cast<uint32_t>(to), bytes, target.mbar);
    }
    auto share = std::make_unique<BulkShare>();
    share->inst = at;
    share->from = static_cast<uint32_t>(from);
    share->to = static_cast<uint32_t>(to);
    share->bytes = bytes;
    share->reduction = reduces ? &inst : nullptr;
    share->target = target;
    cta.async.post(cta, std::move(share));
  }
  return Step::Next;
}

// ---- st.async and red.async (PTX ISA 9.7.9.12, 9.7.13.7)

struct AsyncValues : AsyncOp {
  struct Piece {
    CopyTarget target;
    uint32_t shared;
    uint8_t data[16];
  };
  uint32_t bytes;
  const Inst* reduction = nullptr;
  std::vector<Piece> pieces;

  void run(Cta&) override {
    for (Piece& piece : pieces) {
      uint8_t* data = piece.target.cta->shared(piece.shared);
      if (reduction)
        reduce(reduction->type, mods_low(reduction->mods), false, data, piece.data, bytes);
      else
        std::memcpy(data, piece.data, bytes);
      forget_layout(*piece.target.cta, piece.shared, bytes);
      complete_transaction(*piece.target.mbar->home, *piece.target.mbar, bytes);
    }
  }
};

Step async_values(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  const bool reduces = inst.op == OP_RED_ASYNC;
  const uint32_t each = inst.type == T_U64 || inst.type == T_S64 || inst.type == T_F64 ? 8 : 4;
  const int count = reduces ? 1 : inst.nvec;
  auto values = std::make_unique<AsyncValues>();
  values->inst = at;
  values->bytes = each * static_cast<uint32_t>(count);
  values->reduction = reduces ? &inst : nullptr;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    uint64_t to;
    const std::vector<CopyTarget> targets =
        copy_targets(cta, warp, inst, lane, addresses.a(lane), addresses.c(lane), false, 0, 0, to);
    if (targets.empty()) return Step::Fault;
    if (to % values->bytes || !cta.shared_ok(to, values->bytes))
      return cta.fault_address(warp, inst, lane, S_SHARED, to, values->bytes, values->bytes,
                               reduces ? "red.async" : "st.async");
    AsyncValues::Piece piece{targets.front(), static_cast<uint32_t>(to), {}};
    for (int i = 0; i < count; ++i) {
      const int32_t reg = reduces ? inst.b : cta.pool(inst.vec)[i];
      const uint64_t value = each == 8 ? warp.reg<uint64_t>(reg)[lane] : warp.reg<uint32_t>(reg)[lane];
      std::memcpy(piece.data + each * static_cast<uint32_t>(i), &value, each);
    }
    if (cta.shadow) {
      Shadow& there = *piece.target.cta->shadow;
      const Async kind = reduces ? Async::Reduce : Async::StAsync;
      there.mbar_use(warp, at, *piece.target.mbar);
      there.async_begin(warp, at, kind, lane, piece.target.mbar, values->bytes);
      there.async_write(warp, at, kind, piece.shared, values->bytes, piece.target.mbar);
    }
    values->pieces.push_back(piece);
  }
  cta.async.post(cta, std::move(values));
  return Step::Next;
}

Step bulk_store(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t shared = cta.own(addresses.b(lane));
    const uint32_t bytes = warp.reg<uint32_t>(inst.e)[lane];
    const bool reduces = inst.op == OP_BULK_REDUCE;
    if (reduces) note_unwritten_target(cta, warp, inst, lane, addresses.a(lane), bytes);
    uint8_t* target = resolve_bulk(cta, warp, inst, lane, shared, addresses.a(lane), bytes,
                                   reduces ? Access::Atomic : Access::Write);
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
    store->reduction = reduces ? &inst : nullptr;
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
  bool told = false;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t shared = cta.own(addresses.a(lane)), global = addresses.b(lane);
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
    if (!told) told = note_unwritten(cta, warp, inst, lane, global, bytes, "cp.async");
    if (bytes && cta.order) order_copy(cta, warp, inst, lane, global, bytes, Access::Read);
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
    Mbar* mbar =
        cta.mbar_at(warp, inst, lane, cta.own(lane_address(cta, warp, inst.a, inst.mods & M_A64, lane, inst.imm)));
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
    case OP_BULK_STORE:
    case OP_BULK_REDUCE: return bulk_store;
    case OP_BULK_SHARE:
    case OP_BULK_SHARE_REDUCE: return bulk_share;
    case OP_ST_ASYNC:
    case OP_RED_ASYNC: return async_values;
    case OP_BULK_COMMIT: return bulk_commit;
    case OP_BULK_WAIT: return bulk_wait;
    case OP_CP_ASYNC: return cp_async;
    case OP_CP_ASYNC_COMMIT: return cp_async_commit;
    case OP_CP_ASYNC_WAIT: return cp_async_wait;
    case OP_CP_ASYNC_MBAR: return cp_async_mbar;
    default: return nullptr;
  }
}
