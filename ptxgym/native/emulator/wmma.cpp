// wmma: fragments of whole matrices (PTX ISA 9.7.14.4). Which element a thread holds PTX leaves open, so that kernels may
// only do the same to all of them; 16×16 fragments are laid out here as those of mma.sync are, the others row by row.
// Elements that a fragment holds more than once (f16 and bf16 factors, where it is wider than the matrix) repeat.
#include <algorithm>
#include <limits>

#include "global_access.hpp"
#include "matrix_sum.hpp"
#include "tensor.hpp"

namespace {

struct Place {
  int row, column;
};

struct Shape {
  int rows, columns, role;

  Place place(int lane, int index) const {
    if (rows == 16 && columns == 16) {
      const int i = index % 8, low = lane % 4 * 2 + i % 2, high = lane / 4;
      if (role == FRAGMENT_B) return {low + 8 * (i / 2 % 2), high + 8 * (i / 4)};
      return {high + 8 * (i / 2 % 2), low + 8 * (i / 4)};
    }
    const int each = rows * columns / LANES, linear = lane * each + index % each;
    return {linear / columns, linear % columns};
  }
};

int element_bytes_of(uint8_t type) {
  switch (type) {
    case T_U8:
    case T_S8: return 1;
    case T_F16:
    case T_BF16: return 2;
    case T_F64: return 8;
    default: return 4;
  }
}

// Elements of a fragment as they lie in the registers of a lane.
struct Registers {
  const int32_t* offsets;
  int count, bytes;  // registers; of an element

