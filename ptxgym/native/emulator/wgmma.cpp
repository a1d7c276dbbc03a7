// wgmma.mma_async, fence, commit_group and wait_group (PTX ISA 9.7.15): issue, checks and order. wgmma_collective.cpp
// executes.
#include "tensor.hpp"
#include "wgmma_collective.hpp"

namespace {

constexpr int ORDERED_QUEUE = 0;  // + warpgroup

uint32_t bit_of(const Warp& warp) { return 1u << (warp.id & 3); }

// The same 64-bit operand in all lanes; false after a fault was recorded.
bool uniform(Cta& cta, Warp& warp, const Inst& inst, int32_t reg, const char* name, uint64_t& bits) {
  const uint64_t* lanes = warp.reg<uint64_t>(reg);
  bits = lanes[0];
  for (int lane = 1; lane < LANES; ++lane) {
    if (lanes[lane] == bits) continue;
    cta.fault(warp, inst, lane, "wgmma.operands_differ",
              "the descriptor of %s is 0x%llx in lane 0 but 0x%llx in lane %d: it must be "
              "the same in every thread of the warpgroup",
              name, static_cast<unsigned long long>(bits), static_cast<unsigned long long>(lanes[lane]), lane);
    return false;
  }
  return true;
}

// Places an operand and checks that all its bytes are shared memory of the CTA; false after a fault was recorded.
bool place(Cta& cta, Warp& warp, const Inst& inst, uint64_t bits, uint32_t extent, bool mn_major, const char* name,
           OperandBytes& bytes) {
  const Descriptor descriptor = decode_descriptor(bits);
  bytes.place({descriptor, extent, mn_major});
  if (bytes.first() >= SMEM_BASE && bytes.end() <= cta.smem_end) return true;
  const bool start_outside = descriptor.start < SMEM_BASE || descriptor.start >= cta.smem_end;
  cta.fault(warp, inst, -1, "descriptor.out_of_bounds",
            "the descriptor of %s (start 0x%x, leading offset %u, stride offset %u, %s, %s-major) reaches from 0x%x to "
            "0x%x, outside of "
            "shared memory [0x%x, 0x%x): its %s",
            name, descriptor.start, descriptor.leading_bytes, descriptor.stride_bytes, swizzle_name(descriptor.swizzle),
            mn_major ? "MN" : "K", bytes.first(), bytes.end(), SMEM_BASE, cta.smem_end,
            start_outside ? "start address is wrong" : "offsets or extent are too large");
  return false;
}

void warn_reserved(Cta& cta, Warp& warp, const Inst& inst, uint64_t bits, const char* name) {
  const uint64_t reserved = decode_descriptor(bits).reserved;
  if (!reserved) return;
  FindingRecord* finding =
      cta.findings.add(cta, &warp, -1, "descriptor.reserved_bits", Severity::Warning, cta.index_of(inst));
  if (!finding) return;
  finding->say("the descriptor of %s, 0x%llx, sets bits that the format does not use: 0x%llx", name,
               static_cast<unsigned long long>(bits), static_cast<unsigned long long>(reserved));
  finding->party(0, "wgmma", "uses the descriptor of %s", name);
  finding->mend("encode addresses and offsets as (x & 0x3FFFF) >> 4; bit 46 belongs to the descriptors of sm_100");
}

// What the warps of one collective must have in common.
bool agrees(const Collective& collective, const Inst& inst, uint64_t a_bits, uint64_t b_bits, bool accumulate) {
  return collective.form == &inst && collective.a_bits == a_bits && collective.b_bits == b_bits &&
         collective.accumulate == accumulate;
}

void report_difference(Cta& cta, Warp& warp, const Inst& inst, const Collective& collective) {
  const int at = cta.index_of(inst);
  FindingRecord* finding =
      cta.findings.add(cta, &warp, -1, "wgmma.operands_differ", Severity::Error, at, cta.index_of(*collective.form));
  if (!finding) return;
  if (collective.form == &inst) {
    finding->say("the warps of warpgroup %d issue one wgmma with different descriptors or scale-d", warp.id / 4);
  } else {
    finding->say("the warps of warpgroup %d issue different wgmma instructions at the same time", warp.id / 4);
  }
  finding->party(0, "wgmma", "was issued here by warp %d", warp.id);
  finding->party(1, "wgmma", "was issued here by the other warps of the warpgroup");
  finding->mend(
      "compute descriptors and scale-d from values that are equal in all 128 threads, and branch for whole warpgroups");
}

Step wgmma(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst), group = warp.id / 4;
  if (static_cast<size_t>(group) * 4 + 4 > cta.warps.size() ||
      cta.warps[static_cast<size_t>(group) * 4 + 3].initial != FULL_MASK) {
    return cta.fault(warp, inst, -1, "wgmma.incomplete_warpgroup",
                     "warp %d has no complete warpgroup: wgmma needs four whole warps, "
                     "and this block has %u threads",
                     warp.id, cta.grid.threads_per_cta);
  }
  if (mask != FULL_MASK) {
    return cta.fault(warp, inst, first_lane(~mask), "wgmma.partial_warp",
                     "lanes 0x%08x of warp %d do not execute this wgmma: all threads "
                     "of the warpgroup must",
                     ~mask, warp.id);
  }
  uint64_t a_bits = 0, b_bits = 0;
  if (inst.a >= 0 && !uniform(cta, warp, inst, inst.a, "A", a_bits)) return Step::Fault;
  if (!uniform(cta, warp, inst, inst.b, "B", b_bits)) return Step::Fault;
  const uint32_t scale_d = warp.pred(inst.c);
  if (scale_d != 0 && scale_d != FULL_MASK) {
    return cta.fault(warp, inst, first_lane(~scale_d), "wgmma.operands_differ",
                     "scale-d is true in lanes 0x%08x of warp %d only: it must "
                     "be the same in every thread of the warpgroup",
                     scale_d, warp.id);
  }

