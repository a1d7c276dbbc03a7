// Execution of a collective: gather the operands, multiply, write the accumulators of all four warps.
#include "wgmma_collective.hpp"
#include <algorithm>
#include "operand_tile.hpp"
#include "tensor.hpp"

void OperandBytes::place(const Operand& placed) {
  operand = placed;
  std::vector<uint32_t> addresses(operand.chunks());
  for (uint32_t i = 0; i < addresses.size(); ++i) addresses[i] = operand.chunk_address(i);
  assign(std::move(addresses));
}

void OperandBytes::assign(std::vector<uint32_t> addresses) {
  chunks = std::move(addresses);
  const auto [lowest, highest] = std::minmax_element(chunks.begin(), chunks.end());
  const uint32_t low = *lowest, high = *highest;
  // A bit per chunk sorts and merges them.
  const uint32_t count = (high - low) / CHUNK_BYTES + 1;
  static thread_local std::vector<uint64_t> bits;
  bits.assign(count / 64 + 1, 0);
  for (uint32_t address : chunks) {
    const uint32_t bit = (address - low) / CHUNK_BYTES;
    bits[bit / 64] |= 1ull << bit % 64;
  }
  ranges.clear();
  for (uint32_t word = 0; word < bits.size(); ++word) {
    for (uint64_t rest = bits[word]; rest; rest &= rest - 1) {
      const uint32_t address = low + (word * 64 + static_cast<uint32_t>(__builtin_ctzll(rest))) * CHUNK_BYTES;
      if (!ranges.empty() && ranges.back().address + ranges.back().bytes == address) {
        ranges.back().bytes += CHUNK_BYTES;
      } else {
        ranges.push_back({address, CHUNK_BYTES});
      }
    }
  }
}

namespace {

// Reads A from registers: 16-bit element e (low to high over four registers) of lane l in warp w is row 16w + l / 4 + 8
// (e / 2 % 2), column 2 (l % 4) + e % 2 + 8 (e / 4) (PTX ISA 9.7.15.5.1.1.1).
void gather_registers(Cta& cta, const Collective& collective, bool bf16, bool negate, TileA& tile) {
  const Inst& inst = *collective.form;
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int r = 0; r < 4; ++r) {
      const uint32_t* lanes = warp.reg<uint32_t>(cta.pool(inst.vec2)[r]);
      for (int lane = 0; lane < LANES; lane += CHUNK_ELEMENTS / 2) {  // the lanes of one row
        uint16_t raw[CHUNK_ELEMENTS];
        std::memcpy(raw, lanes + lane, sizeof raw);
        const Converted chunk(raw, bf16, negate);
        const int row = w * 16 + lane / 4 + 8 * (r % 2), k = 8 * (r / 2);
        for (int i = 0; i < CHUNK_ELEMENTS; ++i) tile.set(row, k + i, chunk.value[i], chunk.exponent[i]);
      }
    }
  }
  tile.judge(TILE_M);
}

// Two columns of fp16 share a register.
void update_halves(const Update& update, int warp, int half, int block, uint32_t* lanes) {
  alignas(64) float columns[2][LANES];
  for (int lane = 0; lane < LANES; ++lane) {
    columns[0][lane] = half_to_float(static_cast<uint16_t>(lanes[lane]));
    columns[1][lane] = half_to_float(static_cast<uint16_t>(lanes[lane] >> 16));
  }
  for (int parity = 0; parity < 2; ++parity) update(warp, half, block, parity, columns[parity]);
  for (int lane = 0; lane < LANES; ++lane) {
    lanes[lane] = float_to_half(columns[0][lane]) | static_cast<uint32_t>(float_to_half(columns[1][lane])) << 16;
  }
}

void multiply(Cta& cta, const Collective& collective, const Scratch& scratch) {
  const Inst& inst = *collective.form;
  const int32_t* registers = cta.pool(inst.vec);
  const Update update{scratch, collective.accumulate, inst.type == T_F16};
  for (int block = 0; block < collective.columns() / 8; ++block) {
    for (int w = 0; w < 4; ++w) {
      Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
      for (int half = 0; half < 2; ++half) {
        if (inst.type == T_F16) {
          update_halves(update, w, half, block, warp.reg<uint32_t>(registers[block * 2 + half]));
          continue;
        }
        for (int parity = 0; parity < 2; ++parity) {
          update(w, half, block, parity, warp.reg<float>(registers[block * 4 + half * 2 + parity]));
        }
      }
    }
  }
}

