// How launches and clusters follow each other: griddepcontrol (PTX ISA 9.7.12.7) and clusterlaunchcontrol (9.7.13.17,
// 9.7.13.18).
//
// The launches of a plan run one after the other. Where the next one may begin early (programmatic dependent launch), a
// byte per byte of device memory tells what the launch before did with it, and after which of its signals: whoever
// touches such a byte before griddepcontrol.wait is ordered by nothing.
//
// Clusters whose launch is cancelled are those that have not begun; which those are is a matter of the schedule (grid.cpp).
#include "lanes.hpp"
#include "tensor.hpp"

namespace {

enum Stamp : uint8_t {
  WROTE = 1,       // this launch wrote the byte
  WROTE_LATE = 2,  // after its CTA had let the dependents begin
  READ_LATE = 4,   // the same of reading
  BEFORE = 4,      // shift: the launch before
};

void report_early(Cta& cta, const Buffer& buffer, uint64_t offset, bool writes, uint8_t stamp) {
  const bool late = stamp & (WROTE_LATE | READ_LATE) << BEFORE;
  const bool wrote = stamp & (WROTE | WROTE_LATE) << BEFORE;
  const Warp& w = *cta.turn;
  FindingRecord* f =
      late ? cta.findings.add(cta, &w, -1, "griddepcontrol.race", Severity::Error, w.cur)
           : cta.findings.add(cta, &w, -1, "griddepcontrol.no_wait", Severity::Warning, w.cur);
  if (!f) return;
  f->address = buffer.base + offset;
  f->say("the launch before, which need not be over, %s byte %llu of %s%s; this one %s it before griddepcontrol.wait",
         wrote ? "writes" : "reads", static_cast<unsigned long long>(offset), buffer.name,
         late ? " after griddepcontrol.launch_dependents" : "", writes ? "writes" : "reads");
  f->party(0, "this launch", "%s %s at {@%d}", writes ? "writes" : "reads", buffer.name, w.cur);
  f->mend("execute griddepcontrol.wait (cudaGridDependencySynchronize) before the first access to what the launch "
          "before writes, or launch without programmatic stream serialization");
}

Step dependency(Cta& cta, Warp&, const Inst& inst, uint32_t) {
  if (inst.imm == GRIDDEP_WAIT)
    cta.waited = true;
  else
    cta.triggered = true;
  return Step::Next;
}

// ---- clusters that are cancelled

constexpr uint32_t RESPONSE_BYTES = 16;
constexpr uint64_t RESPONSE_TAG = 0x5f6cull << 48, CANCELED = 1ull << 32;  // of its upper half

struct Response {
  uint64_t low, high;
};

struct CancelRequest : AsyncOp {
  uint32_t shared;
  std::vector<CopyTarget> targets;

  void run(Cta& cta) override {
    Response response{0, RESPONSE_TAG};
    LaunchQueue* queue = cta.grid.queue;
    if (queue && queue->next < queue->end) {
      uint32_t first[3];
      first_cta(cta.grid, queue->next++, first);
      response = {first[0] | uint64_t{first[1]} << 32, RESPONSE_TAG | CANCELED | first[2]};
      if (cta.ended) report_lost(cta, first);
    }
    for (const CopyTarget& target : targets) {
      std::memcpy(target.cta->shared(shared), &response, RESPONSE_BYTES);
      complete_transaction(*target.mbar->home, *target.mbar, RESPONSE_BYTES);
    }
  }

  void report_lost(Cta& cta, const uint32_t* first) const {
    FindingRecord* f = cta.findings.add("clusterlaunchcontrol.lost", Severity::Error, inst);
    if (!f) return;
    f->cta = cta.linear;
    f->say("the launch of the cluster of CTA (%u, %u, %u) was cancelled for a CTA that has ended: nobody does its work",
           first[0], first[1], first[2]);
    f->mend("wait for the response of every clusterlaunchcontrol.try_cancel and do the work that it hands over");
  }
};

Step try_cancel(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const Addresses addresses(cta, warp, inst);
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const bool everyone = inst.imm && cta.cluster;
    const uint32_t all = everyone ? (1u << cta.cluster->ctas.size()) - 1 : 0;
    uint64_t shared;
    std::vector<CopyTarget> targets =
        copy_targets(cta, warp, inst, lane, addresses.a(lane), addresses.c(lane), everyone, all, 0, shared);
    if (targets.empty()) return Step::Fault;
    if (shared % RESPONSE_BYTES || !cta.shared_ok(shared, RESPONSE_BYTES))
      return cta.fault_address(warp, inst, lane, S_SHARED, shared, RESPONSE_BYTES, RESPONSE_BYTES,
                               "response of clusterlaunchcontrol.try_cancel");
    if (cta.cancel_failed)
      if (FindingRecord* f = cta.findings.add(cta, &warp, lane, "clusterlaunchcontrol.after_failure", Severity::Warning, at)) {
        f->say("the CTA asks to cancel another cluster although it has seen that nothing is left: undefined");
        f->mend("end the loop at the first response that is not canceled");
      }
    for (const CopyTarget& target : targets) {
      if (!target.cta->shadow) continue;
      Shadow& counter = *target.mbar->home->shadow;
      counter.mbar_use(warp, at, *target.mbar);
      counter.async_begin(warp, at, Async::BulkLoad, lane, target.mbar, RESPONSE_BYTES);
      target.cta->shadow->async_write(warp, at, Async::BulkLoad, static_cast<uint32_t>(shared), RESPONSE_BYTES,
                                      target.mbar);
    }
    auto request = std::make_unique<CancelRequest>();
    request->inst = at;
    request->shared = static_cast<uint32_t>(shared);
    request->targets = std::move(targets);
    cta.async.post(cta, std::move(request));
  }
  return Step::Next;
}

