// tcgen05.mma on elements of 8 bits and less: kind::f8f6f4, i8, and the block-scaled kinds mxf8f6f4, mxf4, mxf4nvf4 (PTX
// ISA 9.7.16.10). A row of an operand takes 32 bytes, as of other kinds; what a 16-byte chunk holds differs.
//
// How the tensor core adds, PTX leaves open; nothing here has been measured. MMA-Sim (arXiv 2511.10909) finds on a B200:
// kinds f8f6f4 and mxf8f6f4 follow matrix_sum.hpp (25 binary places, scale factors as exponents); the 4-bit kinds add 16
// products exactly, scale them by the factors, and keep 35 places below the greatest exponent of scale factors and
// accumulator. Results are truncated to fp32; fp16 results are rounded from the sum to nearest even. Integers are exact,
// and wrap unless they saturate.
#include <algorithm>
#include <cmath>
#include <limits>
#include "operand_tile.hpp"
#include "tcgen05_formats.hpp"
#include "tcgen05_mma.hpp"

namespace {

constexpr int MAX_K = 64, MAX_ROWS = 128, BLOCK = 16;
constexpr int COLUMNS = MAX_TILE_N + BLOCK;  // the last block may reach beyond
constexpr int FOUR_BIT_FRACTION_BITS = 35, FOUR_BIT_BLOCK = 16;

// Codes of both operands: A by rows, B by k.
struct Codes {
  uint8_t a[MAX_ROWS][MAX_K];
  uint8_t b[MAX_K][COLUMNS];
};

int element_bits(const Mma& op, uint32_t type) {
  return is_four_bit(op.kind) ? 4 : op.kind == KIND_I8 ? 8 : narrow_bits(type);
}

// Elements of a chunk of shared memory; the number of codes.
int unpack(const Mma& op, uint32_t type, const uint8_t* chunk, uint8_t* codes) {
  const int bits = element_bits(op, type);
  if (is_four_bit(op.kind)) {  // two in a byte, without padding (9.7.16.10.4.6)
    for (int i = 0; i < 32; ++i) codes[i] = chunk[i / 2] >> i % 2 * 4 & 15;
    return 32;
  }
  if (bits == 8)
    std::memcpy(codes, chunk, CHUNK_BYTES);
  else
    unpack_padded(chunk, bits, codes);
  return 16;
}

// put(row, k, code) for all elements of an operand in shared memory.
template <class Put>
void gather_shared(const Mma& op, Cta& cta, const OperandBytes& bytes, uint32_t type, Put put) {
  const int groups = static_cast<int>(bytes.operand.extent >> bytes.operand.chunk_shift);
  for (int index = 0; index < static_cast<int>(bytes.chunks.size()); ++index) {
    uint8_t codes[32];
    const int count = unpack(op, type, cta.shared(bytes.chunks[static_cast<size_t>(index)]), codes);
    for (int i = 0; i < count; ++i) {
      if (bytes.operand.mn_major)
        put(index % groups * count + i, index / groups, codes[i]);
      else
        put(index / 2, index % 2 * count + i, codes[i]);
    }
  }
}

// Rows of A that tensor memory holds: 32 bytes of 8-bit containers, or of 4-bit pairs (9.7.16.10.4.3 and .5).
void gather_cells(const Mma& op, Cta& cta, int split, Codes& codes) {
  const TensorMemory& memory = tensor_memory(cta);
  const int bits = element_bits(op, op.form.a_type);
  for (int row = 0; row < op.rows(); ++row) {
    const int lane = accumulator_lane(op.path(), row, op.a_cells.lane, split);
    for (int byte = 0; byte < 32; ++byte) {
      const auto value = static_cast<uint8_t>(memory.cell(lane, op.a_cells.column + byte / 4) >> byte % 4 * 8);
      if (is_four_bit(op.kind)) {
        codes.a[row][2 * byte] = value & 15;
        codes.a[row][2 * byte + 1] = value >> 4;
      } else {
        codes.a[row][byte] = static_cast<uint8_t>(value >> container_shift(bits) & ((1 << bits) - 1));
      }
    }
  }
}

// Sixteen columns of one row of D: which elements of A and B, and where.
struct Block {
  int row, column;  // of the product
  int quarter;      // of the lanes
  int local;        // the column, counted within the split
};

float float_of(const Mma& op, uint32_t cell) {
  const float value = op.form.d_type == 0 ? half_to_float(static_cast<uint16_t>(cell)) : bits_as<float>(cell);
  return op.accumulate ? value : 0.0f;
}

uint32_t cell_of(const Mma& op, double sum) {
  if (std::isnan(sum)) return op.form.d_type == 0 ? 0x7FFF : TENSOR_CORE_NAN;
  return op.form.d_type == 0 ? float_to_half(sticky_to_float(sum)) : bits_as<uint32_t>(truncate_to_float(sum));
}

// ---- f8f6f4 and mxf8f6f4

struct Floats8 {
  alignas(64) float a[MAX_ROWS][32];
  alignas(64) float b[32][COLUMNS];
  int16_t a_exponent[MAX_ROWS][32];
  int16_t b_exponent[32][COLUMNS];
  bool a_special[MAX_ROWS], b_special;

