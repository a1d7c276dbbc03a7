// setmaxnreg (PTX ISA 9.7.19.5): registers from the CTA's pool, and what the warps of a warpgroup must keep to.
//
// Who breaks these rules gets undefined behaviour, but no error here: ptxas makes an instruction of it that each warp
// executes for itself (USETMAXREG in SASS of sm_100a waits for the warp alone), and CUTLASS's attention for sm_100
// (sm100_fmha_gen_kernel_warpspecialized.hpp) gives the warps of one warpgroup 192, 248 and 24 registers.
#include "core.hpp"
#include <algorithm>

namespace {

constexpr int WARPS = 4;
constexpr size_t MOST_REQUESTS = 64;  // that are remembered where a warp never takes part

bool increases(const Inst& inst) { return mods_low(inst.mods) == SETMAXNREG_INC; }
const char* action(const Inst& inst) { return increases(inst) ? "inc" : "dec"; }
uint32_t wanted_by(const Inst& inst) { return static_cast<uint32_t>(inst.imm); }

void warn_of_direction(Cta& cta, const Warp& w, const Inst& inst) {
  const uint32_t wanted = wanted_by(inst);
  if (increases(inst) ? wanted >= w.held : wanted <= w.held) return;
  FindingRecord* f = cta.findings.add(cta, &w, -1, "setmaxnreg.direction", Severity::Warning, cta.index_of(inst));
  if (!f) return;
  f->say("setmaxnreg.%s to %u registers by warp %d, which holds %u: undefined, .dec asks for as many or fewer and .inc for "
         "as many or more",
         action(inst), wanted, w.id, w.held);
  f->mend("use .%s, or another number; before the first setmaxnreg a warp holds what the launch gave it",
          increases(inst) ? "dec" : "inc");
}

void note_unlike(Cta& cta, const Warp& w, const Inst& inst, const RegisterRequest& others) {
  const Inst& other = cta.program.kernel.inst[others.inst];
  if (increases(other) == increases(inst) && other.imm == inst.imm) return;
  FindingRecord* f =
      cta.findings.add(cta, &w, -1, "setmaxnreg.unlike", Severity::Note, cta.index_of(inst), others.inst);
  if (!f) return;
  f->say("warp %d asks for setmaxnreg.%s %u and warp %d of the same warpgroup for setmaxnreg.%s %u: all warps of a warpgroup "
         "must execute the same one, else the behaviour is undefined, though CUTLASS does so on sm_100",
         w.id, action(inst), wanted_by(inst), others.warp, action(other), wanted_by(other));
  f->party(0, warp_list({w.id}).c_str(), "asked for %u registers", wanted_by(inst));
  f->party(1, warp_list({others.warp}).c_str(), "asked for %u registers", wanted_by(other));
  f->mend("let the four warps of a warpgroup ask for the same number");
}

// Whether the warps of the warpgroup have met since their last request.
void check_met(Cta& cta, const Warp& w, const Inst& inst, const RegisterRequest& last) {
  const int first = w.id / WARPS * WARPS;
  for (int i = 0; i < WARPS && first + i < static_cast<int>(cta.warps.size()); ++i) {
    const Warp& other = cta.warps[static_cast<size_t>(first + i)];
    if (&other == &w || !other.live) continue;
    if (last.warps >> i & 1 && cta.shadow->passed(w, other, last.marks[i])) continue;
    FindingRecord* f =
        cta.findings.add(cta, &w, -1, "setmaxnreg.unordered", Severity::Warning, cta.index_of(inst), last.inst);
    if (!f) return;
    f->say("warp %d executes its next setmaxnreg, but nothing tells it that warp %d of the same warpgroup has executed the "
           "last one, at line {@%d}: all warps of the warpgroup must synchronise in between",
           w.id, other.id, last.inst);
    f->party(0, warp_list({w.id}).c_str(), "asked for %u registers", wanted_by(inst));
    f->mend("a barrier of the warpgroup (bar.sync id, 128) between the two");
    return;
  }
}

void note_request(Cta& cta, Warp& w, const Inst& inst) {
  const auto group = static_cast<size_t>(w.id / WARPS);
  const int place = w.id % WARPS;
  if (cta.requests.size() <= group) cta.requests.resize(cta.warps.size() / WARPS + 1);
  RegisterRequests& all = cta.requests[group];
  const uint32_t turn = w.requests++;
  w.last_request = cta.index_of(inst);
  if (turn < all.dropped) return;
  while (all.recent.size() <= turn - all.dropped) all.recent.emplace_back();
  RegisterRequest& now = all.recent[turn - all.dropped];
  if (now.warps) {
    note_unlike(cta, w, inst, now);
  } else {
    now.inst = w.last_request;
    now.warp = w.id;
  }
  now.warps |= 1u << place;
  if (cta.shadow) {
    now.marks[place] = cta.shadow->mark(w);
    if (turn > all.dropped) check_met(cta, w, inst, all.recent[turn - all.dropped - 1]);
  }
  const size_t members = std::min<size_t>(WARPS, cta.warps.size() - group * WARPS);
  while (all.recent.size() > MOST_REQUESTS || (all.recent.size() > 1 && all.recent[1].warps == (1u << members) - 1)) {
    all.recent.pop_front();
    ++all.dropped;
  }
}

// Registers come from the CTA's pool and go back to it; a warp that asks for more waits until others have given enough.
Step set_registers(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  if (!cta.grid.registers) return Step::Next;
  const uint32_t wanted = wanted_by(inst);
  if (increases(inst) && wanted > w.held) {
    const uint32_t missing = wanted - w.held;
    if (missing > cta.spare_registers && missing <= cta.spare_registers + cta.left_registers) {
      const uint32_t lent = missing - cta.spare_registers;
      cta.left_registers -= lent;
      cta.lent_registers += lent;
      cta.lent_at = cta.index_of(inst);
      cta.spare_registers = missing;
    }
    if (missing > cta.spare_registers) {
      w.block(mask,
              Wait{WaitKind::Registers, cta.index_of(inst), 0, 0,
                   "for registers: all warps together ask for more than the CTA got at launch"},
              true);
      return Step::Block;
    }
    cta.spare_registers -= missing;
    w.held = wanted;
  } else if (!increases(inst) && wanted < w.held) {
    const uint32_t given = w.held - wanted, returned = std::min(given, cta.lent_registers);
    cta.lent_registers -= returned;
    cta.left_registers += returned;
    cta.spare_registers += given - returned;
    w.held = wanted;
    cta.wake();
  } else {
    warn_of_direction(cta, w, inst);
  }
  note_request(cta, w, inst);
  return Step::Next;
}

}  // namespace

