// tcgen05.mma (PTX ISA 9.7.16.10.9): issue by a thread, and checks. tcgen05_mma_run.cpp executes.
#include "tcgen05_mma.hpp"

namespace {

MmaKind kind_of(const Inst& inst) { return static_cast<MmaKind>(mods_low(inst.mods)); }

// What is left of the address of D, of A, of the scale factors of A and of B (0 to 3).
uint32_t tensor_offset(const Cta& cta, const Inst& inst, int which) {
  return inst.nvec2 ? static_cast<uint32_t>(cta.pool(inst.vec2)[which]) : 0;
}

bool place(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t bits, int extent, bool mn_major, const char* name,
           OperandBytes& bytes) {
  const MmaKind kind = kind_of(inst);
  TensorDescriptor descriptor;
  const Atoms32 atoms = !mn_major ? Atoms32::NotEmulated : kind == KIND_TF32 ? Atoms32::Needed : Atoms32::Forbidden;
  if (!sound_descriptor(cta, warp, inst, lane, bits, name, atoms, descriptor)) return false;
  bytes.place({descriptor.matrix, static_cast<uint32_t>(extent), mn_major, chunk_shift_of(kind)});
  return operand_inside(cta, warp, inst, lane, bytes, name);
}

// Lanes of D or of an A in tensor memory: layout F begins at lane 0 or 16, the others at lane 0 (9.7.16.10.5).
bool lanes_fit(Cta& cta, Warp& warp, const Inst& inst, int lane, const Mma& op, int first, const char* name) {
  const bool either = op.path() == DataPath::Half;
  if (first == 0 || (first == 16 && either)) return true;
  cta.fault(warp, inst, lane, "tmem.lanes", "%s of a tcgen05.mma with M = %d begins at lane %d: it must be %s", name,
            op.form.rows, first, either ? "0 or 16" : "0");
  return false;
}

// A bit per 16 lanes of those, of an operand's, whose rows the CTA computes: disable-output-lane may leave all 16 out.
uint32_t enabled_lanes(const Mma& op, int part, uint32_t lanes) {
  for (int lane = 0; lane < TMEM_LANES; lane += 16) {
    bool any = false;
    for (int i = 0; i < 16; ++i) any |= op.enabled(part, lane + i);
    if (!any) lanes &= ~(1u << lane / 16);
  }
  return lanes;
}

void note(Cta& cta, Warp& warp, int at, int lane, const Mma& op) {
  cta.shadow->async_begin(warp, at, Async::Tcgen05, lane, nullptr, 0);
  if (!op.a_in_tmem) cta.shadow->tcgen05_operand(warp, at, op.a.operand, "A");
  cta.shadow->tcgen05_operand(warp, at, op.b.operand, "B");
  const uint32_t path_lanes = op.path() == DataPath::Half ? 0x55u << op.d.lane / 16 : 0xFFu;
  const bool scaled = is_block_scaled(op.kind), pair = op.group.count == 2;
  const uint32_t shape = static_cast<uint32_t>(pair) << 30 | static_cast<uint32_t>(op.form.rows) << 20 |
                         static_cast<uint32_t>(op.form.columns) << 10 | static_cast<uint32_t>(op.d.column);
  for (int part = 0; part < op.group.count; ++part) {
    Shadow& shadow = *op.group.ctas[part]->shadow;
    const uint32_t lanes = enabled_lanes(op, part, path_lanes);
    shadow.async_share(warp, Async::Tcgen05, lane);
    for (const OperandBytes* bytes : {&op.a, &op.b}) {
      if (bytes == &op.a && op.a_in_tmem) continue;
      for (const OperandBytes::Range& range : bytes->ranges)
        shadow.async_read(warp, at, Async::Tcgen05, range.address, range.bytes, nullptr);
    }
    if (op.a_in_tmem) shadow.tmem_access(warp, at, TmemUse::Read, lane, op.a_cells.column, A_COLUMNS, lanes);
    if (scaled) {
      shadow.tmem_access(warp, at, TmemUse::Read, lane, op.scale_a.column, op.scale_columns_a(), 0xFF);
      shadow.tmem_access(warp, at, TmemUse::Read, lane, op.scale_b.column, op.scale_columns_b(), 0xFF);
    }
    const TmemUse sums = op.accumulate ? TmemUse::Accumulate : TmemUse::Overwrite;
    shadow.tmem_access(warp, at, sums, lane, op.d.column, op.width(), lanes, shape);
  }
}

bool cells_allocated(Cta& cta, Warp& warp, const Inst& inst, int lane, const Mma& op) {
  for (int part = 0; part < op.group.count; ++part) {
    Cta& owner = *op.group.ctas[part];
    const auto allocated = [&](const char* name, int column, int columns) {
      return columns_allocated(cta, warp, inst, lane, name, owner, column, columns);
    };
    if (!allocated("tcgen05.mma (D)", op.d.column, op.width())) return false;
    if (op.a_in_tmem && !allocated("tcgen05.mma (A)", op.a_cells.column, A_COLUMNS)) return false;
    if (!is_block_scaled(op.kind)) continue;
    if (!allocated("tcgen05.mma (scale factors of A)", op.scale_a.column, op.scale_columns_a())) return false;
    if (!allocated("tcgen05.mma (scale factors of B)", op.scale_b.column, op.scale_columns_b())) return false;
  }
  return true;
}

// A note: legal, and seldom meant.
void note_negation(Cta& cta, Warp& warp, const Inst& inst, int lane, const Mma& op, uint32_t bits) {
  if (!op.form.negate_a && !op.form.negate_b) return;
  FindingRecord* f = cta.findings.add(cta, &warp, lane, "tcgen05.negated", Severity::Note, cta.index_of(inst));
  if (!f) return;
  const char* what = !op.form.negate_b ? "A" : op.form.negate_a ? "A and B" : "B";
  f->say("the instruction descriptor 0x%08x negates %s (bits 13 and 14)", bits, what);
  f->party(0, warp_list({warp.id}).c_str(), "multiplied with the sign of %s changed", what);
  f->mend("Leave bits 13 and 14 of the instruction descriptor 0 unless the product is to be subtracted.");
}

// Where the scale factors of a block-scaled kind lie. Bits 30 and 31 of their addresses are no part of the lane: CUTLASS
// keeps the byte there, which the instruction descriptor names (make_runtime_instr_desc_block_scaled).
bool place_scales(Cta& cta, Warp& warp, const Inst& inst, int lane, Mma& op) {
  const int32_t* operands = cta.pool(inst.vec);
  for (int side = 0; side < 2; ++side) {
    TmemAddress& address = side ? op.scale_b : op.scale_a;
    const uint32_t bits = warp.reg<uint32_t>(operands[1 + side])[lane] + tensor_offset(cta, inst, 2 + side);
    address = TmemAddress::of(bits & 0x3FFF'FFFF);
    if (!address.lane) continue;
    cta.fault(warp, inst, lane, "tmem.lanes",
              "the scale factors of %s begin at lane %d of tensor memory: they fill all lanes, so the address must name "
              "lane 0",
              side ? "B" : "A", address.lane);
    return false;
  }
  return true;
}

bool take_zero_columns(Cta& cta, Warp& warp, const Inst& inst, int lane, Mma& op) {
  const uint64_t bits = warp.reg<uint64_t>(cta.pool(inst.vec)[1])[lane];
  if (const uint32_t shift = zero_column_shift(bits)) {
    cta.fault(warp, inst, lane, "tcgen05.zero_column_mask",
              "the zero-column mask descriptor 0x%llx shifts the columns of B by %u (bits 56-61), which is not emulated",
              static_cast<unsigned long long>(bits), shift);
    return false;
  }
  op.zero_columns = zero_column_mask(bits, op.form.rows, op.form.columns);
  return true;
}

bool place_a_cells(Cta& cta, Warp& warp, const Inst& inst, int lane, Mma& op) {
  op.a_cells = TmemAddress::of(warp.reg<uint32_t>(inst.a)[lane] + tensor_offset(cta, inst, 1));
  if (op.form.mn_major_a) {
    cta.fault(warp, inst, lane, "tcgen05.instruction_descriptor",
              "bit 15 (transpose A) is set, but A lies in tensor memory, where it is always K-major");
    return false;
  }
  if (!lanes_fit(cta, warp, inst, lane, op, op.a_cells.lane, "A")) return false;
  if (op.a_cells.lane == op.d.lane) return true;
  cta.fault(warp, inst, lane, "tmem.lanes",
            "A begins at lane %d of tensor memory and D at lane %d: with M = 64 both must have the same alignment",
            op.a_cells.lane, op.d.lane);
  return false;
}

bool build(Cta& cta, Warp& warp, const Inst& inst, int lane, Mma& op) {
  const int32_t* operands = cta.pool(inst.vec);
  const uint32_t idesc = warp.reg<uint32_t>(inst.e)[lane];
  op.inst = cta.index_of(inst);
  op.warp = warp.id;
  op.kind = kind_of(inst);
  op.ws = inst.flags & F_WS;
  op.collector = mods_space(inst.mods);
  op.buffer = op.ws ? 1 + mods_order(inst.mods) : 0;
  op.group = group_of(cta, warp, inst, lane, "tcgen05.mma");
  if (!op.group.count) return false;
  const bool scaled = is_block_scaled(op.kind);
  (scaled ? op.scales : op.scale) = static_cast<int>(inst.imm);
  op.form = decode_instruction_descriptor(idesc, op.kind);
  if (const char* why = instruction_descriptor_fault(op.form, op.kind, op.group.count == 2, op.ws, op.scales)) {
    cta.fault(warp, inst, lane, "tcgen05.instruction_descriptor",
              "the instruction descriptor 0x%08x (M %d, N %d) is none of %s: %s", idesc, op.form.rows, op.form.columns,
              kind_name(op.kind), why);
    return false;
  }
  note_negation(cta, warp, inst, lane, op, idesc);
  op.d = TmemAddress::of(warp.reg<uint32_t>(operands[0])[lane] + tensor_offset(cta, inst, 0));
  op.accumulate = ((warp.pred(inst.c) >> lane & 1) != 0) != ((inst.flags & F_C_NOT) != 0);
  op.a_in_tmem = inst.stype == T_U32;
  if (scaled && !place_scales(cta, warp, inst, lane, op)) return false;
  if (op.ws && inst.nvec > 1 && !take_zero_columns(cta, warp, inst, lane, op)) return false;
  for (int i = 1; !scaled && !op.ws && i < inst.nvec; ++i) op.disabled[i - 1] = warp.reg<uint32_t>(operands[i])[lane];
  if (!lanes_fit(cta, warp, inst, lane, op, op.d.lane, "D")) return false;
  if (op.a_in_tmem && !place_a_cells(cta, warp, inst, lane, op)) return false;
  if (!cells_allocated(cta, warp, inst, lane, op)) return false;
  if (!op.a_in_tmem &&
      !place(cta, warp, inst, lane, warp.reg<uint64_t>(inst.a)[lane], op.rows(), op.form.mn_major_a, "A", op.a))
    return false;
  return place(cta, warp, inst, lane, warp.reg<uint64_t>(inst.b)[lane], op.columns_of_b(), op.form.mn_major_b, "B",
               op.b);
}

// Several lanes that issue one and the same product. On purpose they would issue different ones.
void warn_of_copies(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask, bool accumulate) {
  const int first = first_lane(mask), lanes = __builtin_popcount(mask);
  const auto same = [&](int32_t reg, bool wide, int lane) {
    return wide ? warp.reg<uint64_t>(reg)[lane] == warp.reg<uint64_t>(reg)[first]
                : warp.reg<uint32_t>(reg)[lane] == warp.reg<uint32_t>(reg)[first];
  };
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    if (!same(inst.a, inst.stype == T_U64, lane) || !same(inst.b, true, lane) ||
        !same(cta.pool(inst.vec)[0], false, lane))
      return;
  }
  FindingRecord* f =
      cta.findings.add(cta, &warp, first, "tcgen05.many_threads", Severity::Warning, cta.index_of(inst));
  if (!f) return;
  f->say("%d lanes of warp %d issue the same tcgen05.mma: each thread starts a whole product of its own, so %s", lanes,
         warp.id,
         accumulate ? "D grows by as many times A × B as there are lanes"
                    : "D is computed as many times as there are lanes");
  f->party(0, warp_list({warp.id}).c_str(), "issued it by lanes 0x%x", mask);
  f->mend("Let one thread issue it: elect.sync (or lane 0) in one warp, and the tcgen05.commit with it.");
}

// "A single thread issuing the tcgen05.mma will result in the initiation of the whole operation" (PTX ISA 9.7.16.5):
// every lane that executes it issues one of its own.
Step mma(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    auto op = std::make_unique<Mma>();
    if (!build(cta, warp, inst, lane, *op)) return Step::Fault;
    if (rest == mask && (mask & (mask - 1))) warn_of_copies(cta, warp, inst, mask, op->accumulate);
    if (cta.multiply_adds)
      cta.multiply_adds[at] += static_cast<uint64_t>(op->form.rows) * static_cast<uint64_t>(op->form.columns) *
                               static_cast<uint64_t>(op->depth());
    collect(cta, warp, lane, *op);
    if (cta.shadow) note(cta, warp, at, lane, *op);
    issue(cta, std::move(op));
  }
  return Step::Next;
}

}  // namespace

