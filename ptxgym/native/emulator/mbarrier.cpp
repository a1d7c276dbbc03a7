// mbarrier objects (PTX ISA 9.7.13.15): state beside shared memory, a tag in the eight bytes themselves.
#include "lanes.hpp"

namespace {

constexpr uint32_t MAX_COUNT = (1u << 20) - 1;
constexpr uint64_t TAG_MASK = ~0xffffull;

uint64_t cluster_address(Cta& cta, Warp& w, const Inst& inst, int lane) {
  const uint64_t base = inst.a < 0           ? cta.tag
                        : inst.mods & M_A64 ? w.reg<uint64_t>(inst.a)[lane]
                                             : w.reg<uint32_t>(inst.a)[lane];
  return base + static_cast<uint64_t>(inst.imm);
}
uint64_t operand_address(Cta& cta, Warp& w, const Inst& inst, int lane) {
  return cta.own(cluster_address(cta, w, inst, lane));
}
// The mbarrier of arrivals and transactions, which may lie in another CTA; those that return a state may not.
Mbar* operand(Cta& cta, Warp& w, const Inst& inst, int lane) {
  if (!cta.cluster || mods_space(inst.mods) == S_SHARED || inst.d >= 0)
    return cta.mbar_at(w, inst, lane, operand_address(cta, w, inst, lane));
  return cta.mbar_near(w, inst, lane, cluster_address(cta, w, inst, lane));
}
uint64_t tag_at(Cta& cta, uint64_t address) {
  uint64_t tag;
  std::memcpy(&tag, cta.shared(static_cast<uint32_t>(address)), sizeof tag);
  return tag;
}
Mbar* newest_at(Cta& cta, uint64_t address) {
  for (auto m = cta.mbars.rbegin(); m != cta.mbars.rend(); ++m)
    if (m->address == address && m->valid) return &*m;
  return nullptr;
}
bool well_placed(Cta& cta, Warp& w, const Inst& inst, int lane, uint64_t address) {
  if (!(address & 7) && cta.shared_ok(address, 8)) return true;  // every CTA of a cluster has the same bounds
  cta.fault_address(w, inst, lane, S_SHARED, address, 8, 8, "mbarrier");
  return false;
}

void complete_if_due(Cta& cta, Mbar& m) {
  if (m.pending || m.tx) return;
  ++m.phases;
  m.pending = m.expected;
  if (cta.shadow) cta.shadow->mbar_phase(m);
  cta.wake();
}

// A state token: the phase in which it was made, and what was pending before the arrival.
uint64_t token(const Mbar& m) { return m.phases << 20 | m.pending; }

FindingRecord* finding(Cta& cta, const Warp& w, const Inst& inst, int lane, const char* code, Severity severity,
                       const Mbar& m) {
  FindingRecord* f = cta.findings.add(cta, &w, lane, code, severity, cta.index_of(inst), m.init_inst);
  if (!f) return nullptr;
  char who[sizeof f->who[0]];
  std::snprintf(who, sizeof who, "warp %d", w.id);
  f->address = m.address;
  f->party(0, who, "used mbarrier 0x%x in phase %llu", m.address, static_cast<unsigned long long>(m.phases));
  f->party(1, "mbarrier.init", "initialised it");
  return f;
}

// A new barrier over a valid one (PTX ISA 9.7.13.15.9: undefined). Kernels do so between phases of their work.
void note_second_init(Cta& cta, const Warp& w, const Inst& inst, int lane, const Mbar& old) {
  if (tag_at(cta, old.address) != (MBAR_TAG | old.index)) return;  // the bytes have held something else since
  if (FindingRecord* f = finding(cta, w, inst, lane, "mbarrier.reinitialised", Severity::Note, old)) {
    f->say("mbarrier.init over the mbarrier at shared 0x%x, initialised at {@%d} and not invalidated since", old.address,
           old.init_inst);
    f->mend("mbarrier.inval first, by one thread, when no thread uses the barrier any more");
  }
}

// What the ISA calls undefined about an arrival on `m`, which has been made; `before` is the phase before it.
void look_at_arrival(Cta& cta, const Warp& w, const Inst& inst, int lane, const Mbar& m, uint32_t count,
                     uint64_t before) {
  if (!count) {
    if (FindingRecord* f = finding(cta, w, inst, lane, "mbarrier.zero_count", Severity::Warning, m)) {
      f->say("an arrival with count 0 on the mbarrier at shared 0x%x: it must lie in 1 to %u", m.address, MAX_COUNT);
      f->mend("leave the arrival out where there is nothing to count");
    }
  }
  if ((inst.flags & F_NOCOMPLETE) && m.phases != before) {
    if (FindingRecord* f = finding(cta, w, inst, lane, "mbarrier.no_complete", Severity::Warning, m)) {
      f->say("an arrival with .noComplete completes phase %llu of the mbarrier at shared 0x%x: it is undefined",
             static_cast<unsigned long long>(before), m.address);
      f->mend("leave .noComplete out, or let another arrival be the last of the phase");
    }
  }
  if ((inst.flags & F_DROP) && !m.expected) {  // so do all threads of a cuda::barrier that leave it
    if (FindingRecord* f = finding(cta, w, inst, lane, "mbarrier.dropped_to_zero", Severity::Note, m)) {
      f->say("the last expected arrival of the mbarrier at shared 0x%x is dropped: no later phase of it is defined",
             m.address);
      f->mend("use the barrier no more, or keep one arrival");
    }
  }
}

Step init(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* counts = w.reg<uint32_t>(inst.b);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t address = operand_address(cta, w, inst, lane);
    if (!well_placed(cta, w, inst, lane, address)) return Step::Fault;
    if (counts[lane] == 0 || counts[lane] > MAX_COUNT)
      return cta.fault(w, inst, lane, "mbarrier.bad_count", "mbarrier.init with count %u: it must lie in 1 to %u",
                       counts[lane], MAX_COUNT);
    if (Mbar* old = newest_at(cta, address)) {
      note_second_init(cta, w, inst, lane, *old);
      old->valid = false;
    }
    if (cta.mbars.size() > 0xffff)
      return cta.fault(w, inst, lane, "mbarrier.too_many", "more than 65536 mbarrier.init in one CTA");
    Mbar m;
    m.address = static_cast<uint32_t>(address);
    m.expected = m.pending = counts[lane];
    m.init_inst = cta.index_of(inst);
    m.valid = true;
    m.index = static_cast<uint32_t>(cta.mbars.size());
    m.home = &cta;
    cta.mbars.push_back(m);
    const uint64_t tag = MBAR_TAG | m.index;
    std::memcpy(cta.shared(m.address), &tag, sizeof tag);
    if (cta.shadow) cta.shadow->mbar_init(w, m.init_inst, cta.mbars.back());
  }
  return Step::Next;
}
Step invalidate(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    Mbar* m = cta.mbar_at(w, inst, lane, operand_address(cta, w, inst, lane));
    if (!m) return Step::Fault;
    if (cta.shadow) cta.shadow->mbar_inval(w, cta.index_of(inst), *m);
    m->valid = false;
    std::memset(cta.shared(m->address), 0xff, 8);
  }
  return Step::Next;
}

