// tcgen05.mma.cta_group::1.kind::f16 (PTX ISA 9.7.16.10.9.1): issue by a thread, checks, and execution.
//
// Sums follow matrix_sum.hpp: studies of the fifth-generation tensor core (arXiv 2511.10909) find the rule of Hopper's
// for these types. Unlike wgmma's it has not been measured on hardware by this project.
#include <algorithm>
#include "operand_tile.hpp"
#include "tcgen05.hpp"

namespace {

constexpr int K = 16, A_COLUMNS = K / 2;  // 16-bit elements of A in tensor memory are packed by twos

struct Mma : AsyncOp {
  int warp = 0;
  InstructionDescriptor form{};
  TmemAddress d{}, a_cells{};
  bool a_in_tmem = false, accumulate = false;
  int scale = 0;  // D is multiplied by 2^-scale before
  uint32_t disabled[4] = {};
  OperandBytes a, b;

  void run(Cta&) override;

 private:
  int lane_of(int row) const { return accumulator_lane(form.rows, row, d.lane); }
  bool enabled(int lane) const { return !(disabled[lane / 32] >> lane % 32 & 1); }
  void note_operand(Cta&, const OperandBytes&, const char* name) const;
  void gather_cells(Cta&, int first, TileA&) const;
  void multiply(TensorMemory&, const Scratch&, int first) const;
  void report_unwritten(Cta&) const;
};

void Mma::note_operand(Cta& cta, const OperandBytes& bytes, const char* name) const {
  check_operand_layout(cta, cta.warps[static_cast<size_t>(warp)], inst, bytes, name, "tcgen05.mma", "61-63");
  note_element_type(cta, cta.warps[static_cast<size_t>(warp)], inst, bytes, name, "tcgen05.mma", form.a_type == 1);
  mark_operand_read(cta, bytes, inst);
}

// Rows of A that tensor memory holds: in the lanes of D's rows, two elements of K in a cell (9.7.16.10.5).
void Mma::gather_cells(Cta& cta, int first, TileA& tile) const {
  TensorMemory& memory = tensor_memory(cta);
  for (int row = 0; row < TILE_M; ++row) {
    const int lane = accumulator_lane(form.rows, first + row, a_cells.lane);
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

// Rows [first, first + 64), eight columns and 32 elements at a time, in the order of wgmma_tile.hpp. An fp16 element of
// D stands alone in the low half of its cell (9.7.16.10.4.1).
void Mma::multiply(TensorMemory& memory, const Scratch& scratch, int first) const {
  const Update update{scratch, accumulate};
  const bool half = form.d_type == 0;
  const float factor = 1.0f / static_cast<float>(1 << scale);
  for (int block = 0; block < form.columns / 8; ++block) {
    for (int part = 0; part < 16; ++part) {
      const int warp_part = part / 4, upper = part / 2 % 2, parity = part % 2;
      alignas(64) float sums[TILE_LANES] = {};
      uint32_t* cells[TILE_LANES];
      int lanes[TILE_LANES];
      for (int i = 0; i < TILE_LANES; ++i) {
        lanes[i] = lane_of(first + warp_part * 16 + upper * 8 + i / 4);
        cells[i] = &memory.cell(lanes[i], d.column + block * 8 + i % 4 * 2 + parity);
        if (!accumulate) continue;
        sums[i] = half ? half_to_float(static_cast<uint16_t>(*cells[i])) : bits_as<float>(*cells[i]);
        if (scale) sums[i] *= factor;
      }
      update(warp_part, upper, block, parity, sums);
      for (int i = 0; i < TILE_LANES; ++i) {
        if (!enabled(lanes[i])) continue;
        memory.write(lanes[i], d.column + block * 8 + i % 4 * 2 + parity,
                     half ? float_to_half(sums[i]) : bits_as<uint32_t>(sums[i]));
      }
    }
  }
}

void Mma::report_unwritten(Cta& cta) const {
  const TensorMemory& memory = tensor_memory(cta);
  const Warp& issuer = cta.warps[static_cast<size_t>(warp)];
  for (int row = 0; row < form.rows; ++row) {
    for (int column = 0; accumulate && column < form.columns; ++column) {
      if (memory.written(lane_of(row), d.column + column) || !enabled(lane_of(row))) continue;
      return report_unwritten_cells(cta, issuer, inst, lane_of(row), d.column + column, "tcgen05.mma (D)",
                                    Severity::Error);
    }
    const int lane = accumulator_lane(form.rows, row, a_cells.lane);
    for (int column = 0; a_in_tmem && column < A_COLUMNS; ++column) {
      if (memory.written(lane, a_cells.column + column)) continue;
      return report_unwritten_cells(cta, issuer, inst, lane, a_cells.column + column, "tcgen05.mma (A)",
                                    Severity::Error);
    }
  }
}

void Mma::run(Cta& cta) {
  static thread_local Scratch scratch;
  if (!a_in_tmem) note_operand(cta, a, "A");
  note_operand(cta, b, "B");
  report_unwritten(cta);
  TensorMemory& memory = tensor_memory(cta);
  if (cta.grid.zero_target_results) {
    for (int row = 0; row < form.rows; ++row)
      for (int column = 0; column < form.columns; ++column)
        if (enabled(lane_of(row))) memory.write(lane_of(row), d.column + column, 0);
    return;
  }
  gather(cta, b, form.b_type == 1, form.negate_b, scratch.b);
  for (int first = 0; first < form.rows; first += TILE_M) {
    if (a_in_tmem)
      gather_cells(cta, first, scratch.a);
    else
      gather(cta, a, form.a_type == 1, form.negate_a, scratch.a, first, TILE_M);
    multiply(memory, scratch, first);
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

// Lanes of D or of an A in tensor memory: M = 128 begins at lane 0, M = 64 at 0 or 16 (9.7.16.10.5).
bool lanes_fit(Cta& cta, Warp& warp, const Inst& inst, int lane, const InstructionDescriptor& form, int first,
               const char* name) {
  if (first == 0 || (first == 16 && form.rows == 64)) return true;
  cta.fault(warp, inst, lane, "tmem.lanes", "%s of a tcgen05.mma with M = %d begins at lane %d: it must be %s", name,
            form.rows, first, form.rows == 64 ? "0 or 16" : "0");
  return false;
}

void note(Shadow& shadow, Warp& warp, int at, int lane, const Mma& op) {
  shadow.async_begin(warp, at, Async::Tcgen05, lane, nullptr, 0);
  for (const OperandBytes* bytes : {&op.a, &op.b}) {
    if (bytes == &op.a && op.a_in_tmem) continue;
    const char* name = bytes == &op.a ? "A" : "B";
    shadow.tcgen05_operand(warp, at, bytes->operand, name);
    for (const OperandBytes::Range& range : bytes->ranges)
      shadow.async_read(warp, at, Async::Tcgen05, range.address, range.bytes, nullptr);
  }
  const uint32_t lanes = op.form.rows == 128 ? 0xFFu : 0x55u << op.d.lane / 16;
  if (op.a_in_tmem) shadow.tmem_access(warp, at, TmemUse::Read, lane, op.a_cells.column, A_COLUMNS, lanes);
  const uint32_t shape = static_cast<uint32_t>(op.form.rows) << 20 | static_cast<uint32_t>(op.form.columns) << 10 |
                         static_cast<uint32_t>(op.d.column);
  shadow.tmem_access(warp, at, TmemUse::Accumulate, lane, op.d.column, op.form.columns, lanes, shape);
}

bool build(Cta& cta, Warp& warp, const Inst& inst, int lane, Mma& op) {
  const int32_t* d_operands = cta.pool(inst.vec);
  const uint32_t d_bits = warp.reg<uint32_t>(d_operands[0])[lane] +
                          (inst.nvec2 ? static_cast<uint32_t>(cta.pool(inst.vec2)[0]) : 0);
  const uint32_t idesc = warp.reg<uint32_t>(inst.e)[lane];
  op.inst = cta.index_of(inst);
  op.warp = warp.id;
  op.form = decode_instruction_descriptor(idesc);
  if (const char* why = instruction_descriptor_fault(op.form)) {
    cta.fault(warp, inst, lane, "tcgen05.instruction_descriptor",
              "the instruction descriptor 0x%08x (M %d, N %d) is none of kind::f16: %s", idesc, op.form.rows,
              op.form.columns, why);
    return false;
  }
  op.d = TmemAddress::of(d_bits);
  op.accumulate = ((warp.pred(inst.c) >> lane & 1) != 0) != ((inst.flags & F_C_NOT) != 0);
  op.scale = static_cast<int>(inst.imm);
  for (int i = 1; i < inst.nvec; ++i) op.disabled[i - 1] = warp.reg<uint32_t>(d_operands[i])[lane];
  op.a_in_tmem = inst.stype == T_U32;
  if (!lanes_fit(cta, warp, inst, lane, op.form, op.d.lane, "D")) return false;
  if (!columns_allocated(cta, warp, inst, lane, "tcgen05.mma (D)", op.d.column, op.form.columns)) return false;
  if (op.a_in_tmem) {
    op.a_cells = TmemAddress::of(warp.reg<uint32_t>(inst.a)[lane] +
                                 (inst.nvec2 ? static_cast<uint32_t>(cta.pool(inst.vec2)[1]) : 0));
    if (op.form.mn_major_a) {
      cta.fault(warp, inst, lane, "tcgen05.instruction_descriptor",
                "bit 15 (transpose A) is set, but A lies in tensor memory, where it is always K-major");
      return false;
    }
    if (!lanes_fit(cta, warp, inst, lane, op.form, op.a_cells.lane, "A")) return false;
    if (op.a_cells.lane != op.d.lane) {
      cta.fault(warp, inst, lane, "tmem.lanes",
                "A begins at lane %d of tensor memory and D at lane %d: with M = 64 both must have the same alignment",
                op.a_cells.lane, op.d.lane);
      return false;
    }
    if (!columns_allocated(cta, warp, inst, lane, "tcgen05.mma (A)", op.a_cells.column, A_COLUMNS)) return false;
  } else if (!place(cta, warp, inst, lane, warp.reg<uint64_t>(inst.a)[lane], op.form.rows, op.form.mn_major_a, "A",
                    op.a)) {
    return false;
  }
  return place(cta, warp, inst, lane, warp.reg<uint64_t>(inst.b)[lane], op.form.columns, op.form.mn_major_b, "B", op.b);
}

// "A single thread issuing the tcgen05.mma will result in the initiation of the whole operation": every lane that
// executes it issues one of its own.
Step mma(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  const int at = cta.index_of(inst);
  for (uint32_t rest = mask; rest; rest &= rest - 1) {
    const int lane = first_lane(rest);
    auto op = std::make_unique<Mma>();
    if (!build(cta, warp, inst, lane, *op)) return Step::Fault;
    if (cta.multiply_adds)
      cta.multiply_adds[at] += static_cast<uint64_t>(op->form.rows) * static_cast<uint64_t>(op->form.columns) * K;
    if (cta.shadow) note(*cta.shadow, warp, at, lane, *op);
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
  const bool masks = inst.nvec == 1 || inst.nvec == 5, offsets = inst.nvec2 == 0 || inst.nvec2 == 2;
  const bool operand = inst.stype == T_U64 || inst.stype == T_U32;
  return masks && offsets && operand && inst.imm >= 0 && inst.imm <= 15 ? mma : nullptr;
}
