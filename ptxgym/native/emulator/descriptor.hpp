// Shared-memory matrix descriptors of wgmma (PTX ISA 9.7.15.5.1.2) and the address swizzle that they share with TMA
// (5.5.7).
//
// Everything here is a pure function of its arguments: no memory is touched, so that issue-time checks, footprints and
// the execution of a collective use one and the same addressing.
#pragma once
#include <cstdint>

// Up to B128 the value is the number of address bits that are exchanged: bits 4… ^= bits 7… (16-byte atomicity). The
// others, of sm_100, keep larger pieces of 128 bytes: B128Atom32 exchanges bits 5 and 6 with bits 7 and 8 (CuTe's
// Swizzle<2, 5, 2>), B128Atom64 bit 6 with bit 7. B128Atom32Flip8 is B128Atom32 with the halves of every chunk
// exchanged in every other line (flips_halves). Numbering of CUtensorMapSwizzle.
enum class Swizzle : uint8_t {
  None = 0,
  B32 = 1,
  B64 = 2,
  B128 = 3,
  B128Atom32 = 4,
  B128Atom32Flip8 = 5,
  B128Atom64 = 6,
};

constexpr uint32_t CHUNK_BYTES = 16;  // the unit that every layout keeps intact

constexpr uint32_t swizzle_bytes(Swizzle mode) {
  return mode > Swizzle::B128 ? 128 : CHUNK_BYTES << static_cast<unsigned>(mode);
}

// How many address bits are exchanged, and the lowest of them.
constexpr uint32_t swizzle_bits(Swizzle mode) {
  return mode <= Swizzle::B128 ? static_cast<uint32_t>(mode) : mode == Swizzle::B128Atom64 ? 1 : 2;
}
constexpr uint32_t swizzle_base(Swizzle mode) {
  return mode <= Swizzle::B128 ? 4 : mode == Swizzle::B128Atom64 ? 6 : 5;
}

// Distance after which the pattern repeats: that many address bits from bit 7 up take part.
constexpr uint32_t swizzle_period_bytes(Swizzle mode) { return 128u << swizzle_bits(mode); }

// Whether the chunk at a (swizzled) shared address has its halves of 8 bytes exchanged.
constexpr bool flips_halves(uint32_t address, Swizzle mode) {
  return mode == Swizzle::B128Atom32Flip8 && (address >> 7 & 1);
}

constexpr const char* swizzle_name(Swizzle mode) {
  switch (mode) {
    case Swizzle::None: return "no swizzle";
    case Swizzle::B32: return "32B swizzle";
    case Swizzle::B64: return "64B swizzle";
    case Swizzle::B128: return "128B swizzle";
    case Swizzle::B128Atom32: return "128B swizzle with atoms of 32 bytes";
    case Swizzle::B128Atom32Flip8: return "128B swizzle with atoms of 32 bytes and flipped halves";
    case Swizzle::B128Atom64: return "128B swizzle with atoms of 64 bytes";
  }
  return "?";
}

// The pattern follows address bits, not the position inside a tile: a tile that starts inside a pattern begins with a
// later phase. `base_offset` (in 128-byte lines) says where the pattern starts when it is not at a multiple of its own
// length.
constexpr uint32_t swizzled(uint32_t address, Swizzle mode, uint32_t base_offset = 0) {
  const uint32_t mask = (1u << swizzle_bits(mode)) - 1;
  return address ^ ((((address >> 7) - base_offset) & mask) << swizzle_base(mode));
}

struct Descriptor {
  uint32_t start;          // byte address in shared memory
  uint32_t leading_bytes;  // LBO
  uint32_t stride_bytes;   // SBO
  uint32_t base_offset;
  Swizzle swizzle;
  uint64_t reserved;  // bits that the format leaves unused, in place
};

constexpr uint64_t DESCRIPTOR_FIELDS = 0xC00E'3FFF'3FFF'3FFFull;

constexpr Descriptor decode_descriptor(uint64_t bits) {
  // Two bits name the mode in the opposite order: 0 none, 1 128B, 2 64B, 3 32B.
  constexpr Swizzle modes[4] = {Swizzle::None, Swizzle::B128, Swizzle::B64, Swizzle::B32};
  return {static_cast<uint32_t>(bits & 0x3FFF) << 4,
          static_cast<uint32_t>(bits >> 16 & 0x3FFF) << 4,
          static_cast<uint32_t>(bits >> 32 & 0x3FFF) << 4,
          static_cast<uint32_t>(bits >> 49 & 7),
          modes[bits >> 62],
          bits & ~DESCRIPTOR_FIELDS};
}

// An operand of `extent` rows (M or N), each 32 bytes in K, seen through a descriptor as 16-byte chunks of
// 2^chunk_shift elements: K is two chunks long, 16 for the 16-bit elements of the default.
// K-major chunks run along K: index = row * 2 + half. MN-major chunks run along M or N: index = k * (extent / elements
// of a chunk) + row / elements of a chunk. Canonical layouts: PTX ISA 9.7.15.5.1.2.1.3 and 9.7.16.3.3; that of
// B128Atom32, whose atoms are 4 deep in K, is CUTLASS's (make_umma_desc of mma_sm100_desc.hpp).
struct Operand {
  Descriptor descriptor;
  uint32_t extent;
  bool mn_major;
  uint8_t chunk_shift = 3;

  constexpr uint32_t chunks() const { return extent * 2; }

  constexpr uint32_t chunk_address(uint32_t index) const {
    const Descriptor& d = descriptor;
    const uint32_t width = swizzle_bytes(d.swizzle);
    uint32_t address = d.start;
    if (!mn_major) {
      const uint32_t row = index >> 1, half = index & 1;
      address += (row >> 3) * d.stride_bytes + (row & 7) * width;
      address += half * (d.swizzle == Swizzle::None ? d.leading_bytes : CHUNK_BYTES);
    } else {
      const uint32_t groups = extent >> chunk_shift, k = index / groups, group = index % groups;
      if (d.swizzle == Swizzle::None) {
        address += group * d.stride_bytes + (k >> 3) * d.leading_bytes + (k & 7) * width;
      } else {
        const uint32_t per_line = width / CHUNK_BYTES, depth = d.swizzle == Swizzle::B128Atom32 ? 2 : 3;
        address += (group / per_line) * d.leading_bytes + (group % per_line) * CHUNK_BYTES;
        address += (k >> depth) * d.stride_bytes + (k & ((1u << depth) - 1)) * width;
      }
    }
    return swizzled(address, d.swizzle, d.base_offset);
  }
};
