// Who may see what in shared memory: vector clocks over logical threads, one epoch per granule and access kind.
//
// Logical threads: every warp of the CTA; every mbarrier (its component counts completed phases, so "TMA load that completes on
// barrier b in phase p" is the epoch (b, p)); every warpgroup's wgmma queue (component counts collectives retired by wait_group);
// every issuing thread's bulk-store queue and every warp's cp.async queue (component counts groups).
// A warp carries two clocks: `seen` (ordinary happens-before) and `published` (generic writes that a fence.proxy.async has made
// visible to the async proxy). Releases and acquires hand over both.
// All checks happen when an operation is *issued*: an asynchronous access may take effect any time between issue and completion, so
// findings do not depend on the schedule.
#pragma once
#include <cstdint>

struct Cta;
struct Warp;
struct Mbar;

enum class Async : uint8_t { TmaLoad, TmaStore, BulkLoad, BulkStore, CpAsync, Wgmma };

struct Shadow {
  virtual ~Shadow() = default;
  virtual void reset(Cta&) = 0;  // a new CTA starts
  // generic proxy; inst: instruction index; lanes are given one contiguous range at a time
  virtual void read(Warp&, int inst, uint32_t addr, uint32_t bytes) = 0;
  virtual void write(Warp&, int inst, uint32_t addr, uint32_t bytes) = 0;
  virtual void atomic(Warp&, int inst, uint32_t addr, uint32_t bytes) = 0;
  virtual void proxy_fence(Warp&, int inst) = 0;
  // named barriers: arrive when a warp (some of its lanes) arrives, complete when the count is full, depart as each waiter goes on
  virtual void bar_arrive(Warp&, int id) = 0;
  virtual void bar_complete(int id) = 0;
  virtual void bar_depart(Warp&, int id) = 0;
  // mbarriers
  virtual void mbar_init(Warp&, int inst, Mbar&) = 0;   // also checks that others are told (fence + barrier) before they use it
  virtual void mbar_use(Warp&, int inst, Mbar&) = 0;    // arrive, expect_tx, wait, TMA operand: is the initialisation visible?
  virtual void mbar_arrive(Warp&, int inst, Mbar&) = 0; // release
  virtual void mbar_phase(Mbar&) = 0;                   // the current phase completed
  virtual void mbar_observe(Warp&, int inst, Mbar&, uint64_t phases) = 0;  // a wait returned: `phases` phases are complete. acquire
  // asynchronous operations; footprints are given as ranges, before or while data moves
  virtual void async_read(Warp& issuer, int inst, Async, uint32_t addr, uint32_t bytes, Mbar*) = 0;
  virtual void async_write(Warp& issuer, int inst, Async, uint32_t addr, uint32_t bytes, Mbar*) = 0;
  virtual void group_commit(Warp&, int inst, Async, int lane) = 0;         // BulkStore (per lane), CpAsync, Wgmma (per warp)
  virtual void group_wait(Warp&, int inst, Async, int lane, int64_t pending, bool read_only) = 0;
  virtual void cp_async_arrive(Warp&, int inst, Mbar&) = 0;                // cp.async.mbarrier.arrive
  virtual void exit(Warp&, int inst) = 0;                                  // a warp's last lanes exit: pending work?
};
