// The ordering analysis of one CTA: what every logical thread knows, the history of shared memory, registers in flight.
#pragma once
#include <algorithm>
#include <bitset>
#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>
#include "core.hpp"
#include "descriptor.hpp"
#include "shadow_history.hpp"

// Operations of one kind that complete by groups: `time` is the number of the operation in its queue, from 1.
struct GroupQueue {
  uint32_t component = 0;
  uint32_t issued = 0;
  uint32_t committed = 0;  // the last operation that some group holds
  uint32_t retired = 0;
  uint32_t handed_over = 0;  // the last operation that an mbarrier follows
  int last_inst = -1;
  uint32_t passed_over = 0;  // the last operation that a wait for all groups did not cover, for it was in none
  int passed_inst = -1, waited_inst = -1;  // they
  std::vector<uint32_t> groups;  // last operation of each group that no wait has covered
  // Of bulk stores, which are over for shared memory before they are for global memory:
  uint32_t writes = 0;            // component of what they write there, 0: nothing so far that is looked at
  uint32_t written = 0;           // the last operation whose writes are performed
  std::vector<uint32_t> writing;  // last operation of each group that only waits with .read have covered
  // Of tcgen05.mma, cp and shift:
  uint32_t passed_on = 0;  // the last operation that a tcgen05.fence::before_thread_sync follows
  struct Precedent {
    GroupQueue* queue;
    uint32_t time;
  };
  std::vector<Precedent> precedents;  // operations of other threads that some operation here executes after

  void commit() {
    committed = issued;
    groups.push_back(issued);
    if (writes) writing.push_back(issued);
  }
  // All but the `pending` newest groups are over (-1: everything issued); returns the last operation that is over.
  uint32_t wait(int64_t pending) {
    if (pending < 0) commit(), pending = 0;
    return pass(groups, pending, retired);
  }
  uint32_t wait_for_writes(int64_t pending) { return pass(writing, pending, written); }
  static uint32_t pass(std::vector<uint32_t>& groups, int64_t pending, uint32_t& over) {
    if (static_cast<int64_t>(groups.size()) > pending) {
      const auto last = groups.end() - pending;
      over = std::max(over, *(last - 1));
      groups.erase(groups.begin(), last);
    }
    return over;
  }
  bool uncommitted() const { return issued > committed; }
  bool pending() const { return issued > std::max(retired, handed_over); }
};

// Of a component that counts tcgen05.mma, cp and shift of a thread once they are complete: what to add for the one that
// counts those which are handed over in order, complete or not.
constexpr uint32_t IN_ORDER = 1;
// The same of tcgen05.ld that are complete (tcgen05.wait::ld): for those whose values have been used.
constexpr uint32_t DELIVERED = 1;

// A tcgen05.ld before tcgen05.wait::ld. More of them are not followed than anybody leaves without a wait.
constexpr size_t LOADED_REGISTERS = 128, LOADS_IN_FLIGHT = 256;  // at most
struct LoadInFlight {
  uint32_t time;                         // in its queue
  std::bitset<LOADED_REGISTERS> unused;  // the registers that nothing has computed with, or stored
};

// A register that wgmma reads or writes until a wait, or that tcgen05.ld writes, or that holds a value computed from one.
struct FlyingRegister {
  enum class Role : uint8_t { Accumulator, Fragment, Loaded, Copy };
  int32_t offset = 0;
  int32_t writer = -1;  // the wgmma or tcgen05.ld
  int32_t reader = -1;  // Copy: the first instruction that computed with it
  uint32_t time = 0;    // of the wgmma or tcgen05.ld in its queue
  uint32_t shape = 0;   // accumulators of one shape may follow each other
  Role role = Role::Accumulator;
  bool loaded = false;  // by tcgen05.ld
  std::bitset<LOADED_REGISTERS> moved;  // the registers of the tcgen05.ld that it is, or was moved from
  uint64_t loads = 0;                   // bits time % 64 of the tcgen05.ld that its value comes from

  bool comes_from(uint32_t load) const { return loaded && loads >> load % 64 & 1; }
};

// Which registers an instruction reads and writes, for kernels with wgmma or tcgen05.ld.
struct RegisterUse {
  enum : uint8_t {
    NONE = 0,
    OPERAND = 1,  // touches an operand of a wgmma
    DERIVED = 2,  // only values computed from one
    LOADED = 4,   // what a tcgen05.ld loaded, or values computed from it: matters until tcgen05.wait::ld
  };
  std::vector<int32_t> reads, writes;
  bool pure = false;  // computes in registers only: an early value can still be waited for before it escapes
};

