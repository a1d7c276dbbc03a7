// A launch: CTAs on several host threads where they are independent, one deterministic scheduler where they
// communicate. A cluster is one unit: its CTAs share a host thread, whatever the number of threads.
//
// Independence is proved as the launch runs (space.cpp). Where the proof fails the buffers are restored and the units
// run one after the other, so that results, counts and findings never depend on the number of threads.
#include "grid.hpp"

#include <algorithm>
#include <map>
#include <thread>

#include "global_order.hpp"
#include "schedule.hpp"

namespace {

constexpr size_t PRINT_LIMIT = 64 * 1024;
constexpr uint64_t ENDLESS_STEP = 64;  // rounds of communicating CTAs between looks for loops without end
constexpr uint64_t BATCH = 1 << 16;  // CTAs whose results are kept apart at a time

struct Counters {
  std::vector<uint64_t> warp, thread, multiply_adds;
  explicit Counters(int64_t n) : warp(static_cast<size_t>(n)), thread(warp), multiply_adds(warp) {}
};

struct CtaResult {
  Outcome outcome = Outcome::Ok;
    uint64_t warp_instructions = 0, tma_bytes = 0;
  int64_t busiest = -1;
  bool looked = false;
  std::vector<FindingRecord> findings;
  std::string printed;

  void take(Cta& cta) {
    const uint64_t* counts = cta.warp_counts;
    busiest = std::max_element(counts, counts + cta.program.kernel.ninst) - counts;
    outcome = cta.outcome;
    warp_instructions = cta.warp_instructions;
    tma_bytes = cta.tma_bytes;
    looked = cta.looked;
    findings.assign(cta.findings.records.begin(), cta.findings.records.end());
    printed = std::move(cta.printed);
  }
};

// A CTA that counts for itself until it has finished.
struct CountingCta : Cta {
  Counters own;
  explicit CountingCta(Grid& g) : Cta(g, g.program), own(g.program.kernel.ninst) {
    warp_counts = own.warp.data();
    thread_counts = own.thread.data();
    multiply_adds = own.multiply_adds.data();
  }
  void hand_over(Counters& total) {
    for (size_t i = 0; i < own.warp.size(); ++i) {
      total.warp[i] += own.warp[i];
      total.thread[i] += own.thread[i];
      total.multiply_adds[i] += own.multiply_adds[i];
    }
    std::fill(own.warp.begin(), own.warp.end(), 0);
    std::fill(own.thread.begin(), own.thread.end(), 0);
    std::fill(own.multiply_adds.begin(), own.multiply_adds.end(), 0);
  }
};

// What is scheduled and proved independent as one: a CTA, or the CTAs of a cluster.
struct Unit {
  uint64_t index = 0;
  std::vector<std::unique_ptr<CountingCta>> ctas;
  Cluster cluster;

  GlobalOrder* const order;

  Unit(Grid& grid, GlobalOrder* order_of_accesses) : order(order_of_accesses) {
    for (uint32_t i = 0; i < grid.cluster_size; ++i) {
      ctas.push_back(std::make_unique<CountingCta>(grid));
      ctas.back()->order = order;
      cluster.ctas.push_back(ctas.back().get());
    }
  }
  Grid& grid() const { return ctas.front()->grid; }

  void start(uint64_t unit) {
    index = unit;
    const Grid& g = grid();
    if (ctas.size() == 1) return ctas.front()->start(unit);
    const uint32_t* n = g.cluster;
    uint32_t first[3];
    first_cta(g, unit, first);
    for (uint32_t rank = 0; rank < ctas.size(); ++rank) {
      const uint64_t x = first[0] + rank % n[0], y = first[1] + rank / n[0] % n[1], z = first[2] + rank / n[0] / n[1];
      ctas[rank]->start(cluster, rank, unit, x + g.grid[0] * (y + g.grid[1] * z));
    }
  }

