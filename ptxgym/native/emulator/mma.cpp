// mma.sync: one matrix product of a warp (PTX ISA 9.7.14.5.2 to .14).
//
// Fragments. With group = lane / 4, member = lane % 4 and E elements of A in a 32-bit register, register r of A holds
// row group + 8 (r % 2) and columns E member … + E − 1 of block r / 2, each block 4 E columns wide; B likewise,
// register r being block r of column `group`. Accumulator element i is row group + 8 (i / 2), column 2 member + i % 2.
// All listed shapes follow this one rule.
//
// Floating-point sums follow matrix_sum.hpp; an H200 agrees bit for bit. Its tensor cores multiply bytes for wgmma alone: an
// mma.sync of 8-bit floats becomes two of fp16 (byte_products). Doubles are summed by fma in ascending k; integers wrap, or
// saturate once with .satfinite. Bits are taken 32 at a time, as one element.
#include <algorithm>
#include <limits>

#include "byte_sum.hpp"
#include "core.hpp"
#include "matrix_sum.hpp"
#include "tensor.hpp"

namespace {

constexpr int COLUMNS = 8, MAX_ROWS = 16, MAX_K = 64;

struct Shape {
  int rows, k;
};

constexpr Shape shape_of(int64_t id) {
  switch (id) {
    case MMA_M16N8K4: return {16, 4};
    case MMA_M16N8K8: return {16, 8};
    case MMA_M16N8K16: return {16, 16};
    case MMA_M16N8K32: return {16, 32};
    case MMA_M8N8K16: return {8, 16};
    case MMA_M8N8K4: return {8, 4};
    case MMA_M8N8K32: return {8, 32};
    case MMA_M16N8K64: return {16, 64};
    case MMA_M8N8K128: return {8, 4};  // of bits: words
    case MMA_M16N8K128: return {16, 4};
    case MMA_M16N8K256: return {16, 8};
    default: return {0, 0};
  }
}

constexpr int element_bits(uint8_t type) {
  switch (type) {
    case T_F16:
    case T_BF16: return 16;
    case T_TF32:
    case T_B1: return 32;
    case T_U8:
    case T_S8:
    case T_E4M3:
    case T_E5M2: return 8;
    case T_U4:
    case T_S4: return 4;
    case T_F64: return 64;
    default: return 0;
  }
}

bool is_integer(uint8_t type) { return type == T_U8 || type == T_S8 || type == T_U4 || type == T_S4; }
bool is_byte_float(uint8_t type) { return type == T_E4M3 || type == T_E5M2; }

// Type of B's elements, beside the type of A's.
uint8_t type_of_b(const Inst& inst) {
  const bool second = inst.flags & F_B_SIGNED;  // and F_B_E5M2, the same bit
  switch (inst.stype) {
    case T_U8:
    case T_S8: return second ? T_S8 : T_U8;
    case T_U4:
    case T_S4: return second ? T_S4 : T_U4;
    case T_E4M3:
    case T_E5M2: return second ? T_E5M2 : T_E4M3;
    default: return inst.stype;
  }
}

template <class T>
T read_element(uint8_t type, uint32_t reg, int index);

template <>
Element read_element<Element>(uint8_t type, uint32_t reg, int index) {
  if (type == T_TF32) return tf32_element(reg);
  if (type == T_E4M3)  // as fp16, in which its subnormal numbers are normal
    return half_element(float_to_half(e4m3_element(static_cast<uint8_t>(reg >> 8 * index)).value));
  if (type == T_E5M2) return e5m2_element(static_cast<uint8_t>(reg >> 8 * index));
  const uint16_t bits = static_cast<uint16_t>(reg >> 16 * index);
  return type == T_BF16 ? bf16_element(bits) : half_element(bits);
}

template <>
int32_t read_element<int32_t>(uint8_t type, uint32_t reg, int index) {
  const uint8_t nibble = reg >> 4 * index & 15;
  if (type == T_U4) return nibble;
  if (type == T_S4) return nibble < 8 ? nibble : nibble - 16;
  const uint8_t bits = static_cast<uint8_t>(reg >> 8 * index);
  return type == T_S8 ? static_cast<int8_t>(bits) : bits;
}

template <>
uint32_t read_element<uint32_t>(uint8_t, uint32_t reg, int) {
  return reg;
}

template <class T>
struct Operands {
  T a[MAX_ROWS][MAX_K], b[COLUMNS][MAX_K];

