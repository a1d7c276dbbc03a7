// The C interface that ptxgym/device/emulator/core.py speaks.
#include <malloc.h>

#include <algorithm>

#include "grid.hpp"

namespace {

// A launch allocates what the one before it freed: that much is kept instead of being given back and asked for anew.
constexpr int KEPT_BYTES = 64 << 20, APART_BYTES = 16 << 20;
void keep_memory() {
  mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
  mallopt(M_MMAP_THRESHOLD, APART_BYTES);
}

constexpr uint64_t WORKSPACE_BYTES = 64, WORKSPACE_ALIGN = 4096;  // of the grid-wide barrier of a cooperative launch

}  // namespace

extern "C" {

struct EmuBuffer {
  uint64_t base, size;
  uint8_t* data;
  uint8_t *initialised, *stamps;
  const char* name;
  uint32_t read_only, is_input;
};
struct EmuLaunch {
  uint32_t grid[3], block[3];
  uint32_t dynamic_smem_bytes, policy, threads, zero_target_results;
  uint32_t cluster[3], explicit_cluster;  // CTAs of a cluster along each axis; 1: the launch or the kernel names it
  uint32_t registers;                     // of each thread; 0: not known
  uint32_t cooperative, programmatic;
  uint32_t only;                          // 1 + the index of the one CTA, or cluster, that runs; 0: all
  uint64_t seed, budget, resident, max_findings;
  const EmuBuffer* buffers;
  int64_t nbuffers;
  const uint8_t* params;
};
struct EmuResult {
  uint32_t outcome, reran;
  uint64_t warp_instructions, tma_bytes;
  uint64_t *warp_counts, *thread_counts, *multiply_adds;  // [instructions], of the caller
  int64_t busiest;                                        // most executed instruction where the launch failed, else -1
  int64_t nfindings, nprinted;                            // fetched by emu_take
  uint32_t looked;
};

// Sizes by which caller and core check that they agree.
void emu_sizes(int64_t* out) {
  const int64_t sizes[] = {sizeof(Inst),      sizeof(Const),         sizeof(SregInit),
                           sizeof(Kernel),    sizeof(FindingRecord), sizeof(EmuBuffer),
                           sizeof(EmuLaunch), sizeof(EmuResult),     OP_COUNT,
                           sizeof(EarlyRead), sizeof(Extent)};
  std::copy(std::begin(sizes), std::end(sizes), out);
}

Program* emu_load(const Kernel* kernel, char* error, int64_t capacity) {
  static const bool kept = (keep_memory(), true);
  (void)kept;
  auto program = std::make_unique<Program>(*kernel);
  if (program->error.empty()) return program.release();
  std::snprintf(error, static_cast<size_t>(capacity), "%s", program->error.c_str());
  return nullptr;
}
void emu_refresh(Program* program) { program->refresh_constants(); }
void emu_unload(Program* program) { delete program; }

LaunchResult* emu_launch(Program* program, const EmuLaunch* args, EmuResult* out) {
  Grid grid(*program);
  std::copy(args->grid, args->grid + 3, grid.grid);
  std::copy(args->block, args->block + 3, grid.block);
  grid.threads_per_cta = args->block[0] * args->block[1] * args->block[2];
  grid.warps_per_cta = (grid.threads_per_cta + LANES - 1) / LANES;
  grid.ctas = uint64_t{args->grid[0]} * args->grid[1] * args->grid[2];
  std::copy(args->cluster, args->cluster + 3, grid.cluster);
  grid.cluster_size = args->cluster[0] * args->cluster[1] * args->cluster[2];
  grid.explicit_cluster = args->explicit_cluster;
  grid.registers = args->registers;
  grid.dynamic_smem_bytes = args->dynamic_smem_bytes;
  grid.resident = std::max<uint64_t>(args->resident ? args->resident : grid.ctas, 1);
  grid.policy = static_cast<Policy>(args->policy);
  grid.seed = args->seed;
  grid.budget = args->budget;
  grid.zero_target_results = args->zero_target_results;
  grid.max_findings = args->max_findings;
  grid.params = args->params;
  std::vector<std::vector<GranuleTag>> tags;
  grid.programmatic = args->programmatic;
  const bool parallel = args->threads > 1 && grid.ctas > grid.cluster_size && !(program->kernel.features & FEAT_COMMUNICATES);
  for (int64_t i = 0; i < args->nbuffers; ++i) {
    const EmuBuffer& b = args->buffers[i];
    GranuleTag* granules = nullptr;
    if (parallel && !b.is_input && !b.read_only) {
      tags.emplace_back(b.size / 16 + 1, GranuleTag{0, 0});
      granules = tags.back().data();
    }
    grid.buffers.push_back({b.base, b.size, b.data, b.initialised, granules, b.stamps, b.name, b.read_only, b.is_input});
  }
  std::vector<uint8_t> workspace(args->cooperative ? WORKSPACE_BYTES : 0, 0);
  if (args->cooperative) {
    const uint64_t end = grid.buffers.empty() ? GLOBAL_BASE : grid.buffers.back().base + grid.buffers.back().size;
    grid.workspace = (end / WORKSPACE_ALIGN + 2) * WORKSPACE_ALIGN;
    grid.buffers.push_back({grid.workspace, WORKSPACE_BYTES, workspace.data(), nullptr, nullptr, nullptr, "the memory of the grid-wide barrier", 0, 0});
  }
  auto result = std::make_unique<LaunchResult>(launch(grid, args->threads, args->only));
  out->outcome = static_cast<uint32_t>(result->outcome);
  out->reran = result->reran;
  out->looked = result->looked;
  out->warp_instructions = result->warp_instructions;
  out->tma_bytes = result->tma_bytes;
  std::copy(result->warp_counts.begin(), result->warp_counts.end(), out->warp_counts);
  std::copy(result->thread_counts.begin(), result->thread_counts.end(), out->thread_counts);
  std::copy(result->multiply_adds.begin(), result->multiply_adds.end(), out->multiply_adds);
  out->busiest = result->busiest;
  out->nfindings = static_cast<int64_t>(result->findings.size());
  out->nprinted = static_cast<int64_t>(result->printed.size());
  return result.release();
}
void emu_take(LaunchResult* result, FindingRecord* findings, char* printed) {
  std::copy(result->findings.begin(), result->findings.end(), findings);
  std::copy(result->printed.begin(), result->printed.end(), printed);
  delete result;
}

}  // extern "C"