  uint64_t warp_instructions() const {
    uint64_t sum = 0;
    for (const auto& cta : ctas) sum += cta->warp_instructions;
    return sum;
  }
  // The CTAs of a cluster idle together.
  bool idle() const {
    return ctas.front()->idle_rounds > IDLE_LIMIT ||
           std::all_of(ctas.begin(), ctas.end(), [](const auto& cta) { return recurs(*cta); });
  }
  bool quiet() const { return ctas.front()->idle_rounds > 0; }
  void forget_idle() {
    for (const auto& cta : ctas) ::forget_idle(*cta);
  }
  bool failed() const {
    return std::any_of(ctas.begin(), ctas.end(), [](const auto& cta) { return cta->outcome != Outcome::Ok; });
  }
  Slice slice() {
    if (ctas.size() == 1) return run_slice(*ctas.front());
    const Slice done = run_slice(cluster);
    if (done == Slice::Failed || warp_instructions() <= grid().budget) return done;
    ctas.front()->outcome = Outcome::Budget;
    return Slice::Failed;
  }
  void run_to_end() {
    for (;;) {
      const Slice done = slice();
      if (done == Slice::Finished || done == Slice::Failed) return;
      if (idle()) return give_up();
      if (grid().conflict.load(std::memory_order_relaxed)) return;
    }
  }
  void give_up() {
    for (const auto& cta : ctas)
      if (!cta->ended) return report_livelock(*cta);
  }
};

// Results of the CTAs of a unit, by rank.
struct UnitResult {
  std::vector<CtaResult> ctas;