bool sound_descriptor(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t bits, const char* name,
                      Atoms32 atoms, TensorDescriptor& descriptor) {
  descriptor = decode_tensor_descriptor(bits);
  const auto hex = static_cast<unsigned long long>(bits);
  if (!descriptor.swizzle_known) {
    cta.fault(warp, inst, lane, "descriptor.swizzle",
              "the descriptor of %s, 0x%llx, has %u in bits 61-63: 0 is no swizzle, 1 128B with atoms of 32 bytes, 2 128B, "
              "4 64B, 6 32B",
              name, hex, descriptor.swizzle_code);
    return false;
  }
  const bool has_atoms = descriptor.matrix.swizzle == Swizzle::B128Atom32;
  if (has_atoms && atoms == Atoms32::NotEmulated) {
    cta.fault(warp, inst, lane, "emulator.swizzle",
              "the descriptor of %s, 0x%llx, has 1 in bits 61-63, 128B with atoms of 32 bytes, which is not emulated where "
              "the operand is K-major: the ISA allows it (9.7.16.10.3) and gives no layout for it (9.7.16.10.6)",
              name, hex);
    return false;
  }
  if (has_atoms != (atoms == Atoms32::Needed)) {
    cta.fault(warp, inst, lane, "descriptor.swizzle",
              "the descriptor of %s, 0x%llx, has %u in bits 61-63: of MN-major operands those of kind::tf32 need 1, 128B "
              "with atoms of 32 bytes, and no others may have it",
              name, hex, descriptor.swizzle_code);
    return false;
  }
  if (descriptor.absolute_leading) {
    cta.fault(warp, inst, lane, "descriptor.leading_mode",
              "the descriptor of %s, 0x%llx, sets bit 52 (absolute leading address), which sm_100a does not support",
              name, hex);
    return false;
  }
  if (descriptor.version != 1) {
    if (FindingRecord* f =
            cta.findings.add(cta, &warp, lane, "descriptor.version", Severity::Error, cta.index_of(inst))) {
      f->say("the descriptor of %s, 0x%llx, has %u in bits 46-48: descriptors of sm_100 must have 1 there", name, hex,
             descriptor.version);
      f->party(0, "tcgen05", "uses the descriptor of %s", name);
      f->mend("set bit 46; swizzle modes stand in bits 61-63, other than on sm_90");
    }
  }
  if (descriptor.matrix.reserved) {
    if (FindingRecord* f =
            cta.findings.add(cta, &warp, lane, "descriptor.reserved_bits", Severity::Warning, cta.index_of(inst))) {
      f->say("the descriptor of %s, 0x%llx, sets bits that the format does not use: 0x%llx", name, hex,
             static_cast<unsigned long long>(descriptor.matrix.reserved));
      f->party(0, "tcgen05", "uses the descriptor of %s", name);
      f->mend("encode addresses and offsets as (x & 0x3FFFF) >> 4");
    }
  }
  return true;
}

