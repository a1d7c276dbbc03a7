// tcgen05.mma.kind::f16 (PTX ISA 9.7.16.10.9.1): issue by a thread, checks, and execution.
//
// A pair of CTAs (.cta_group::2) shares one product: each holds half the rows of A and D, and half the columns of B, at
// the same addresses (9.7.16.10.5; CUTLASS, mma_traits_sm100.hpp: the even CTA the first halves).
//
// Sums follow matrix_sum.hpp: studies of the fifth-generation tensor core (arXiv 2511.10909) find the rule of Hopper's
// for these types. Unlike wgmma's it has not been measured on hardware by this project.
#include <algorithm>
#include "operand_tile.hpp"
#include "tcgen05.hpp"

namespace {

constexpr int K = 16, A_COLUMNS = K / 2;  // 16-bit elements of A in tensor memory are packed by twos
constexpr int MASKS = 4;                  // of disabled lanes, per CTA

struct Mma : AsyncOp {
  int warp = 0;
  InstructionDescriptor form{};
  CtaGroup group{};
  TmemAddress d{}, a_cells{};
  bool a_in_tmem = false, accumulate = false;
  int scale = 0;  // D is multiplied by 2^-scale before
  uint32_t disabled[2 * MASKS] = {};
  OperandBytes a, b;  // the parts of one CTA

  void run(Cta&) override;

  int rows() const { return form.rows / group.count; }  // of one CTA
  int columns_of_b() const { return form.columns / group.count; }
  DataPath path() const { return data_path(form.rows, group.count == 2); }
  int halves() const { return path() == DataPath::Squares ? 2 : 1; }
  int width() const { return accumulator_columns(path(), form.columns); }  // columns of tensor memory

