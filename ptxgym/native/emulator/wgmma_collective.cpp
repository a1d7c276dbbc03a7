// Execution of a collective: gather the operands, multiply, write the accumulators of all four warps.
#include "wgmma_collective.hpp"
#include <algorithm>
#include "tensor.hpp"
#include "wgmma_tile.hpp"

void OperandBytes::place(const Operand& placed) {
  operand = placed;
  chunks.resize(operand.chunks());
  uint32_t low = UINT32_MAX, high = 0;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    chunks[i] = operand.chunk_address(i);
    low = std::min(low, chunks[i]);
    high = std::max(high, chunks[i]);
  }
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

struct Scratch {
  PanelA panel_a;
  PanelB panel_b;
  SpreadA spread_a;
  SpreadB spread_b;
};

float element(uint16_t bits, bool bf16) { return bf16 ? bf16_to_float(bits) : half_to_float(bits); }

// Reads an operand from shared memory into rows of fp32.
void gather(Cta& cta, const OperandBytes& bytes, bool bf16, bool negate, float (*rows)[TILE_K]) {
  constexpr uint32_t per_chunk = 8;
  const uint32_t groups = bytes.operand.extent / per_chunk;
  const float sign = negate ? -1.0f : 1.0f;
  for (uint32_t index = 0; index < bytes.chunks.size(); ++index) {
    uint16_t raw[per_chunk];
    std::memcpy(raw, cta.shared(bytes.chunks[index]), sizeof raw);
    if (!bytes.operand.mn_major) {
      float* to = rows[index / 2] + index % 2 * per_chunk;
      for (uint32_t i = 0; i < per_chunk; ++i) to[i] = sign * element(raw[i], bf16);
    } else {
      const uint32_t k = index / groups, row = index % groups * per_chunk;
      for (uint32_t i = 0; i < per_chunk; ++i) rows[row + i][k] = sign * element(raw[i], bf16);
    }
  }
}

// Reads A from registers: 16-bit element e (low to high over four registers) of lane l in warp w is row 16w + l / 4 + 8 (e / 2 % 2),
// column 2 (l % 4) + e % 2 + 8 (e / 4) (PTX ISA 9.7.15.5.1.1.1).
void gather_registers(Cta& cta, const Collective& collective, bool bf16, bool negate, float (*rows)[TILE_K]) {
  const Inst& inst = *collective.form;
  const float sign = negate ? -1.0f : 1.0f;
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int r = 0; r < 4; ++r) {
      const uint32_t* lanes = warp.reg<uint32_t>(cta.pool(inst.vec2)[r]);
      for (int lane = 0; lane < LANES; ++lane) {
        float* row = rows[w * 16 + lane / 4 + 8 * (r % 2)] + lane % 4 * 2 + 8 * (r / 2);
        row[0] = sign * element(static_cast<uint16_t>(lanes[lane]), bf16);
        row[1] = sign * element(static_cast<uint16_t>(lanes[lane] >> 16), bf16);
      }
    }
  }
}

void add_single(float* accumulator, const float* sum, bool accumulate) {
  for (int lane = 0; lane < LANES; ++lane) accumulator[lane] = accumulate ? accumulator[lane] + sum[lane] : sum[lane];
}

void add_half(uint32_t* accumulator, const float (*sums)[TILE_LANES], bool accumulate) {
  for (int lane = 0; lane < LANES; ++lane) {
    float low = sums[0][lane], high = sums[1][lane];
    if (accumulate) {
      low += half_to_float(static_cast<uint16_t>(accumulator[lane]));
      high += half_to_float(static_cast<uint16_t>(accumulator[lane] >> 16));
    }
    accumulator[lane] = float_to_half(low) | static_cast<uint32_t>(float_to_half(high)) << 16;
  }
}

template <int Blocks>
void multiply_blocks(Cta& cta, const Collective& collective, const Scratch& scratch, int first) {
  const Inst& inst = *collective.form;
  const int32_t* registers = cta.pool(inst.vec);
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int half = 0; half < 2; ++half) {
      alignas(64) float sums[Blocks][2][TILE_LANES];
      multiply<Blocks>(scratch.spread_a.value[w][half], &scratch.spread_b.value[first], sums);
      for (int block = 0; block < Blocks; ++block) {
        const int column_block = first + block;
        if (inst.type == T_F16) {
          add_half(warp.reg<uint32_t>(registers[column_block * 2 + half]), sums[block], collective.accumulate);
          continue;
        }
        for (int parity = 0; parity < 2; ++parity) {
          float* accumulator = warp.reg<float>(registers[column_block * 4 + half * 2 + parity]);
          add_single(accumulator, sums[block][parity], collective.accumulate);
        }
      }
    }
  }
}

void clear_accumulators(Cta& cta, const Collective& collective) {
  const Inst& inst = *collective.form;
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int i = 0; i < inst.nvec; ++i) std::memset(warp.reg<uint32_t>(cta.pool(inst.vec)[i]), 0, LANES * sizeof(uint32_t));
  }
}

}  // namespace

// Bytes that a tensor copy wrote with one swizzle and that are still as it left them, read with another.
void Collective::check_layout(Cta& cta, const OperandBytes& bytes, const char* name) const {
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
        cta.findings.add(cta, &cta.warps[static_cast<size_t>(group * 4)], -1, "descriptor.swizzle_mismatch", Severity::Error, inst, line.inst);
    if (finding) {
      finding->address = chunk;
      finding->say("the descriptor of %s says %s, but the tensor copy that wrote shared address 0x%x used %s", name,
                   swizzle_name(bytes.operand.descriptor.swizzle), chunk, swizzle_name(line.swizzle));
      finding->party(0, "wgmma", "reads %s with %s", name, swizzle_name(bytes.operand.descriptor.swizzle));
      finding->party(1, "tensor copy", "wrote the bytes with %s", swizzle_name(line.swizzle));
      finding->mend("give bits 62-63 of the descriptor and the tensor map the same swizzle");
    }
    return;
  }
}

void Collective::run(Cta& cta) {
  static thread_local Scratch scratch;
  const bool bf16 = form->stype == T_BF16;
  if (!a_in_registers()) check_layout(cta, a, "A");
  check_layout(cta, b, "B");
  if (cta.grid.zero_target_results) {
    clear_accumulators(cta, *this);
    return;
  }
  if (a_in_registers()) {
    gather_registers(cta, *this, bf16, form->flags & F_NEG_A, scratch.panel_a.value);
  } else {
    gather(cta, a, bf16, form->flags & F_NEG_A, scratch.panel_a.value);
  }
  gather(cta, b, bf16, form->flags & F_NEG_B, scratch.panel_b.value);
  scratch.spread_a.fill(scratch.panel_a);
  scratch.spread_b.fill(scratch.panel_b, columns());
  const int blocks = columns() / 8;
  int first = 0;
  for (; first + BLOCKS_AT_ONCE <= blocks; first += BLOCKS_AT_ONCE) multiply_blocks<BLOCKS_AT_ONCE>(cta, *this, scratch, first);
  for (; first < blocks; ++first) multiply_blocks<1>(cta, *this, scratch, first);
}