// What a kernel's text says about wgmma registers, once per program.
class RegisterMap {
 public:
  explicit RegisterMap(const Kernel&);
  const uint8_t* flags() const { return flags_.empty() ? nullptr : flags_.data(); }
  const RegisterUse& use(int inst) const { return uses_[static_cast<size_t>(inst)]; }
  bool is_operand(int32_t offset) const { return operand_[static_cast<size_t>(offset >> 7)] != 0; }

 private:
  std::vector<uint8_t> flags_;
  std::vector<uint8_t> operand_;  // by register slot
  std::vector<RegisterUse> uses_;
};
RegisterUse registers_of(const Kernel&, const Inst&);

// Registers of one warp against its wgmma in flight.
class WarpRegisters {
 public:
  void reset(size_t register_slots);
  bool idle() const { return flying_.empty(); }
  const FlyingRegister* find(int32_t offset) const {
    const uint32_t at = slot_[static_cast<size_t>(offset >> 7)];
    return at ? &flying_[at - 1] : nullptr;
  }
  void add(const FlyingRegister&);
  void remove(int32_t offset);
  template <class Ended>
  void retire(uint32_t time, Ended ended) {
    for (size_t i = flying_.size(); i-- > 0;) {
      if (flying_[i].loaded || flying_[i].time > time) continue;
      ended(flying_[i]);
      remove(flying_[i].offset);
    }
  }
  void retire_loads();
  // Accesses by other instructions since the last wgmma.fence.
  void touch(int32_t offset, int inst);
  int touched(int32_t offset) const { return fenced_ ? touched_[static_cast<size_t>(offset >> 7)] - 1 : UNFENCED; }
  void fence();
  static constexpr int CLEAN = -1, UNFENCED = -2;
  // Whether any instruction has written the register.
  void set_written(int32_t offset) { written_[static_cast<size_t>(offset >> 7)] = true; }
  bool written(int32_t offset) const { return written_[static_cast<size_t>(offset >> 7)]; }

 private:
  std::vector<uint32_t> slot_;  // by register slot: index into flying_ + 1
  std::vector<FlyingRegister> flying_;
  std::vector<int32_t> touched_;  // by register slot: instruction + 1
  std::vector<int32_t> touched_list_;
  std::vector<uint8_t> written_;  // by register slot
  bool fenced_ = false;
};

struct WarpState {
  Knowledge now;
  Knowledge at_fence;    // at the last memory fence: what a relaxed store after it releases
  Knowledge to_acquire;  // what relaxed loads saw released: a fence acquires it
  bool fenced = false, has_to_acquire = false;
  // The same of fences whose scope reaches the other CTAs of the cluster, where scopes matter (ShadowState::scoped_).
  Knowledge at_far_fence, to_acquire_far;
  ForeignRef fence_near;                        // what the last fence of scope .cluster or wider releases
  ForeignRef to_acquire_wide, to_acquire_near;  // what relaxed loads of global memory saw released
  uint64_t last_flag = 0;                       // that was looked at, and what it held then
  uint32_t last_flag_version = 0;
  uint8_t last_flag_order = 0;
  uint32_t begun = 0;  // CTAs of the cluster that surely have, by rank
  uint32_t component = 0;
  uint32_t time = 1;
  uint32_t version = 0;  // changes with `now`; never the same in two warps
  GroupQueue wgmma, cp_async;
  std::unordered_map<int, GroupQueue> bulk;     // by lane
  std::unordered_map<int, GroupQueue> tcgen05;  // mma, cp, shift, by lane
  GroupQueue tmem_loads, tmem_stores;           // component 0: none so far
  std::deque<LoadInFlight> loads;
  Clock after_fence;                            // what was known at the last tcgen05.fence::after_thread_sync
  WarpRegisters registers;
};

struct BarrierState {
  uint32_t component = 0;
  Touch init;
  bool live = false, told_async = false;
  bool released = false;  // by a fence.mbarrier_init: what orders execution makes the initialisation visible as well
  Knowledge pending, done;
  int64_t expected = 0, issued = 0;  // bytes in the current phase
  int expect_inst = -1, load_inst = -1;
  uint16_t load_warp = 0, expect_warp = 0;
  struct Observer {
    uint64_t phases = 0;
    uint32_t time = 0;
    int inst = -1;
  };
  std::vector<Observer> observers;  // by warp
};

struct NamedBarrierState {
  Knowledge arriving;
  std::vector<uint8_t> arrived;                         // by warp, in this generation
  std::vector<std::shared_ptr<const Knowledge>> inbox;  // by warp: what its last complete generation released
};