bool operand_inside(Cta& cta, Warp& warp, const Inst& inst, int lane, const OperandBytes& bytes, const char* name) {
  if (bytes.first() >= SMEM_BASE && bytes.end() <= cta.smem_end) return true;
  const Descriptor& d = bytes.operand.descriptor;
  const bool start_outside = d.start < SMEM_BASE || d.start >= cta.smem_end;
  cta.fault(warp, inst, lane, "descriptor.out_of_bounds",
            "the descriptor of %s (start 0x%x, leading offset %u, stride offset %u, %s, %s-major) reaches from 0x%x to "
            "0x%x, outside of shared memory [0x%x, 0x%x): its %s",
            name, d.start, d.leading_bytes, d.stride_bytes, swizzle_name(d.swizzle), bytes.operand.mn_major ? "MN" : "K",
            bytes.first(), bytes.end(), SMEM_BASE, cta.smem_end,
            start_outside ? "start address is wrong" : "offsets or extent are too large");
  return false;
}

Handler bind_tcgen05_mma(const Inst& inst) {
  if (inst.op != OP_TCGEN05_MMA || mods_low(inst.mods) > KIND_MXF4NVF4) return nullptr;
  const int lane_masks = (inst.flags & F_PAIR ? 2 : 1) * DISABLE_MASKS;
  const bool scaled = is_block_scaled(kind_of(inst)), ws = inst.flags & F_WS;
  const bool vector = scaled ? inst.nvec == 3 : inst.nvec == 1 || inst.nvec == (ws ? 2 : 1 + lane_masks);
  const bool offsets = inst.nvec2 == 0 || inst.nvec2 == (scaled ? 4 : 2);
  const bool operand = inst.stype == T_U64 || inst.stype == T_U32;
  const bool count = scaled ? inst.imm == 1 || inst.imm == 2 || inst.imm == 4 : inst.imm >= 0 && inst.imm <= 15;
  const bool collector = mods_space(inst.mods) <= COLLECTOR_DISCARD && mods_order(inst.mods) < COLLECTOR_BUFFERS_B;
  return vector && offsets && operand && count && collector && !(ws && inst.flags & F_PAIR) ? mma : nullptr;
}
