// wgmma on elements of 8 bits (e4m3, e5m2: K = 32) and of 32 (tf32: K = 8), K-major always: PTX ISA 9.7.15.5.2. Operands
// take the same bytes as those of 16 bits, so descriptors and footprints are the same; only what a chunk holds differs.
//
// Sums follow matrix_sum.hpp and byte_sum.hpp.
#include <algorithm>
#include <iterator>

#include "byte_sum.hpp"
#include "tensor.hpp"
#include "wgmma_collective.hpp"
#include "wgmma_tile.hpp"

namespace {

constexpr int MAX_K = 32;

// An operand as rows of K elements.
struct Rows {
  Element element[MAX_TILE_N * MAX_K];
  bool finite[MAX_TILE_N];

  Element* row(int index, int k_count) { return element + index * k_count; }
  const Element* row(int index, int k_count) const { return element + index * k_count; }
};

struct Format {
  uint8_t type;
  bool negate;

  int k_count() const { return type == T_TF32 ? 8 : 32; }
  int bytes() const { return type == T_TF32 ? 4 : 1; }
  Element read(const uint8_t* from) const {
    uint32_t word = *from;
    if (type == T_TF32) std::memcpy(&word, from, sizeof word);
    Element out = type == T_TF32   ? tf32_element(word)
                  : type == T_E4M3 ? e4m3_element(static_cast<uint8_t>(word))
                                   : e5m2_element(static_cast<uint8_t>(word));
    if (negate) out.value = -out.value;
    return out;
  }
};

void put(Rows& rows, const Format& format, int row, int k, const uint8_t* from, int count) {
  for (int i = 0; i < count; ++i) {
    const Element element = format.read(from + i * format.bytes());
    rows.row(row, format.k_count())[k + i] = element;
    rows.finite[row] &= element.exponent != SPECIAL_EXPONENT;
  }
}

void gather_shared(Cta& cta, const OperandBytes& bytes, const Format& format, Rows& rows) {
  const int count = static_cast<int>(CHUNK_BYTES) / format.bytes();
  std::fill(std::begin(rows.finite), std::end(rows.finite), true);
  for (size_t index = 0; index < bytes.chunks.size(); ++index)
    put(rows, format, static_cast<int>(index / 2), static_cast<int>(index % 2) * count, cta.shared(bytes.chunks[index]),
        count);
}

// Register r of lane l in warp w holds elements of row 16 w + l / 4 + 8 (r % 2), from column n (l % 4 + 4 (r / 2)) on, n
// being the elements of a register (PTX ISA 9.7.15.5.1.1.2 and .3).
void gather_registers(Cta& cta, const Collective& collective, const Format& format, Rows& rows) {
  const int count = 4 / format.bytes();
  std::fill(std::begin(rows.finite), std::end(rows.finite), true);
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int r = 0; r < 4; ++r) {
      const uint32_t* lanes = warp.reg<uint32_t>(cta.pool(collective.form->vec2)[r]);
      for (int lane = 0; lane < LANES; ++lane)
        put(rows, format, w * 16 + lane / 4 + 8 * (r % 2), count * (lane % 4 + 4 * (r / 2)),
            reinterpret_cast<const uint8_t*>(lanes + lane), count);
    }
  }
}

struct Product {
  const Rows &a, &b;
  bool bytes, accumulate, to_half;

  float operator()(int row, int column, float accumulator) const {
    const int k_count = bytes ? 32 : 8;
    const Element *x = a.row(row, k_count), *y = b.row(column, k_count);
    if (bytes && a.finite[row] && b.finite[column] && (!accumulate || std::isfinite(accumulator)))
      return byte_sum(k_count, x, y, accumulator, accumulate, to_half);
    return tensor_core_sum(
        k_count, [&](int k) { return x[k]; }, [&](int k) { return y[k]; }, accumulator, accumulate, to_half);
  }
};

}  // namespace

void multiply_elements(Cta& cta, const Collective& collective) {
  static thread_local Rows a, b;
  const Inst& inst = *collective.form;
  const bool bytes = inst.stype != T_TF32;
  const uint8_t b_type = !bytes ? T_TF32 : inst.flags & F_B_E5M2 ? T_E5M2 : T_E4M3;
  const Format of_a{inst.stype, (inst.flags & F_NEG_A) != 0}, of_b{b_type, (inst.flags & F_NEG_B) != 0};
  if (collective.a_in_registers())
    gather_registers(cta, collective, of_a, a);
  else
    gather_shared(cta, collective.a, of_a, a);
  gather_shared(cta, collective.b, of_b, b);
  const Product product{a, b, bytes, collective.accumulate, inst.type == T_F16};
  const int32_t* registers = cta.pool(inst.vec);
  for (int w = 0; w < 4; ++w) {
    Warp& warp = cta.warps[static_cast<size_t>(collective.group * 4 + w)];
    for (int j = 0; j < collective.columns() / 8 * 2; ++j) {  // a pair of columns: block j / 2, half j % 2
      for (int lane = 0; lane < LANES; ++lane) {
        const int row = 16 * w + 8 * (j % 2) + lane / 4, column = j / 2 * 8 + lane % 4 * 2;
        if (inst.type == T_F16) {
          uint32_t& cell = warp.reg<uint32_t>(registers[j])[lane];
          const uint16_t low = float_to_half(product(row, column, half_to_float(static_cast<uint16_t>(cell))));
          const uint16_t high = float_to_half(product(row, column + 1, half_to_float(static_cast<uint16_t>(cell >> 16))));
          cell = low | static_cast<uint32_t>(high) << 16;
          continue;
        }
        for (int parity = 0; parity < 2; ++parity) {
          float& cell = warp.reg<float>(registers[j * 2 + parity])[lane];
          cell = product(row, column + parity, cell);
        }
      }
    }
  }
}