  int elements() const { return bytes == 8 ? count : count * (4 / bytes); }
  uint8_t* at(Warp& w, int lane, int index) const {
    if (bytes == 8) return w.regs + offsets[index] + 8 * lane;
    const int per = 4 / bytes;
    return w.regs + offsets[index / per] + 4 * lane + index % per * bytes;
  }
};

bool whole(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  if (mask == FULL_MASK) return true;
  cta.fault(w, inst, first_lane(~mask), "mma.partial_warp",
            "lanes 0x%08x of warp %d do not execute this wmma: all threads of the warp must", ~mask, w.id);
  return false;
}

// Bytes of one row (or column) of the matrix in memory; nullptr after a fault was recorded.
uint8_t* line(Cta& cta, Warp& w, const Inst& inst, uint64_t address, uint32_t bytes, uint64_t align, bool writes) {
  const uint8_t space = mods_space(inst.mods);
  const bool shared =
      space == S_SHARED || (space == S_GENERIC && address >= SHARED_WINDOW && address < LOCAL_WINDOW);
  uint8_t* at = nullptr;
  if (shared) {
    const uint64_t offset = cta.own(address);
    if (offset % align == 0 && cta.shared_ok(offset, bytes)) {
      at = cta.shared(static_cast<uint32_t>(offset));
      if (cta.shadow && writes) cta.shadow->write(w, cta.index_of(inst), static_cast<uint32_t>(offset), bytes);
      if (cta.shadow && !writes) cta.shadow->read(w, cta.index_of(inst), static_cast<uint32_t>(offset), bytes);
    }
  } else if (address % align == 0) {
    at = cta.global(address, bytes, writes ? Access::Write : Access::Read);
  }
  if (!at) cta.fault_address(w, inst, 0, shared ? S_SHARED : S_GLOBAL, address, bytes, align, writes ? "wmma.store" : "wmma.load");
  return at;
}

// Tells the checks of global memory of the lines of a matrix that lie there: weak accesses (PTX ISA 9.7.14.4.3).
void note_lines(Cta& cta, Warp& w, const Inst& inst, const Ranges& lines, bool writes) {
  bool told = writes;
  Ranges inside;
  Buffer* buffer = nullptr;
  const auto tell = [&] {
    if (cta.order && buffer && !buffer->read_only)
      order_global(cta, w, inst, *buffer, inside, static_cast<uint64_t>(element_bytes_of(inst.type)),
                   writes ? Access::Write : Access::Read);
  };
  for (const Range& line : lines) {
    Buffer* const holds = cta.find_buffer(line.address, line.bytes);
    if (!holds) continue;  // shared memory
    if (!told) told = note_unwritten(cta, w, inst, 0, line.address, line.bytes, "wmma.load");
    if (holds != buffer) {
      tell();
      buffer = holds;
      inside = Ranges();
    }
    inside.add(line.address, line.bytes);
  }
  tell();
}

// Bytes that a GPU moves at once at the start of a row (or column): off a multiple of them it faults. As ptxas 13 makes it
// for sm_90a: 16-bit and tf32 elements by 4 bytes, accumulators by pairs of elements that lie side by side in memory,
// factors in .shared by ldmatrix.
uint64_t access_bytes(const Shape& shape, bool along_columns, uint64_t bytes, bool ldmatrix) {
  if (shape.role == FRAGMENT_C) {
    const bool paired = along_columns == (shape.rows != 8 || shape.columns == 8);
    return bytes == 2 ? 4 : paired ? 2 * bytes : bytes;
  }
  if (bytes == 1 && along_columns != (shape.role == FRAGMENT_A)) return 1;
  return bytes == 8 ? 8 : bytes <= 2 && ldmatrix ? 16 : 4;
}

// Rows off their alignment that a GPU moves nevertheless. The ISA asks for the size of the fragment (9.7.14.4.2), CUDA C++ of
// the stride for 16 bytes: real kernels pad rows by those.
void warn_of_alignment(Cta& cta, const Warp& w, const Inst& inst, uint64_t fragment_bytes, uint64_t align) {
  FindingRecord* f = cta.findings.add(cta, &w, 0, "wmma.misaligned_rows", Severity::Warning, cta.index_of(inst));
  if (!f) return;
  f->say("the rows (or columns) that this wmma moves do not all begin at a multiple of %llu bytes: it is undefined (the "
         "ISA asks for %llu bytes, the size of a fragment)",
         static_cast<unsigned long long>(align), static_cast<unsigned long long>(fragment_bytes));
  f->mend("align the pointer to 32 bytes, and let stride × size of an element be a multiple of 16 bytes");
}

// Rows that overlap. A stride of 0 that repeats one row, as of a bias, is what real kernels do.
void look_at_stride(Cta& cta, const Warp& w, const Inst& inst, uint32_t stride, int length, bool writes) {
  if (stride >= static_cast<uint32_t>(length)) return;
  FindingRecord* f = cta.findings.add(cta, &w, 0, "wmma.short_stride",
                                      stride || writes ? Severity::Warning : Severity::Note, cta.index_of(inst));
  if (!f) return;
  f->say("a stride of %u elements is less than the %d of a row (or column), so that they overlap: it is undefined", stride,
         length);
  f->mend("give the length of the matrix's rows (.row) or columns (.col) in memory, in elements, as the stride");
}

Step transfer(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  if (!whole(cta, w, inst, mask)) return Step::Fault;
  const int32_t* layout = cta.pool(inst.vec2);
  const Shape shape{layout[0], layout[1], layout[3]};
  const bool along_columns = layout[2], writes = inst.op == OP_WMMA_STORE;
  const int bytes = element_bytes_of(inst.type), lines = along_columns ? shape.rows : shape.columns,
            length = along_columns ? shape.columns : shape.rows;
  const Registers registers{cta.pool(inst.vec), inst.nvec, bytes};
  const uint64_t start = lane_address(cta, w, inst.a, inst.mods & M_A64, 0, inst.imm);
  const uint32_t stride = inst.b >= 0 ? w.reg<uint32_t>(inst.b)[0] : static_cast<uint32_t>(length);
  for (int lane = 1; lane < LANES; ++lane)
    if (lane_address(cta, w, inst.a, inst.mods & M_A64, lane, inst.imm) != start ||
        (inst.b >= 0 && w.reg<uint32_t>(inst.b)[lane] != stride))
      return cta.fault(w, inst, lane, "wmma.divergent_operands",
                       "lane %d gives another address or stride than lane 0: wmma moves one matrix of the warp", lane);
  const uint64_t fragment = static_cast<uint64_t>(inst.nvec) * (bytes == 8 ? 8 : 4);
  const uint64_t wanted = std::min<uint64_t>(fragment, 16);
  const uint64_t align =
      access_bytes(shape, along_columns, static_cast<uint64_t>(bytes), mods_space(inst.mods) == S_SHARED);
  look_at_stride(cta, w, inst, stride, length, writes);
  uint8_t* where[LANES];
  Ranges touched;
  for (int i = 0; i < lines; ++i) {
    const uint64_t address = start + uint64_t{stride} * static_cast<uint64_t>(i * bytes);
    if (address % align == 0 && address % wanted) warn_of_alignment(cta, w, inst, fragment, wanted);
    where[i] = line(cta, w, inst, address, static_cast<uint32_t>(length * bytes), align, writes);
    if (!where[i]) return Step::Fault;
    touched.add(address, static_cast<uint64_t>(length * bytes));
  }
  note_lines(cta, w, inst, touched, writes);
  for (int lane = 0; lane < LANES; ++lane) {
    for (int i = 0; i < registers.elements(); ++i) {
      const Place place = shape.place(lane, i);
      uint8_t* memory = where[along_columns ? place.row : place.column] +
                        (along_columns ? place.column : place.row) * bytes;
      uint8_t* held = registers.at(w, lane, i);
      if (writes)
        std::memcpy(memory, held, static_cast<size_t>(bytes));
      else
        std::memcpy(held, memory, static_cast<size_t>(bytes));
    }
  }
  if (writes) {
    cta.stored = true;
    ++cta.effects;
  }
  return Step::Next;
}

// ---- products

struct Factors {
  int m, n, k;
  Registers a, b, c, d;
  uint8_t c_type;
};

int register_count(uint8_t type, int elements, int repeats) {
  const int bytes = element_bytes_of(type), all = elements / LANES * repeats;
  return bytes == 8 ? all : all * bytes / 4;
}

Factors factors_of(Cta& cta, const Inst& inst) {
  Factors f;
  f.m = static_cast<int>(inst.imm & 255);
  f.n = static_cast<int>(inst.imm >> 8 & 255);
  f.k = static_cast<int>(inst.imm >> 16 & 255);
  f.c_type = inst.type;
  if (inst.flags & F_HAS_C) f.c_type = inst.type == T_F16 ? T_F32 : T_F16;
  const int bytes = element_bytes_of(inst.stype);
  const int repeats_a = inst.stype == T_F16 ? 512 / (f.m * f.k) : 1, repeats_b = inst.stype == T_F16 ? 512 / (f.n * f.k) : 1;
  const int count_a = register_count(inst.stype, f.m * f.k, repeats_a), count_b = register_count(inst.stype, f.n * f.k, repeats_b);
  const int32_t* sources = cta.pool(inst.vec2);
  f.a = {sources, count_a, bytes};
  f.b = {sources + count_a, count_b, bytes};
  f.c = {sources + count_a + count_b, inst.nvec2 - count_a - count_b, element_bytes_of(f.c_type)};
  f.d = {cta.pool(inst.vec), inst.nvec, element_bytes_of(inst.type)};
  return f;
}

template <class T>
T value_of(uint8_t type, const uint8_t* at);

template <>
Element value_of<Element>(uint8_t type, const uint8_t* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, static_cast<size_t>(element_bytes_of(type)));
  if (type == T_F16) return half_element(static_cast<uint16_t>(bits));
  return type == T_BF16 ? bf16_element(static_cast<uint16_t>(bits)) : tf32_element(bits);
}
template <>
int32_t value_of<int32_t>(uint8_t type, const uint8_t* at) {
  return type == T_S8 ? static_cast<int8_t>(*at) : *at;
}
template <>
double value_of<double>(uint8_t, const uint8_t* at) {
  double value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

constexpr int MAX_SIDE = 32;

template <class T>
void gather(Warp& w, const Registers& registers, uint8_t type, const Shape& shape, T (*out)[MAX_SIDE]) {
  for (int lane = 0; lane < LANES; ++lane)
    for (int i = 0; i < registers.elements(); ++i) {
      const Place place = shape.place(lane, i);
      out[place.row][place.column] = value_of<T>(type, registers.at(w, lane, i));
    }
}

// One element of D from its row of A, its column of B and its element of C.
void float_result(const Factors& f, const Inst& inst, const Element* row, const Element (*b)[MAX_SIDE], int column,
                  const uint8_t* c, uint8_t* d) {
  uint16_t half;
  std::memcpy(&half, c, 2);
  float addend;
  if (f.c_type == T_F16)
    addend = half_to_float(half);
  else
    std::memcpy(&addend, c, 4);
  float sum = addend;
  const int step = inst.stype == T_TF32 ? 4 : f.k;  // an H200 adds tf32 factors in two halves, the others at once
  for (int first = 0; first < f.k; first += step)
    sum = tensor_core_sum(
        step, [&](int k) { return row[first + k]; }, [&](int k) { return b[first + k][column]; }, sum, true,
        inst.type == T_F16);
  half = float_to_half(sum);
  std::memcpy(d, inst.type == T_F16 ? static_cast<const void*>(&half) : &sum, inst.type == T_F16 ? 2 : 4);
}
void integer_result(const Factors& f, const Inst& inst, const int32_t* row, const int32_t (*b)[MAX_SIDE], int column,
                    const uint8_t* c, uint8_t* d) {
  int32_t addend;
  std::memcpy(&addend, c, 4);
  int64_t total = addend;
  for (int k = 0; k < f.k; ++k) total += int64_t{row[k]} * b[k][column];
  if (inst.flags & F_SAT)
    total = std::clamp<int64_t>(total, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max());
  const auto result = static_cast<uint32_t>(total);
  std::memcpy(d, &result, 4);
}
void double_result(const Factors& f, const Inst&, const double* row, const double (*b)[MAX_SIDE], int column,
                   const uint8_t* c, uint8_t* d) {
  double total;
  std::memcpy(&total, c, 8);
  for (int k = 0; k < f.k; ++k) total = std::fma(row[k], b[k][column], total);
  std::memcpy(d, &total, 8);
}

template <class T, void (*RESULT)(const Factors&, const Inst&, const T*, const T (*)[MAX_SIDE], int, const uint8_t*, uint8_t*)>
Step product(Cta& cta, Warp& w, const Inst& inst, uint32_t mask) {
  if (!whole(cta, w, inst, mask)) return Step::Fault;
  const Factors f = factors_of(cta, inst);
  static thread_local T a[MAX_SIDE][MAX_SIDE], b[MAX_SIDE][MAX_SIDE];
  uint8_t b_type = inst.stype;
  if (b_type == T_U8 || b_type == T_S8) b_type = inst.flags & F_B_SIGNED ? T_S8 : T_U8;
  gather(w, f.a, inst.stype, {f.m, f.k, FRAGMENT_A}, a);
  gather(w, f.b, b_type, {f.k, f.n, FRAGMENT_B}, b);
  const Shape sum{f.m, f.n, FRAGMENT_C};
  std::vector<uint8_t> results(static_cast<size_t>(LANES * f.d.elements() * f.d.bytes));
  for (int lane = 0; lane < LANES; ++lane)
    for (int i = 0; i < f.d.elements(); ++i) {
      const Place place = sum.place(lane, i);
      RESULT(f, inst, a[place.row], b, place.column, f.c.at(w, lane, i),
             &results[static_cast<size_t>((lane * f.d.elements() + i) * f.d.bytes)]);
    }
  for (int lane = 0; lane < LANES; ++lane)  // D may be C
    for (int i = 0; i < f.d.elements(); ++i)
      std::memcpy(f.d.at(w, lane, i), &results[static_cast<size_t>((lane * f.d.elements() + i) * f.d.bytes)],
                  static_cast<size_t>(f.d.bytes));
  return Step::Next;
}

}  // namespace

Handler bind_wmma(const Inst& inst) {
  if (inst.op == OP_WMMA_LOAD || inst.op == OP_WMMA_STORE) return transfer;
  if (inst.op != OP_WMMA_MMA) return nullptr;
  switch (inst.stype) {
    case T_U8:
    case T_S8: return product<int32_t, integer_result>;
    case T_F64: return product<double, double_result>;
    default: return product<Element, float_result>;
  }
}
