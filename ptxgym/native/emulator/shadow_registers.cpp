// Registers of wgmma and tcgen05.ld: which instructions touch them, and which are in flight in a warp.
#include <unordered_set>
#include "shadow_state.hpp"

namespace {

// Instructions that compute registers from registers and do nothing else.
bool is_pure(const Inst& inst) {
  return inst.op <= OP_SZEXT && inst.op != OP_SETP && inst.op != OP_TESTP && inst.op != OP_ISSPACEP;
}

// Instructions that compilers make no instruction of: they name registers.
bool is_move(uint16_t op) { return op == OP_MOV || op == OP_MOV_PACK || op == OP_MOV_UNPACK; }

bool vector_is_written(uint16_t op) {
  return op == OP_LD || op == OP_MOV_UNPACK || op == OP_LDMATRIX || op == OP_MMA || op == OP_ATOM ||
         op == OP_TCGEN05_LD;
}
bool vector_is_registers(uint16_t op) { return op != OP_BRX; }
// vec2 of instructions with several addresses holds offsets, not registers.
bool second_vector_is_registers(uint16_t op) { return op == OP_ATOM || op == OP_RED || op == OP_MMA || op == OP_WGMMA; }

void append(std::vector<int32_t>& list, int32_t reg) {
  if (reg >= 0) list.push_back(reg);
}

}  // namespace

RegisterUse registers_of(const Kernel& kernel, const Inst& inst) {
  RegisterUse use;
  use.pure = is_pure(inst);
  for (const int32_t reg : {inst.a, inst.b, inst.c, inst.e}) append(use.reads, reg);
  append(use.writes, inst.d);
  append(use.writes, inst.d2);
  if (vector_is_registers(inst.op)) {
    auto& list = vector_is_written(inst.op) ? use.writes : use.reads;
    for (int i = 0; i < inst.nvec; ++i) append(list, kernel.pool[inst.vec + i]);
  }
  if (second_vector_is_registers(inst.op)) {
    for (int i = 0; i < inst.nvec2; ++i) append(use.reads, kernel.pool[inst.vec2 + i]);
  }
  return use;
}

namespace {

using Registers = std::unordered_set<int32_t>;

// Values computed from `sources`, transitively, and these: an early one must be recognised where it escapes.
Registers computed_from(const Registers& sources, const std::vector<RegisterUse>& uses) {
  Registers derived = sources;
  for (bool grew = !sources.empty(); grew;) {
    grew = false;
    for (const RegisterUse& use : uses) {
      if (!use.pure) continue;
      bool from = false;
      for (const int32_t reg : use.reads) from |= derived.count(reg) != 0;
      if (!from) continue;
      for (const int32_t reg : use.writes) grew |= derived.insert(reg).second;
    }
  }
  return derived;
}

}  // namespace

RegisterMap::RegisterMap(const Kernel& kernel) {
  Registers operands, loaded;
  for (int64_t i = 0; i < kernel.ninst; ++i) {
    const Inst& inst = kernel.inst[i];
    Registers& found = inst.op == OP_TCGEN05_LD ? loaded : operands;
    if (inst.op != OP_WGMMA && inst.op != OP_TCGEN05_LD) continue;
    for (int k = 0; k < inst.nvec; ++k) found.insert(kernel.pool[inst.vec + k]);
    for (int k = 0; inst.op == OP_WGMMA && inst.a < 0 && k < inst.nvec2; ++k)
      operands.insert(kernel.pool[inst.vec2 + k]);
  }
  operands.erase(-1);
  loaded.erase(-1);
  if (operands.empty() && loaded.empty()) return;
  operand_.assign(static_cast<size_t>(kernel.reg_bytes / 128 + 2), 0);
  for (const int32_t reg : operands) operand_[static_cast<size_t>(reg >> 7)] = 1;

  for (int64_t i = 0; i < kernel.ninst; ++i) uses_.push_back(registers_of(kernel, kernel.inst[i]));
  const Registers derived = computed_from(operands, uses_), from_loads = computed_from(loaded, uses_);
  flags_.assign(static_cast<size_t>(kernel.ninst), RegisterUse::NONE);
  for (int64_t i = 0; i < kernel.ninst; ++i) {
    const auto at = static_cast<size_t>(i);
    if (kernel.inst[i].op == OP_WGMMA || kernel.inst[i].op == OP_TCGEN05_LD) continue;
    for (const auto* list : {&uses_[at].reads, &uses_[at].writes}) {
      for (const int32_t reg : *list) {
        if (operands.count(reg))
          flags_[at] |= RegisterUse::OPERAND;
        else if (derived.count(reg))
          flags_[at] |= RegisterUse::DERIVED;
        if (from_loads.count(reg)) flags_[at] |= RegisterUse::LOADED;
      }
    }
  }
}