  Warpgroup& warpgroup = tensor_state(cta).warpgroups[static_cast<size_t>(group)];
  const size_t position = warpgroup.issued[warp.id & 3]++ - warpgroup.tickets.size();
  if (position == warpgroup.gathering.size()) {
    auto fresh = std::make_unique<Collective>();
    fresh->inst = at;
    fresh->form = &inst;
    fresh->group = group;
    fresh->accumulate = scale_d != 0;
    fresh->a_bits = a_bits;
    fresh->b_bits = b_bits;
    const uint32_t columns = static_cast<uint32_t>(inst.imm);
    if (inst.a >= 0) {
      if (!place(cta, warp, inst, a_bits, 64, inst.flags & F_TRANS_A, "A", fresh->a)) return Step::Fault;
      warn_reserved(cta, warp, inst, a_bits, "A");
    }
    if (!place(cta, warp, inst, b_bits, columns, inst.flags & F_TRANS_B, "B", fresh->b)) return Step::Fault;
    warn_reserved(cta, warp, inst, b_bits, "B");
    warpgroup.gathering.push_back(std::move(fresh));
  }
  Collective& collective = *warpgroup.gathering[position];
  if (!agrees(collective, inst, a_bits, b_bits, scale_d != 0)) report_difference(cta, warp, inst, collective);
  collective.issued |= bit_of(warp);

  if (Shadow* shadow = cta.shadow.get()) {
    shadow->async_begin(warp, at, Async::Wgmma, 0, nullptr, 0);
    for (const OperandBytes* bytes : {&collective.a, &collective.b}) {
      for (const OperandBytes::Range& range : bytes->ranges) {
        shadow->async_read(warp, at, Async::Wgmma, range.address, range.bytes, nullptr);
      }
    }
  }
  while (!warpgroup.gathering.empty() && warpgroup.gathering.front()->issued == 15) {
    std::unique_ptr<Collective> ready = std::move(warpgroup.gathering.front());
    warpgroup.gathering.erase(warpgroup.gathering.begin());
    warpgroup.tickets.push_back(cta.async.post(cta, std::move(ready), ORDERED_QUEUE + group));
    cta.wake();
  }
  return Step::Next;
}

Step wgmma_fence(Cta& cta, Warp& warp, const Inst& inst, uint32_t) {
  if (cta.shadow) cta.shadow->wgmma_fence(warp, cta.index_of(inst));
  return Step::Next;
}

Step wgmma_commit(Cta& cta, Warp& warp, const Inst& inst, uint32_t) {
  Warpgroup& warpgroup = tensor_state(cta).warpgroups[static_cast<size_t>(warp.id / 4)];
  warpgroup.groups[warp.id & 3].push_back(warpgroup.issued[warp.id & 3]);
  if (cta.shadow) cta.shadow->group_commit(warp, cta.index_of(inst), Async::Wgmma, 0);
  return Step::Next;
}

Step wgmma_wait(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  Warpgroup& warpgroup = tensor_state(cta).warpgroups[static_cast<size_t>(warp.id / 4)];
  std::vector<uint64_t>& groups = warpgroup.groups[warp.id & 3];
  if (static_cast<int64_t>(groups.size()) > inst.imm) {
    const size_t covered = groups.size() - static_cast<size_t>(inst.imm);
    const uint64_t collectives = groups[covered - 1];
    if (warpgroup.tickets.size() < collectives) {
      Wait wait;
      wait.kind = WaitKind::Other;
      wait.inst = cta.index_of(inst);
      wait.what = "for the other warps of its warpgroup to issue the same wgmma";
      warp.block(mask, wait, true);
      return Step::Block;
    }
    if (collectives) {
      const uint64_t ticket = warpgroup.tickets[collectives - 1];
      if (cta.async.pending(ticket)) cta.async.complete(cta, ticket);
    }
    groups.erase(groups.begin(), groups.begin() + static_cast<int64_t>(covered));
  }
  if (cta.shadow) cta.shadow->group_wait(warp, cta.index_of(inst), Async::Wgmma, 0, inst.imm, false);
  return Step::Next;
}

}  // namespace

Handler bind_wgmma(const Inst& inst) {
  switch (inst.op) {
    case OP_WGMMA: {
      const bool integers = inst.stype == T_U8 || inst.stype == T_S8;
      if (integers) return inst.type == T_S32 && inst.imm <= 256 && inst.nvec == inst.imm / 2 ? wgmma : nullptr;
      const bool bytes = inst.stype == T_E4M3 || inst.stype == T_E5M2;
      const bool elements = is_half(inst.stype) || inst.stype == T_TF32 || bytes;
      const bool result = inst.type == T_F32 || (inst.type == T_F16 && (inst.stype == T_F16 || bytes));
      const bool shape =
          inst.imm >= 8 && inst.imm <= 256 && inst.imm % 8 == 0 && inst.nvec == inst.imm / (inst.type == T_F32 ? 2 : 4);
      return elements && result && shape ? wgmma : nullptr;
    }
    case OP_WGMMA_FENCE: return wgmma_fence;
    case OP_WGMMA_COMMIT: return wgmma_commit;
    case OP_WGMMA_WAIT: return wgmma_wait;
    default: return nullptr;
  }
}