  void set_a(const Mma& op, const Codes& codes) {
    const NarrowTable table = narrow_table(op.form.a_type, op.form.negate_a);
    for (int row = 0; row < op.rows(); ++row) {
      a_special[row] = false;
      for (int k = 0; k < 32; ++k) {
        a[row][k] = table.value[codes.a[row][k]];
        a_exponent[row][k] = table.exponent[codes.a[row][k]];
        a_special[row] |= a_exponent[row][k] == SPECIAL_EXPONENT;
      }
    }
  }
  void set_b(const Mma& op, const Codes& codes) {
    const NarrowTable table = narrow_table(op.form.b_type, op.form.negate_b);
    b_special = false;
    for (int k = 0; k < 32; ++k) {
      for (int column = 0; column < op.form.columns + BLOCK; ++column) {
        const bool zero = column >= op.form.columns || op.zero_column(column);
        b[k][column] = zero ? 0.0f : table.value[codes.b[k][column]];
        b_exponent[k][column] = zero ? int16_t{NO_EXPONENT} : table.exponent[codes.b[k][column]];
        b_special |= b_exponent[k][column] == SPECIAL_EXPONENT;
      }
    }
  }
};

double power_of_two(int exponent) {
  return bits_as<double>(static_cast<uint64_t>(std::clamp(exponent, -1022, 1023) + 1023) << 52);
}

// Sums of 16 columns, `scaled` being the exponents of their scale factors; false, with nothing done, where a term is
// infinite or NaN.
bool finite_sums(const Floats8& m, const Block& at, const int* scaled, const float* before, double* sums) {
  if (m.a_special[at.row] || m.b_special) return false;
  int16_t products[BLOCK];
  std::fill_n(products, BLOCK, int16_t{2 * NO_EXPONENT});
  for (int k = 0; k < 32; ++k) {
    const int16_t* column = &m.b_exponent[k][at.column];
    for (int i = 0; i < BLOCK; ++i)
      products[i] = std::max<int16_t>(products[i], static_cast<int16_t>(m.a_exponent[at.row][k] + column[i]));
  }
  int greatest[BLOCK];
  alignas(64) float factor[BLOCK];
  bool finite = true;
  for (int i = 0; i < BLOCK; ++i) {
    finite &= std::isfinite(before[i]);
    greatest[i] = std::max({products[i] + scaled[i], static_cast<int>(float_exponent(before[i])), -600});
    factor[i] = bits_as<float>(static_cast<uint32_t>(std::clamp(FRACTION_BITS + scaled[i] - greatest[i], -126, 127) + 127)
                               << 23);
  }
  if (!finite) return false;
  int low[BLOCK] = {}, high[BLOCK] = {};  // 16 terms below 2^27 each
  for (int k = 0; k < 32; ++k) {
    const float* column = &m.b[k][at.column];
    const float a = m.a[at.row][k];
    int* sum = k < 16 ? low : high;
    for (int i = 0; i < BLOCK; ++i) sum[i] += static_cast<int>(a * column[i] * factor[i]);
  }
  for (int i = 0; i < BLOCK; ++i) {
    const double kept = std::trunc(before[i] * power_of_two(FRACTION_BITS - greatest[i]));
    sums[i] = (static_cast<double>(low[i]) + high[i] + kept) * power_of_two(greatest[i] - FRACTION_BITS);
  }
  return true;
}

double special_sum(const Floats8& m, const Block& at, int i, int scaled, float before) {
  double special = std::isfinite(before) ? 0 : before;
  int greatest = float_exponent(before);
  for (int k = 0; k < 32; ++k) {
    const double product = static_cast<double>(m.a[at.row][k]) * m.b[k][at.column + i];
    greatest = std::max(greatest, m.a_exponent[at.row][k] + m.b_exponent[k][at.column + i] + scaled);
    if (!std::isfinite(product)) special += product;
  }
  if (special != 0 || std::isnan(special)) return special;
  greatest = std::max(greatest, -600);
  double total = std::trunc(std::ldexp(static_cast<double>(before), FRACTION_BITS - greatest));
  for (int k = 0; k < 32; ++k) {
    const double product = static_cast<double>(m.a[at.row][k]) * m.b[k][at.column + i];
    total += std::trunc(std::ldexp(product, FRACTION_BITS - greatest + scaled));
  }
  return std::ldexp(total, greatest - FRACTION_BITS);
}

// ---- 4-bit kinds: elements are halves

struct Halves {
  int8_t a[MAX_ROWS][MAX_K];
  int8_t b[MAX_K][COLUMNS];

