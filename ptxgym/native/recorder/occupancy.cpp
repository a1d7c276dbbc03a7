#include "occupancy.hpp"

#include <algorithm>

#include <cuda_occupancy.h>  // NVIDIA's own calculator, part of the toolkit

namespace recorder {
namespace {

constexpr int warp_threads = 32;
constexpr int threads_per_block_limit = 1024;
// CUDA occupancy rules, compute capability 7.0 to 10.0.
constexpr int register_granule_per_warp = 256;
constexpr int partitions_per_sm = 4;

int registers_per_warp(const Kernel& kernel) {
    const int used = kernel.registers * warp_threads;
    return (used + register_granule_per_warp - 1) / register_granule_per_warp * register_granule_per_warp;
}

cudaOccDeviceProp device() {
    const Profile& profile = state().profile;
    cudaOccDeviceProp device;
    device.computeMajor = profile.cc_major;
    device.computeMinor = profile.cc_minor;
    device.maxThreadsPerBlock = threads_per_block_limit;
    device.maxThreadsPerMultiprocessor = profile.threads_per_sm;
    device.regsPerBlock = profile.registers_per_block;
    device.regsPerMultiprocessor = profile.registers_per_sm;
    device.warpSize = warp_threads;
    device.sharedMemPerBlock = static_cast<std::size_t>(profile.smem_per_block_bytes);
    device.sharedMemPerMultiprocessor = static_cast<std::size_t>(profile.smem_per_sm_bytes);
    device.sharedMemPerBlockOptin = static_cast<std::size_t>(profile.smem_optin_bytes);
    device.reservedSharedMemPerBlock = static_cast<std::size_t>(profile.reserved_smem_bytes);
    device.numSms = profile.sm_count;
    return device;
}

cudaOccFuncAttributes function(const Kernel& kernel) {
    cudaOccFuncAttributes function{};
    function.maxThreadsPerBlock = kernel.threads_limit();
    function.numRegs = kernel.registers;
    function.sharedSizeBytes = static_cast<std::size_t>(kernel.static_smem_bytes);
    function.partitionedGCConfig = PARTITIONED_GC_OFF;
    function.shmemLimitConfig = kernel.max_dynamic_smem_bytes >= 0 ? FUNC_SHMEM_LIMIT_OPTIN : FUNC_SHMEM_LIMIT_DEFAULT;
    const std::size_t without_optin = static_cast<std::size_t>(state().profile.smem_per_block_bytes);
    function.maxDynamicSharedSizeBytes = kernel.max_dynamic_smem_bytes >= 0
                                             ? static_cast<std::size_t>(kernel.max_dynamic_smem_bytes)
                                             : without_optin - std::min(without_optin, function.sharedSizeBytes);
    return function;
}

cudaOccDeviceState device_state() {
    cudaOccDeviceState value{};
    value.carveoutConfig = SHAREDMEM_CARVEOUT_DEFAULT;
    return value;
}

}  // namespace

int blocks_per_sm(const Kernel& kernel, int threads, std::size_t dynamic_smem_bytes) {
    const cudaOccDeviceProp properties = device();
    const cudaOccFuncAttributes attributes = function(kernel);
    const cudaOccDeviceState current = device_state();
    if (threads > kernel.threads_limit() || dynamic_smem_bytes > attributes.maxDynamicSharedSizeBytes) return 0;
    cudaOccResult result{};
    const cudaOccError status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &attributes, &current,
                                                                        threads, dynamic_smem_bytes);
    return status == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : 0;
}

std::size_t available_smem_bytes(const Kernel& kernel, int blocks, int threads) {
    const cudaOccDeviceProp properties = device();
    const cudaOccFuncAttributes attributes = function(kernel);
    const cudaOccDeviceState current = device_state();
    std::size_t bytes = 0;
    const cudaOccError status =
        cudaOccAvailableDynamicSMemPerBlock(&bytes, &properties, &attributes, &current, blocks, threads);
    return status == CUDA_OCC_SUCCESS ? bytes : 0;
}

int active_clusters(const Kernel& kernel, int ctas, int threads, std::size_t dynamic_smem_bytes) {
    const Profile& profile = state().profile;
    const int resident = blocks_per_sm(kernel, threads, dynamic_smem_bytes);
    if (ctas <= 2) return resident * profile.sm_count / ctas;
    int clusters = 0;
    for (int sms : profile.gpc_sms)
        clusters += sms >= ctas || ctas <= profile.portable_cluster ? resident * sms / ctas : 0;
    return clusters;
}

// cuda_occupancy.h, cudaOccMaxBlocksPerSMRegsLimit: "the verification logic assumes register allocations are made to all
// partitions simultaneously".
int registers_per_block(const Kernel& kernel, int threads) {
    constexpr int threads_in_step = warp_threads * partitions_per_sm;
    return (threads + threads_in_step - 1) / threads_in_step * partitions_per_sm * registers_per_warp(kernel);
}

int launchable_threads(const Kernel& kernel) {
    const int per_warp = std::max(registers_per_warp(kernel), 1);
    const int warps = state().profile.registers_per_block / partitions_per_sm / per_warp * partitions_per_sm;
    return std::min(kernel.threads_limit(), warps * warp_threads);
}

}  // namespace recorder
