// The execution core: warps, CTAs, the grid, asynchronous operations and what they report.
//
// Every instruction is bound once, at load, to a handler: a function specialised by operation, type and modifiers. Each
// source file of the core exports one `bind_*` that returns the handler of an instruction or nullptr; an instruction
// that none binds is an error that names it. The warp loop selects a group of lanes with equal program counter, parks
// it where the instruction is a collective, and calls the handler with the lanes whose guard holds.
#pragma once
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ir.hpp"
#include "shadow.hpp"

constexpr int LANES = 32;
constexpr uint32_t FULL_MASK = 0xffffffffu;

struct Cta;
class GlobalOrder;
struct Recurrence;
struct Warp;
struct Grid;
struct Cluster;

// What a handler tells the warp loop.
enum class Step : uint8_t {
  Next,   // executed: the group goes on at the next instruction
  Jump,   // executed: the whole group goes on at Warp::next_pc
  Split,  // executed: the handler has written Warp::pc of every lane of Warp::group
  Block,  // lanes that the handler put into Warp::blocked have NOT executed and try again when woken; the others of
          // `mask` have
  Park,   // nothing executed: the group waits here until every live lane of the warp has come
  Yield,  // executed: the group goes on at the next instruction, but the scheduler looks at the warp's lanes and others
          // first
  Exit,   // executed: the lanes of `mask` have exited
  Fault,  // Cta::fault was called: the CTA ends here
};
using Handler = Step (*)(Cta&, Warp&, const Inst&, uint32_t mask);

Handler bind_integer(const Inst&);
Handler bind_bits(const Inst&);
Handler bind_move(const Inst&);
Handler bind_float(const Inst&);
Handler bind_float_bits(const Inst&);
Handler bind_approximation(const Inst&);
Handler bind_convert(const Inst&);
Handler bind_convert_many(const Inst&);
Handler bind_memory(const Inst&);
Handler bind_atomic(const Inst&);
Handler bind_control(const Inst&);
Handler bind_registers(const Inst&);  // setmaxnreg
Handler bind_call(const Inst&);
Handler bind_launch(const Inst&);  // griddepcontrol, clusterlaunchcontrol
Handler bind_warp(const Inst&);
Handler bind_barrier(const Inst&);
Handler bind_cluster(const Inst&);
Handler bind_tensor(const Inst&);  // TMA, bulk copies, cp.async, wgmma, mma, ldmatrix, stmatrix, movmatrix

// ---- findings

enum class Severity : uint8_t { Note = 0, Warning = 1, Error = 2 };

// One finding, with the texts made here and the lines resolved by the driver. In `message`, `did` and `remedy` the form
// {@123} stands for the source line of instruction 123. `inst` and `other_inst` are instruction indices, -1 where there
// is none.
struct FindingRecord {
  char code[48];      // stable dotted name
  char message[384];  // what is wrong, in one sentence
  char who[2][64];    // parties: 0 acted at `inst`, 1 at `other_inst`; empty where there is none
  char did[2][192];
  char remedy[256];  // what would order them, or otherwise mend it
  int32_t inst, other_inst;
  int32_t warp, lane;  // of the first occurrence, -1 where meaningless
  uint64_t cta;        // linear index of the first CTA that saw it
  uint64_t address;
  uint64_t count;
  uint32_t severity;  // enum Severity
  uint32_t fatal;     // 1: it ended the launch

  void say(const char* format, ...) __attribute__((format(printf, 2, 3)));  // sets message
  void party(int index, const char* who_text, const char* format, ...) __attribute__((format(printf, 4, 5)));
  void mend(const char* format, ...) __attribute__((format(printf, 2, 3)));  // sets remedy
};

// Makes room for a finding where there is none: the last of those that weigh least goes, if it weighs less than the new
// one. An error decides the verdict, so no number of notes may keep it out. What ended a launch stays.
template <class Records> bool displace(Records& records, uint32_t severity) {
  auto least = records.end();
  for (auto at = records.begin(); at != records.end(); ++at) {
    if (at->fatal || at->severity >= severity) continue;
    if (least == records.end() || at->severity <= least->severity) least = at;
  }
  if (least == records.end()) return false;
  records.erase(least);
  return true;
}

