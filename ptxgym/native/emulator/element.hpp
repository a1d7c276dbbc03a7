// How wide one element of an instruction's type is.
#pragma once

#include "ir.hpp"

inline uint32_t element_bytes(uint8_t type) {
  switch (type) {
    case T_U8:
    case T_S8: return 1;
    case T_U16:
    case T_S16:
    case T_F16:
    case T_BF16: return 2;
    case T_U64:
    case T_S64:
    case T_F64:
    case T_F32X2: return 8;
    case T_B128: return 16;
    default: return 4;
  }
}