  static int8_t twice(uint8_t code, bool negate) {
    constexpr int8_t magnitudes[] = {0, 1, 2, 3, 4, 6, 8, 12};
    const int8_t magnitude = magnitudes[code & 7];
    return ((code & 8) != 0) != negate ? static_cast<int8_t>(-magnitude) : magnitude;
  }
  void set_a(const Mma& op, const Codes& codes) {
    for (int row = 0; row < op.rows(); ++row)
      for (int k = 0; k < MAX_K; ++k) a[row][k] = twice(codes.a[row][k], op.form.negate_a);
  }
  void set_b(const Mma& op, const Codes& codes) {
    for (int k = 0; k < MAX_K; ++k)
      for (int column = 0; column < op.form.columns; ++column)
        b[k][column] = twice(codes.b[k][column], op.form.negate_b);
  }
};

// ---- scale factors, decoded once for a product

struct Scales {
  ScaleFactor a[4][MAX_ROWS][4];     // [quarter][row][which]
  ScaleFactor b[4][MAX_TILE_N][4];   // [quarter][column of the split][which]

  void set(const Mma& op, Cta& owner) {
    const TensorMemory& memory = tensor_memory(owner);
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int which = 0; which < op.scales; ++which) {
        for (int row = 0; row < op.rows(); ++row)
          a[quarter][row][which] =
              scale_factor(memory, op.scale_a, quarter, row, op.form.scale_a_id, which, op.form.ue8m0);
        for (int column = 0; column < op.width(); ++column)
          b[quarter][column][which] =
              scale_factor(memory, op.scale_b, quarter, column, op.form.scale_b_id, which, op.form.ue8m0);
      }
    }
  }
};

double four_bit_sum(const Mma& op, const Scales& scales, const Block& at, int i, const int (&sums)[4][BLOCK],
                    float before) {
  const ScaleFactor* of_a = scales.a[at.quarter][at.row];
  const ScaleFactor* of_b = scales.b[at.quarter][at.local + i];
  constexpr int zero = -126;  // the exponent of zeros
  if (std::isnan(before)) return before;
  double terms[4];
  int exponents[4], greatest = before == 0 ? zero : float_exponent(before);
  for (int g = 0; g < 4; ++g) {
    const ScaleFactor &x = of_a[g * op.scales / 4], &y = of_b[g * op.scales / 4];
    if (x.nan || y.nan) return std::numeric_limits<double>::quiet_NaN();
    terms[g] = sums[g][i] * 0.25 * x.significand * y.significand;
    exponents[g] = (x.significand == 0 ? zero : x.exponent) + (y.significand == 0 ? zero : y.exponent);
    greatest = std::max(greatest, exponents[g]);
  }
  if (!std::isfinite(before)) return before;
  double total = std::trunc(std::ldexp(static_cast<double>(before), FOUR_BIT_FRACTION_BITS - greatest));
  for (int g = 0; g < 4; ++g) total += std::trunc(std::ldexp(terms[g], FOUR_BIT_FRACTION_BITS + exponents[g] - greatest));
  return std::ldexp(total, greatest - FOUR_BIT_FRACTION_BITS);
}

// ---- blocks of D

struct Narrow {
  Codes codes;
  Floats8 floats;
  Halves halves;
  Scales scales;
};

void update_floats(const Mma& op, const Narrow& m, const Block& at, int count, uint32_t* cells) {
  float before[BLOCK] = {};
  int scaled[BLOCK] = {};
  bool nan[BLOCK] = {};
  double sums[BLOCK];
  for (int i = 0; i < count; ++i) {
    before[i] = float_of(op, cells[i]);
    if (op.kind != KIND_MXF8F6F4) continue;
    const ScaleFactor &x = m.scales.a[at.quarter][at.row][0], &y = m.scales.b[at.quarter][at.local + i][0];
    scaled[i] = x.exponent + y.exponent;
    nan[i] = x.nan || y.nan;
  }
  if (!finite_sums(m.floats, at, scaled, before, sums))
    for (int i = 0; i < count; ++i) sums[i] = special_sum(m.floats, at, i, scaled[i], before[i]);
  for (int i = 0; i < count; ++i) cells[i] = nan[i] ? TENSOR_CORE_NAN : cell_of(op, sums[i]);
}