 private:
  // Masks of the even CTA come first: the ISA numbers lanes from the first bit on and says no more of a pair.
  bool enabled(int part, int lane) const { return !(disabled[part * MASKS + lane / 32] >> lane % 32 & 1); }
  void note_operand(Cta&, const Warp&, const OperandBytes&, const char* name) const;
  void gather_cells(Cta&, int first, int half, TileA&) const;
  void multiply(TensorMemory&, const Scratch&, int part, int first, int half) const;
  bool report_unwritten(Cta& owner, const Warp& issuer, int part) const;
  template <class Body>
  void for_cells(int part, Body body) const;
};

void Mma::note_operand(Cta& cta, const Warp& issuer, const OperandBytes& bytes, const char* name) const {
  check_operand_layout(cta, issuer, inst, bytes, name, "tcgen05.mma", "61-63");
  note_element_type(cta, issuer, inst, bytes, name, "tcgen05.mma", form.a_type == 1);
  mark_operand_read(cta, bytes, inst);
}

// Rows of A that tensor memory holds: in the lanes of D's rows, two elements of K in a cell (9.7.16.10.5). For Squares
// both halves of the lanes hold them, each for its own columns of D (CUTLASS, TmemAllocMode::Duplicated).
void Mma::gather_cells(Cta& cta, int first, int half, TileA& tile) const {
  TensorMemory& memory = tensor_memory(cta);
  for (int row = 0; row < TILE_M; ++row) {
    const int lane = accumulator_lane(path(), first + row, a_cells.lane, half);
    for (int part = 0; part < K / CHUNK_ELEMENTS; ++part) {
      uint16_t raw[CHUNK_ELEMENTS];
      for (int i = 0; i < CHUNK_ELEMENTS; ++i) {
        const uint32_t cell = memory.cell(lane, a_cells.column + (part * CHUNK_ELEMENTS + i) / 2);
        raw[i] = static_cast<uint16_t>(i % 2 ? cell >> 16 : cell);
      }
      const Converted chunk(raw, form.a_type == 1, form.negate_a);
      for (int i = 0; i < CHUNK_ELEMENTS; ++i)
        tile.set(row, part * CHUNK_ELEMENTS + i, chunk.value[i], chunk.exponent[i]);
    }
  }
  tile.judge(TILE_M);
}

// Rows [first, first + 64) of a CTA, eight columns and 32 elements at a time, in the order of wgmma_tile.hpp. An fp16
// element of D stands alone in the low half of its cell (9.7.16.10.4.1).
void Mma::multiply(TensorMemory& memory, const Scratch& scratch, int part, int first, int half) const {
  const Update update{scratch, accumulate};
  const DataPath layout = path();
  const bool fp16 = form.d_type == 0;
  const float factor = 1.0f / static_cast<float>(1 << scale);
  const int blocks = width() / 8;
  for (int block = 0; block < blocks; ++block) {
    for (int piece = 0; piece < 16; ++piece) {
      const int warp_part = piece / 4, upper = piece / 2 % 2, parity = piece % 2;
      alignas(64) float sums[TILE_LANES] = {};
      uint32_t* cells[TILE_LANES];
      int lanes[TILE_LANES];
      for (int i = 0; i < TILE_LANES; ++i) {
        lanes[i] = accumulator_lane(layout, first + warp_part * 16 + upper * 8 + i / 4, d.lane, half);
        cells[i] = &memory.cell(lanes[i], d.column + block * 8 + i % 4 * 2 + parity);
        if (!accumulate) continue;
        sums[i] = fp16 ? half_to_float(static_cast<uint16_t>(*cells[i])) : bits_as<float>(*cells[i]);
        if (scale) sums[i] *= factor;
      }
      update(warp_part, upper, half * blocks + block, parity, sums);
      for (int i = 0; i < TILE_LANES; ++i) {
        if (!enabled(part, lanes[i])) continue;
        memory.write(lanes[i], d.column + block * 8 + i % 4 * 2 + parity,
                     fp16 ? float_to_half(sums[i]) : bits_as<uint32_t>(sums[i]));
      }
    }
  }
}

// body(lane, column) for the cells of D in one CTA that are written.
template <class Body>
void Mma::for_cells(int part, Body body) const {
  for (int half = 0; half < halves(); ++half) {
    for (int row = 0; row < rows(); ++row) {
      const int lane = accumulator_lane(path(), row, d.lane, half);
      for (int column = 0; enabled(part, lane) && column < width(); ++column) body(lane, d.column + column);
    }
  }
}

bool Mma::report_unwritten(Cta& owner, const Warp& issuer, int part) const {
  const TensorMemory& memory = tensor_memory(owner);
  TmemAddress missing{-1, 0};
  if (accumulate) {
    for_cells(part, [&](int lane, int column) {
      if (missing.lane < 0 && !memory.written(lane, column)) missing = {lane, column};
    });
  }
  const char* name = "tcgen05.mma (D)";
  for (int half = 0; a_in_tmem && half < halves(); ++half) {
    for (int row = 0; row < rows(); ++row) {
      const int lane = accumulator_lane(path(), row, a_cells.lane, half);
      for (int column = a_cells.column; column < a_cells.column + A_COLUMNS; ++column) {
        if (missing.lane >= 0 || memory.written(lane, column)) continue;
        missing = {lane, column};
        name = "tcgen05.mma (A)";
      }
    }
  }
  if (missing.lane < 0) return false;
  report_unwritten_cells(owner, issuer, inst, missing.lane, missing.column, name);
  return true;
}

void Mma::run(Cta& cta) {
  static thread_local Scratch scratch;
  const Warp& issuer = cta.warps[static_cast<size_t>(warp)];
  if (group.count == 2) report_exited_peer(cta, issuer, inst, "tcgen05.mma");
  bool reported = false;
  for (int part = 0; part < group.count; ++part) {
    Cta& owner = *group.ctas[part];
    if (!a_in_tmem) note_operand(owner, issuer, a, "A");
    note_operand(owner, issuer, b, "B");
    reported = reported || report_unwritten(owner, issuer, part);
    if (cta.grid.zero_target_results) {
      TensorMemory& memory = tensor_memory(owner);
      for_cells(part, [&](int lane, int column) { memory.write(lane, column, 0); });
    }
  }
  if (cta.grid.zero_target_results) return;
  for (int part = 0, columns = columns_of_b(); part < group.count; ++part)
    gather(*group.ctas[part], b, form.b_type == 1, form.negate_b, scratch.b, -part * columns, (part + 1) * columns);
  for (int part = 0; part < group.count; ++part) {
    Cta& owner = *group.ctas[part];
    for (int first = 0; first < rows(); first += TILE_M) {
      if (!a_in_tmem) gather(owner, a, form.a_type == 1, form.negate_a, scratch.a, first, TILE_M);
      for (int half = 0; half < halves(); ++half) {
        if (a_in_tmem) gather_cells(owner, first, half, scratch.a);
        multiply(tensor_memory(owner), scratch, part, first, half);
      }
    }
  }
}

// ---- issue

bool place(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t bits, int extent, bool mn_major, const char* name,
           OperandBytes& bytes) {
  TensorDescriptor descriptor;
  if (!sound_descriptor(cta, warp, inst, lane, bits, name, descriptor)) return false;
  bytes.place({descriptor.matrix, static_cast<uint32_t>(extent), mn_major});
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

void note(Cta& cta, Warp& warp, int at, int lane, const Mma& op) {
  cta.shadow->async_begin(warp, at, Async::Tcgen05, lane, nullptr, 0);
  if (!op.a_in_tmem) cta.shadow->tcgen05_operand(warp, at, op.a.operand, "A");
  cta.shadow->tcgen05_operand(warp, at, op.b.operand, "B");
  const uint32_t lanes = op.path() == DataPath::Half ? 0x55u << op.d.lane / 16 : 0xFFu;
  const bool pair = op.group.count == 2;
  const uint32_t shape = static_cast<uint32_t>(pair) << 30 | static_cast<uint32_t>(op.form.rows) << 20 |
                         static_cast<uint32_t>(op.form.columns) << 10 | static_cast<uint32_t>(op.d.column);
  for (int part = 0; part < op.group.count; ++part) {
    Shadow& shadow = *op.group.ctas[part]->shadow;
    shadow.async_share(warp, Async::Tcgen05, lane);
    for (const OperandBytes* bytes : {&op.a, &op.b}) {
      if (bytes == &op.a && op.a_in_tmem) continue;
      for (const OperandBytes::Range& range : bytes->ranges)
        shadow.async_read(warp, at, Async::Tcgen05, range.address, range.bytes, nullptr);
    }
    if (op.a_in_tmem) shadow.tmem_access(warp, at, TmemUse::Read, lane, op.a_cells.column, A_COLUMNS, lanes);
    const TmemUse sums = op.accumulate ? TmemUse::Accumulate : TmemUse::Overwrite;
    shadow.tmem_access(warp, at, sums, lane, op.d.column, op.width(), lanes, shape);
  }
}

bool cells_allocated(Cta& cta, Warp& warp, const Inst& inst, int lane, const Mma& op) {
  for (int part = 0; part < op.group.count; ++part) {
    Cta& owner = *op.group.ctas[part];
    if (!columns_allocated(cta, warp, inst, lane, "tcgen05.mma (D)", owner, op.d.column, op.width())) return false;
    if (op.a_in_tmem &&
        !columns_allocated(cta, warp, inst, lane, "tcgen05.mma (A)", owner, op.a_cells.column, A_COLUMNS))
      return false;
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

bool build(Cta& cta, Warp& warp, const Inst& inst, int lane, Mma& op) {
  const int32_t* d_operands = cta.pool(inst.vec);
  const uint32_t d_bits = warp.reg<uint32_t>(d_operands[0])[lane] +
                          (inst.nvec2 ? static_cast<uint32_t>(cta.pool(inst.vec2)[0]) : 0);
  const uint32_t idesc = warp.reg<uint32_t>(inst.e)[lane];
  op.inst = cta.index_of(inst);
  op.warp = warp.id;
  op.group = group_of(cta, warp, inst, lane, "tcgen05.mma");
  if (!op.group.count) return false;
  op.form = decode_instruction_descriptor(idesc);
  if (const char* why = instruction_descriptor_fault(op.form, op.group.count == 2)) {
    cta.fault(warp, inst, lane, "tcgen05.instruction_descriptor",
              "the instruction descriptor 0x%08x (M %d, N %d) is none of kind::f16: %s", idesc, op.form.rows,
              op.form.columns, why);
    return false;
  }
  note_negation(cta, warp, inst, lane, op, idesc);
  op.d = TmemAddress::of(d_bits);
  op.accumulate = ((warp.pred(inst.c) >> lane & 1) != 0) != ((inst.flags & F_C_NOT) != 0);
  op.scale = static_cast<int>(inst.imm);
  for (int i = 1; i < inst.nvec; ++i) op.disabled[i - 1] = warp.reg<uint32_t>(d_operands[i])[lane];
  op.a_in_tmem = inst.stype == T_U32;
  if (!lanes_fit(cta, warp, inst, lane, op, op.d.lane, "D")) return false;
  if (op.a_in_tmem) {
    op.a_cells = TmemAddress::of(warp.reg<uint32_t>(inst.a)[lane] +
                                 (inst.nvec2 ? static_cast<uint32_t>(cta.pool(inst.vec2)[1]) : 0));
    if (op.form.mn_major_a) {
      cta.fault(warp, inst, lane, "tcgen05.instruction_descriptor",
                "bit 15 (transpose A) is set, but A lies in tensor memory, where it is always K-major");
      return false;
    }
    if (!lanes_fit(cta, warp, inst, lane, op, op.a_cells.lane, "A")) return false;
    if (op.a_cells.lane != op.d.lane) {
      cta.fault(warp, inst, lane, "tmem.lanes",
                "A begins at lane %d of tensor memory and D at lane %d: with M = 64 both must have the same alignment",
                op.a_cells.lane, op.d.lane);
      return false;
    }
  }
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
      cta.multiply_adds[at] += static_cast<uint64_t>(op->form.rows) * static_cast<uint64_t>(op->form.columns) * K;
    if (cta.shadow) note(cta, warp, at, lane, *op);
    cta.async.post(cta, std::move(op), tcgen05_queue(warp, lane));
  }
  return Step::Next;
}

}  // namespace

bool sound_descriptor(Cta& cta, Warp& warp, const Inst& inst, int lane, uint64_t bits, const char* name,
                      TensorDescriptor& descriptor) {
  descriptor = decode_tensor_descriptor(bits);
  const auto hex = static_cast<unsigned long long>(bits);
  if (!descriptor.swizzle_known) {
    cta.fault(warp, inst, lane, "descriptor.swizzle",
              "the descriptor of %s, 0x%llx, has %u in bits 61-63: 0 is no swizzle, 2 128B, 4 64B, 6 32B%s", name, hex,
              descriptor.swizzle_code,
              descriptor.swizzle_code == 1 ? " (1, 128B with atoms of 32 bytes, serves tf32 and is not emulated)" : "");
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
  if (inst.op != OP_TCGEN05_MMA) return nullptr;
  const int lane_masks = (inst.flags & F_PAIR ? 2 : 1) * MASKS;
  const bool masks = inst.nvec == 1 || inst.nvec == 1 + lane_masks, offsets = inst.nvec2 == 0 || inst.nvec2 == 2;
  const bool operand = inst.stype == T_U64 || inst.stype == T_U32;
  return masks && offsets && operand && inst.imm >= 0 && inst.imm <= 15 ? mma : nullptr;
}