bool too_many_arrivals(Cta& cta, Warp& w, const Inst& inst, int lane, Mbar& m, uint32_t count) {
  if (count <= m.pending) return false;
  if (FindingRecord* f =
          cta.findings.add(cta, &w, lane, "mbarrier.over_arrival", Severity::Error, cta.index_of(inst), m.init_inst)) {
    f->address = m.address;
    f->say("mbarrier at shared 0x%x gets %u arrival%s in a phase that misses only %u of %u", m.address, count,
           count == 1 ? "" : "s", m.pending, m.expected);
    char who[sizeof f->who[0]];
    std::snprintf(who, sizeof who, "warp %d", w.id);
    f->party(0, who, "arrived at mbarrier 0x%x in phase %llu", m.address, static_cast<unsigned long long>(m.phases));
    f->party(1, "mbarrier.init", "set its count to %u", m.expected);
    f->mend("raise the count of mbarrier.init, or let fewer threads arrive per phase");
  }
  return true;
}

Step arrive(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    Mbar* m = operand(cta, w, inst, lane);
    if (!m) return Step::Fault;
    Cta& home = *m->home;
    const uint32_t count = inst.b >= 0 ? w.reg<uint32_t>(inst.b)[lane] : 1;
    if (home.shadow) home.shadow->mbar_use(w, at, *m);
    if (inst.c >= 0) {
      const uint32_t bytes = w.reg<uint32_t>(inst.c)[lane];
      if (home.shadow) home.shadow->mbar_expect(w, at, *m, bytes);
      m->last_expect_inst = at;
      home.mbar_expect_tx(*m, bytes);
    }
    const uint64_t state = token(*m);
    if (!too_many_arrivals(cta, w, inst, lane, *m, count)) {
      if (home.shadow) home.shadow->mbar_arrive(w, at, *m);
      m->last_arrive_inst = at;
      if (inst.flags & F_DROP) m->expected -= count > m->expected ? m->expected : count;
      const uint64_t before = m->phases;
      home.mbar_arrive(*m, count);
      if (!count || inst.flags & (F_NOCOMPLETE | F_DROP)) look_at_arrival(cta, w, inst, lane, *m, count, before);
    }
    if (inst.d >= 0) w.reg<uint64_t>(inst.d)[lane] = state;
  }
  return Step::Next;
}

