// Instruction descriptors of tcgen05.mma by kind (PTX ISA 9.7.16.4.2), the shapes of each (9.7.16.2.1, table 39), and the
// zero-column mask of .ws.
#include "tcgen05_descriptor.hpp"
#include <cstddef>

const char* kind_name(MmaKind kind) {
  constexpr const char* names[] = {"kind::f16",      "kind::tf32", "kind::f8f6f4",  "kind::i8",
                                   "kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"};
  return names[kind];
}

InstructionDescriptor decode_instruction_descriptor(uint32_t bits, MmaKind kind) {
  const auto bit = [=](int at) { return (bits >> at & 1) != 0; };
  const bool scaled = is_block_scaled(kind), four = is_four_bit(kind);
  InstructionDescriptor d{};
  d.sparse = bit(2);
  d.a_type = bits >> 7 & 7;
  d.b_type = bits >> 10 & (four ? 3 : 7);
  d.negate_a = bit(13);
  d.negate_b = bit(14);
  d.mn_major_a = bit(15);
  d.mn_major_b = bit(16);
  d.columns = static_cast<int>(bits >> 17 & 0x3F) * 8;
  if (scaled) {
    d.d_type = 1;
    d.scale_b_id = bits >> 4 & 3;
    d.scale_a_id = bits >> 29 & 3;
    d.ue8m0 = bit(23);
    d.rows = static_cast<int>(bits >> 27 & 3) * 128;
    d.k96 = four && bit(31);
    d.reserved = bits & (3u | 1u << 3 | 1u << 6 | 7u << 24 | (four ? 1u << 12 : 1u << 31));
  } else {
    d.saturate = bit(3);
    d.d_type = bits >> 4 & 3;
    d.rows = static_cast<int>(bits >> 24 & 0x1F) * 16;
    d.reserved = bits & (1u << 6 | 1u << 23 | 1u << 29);
    d.max_shift = bits >> 30;
  }
  return d;
}

namespace {

const char* types_fault(const InstructionDescriptor& d, MmaKind kind) {
  const auto narrow = [](uint32_t type) { return type <= NARROW_E2M1 && type != 2; };
  switch (kind) {
    case KIND_F16:
      if (d.d_type > 1) return "bits 4-5 must say fp16 (0) or fp32 (1) for D";
      if (d.a_type > 1 || d.b_type > 1) return "bits 7-9 and 10-12 must say fp16 (0) or bf16 (1) for A and B";
      if (d.a_type != d.b_type) return "A and B must have the same type";
      return d.d_type == 0 && d.a_type == 1 ? "bf16 operands need an fp32 D" : nullptr;
    case KIND_TF32:
      if (d.d_type != 1) return "bits 4-5 must say fp32 (1) for D";
      return d.a_type != 2 || d.b_type != 2 ? "bits 7-9 and 10-12 must say tf32 (2) for A and B" : nullptr;
    case KIND_I8:
      if (d.d_type != 2) return "bits 4-5 must say s32 (2) for D";
      return d.a_type > 1 || d.b_type > 1 ? "bits 7-9 and 10-12 must say u8 (0) or s8 (1) for A and B" : nullptr;
    case KIND_F8F6F4:
      if (d.d_type > 1) return "bits 4-5 must say fp16 (0) or fp32 (1) for D";
      [[fallthrough]];
    case KIND_MXF8F6F4:
      return narrow(d.a_type) && narrow(d.b_type)
                 ? nullptr
                 : "bits 7-9 and 10-12 must say e4m3 (0), e5m2 (1), e2m3 (3), e3m2 (4) or e2m1 (5) for A and B";
    default: return d.a_type != 1 || d.b_type != 1 ? "bits 7-9 and 10-11 must say e2m1 (1) for A and B" : nullptr;
  }
}

const char* scales_fault(const InstructionDescriptor& d, MmaKind kind, int scales) {
  if (d.k96) return "bit 31 (K = 96) exists on sm_103a only";
  if (!d.ue8m0 && kind != KIND_MXF4NVF4) return "bit 23 must be 1: the scale factors of this kind are ue8m0";
  if (!d.ue8m0 && scales == 2) return "bit 23 must be 1: one scale factor for 32 elements is ue8m0 (9.7.16.10.7.1)";
  if (scales == 2 && (d.scale_a_id % 2 || d.scale_b_id % 2))
    return "the scale factor ids (bits 29-30 and 4-5) must be 0 or 2: two scale factors of a row are a half word";
  if (scales == 4 && (d.scale_a_id || d.scale_b_id))
    return "the scale factor ids (bits 29-30 and 4-5) must be 0: four scale factors of a row are a whole word";
  return nullptr;
}

const char* rows_fault(int rows, MmaKind kind, bool pair, bool ws) {
  if (ws) return rows == 32 || rows == 64 || rows == 128 ? nullptr : "M (bits 24-28, in 16s) must be 32, 64 or 128 with .ws";
  const bool scaled = is_block_scaled(kind);
  if (pair) {
    if (rows == 128 || rows == 256) return nullptr;
    return scaled ? "M (bits 27-28, in 128s) must be 128 or 256 with .cta_group::2"
                  : "M (bits 24-28, in 16s) must be 128 or 256 with .cta_group::2";
  }
  if (rows == 128 || (rows == 64 && !scaled)) return nullptr;
  return scaled ? "M (bits 27-28, in 128s) must be 128 with .cta_group::1"
                : "M (bits 24-28, in 16s) must be 64 or 128 with .cta_group::1";
}

const char* columns_fault(const InstructionDescriptor& d, MmaKind kind, bool pair, bool ws) {
  const int n = d.columns;
  if (ws) return n == 64 || n == 128 || n == 256 ? nullptr : "N (bits 17-22, in 8s) must be 64, 128 or 256 with .ws";
  if (kind == KIND_I8 && pair)
    return n % 32 || n < 32 || n > 256 ? "N (bits 17-22, in 8s) must be a multiple of 32 from 32 to 256" : nullptr;
  if (kind == KIND_I8 && n > 32 && n % 16) return "N (bits 17-22, in 8s) must be a multiple of 16 where it is above 32";
  if (pair && (n % 16 || n < 16 || n > 256))
    return "N (bits 17-22, in 8s) must be a multiple of 16 from 16 to 256 with .cta_group::2";
  if (n < 8 || n > 256) return "N (bits 17-22, in 8s) must be a multiple of 8 from 8 to 256";
  if (d.mn_major_b && chunk_shift_of(kind) == 4 && n % (pair ? 32 : 16))
    return "N (bits 17-22, in 8s) must be a multiple of 16, and of 32 with .cta_group::2, where B of 8-bit elements is "
           "transposed";
  return nullptr;
}

}  // namespace