// Findings of one CTA in the order of first occurrence, one per (code, inst, other_inst).
struct FindingSink {
  std::deque<FindingRecord> records;
  size_t limit = 200;
  // Returns the record to fill, or nullptr where the same finding was already made (its count goes up) or the sink is
  // full of what weighs as much. A finding that was made before, but weighs more this time, is filled again.
  FindingRecord* add(const char* code, Severity, int inst, int other_inst = -1);
  FindingRecord* add(Cta&, const Warp*, int lane, const char* code, Severity, int inst,
                     int other_inst = -1);  // also cta, warp, lane
};

// What the warps of a warpgroup executed as their n-th setmaxnreg (registers.cpp).
struct RegisterRequest {
  int inst = -1, warp = -1;  // of the first of them
  uint32_t warps = 0;        // that have executed it: bits within the warpgroup
  uint32_t marks[4] = {};    // Shadow::mark of each
};
struct RegisterRequests {
  std::deque<RegisterRequest> recent;
  uint32_t dropped = 0;  // that came before
};

// ---- asynchronous operations

enum class Policy : uint8_t { Eager = 0, Lazy = 1, Random = 2 };

// An operation that takes effect later than it is issued. `run` moves the data and signals completion; it is called
// once.
struct AsyncOp {
  uint64_t due = 0, ticket = 0;
  int inst = -1;
  virtual ~AsyncOp() = default;
  virtual void run(Cta&) = 0;
};

// Queue of one CTA. Unordered operations complete in any order; those of one ordered queue complete in the order of
// posting. Eager runs an operation as it is posted; Lazy when a wait needs it or nothing else can run (oldest first);
// Random after a delay drawn from the CTA's generator.
struct AsyncEngine {
  static constexpr int UNORDERED = -1;

  uint64_t post(Cta&, std::unique_ptr<AsyncOp>, int queue = UNORDERED);  // returns a ticket, greater than all before
  bool pending(uint64_t ticket) const;
  void complete(Cta&, uint64_t ticket);  // a wait needs it: runs it now, and what stands before it in its ordered queue
  bool pump(Cta&, uint64_t now);         // runs what is due; true if anything ran
  bool force(Cta&);                      // nothing can run: completes the next operation; false if there is none
  bool empty() const { return ops.empty(); }
  void clear() { ops.clear(); }

  struct Entry {
    std::unique_ptr<AsyncOp> op;
    int queue;
  };
  std::deque<Entry> ops;  // ascending tickets
  uint64_t next_ticket = 1;

 private:
  void take(Cta&, size_t index);
};

// ---- waiting

enum class WaitKind : uint8_t { None, Mbarrier, NamedBarrier, ClusterBarrier, Registers, PeerCta, Other };
struct Wait {
  WaitKind kind = WaitKind::None;
  int inst = -1;
  uint32_t address = 0;  // mbarrier address or named barrier id
  uint32_t parity = 0;
  const char* what = "";  // PeerCta, Other: completes "warp 3 waits ...", as in "for warps 5, 6 to issue the wgmma"
};

// ---- warps

struct Warp {
  uint8_t* regs = nullptr;
  int id = 0;             // within the CTA
  int cur = 0;            // index of the instruction that executes now
  int next_pc = 0;        // target of Step::Jump
  uint32_t group = 0;     // lanes at `cur` in this step, guard true or not
  uint32_t initial = 0;   // lanes that exist
  uint32_t live = 0;      // lanes that have not exited
  uint32_t blocked = 0;   // lanes that wait (see `wait`)
  uint32_t retry = 0;     // of the blocked: those that execute their instruction again when woken
  uint32_t parked = 0;    // lanes at a collective instruction whose partners have not all come
  uint32_t released = 0;  // lanes whose collective is complete: they execute it next
  int pc[LANES] = {};
  Wait wait[LANES];
  uint64_t executed = 0;     // warp instructions
  uint64_t seen_events = 0;  // value of Cta::events when the blocked lanes last tried
  uint32_t timed_out = 0;    // lanes whose try_wait reports failure instead of waiting again: nothing else can run
  uint32_t gave_up = 0;      // lanes whose try_wait has failed once under the random policy, and has not succeeded since
  int skip_pc = -1;          // fairness: the next group is chosen among lanes beyond this instruction
  uint8_t watch = 3;         // which bits of Shadow::watched() matter now
  int polls = 0;             // polling instructions (test_wait, volatile loads, ...) since the scheduler last chose
  uint32_t held = 0;         // registers of each thread, as setmaxnreg counts them
  uint32_t requests = 0;     // setmaxnreg instructions that it has executed
  int last_request = -1;     // the last of them
  bool left_early = false;   // it exited before any warp of its warpgroup had executed one
  uint16_t label = 0;     // names the warp in histories: its id; in a cluster also the rank of its CTA
  Cta* home = nullptr;
  uint32_t cluster_arrived = 0;  // lanes that arrived in the current phase of barrier.cluster
  uint32_t cluster_passed = 0;   // lanes whose phase of barrier.cluster is complete, and that have not waited for it yet