template <bool EXPECT>
Step transaction(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    Mbar* m = operand(cta, w, inst, lane);
    if (!m) return Step::Fault;
    Cta& home = *m->home;
    const uint32_t bytes = w.reg<uint32_t>(inst.b)[lane];
    if (home.shadow) home.shadow->mbar_use(w, at, *m);
    if (EXPECT) {
      if (home.shadow) home.shadow->mbar_expect(w, at, *m, bytes);
      m->last_expect_inst = at;
      home.mbar_expect_tx(*m, bytes);
    } else {
      home.mbar_complete_tx(*m, bytes);
    }
  }
  return Step::Next;
}

// A try_wait may return false after a time that depends on the machine (PTX ISA 9.7.13.15.16): who does not ask again
// goes on too early. Under the random policy every other wait that would suspend does so first, whatever else is drawn.
bool gives_up_first(const Cta& cta, const Warp& w, int at, const Mbar& m) {
  if (cta.grid.policy != Policy::Random) return false;
  uint64_t mixed = cta.grid.seed * 0x9e3779b97f4a7c15ull + cta.linear;
  for (const uint64_t part : {static_cast<uint64_t>(w.id), static_cast<uint64_t>(at), uint64_t{m.address}, m.phases})
    mixed = (mixed ^ part) * 0xbf58476d1ce4e5b9ull, mixed ^= mixed >> 29;
  return mixed >> 40 & 1;
}

// Whether the phase that a lane asks for is complete: that of a parity is the one before the current, if parities
// differ.
template <bool SUSPENDS>
Step wait(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  uint32_t done = 0, suspended = 0, gave_up = 0;
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint32_t bit = 1u << lane;
    Mbar* m = cta.mbar_at(w, inst, lane, operand_address(cta, w, inst, lane));
    if (!m) return Step::Fault;
    if (cta.shadow) cta.shadow->mbar_use(w, at, *m);
    const bool by_parity = inst.flags & F_PARITY;
    const uint32_t parity =
        by_parity ? w.reg<uint32_t>(inst.b)[lane] & 1 : static_cast<uint32_t>(w.reg<uint64_t>(inst.b)[lane] >> 20) & 1;
    const bool complete = by_parity ? (m->phases & 1) != parity : m->phases != w.reg<uint64_t>(inst.b)[lane] >> 20;
    if (complete) {
      done |= bit;
      if (cta.shadow) cta.shadow->mbar_observe(w, at, *m, m->phases);
    } else if (SUSPENDS && !(w.timed_out & bit)) {
      if (!(w.gave_up & bit) && gives_up_first(cta, w, at, *m)) {
        gave_up |= bit;
        continue;
      }
      suspended |= bit;
      w.block(bit, Wait{WaitKind::Mbarrier, at, m->address, parity, ""}, true);
    }
  }
  w.timed_out &= ~mask;
  w.gave_up = (w.gave_up & ~done) | gave_up;
  const uint32_t executed = mask & ~suspended;
  if (gave_up) {  // a wait counts once, when it succeeds: the warp loop is going to count this
    cta.warp_counts[at] -= executed == gave_up;
    cta.thread_counts[at] -= static_cast<uint32_t>(__builtin_popcount(gave_up));
  }
  if (executed && inst.d >= 0) w.set_pred(inst.d, executed, done);
  if (done != mask) ++w.polls;
  return suspended ? Step::Block : Step::Next;
}

