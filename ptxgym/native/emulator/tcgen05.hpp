// What the handlers of tcgen05 (PTX ISA 9.7.16, .cta_group::1) share.
#pragma once
#include "tcgen05_descriptor.hpp"
#include "tensor.hpp"
#include "tmem.hpp"
#include "wgmma_collective.hpp"

// Queues of AsyncEngine. mma, cp, shift and commit of one thread take effect in the order of issue, st of one warp too.
inline int tcgen05_queue(const Warp& warp, int lane) { return 1 << 12 | warp.id << 5 | lane; }
inline int tmem_store_queue(const Warp& warp) { return 1 << 16 | warp.id; }

TensorMemory& tensor_memory(Cta&);

// Whether columns [column, column + columns) exist and are allocated; false after a fault was recorded.
bool columns_allocated(Cta&, Warp&, const Inst&, int lane, const char* what, int column, int columns);

// Decodes a shared memory descriptor and checks what it says of itself; false after a fault was recorded.
bool sound_descriptor(Cta&, Warp&, const Inst&, int lane, uint64_t bits, const char* name, TensorDescriptor&);
// Whether all bytes of an operand are shared memory of the CTA; false after a fault was recorded.
bool operand_inside(Cta&, Warp&, const Inst&, int lane, const OperandBytes&, const char* name);

// Reading cells that nothing has written.
void report_unwritten_cells(Cta&, const Warp&, int inst, int lane, int column, const char* reader, Severity);

Handler bind_tcgen05_mma(const Inst&);
Handler bind_tcgen05_copy(const Inst&);