  template <class T>
  T* reg(int32_t offset) {
    return reinterpret_cast<T*>(regs + offset);
  }
  uint32_t& pred(int32_t offset) { return *reinterpret_cast<uint32_t*>(regs + offset); }
  void set_pred(int32_t offset, uint32_t mask, uint32_t value) {
    uint32_t& p = pred(offset);
    p = (p & ~mask) | (value & mask);
  }
  // Marks lanes as waiting. With `again` they have not executed and try again on the next event; return Step::Block.
  // Without, they have executed and stay until Cta::release; return Step::Yield.
  void block(uint32_t lanes, const Wait& why, bool again);
};

// Calls body(lane) for the lanes of mask; the full warp is a counted loop, which the compiler vectorises.
template <class Body>
inline void for_lanes(uint32_t mask, Body body) {
  if (mask == FULL_MASK) {
    for (int lane = 0; lane < LANES; ++lane) body(lane);
  } else {
    for (uint32_t rest = mask; rest; rest &= rest - 1) body(__builtin_ctz(rest));
  }
}
inline int first_lane(uint32_t mask) { return __builtin_ctz(mask); }

// ---- mbarriers

// State of one mbarrier object (PTX ISA 9.7.13.15). Its eight bytes in shared memory hold a tag, so that a plain store
// over them, or a wait on bytes that were never initialised, is seen.
struct Mbar {
  uint32_t address = 0;
  uint32_t expected = 0;  // arrivals per phase (falls with arrive_drop)
  uint32_t pending = 0;   // arrivals missing in the current phase
  int64_t tx = 0;         // bytes expected minus bytes completed
  uint64_t phases = 0;    // completed phases; the current phase has parity phases & 1
  int init_inst = -1;
  int last_arrive_inst = -1;
  int last_expect_inst = -1;
  bool valid = false;
  uint32_t index = 0;  // position in Cta::mbars
  Cta* home = nullptr;
};
constexpr uint64_t MBAR_TAG = 0x6d62'6172'a55a'0000ull;  // | index; no half of it is a likely plain value

constexpr int MAX_WARPS = 32;  // of a CTA

struct NamedBarrier {
  uint32_t arrived = 0;    // threads, 32 for each arrival of a warp
  uint32_t expected = 0;   // threads
  bool whole_cta = false;  // no thread count was given: `expected` follows exits
  bool reduces = false;    // the first who came reduces (.red)
  int first_inst = -1;     // -1 while no one has come
  uint32_t counted = 0;    // warps that have arrived
  uint32_t here[MAX_WARPS] = {};  // lanes that have come, of warps of which others have not
  uint32_t red_and = FULL_MASK, red_or = 0, red_count = 0;
  struct Waiter {
    Warp* warp;
    uint32_t lanes;
    int inst;
  };
  std::vector<Waiter> waiters;
  std::vector<Waiter> leaving;  // lanes that only arrive: they go on as soon as the rest of their warp has come
};

// ---- device memory

enum class Access : uint8_t { Read, Write, Atomic };

