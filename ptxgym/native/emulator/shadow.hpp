// Who may see what in shared memory: vector clocks over logical threads, one interned history per 4-byte granule
// (shadow.cpp).
//
// Logical threads: every warp of the CTA; every mbarrier (its component counts completed phases, so "TMA load that
// completes on barrier b in phase p" is the epoch (b, p)); every warpgroup's wgmma queue (component counts collectives
// retired by wait_group); every issuing thread's bulk-store queue and every warp's cp.async queue (component counts
// groups). A warp carries three clocks: `seen` (ordinary happens-before), `published` (generic writes that a
// fence.proxy.async has made visible to the async proxy) and `likely` (order that hardware gives in practice, though
// nothing guarantees it). Releases and acquires hand over all three. All checks happen when an operation is *issued*:
// an asynchronous access may take effect any time between issue and completion, so findings do not depend on the
// schedule.
//
// Who calls what: the core everything but the asynchronous operations; tma and wgmma code those. A kernel that has
// neither FEAT_SHARED, FEAT_ASYNC nor FEAT_BARRIER, and no clusters, needs no Shadow at all. Addresses are shared::cta addresses, from
// SMEM_BASE up.
#pragma once
#include <cstdint>

struct Cta;
struct Warp;
struct Mbar;
struct Operand;
struct Buffer;
struct GlobalTouch;
struct GlobalFlag;
class GlobalOrder;
class Ranges;

enum class Async : uint8_t { TmaLoad, TmaStore, BulkLoad, BulkStore, CpAsync, Wgmma, StAsync, Reduce, BulkReduce, Tcgen05 };

// How tcgen05 touches tensor memory: ld, st, operand A, accumulator that is read and written, or written only, cp and
// shift, dealloc.
enum class TmemUse : uint8_t { Load, Store, Read, Accumulate, Overwrite, Write, Dealloc };

struct Shadow {
  virtual ~Shadow() = default;
  virtual void reset(Cta&) = 0;  // a new CTA starts

  // ---- generic proxy. inst: instruction index (the shadow reads memory order and scope from the instruction); a
  // warp's lanes are given as few contiguous ranges as the caller can form cheaply. Call before the data moves.
  virtual void read(Warp&, int inst, uint32_t addr, uint32_t bytes) = 0;
  virtual void write(Warp&, int inst, uint32_t addr, uint32_t bytes) = 0;
  virtual void atomic(Warp&, int inst, uint32_t addr, uint32_t bytes) = 0;
  virtual void fence(Warp&, int) {}               // membar, fence.acq_rel, fence.sc of any scope
  virtual void proxy_fence(Warp&, int inst) = 0;  // fence.proxy.async of any space
  virtual void mbar_init_fence(Warp&, int) {}     // fence.mbarrier_init

  // ---- global memory of a launch whose CTAs communicate (global_order.hpp): an access of lanes, each of so many bytes;
  // that of a copy, before its async_begin, names the lane that issues it
  virtual void global(Warp&, GlobalOrder&, GlobalTouch&, Buffer&, const Ranges&, uint64_t /*each*/, int /*lane*/) {}

  // ---- named barriers: arrive when a warp (some of its lanes) arrives, complete when the count is full, depart as
  // each waiter goes on
  virtual void bar_arrive(Warp&, int id) = 0;
  virtual void bar_complete(int id) = 0;
  virtual void bar_depart(Warp&, int id) = 0;
  virtual void bar_together(int) {}  // before bar_complete of a __syncthreads(): did all come, and to the same one?

  // ---- setmaxnreg: a mark of now, and whether `by` knows that another warp of its CTA has passed a mark
  virtual uint32_t mark(Warp&) { return 0; }
  virtual bool passed(const Warp& /*by*/, const Warp& /*other*/, uint32_t /*mark*/) { return false; }

  // ---- clusters. Accesses to the shared memory of another CTA go to that CTA's shadow, with the warp that makes them.
  virtual void cluster_arrive(Warp&, int) {}
  virtual void cluster_complete() {}  // of any CTA of the cluster
  virtual void cluster_wait(Warp&, int) {}
  virtual void from_afar(Warp&, int) {}  // before an access by a warp of another CTA: has this CTA surely begun?