// Warps that were gone before any of their warpgroup asked are a note, as with barriers.
void report_missing_requests(Cta& cta) {
  for (size_t first = 0; first < cta.warps.size(); first += WARPS) {
    const auto begin = cta.warps.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min<size_t>(WARPS, cta.warps.size() - first));
    const auto fewer = [](const Warp& a, const Warp& b) { return a.requests < b.requests; };
    const Warp& most = *std::max_element(begin, end, fewer);
    std::vector<int> asked, absent;
    bool early = true;
    for (auto w = begin; w != end; ++w) {
      (w->requests == most.requests ? asked : absent).push_back(w->id);
      if (w->requests < most.requests) early = early && w->left_early;
    }
    if (absent.empty()) continue;
    FindingRecord* f = cta.findings.add(cta, &most, -1, "setmaxnreg.partial", early ? Severity::Note : Severity::Warning,
                                        most.last_request);
    if (!f) continue;
    const Inst& inst = cta.program.kernel.inst[most.last_request];
    f->say("%s executed setmaxnreg.%s %u, %s of the same warpgroup did not%s: all warps of a warpgroup must execute it, else "
           "the behaviour is undefined",
           warp_list(asked).c_str(), action(inst), wanted_by(inst), warp_list(absent).c_str(),
           most.requests > 1 ? " as often" : early ? " and had exited before" : "");
    f->party(0, warp_list(asked).c_str(), "asked for %u registers", wanted_by(inst));
    f->mend("let all four warps of a warpgroup take the branch with setmaxnreg, those without other work, too");
  }
}

Handler bind_registers(const Inst& inst) { return inst.op == OP_SETMAXNREG ? set_registers : nullptr; }
