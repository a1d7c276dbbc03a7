// One wgmma.mma_async of a warpgroup: what its four warps issued, where its operands lie, and its execution.
#pragma once
#include <cstdint>
#include <vector>
#include "core.hpp"
#include "descriptor.hpp"

// The bytes that an operand takes in shared memory.
struct OperandBytes {
  Operand operand{};
  std::vector<uint32_t> chunks;  // address of every chunk, in the order of Operand::chunk_address
  struct Range {
    uint32_t address, bytes;
  };
  std::vector<Range> ranges;  // the same bytes, merged

  void place(const Operand&);
  void assign(std::vector<uint32_t> addresses);  // other chunks than all of the operand's
  uint32_t first() const { return ranges.front().address; }
  uint32_t end() const { return ranges.back().address + ranges.back().bytes; }
};

struct Collective : AsyncOp {
  const Inst* form = nullptr;
  int group = 0;            // warpgroup
  uint32_t issued = 0;      // bit per warp
  bool accumulate = false;  // scale-d
  uint64_t a_bits = 0, b_bits = 0;
  OperandBytes a, b;  // a: only where A comes from shared memory

  bool a_in_registers() const { return form->a < 0; }
  int columns() const { return static_cast<int>(form->imm); }
  void run(Cta&) override;
};

inline bool is_half(uint8_t type) { return type == T_F16 || type == T_BF16; }
void multiply_elements(Cta&, const Collective&);  // all other floats (wgmma_elements.cpp)
void multiply_integers(Cta&, const Collective&);  // u8 and s8 (wgmma_integers.cpp)

// What reading an operand tells of the tensor copies that wrote it: a swizzle other than theirs is an error.
void check_operand_layout(Cta&, const Warp&, int inst, const OperandBytes&, const char* name, const char* reader,
                          const char* swizzle_bits);
// Floats of one 16-bit format that a tensor map says to be of the other, read unchanged: a note, since a tensor copy of
// them is the same with either.
void note_element_type(Cta&, const Warp&, int inst, const OperandBytes&, const char* name, const char* reader,
                       bool bf16);
void mark_operand_read(Cta&, const OperandBytes&, int inst);
