// Texts of ordering findings: what is wrong, both parties, and what would order them.
#include "shadow_state.hpp"

std::string who(const Touch& access) {
  const int id = access.warp & 0xff, cta = access.warp >> 8;  // Warp::label
  const std::string warp = "warp " + std::to_string(id) + (cta ? " of CTA " + std::to_string(cta - 1) : "");
  switch (access.kind) {
    case Kind::CpAsync:
      return "cp.async of " + warp;
    case Kind::TmaLoad:
      return "TMA load issued by " + warp;
    case Kind::TmaStore:
      return "TMA store issued by " + warp;
    case Kind::Wgmma:
      return "wgmma of warpgroup " + std::to_string(id / 4) + (cta ? " of CTA " + std::to_string(cta - 1) : "");
    case Kind::StAsync:
      return "st.async of " + warp;
    case Kind::Reduce:
      return "asynchronous reduction of " + warp;
    case Kind::BulkReduce:
      return "bulk reduction issued by " + warp;
    case Kind::Tcgen05:
      return "tcgen05 operation issued by " + warp;
    case Kind::TmemLoad:
      return "tcgen05.ld of " + warp;
    case Kind::TmemStore:
      return "tcgen05.st of " + warp;
    default:
      return warp;
  }
}

std::string verb(const Touch& access) {
  if (access.kind == Kind::Atomic) return "updates";
  if (access.kind == Kind::Mbarrier) return "initialises";
  return access.reduces() ? "updates" : access.write ? "writes" : "reads";
}

void describe_pair(FindingRecord& record, const Touch& now, const std::string& now_did, const Touch& earlier,
                   const std::string& earlier_did) {
  record.party(0, who(now).c_str(), "%s", now_did.c_str());
  record.party(1, earlier.kind == Kind::None ? "" : who(earlier).c_str(), "%s", earlier_did.c_str());
}

namespace {

std::string place(uint32_t addr) {
  char text[32];
  snprintf(text, sizeof text, "shared 0x%x", addr);
  return text;
}

void parties(FindingRecord& record, const Touch& now, const Touch& earlier, uint32_t addr, uint32_t bytes) {
  const std::string range = std::to_string(bytes) + (bytes == 1 ? " byte at " : " bytes at ") + place(addr);
  describe_pair(record, now, verb(now) + " " + range, earlier, verb(earlier) + " " + place(addr));
}

const char* unordered_code(const Touch& earlier, const Touch& now) {
  const bool earlier_writes = earlier.write || earlier.kind == Kind::Atomic;
  if (earlier.in_flight_kind()) return earlier_writes && !now.write ? "async.read_early" : "async.overwrite";
  if (now.in_flight_kind() && now.write) return "async.overwrite";
  return "smem.race";
}

// What makes the later party wait for the earlier one.
std::string order_after(const Touch& earlier, const Touch& now) {
  switch (earlier.kind) {
    case Kind::TmaLoad:
    case Kind::StAsync:
    case Kind::Reduce:
    case Kind::BulkReduce:
      return now.write ? "Wait on the mbarrier that the earlier copy signals before the bytes are written again."
                       : "Wait on the mbarrier that the copy signals (mbarrier.try_wait with the parity of that phase) "
                         "before this; if the bytes "
                         "of an earlier phase are meant, the copy comes too soon: it must wait for an empty barrier on "
                         "which this warp arrives.";
    case Kind::CpAsync:
      return "cp.async.commit_group and cp.async.wait_group in the copying threads, then __syncthreads().";
    case Kind::Wgmma:
      return "wgmma.commit_group and wgmma.wait_group so that the wgmma is over, and only then release the buffer "
             "(arrive on its empty "
             "barrier, or bar.sync).";
    case Kind::Tcgen05:
      return "tcgen05.commit after it, to an mbarrier on which this warp (or one that it follows) waits before the "
             "buffer is written again.";
    case Kind::TmaStore:
      return "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read in the thread that issued the store, then a "
             "barrier, before the "
             "buffer is written again.";
    default:
      break;
  }
  if (now.kind == Kind::TmaLoad)
    return "Let the readers arrive on an empty barrier (or bar.sync) after their last access, and wait for it before "
           "the copy.";
  if (now.async_proxy())
    return "fence.proxy.async.shared::cta in the writing threads, then a barrier, before this instruction.";
  return "Put a barrier between them: __syncthreads(), bar.sync, or an mbarrier arrive and wait.";
}

}  // namespace

