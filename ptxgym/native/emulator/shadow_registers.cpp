// Registers of wgmma and tcgen05.ld: which instructions touch them, and which are in flight in a warp.
#include <unordered_set>
#include "shadow_state.hpp"

namespace {

// Instructions that compute registers from registers and do nothing else.
bool is_pure(const Inst& inst) {
  return inst.op <= OP_SZEXT && inst.op != OP_SETP && inst.op != OP_TESTP && inst.op != OP_ISSPACEP;
}

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
  const bool is_move = cta_.program.kernel.inst[inst].op == OP_MOV;
  if (!regs.idle()) {
    const FlyingRegister* source = nullptr;
    for (const int32_t reg : use.reads) {
      const FlyingRegister* flying = regs.find(reg);
      if (!flying || flying->role == FlyingRegister::Role::Fragment) continue;
      if (use.pure) {
        source = flying;
      } else if (flying->loaded) {
        note_read_before_wait(warp, inst, *flying);
      } else {
        report_register(warp, flying->role == FlyingRegister::Role::Copy && flying->reader >= 0 ? flying->reader : inst,
                        *flying, false);
      }
    }
    FlyingRegister carried;
    if (source) {
      carried = *source;
      carried.role = FlyingRegister::Role::Copy;
      if (carried.reader < 0 && !is_move) carried.reader = inst;
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
  if (is_move) return;
  for (const auto* list : {&use.reads, &use.writes}) {
    for (const int32_t reg : *list) {
      if (map_->is_operand(reg)) regs.touch(reg, inst);
    }
  }
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