// Of 16-bit elements one CTA has N in steps of 8 for M = 64 and M = 128 alike, a pair in steps of 16. (CUTLASS asks for
// steps of 16, and 32 of a pair, where A lies in tensor memory.)
const char* instruction_descriptor_fault(const InstructionDescriptor& d, MmaKind kind, bool pair, bool ws, int scales) {
  if (d.sparse) return "bit 2 asks for a sparse A, which tcgen05.mma without .sp does not have";
  if (d.reserved) {
    return is_block_scaled(kind) ? "bits 0, 1, 3, 6, 24-26 and 31 (12 of 4-bit kinds) are reserved and must be 0"
                                 : "bits 6, 23 and 29 are reserved and must be 0";
  }
  if (d.max_shift && !ws) return "bits 30-31 belong to tcgen05.mma.ws and must be 0";
  if (d.saturate && kind != KIND_I8) return "bit 3 (saturate) belongs to kind::i8";
  if ((d.negate_a || d.negate_b) && kind == KIND_I8) return "bits 13 and 14 (negate) must be 0: kind::i8 does not negate";
  if ((d.mn_major_a || d.mn_major_b) && is_four_bit(kind))
    return "bits 15 and 16 (transpose) must be 0: packed 4-bit operands are K-major";
  if (const char* why = types_fault(d, kind)) return why;
  if (is_block_scaled(kind))
    if (const char* why = scales_fault(d, kind, scales)) return why;
  if (const char* why = rows_fault(d.rows, kind, pair, ws)) return why;
  return columns_fault(d, kind, pair, ws);
}

// The table of 9.7.16.4.3 and its examples contradict each other: here "skip span" counts zero columns, as in all
// examples and in CUTLASS (MaskAndShiftB of mma_sm100_desc.hpp).
ColumnMask zero_column_mask(uint64_t bits, int rows, int columns) {
  ColumnMask mask{};
  if (!(bits >> 39 & 1)) return mask;
  const int skip = static_cast<int>(bits >> 40 & 255) + 1, use = static_cast<int>(bits >> 48 & 255) + 1;
  const int parts = 128 / rows, width = columns / parts;
  for (int part = 0; part < parts; ++part) {
    const int start = static_cast<int>(bits >> 8 * part & 255);
    const bool skip_first = bits >> (32 + part) & 1;
    for (int i = 0; i < width; ++i) {
      const int phase = (start + i) % (skip + use), column = part * width + i;
      if (skip_first ? phase < skip : phase >= use) mask[static_cast<size_t>(column / 64)] |= 1ull << column % 64;
    }
  }
  return mask;
}