  void gather(const Cta& cta, Warp& warp, const Inst& inst, const Shape& shape) {
    const uint8_t b_type = type_of_b(inst);
    const int per_register = 32 / element_bits(inst.stype), blocks = shape.k / (4 * per_register),
              halves = shape.rows / 8;
    const int32_t* registers = cta.pool(inst.vec2);
    for (int lane = 0; lane < LANES; ++lane) {
      const int group = lane / 4, member = lane % 4;
      for (int block = 0; block < blocks; ++block) {
        const int first = block * 4 * per_register + member * per_register;
        const uint32_t b_register = warp.reg<uint32_t>(registers[blocks * halves + block])[lane];
        for (int i = 0; i < per_register; ++i) b[group][first + i] = read_element<T>(b_type, b_register, i);
        for (int half = 0; half < halves; ++half) {
          const uint32_t a_register = warp.reg<uint32_t>(registers[block * halves + half])[lane];
          for (int i = 0; i < per_register; ++i)
            a[group + 8 * half][first + i] = read_element<T>(inst.stype, a_register, i);
        }
      }
    }
  }

  static int registers(const Inst& inst, const Shape& shape) {
    const int blocks = shape.k * element_bits(inst.stype) / 128;
    return blocks * (shape.rows / 8) + blocks;
  }
};

// The registers of C, copied because those of D may be the same ones in another order.
struct Addend {
  uint32_t value[4][LANES];