// A column of 16 lanes of tensor memory.
struct TmemCell {
  Touch write;
  uint32_t shape = 0;        // of the tcgen05.mma that wrote it
  std::vector<Touch> reads;  // since the write, one per component
};

// What strong accesses released at an address.
struct FlagState {
  Knowledge released;  // to all
  Clock likely, tensor;
  // By rank, where scopes matter: what threads of a CTA released, to those of the same CTA, whatever the scope.
  std::vector<Knowledge> within;

  Knowledge& within_cta(uint32_t rank) {
    if (within.size() <= rank) within.resize(rank + 1);
    return within[rank];
  }
};
struct SharedFlag {
  std::shared_ptr<FlagState> state;  // of flags that one access sets they are one, until another access sets some of them
  // `version` of the warp that updated it alone and last, 0: that did otherwise. It knows all that is released here, while
  // nothing else changes for it.
  uint32_t holder = 0;
  bool holder_acquired = false;

  bool known_to(uint32_t version, bool acquire) const { return holder == version && (holder_acquired || !acquire); }
};
struct FlagRange {  // where lanes access flags of `each` bytes
  uint32_t address, bytes, each;
};

// What the CTAs of a cluster have in common.
struct ClusterKnowledge {
  uint32_t components = 0, versions = 0;
  Knowledge arriving;  // at the cluster barrier, in the current phase
  Knowledge arrived;   // in the one before: no thread can be two behind
};

class ShadowState final : public Shadow {
 public:
  explicit ShadowState(Cta&);
  void reset(Cta&) override;
  void read(Warp&, int inst, uint32_t addr, uint32_t bytes) override;
  void write(Warp&, int inst, uint32_t addr, uint32_t bytes) override;
  void atomic(Warp&, int inst, uint32_t addr, uint32_t bytes) override;
  void fence(Warp&, int inst) override;
  void proxy_fence(Warp&, int inst) override;
  void global(Warp&, GlobalOrder&, GlobalTouch&, Buffer&, const Ranges&, uint64_t each, int lane) override;
  void mbar_init_fence(Warp&, int inst) override;
  void bar_arrive(Warp&, int id) override;
  void bar_complete(int id) override;
  void bar_depart(Warp&, int id) override;
  void bar_together(int id) override;
  uint32_t mark(Warp& warp) override { return of(warp).time; }
  bool passed(const Warp& by, const Warp& other, uint32_t mark) override {
    return of(by).now.likely.covers(of(other).component, mark);
  }
  void cluster_arrive(Warp&, int inst) override;
  void cluster_complete() override;
  void cluster_wait(Warp&, int inst) override;
  void from_afar(Warp&, int inst) override;
  void mbar_init(Warp&, int inst, Mbar&) override;
  void mbar_inval(Warp&, int inst, Mbar&) override;
  void mbar_use(Warp&, int inst, Mbar&) override;
  void mbar_expect(Warp&, int inst, Mbar&, int64_t bytes) override;
  void mbar_arrive(Warp&, int inst, Mbar&) override;
  void mbar_phase(Mbar&) override;
  void mbar_observe(Warp&, int inst, Mbar&, uint64_t phases) override;
  void async_begin(Warp&, int inst, Async, int lane, Mbar*, uint32_t bytes) override;
  void async_share(Warp&, Async, int lane) override;
  void async_read(Warp&, int inst, Async, uint32_t addr, uint32_t bytes, Mbar*) override;
  void async_write(Warp&, int inst, Async, uint32_t addr, uint32_t bytes, Mbar*) override;
  void group_commit(Warp&, int inst, Async, int lane) override;
  void group_wait(Warp&, int inst, Async, int lane, int64_t pending, bool read_only) override;
  void cp_async_arrive(Warp&, int inst, Mbar&) override;
  const uint8_t* watched() const override { return map_->flags(); }
  void registers(Warp&, int inst) override;
  void wgmma_fence(Warp&, int inst) override;
  void tmem_allocated(int column, int columns) override;
  void tmem_access(Warp&, int inst, TmemUse, int lane, int column, int columns, uint32_t lanes,
                   uint32_t shape) override;
  void tmem_loaded(Warp&, int inst) override;
  void tmem_peer_dealloc(Warp&, int inst, int column, int columns) override;
  void tmem_wait(Warp&, int inst, bool stores) override;
  void tcgen05_fence(Warp&, int inst, bool after) override;
  int tcgen05_commit(Warp&, int inst, int lane) override;
  void tcgen05_arrive(int commit, Mbar&) override;
  void tcgen05_operand(Warp&, int inst, const Operand&, const char* name) override;
  void exit(Warp&, int inst) override;
  void finish() override;
  void stuck(Warp&, int inst, const Mbar&, uint32_t parity) override;

