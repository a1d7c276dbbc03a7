// Calls of functions that the compiler did not inline (PTX ISA 7 and 9.7.12.5, 9.7.12.6). The decoder has put all
// functions of a kernel into one stream of instructions over one register file, parameters in local memory. A thread
// keeps its return addresses; around a call that may come back to the caller's own function, its registers and
// parameters are put away.
#include "lanes.hpp"

namespace {

constexpr size_t DEEPEST = 512;  // calls of one thread within each other

// Bytes of a lane in the four classes of registers that are no predicates, as SAVE counts them.
constexpr int CLASS_BYTES[] = {4, 8, 16};

Step enter(Cta& cta, Warp& w, const Inst& inst, uint32_t mask, const int32_t* targets) {
  CallFrames& frames = cta.frames[static_cast<size_t>(w.id)];
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    if (frames.returns[lane].size() >= DEEPEST)
      return cta.fault(w, inst, lane, "call.too_deep",
                       "a thread is %zu calls deep: its recursion does not end, or needs more stack than a GPU has",
                       DEEPEST);
    frames.returns[lane].push_back(w.cur + 1);
  }
  bool together = mask == w.group;
  const int first = targets[first_lane(mask)];
  for_lanes(mask, [&](int l) { together &= targets[l] == first; });
  if (together) {
    w.next_pc = first;
    return Step::Jump;
  }
  for_lanes(w.group, [&](int l) { w.pc[l] = (mask >> l & 1) ? targets[l] : w.cur + 1; });
  return Step::Split;
}

Step call(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  int32_t targets[LANES];
  std::fill(targets, targets + LANES, inst.target);
  return enter(cta, w, inst, mask, targets);
}

Step call_indirect(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  const auto* address = w.reg<uint64_t>(inst.a);
  int32_t targets[LANES] = {};
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    const uint64_t index = (address[lane] - FUNCTION_WINDOW) / FUNCTION_STEP;
    const bool named = address[lane] >= FUNCTION_WINDOW && (address[lane] - FUNCTION_WINDOW) % FUNCTION_STEP == 0 &&
                       index < static_cast<uint64_t>(inst.nvec);
    targets[lane] = named ? cta.pool(inst.vec)[index] : 0;
    if (!targets[lane])
      return cta.fault(w, inst, lane, "call.bad_address",
                       named ? "an indirect call of a function with other parameters than the call gives (0x%llx)"
                             : "an indirect call of 0x%llx, which is no function of this module",
                       static_cast<unsigned long long>(address[lane]));
  }
  return enter(cta, w, inst, mask, targets);
}

Step come_back(Cta& cta, Warp& w, const Inst&, uint32_t mask) {
  CallFrames& frames = cta.frames[static_cast<size_t>(w.id)];
  const int first = frames.returns[first_lane(mask)].back();
  bool together = mask == w.group;
  for_lanes(mask, [&](int l) { together &= frames.returns[l].back() == first; });
  for_lanes(w.group, [&](int l) {
    if (!(mask >> l & 1)) {
      w.pc[l] = w.cur + 1;
      return;
    }
    w.pc[l] = frames.returns[l].back();
    frames.returns[l].pop_back();
  });
  if (!together) return Step::Split;
  w.next_pc = first;
  return Step::Jump;
}

// Calls visit(bytes at, count) for what SAVE puts away of a lane, but predicates: in the order of the operands.
template <class Visit>
void for_saved(Cta& cta, Warp& w, const Inst& inst, int lane, Visit visit) {
  const int32_t* layout = cta.pool(inst.vec2);
  const int32_t* registers = cta.pool(inst.vec) + layout[0];
  for (int kind = 0; kind < 3; ++kind) {
    const size_t bytes = static_cast<size_t>(CLASS_BYTES[kind]);
    for (int i = 0; i < layout[1 + kind]; ++i)
      visit(w.regs + *registers++ + bytes * static_cast<size_t>(lane), bytes);
  }
  const size_t size = static_cast<size_t>(cta.program.kernel.local_bytes);
  uint8_t* local = cta.local.data() + (static_cast<size_t>(w.id) * LANES + static_cast<size_t>(lane)) * size;
  for (int i = 4; i + 1 < inst.nvec2; i += 2) visit(local + layout[i], static_cast<size_t>(layout[i + 1]));
}

Step save(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  CallFrames& frames = cta.frames[static_cast<size_t>(w.id)];
  const int32_t* predicates = cta.pool(inst.vec);
  const int count = cta.pool(inst.vec2)[0];
  for_lanes(mask, [&](int lane) {
    std::vector<uint8_t>& kept = frames.saved[lane];
    for_saved(cta, w, inst, lane, [&](const uint8_t* at, size_t bytes) { kept.insert(kept.end(), at, at + bytes); });
    for (int i = 0; i < count; ++i) kept.push_back(w.pred(predicates[i]) >> lane & 1);
  });
  return Step::Next;
}

Step restore(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  CallFrames& frames = cta.frames[static_cast<size_t>(w.id)];
  const int32_t* predicates = cta.pool(inst.vec);
  const int count = cta.pool(inst.vec2)[0];
  for_lanes(mask, [&](int lane) {
    std::vector<uint8_t>& kept = frames.saved[lane];
    size_t all = static_cast<size_t>(count);
    for_saved(cta, w, inst, lane, [&](uint8_t*, size_t bytes) { all += bytes; });
    const uint8_t* from = kept.data() + (kept.size() - all);
    for_saved(cta, w, inst, lane, [&](uint8_t* at, size_t bytes) {
      std::memcpy(at, from, bytes);
      from += bytes;
    });
    for (int i = 0; i < count; ++i) w.set_pred(predicates[i], 1u << lane, *from++ ? FULL_MASK : 0);
    kept.resize(kept.size() - all);
  });
  return Step::Next;
}

}  // namespace

Handler bind_call(const Inst& inst) {
  switch (inst.op) {
    case OP_CALL: return call;
    case OP_CALL_INDIRECT: return call_indirect;
    case OP_RET: return come_back;
    case OP_SAVE: return save;
    case OP_RESTORE: return restore;
    default: return nullptr;
  }
}
