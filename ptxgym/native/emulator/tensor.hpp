// State of the asynchronous engines of one CTA: copies that complete by groups, wgmma collectives, and which layout the
// tensor copies left in shared memory.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>
#include "core.hpp"
#include "descriptor.hpp"
#include "tensor_map.hpp"
#include "tmem.hpp"

// ---- copies that complete by groups (PTX ISA 9.7.9.25.1.1)

// A copy whose reading of the source can be completed apart from its writing (cp.async.bulk.wait_group.read).
struct GroupCopy : AsyncOp {
  virtual void read_source(Cta&) = 0;
};

// The group copies of one warp. Groups belong to threads; an instruction of several lanes is one copy, shared by its
// lanes.
class CopyQueue {
 public:
  void issued(Cta&, uint64_t ticket, uint32_t lanes, GroupCopy*);
  void commit(const Cta&, int lane);
  // Completes all groups of the lane but the `pending` newest; with `read_only`, only their reading of sources.
  void wait(Cta&, int lane, int64_t pending, bool read_only);
  // Completes every copy that the lanes issued up to a ticket.
  void complete(Cta&, uint32_t lanes, uint64_t last_ticket, bool read_only = false);
  static uint64_t newest(const Cta& cta) { return cta.async.next_ticket - 1; }

 private:
  struct Copy {
    uint64_t ticket;
    uint32_t lanes;
    GroupCopy* op;
  };
  std::vector<Copy> copies_;             // still pending, ascending tickets
  std::vector<uint64_t> groups_[LANES];  // of every group that no wait has covered: the newest ticket it can hold
};

// ---- wgmma collectives

struct Collective;

// The warps of a warpgroup issue their wgmma in the same order: the n-th of each is one collective, which starts when
// all four have issued it and completes for all at once.
struct Warpgroup {
  std::vector<std::unique_ptr<Collective>> gathering;  // issued by some warps
  std::vector<uint64_t> tickets;                       // of those that all four issued, in order
  uint64_t issued[4] = {};                             // per warp
  std::vector<uint64_t> groups[4];  // per warp and committed group: collectives issued up to its commit
};

// ---- layouts

// What the last tensor copy left in a 128-byte line of shared memory. The hash tells whether the bytes are still the
// same.
struct LineLayout {
  uint64_t hash;
  uint64_t copy;   // its ticket
  int32_t inst;    // of the copy; -1: unknown
  int32_t reader;  // a wgmma that read some of it; -1: none did
  Swizzle swizzle;
  uint8_t read;  // bit per chunk that wgmma has read since
  TensorType type = TensorType::U8;  // of the tensor map
};

constexpr uint32_t LINE_BYTES = 128;

// A warp's tcgen05.alloc or tcgen05.dealloc of a pair of CTAs, which waits for that of the other CTA.
struct PairCall {
  int warp = -1, inst = -1;  // -1: nobody waits
  uint32_t columns = 0, address = 0;
  int column = -1;
  bool done = false;  // the other CTA's call has come: the warp goes on

  bool waits() const { return warp >= 0 && !done; }
};

struct Collectors;  // tcgen05_collector.cpp

struct TensorState : Extension {
  explicit TensorState(Cta&);
  void cta_exit(Cta& cta) override;
  std::vector<CopyQueue> bulk_stores, cp_async;  // per warp
  std::vector<Warpgroup> warpgroups;
  std::vector<LineLayout> lines;  // per 128 bytes of shared memory
  std::unique_ptr<TensorMemory> tmem;  // from the first use on
  std::vector<uint64_t> tmem_stores;   // per warp: ticket of the last tcgen05.st
  PairCall pair_alloc, pair_dealloc;
  std::shared_ptr<Collectors> collectors;  // of tcgen05.mma: from the first fill or use on
};

inline TensorState& tensor_state(Cta& cta) { return static_cast<TensorState&>(*cta.tensor); }
uint64_t line_hash(const uint8_t* line);