 private:
  struct Operation {  // one access by one warp with unchanged knowledge: the unit that histories are checked by
    uint32_t version = 0, number = 0;
    Touch access;
  };
  WarpState& of(const Warp& w) {
    if (__builtin_expect(w.home != &cta_, false)) return static_cast<ShadowState&>(*w.home->shadow).of(w);
    return warps_[static_cast<size_t>(w.id)];
  }
  const Warp& labelled(uint16_t label) const {
    const Cta& cta = cta_.cluster ? *cta_.cluster->ctas[(label >> 8) - 1u] : cta_;
    return cta.warps[label & 0xff];
  }
  BarrierState& of(const Mbar&);
  GroupQueue& queue(Warp&, Async, int lane);
  Touch own_touch(const Warp&, int inst, Kind, bool write);
  void changed(WarpState& w) { w.version = ++shared_->versions; }
  void tick(WarpState&);
  ForeignRef message(const Clock& own, const ForeignRef& others) const;
  void take(WarpState&, const ForeignRef&);
  void take_near(WarpState&, const ForeignRef&);
  void acquire_global(WarpState&, GlobalFlag&, uint64_t address, uint8_t order, uint8_t scope);
  void release_global(WarpState&, GlobalOrder&, const Ranges&, uint64_t each, uint8_t order, uint8_t scope);
  void tell_plainly(WarpState&, GlobalOrder&, const Ranges&, uint64_t each);
  void fence_global(WarpState&, const Inst&);
  void show_global(WarpState&);
  uint32_t number_of(const WarpState&, const Touch&);
  void touch(Warp&, const Touch&, uint32_t addr, uint32_t bytes);
  uint32_t next_history(Warp&, const Touch&, uint32_t history, uint32_t addr, uint32_t bytes);
  void check(Warp&, const Touch& earlier, const Touch& now, uint32_t addr, uint32_t bytes);
  bool fills_late(const Warp&, const Touch& before, const Touch& read, const Touch& now);
  void report_filled_late(const Warp&, const Touch& read, const Touch& now, uint32_t addr, uint32_t bytes);
  void same_value_or_race(Warp&, const Touch& earlier, const Touch& now, uint32_t addr, uint32_t bytes);
  bool reads_two_stages(const Touch& earlier, const Touch& now, uint32_t addr) const;
  void settle();
  void unordered(const Warp&, const Touch& earlier, const Touch& now, uint32_t addr, uint32_t bytes, Severity);
  void report_split_barriers();
  void report_not_committed(const Warp&, Async, int lane, const GroupQueue&, Severity);
  void report_pending(const Warp&, int exit, const GroupQueue&, const char* code, Severity, const char* what,
                      const char* wait, Kind);
  void report_tcgen05_pending(const Warp&, int exit, const GroupQueue&);
  void release_flags(const Warp&, const FlagRange&, const Inst&, bool updates);
  void acquire_flags(const Warp&, const FlagRange&, const Inst&);
  // Of fences; `far`: the scope reaches the cluster.
  void acquire_seen(WarpState&, bool far);   // what relaxed loads and waits saw released
  void release_later(WarpState&, bool far);  // by relaxed stores and arrivals that follow
  void issue_wgmma(Warp&, int inst);
  void report_unwritten(Warp&, int inst);
  void report_register(Warp&, int inst, const FlyingRegister&, bool writes);
  void use_loaded(WarpState&, const FlyingRegister&);
  void combine_loaded(WarpState&, FlyingRegister& result, const FlyingRegister& source, bool moves);
  bool stores_loaded(const Warp&, int inst, uint32_t load);
  void note_read_before_wait(Warp&, int inst, const FlyingRegister&);
  void report_early_copy(Warp&, const FlyingRegister&);
  std::string barrier_name(const Mbar&) const;
  void report_bytes(const Mbar&, const BarrierState&, const char* when);
  void check_layout(Warp&, int inst, const Operand&, const char* name, const Touch& reads);
  void note_lost_sums(Warp&, const Touch& now, int column, int columns, uint32_t lanes);
  bool tmem_ordered(Warp&, const Touch& earlier, uint32_t earlier_shape, const Touch& now, uint32_t shape, int column,
                    uint32_t lane);
  bool in_pipeline(Warp&, const Touch& earlier, uint32_t earlier_shape, const Touch& now, uint32_t shape, int column);
  void follow(Warp&, const Touch& earlier, const Touch& now);
  bool first_note(const Touch& earlier, const Touch& now);
  bool delivered_only(Warp&, const Touch& earlier, const Touch& now, int column, uint32_t lane);
  void note_missing_fence_before(Warp&, const Touch& earlier, const Touch& now);
  void report_tmem(Warp&, const Touch& earlier, const Touch& now, int column, uint32_t lane, Severity,
                   bool delivered = false);
  void report_unseen_commits(Warp&, int inst, const Mbar& awaited);
  void report_commits_of_twins(Warp&, int inst, const Mbar& awaited);
  void report_tcgen05_pipeline(Warp&, const Touch& earlier, const Touch& now, int column, Severity);

