// Shared-memory matrix descriptors of wgmma (PTX ISA 9.7.15.5.1.2) and the address swizzle that they share with TMA
// (5.5.7).
//
// Everything here is a pure function of its arguments: no memory is touched, so that issue-time checks, footprints and
// the execution of a collective use one and the same addressing.
#pragma once
#include <cstdint>

// The value is the number of address bits that are exchanged: bits 4… ^= bits 7… (16-byte atomicity).
enum class Swizzle : uint8_t { None = 0, B32 = 1, B64 = 2, B128 = 3 };

constexpr uint32_t CHUNK_BYTES = 16;  // the unit that every layout keeps intact

constexpr uint32_t swizzle_bytes(Swizzle mode) { return CHUNK_BYTES << static_cast<unsigned>(mode); }

// Distance after which the pattern repeats: that many address bits from bit 7 up take part.
constexpr uint32_t swizzle_period_bytes(Swizzle mode) { return 128u << static_cast<unsigned>(mode); }

constexpr const char* swizzle_name(Swizzle mode) {
  switch (mode) {
    case Swizzle::None: return "no swizzle";
    case Swizzle::B32: return "32B swizzle";
    case Swizzle::B64: return "64B swizzle";
    case Swizzle::B128: return "128B swizzle";
  }
  return "?";
}

// The pattern follows address bits, not the position inside a tile: a tile that starts inside a pattern begins with a
// later phase. `base_offset` (in 128-byte lines) says where the pattern starts when it is not at a multiple of its own
// length.
constexpr uint32_t swizzled(uint32_t address, Swizzle mode, uint32_t base_offset = 0) {
  const uint32_t mask = (1u << static_cast<unsigned>(mode)) - 1;
  return address ^ ((((address >> 7) - base_offset) & mask) << 4);
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

// An operand of 16-bit elements, `extent` rows (M or N) by 16 in K, seen through a descriptor as 16-byte chunks.
// K-major chunks run along K: index = row * 2 + k / 8. MN-major chunks run along M or N: index = k * (extent / 8) + row
// / 8. Canonical layouts: PTX ISA 9.7.15.5.1.2.1.3.
struct Operand {
  Descriptor descriptor;
  uint32_t extent;
  bool mn_major;

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
      const uint32_t groups = extent >> 3, k = index / groups, group = index % groups;
      if (d.swizzle == Swizzle::None) {
        address += group * d.stride_bytes + (k >> 3) * d.leading_bytes + (k & 7) * width;
      } else {
        const uint32_t per_line = width / CHUNK_BYTES;
        address += (group / per_line) * d.leading_bytes + (group % per_line) * CHUNK_BYTES;
        address += (k >> 3) * d.stride_bytes + (k & 7) * width;
      }
    }
    return swizzled(address, d.swizzle, d.base_offset);
  }
};