// The responses in register a; false after a fault was recorded.
bool responses(Cta& cta, Warp& w, const Inst& inst, uint32_t mask, Response* out) {
  std::memcpy(out, w.regs + inst.a, sizeof(Response) * LANES);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    if (out[lane].high >> 48 == RESPONSE_TAG >> 48) continue;
    cta.fault(w, inst, lane, "clusterlaunchcontrol.no_response",
              "clusterlaunchcontrol.query_cancel of 16 bytes that are no response of try_cancel: wait on its mbarrier "
              "before they are loaded");
    return false;
  }
  return true;
}

Step is_canceled(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  Response response[LANES];
  if (!responses(cta, w, inst, mask, response)) return Step::Fault;
  const uint32_t yes = lanes_where([&](int l) { return (response[l].high & CANCELED) != 0; });
  if (mask & ~yes) cta.cancel_failed = true;
  w.set_pred(inst.d, mask, yes);
  return Step::Next;
}

Step first_ctaid(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  Response response[LANES];
  if (!responses(cta, w, inst, mask, response)) return Step::Fault;
  const uint32_t failed = lanes_where([&](int l) { return !(response[l].high & CANCELED); }) & mask;
  if (failed)
    if (FindingRecord* f = cta.findings.add(cta, &w, first_lane(failed), "clusterlaunchcontrol.not_canceled",
                                            Severity::Note, cta.index_of(inst))) {
      f->say("the coordinates of a response that says that nothing was cancelled are undefined");
      f->mend("use them only where clusterlaunchcontrol.query_cancel.is_canceled is true");
    }
  for_lanes(mask, [&](int l) {
    const Response& r = response[l];
    const bool good = r.high & CANCELED;
    const uint32_t values[4] = {static_cast<uint32_t>(r.low), static_cast<uint32_t>(r.low >> 32),
                                static_cast<uint32_t>(r.high), UNSET_REGISTER};
    for (int i = 0; i < inst.nvec; ++i) {
      const int32_t d = cta.pool(inst.vec)[i];
      if (d >= 0) w.reg<uint32_t>(d)[l] = good ? values[i] : UNSET_REGISTER;
    }
  });
  return Step::Next;
}

}  // namespace

void Cta::note_dependency(Buffer& buffer, uint64_t offset, uint64_t bytes, Access access) {
  const bool writes = access != Access::Read;
  const uint8_t mark = static_cast<uint8_t>((writes ? WROTE | (triggered ? WROTE_LATE : 0) : 0) |
                                            (access != Access::Write && triggered ? READ_LATE : 0));
  const uint8_t forbidden = static_cast<uint8_t>(((writes ? READ_LATE : 0) | WROTE | WROTE_LATE) << BEFORE);
  uint8_t worst = 0;
  uint64_t where = 0;
  for (uint64_t i = offset; i < offset + bytes; ++i) {
    const uint8_t stamp = __atomic_load_n(buffer.stamps + i, __ATOMIC_RELAXED);
    if (!waited && (stamp & forbidden) && (!worst || (stamp & (WROTE_LATE | READ_LATE) << BEFORE) > worst)) {
      worst = stamp;
      where = i;
    }
    if (mark & ~stamp) __atomic_fetch_or(buffer.stamps + i, mark, __ATOMIC_RELAXED);
  }
  if (worst && turn) report_early(*this, buffer, where, writes, worst);
}

Handler bind_launch(const Inst& inst) {
  switch (inst.op) {
    case OP_GRIDDEPCONTROL: return dependency;
    case OP_CLC_TRY_CANCEL: return try_cancel;
    case OP_CLC_IS_CANCELED: return is_canceled;
    case OP_CLC_FIRST_CTAID: return first_ctaid;
    default: return nullptr;
  }
}
