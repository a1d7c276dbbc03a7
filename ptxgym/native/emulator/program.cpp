// A kernel ready to run: every instruction bound to its handler.
#include "core.hpp"

namespace {

// What a register holds that nothing has written: NaN in every float format, so that a forgotten zero is seen in the
// results. Its predicates are true.
constexpr uint8_t REGISTER_POISON = 0xff;

const char* const OP_NAMES[] = {
#define OP(name) #name,
#include "ops.def"
#undef OP
};

// Instructions of the asynchronous engines, which keep state per CTA.
bool asynchronous(uint16_t op) {
  return (op >= OP_CP_ASYNC && op <= OP_CP_ASYNC_MBAR) || (op >= OP_TMA_LOAD && op <= OP_BULK_WAIT) ||
         (op >= OP_WGMMA && op <= OP_WGMMA_WAIT) || (op >= OP_TCGEN05_ALLOC && op <= OP_TCGEN05_FENCE);
}

ParkKind park_kind(const Inst& inst) {
  if (inst.flags & F_ALIGNED) return ParkKind::Aligned;
  switch (inst.op) {
    case OP_SHFL:
    case OP_VOTE:
    case OP_MATCH:
    case OP_REDUX:
    case OP_ELECT:
    case OP_BAR_WARP_SYNC: return ParkKind::Members;
    default: return ParkKind::None;
  }
}

Handler bind(const Inst& inst) {
  for (Handler (*binder)(const Inst&) :
       {bind_integer, bind_bits, bind_move, bind_float, bind_float_bits, bind_approximation, bind_convert,
        bind_convert_many, bind_memory, bind_atomic, bind_control, bind_registers, bind_call, bind_launch, bind_warp, bind_barrier, bind_cluster, bind_tensor})
    if (Handler handler = binder(inst)) return handler;
  return nullptr;
}

}  // namespace

Program::Program(const Kernel& k) : kernel(k) {
  slots.resize(static_cast<size_t>(k.ninst));
  for (int64_t i = 0; i < k.ninst; ++i) {
    const Inst& inst = k.inst[i];
    slots[static_cast<size_t>(i)] = {inst.op < OP_COUNT ? bind(inst) : nullptr, park_kind(inst)};
    needs_tensor_state |= asynchronous(inst.op);
    clusters |= inst.op == OP_CLUSTER_ARRIVE;
    calls |= inst.op == OP_CALL || inst.op == OP_CALL_INDIRECT;
    steals |= inst.op == OP_CLC_TRY_CANCEL;
    if (!slots[static_cast<size_t>(i)].handler && error.empty())
      error = "instruction " + std::to_string(i) + ": no handler for " +
              (inst.op < OP_COUNT ? OP_NAMES[inst.op] : "?") + " with type " + std::to_string(inst.type) +
              ", source type " + std::to_string(inst.stype) + ", flags " + std::to_string(inst.flags) + ", mods " +
              std::to_string(inst.mods) + ", imm " + std::to_string(inst.imm);
  }
  for (int64_t i = 0; i < k.nsreg; ++i) grid_barrier |= k.sregs[i].sreg == SR_ENVREG1 || k.sregs[i].sreg == SR_ENVREG2;
  if (k.nearly_reads || k.nextents) suspects.assign(slots.size(), SUSPECT_NONE);
  for (int64_t i = 0; i < k.nearly_reads; ++i)
    suspects[static_cast<size_t>(k.early_reads[i].inst)] |= SUSPECT_REGISTER;
  for (int64_t i = 0; i < k.nextents; ++i) suspects[static_cast<size_t>(k.extents[i].inst)] |= SUSPECT_EXTENT;
  refresh_constants();
}

void Program::refresh_constants() {
  warp_image.assign((static_cast<size_t>(kernel.reg_bytes) + 63) / 64 * 64, REGISTER_POISON);
  for (int64_t i = 0; i < kernel.nconst; ++i) {
    const Const& c = kernel.consts[i];
    uint8_t* at = warp_image.data() + c.offset;
    const uint32_t bytes = c.width & ~SHARED_ADDRESS;
    if (bytes == 1) {
      const uint32_t bits = c.lo ? FULL_MASK : 0;
      std::memcpy(at, &bits, sizeof bits);
    } else if (bytes == 16) {
      for (int lane = 0; lane < LANES; ++lane) {
        std::memcpy(at + 16 * lane, &c.lo, 8);
        std::memcpy(at + 16 * lane + 8, &c.hi, 8);
      }
    } else {
      const size_t width = bytes == 8 ? 8 : 4;
      const uint64_t value = bytes >= 4 ? c.lo : c.lo & ((1ull << 8 * bytes) - 1);
      for (int lane = 0; lane < LANES; ++lane) std::memcpy(at + width * static_cast<size_t>(lane), &value, width);
    }
  }
}
