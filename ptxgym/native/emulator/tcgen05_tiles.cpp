// tcgen05.mma on elements of 16 bits (kind::f16) and of 32 (kind::tf32): PTX ISA 9.7.16.10.9.1. The tiles of wgmma serve
// both; of tf32 half of their depth stays zero.
//
// Sums follow matrix_sum.hpp: studies of the fifth-generation tensor core (arXiv 2511.10909) find the rule of Hopper's
// for these types. Unlike wgmma's it has not been measured on hardware by this project.
#include <algorithm>
#include "operand_tile.hpp"
#include "tcgen05_mma.hpp"

namespace {

constexpr int TF32_K = 8;

// The 32 bytes of a row of A that tensor memory holds: in the lanes of D's rows (9.7.16.10.5), two 16-bit elements of K
// or one of 32 bits in a cell. Where columns of D lie in several parts of the lanes, each part needs a copy of the rows
// (CUTLASS, TmemAllocMode::Duplicated; FlashMLA says so of .ws).
void gather_cells(const Mma& op, Cta& cta, int first, int rows, int split, TileA& tile) {
  TensorMemory& memory = tensor_memory(cta);
  for (int row = 0; row < rows; ++row) {
    const int lane = accumulator_lane(op.path(), first + row, op.a_cells.lane, split);
    if (op.kind == KIND_TF32) {
      for (int k = 0; k < TILE_K; ++k) {
        Element e{0.0f, NO_EXPONENT};
        if (k < TF32_K) e = tf32_element(memory.cell(lane, op.a_cells.column + k));
        tile.set(row, k, op.form.negate_a ? -e.value : e.value, e.exponent);
      }
      continue;
    }
    for (int part = 0; part < TILE_K / CHUNK_ELEMENTS; ++part) {
      uint16_t raw[CHUNK_ELEMENTS];
      for (int i = 0; i < CHUNK_ELEMENTS; ++i) {
        const uint32_t cell = memory.cell(lane, op.a_cells.column + (part * CHUNK_ELEMENTS + i) / 2);
        raw[i] = static_cast<uint16_t>(i % 2 ? cell >> 16 : cell);
      }
      const Converted chunk(raw, op.form.a_type == 1, op.form.negate_a);
      for (int i = 0; i < CHUNK_ELEMENTS; ++i)
        tile.set(row, part * CHUNK_ELEMENTS + i, chunk.value[i], chunk.exponent[i]);
    }
  }
  tile.judge(TILE_M);
}

// Rows [first, first + rows) of an operand of tf32 become rows 0 … of a tile.
template <class Tile>
void gather_tf32(Cta& cta, const OperandBytes& bytes, bool negate, Tile& tile, int first, int rows) {
  constexpr int each = CHUNK_BYTES / sizeof(uint32_t);
  const int groups = static_cast<int>(bytes.operand.extent) / each;
  const bool mn_major = bytes.operand.mn_major;
  for (int index = 0; index < static_cast<int>(bytes.chunks.size()); ++index) {
    const int row = (mn_major ? index % groups * each : index / 2) - first;
    if (row < 0 || row >= rows) continue;
    uint32_t raw[each];
    std::memcpy(raw, cta.shared(bytes.chunks[static_cast<size_t>(index)]), sizeof raw);
    for (int i = 0; i < each; ++i) {
      const Element e = tf32_element(raw[i]);
      const int k = mn_major ? index / groups : index % 2 * each + i;
      tile.set(mn_major ? row + i : row, k, negate ? -e.value : e.value, e.exponent);
    }
  }
  for (int row = 0; row < rows; ++row)
    for (int k = TF32_K; k < TILE_K; ++k) tile.set(row, k, 0.0f, NO_EXPONENT);
  tile.judge(rows);
}

template <class Tile>
void gather_rows(const Mma& op, Cta& cta, const OperandBytes& bytes, bool negate, Tile& tile, int first, int rows) {
  if (op.kind == KIND_TF32) return gather_tf32(cta, bytes, negate, tile, first, rows);
  gather(cta, bytes, op.form.a_type == 1, negate, tile, first, rows);
}

// Rows [first, first + rows) of a CTA, eight columns and 32 elements at a time, in the order of wgmma_tile.hpp. An fp16
// element of D stands alone in the low half of its cell (9.7.16.10.4.1).
void multiply(const Mma& op, TensorMemory& memory, const Scratch& scratch, int part, int first, int rows, int split) {
  const DataPath layout = op.path();
  const bool fp16 = op.form.d_type == 0;
  const Update update{scratch, op.accumulate, fp16};
  const float factor = 1.0f / static_cast<float>(1 << op.scale);
  const int blocks = op.width() / 8, pieces = rows / 16 * 4;
  for (int block = 0; block < blocks; ++block) {
    for (int piece = 0; piece < pieces; ++piece) {
      const int warp_part = piece / 4, upper = piece / 2 % 2, parity = piece % 2;
      alignas(64) float sums[TILE_LANES] = {};
      uint32_t* cells[TILE_LANES];
      int lanes[TILE_LANES];
      for (int i = 0; i < TILE_LANES; ++i) {
        lanes[i] = accumulator_lane(layout, first + warp_part * 16 + upper * 8 + i / 4, op.d.lane, split);
        cells[i] = &memory.cell(lanes[i], op.d.column + block * 8 + i % 4 * 2 + parity);
        if (!op.accumulate) continue;
        sums[i] = fp16 ? half_to_float(static_cast<uint16_t>(*cells[i])) : bits_as<float>(*cells[i]);
        if (op.scale) sums[i] *= factor;
      }
      update(warp_part, upper, split * blocks + block, parity, sums);
      for (int i = 0; i < TILE_LANES; ++i) {
        if (!op.enabled(part, lanes[i])) continue;
        memory.write(lanes[i], op.d.column + block * 8 + i % 4 * 2 + parity,
                     fp16 ? float_to_half(sums[i]) : bits_as<uint32_t>(sums[i]));
      }
    }
  }
}

}  // namespace

void multiply_tiles(const Mma& op) {
  static thread_local Scratch scratch;
  const int columns = op.columns_of_b();
  for (int part = 0; part < op.group.count; ++part)
    gather_rows(op, *op.group.ctas[part], op.b, op.form.negate_b, scratch.b, -part * columns, (part + 1) * columns);
  for (int column = 0; column < op.form.columns; ++column) {
    for (int k = 0; op.zero_column(column) && k < TILE_K; ++k) scratch.b.set(column, k, 0.0f, NO_EXPONENT);
  }
  for (int part = 0; part < op.group.count; ++part) {
    Cta& owner = *op.group.ctas[part];
    for (int first = 0; first < op.rows(); first += TILE_M) {
      const int rows = std::min(TILE_M, op.rows() - first);
      if (!op.a_in_tmem) gather_rows(op, owner, op.a, op.form.negate_a, scratch.a, first, rows);
      for (int split = 0; split < op.splits(); ++split) {
        if (op.a_in_tmem) gather_cells(op, owner, first, rows, split, scratch.a);
        multiply(op, tensor_memory(owner), scratch, part, first, rows, split);
      }
    }
  }
}