// One allocation. `tags` (one per 16 bytes) tell which CTA of this launch wrote and read; they prove that CTAs are
// independent.
struct GranuleTag {
  uint32_t writer, reader;  // CTA + 1; 0 nobody; reader ~0: several
};
struct Buffer {
  uint64_t base, size;
  uint8_t* data;
  uint8_t* initialised;  // one byte per byte, or nullptr where everything is
  GranuleTag* tags;      // nullptr where accesses need no proof
  uint8_t* stamps;       // one byte per byte (launch_control.cpp), or nullptr where launches do not overlap
  const char* name;
  uint32_t read_only;  // const data: stores are faults
  uint32_t is_input;
  bool ordered = false;  // reads are kept for Cta::order: the kernel writes it, or may
};

// ---- programs

enum class ParkKind : uint8_t { None, Aligned, Members };
enum Suspect : uint8_t { SUSPECT_NONE = 0, SUSPECT_REGISTER = 1, SUSPECT_EXTENT = 2 };
struct Slot {
  Handler handler;
  ParkKind park;
};
struct Program {
  Kernel kernel;
  std::vector<Slot> slots;
  std::vector<uint8_t> warp_image;  // registers of a fresh warp: constants in place, everything else poison
  std::vector<uint8_t> suspects;    // per instruction: bits of enum Suspect; empty where there are none
  bool needs_tensor_state = false;  // some instruction belongs to an asynchronous engine
  bool clusters = false;            // some instruction waits at the cluster barrier
  bool calls = false;               // some instruction calls a function
  bool steals = false;              // some instruction cancels the launch of other clusters
  bool grid_barrier = false;        // it asks for the memory of the grid-wide barrier (%envreg1)
  std::string error;                // not empty: names the instruction that has no handler
  explicit Program(const Kernel&);
  void refresh_constants();  // after the launcher has relocated symbols
};

// ---- CTA

// State that another source file keeps per CTA (wgmma collectives, copy groups).
struct Extension {
  virtual ~Extension() = default;
  virtual void lanes_exit(Cta&, Warp&, int /*inst*/, uint32_t /*lanes*/) {}  // before they leave `live`
  virtual void cta_exit(Cta&) {}  // all warps have exited; the queue is not drained yet
};
std::unique_ptr<Extension> make_tensor_state(Cta&);
std::unique_ptr<Shadow> make_shadow(Cta&);

// Return addresses of the threads of a warp, and what SAVE kept for them.
struct CallFrames {
  std::vector<int32_t> returns[LANES];
  std::vector<uint8_t> saved[LANES];
};

// A tensor map in global memory, as the tensor-map proxy last saw it for a CTA (tensor_map_edit.cpp).
struct MapSeen {
  uint8_t content[128];
  bool known = false;     // `content` is what it saw
  bool dirty = false;     // this CTA has rewritten it since
  bool released = false;  // and has released that towards the tensor-map proxy
  int inst = -1;          // of the last rewriting
};

enum class Outcome : uint32_t { Ok = 0, RuntimeFault = 1, Hang = 2, Budget = 3, Conflict = 4 };