Step pending_count(Cta&, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* a = w.reg<uint64_t>(inst.a);
  write_lanes(w.reg<uint32_t>(inst.d), mask, [=](int l) { return static_cast<uint32_t>(a[l] & MAX_COUNT); });
  return Step::Next;
}

}  // namespace

namespace {

// The barrier at an offset of `home`; nullptr after a fault of `cta` was recorded.
Mbar* find(Cta& cta, Cta& home, Warp& w, const Inst& inst, int lane, uint64_t address) {
  if (!well_placed(cta, w, inst, lane, address)) return nullptr;
  const uint64_t tag = tag_at(home, address);
  if ((tag & TAG_MASK) == MBAR_TAG && (tag & 0xffff) < home.mbars.size()) {
    Mbar& m = home.mbars[tag & 0xffff];
    if (m.address == address && m.valid) return &m;
  }
  const std::string where = &home == &cta ? "" : of_cta(home);
  if (const Mbar* lost = newest_at(home, address)) {
    cta.fault(w, inst, lane, "mbarrier.overwritten",
              "mbarrier at shared 0x%llx%s, initialised at {@%d}, has been overwritten by a store or a copy",
              static_cast<unsigned long long>(address), where.c_str(), lost->init_inst);
  } else {
    cta.fault(w, inst, lane, "mbarrier.uninitialised",
              "mbarrier at shared 0x%llx%s is used, but no mbarrier.init has initialised it",
              static_cast<unsigned long long>(address), where.c_str());
  }
  return nullptr;
}

}  // namespace

Mbar* Cta::mbar_at(Warp& w, const Inst& inst, int lane, uint64_t address) {
  return find(*this, *this, w, inst, lane, address);
}

Mbar* Cta::mbar_near(Warp& w, const Inst& inst, int lane, uint64_t address) {
  const SharedPlace place = locate(*this, address);
  if (!place.owner) {
    fault_address(w, inst, lane, S_CLUSTER, address, 8, 8, "mbarrier");
    return nullptr;
  }
  reach(*this, w, inst, lane, *place.owner);
  return find(*this, *place.owner, w, inst, lane, place.offset);
}

void Cta::mbar_arrive(Mbar& m, uint32_t count) {
  m.pending -= count;
  ++effects;
  complete_if_due(*this, m);
}
// Completes a phase that misses nothing else: its bytes may have come before they were expected (so does an H200).
void Cta::mbar_expect_tx(Mbar& m, uint64_t bytes) {
  m.tx += static_cast<int64_t>(bytes);
  complete_if_due(*this, m);
}
void Cta::mbar_complete_tx(Mbar& m, uint64_t bytes) {
  m.tx -= static_cast<int64_t>(bytes);
  complete_if_due(*this, m);
}

Handler bind_mbarrier(const Inst& inst) {
  switch (inst.op) {
    case OP_MBAR_INIT: return init;
    case OP_MBAR_INVAL: return invalidate;
    case OP_MBAR_ARRIVE: return arrive;
    case OP_MBAR_EXPECT_TX: return transaction<true>;
    case OP_MBAR_COMPLETE_TX: return transaction<false>;
    case OP_MBAR_TEST_WAIT: return wait<false>;
    case OP_MBAR_TRY_WAIT: return wait<true>;
    case OP_MBAR_PENDING: return pending_count;
    default: return nullptr;
  }
}