void WarpRegisters::reset(size_t register_slots) {
  slot_.assign(register_slots, 0);
  touched_.assign(register_slots, 0);
  written_.assign(register_slots, false);
  flying_.clear();
  touched_list_.clear();
  fenced_ = false;
}

void WarpRegisters::add(const FlyingRegister& reg) {
  uint32_t& at = slot_[static_cast<size_t>(reg.offset >> 7)];
  if (at) {
    flying_[at - 1] = reg;
    return;
  }
  flying_.push_back(reg);
  at = static_cast<uint32_t>(flying_.size());
}

void WarpRegisters::remove(int32_t offset) {
  uint32_t& at = slot_[static_cast<size_t>(offset >> 7)];
  if (!at) return;
  const uint32_t hole = at - 1;
  at = 0;
  if (hole + 1 != flying_.size()) {
    flying_[hole] = flying_.back();
    slot_[static_cast<size_t>(flying_[hole].offset >> 7)] = hole + 1;
  }
  flying_.pop_back();
}

void WarpRegisters::retire_loads() {
  for (size_t i = flying_.size(); i-- > 0;)
    if (flying_[i].loaded) remove(flying_[i].offset);
}

void WarpRegisters::touch(int32_t offset, int inst) {
  int32_t& slot = touched_[static_cast<size_t>(offset >> 7)];
  if (slot == 0) touched_list_.push_back(offset);
  slot = inst + 1;
}

void WarpRegisters::fence() {
  for (const int32_t offset : touched_list_) touched_[static_cast<size_t>(offset >> 7)] = 0;
  touched_list_.clear();
  fenced_ = true;
}

void ShadowState::wgmma_fence(Warp& warp, int) { of(warp).registers.fence(); }

// Every register that a wgmma touches belongs to it until its group is waited for (PTX ISA 9.7.15.7: accessing it
// before is undefined). Compilers move computations that are not volatile above the wait, so a value computed early
// counts only where it escapes into memory, a predicate or another warp's lane before the wait. The same way, but no
// more than a note, for what tcgen05.ld loads before tcgen05.wait::ld.
void ShadowState::registers(Warp& warp, int inst) {
  settle();
  WarpRegisters& regs = of(warp).registers;
  const uint8_t flag = map_->flags()[inst];
  const RegisterUse& use = map_->use(inst);
  const uint16_t op = cta_.program.kernel.inst[inst].op;
  if (!regs.idle()) {
    const FlyingRegister* source = nullptr;
    FlyingRegister carried, values;
    for (const int32_t reg : use.reads) {
      const FlyingRegister* flying = regs.find(reg);
      if (!flying || flying->role == FlyingRegister::Role::Fragment) continue;
      if (flying->loaded) combine_loaded(of(warp), values, *flying, is_move(op));
      if (use.pure) {
        source = flying;
      } else if (flying->loaded) {
        note_read_before_wait(warp, inst, *flying);
      } else {
        report_register(warp, flying->role == FlyingRegister::Role::Copy && flying->reader >= 0 ? flying->reader : inst,
                        *flying, false);
      }
    }
    if (source) {
      carried = *source;
      carried.role = FlyingRegister::Role::Copy;
      if (carried.reader < 0 && op != OP_MOV) carried.reader = inst;
      if (carried.loaded) carried.time = values.time, carried.moved = values.moved, carried.loads = values.loads;
    }
    for (const int32_t reg : use.writes) {
      const FlyingRegister* flying = regs.find(reg);
      if (source) {
        carried.offset = reg;
        regs.add(carried);
      } else if (flying && (flying->role == FlyingRegister::Role::Copy || flying->loaded)) {
        regs.remove(reg);
      } else if (flying) {
        report_register(warp, inst, *flying, true);
      }
    }
  }
  if (!(flag & RegisterUse::OPERAND)) return;
  for (const int32_t reg : use.writes) {
    if (map_->is_operand(reg)) regs.set_written(reg);
  }
  // Moves do not count: compilers rename registers and set constants where they like, and ptxas removes what is idle.
  if (op == OP_MOV) return;
  for (const auto* list : {&use.reads, &use.writes}) {
    for (const int32_t reg : *list) {
      if (map_->is_operand(reg)) regs.touch(reg, inst);
    }
  }
}