struct Cta {
  Grid& grid;
  const Program& program;
  uint64_t linear = 0;
  uint32_t id[3] = {};
  std::vector<uint8_t> smem;  // addressed from 0; valid are [SMEM_BASE, smem_end)
  uint32_t smem_end = 0;
  std::vector<Warp> warps;
  std::vector<uint8_t> registers;
  std::vector<uint8_t> local;  // threads × local_bytes
  std::deque<Mbar> mbars;
  NamedBarrier barriers[16];
  AsyncEngine async;
  std::unique_ptr<Shadow> shadow;
  std::unique_ptr<Extension> tensor;
  FindingSink findings;
  GlobalOrder* order = nullptr;  // of accesses to global memory; nullptr: not looked at
  Outcome outcome = Outcome::Ok;
  std::string printed;
  uint64_t rng = 1;
  uint64_t now = 0;                 // scheduler ticks, for asynchronous delays
  bool stored = false;              // a store or an atomic changed shared or device memory in this tick
  uint64_t effects = 0;             // stores and arrivals so far: with `events`, all that others can notice
  uint64_t quiet_since = 0;         // warp instructions when they last changed
  uint64_t effects_then = 0;
  uint64_t idle_rounds = 0;         // ticks since a warp did anything but poll
  std::shared_ptr<Recurrence> recurrence;  // of the states of its warps in that time
  uint64_t clock = 0;               // virtual time in cycles and ns
  uint64_t events = 0;              // goes up when something happened that blocked lanes may wait for
  uint64_t timeout_events = ~0ull;  // value of `events` when suspended try_waits last timed out
  uint64_t warp_instructions = 0;
  uint64_t* warp_counts = nullptr;  // per instruction
  uint64_t* thread_counts = nullptr;
  uint64_t* multiply_adds = nullptr;  // per instruction: of those whose shape is known at run time only (tcgen05.mma)
  uint64_t tma_bytes = 0;  // tensor and bulk copies, both directions
  size_t hot_buffer = 0;   // last buffer that was accessed
  bool looked = false;     // a load or an atomic has met memory that others may write: neither input nor const
  Cluster* cluster = nullptr;  // nullptr: the launch has no clusters
  uint32_t rank = 0;           // %cluster_ctarank
  uint32_t tag = 0;            // rank << RANK_SHIFT: upper bits of own shared addresses
  uint64_t unit = 0;           // what is scheduled and proved independent: linear index of the cluster, or of the CTA
  bool ended = false;          // every warp has exited
  uint32_t spare_registers = 0;  // of the CTA's pool, for each thread of a warp: what setmaxnreg.dec gave back
  uint32_t left_registers = 0;   // the same: what warps held that have exited
  uint32_t lent_registers = 0;   // the same: of those, what others took before a setmaxnreg.dec gave enough
  int lent_at = -1;              // instruction that took them last
  std::vector<RegisterRequests> requests;  // by warpgroup; empty until a setmaxnreg
  std::vector<CallFrames> frames;  // per warp, where the program calls functions
  std::map<uint64_t, MapSeen> maps;  // by address
  const Warp* turn = nullptr;      // the warp that has its turn
  bool waited = true;     // griddepcontrol.wait, or the launches before are over
  bool triggered = false;  // griddepcontrol.launch_dependents
  bool cancel_failed = false;  // it has seen that nothing is left to cancel

  Cta(Grid&, const Program&);
  void start(uint64_t linear_index);  // takes the CTA's place in the grid: fresh registers, memory, barriers
  void start(Cluster&, uint32_t rank_in_cluster, uint64_t cluster_index, uint64_t linear_index);

  int index_of(const Inst& inst) const { return static_cast<int>(&inst - program.kernel.inst); }
  const int32_t* pool(int32_t at) const { return program.kernel.pool + at; }
  uint64_t random();  // xorshift; seeded by (seed, CTA)
  void lanes_exit(Warp&, const Inst&, uint32_t lanes);

  // Ends the CTA: `code` such as memory.out_of_bounds; the message names thing, value and place. Returns Step::Fault.
  Step fault(Warp&, const Inst&, int lane, const char* code, const char* format, ...)
      __attribute__((format(printf, 6, 7)));
  Step fault_address(Warp&, const Inst&, int lane, Space, uint64_t address, uint64_t bytes, uint64_t align,
                     const char* what);

  // Shared memory: offsets from SMEM_BASE, which are addresses without the CTA's rank. `own` turns a shared::cta or generic
  // address into the offset; addresses of other CTAs become offsets that are not shared_ok.
  uint64_t own(uint64_t address) const {
    if (address >= SHARED_WINDOW && address < LOCAL_WINDOW) address -= SHARED_WINDOW;
    return address - tag;
  }
  bool shared_ok(uint64_t address, uint64_t bytes) const {
    return address >= SMEM_BASE && bytes <= smem_end && address <= smem_end - bytes;
  }
  uint8_t* shared(uint32_t address) { return smem.data() + address; }

  // Device memory: a host pointer for [address, address + bytes), or nullptr where that is not inside one buffer (or a
  // store meets read-only data). Records the access for the independence proof and the initialised bytes.
  uint8_t* global(uint64_t address, uint64_t bytes, Access);
  void note_dependency(Buffer&, uint64_t offset, uint64_t bytes, Access);  // of launches that overlap (launch_control.cpp)
  void look_at(const Buffer& buffer) { looked |= !buffer.is_input && !buffer.read_only; }
  Buffer* find_buffer(uint64_t address, uint64_t bytes);  // the buffer that holds the whole range, or nullptr
  bool note_access(Buffer&, uint64_t offset, uint64_t bytes, Access);  // false: a store that the proof forbids; give up
  std::string describe_global(uint64_t address);                       // "4 bytes past the end of C (65536 bytes)"

