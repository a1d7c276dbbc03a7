// What atomics, reductions and bulk reductions do to memory.
#pragma once
#include <cstdint>

// Memory value of `type` (enum Type) after operation `op` (enum AtomOp): old value, operand b, and c, the new value of
// cas. `flush`: add.f32 turns subnormal inputs and results into zeros of their sign.
uint64_t combined(uint8_t type, uint8_t op, uint64_t old, uint64_t b, uint64_t c, bool flush);