void report_unordered(Cta& cta, const Warp& warp, const Touch& earlier, const Touch& now, uint32_t addr, uint32_t bytes,
                      Severity severity, bool two_stages, bool out_of_scope) {
  const char* code = unordered_code(earlier, now);
  FindingRecord* f = cta.findings.add(cta, &warp, -1, code, severity, now.inst, earlier.inst);
  if (!f) return;
  const std::string at = place(addr), later = who(now), sooner = who(earlier);
  if (earlier.in_flight_kind()) {
    f->say("%s %s %s, which the %s of line {@%d} may still be %s: nothing orders them", later.c_str(),
           verb(now).c_str(), at.c_str(), sooner.c_str(), earlier.inst, earlier.write ? "writing" : "reading");
  } else {
    f->say("%s %s %s, which %s %s at line {@%d}: nothing orders them", later.c_str(), verb(now).c_str(), at.c_str(),
           sooner.c_str(), verb(earlier).c_str(), earlier.inst);
  }
  if (two_stages)
    f->mend("The operation reads bytes of two copies of one tensor map. If one stage is meant, its descriptor reaches into "
            "the next: check start address, LBO and SBO. If both are, wait for both, and refill neither before it is over.");
  else if (out_of_scope)
    f->mend("The scope of a flag's release and acquire, and of fences beside it, must include the other CTA: .cluster on both "
            "sides; .cta reaches the threads of one CTA alone.");
  else
    f->mend("%s", order_after(earlier, now).c_str());
  f->address = addr;
  parties(*f, now, earlier, addr, bytes);
}

void report_unfenced(Cta& cta, const Warp& warp, const Touch& earlier, const Touch& now, uint32_t addr,
                     uint32_t bytes) {
  const bool reads = !now.write || now.reduces();
  const Severity severity = reads ? Severity::Error : Severity::Warning;
  FindingRecord* f = cta.findings.add(cta, &warp, -1, "proxy.missing_fence", severity, now.inst, earlier.inst);
  if (!f) return;
  f->say("%s %s %s, which %s wrote at line {@%d} through the generic proxy, with no fence.proxy.async after the write",
         who(now).c_str(), verb(now).c_str(), place(addr).c_str(), who(earlier).c_str(), earlier.inst);
  f->mend("fence.proxy.async.shared::cta after the writes and before the barrier that hands the buffer over.");
  f->address = addr;
  parties(*f, now, earlier, addr, bytes);
}

void report_uninitialised(Cta& cta, const Warp& warp, const Touch& now, uint32_t addr, uint32_t bytes) {
  const Severity severity = now.async_proxy() ? Severity::Error : Severity::Warning;
  FindingRecord* f = cta.findings.add(cta, &warp, -1, "smem.uninitialised", severity, now.inst);
  if (!f) return;
  f->say("%s %s %s, which nothing has written in this CTA", who(now).c_str(), verb(now).c_str(), place(addr).c_str());
  f->mend("Check the address (stage, offset, descriptor) and that the copy or store which fills it comes first.");
  f->address = addr;
  f->party(0, who(now).c_str(), "%s %u bytes at %s", verb(now).c_str(), bytes, place(addr).c_str());
}

void report_barrier_overwritten(Cta& cta, const Warp& warp, const Touch& init, const Touch& now, uint32_t addr,
                                uint32_t bytes) {
  FindingRecord* f = cta.findings.add(cta, &warp, -1, "mbarrier.overwritten", Severity::Error, now.inst, init.inst);
  if (!f) return;
  if (now.kind == Kind::Mbarrier) {
    f->say("%s initialises the mbarrier at %s again, unordered with the initialisation by %s at line {@%d}",
           who(now).c_str(), place(addr).c_str(), who(init).c_str(), init.inst);
    f->mend("Initialise every mbarrier in one thread (if (threadIdx.x == 0)), then __syncthreads().");
  } else {
    f->say("%s writes over the live mbarrier at %s (initialised at line {@%d})", who(now).c_str(), place(addr).c_str(),
           init.inst);
    f->mend("Keep data out of the barrier's 8 bytes: check the shared memory layout and the size of the copy.");
  }
  f->address = addr;
  parties(*f, now, init, addr, bytes);
}
