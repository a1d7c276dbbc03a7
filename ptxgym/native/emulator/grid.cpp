// A launch: CTAs on several host threads where they are independent, one deterministic scheduler where they
// communicate.
//
// Independence is proved as the launch runs (space.cpp). Where the proof fails the buffers are restored and the CTAs
// run one after the other, so that results, counts and findings never depend on the number of threads.
#include "grid.hpp"

#include <algorithm>
#include <map>
#include <thread>

#include "schedule.hpp"

namespace {

constexpr size_t PRINT_LIMIT = 64 * 1024;
constexpr uint64_t BATCH = 1 << 16;  // CTAs whose results are kept apart at a time

struct Counters {
  std::vector<uint64_t> warp, thread, multiply_adds;
  explicit Counters(int64_t n) : warp(static_cast<size_t>(n)), thread(warp), multiply_adds(warp) {}
};

struct CtaResult {
  Outcome outcome = Outcome::Ok;
  bool ran = false;
  uint64_t warp_instructions = 0, tma_bytes = 0;
  int64_t busiest = -1;
  std::vector<FindingRecord> findings;
  std::string printed;

  void take(Cta& cta) {
    ran = true;
    const uint64_t* counts = cta.warp_counts;
    busiest = std::max_element(counts, counts + cta.program.kernel.ninst) - counts;
    outcome = cta.outcome;
    warp_instructions = cta.warp_instructions;
    tma_bytes = cta.tma_bytes;
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

void merge_finding(std::vector<FindingRecord>& all, const FindingRecord& record, uint64_t limit) {
  for (FindingRecord& known : all)
    if (known.inst == record.inst && known.other_inst == record.other_inst && known.fatal == record.fatal &&
        std::strcmp(known.code, record.code) == 0) {
      const uint64_t count = known.count + record.count;
      if (record.severity > known.severity) known = record;
      known.count = count;
      return;
    }
  if (all.size() < limit || record.fatal) all.push_back(record);
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

LaunchResult finished(LaunchResult result) {
  if (result.printed.size() > PRINT_LIMIT) {
    static const std::string cut = "\n[printf output cut here]\n";
    result.printed.resize(PRINT_LIMIT - cut.size());
    result.printed += cut;
  }
  if (result.outcome != Outcome::Ok) {  // which CTAs ran beside the one that failed is a matter of chance
    std::fill(result.warp_counts.begin(), result.warp_counts.end(), 0);
    std::fill(result.thread_counts.begin(), result.thread_counts.end(), 0);
    std::fill(result.multiply_adds.begin(), result.multiply_adds.end(), 0);
  }
  return result;
}

// Runs CTAs [begin, end) in increasing order on `threads` host threads and adds them to the result. Those after the
// first that fails may or may not run.
void run_batch(Grid& grid, unsigned threads, uint64_t begin, uint64_t end, LaunchResult& result) {
  std::vector<CtaResult> ctas(end - begin);
  std::vector<Counters> counters(threads, Counters(grid.program.kernel.ninst));
  std::atomic<uint64_t> next{begin}, stop{end}, executed{result.warp_instructions};
  const auto work = [&](unsigned self) {
    CountingCta cta(grid);
    while (!grid.conflict.load() && executed.load() <= grid.budget) {
      const uint64_t index =
          next.fetch_add(1);  // every CTA that is taken runs: there are no gaps before the first that fails
      if (index >= stop.load()) return;
      cta.start(index);
      run_to_end(cta);
      executed += cta.warp_instructions;
      ctas[index - begin].take(cta);
      cta.hand_over(counters[self]);
      if (cta.outcome != Outcome::Ok) {
        uint64_t limit = stop.load();
        while (index < limit && !stop.compare_exchange_weak(limit, index)) {}
      }
    }
  };
  std::vector<std::thread> pool;
  for (unsigned i = 1; i < threads; ++i) pool.emplace_back(work, i);
  work(0);
  for (std::thread& thread : pool) thread.join();
  for (const CtaResult& cta : ctas) {
    if (!cta.ran) break;
    absorb(result, grid, cta);
    if (result.outcome != Outcome::Ok) break;
  }
  for (const Counters& counted : counters) absorb(result, counted);
}

// False: the CTAs turned out not to be independent.
bool run_independent(Grid& grid, unsigned threads, LaunchResult& result) {
  for (uint64_t begin = 0; begin < grid.ctas && result.outcome == Outcome::Ok; begin += BATCH) {
    run_batch(grid, threads, begin, std::min(grid.ctas, begin + BATCH), result);
    if (grid.conflict.load()) return false;
  }
  return true;
}

// All resident CTAs take turns; the next one starts when one has finished, as on a GPU.
LaunchResult run_communicating(Grid& grid) {
  std::map<uint64_t, CtaResult> noteworthy;  // of CTAs that found, printed or failed
  Counters counters(grid.program.kernel.ninst);
  LaunchResult result = nothing_yet(grid);
  const auto take = [&](CountingCta& cta) {
    CtaResult taken;
    taken.take(cta);
    cta.hand_over(counters);
    if (taken.findings.empty() && taken.printed.empty() && taken.outcome == Outcome::Ok)
      absorb(result, grid, taken);
    else
      noteworthy[cta.linear] = std::move(taken);
  };
  const auto sum = [&] {
    for (const auto& [linear, cta] : noteworthy) absorb(result, grid, cta);
    absorb(result, counters);
    return result;
  };
  std::vector<std::unique_ptr<CountingCta>> resident, spare;
  uint64_t next = 0, finished_instructions = 0, rounds = 0;
  const auto fill = [&] {
    while (next < grid.ctas && resident.size() < grid.resident) {
      if (spare.empty()) spare.push_back(std::make_unique<CountingCta>(grid));
      spare.back()->start(next++);
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
    bool all_idle = true, failed = false;
    uint64_t executed = finished_instructions;
    for (const auto& cta : resident) executed += cta->warp_instructions;
    std::vector<size_t> done;
    for (size_t i = 0; i < resident.size() && !failed; ++i) {
      const size_t at = (first + i) % resident.size();
      Cta& cta = *resident[at];
      const uint64_t before = cta.warp_instructions;
      const Slice slice = run_slice(cta);
      executed += cta.warp_instructions - before;
      if (slice == Slice::Finished) done.push_back(at);
      if (slice == Slice::Failed) failed = true;
      all_idle = all_idle && cta.idle_rounds > IDLE_LIMIT;
      if (!failed && executed > grid.budget) {
        cta.outcome = Outcome::Budget;
        failed = true;
      }
    }
    if (!failed && all_idle && done.empty()) {
      report_livelock(*resident.front());
      failed = true;
    }
    if (failed) {
      for (const auto& cta : resident) take(*cta);
      return sum();
    }
    std::sort(done.rbegin(), done.rend());
    for (const size_t at : done) {
      finished_instructions += resident[at]->warp_instructions;
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

LaunchResult launch(Grid& grid, unsigned threads) {
  if (grid.program.kernel.features & FEAT_COMMUNICATES && grid.ctas > 1) return finished(run_communicating(grid));
  threads = static_cast<unsigned>(std::min<uint64_t>(std::max(threads, 1u), grid.ctas));
  LaunchResult result = nothing_yet(grid);
  if (threads == 1) {
    run_independent(grid, 1, result);
    return finished(std::move(result));
  }
  const Snapshot before(grid);
  grid.track = true;
  const bool independent = run_independent(grid, threads, result);
  grid.track = false;
  if (!independent) {
    before.restore(grid);
    grid.conflict = false;
    result = nothing_yet(grid);
    result.reran = true;
    run_independent(grid, 1, result);
  }
  return finished(std::move(result));
}
