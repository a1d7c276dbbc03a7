// Descriptors of tcgen05: the shared memory descriptor of sm_100 (PTX ISA 9.7.16.4.1), the instruction descriptor
// (9.7.16.4.2, tables 42 to 44) and the zero-column mask descriptor (9.7.16.4.3). Pure functions; addresses follow
// descriptor.hpp, whose canonical layouts are those of 9.7.16.3.3 too.
#pragma once
#include <array>
#include <cstdint>
#include "descriptor.hpp"
#include "flags.hpp"

struct TensorDescriptor {
  Descriptor matrix;
  uint32_t version;       // bits 46-48, 1 on sm_100
  bool absolute_leading;  // bit 52: sm_103a only
  uint8_t swizzle_code;   // bits 61-63 as they are
  bool swizzle_known;     // one of the modes that `matrix.swizzle` can say
};

constexpr uint64_t TENSOR_DESCRIPTOR_FIELDS = 0xE01F'FFFF'3FFF'3FFFull;

constexpr TensorDescriptor decode_tensor_descriptor(uint64_t bits) {
  const auto code = static_cast<uint8_t>(bits >> 61);
  // The invalid 3, 5, 7 have no Swizzle.
  const Swizzle swizzle = code == 1   ? Swizzle::B128Atom32
                          : code == 2 ? Swizzle::B128
                          : code == 4 ? Swizzle::B64
                          : code == 6 ? Swizzle::B32
                                      : Swizzle::None;
  return {{static_cast<uint32_t>(bits & 0x3FFF) << 4, static_cast<uint32_t>(bits >> 16 & 0x3FFF) << 4,
           static_cast<uint32_t>(bits >> 32 & 0x3FFF) << 4, static_cast<uint32_t>(bits >> 49 & 7), swizzle,
           bits & ~TENSOR_DESCRIPTOR_FIELDS},
          static_cast<uint32_t>(bits >> 46 & 7),
          (bits >> 52 & 1) != 0,
          code,
          code <= 2 || code == 4 || code == 6};
}

constexpr bool is_block_scaled(MmaKind kind) { return kind >= KIND_MXF8F6F4; }
constexpr bool is_four_bit(MmaKind kind) { return kind == KIND_MXF4 || kind == KIND_MXF4NVF4; }
// K of one dense product (9.7.16.2.1): 32 bytes of a row, 4-bit elements of the kinds that mix widths being padded.
constexpr int depth_of(MmaKind kind) {
  return kind == KIND_F16 ? 16 : kind == KIND_TF32 ? 8 : is_four_bit(kind) ? 64 : 32;
}
// log2 of the elements of a 16-byte chunk of an operand in shared memory (Operand::chunk_shift).
constexpr uint8_t chunk_shift_of(MmaKind kind) {
  return kind == KIND_F16 ? 3 : kind == KIND_TF32 ? 2 : is_four_bit(kind) ? 5 : 4;
}

struct InstructionDescriptor {
  bool sparse, saturate;
  uint32_t d_type;          // 0 fp16, 1 fp32, 2 s32
  uint32_t a_type, b_type;  // f16: 0 fp16, 1 bf16; tf32: 2; f8f6f4: enum NarrowType; i8: 0 u8, 1 s8; mxf4: 1 e2m1
  bool negate_a, negate_b;
  bool mn_major_a, mn_major_b;  // "transpose"
  int columns, rows;            // N, M
  uint32_t reserved;            // bits that must be zero
  uint32_t max_shift;           // of .ws only
  uint32_t scale_a_id, scale_b_id;
  bool ue8m0;  // scale factors: ue8m0, otherwise ue4m3
  bool k96;
};
enum NarrowType : uint32_t { NARROW_E4M3 = 0, NARROW_E5M2 = 1, NARROW_E2M3 = 3, NARROW_E3M2 = 4, NARROW_E2M1 = 5 };

InstructionDescriptor decode_instruction_descriptor(uint32_t bits, MmaKind);

// Why the kind has no such instruction, or nullptr. `scales`: scale factors of a row of a block-scaled kind.
const char* instruction_descriptor_fault(const InstructionDescriptor&, MmaKind, bool pair, bool ws, int scales);

const char* kind_name(MmaKind);

// Columns of B that count as zero, a bit each.
using ColumnMask = std::array<uint64_t, 4>;
ColumnMask zero_column_mask(uint64_t bits, int rows, int columns);
constexpr uint32_t zero_column_shift(uint64_t bits) { return static_cast<uint32_t>(bits >> 56 & 63); }
