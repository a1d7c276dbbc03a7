// Elements of an operand that lies in shared memory, gathered into the tiles of wgmma_tile.hpp.
#pragma once
#include "core.hpp"
#include "wgmma_collective.hpp"
#include "wgmma_tile.hpp"

constexpr int CHUNK_ELEMENTS = 8;

// Eight elements of a chunk; loops of fixed length, so that they vectorise.
struct Converted {
  float value[CHUNK_ELEMENTS];
  int16_t exponent[CHUNK_ELEMENTS];

  Converted(const uint16_t* raw, bool bf16, bool negate) {
    const uint16_t sign = negate ? 0x8000 : 0;
    for (int i = 0; i < CHUNK_ELEMENTS; ++i) {
      const uint16_t bits = raw[i] ^ sign;
      value[i] = bf16 ? bf16_to_float(bits) : half_to_float(bits);
    }
    for (int i = 0; i < CHUNK_ELEMENTS; ++i)
      exponent[i] = bf16 ? exponent_of<8, 7>(raw[i]) : exponent_of<5, 10>(raw[i]);
  }
};

struct Scratch {
  TileA a;
  TileB b;
};

// Rows [first, first + rows) of an operand become rows 0 … of a tile.
template <class Tile>
void gather(Cta& cta, const OperandBytes& bytes, bool bf16, bool negate, Tile& tile, int first, int rows) {
  const int groups = static_cast<int>(bytes.operand.extent) / CHUNK_ELEMENTS;
  for (int index = 0; index < static_cast<int>(bytes.chunks.size()); ++index) {
    const int row = (bytes.operand.mn_major ? index % groups * CHUNK_ELEMENTS : index / 2) - first;
    if (row < 0 || row >= rows) continue;
    uint16_t raw[CHUNK_ELEMENTS];
    std::memcpy(raw, cta.shared(bytes.chunks[static_cast<size_t>(index)]), sizeof raw);
    const Converted chunk(raw, bf16, negate);
    if (bytes.operand.mn_major) {
      const int k = index / groups;
      for (int i = 0; i < CHUNK_ELEMENTS; ++i) tile.set(row + i, k, chunk.value[i], chunk.exponent[i]);
    } else {
      const int k = index % 2 * CHUNK_ELEMENTS;
      for (int i = 0; i < CHUNK_ELEMENTS; ++i) tile.set(row, k + i, chunk.value[i], chunk.exponent[i]);
    }
  }
  tile.judge(rows);
}
template <class Tile>
void gather(Cta& cta, const OperandBytes& bytes, bool bf16, bool negate, Tile& tile) {
  gather(cta, bytes, bf16, negate, tile, 0, static_cast<int>(bytes.operand.extent));
}

// One accumulator register of one warp as fp32, updated in place. `to_half`: the caller rounds to fp16.
struct Update {
  const Scratch& scratch;
  bool accumulate, to_half;

  void operator()(int warp, int half, int block, int parity, float* lanes) const {
    const TileA& a = scratch.a;
    const TileB& b = scratch.b;
    const int at_a = TileA::at(warp, half), at_b = TileB::at(block, parity);
    if (a.tame && b.tame &&
        accumulate_tame(a.value + at_a, a.exponent + at_a, b.value + at_b, b.exponent + at_b, lanes, accumulate,
                        to_half)) {
      return;
    }
    for (int lane = 0; lane < LANES; ++lane) {
      const int row = warp * 16 + half * 8 + lane / 4, column = block * 8 + lane % 4 * 2 + parity;
      lanes[lane] = tensor_core_sum(
          TILE_K, [&](int k) { return a.get(row, k); }, [&](int k) { return b.get(column, k); }, lanes[lane],
          accumulate, to_half);
    }
  }
};