  Cta& cta_;
  std::shared_ptr<const RegisterMap> map_;
  const bool scoped_;  // CTAs share a cluster, and the scope of some flag or fence ends at the CTA
  std::vector<WarpState> warps_;
  std::deque<BarrierState> barriers_;  // by Mbar::index
  NamedBarrierState named_[16];
  GroupQueue* current_ = nullptr;  // of the asynchronous operation whose footprint follows
  uint16_t current_lane_ = 0;
  std::vector<Knowledge> collectives_;  // by warpgroup: what its warps knew when they issued wgmma
  std::unordered_map<uint32_t, SharedFlag> flags_;
  std::unordered_set<uint64_t> layouts_;  // descriptor fields that were found to be sound
  std::vector<TmemCell> tmem_;       // [16 lanes][column], empty until it is used
  std::deque<Knowledge> commits_;    // what the arrival of each tcgen05.commit hands over
  struct PassedOn {  // by a warp that has exited: a commit of another thread may still cover it
    const Warp* warp;
    int exit;
    const GroupQueue* queue;
  };
  std::vector<PassedOn> passed_on_;
  Touch noted_;  // the last operation on tensor memory that got a note, and the instruction that it follows
  int noted_earlier_ = -1;
  Histories histories_;
  Memo memo_;
  std::vector<Operation> operations_;  // direct-mapped
  Operation latest_;
  uint32_t operation_numbers_ = 0;
  std::shared_ptr<ClusterKnowledge> shared_;
  struct Deferred {  // two plain stores by different warps: harmless if they store the same value
    Touch earlier, now;
    Warp* warp;
    uint32_t addr;
    std::vector<uint8_t> before;
  };
  std::vector<Deferred> deferred_;
  struct SplitBarrier {  // a __syncthreads() that some warps met elsewhere, or not at all before they exited
    int inst, elsewhere;  // elsewhere -1: they exited
    std::vector<int> here, others;
  };
  std::vector<SplitBarrier> split_;
  std::unordered_set<uint64_t> filled_late_;  // store << 32 | reader: instructions of `fills_late`
  std::unordered_set<uint32_t> races_;  // pairs of warps by label: smaller << 16 | larger
};

// ---- texts of findings (shadow_report.cpp)

// Parties of a report that are no access to memory.
inline Touch by_warp(int warp, int inst) { return {0, inst, 0, static_cast<uint16_t>(warp), Kind::Generic, 0, 0}; }
inline Touch by_wgmma(int warp, int inst) { return {0, inst, 0, static_cast<uint16_t>(warp & ~3), Kind::Wgmma, 0, 0}; }
inline Touch by_load(int warp, int inst) { return {0, inst, 0, static_cast<uint16_t>(warp), Kind::TmaLoad, 1, 0}; }
inline Touch by_store(int warp, int inst, int lane) {
  return {0, inst, 0, static_cast<uint16_t>(warp), Kind::TmaStore, 0, static_cast<uint16_t>(lane)};
}
inline Touch by_tcgen05(int warp, int inst, int lane) {
  return {0, inst, 0, static_cast<uint16_t>(warp), Kind::Tcgen05, 0, static_cast<uint16_t>(lane)};
}
inline Touch nobody() { return {}; }

std::string who(const Touch&);
std::string verb(const Touch&);
void describe_pair(FindingRecord&, const Touch& now, const std::string& now_did, const Touch& earlier,
                   const std::string& earlier_did);
void report_unordered(Cta&, const Warp&, const Touch& earlier, const Touch& now, uint32_t addr, uint32_t bytes,
                      Severity, bool two_stages = false, bool out_of_scope = false);
void report_unfenced(Cta&, const Warp&, const Touch& earlier, const Touch& now, uint32_t addr, uint32_t bytes);
void report_uninitialised(Cta&, const Warp&, const Touch& now, uint32_t addr, uint32_t bytes);
void report_barrier_overwritten(Cta&, const Warp&, const Touch& init, const Touch& now, uint32_t addr, uint32_t bytes);