  Addend(const Cta& cta, Warp& warp, const Inst& inst, int first) {
    for (int i = 0; i < inst.nvec; ++i)
      std::memcpy(value[i], warp.reg<uint32_t>(cta.pool(inst.vec2)[first + i]), sizeof value[i]);
  }
};

// Rounded to the accumulator's type.
float rounded(float value, uint8_t type) { return type == T_F16 ? half_to_float(float_to_half(value)) : value; }

// One result of 8-bit elements, as ptxas builds it for sm_90a and sm_100a: fp16 products over the elements in the lower halves
// of all registers, from zero; onto that, over those in the upper halves; C is added last, rounded to nearest. Each step
// rounds to the type of D. An H200 agrees bit for bit on tests/golden (mma/e4m3, mma/e5m2).
float byte_products(int k, const Element* a, const Element* b, float addend, uint8_t type) {
  float total = 0;
  for (int upper = 0; upper < 2; ++upper) {
    const auto at = [=](int i) { return i / 2 * 4 + i % 2 + 2 * upper; };
    const auto from_a = [=](int i) { return a[at(i)]; };
    const auto from_b = [=](int i) { return b[at(i)]; };
    total = rounded(tensor_core_sum(k / 2, from_a, from_b, total, upper, type == T_F16), type);
  }
  const float sum = total + addend;
  return std::isnan(sum) ? bits_as<float>(TENSOR_CORE_NAN) : sum;
}

Step mma_float(Cta& cta, Warp& warp, const Inst& inst, uint32_t) {
  const Shape shape = shape_of(inst.imm);
  Operands<Element> operands;
  operands.gather(cta, warp, inst, shape);
  const Addend c(cta, warp, inst, Operands<Element>::registers(inst, shape));
  const int32_t* d = cta.pool(inst.vec);
  const auto sum = [&](int row, int column, float addend) {
    if (is_byte_float(inst.stype))
      return byte_products(shape.k, operands.a[row], operands.b[column], addend, inst.type);
    const auto a = [&](int k) { return operands.a[row][k]; };
    const auto b = [&](int k) { return operands.b[column][k]; };
    return tensor_core_sum(shape.k, a, b, addend, true, inst.type == T_F16);
  };
  for (int half = 0; half < 2; ++half) {
    for (int lane = 0; lane < LANES; ++lane) {
      const int row = lane / 4 + 8 * half, column = lane % 4 * 2;
      if (inst.type == T_F16) {
        const uint32_t before = c.value[half][lane];
        const uint16_t low = float_to_half(sum(row, column, half_to_float(static_cast<uint16_t>(before))));
        const uint16_t high = float_to_half(sum(row, column + 1, half_to_float(static_cast<uint16_t>(before >> 16))));
        warp.reg<uint32_t>(d[half])[lane] = low | static_cast<uint32_t>(high) << 16;
      } else {
        for (int parity = 0; parity < 2; ++parity) {
          const float before = bits_as<float>(c.value[half * 2 + parity][lane]);
          warp.reg<float>(d[half * 2 + parity])[lane] = sum(row, column + parity, before);
        }
      }
    }
  }
  return Step::Next;
}

Step mma_bits(Cta& cta, Warp& warp, const Inst& inst, uint32_t) {
  const Shape shape = shape_of(inst.imm);
  const bool ands = mods_low(inst.mods) == A_AND;
  Operands<uint32_t> operands;
  operands.gather(cta, warp, inst, shape);
  const Addend c(cta, warp, inst, Operands<uint32_t>::registers(inst, shape));
  for (int i = 0; i < shape.rows / 4; ++i) {
    for (int lane = 0; lane < LANES; ++lane) {
      const uint32_t *a = operands.a[lane / 4 + 8 * (i / 2)], *b = operands.b[lane % 4 * 2 + i % 2];
      uint32_t total = c.value[i][lane];
      for (int k = 0; k < shape.k; ++k)
        total += static_cast<uint32_t>(__builtin_popcount(ands ? a[k] & b[k] : a[k] ^ b[k]));
      warp.reg<uint32_t>(cta.pool(inst.vec)[i])[lane] = total;
    }
  }
  return Step::Next;
}

// Doubles: a register holds one element, and the fragments follow the same rule.
Step mma_double(Cta& cta, Warp& warp, const Inst& inst, uint32_t) {
  const Shape shape = shape_of(inst.imm);
  const int halves = shape.rows / 8, blocks = shape.k / 4;
  const int32_t* sources = cta.pool(inst.vec2);
  const auto element = [&](int index, int lane) { return warp.reg<double>(sources[index])[lane]; };
  double results[4][LANES];
  for (int i = 0; i < inst.nvec; ++i) {
    for (int lane = 0; lane < LANES; ++lane) {
      const int half = i / 2, group = lane / 4, column = lane % 4 * 2 + i % 2;
      double total = element(blocks * halves + blocks + i, lane);
      for (int k = 0; k < shape.k; ++k)
        total = std::fma(element(k / 4 * halves + half, group * 4 + k % 4),
                         element(blocks * halves + k / 4, column * 4 + k % 4), total);
      results[i][lane] = total;
    }
  }
  for (int i = 0; i < inst.nvec; ++i) std::memcpy(warp.reg<double>(cta.pool(inst.vec)[i]), results[i], sizeof results[i]);
  return Step::Next;
}

Step mma_integer(Cta& cta, Warp& warp, const Inst& inst, uint32_t) {
  const Shape shape = shape_of(inst.imm);
  Operands<int32_t> operands;
  operands.gather(cta, warp, inst, shape);
  const Addend c(cta, warp, inst, Operands<int32_t>::registers(inst, shape));
  const int32_t* d = cta.pool(inst.vec);
  for (int i = 0; i < shape.rows / 4; ++i) {
    for (int lane = 0; lane < LANES; ++lane) {
      const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
      int64_t total = static_cast<int32_t>(c.value[i][lane]);
      for (int k = 0; k < shape.k; ++k) total += int64_t{operands.a[row][k]} * operands.b[column][k];
      if (inst.flags & F_SAT) {
        total = std::clamp<int64_t>(total, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
      }
      warp.reg<int32_t>(d[i])[lane] = static_cast<int32_t>(static_cast<uint32_t>(total));
    }
  }
  return Step::Next;
}

template <Handler Execute>
Step whole_warp(Cta& cta, Warp& warp, const Inst& inst, uint32_t mask) {
  if (mask != FULL_MASK) {
    return cta.fault(warp, inst, first_lane(~mask), "mma.partial_warp",
                     "lanes 0x%08x of warp %d do not execute this mma.sync: all "
                     "threads of the warp must",
                     ~mask, warp.id);
  }
  return Execute(cta, warp, inst, mask);
}

}  // namespace

Handler bind_mma(const Inst& inst) {
  if (inst.op != OP_MMA) return nullptr;
  const Shape shape = shape_of(inst.imm);
  const int bits = element_bits(inst.stype);
  if (!shape.rows || !bits || (inst.stype != T_F64 && shape.k * bits % 128)) return nullptr;
  if (is_integer(inst.stype)) return inst.type == T_S32 ? whole_warp<mma_integer> : nullptr;
  if (inst.stype == T_B1) return inst.type == T_S32 ? whole_warp<mma_bits> : nullptr;
  if (inst.stype == T_F64) return inst.type == T_F64 ? whole_warp<mma_double> : nullptr;
  const bool half_result = inst.type == T_F16 && (inst.stype == T_F16 || is_byte_float(inst.stype));
  return shape.rows == 16 && shape.k <= (is_byte_float(inst.stype) ? 32 : 16) && (inst.type == T_F32 || half_result) ? whole_warp<mma_float> : nullptr;
}
