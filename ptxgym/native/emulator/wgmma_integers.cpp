// wgmma on u8 and s8 with s32 accumulators, K = 32, K-major (PTX ISA 9.7.15.5.2): exact, wrapped or, with .satfinite,
// limited once. Operands lie in memory and registers as those of e4m3 do (wgmma_elements.cpp).
#include <algorithm>
#include <limits>

#include "wgmma_collective.hpp"

namespace {

constexpr int K = 32, ROWS_A = 64, MOST_COLUMNS = 256;

int16_t integer(uint8_t byte, bool is_signed) { return is_signed ? static_cast<int8_t>(byte) : byte; }

void gather_shared(Cta& cta, const OperandBytes& bytes, bool is_signed, int16_t (*rows)[K]) {
  for (size_t index = 0; index < bytes.chunks.size(); ++index) {
    const uint8_t* from = cta.shared(bytes.chunks[index]);
    int16_t* to = rows[index / 2] + index % 2 * CHUNK_BYTES;
    for (uint32_t i = 0; i < CHUNK_BYTES; ++i) to[i] = integer(from[i], is_signed);
  }
}

// Register r of lane l in warp w: four elements of row 16 w + l / 4 + 8 (r % 2), from column 4 (l % 4) + 16 (r / 2) on.
void gather_registers(Cta& cta, const Collective& collective, bool is_signed, int16_t (*rows)[K]) {
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int r = 0; r < 4; ++r) {
      const uint32_t* lanes = warp.reg<uint32_t>(cta.pool(collective.form->vec2)[r]);
      for (int lane = 0; lane < LANES; ++lane) {
        int16_t* to = rows[w * 16 + lane / 4 + 8 * (r % 2)] + lane % 4 * 4 + 16 * (r / 2);
        for (int i = 0; i < 4; ++i) to[i] = integer(static_cast<uint8_t>(lanes[lane] >> 8 * i), is_signed);
      }
    }
  }
}

int32_t product(const int16_t* a, const int16_t* b) {
  int32_t sum = 0;  // 32 products below 2^16
  for (int k = 0; k < K; ++k) sum += static_cast<int32_t>(a[k]) * b[k];
  return sum;
}

}  // namespace

void multiply_integers(Cta& cta, const Collective& collective) {
  static thread_local int16_t a[ROWS_A][K], b[MOST_COLUMNS][K];
  const Inst& inst = *collective.form;
  if (collective.a_in_registers())
    gather_registers(cta, collective, inst.stype == T_S8, a);
  else
    gather_shared(cta, collective.a, inst.stype == T_S8, a);
  gather_shared(cta, collective.b, inst.flags & F_B_SIGNED, b);
  const bool limit = inst.flags & F_SAT;
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int j = 0; j < inst.nvec; ++j) {  // block of columns j / 4, half of the rows j / 2 % 2, parity j % 2
      uint32_t* lanes = warp.reg<uint32_t>(cta.pool(inst.vec)[j]);
      for (int lane = 0; lane < LANES; ++lane) {
        const int row = 16 * w + 8 * (j / 2 % 2) + lane / 4, column = j / 4 * 8 + lane % 4 * 2 + j % 2;
        int64_t sum = product(a[row], b[column]);
        if (collective.accumulate) sum += static_cast<int32_t>(lanes[lane]);
        if (limit)
          sum = std::clamp<int64_t>(sum, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
        lanes[lane] = static_cast<uint32_t>(sum);
      }
    }
  }
}