  // ---- mbarriers
  virtual void mbar_init(Warp&, int inst,
                         Mbar&) = 0;  // also checks that others are told (fence + barrier) before they use it
  virtual void mbar_inval(Warp&, int, Mbar&) {}
  virtual void mbar_use(Warp&, int inst,
                        Mbar&) = 0;  // arrive, expect_tx, wait, TMA operand: is the initialisation visible?
  virtual void mbar_expect(Warp&, int, Mbar&, int64_t) {
  }  // expect_tx of so many bytes, after mbar_use, before any mbar_arrive
  virtual void mbar_arrive(Warp&, int inst, Mbar&) = 0;  // release
  virtual void mbar_phase(Mbar&) = 0;                    // the current phase completed
  virtual void mbar_observe(Warp&, int inst, Mbar&,
                            uint64_t phases) = 0;  // a wait returned: `phases` phases are complete. acquire

  // ---- asynchronous operations: async_begin once per operation and issuing lane (wgmma: once per warp, lane 0), then
  // its footprint as ranges. bytes: transaction bytes of a load that completes on an mbarrier, else 0.
  virtual void async_begin(Warp&, int, Async, int, Mbar*, uint32_t) {}  // (issuer, inst, kind, lane, mbarrier, bytes)
  virtual void async_share(Warp&, Async, int /*lane*/) {}  // what the warp began at its own CTA goes on at this one
  virtual void async_read(Warp& issuer, int inst, Async, uint32_t addr, uint32_t bytes, Mbar*) = 0;
  virtual void async_write(Warp& issuer, int inst, Async, uint32_t addr, uint32_t bytes, Mbar*) = 0;
  virtual void group_commit(Warp&, int inst, Async, int lane) = 0;  // BulkStore (per lane), CpAsync, Wgmma (per warp)
  virtual void group_wait(Warp&, int inst, Async, int lane, int64_t pending, bool read_only) = 0;
  virtual void cp_async_arrive(Warp&, int inst, Mbar&) = 0;  // cp.async.mbarrier.arrive

  // ---- registers of wgmma and tcgen05.ld. `watched()` has one byte per instruction, nullptr where the kernel has
  // neither; call `registers` before an instruction executes whose byte has a bit of Warp::watch (WGMMA and TCGEN05_LD
  // themselves excluded: async_begin and tmem_access do it).
  virtual const uint8_t* watched() const { return nullptr; }
  virtual void registers(Warp&, int) {}
  virtual void wgmma_fence(Warp&, int) {}

  // ---- tensor memory (PTX ISA 9.7.16.6). mma, cp and shift: async_begin by the issuing lane, then their shared memory
  // as async_read and their tensor memory as tmem_access; ld and st: tmem_access alone. `lanes`: a bit per 16 lanes of
  // tensor memory. `shape` tells accumulators apart.
  virtual void tmem_allocated(int /*column*/, int /*columns*/) {}
  virtual void tmem_access(Warp&, int /*inst*/, TmemUse, int /*lane*/, int /*column*/, int /*columns*/,
                           uint32_t /*lanes*/, uint32_t /*shape*/ = 0) {}
  virtual void tmem_loaded(Warp&, int /*inst*/) {}  // after the accesses of a tcgen05.ld: what happens to its registers?
  // tcgen05.dealloc of a pair, at the CTA that the warp does not belong to: are that CTA's accesses over?
  virtual void tmem_peer_dealloc(Warp&, int /*inst*/, int /*column*/, int /*columns*/) {}
  virtual void tmem_wait(Warp&, int /*inst*/, bool /*stores*/) {}       // tcgen05.wait::ld, wait::st
  virtual void tcgen05_fence(Warp&, int /*inst*/, bool /*after*/) {}    // before_thread_sync, after_thread_sync
  virtual int tcgen05_commit(Warp&, int /*inst*/, int /*lane*/) { return 0; }  // what its arrival hands over:
  virtual void tcgen05_arrive(int /*commit*/, Mbar&) {}                 // release, as the arrival happens
  virtual void tcgen05_operand(Warp&, int /*inst*/, const Operand&, const char* /*name*/) {}  // can it mean that?

  virtual void exit(Warp&, int inst) = 0;                   // a warp's last lanes exit: pending work?
  virtual void finish() {}                                  // every warp of the CTA has exited
  virtual void stuck(Warp&, int, const Mbar&, uint32_t) {}  // deadlock: (warp, inst, mbarrier, parity) of a waiter
};