void update_halves(const Mma& op, const Narrow& m, const Block& at, int count, uint32_t* cells) {
  int sums[4][BLOCK] = {};
  for (int k = 0; k < MAX_K; ++k) {
    const int a = m.halves.a[at.row][k];
    const int8_t* column = &m.halves.b[k][at.column];
    int* sum = sums[k / FOUR_BIT_BLOCK];
    for (int i = 0; i < BLOCK; ++i) sum[i] += a * column[i];
  }
  for (int i = 0; i < count; ++i)
    cells[i] = cell_of(op, four_bit_sum(op, m.scales, at, i, sums, float_of(op, cells[i])));
}

int integer_of(uint8_t code, bool is_signed) { return is_signed ? static_cast<int8_t>(code) : code; }

void update_integers(const Mma& op, const Narrow& m, const Block& at, int count, uint32_t* cells) {
  int sums[BLOCK] = {};
  for (int k = 0; k < 32; ++k) {
    const int a = integer_of(m.codes.a[at.row][k], op.form.a_type == 1);
    const uint8_t* column = &m.codes.b[k][at.column];
    for (int i = 0; i < BLOCK; ++i) sums[i] += a * integer_of(column[i], op.form.b_type == 1);
  }
  for (int i = 0; i < count; ++i) {
    const bool zero = op.zero_column(at.column + i);
    int64_t sum = (zero ? 0 : sums[i]) + (op.accumulate ? int64_t{static_cast<int32_t>(cells[i])} : 0);
    if (op.form.saturate)
      sum = std::clamp<int64_t>(sum, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
    cells[i] = static_cast<uint32_t>(sum);
  }
}

void multiply(const Mma& op, Cta& owner, const Narrow& m, int part, int split) {
  TensorMemory& memory = tensor_memory(owner);
  const int width = op.width();
  for (int row = 0; row < op.rows(); ++row) {
    const int lane = accumulator_lane(op.path(), row, op.d.lane, split);
    if (!op.enabled(part, lane)) continue;
    for (int local = 0; local < width; local += BLOCK) {
      const Block at{row, split * width + local, lane / 32, local};
      const int count = std::min(BLOCK, width - local);
      uint32_t cells[BLOCK] = {};
      for (int i = 0; i < count; ++i) cells[i] = memory.cell(lane, op.d.column + local + i);
      if (op.kind == KIND_I8)
        update_integers(op, m, at, count, cells);
      else if (is_four_bit(op.kind))
        update_halves(op, m, at, count, cells);
      else
        update_floats(op, m, at, count, cells);
      for (int i = 0; i < count; ++i) memory.write(lane, op.d.column + local + i, cells[i]);
    }
  }
}

}  // namespace

void multiply_narrow(const Mma& op) {
  static thread_local Narrow m;
  const bool floats = op.kind == KIND_F8F6F4 || op.kind == KIND_MXF8F6F4;
  for (int part = 0; part < op.group.count; ++part) {
    const int first = part * op.columns_of_b();
    gather_shared(op, *op.group.ctas[part], op.b, op.form.b_type,
                  [&](int column, int k, uint8_t code) { m.codes.b[k][first + column] = code; });
  }
  if (floats) m.floats.set_b(op, m.codes);
  if (is_four_bit(op.kind)) m.halves.set_b(op, m.codes);
  for (int part = 0; part < op.group.count; ++part) {
    Cta& owner = *op.group.ctas[part];
    if (is_block_scaled(op.kind)) m.scales.set(op, owner);
    for (int split = 0; split < op.splits(); ++split) {
      if (op.a_in_tmem) {
        gather_cells(op, owner, split, m.codes);
      } else if (split == 0) {
        gather_shared(op, owner, op.a, op.form.a_type, [&](int row, int k, uint8_t code) { m.codes.a[row][k] = code; });
      }
      if (floats) m.floats.set_a(op, m.codes);
      if (is_four_bit(op.kind)) m.halves.set_a(op, m.codes);
      multiply(op, owner, m, part, split);
    }
  }
}