void clear_accumulators(Cta& cta, const Collective& collective) {
  const Inst& inst = *collective.form;
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int i = 0; i < inst.nvec; ++i)
      std::memset(warp.reg<uint32_t>(cta.pool(inst.vec)[i]), 0, LANES * sizeof(uint32_t));
  }
}

}  // namespace

// Bytes that a tensor copy wrote with one swizzle and that are still as it left them, read with another.
void check_operand_layout(Cta& cta, const Warp& warp, int inst, const OperandBytes& bytes, const char* name,
                          const char* reader, const char* swizzle_bits) {
  const std::vector<LineLayout>& lines = tensor_state(cta).lines;
  uint32_t last = UINT32_MAX;
  for (uint32_t chunk : bytes.chunks) {
    const uint32_t index = chunk / LINE_BYTES;
    if (index == last) continue;
    last = index;
    const LineLayout& line = lines[index];
    if (line.inst < 0 || line.swizzle == bytes.operand.descriptor.swizzle) continue;
    if (line_hash(cta.shared(index * LINE_BYTES)) != line.hash) continue;
    FindingRecord* finding =
        cta.findings.add(cta, &warp, -1, "descriptor.swizzle_mismatch", Severity::Error, inst, line.inst);
    if (finding) {
      finding->address = chunk;
      finding->say("the descriptor of %s says %s, but the tensor copy that wrote shared address 0x%x used %s", name,
                   swizzle_name(bytes.operand.descriptor.swizzle), chunk, swizzle_name(line.swizzle));
      finding->party(0, reader, "reads %s with %s", name, swizzle_name(bytes.operand.descriptor.swizzle));
      finding->party(1, "tensor copy", "wrote the bytes with %s", swizzle_name(line.swizzle));
      finding->mend("give bits %s of the descriptor and the tensor map the same swizzle", swizzle_bits);
    }
    return;
  }
}

void note_element_type(Cta& cta, const Warp& warp, int inst, const OperandBytes& bytes, const char* name,
                       const char* reader, bool bf16) {
  const uint32_t index = bytes.chunks.front() / LINE_BYTES;
  const LineLayout& line = tensor_state(cta).lines[index];
  if (line.inst < 0 || line.type != (bf16 ? TensorType::F16 : TensorType::BF16)) return;
  if (line_hash(cta.shared(index * LINE_BYTES)) != line.hash) return;
  FindingRecord* finding =
      cta.findings.add(cta, &warp, -1, "descriptor.element_type", Severity::Note, inst, line.inst);
  if (!finding) return;
  const char* read = bf16 ? "bf16" : "f16";
  const char* brought = bf16 ? "FLOAT16" : "BFLOAT16";
  finding->say("%s reads %s as %s, but the tensor map through which it came says %s", reader, name, read, brought);
  finding->party(0, reader, "reads %s as %s", name, read);
  finding->party(1, "tensor copy", "brought %s", brought);
  finding->mend("the types of the instruction (or its descriptor) must be those of the data: they are not converted");
}

void mark_operand_read(Cta& cta, const OperandBytes& bytes, int inst) {
  std::vector<LineLayout>& lines = tensor_state(cta).lines;
  for (const uint32_t chunk : bytes.chunks) {
    LineLayout& line = lines[chunk / LINE_BYTES];
    line.read |= static_cast<uint8_t>(1u << chunk % LINE_BYTES / CHUNK_BYTES);
    line.reader = inst;
  }
}

void Collective::run(Cta& cta) {
  static thread_local Scratch scratch;
  const bool bf16 = form->stype == T_BF16;
  for (const OperandBytes* bytes : {&a, &b}) {
    if (bytes == &a && a_in_registers()) continue;
    check_operand_layout(cta, cta.warps[static_cast<size_t>(group * 4)], inst, *bytes, bytes == &a ? "A" : "B", "wgmma",
                         "62-63");
    if (is_half(form->stype))
      note_element_type(cta, cta.warps[static_cast<size_t>(group * 4)], inst, *bytes, bytes == &a ? "A" : "B", "wgmma",
                        bf16);
    mark_operand_read(cta, *bytes, inst);
  }
  if (cta.grid.zero_target_results) {
    clear_accumulators(cta, *this);
    return;
  }
  if (form->type == T_S32) return multiply_integers(cta, *this);
  if (!is_half(form->stype)) return multiply_elements(cta, *this);
  if (a_in_registers()) {
    gather_registers(cta, *this, bf16, form->flags & F_NEG_A, scratch.a);
  } else {
    gather(cta, a, bf16, form->flags & F_NEG_A, scratch.a);
  }
  gather(cta, b, bf16, form->flags & F_NEG_B, scratch.b);
  multiply(cta, *this, scratch);
}