// ---- tcgen05.ld

void ShadowState::tmem_loaded(Warp& warp, int inst) {
  const Inst& load = cta_.program.kernel.inst[inst];
  WarpState& w = of(warp);
  FlyingRegister reg{-1, inst, -1, w.tmem_loads.issued, 0, FlyingRegister::Role::Loaded, true};
  reg.loads = uint64_t{1} << reg.time % 64;
  if (load.nvec2) reg.loads |= uint64_t{1} << (reg.time - 1) % 64;  // 16x32bx2 makes two accesses
  LoadInFlight pending{reg.time, {}};
  for (int i = 0; i < load.nvec; ++i) {
    reg.offset = cta_.program.kernel.pool[load.vec + i];
    if (reg.offset < 0) continue;
    reg.moved.reset().set(static_cast<size_t>(i));
    pending.unused |= reg.moved;
    w.registers.add(reg);
  }
  if (w.loads.size() < LOADS_IN_FLIGHT) w.loads.push_back(pending);
  warp.watch |= RegisterUse::LOADED;
}

// An instruction that is more than a move has waited for the value: "an intra-thread ordering through true register
// dependency will be respected" (PTX ISA 9.7.16.6.4.5). A load that all its values have come from has read its cells.
void ShadowState::use_loaded(WarpState& w, const FlyingRegister& reg) {
  const auto load = std::find_if(w.loads.rbegin(), w.loads.rend(),
                                 [&](const LoadInFlight& one) { return one.time == reg.time; });
  if (load != w.loads.rend()) load->unused &= ~reg.moved;
  bool grew = false;
  for (; !w.loads.empty() && w.loads.front().unused.none(); w.loads.pop_front())
    grew |= w.now.likely.raise(w.tmem_loads.component + DELIVERED, w.loads.front().time);
  if (grew) changed(w);
}

// What `result`, a value made of several, stands for: a move keeps the registers of one load apart from values.
void ShadowState::combine_loaded(WarpState& w, FlyingRegister& result, const FlyingRegister& source, bool moves) {
  result.loads |= source.loads;
  const bool other = result.moved.any() && result.time != source.time;
  if (!moves || other) {
    use_loaded(w, source);
    return;
  }
  if (source.moved.none()) return;
  result.time = source.time;
  result.moved |= source.moved;
}

// Whether a tcgen05.st stores values that come from a tcgen05.ld in flight.
bool ShadowState::stores_loaded(const Warp& warp, int inst, uint32_t load) {
  const Inst& store = cta_.program.kernel.inst[inst];
  const WarpRegisters& regs = of(warp).registers;
  for (int i = 0; i < store.nvec; ++i) {
    const int32_t reg = cta_.program.kernel.pool[store.vec + i];
    const FlyingRegister* flying = reg >= 0 ? regs.find(reg) : nullptr;
    if (flying && flying->comes_from(load)) return true;
  }
  return false;
}

// A note: "an intra-thread ordering through true register dependency will be respected" (PTX ISA 9.7.16.6.4.5), so the
// values are right. What the wait does beyond that is to order the cells.
void ShadowState::note_read_before_wait(Warp& warp, int inst, const FlyingRegister& reg) {
  const int reader = reg.reader >= 0 ? reg.reader : inst;
  FindingRecord* f =
      cta_.findings.add(cta_, &warp, -1, "tcgen05.read_before_wait", Severity::Note, reader, reg.writer);
  if (!f) return;
  f->say("a register of the tcgen05.ld of line {@%d} is used before tcgen05.wait::ld: its value is right, but the cells "
         "that it came from must not be written or freed before the wait",
         reg.writer);
  f->mend("tcgen05.wait::ld.sync.aligned between the tcgen05.ld and the first use of its registers.");
  describe_pair(*f, by_warp(warp.label, reader), "read the register",
                {0, reg.writer, 0, warp.label, Kind::TmemLoad, 0, 0}, "loads it");
}
