#include "wrapped.hpp"

#include <cstdlib>

#include "driver.hpp"

namespace executor {
namespace {

constexpr const char* empty_kernel =
    ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry ptxgym_warm_profiler() { ret; }\n";

}  // namespace

void warm_profiler_if_asked() {
    if (std::getenv("PTXGYM_EXECUTOR_WARM_PROFILER") == nullptr) return;
    const Stage stage("start");
    CUmodule module;
    check(driver().cuModuleLoadData(&module, empty_kernel), "cuModuleLoadData");
    CUfunction function;
    check(driver().cuModuleGetFunction(&function, module, "ptxgym_warm_profiler"), "cuModuleGetFunction");
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    check(driver().profiler_start(), "cuProfilerStart");
    check(driver().cuLaunchKernelEx(&config, function, nullptr, nullptr), "cuLaunchKernelEx");
    check(driver().cuCtxSynchronize(), "cuCtxSynchronize");
    check(driver().profiler_stop(), "cuProfilerStop");
    check(driver().cuModuleUnload(module), "cuModuleUnload");
}

bool leaves_unfilled() {
    return std::getenv("PTXGYM_EXECUTOR_UNFILLED") != nullptr;
}

bool allocates_exactly() {
    return std::getenv("PTXGYM_EXECUTOR_EXACT") != nullptr;
}

}  // namespace executor