// Notes the copies that filled lines [begin, end) of which wgmma read a part, and nothing the rest.
void report_unread(Cta&, uint32_t begin, uint32_t end);

// Allocations of tensor memory that the CTA leaves behind.
void report_tensor_memory_leaks(Cta&);

// Hardware completes a copy in pieces, so a barrier that expects fewer bytes than arrive may end its phase on the way,
// with the surplus counted in the next one: an H200 did so in one run and not in another. Here it always ends: the
// kernel goes on, and what it then reads too early is found as well.
void complete_transaction(Cta&, Mbar&, uint32_t bytes);

// ---- operands

// Address operand of one lane: `reg` -1 means that `offset` is an address of the own shared memory.
inline uint64_t lane_address(const Cta& cta, Warp& warp, int32_t reg, bool wide, int lane, int64_t offset) {
  uint64_t base = cta.tag;
  if (reg >= 0) base = wide ? warp.reg<uint64_t>(reg)[lane] : warp.reg<uint32_t>(reg)[lane];
  return base + static_cast<uint64_t>(offset);
}

// The address operands a, b and c of an instruction that has several (ops.def: their offsets are pool values).
struct Addresses {
  const Cta& cta;
  Warp& warp;
  const Inst& inst;
  int64_t offsets[3];

  Addresses(const Cta& cta_, Warp& warp_, const Inst& inst_) : cta(cta_), warp(warp_), inst(inst_), offsets{} {
    for (int i = 0; i < inst.nvec2; ++i) offsets[i] = cta.pool(inst.vec2)[i];
  }
  uint64_t a(int lane) const { return lane_address(cta, warp, inst.a, inst.mods & M_A64, lane, offsets[0]); }
  uint64_t b(int lane) const { return lane_address(cta, warp, inst.b, inst.mods & M_B64, lane, offsets[1]); }
  uint64_t c(int lane) const { return lane_address(cta, warp, inst.c, inst.mods & M_C64, lane, offsets[2]); }
};

// ---- copies into the shared memory of a cluster (tensor_targets.cpp)

// Where one CTA receives a copy, and the mbarrier that counts its bytes.
struct CopyTarget {
  Cta* cta;
  Mbar* mbar;
};

// The CTAs that receive a copy to `shared` which signals the mbarrier at `mbar` (both shared::cluster addresses, or
// generic): one, or those of `mask` (PTX ISA 9.7.9.25.5.2: at the same offsets as in the CTA that the addresses name).
// `group` is the N of cta_group::N, or 0. Sets `offset`, the place in each. Empty after a fault was recorded.
std::vector<CopyTarget> copy_targets(Cta&, Warp&, const Inst&, int lane, uint64_t shared, uint64_t mbar, bool multicast,
                                     uint32_t mask, int64_t group, uint64_t& offset);

// Combines `bytes` of elements of `type` into memory, as cp.reduce.async.bulk does.
void reduce(uint8_t type, uint8_t op, bool flush, uint8_t* target, const uint8_t* source, uint32_t bytes);

// Warns of a reduction onto global memory that nothing has written; call it before the access is noted.
void note_unwritten_target(Cta&, Warp&, const Inst&, int lane, uint64_t address, uint64_t bytes);

// fence.proxy.tensormap, and the use of a map in global memory by a copy (tensor_map_edit.cpp).
void fence_tensor_maps(Cta&, Warp&, const Inst&, uint32_t mask);
void use_tensor_map(Cta&, Warp&, const Inst&, int lane, uint64_t address, const uint8_t* bytes);

Handler bind_tensor_map(const Inst&);
Handler bind_wmma(const Inst&);
Handler bind_tma(const Inst&);
Handler bind_copies(const Inst&);
Handler bind_wgmma(const Inst&);
Handler bind_tcgen05(const Inst&);
Handler bind_mma(const Inst&);
Handler bind_matrix(const Inst&);
