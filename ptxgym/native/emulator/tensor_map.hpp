// The emulator's own content of the opaque 128-byte CUtensorMap, and the geometry of a tile-mode box (PTX
// ISA 5.5.3, 5.5.7).
//
// The launcher writes a map wherever the plan holds one (a parameter, a struct, an upload); kernels may copy the 128
// bytes about, so everything is inside. ptxgym/device/emulator/tensor_map.py packs the same layout.
#pragma once
#include <cstdint>
#include <cstring>
#include "descriptor.hpp"

constexpr int MAX_RANK = 5;
constexpr uint32_t TENSOR_MAP_BYTES = 128;
constexpr uint64_t TENSOR_MAP_MAGIC = 0x3150'414D'4758'5450ull;  // the bytes "PTXGMAP1"

// Numbering of CUtensorMapDataType.
enum class TensorType : uint8_t {
  U8,
  U16,
  U32,
  S32,
  U64,
  S64,
  F16,
  F32,
  F64,
  BF16,
  F32_FTZ,
  TF32,
  TF32_FTZ,
  U4,        // sixteen take 8 bytes, here and there
  U4_ALIGN,  // sixteen take 16 bytes of shared memory, the last 8 of them padding (.b4x16_p64)
  U6_ALIGN,  // sixteen take 16 bytes: a load pads by 4 (.b6x16_p32), a store takes one element a byte (.b6p2x16)
};
enum class OutOfBounds : uint8_t { Zero, Nan };

struct TensorMap {
  uint64_t magic;
  uint64_t address;         // of the first element
  uint64_t strides[4];      // bytes, of dimensions 1…; dimension 0 is dense
  uint32_t last[MAX_RANK];  // size − 1 of each dimension, in elements, innermost first
  uint16_t box[MAX_RANK];   // 1…256
  uint8_t element_strides[MAX_RANK];
  uint8_t rank;
  TensorType type;
  Swizzle swizzle;
  OutOfBounds fill;
  uint8_t atomicity;  // as tensormap.replace numbers it, for when the swizzle becomes one of 128B
  uint8_t pad[40];
};
static_assert(sizeof(TensorMap) == TENSOR_MAP_BYTES, "a tensor map has 128 bytes");

constexpr uint32_t element_bits(TensorType type) {
  constexpr uint8_t sizes[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
  return sizes[static_cast<unsigned>(type)];
}
constexpr uint64_t elements_bytes(TensorType type, uint64_t count) { return (count * element_bits(type) + 7) / 8; }

// Types that shared memory pads: PTX ISA 5.5.1.1.1 and 9.7.9.25.5.1.
constexpr bool is_padded(TensorType type) { return type >= TensorType::U4_ALIGN; }

// Bytes of global memory that fill one 16-byte chunk of shared memory.
constexpr uint32_t chunk_data_bytes(TensorType type) { return is_padded(type) ? 2 * element_bits(type) : CHUNK_BYTES; }

// What coordinates of the innermost dimension must be a multiple of.
constexpr uint32_t coordinate_unit(TensorType type) {
  return is_padded(type) ? 128 : 128 / element_bits(type);
}

inline bool is_tensor_map(const TensorMap& map) {
  return map.magic == TENSOR_MAP_MAGIC && map.rank >= 1 && map.rank <= MAX_RANK && map.type <= TensorType::U6_ALIGN &&
         map.swizzle <= Swizzle::B128Atom64 && map.fill <= OutOfBounds::Nan;
}

// A dimension whose stride lies within what the dimensions of smaller strides span; -1: none. Strides of 0 repeat on
// purpose.
inline int overlapping_dimension(const TensorMap& map) {
  for (int dim = 1; dim < map.rank; ++dim) {
    const uint64_t stride = map.strides[dim - 1];
    if (stride == 0 || map.last[dim] == 0) continue;
    if (uint64_t{map.last[0]} * element_bits(map.type) / 8 >= stride) return dim;
    for (int other = 1; other < map.rank; ++other) {
      const uint64_t smaller = map.strides[other - 1];
      if (other != dim && smaller < stride && uint64_t{map.last[other]} * smaller >= stride) return dim;
    }
  }
  return -1;
}

// Elements that one box moves along a dimension: a stride e visits ceil(box / e) of them; dimension 0 ignores it
// (CUDA driver API, cuTensorMapEncodeTiled, elementStrides).
inline uint32_t box_count(const TensorMap& map, int dim) {
  const uint32_t stride = dim == 0 ? 1 : map.element_strides[dim];
  return (map.box[dim] + stride - 1) / stride;
}

// Bytes of one line of the box in global memory, and, with their padding, in shared memory.
inline uint32_t box_data_bytes(const TensorMap& map) {
  return static_cast<uint32_t>(elements_bytes(map.type, map.box[0]));
}
inline uint32_t box_line_bytes(const TensorMap& map) { return is_padded(map.type) ? map.box[0] : box_data_bytes(map); }

// Lines (runs along dimension 0) of the box.
inline uint32_t box_lines(const TensorMap& map) {
  uint32_t lines = 1;
  for (int dim = 1; dim < map.rank; ++dim) lines *= box_count(map, dim);
  return lines;
}

// Bytes that count against the mbarrier's transaction count: the full box, wherever it is clipped, without padding (as
// CUTLASS counts them, TmaTransactionBytes of sm100_blockscaled_mma_warpspecialized.hpp).
inline uint32_t box_bytes(const TensorMap& map) { return box_lines(map) * box_data_bytes(map); }

// Distance of two lines in shared memory: a swizzled line takes the whole swizzle width, even if the box is narrower.
inline uint32_t box_pitch_bytes(const TensorMap& map) {
  return map.swizzle == Swizzle::None ? box_line_bytes(map) : swizzle_bytes(map.swizzle);
}

// Shared bytes from the first line to the end of the last.
inline uint32_t box_span_bytes(const TensorMap& map) { return box_lines(map) * box_pitch_bytes(map); }

// One line of a box: where it starts in global memory and which of its elements lie inside the tensor.
struct BoxLine {
  uint64_t address;       // of element `first`
  uint32_t first, count;  // elements inside the tensor; count 0: the line is outside
};

// `index` counts lines in shared-memory order: dimension 1 fastest.
inline BoxLine box_line(const TensorMap& map, const int32_t* coords, uint32_t index) {
  uint64_t address = map.address;
  for (int dim = 1; dim < map.rank; ++dim) {
    const uint32_t count = box_count(map, dim), step = index % count;
    index /= count;
    const int64_t position = int64_t{coords[dim]} + int64_t{step} * map.element_strides[dim];
    if (position < 0 || position > int64_t{map.last[dim]}) return {0, 0, 0};
    address += static_cast<uint64_t>(position) * map.strides[dim - 1];
  }
  const int64_t begin = coords[0], end = begin + map.box[0], size = int64_t{map.last[0]} + 1;
  const int64_t from = begin < 0 ? 0 : begin, to = end > size ? size : end;
  if (from >= to) return {0, 0, 0};
  return {address + static_cast<uint64_t>(from) * element_bits(map.type) / 8, static_cast<uint32_t>(from - begin),
          static_cast<uint32_t>(to - from)};
}
