// Registers of wgmma: which instructions touch them, and which are in flight in a warp.
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

RegisterMap::RegisterMap(const Kernel& kernel) {
  std::unordered_set<int32_t> operands;
  for (int64_t i = 0; i < kernel.ninst; ++i) {
    const Inst& inst = kernel.inst[i];
    if (inst.op != OP_WGMMA) continue;
    for (int k = 0; k < inst.nvec; ++k) operands.insert(kernel.pool[inst.vec + k]);
    if (inst.a < 0) {
      for (int k = 0; k < inst.nvec2; ++k) operands.insert(kernel.pool[inst.vec2 + k]);
    }
  }
  operands.erase(-1);
  if (operands.empty()) return;
  operand_.assign(static_cast<size_t>(kernel.reg_bytes / 128 + 2), 0);
  for (const int32_t reg : operands) operand_[static_cast<size_t>(reg >> 7)] = 1;

  for (int64_t i = 0; i < kernel.ninst; ++i) uses_.push_back(registers_of(kernel, kernel.inst[i]));
  // Values computed from operands, transitively: an early one must be recognised where it escapes.
  std::unordered_set<int32_t> derived = operands;
  for (bool grew = true; grew;) {
    grew = false;
    for (const RegisterUse& use : uses_) {
      if (!use.pure) continue;
      bool from = false;
      for (const int32_t reg : use.reads) from |= derived.count(reg) != 0;
      if (!from) continue;
      for (const int32_t reg : use.writes) grew |= derived.insert(reg).second;
    }
  }
  flags_.assign(static_cast<size_t>(kernel.ninst), RegisterUse::NONE);
  for (int64_t i = 0; i < kernel.ninst; ++i) {
    const auto at = static_cast<size_t>(i);
    if (kernel.inst[i].op == OP_WGMMA) continue;
    for (const auto* list : {&uses_[at].reads, &uses_[at].writes}) {
      for (const int32_t reg : *list) {
        if (operands.count(reg))
          flags_[at] |= RegisterUse::OPERAND;
        else if (derived.count(reg))
          flags_[at] |= RegisterUse::DERIVED;
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
// counts only where it escapes into memory, a predicate or another warp's lane before the wait.
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
      if (flying && flying->role != FlyingRegister::Role::Copy && !source) report_register(warp, inst, *flying, true);
      if (source) {
        carried.offset = reg;
        regs.add(carried);
      } else if (flying && flying->role == FlyingRegister::Role::Copy) {
        regs.remove(reg);
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
