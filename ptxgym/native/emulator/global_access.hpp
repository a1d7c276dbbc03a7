// Where Grid::order is there: tells it of accesses to global memory, before the data moves.
#pragma once
#include "core.hpp"

// An access of lanes to [address, address + bytes) of a buffer; one lane accesses `each` bytes.
void order_global(Cta&, Warp&, const Inst&, Buffer&, uint64_t address, uint64_t bytes, uint64_t each, Access,
                  bool async = false);
// The same for a bulk, tensor or asynchronous copy: an access by who issues it.
void order_copy(Cta&, Warp&, const Inst&, uint64_t address, uint64_t bytes, Access);
