// ldmatrix, stmatrix and movmatrix (PTX ISA 9.7.14.5.15 to .17): of 8×8 matrices of 16-bit elements, then of bytes.
//
// Fragment of one matrix: lane l holds row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1. Rows of matrix i lie at the
// addresses of lanes 8 i … 8 i + 7. With .trans the matrix in memory is the transpose of the fragments'.
#include "core.hpp"
#include "tcgen05_formats.hpp"
#include "tensor.hpp"

namespace {

constexpr uint32_t ROW_BYTES = 16;
constexpr int SIDE = 8;

struct Matrix {
  uint16_t element[SIDE][SIDE];

  static Matrix of_fragment(const uint32_t* lanes) {
    Matrix matrix;
    for (int lane = 0; lane < LANES; ++lane) {
      matrix.element[lane / 4][lane % 4 * 2] = static_cast<uint16_t>(lanes[lane]);
      matrix.element[lane / 4][lane % 4 * 2 + 1] = static_cast<uint16_t>(lanes[lane] >> 16);
    }
    return matrix;
  }
  void to_fragment(uint32_t* lanes) const {
    for (int lane = 0; lane < LANES; ++lane) {
      const uint16_t* pair = &element[lane / 4][lane % 4 * 2];
      lanes[lane] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
  }
  Matrix transposed() const {
    Matrix result;
    for (int row = 0; row < SIDE; ++row) {
      for (int column = 0; column < SIDE; ++column) result.element[column][row] = element[row][column];
    }
    return result;
  }
};

bool whole_warp(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask, const char* name) {
  if (mask == FULL_MASK) return true;
  cta.fault(warp, inst, first_lane(~mask), "matrix.partial_warp",
            "lanes 0x%08x of warp %d do not execute this %s: all threads of the "
            "warp must",
            ~mask, warp.id, name);
  return false;
}

// Addresses of all rows; false after a fault was recorded.
bool rows(Cta& cta, Warp& warp, const Inst& inst, const char* name, uint32_t* addresses) {
  for (int i = 0; i < inst.nvec * SIDE; ++i) {
    const uint64_t address = cta.own(lane_address(cta, warp, inst.a, inst.mods & M_A64, i, inst.imm));
    if (address % ROW_BYTES || !cta.shared_ok(address, ROW_BYTES)) {
      cta.fault_address(warp, inst, i, S_SHARED, address, ROW_BYTES, ROW_BYTES, name);
      return false;
    }
    addresses[i] = static_cast<uint32_t>(address);
  }
  return true;
}

// Calls body(address, bytes) for the rows, neighbours in one range.
template <class Body>
void ranges(const uint32_t* addresses, int count, Body body) {
  uint32_t begin = addresses[0], end = begin + ROW_BYTES;
  for (int i = 1; i < count; ++i) {
    if (addresses[i] != end) {
      body(begin, end - begin);
      begin = addresses[i];
    }
    end = addresses[i] + ROW_BYTES;
  }
  body(begin, end - begin);
}

Step ldmatrix(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  uint32_t addresses[LANES];
  if (!whole_warp(cta, warp, inst, mask, "ldmatrix") || !rows(cta, warp, inst, "ldmatrix from", addresses))
    return Step::Fault;
  if (Shadow* shadow = cta.shadow.get()) {
    ranges(addresses, inst.nvec * SIDE,
           [&](uint32_t at, uint32_t bytes) { shadow->read(warp, cta.index_of(inst), at, bytes); });
  }
  for (int i = 0; i < inst.nvec; ++i) {
    Matrix matrix;
    for (int row = 0; row < SIDE; ++row)
      std::memcpy(matrix.element[row], cta.shared(addresses[i * SIDE + row]), ROW_BYTES);
    if (inst.flags & F_TRANS) matrix = matrix.transposed();
    const int32_t destination = cta.pool(inst.vec)[i];
    if (destination >= 0) matrix.to_fragment(warp.reg<uint32_t>(destination));
  }
  return Step::Next;
}

// The addresses that a stmatrix stores to, which the shadow is told of; false: it faults.
bool rows_to_store(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask, uint32_t* addresses) {
  if (!whole_warp(cta, warp, inst, mask, "stmatrix") || !rows(cta, warp, inst, "stmatrix to", addresses)) return false;
  if (Shadow* shadow = cta.shadow.get()) {
    ranges(addresses, inst.nvec * SIDE,
           [&](uint32_t at, uint32_t bytes) { shadow->write(warp, cta.index_of(inst), at, bytes); });
  }
  return true;
}

Step stmatrix(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  uint32_t addresses[LANES];
  if (!rows_to_store(cta, warp, inst, mask, addresses)) return Step::Fault;
  for (int i = 0; i < inst.nvec; ++i) {
    Matrix matrix = Matrix::of_fragment(warp.reg<uint32_t>(cta.pool(inst.vec)[i]));
    if (inst.flags & F_TRANS) matrix = matrix.transposed();
    for (int row = 0; row < SIDE; ++row)
      std::memcpy(cta.shared(addresses[i * SIDE + row]), matrix.element[row], ROW_BYTES);
  }
  return Step::Next;
}

// ---- bytes. Every address is a row of 16 bytes, each register takes eight of them

// 4- and 6-bit elements lie in the low bits of their byte (CUTLASS, fp4_shift_A of mma_traits_sm120.hpp, and Triton say so
// of the former; the ISA has pictures), unlike those that tcgen05.cp unpacks.
struct Rows {
  uint8_t element[LANES][ROW_BYTES];
};

int data_bytes(const Inst& inst) { return inst.stype == T_U4 ? 8 : inst.stype == T_U6 ? 12 : ROW_BYTES; }

Step ldmatrix_bytes(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  uint32_t addresses[LANES];
  if (!whole_warp(cta, warp, inst, mask, "ldmatrix") || !rows(cta, warp, inst, "ldmatrix from", addresses))
    return Step::Fault;
  const int count = inst.nvec * SIDE;
  if (Shadow* shadow = cta.shadow.get()) {
    for (int i = 0; i < count; ++i)  // nothing reads the padding
      shadow->read(warp, cta.index_of(inst), addresses[i], static_cast<uint32_t>(data_bytes(inst)));
  }
  Rows matrix;
  for (int i = 0; i < count; ++i) {
    if (inst.stype == T_U8)
      std::memcpy(matrix.element[i], cta.shared(addresses[i]), ROW_BYTES);
    else
      unpack_padded(cta.shared(addresses[i]), inst.stype == T_U4 ? 4 : 6, matrix.element[i]);
  }
  for (int r = 0; r < inst.nvec; ++r) {
    const int32_t destination = cta.pool(inst.vec)[r];
    if (destination < 0) continue;
    uint32_t* lanes = warp.reg<uint32_t>(destination);
    for (int lane = 0; lane < LANES; ++lane) {
      uint32_t word = 0;
      for (int e = 0; e < 4; ++e) {
        const int along = lane % 4 * 4 + e;  // of .m16n16.trans, whose registers come in pairs, the row in memory
        const uint8_t byte = inst.flags & F_TRANS ? matrix.element[r / 2 * 2 * SIDE + along][lane / 4 + r % 2 * SIDE]
                                                  : matrix.element[r * SIDE + lane / 4][along];
        word |= static_cast<uint32_t>(byte) << 8 * e;
      }
      lanes[lane] = word;
    }
  }
  return Step::Next;
}

// Of a 16×8 matrix lane l holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) and 2 (l % 4) + 1, as accumulators of mma do;
// the columns lie in memory one after the other.
Step stmatrix_bytes(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  uint32_t addresses[LANES];
  if (!rows_to_store(cta, warp, inst, mask, addresses)) return Step::Fault;
  Rows matrix;
  for (int r = 0; r < inst.nvec; ++r) {
    const uint32_t* lanes = warp.reg<uint32_t>(cta.pool(inst.vec)[r]);
    for (int lane = 0; lane < LANES; ++lane) {
      for (int e = 0; e < 4; ++e)
        matrix.element[r * SIDE + lane % 4 * 2 + e % 2][lane / 4 + e / 2 * SIDE] =
            static_cast<uint8_t>(lanes[lane] >> 8 * e);
    }
  }
  for (int i = 0; i < inst.nvec * SIDE; ++i)
    std::memcpy(cta.shared(addresses[i]), matrix.element[i], ROW_BYTES);
  return Step::Next;
}

bool loads_bytes(const Inst& inst) {
  const bool padded = inst.stype == T_U4 || inst.stype == T_U6;
  if (inst.flags & F_TRANS) return (padded || inst.stype == T_U8) && inst.nvec >= 2;
  return padded;
}

Step movmatrix(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (!whole_warp(cta, warp, inst, mask, "movmatrix")) return Step::Fault;
  Matrix::of_fragment(warp.reg<uint32_t>(inst.a)).transposed().to_fragment(warp.reg<uint32_t>(inst.d));
  return Step::Next;
}

}  // namespace

Handler bind_matrix(const Inst& inst) {
  const bool count = inst.nvec == 1 || inst.nvec == 2 || inst.nvec == 4;
  switch (inst.op) {
    case OP_LDMATRIX:
      if (inst.type == T_U8) return count && loads_bytes(inst) ? ldmatrix_bytes : nullptr;
      return count ? ldmatrix : nullptr;
    case OP_STMATRIX:
      if (inst.type == T_U8) return count && (inst.flags & F_TRANS) ? stmatrix_bytes : nullptr;
      return count ? stmatrix : nullptr;
    case OP_MOVMATRIX: return movmatrix;
    default: return nullptr;
  }
}
