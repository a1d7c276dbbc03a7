// Tensor memory of one CTA (PTX ISA 9.7.16.1): 128 lanes × 512 columns of 32-bit cells, allocated by columns.
//
// Addresses are 32 bits wide, lane << 16 | column (9.7.16.1.1). Every cell knows whether anything has written it, every
// column which allocation it belongs to. A CTA has the whole tensor memory of its SM to itself here: what other resident
// CTAs hold is not modelled.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>
#include "flags.hpp"

constexpr int TMEM_LANES = 128, TMEM_COLUMNS = 512, TMEM_UNIT = 32;  // columns are allocated in multiples of the unit
constexpr uint32_t TMEM_POISON = 0xFFFDFFFB;                         // NaN in fp32, bf16 and fp16

struct TmemAddress {
  int lane, column;
  static constexpr TmemAddress of(uint32_t bits) {
    return {static_cast<int>(bits >> 16), static_cast<int>(bits & 0xFFFF)};
  }
};

class TensorMemory {
 public:
  struct Allocation {
    int column, columns;
    int inst;  // of the tcgen05.alloc
    int warp;
    bool live;
  };

  TensorMemory();
  uint32_t& cell(int lane, int column) { return cells_[index(lane, column)]; }
  uint32_t cell(int lane, int column) const { return cells_[index(lane, column)]; }
  bool written(int lane, int column) const { return written_[index(lane, column)] != 0; }
  void write(int lane, int column, uint32_t value) {
    cells_[index(lane, column)] = value;
    written_[index(lane, column)] = 1;
  }

  // First free columns that are enough, or -1.
  int allocate(int columns, int inst, int warp);
  // The live allocation that begins at `column`, or nullptr.
  Allocation* allocation_at(int column);
  void release(Allocation&);
  // First column of [column, column + count) that no live allocation holds, or -1.
  int unallocated(int column, int count) const;
  const std::vector<Allocation>& allocations() const { return allocations_; }

  int relinquished = -1;  // instruction that gave up the right to allocate
  bool paired = false;    // allocated with .cta_group::2

 private:
  static constexpr size_t index(int lane, int column) {
    return static_cast<size_t>(lane) * TMEM_COLUMNS + static_cast<size_t>(column);
  }
  std::vector<uint32_t> cells_;
  std::vector<uint8_t> written_;
  std::array<int, TMEM_COLUMNS> owner_{};  // index into allocations_ + 1
  std::vector<Allocation> allocations_;
};

// ---- where registers of tcgen05.ld and tcgen05.st lie (PTX ISA 9.7.16.2.3.1)

constexpr int tmem_shape_lanes(uint8_t shape) { return shape == TMEM_32X32B ? 32 : 16; }
// Registers of one repetition, and the 32-bit columns that they cover.
constexpr int tmem_shape_registers(uint8_t shape) { return shape == TMEM_16X256B ? 4 : shape == TMEM_16X128B ? 2 : 1; }
constexpr int tmem_shape_columns(uint8_t shape) {
  return shape == TMEM_16X256B ? 8 : shape == TMEM_16X128B ? 4 : shape == TMEM_16X64B ? 2 : 1;
}

// Lane (relative) and 32-bit element that register `reg` of thread `thread` holds. The ISA gives pictures only; CUTLASS
// (copy_traits_sm100.hpp) and TVM (tcgen05.ld / tcgen05.st) state the same formulas. Both halves of 16x32bx2 hold the
// same 16 lanes; threads 16 … 31 see the second access.
struct TmemElement {
  int lane, element;
};
constexpr TmemElement tmem_element(uint8_t shape, int reg, int thread) {
  switch (shape) {
    case TMEM_16X64B: return {thread / 4 + 8 * (thread % 2), 2 * reg + thread / 2 % 2};
    case TMEM_16X128B: return {thread / 4 + 8 * (reg % 2), 4 * (reg / 2) + thread % 4};
    case TMEM_16X256B: return {thread / 4 + 8 * (reg / 2 % 2), 8 * (reg / 4) + 2 * (thread % 4) + reg % 2};
    case TMEM_16X32BX2: return {thread % 16, reg};
    default: return {thread, reg};
  }
}

// ---- accumulators (PTX ISA 9.7.16.10.5): where the part of D lies that one CTA holds, by M, cta_group and .ws. The ISA
// has pictures only; CUTLASS states them (tmem_frg and tmem_frg_ws of mma_traits_sm100_frag.hpp).
enum class DataPath : uint8_t {
  Full,      // 4x1, layouts D (M = 128, one CTA) and A (M = 256, a pair: 128 rows each): row r in lane r
  Half,      // 4x1 with half of the lanes, layout F (M = 64, one CTA): 16 lanes of each quarter, the lower or the upper
             // ones as the address says
  Squares,   // 2x2, layouts B (M = 128, a pair: 64 rows each) and E (M = 64, .ws): lanes 0-63 hold the first half of the
             // columns, 64-127 the second, of the same rows
  Quarters,  // 1x4, layout G (M = 32, .ws): each quarter of the lanes holds a quarter of the columns of all rows
};

constexpr DataPath data_path(int rows, bool pair, bool ws) {
  if (ws) return rows == 32 ? DataPath::Quarters : rows == 64 ? DataPath::Squares : DataPath::Full;
  return pair ? (rows == 256 ? DataPath::Full : DataPath::Squares) : rows == 64 ? DataPath::Half : DataPath::Full;
}

// Parts of the columns that lie in different lanes.
constexpr int accumulator_splits(DataPath path) {
  return path == DataPath::Squares ? 2 : path == DataPath::Quarters ? 4 : 1;
}
// `columns` is the N of the whole product.
constexpr int accumulator_columns(DataPath path, int columns) { return columns / accumulator_splits(path); }
constexpr int accumulator_lane(DataPath path, int row, int first_lane, int split) {
  if (path == DataPath::Half) return first_lane + row / 16 * 32 + row % 16;
  return row + TMEM_LANES / accumulator_splits(path) * split;
}