  void take(Unit& unit) {
    ctas.resize(unit.ctas.size());
    for (size_t i = 0; i < ctas.size(); ++i) ctas[i].take(*unit.ctas[i]);
  }
  bool noteworthy() const {
    return std::any_of(ctas.begin(), ctas.end(), [](const CtaResult& cta) {
      return !cta.findings.empty() || !cta.printed.empty() || cta.outcome != Outcome::Ok;
    });
  }
};

void merge_finding(std::vector<FindingRecord>& all, const FindingRecord& record, uint64_t limit) {
  for (FindingRecord& known : all)
    if (known.inst == record.inst && known.other_inst == record.other_inst && known.fatal == record.fatal &&
        std::strcmp(known.code, record.code) == 0) {
      const uint64_t count = known.count + record.count;
      if (record.severity > known.severity) known = record;
      known.count = count;
      return;
    }
  if (all.size() < limit || record.fatal || displace(all, record.severity)) all.push_back(record);
}

LaunchResult nothing_yet(const Grid& grid) {
  LaunchResult result;
  result.warp_counts.assign(static_cast<size_t>(grid.program.kernel.ninst), 0);
  result.thread_counts = result.multiply_adds = result.warp_counts;
  return result;
}

// Adds a CTA to a result, in CTA order; the first that fails decides the outcome.
void absorb(LaunchResult& result, const Grid& grid, const CtaResult& cta) {
  result.warp_instructions += cta.warp_instructions;
  result.tma_bytes += cta.tma_bytes;
  result.looked |= cta.looked;
  for (const FindingRecord& record : cta.findings) merge_finding(result.findings, record, grid.max_findings);
  if (result.printed.size() < PRINT_LIMIT) result.printed += cta.printed;
  if (result.outcome != Outcome::Ok) return;
  if (cta.outcome != Outcome::Ok)
    result.outcome = cta.outcome;
  else if (result.warp_instructions > grid.budget)
    result.outcome = Outcome::Budget;
  if (result.outcome != Outcome::Ok) result.busiest = cta.busiest;
}

void absorb(LaunchResult& result, const Counters& counters) {
  for (size_t i = 0; i < result.warp_counts.size(); ++i) {
    result.warp_counts[i] += counters.warp[i];
    result.thread_counts[i] += counters.thread[i];
    result.multiply_adds[i] += counters.multiply_adds[i];
  }
}

LaunchResult shortened(LaunchResult result) {
  if (result.printed.size() > PRINT_LIMIT) {
    static const std::string cut = "\n[printf output cut here]\n";
    result.printed.resize(PRINT_LIMIT - cut.size());
    result.printed += cut;
  }
  return result;
}

LaunchResult finished(LaunchResult result) {
  if (result.outcome != Outcome::Ok) {  // which CTAs ran beside the one that failed is a matter of chance
    std::fill(result.warp_counts.begin(), result.warp_counts.end(), 0);
    std::fill(result.thread_counts.begin(), result.thread_counts.end(), 0);
    std::fill(result.multiply_adds.begin(), result.multiply_adds.end(), 0);
  }
  return shortened(std::move(result));
}

void absorb(LaunchResult& result, const Grid& grid, const UnitResult& unit) {
  for (const CtaResult& cta : unit.ctas) absorb(result, grid, cta);
}

// Units that run at a time, where others may be cancelled by those: at random, or half of them, as on a GPU that other
// work keeps busy. Else a small grid would run all at once, and never take over another's work.
uint64_t resident_units(const Grid& grid, uint64_t limit, uint64_t units) {
  if (!grid.program.steals) return limit;
  switch (grid.policy) {
    case Policy::Eager: return std::min(limit, (units + 1) / 2);
    case Policy::Lazy: return 1;
    default: return 1 + (grid.seed * 0x9e3779b97f4a7c15ull >> 33) % std::min(limit, std::max<uint64_t>(units - 1, 1));
  }
}

uint64_t units_of(const Grid& grid) { return grid.ctas / grid.cluster_size; }

using Orders = std::vector<std::unique_ptr<GlobalOrder>>;  // by host thread; empty: global memory is not looked at

// Runs units [begin, end) in increasing order on `threads` host threads and adds them to the result. Those after the
// first that fails may or may not run.
void run_batch(Grid& grid, unsigned threads, uint64_t begin, uint64_t end, const Orders& orders, LaunchResult& result) {
  std::vector<UnitResult> units(end - begin);
  std::vector<Counters> counters(threads, Counters(grid.program.kernel.ninst));
  std::atomic<uint64_t> next{begin}, stop{end}, executed{result.warp_instructions};
  const auto work = [&](unsigned self) {
    Unit unit(grid, orders.empty() ? nullptr : orders[self].get());
    while (!grid.conflict.load() && executed.load() <= grid.budget) {
      const uint64_t index =
          next.fetch_add(1);  // every unit that is taken runs: there are no gaps before the first that fails
      if (index >= stop.load()) return;
      unit.start(index);
      unit.run_to_end();
      executed += unit.warp_instructions();
      if (unit.order) unit.order->end_unit();
      units[index - begin].take(unit);
      for (const auto& cta : unit.ctas) cta->hand_over(counters[self]);
      if (unit.failed()) {
        uint64_t limit = stop.load();
        while (index < limit && !stop.compare_exchange_weak(limit, index)) {}
      }
    }
  };
  std::vector<std::thread> pool;
  for (unsigned i = 1; i < threads; ++i) pool.emplace_back(work, i);
  work(0);
  for (std::thread& thread : pool) thread.join();
  for (const UnitResult& unit : units) {
    if (unit.ctas.empty()) break;
    absorb(result, grid, unit);
    if (result.outcome != Outcome::Ok) break;
  }
  for (const Counters& counted : counters) absorb(result, counted);
}

// False: the units turned out not to be independent.
bool run_independent(Grid& grid, unsigned threads, const Orders& orders, LaunchResult& result) {
  const uint64_t units = units_of(grid);
  for (uint64_t begin = 0; begin < units && result.outcome == Outcome::Ok; begin += BATCH) {
    run_batch(grid, threads, begin, std::min(units, begin + BATCH), orders, result);
    if (grid.conflict.load()) return false;
  }
  return true;
}

bool goes_on_for_ever(const std::vector<std::unique_ptr<Unit>>& resident) {
  std::vector<Cta*> ctas;
  for (const auto& unit : resident) ctas.insert(ctas.end(), unit->cluster.ctas.begin(), unit->cluster.ctas.end());
  return run_without_end(ctas);
}

// All resident CTAs take turns; the next one (or the next cluster) starts when one has finished, as on a GPU.
LaunchResult run_communicating(Grid& grid, GlobalOrder& order) {
  std::map<uint64_t, UnitResult> noteworthy;  // of units that found, printed or failed
  Counters counters(grid.program.kernel.ninst);
  LaunchResult result = nothing_yet(grid);
  const auto take = [&](Unit& unit) {
    order.settle();
    UnitResult taken;
    taken.take(unit);
    for (const auto& cta : unit.ctas) cta->hand_over(counters);
    if (!taken.noteworthy())
      absorb(result, grid, taken);
    else
      noteworthy[unit.index] = std::move(taken);
  };
  const auto sum = [&] {
    for (const auto& [index, unit] : noteworthy) absorb(result, grid, unit);
    absorb(result, counters);
    return result;
  };
  const uint64_t units = units_of(grid);
  const uint64_t limit = resident_units(grid, std::max<uint64_t>(grid.resident / grid.cluster_size, 1), units);
  std::vector<std::unique_ptr<Unit>> resident, spare;
  LaunchQueue queue{0, units};
  grid.queue = &queue;
  uint64_t finished_instructions = 0, rounds = 0;
  const auto fill = [&] {
    while (queue.next < queue.end && resident.size() < limit) {
      if (spare.empty()) spare.push_back(std::make_unique<Unit>(grid, &order));
      spare.back()->start(queue.next++);
      resident.push_back(std::move(spare.back()));
      spare.pop_back();
    }
  };
  uint64_t mixing = grid.seed * 0x9e3779b97f4a7c15ull + 1;
  for (fill(); !resident.empty(); fill(), ++rounds) {
    size_t first = 0;
    if (grid.policy == Policy::Random) {
      mixing = mixing * 6364136223846793005ull + 1442695040888963407ull;
      first = static_cast<size_t>((mixing >> 33) % resident.size());
    }
    bool all_idle = true, all_quiet = true, failed = false;
    uint64_t executed = finished_instructions;
    for (const auto& unit : resident) executed += unit->warp_instructions();
    std::vector<size_t> done;
    for (size_t i = 0; i < resident.size() && !failed; ++i) {
      const size_t at = (first + i) % resident.size();
      Unit& unit = *resident[at];
      const uint64_t before = unit.warp_instructions();
      const Slice slice = unit.slice();
      executed += unit.warp_instructions() - before;
      if (slice == Slice::Finished) done.push_back(at);
      if (slice == Slice::Failed) failed = true;
      all_idle = all_idle && unit.idle();
      all_quiet = all_quiet && unit.quiet();
      if (!failed && executed > grid.budget) {
        unit.ctas.front()->outcome = Outcome::Budget;
        failed = true;
      }
    }
    if (!all_quiet || !done.empty()) {
      for (const auto& unit : resident) unit->forget_idle();
    } else if (!failed && all_idle) {
      resident.front()->give_up();
      failed = true;
    }
    failed = failed || (rounds % ENDLESS_STEP == 0 && goes_on_for_ever(resident));
    if (failed) {
      for (const auto& unit : resident) take(*unit);
      return sum();
    }
    std::sort(done.rbegin(), done.rend());
    for (const size_t at : done) {
      finished_instructions += resident[at]->warp_instructions();
      take(*resident[at]);
      spare.push_back(std::move(resident[at]));
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return sum();
}

// Contents of the buffers that a launch may write.
struct Snapshot {
  std::vector<std::vector<uint8_t>> data, initialised;
  explicit Snapshot(const Grid& grid) {
    for (const Buffer& buffer : grid.buffers) {
      data.emplace_back(buffer.tags ? std::vector<uint8_t>(buffer.data, buffer.data + buffer.size)
                                    : std::vector<uint8_t>());
      initialised.emplace_back(buffer.tags && buffer.initialised
                                   ? std::vector<uint8_t>(buffer.initialised, buffer.initialised + buffer.size)
                                   : std::vector<uint8_t>());
    }
  }
  void restore(Grid& grid) const {
    for (size_t i = 0; i < data.size(); ++i) {
      std::copy(data[i].begin(), data[i].end(), grid.buffers[i].data);
      if (!initialised[i].empty()) std::copy(initialised[i].begin(), initialised[i].end(), grid.buffers[i].initialised);
    }
  }
};

}  // namespace

void first_cta(const Grid& grid, uint64_t unit, uint32_t out[3]) {
  const uint32_t* n = grid.cluster;
  const uint64_t along_x = grid.grid[0] / n[0], along_y = grid.grid[1] / n[1];
  out[0] = static_cast<uint32_t>(unit % along_x * n[0]);
  out[1] = static_cast<uint32_t>(unit / along_x % along_y * n[1]);
  out[2] = static_cast<uint32_t>(unit / along_x / along_y * n[2]);
}

LaunchResult launch(Grid& grid, unsigned threads, uint64_t only) {
  if (only) {
    LaunchResult alone = nothing_yet(grid);
    if (only <= units_of(grid)) run_batch(grid, 1, only - 1, only, {}, alone);
    return shortened(std::move(alone));
  }
  const bool communicates = grid.program.kernel.features & FEAT_COMMUNICATES, clusters = grid.cluster_size > 1;
  const auto order_of_all = [&] {
    Orders one;
    if (grid.ctas > 1) one.push_back(std::make_unique<GlobalOrder>(grid, communicates || clusters));
    return one;
  };
  if (communicates && units_of(grid) > 1) return finished(run_communicating(grid, *order_of_all().front()));
  threads = static_cast<unsigned>(std::min<uint64_t>(std::max(threads, 1u), units_of(grid)));
  LaunchResult result = nothing_yet(grid);
  if (threads == 1) {
    run_independent(grid, 1, order_of_all(), result);
    return finished(std::move(result));
  }
  const Snapshot before(grid);
  grid.track = true;
  Orders orders;
  for (unsigned i = 0; clusters && i < threads; ++i) orders.push_back(std::make_unique<GlobalOrder>(grid, true, true));
  const bool independent = run_independent(grid, threads, orders, result);
  grid.track = false;
  if (!independent) {
    orders.clear();
    before.restore(grid);
    grid.conflict = false;
    result = nothing_yet(grid);
    result.reran = true;
    run_independent(grid, 1, order_of_all(), result);
  }
  return finished(std::move(result));
}
