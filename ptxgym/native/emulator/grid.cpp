// A launch: CTAs on several host threads where they are independent, one deterministic scheduler where they communicate.
//
// Independence is proved as the launch runs (space.cpp). Where the proof fails the buffers are restored and the CTAs run one after the
// other, so that results, counts and findings never depend on the number of threads.
#include "grid.hpp"
#include <algorithm>
#include <thread>
#include "schedule.hpp"

namespace {

constexpr size_t PRINT_LIMIT = 64 * 1024;

struct Counters {
  std::vector<uint64_t> warp, thread;
  explicit Counters(int64_t n) : warp(static_cast<size_t>(n)), thread(static_cast<size_t>(n)) {}
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

struct Run {
  std::vector<CtaResult> ctas;
  std::vector<Counters> counters;  // one per host thread
};

// A CTA that counts for itself until it has finished.
struct CountingCta : Cta {
  Counters own;
  explicit CountingCta(Grid& g) : Cta(g, g.program), own(g.program.kernel.ninst) {
    warp_counts = own.warp.data();
    thread_counts = own.thread.data();
  }
  void hand_over(Counters& total) {
    for (size_t i = 0; i < own.warp.size(); ++i) {
      total.warp[i] += own.warp[i];
      total.thread[i] += own.thread[i];
    }
    std::fill(own.warp.begin(), own.warp.end(), 0);
    std::fill(own.thread.begin(), own.thread.end(), 0);
  }
};

// CTAs in increasing order on `threads` host threads. Those after the first that failed may be missing.
Run run_independent(Grid& grid, unsigned threads) {
  Run run;
  run.ctas.resize(grid.ctas);
  run.counters.assign(threads, Counters(grid.program.kernel.ninst));
  std::atomic<uint64_t> next{0}, stop{grid.ctas}, executed{0};
  const auto work = [&](unsigned self) {
    CountingCta cta(grid);
    for (;;) {
      const uint64_t index = next.fetch_add(1);
      if (index >= stop.load() || grid.conflict.load() || executed.load() > grid.budget) return;
      cta.start(index);
      run_to_end(cta);
      executed += cta.warp_instructions;
      run.ctas[index].take(cta);
      cta.hand_over(run.counters[self]);
      if (cta.outcome != Outcome::Ok) {
        uint64_t limit = stop.load();
        while (index < limit && !stop.compare_exchange_weak(limit, index)) {
        }
      }
    }
  };
  std::vector<std::thread> pool;
  for (unsigned i = 1; i < threads; ++i) pool.emplace_back(work, i);
  work(0);
  for (std::thread& thread : pool) thread.join();
  return run;
}

// All resident CTAs take turns; the next one starts when one has finished, as on a GPU.
Run run_communicating(Grid& grid) {
  Run run;
  run.ctas.resize(grid.ctas);
  run.counters.assign(1, Counters(grid.program.kernel.ninst));
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
      for (const auto& cta : resident) run.ctas[cta->linear].take(*cta);
      return run;
    }
    std::sort(done.rbegin(), done.rend());
    for (const size_t at : done) {
      finished_instructions += resident[at]->warp_instructions;
      run.ctas[resident[at]->linear].take(*resident[at]);
      resident[at]->hand_over(run.counters[0]);
      spare.push_back(std::move(resident[at]));
      resident.erase(resident.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return run;
}

// Contents of the buffers that a launch may write.
struct Snapshot {
  std::vector<std::vector<uint8_t>> data, initialised;
  explicit Snapshot(const Grid& grid) {
    for (const Buffer& buffer : grid.buffers) {
      data.emplace_back(buffer.tags ? std::vector<uint8_t>(buffer.data, buffer.data + buffer.size) : std::vector<uint8_t>());
      initialised.emplace_back(buffer.tags && buffer.initialised ? std::vector<uint8_t>(buffer.initialised, buffer.initialised + buffer.size)
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

void merge_finding(std::vector<FindingRecord>& all, const FindingRecord& record, uint64_t limit) {
  for (FindingRecord& known : all)
    if (known.inst == record.inst && known.other_inst == record.other_inst && known.fatal == record.fatal &&
        std::strcmp(known.code, record.code) == 0) {
      known.count += record.count;
      return;
    }
  if (all.size() < limit || record.fatal) all.push_back(record);
}

// Sums up in CTA order; CTAs after the first that failed do not count.
LaunchResult summed(const Grid& grid, const Run& run) {
  LaunchResult result;
  result.warp_counts.assign(static_cast<size_t>(grid.program.kernel.ninst), 0);
  result.thread_counts = result.warp_counts;
  const bool communicating = run.counters.size() == 1 && (grid.program.kernel.features & FEAT_COMMUNICATES);
  for (const CtaResult& cta : run.ctas) {
    if (!cta.ran) {
      if (communicating) continue;
      break;
    }
    result.warp_instructions += cta.warp_instructions;
    result.tma_bytes += cta.tma_bytes;
    for (const FindingRecord& record : cta.findings) merge_finding(result.findings, record, grid.max_findings);
    if (result.printed.size() < PRINT_LIMIT) result.printed += cta.printed;
    if (result.outcome == Outcome::Ok) {
      if (cta.outcome != Outcome::Ok) result.outcome = cta.outcome;
      else if (result.warp_instructions > grid.budget) result.outcome = Outcome::Budget;
      if (result.outcome != Outcome::Ok) result.busiest = cta.busiest;
    }
    if (result.outcome != Outcome::Ok && !communicating) break;
  }
  if (result.printed.size() > PRINT_LIMIT) {
    static const std::string cut = "\n[printf output cut here]\n";
    result.printed.resize(PRINT_LIMIT - cut.size());
    result.printed += cut;
  }
  if (result.outcome != Outcome::Ok) return result;  // which CTAs ran beside the one that failed is a matter of chance
  for (const Counters& counters : run.counters)
    for (size_t i = 0; i < result.warp_counts.size(); ++i) {
      result.warp_counts[i] += counters.warp[i];
      result.thread_counts[i] += counters.thread[i];
    }
  return result;
}

}  // namespace

LaunchResult launch(Grid& grid, unsigned threads) {
  if (grid.program.kernel.features & FEAT_COMMUNICATES && grid.ctas > 1) return summed(grid, run_communicating(grid));
  threads = static_cast<unsigned>(std::min<uint64_t>(std::max(threads, 1u), grid.ctas));
  if (threads == 1) return summed(grid, run_independent(grid, 1));
  const Snapshot before(grid);
  grid.track = true;
  Run run = run_independent(grid, threads);
  grid.track = false;
  if (grid.conflict.load()) {
    before.restore(grid);
    grid.conflict = false;
    run = run_independent(grid, 1);
    LaunchResult result = summed(grid, run);
    result.reran = true;
    return result;
  }
  return summed(grid, run);
}
