// Descriptors of tcgen05: the shared memory descriptor of sm_100 (PTX ISA 9.7.16.4.1) and the instruction descriptor of
// kind::f16 (9.7.16.4.2, table 42). Pure functions; addresses follow descriptor.hpp, whose canonical layouts are those
// of 9.7.16.3.3 too.
#pragma once
#include <cstdint>
#include "descriptor.hpp"

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
  // 1, 128-byte swizzle with atoms of 32 bytes, and the invalid 3, 5, 7 have no Swizzle.
  const Swizzle swizzle = code == 2   ? Swizzle::B128
                          : code == 4 ? Swizzle::B64
                          : code == 6 ? Swizzle::B32
                                      : Swizzle::None;
  return {{static_cast<uint32_t>(bits & 0x3FFF) << 4, static_cast<uint32_t>(bits >> 16 & 0x3FFF) << 4,
           static_cast<uint32_t>(bits >> 32 & 0x3FFF) << 4, static_cast<uint32_t>(bits >> 49 & 7), swizzle,
           bits & ~TENSOR_DESCRIPTOR_FIELDS},
          static_cast<uint32_t>(bits >> 46 & 7),
          (bits >> 52 & 1) != 0,
          code,
          code == 0 || code == 2 || code == 4 || code == 6};
}

struct InstructionDescriptor {
  bool sparse, saturate;
  uint32_t d_type;  // 0 fp16, 1 fp32
  uint32_t a_type, b_type;  // 0 fp16, 1 bf16
  bool negate_a, negate_b;
  bool mn_major_a, mn_major_b;  // "transpose"
  int columns, rows;            // N, M
  uint32_t reserved;            // bits that must be zero
  uint32_t max_shift;           // of .ws only
};

constexpr InstructionDescriptor decode_instruction_descriptor(uint32_t bits) {
  return {(bits >> 2 & 1) != 0,
          (bits >> 3 & 1) != 0,
          bits >> 4 & 3,
          bits >> 7 & 7,
          bits >> 10 & 7,
          (bits >> 13 & 1) != 0,
          (bits >> 14 & 1) != 0,
          (bits >> 15 & 1) != 0,
          (bits >> 16 & 1) != 0,
          static_cast<int>(bits >> 17 & 0x3F) * 8,
          static_cast<int>(bits >> 24 & 0x1F) * 16,
          bits & (1u << 6 | 1u << 23 | 1u << 29),
          bits >> 30};
}

// Why kind::f16 has no such instruction for one CTA or a pair, or nullptr. Shapes: PTX ISA 9.1, 9.7.16.2.1: one CTA has
// N in steps of 8 for M = 64 and M = 128 alike, a pair in steps of 16. (CUTLASS asks for steps of 16, and 32 of a pair,
// where A lies in tensor memory.)
constexpr const char* instruction_descriptor_fault(const InstructionDescriptor& d, bool pair) {
  if (d.sparse) return "bit 2 asks for a sparse A, which tcgen05.mma without .sp does not have";
  if (d.reserved) return "bits 6, 23 and 29 are reserved and must be 0";
  if (d.max_shift) return "bits 30-31 belong to tcgen05.mma.ws and must be 0";
  if (d.saturate) return "bit 3 (saturate) belongs to kind::i8";
  if (d.d_type > 1) return "bits 4-5 must say fp16 (0) or fp32 (1) for D";
  if (d.a_type > 1 || d.b_type > 1) return "bits 7-9 and 10-12 must say fp16 (0) or bf16 (1) for A and B";
  if (d.a_type != d.b_type) return "A and B must have the same type";
  if (d.d_type == 0 && d.a_type == 1) return "bf16 operands need an fp32 D";
  if (pair && d.rows != 128 && d.rows != 256) return "M (bits 24-28, in 16s) must be 128 or 256 with .cta_group::2";
  if (!pair && d.rows != 64 && d.rows != 128) return "M (bits 24-28, in 16s) must be 64 or 128 with .cta_group::1";
  if (pair && (d.columns % 16 || d.columns < 16 || d.columns > 256))
    return "N (bits 17-22, in 8s) must be a multiple of 16 from 16 to 256 with .cta_group::2";
  if (d.columns < 8 || d.columns > 256) return "N (bits 17-22, in 8s) must be a multiple of 8 from 8 to 256";
  return nullptr;
}