  // mbarriers. `mbar_at` checks bounds, alignment and tag; nullptr after a fault was recorded (return Step::Fault).
  Mbar* mbar_at(Warp&, const Inst&, int lane, uint64_t address);
  // The same for a shared::cluster address, perhaps of another CTA; the owner is Mbar::home.
  Mbar* mbar_near(Warp&, const Inst&, int lane, uint64_t address);
  void mbar_arrive(Mbar&, uint32_t count);  // count <= pending; completes the phase where nothing is missing any more
  void mbar_expect_tx(Mbar&, uint64_t bytes);
  void mbar_complete_tx(Mbar&, uint64_t bytes);  // also from AsyncOp::run
  void wake() { ++events; }                      // lanes blocked with `again` look once more
  void release(Warp&, uint32_t lanes);           // lanes blocked without `again` go on
};

// What the decoder could not rule out about an instruction of `Program::suspects`: looks at the values (suspects.cpp).
void check_suspect(Cta&, Warp&, const Inst&, uint32_t mask);

// "warp 3", "warps 0-2, 5".
std::string warp_list(const std::vector<int>& warps);
void report_missing_requests(Cta&);  // of setmaxnreg, as the CTA ends

// ---- clusters (cluster.cpp)

// CTAs that run together and reach each other's shared memory.
struct Cluster {
  std::vector<Cta*> ctas;  // by rank
};

// A place in the shared memory of a CTA of the cluster.
struct SharedPlace {
  Cta* owner;  // nullptr: the address names no CTA of this cluster
  uint64_t offset;
};
// The place of a shared::cluster or generic address.
SharedPlace locate(Cta&, uint64_t address);
// Before a warp reaches into the shared memory of `owner`: another CTA must have begun, and not have ended.
void reach(Cta&, Warp&, const Inst&, int lane, Cta& owner);
// Completes the phase of barrier.cluster for which nothing is missing.
void recheck_cluster_barrier(Cta&);
// " of CTA 1 of its cluster", or nothing where there are no clusters.
std::string of_cta(const Cta&);

// ---- grid

// Units (CTAs or clusters) that have not begun.
struct LaunchQueue {
  uint64_t next, end;
};

struct Grid {
  const Program& program;
  uint32_t grid[3] = {}, block[3] = {};
  uint32_t threads_per_cta = 0, warps_per_cta = 0;
  uint32_t dynamic_smem_bytes = 0;
  uint64_t ctas = 0;
  uint32_t cluster[3] = {1, 1, 1};
  uint32_t cluster_size = 1;      // CTAs
  uint32_t registers = 0;  // of each thread at launch; 0: not known, and setmaxnreg has no effect
  bool explicit_cluster = false;  // the launch or the kernel names a cluster, even of one CTA
  uint64_t resident = 0;  // CTAs that one GPU holds at a time
  Policy policy = Policy::Eager;
  uint64_t seed = 0;
  uint64_t budget = 0;                // warp instructions
  bool zero_target_results = false;   // ablation: wgmma delivers zeros
  uint64_t workspace = 0;             // of the grid-wide barrier; 0: no cooperative launch
  bool programmatic = false;          // it may begin before the launch before it is over
  LaunchQueue* queue = nullptr;       // nullptr: nothing of it can be cancelled
  bool track = false;                 // several host threads: prove that CTAs are independent
  std::atomic<bool> conflict{false};  // they are not
  uint64_t max_findings = 200;
  std::vector<Buffer> buffers;  // ascending bases
  const uint8_t* params = nullptr;

  explicit Grid(const Program& p) : program(p) {}
};

// Coordinates of the first CTA of a unit.
void first_cta(const Grid&, uint64_t unit, uint32_t out[3]);

// Where an instruction of `kind` addresses memory, as a word for messages.
const char* space_name(Space);
