// What the profile does not hold is equal on the devices that ptxgym knows, or of no use to a kernel's launch:
// values read on an H200 (driver 580.95, CUDA 13.0).

#include "device.hpp"

#include <cstring>
#include <map>

#include "state.hpp"

namespace recorder {
namespace {

// clang-format off
const std::map<int, int>& fixed_attributes() {
    static const std::map<int, int> values = {
        {cudaDevAttrMaxThreadsPerBlock, 1024}, {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024},
        {cudaDevAttrMaxBlockDimZ, 64}, {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535},
        {cudaDevAttrMaxGridDimZ, 65535}, {cudaDevAttrTotalConstantMemory, 65536}, {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxPitch, 2147483647}, {cudaDevAttrTextureAlignment, 512}, {cudaDevAttrGpuOverlap, 1},
        {cudaDevAttrKernelExecTimeout, 0}, {cudaDevAttrIntegrated, 0}, {cudaDevAttrCanMapHostMemory, 1},
        {cudaDevAttrComputeMode, 0}, {cudaDevAttrSurfaceAlignment, 512}, {cudaDevAttrConcurrentKernels, 1},
        {cudaDevAttrEccEnabled, 1}, {cudaDevAttrPciBusId, 0}, {cudaDevAttrPciDeviceId, 0}, {cudaDevAttrTccDriver, 0},
        {cudaDevAttrAsyncEngineCount, 3}, {cudaDevAttrUnifiedAddressing, 1}, {cudaDevAttrPciDomainId, 0},
        {cudaDevAttrTexturePitchAlignment, 32}, {cudaDevAttrStreamPrioritiesSupported, 1},
        {cudaDevAttrGlobalL1CacheSupported, 1}, {cudaDevAttrLocalL1CacheSupported, 1}, {cudaDevAttrManagedMemory, 1},
        {cudaDevAttrIsMultiGpuBoard, 0}, {cudaDevAttrMultiGpuBoardGroupID, 0},
        {cudaDevAttrHostNativeAtomicSupported, 0}, {cudaDevAttrSingleToDoublePrecisionPerfRatio, 2},
        {cudaDevAttrPageableMemoryAccess, 0}, {cudaDevAttrConcurrentManagedAccess, 1},
        {cudaDevAttrComputePreemptionSupported, 1}, {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
        {cudaDevAttrCooperativeLaunch, 1}, {cudaDevAttrCanFlushRemoteWrites, 0}, {cudaDevAttrHostRegisterSupported, 1},
        {cudaDevAttrPageableMemoryAccessUsesHostPageTables, 0}, {cudaDevAttrDirectManagedMemAccessFromHost, 0},
        {cudaDevAttrMemoryPoolsSupported, 1}, {cudaDevAttrClusterLaunch, 1}, {cudaDevAttrIpcEventSupport, 1},
        {cudaDevAttrMemSyncDomainCount, 4}, {cudaDevAttrMpsEnabled, 0},
        {127, 1},  // CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, which the runtime has no name for
    };
    return values;
}

// clang-format on

std::optional<int> profile_attribute(int attribute) {
    const Profile& profile = state().profile;
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: return profile.cc_major;
        case cudaDevAttrComputeCapabilityMinor: return profile.cc_minor;
        case cudaDevAttrMultiProcessorCount: return profile.sm_count;
        case cudaDevAttrClockRate: return profile.clock_khz;
        case cudaDevAttrMemoryClockRate: return profile.memory_clock_khz;
        case cudaDevAttrGlobalMemoryBusWidth: return profile.memory_bus_bits;
        case cudaDevAttrL2CacheSize: return profile.l2_bytes;
        case cudaDevAttrMaxPersistingL2CacheSize: return profile.persisting_l2_bytes;
        case cudaDevAttrMaxAccessPolicyWindowSize: return profile.access_policy_window_bytes;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return profile.smem_per_sm_bytes;
        case cudaDevAttrMaxSharedMemoryPerBlock: return profile.smem_per_block_bytes;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return profile.smem_optin_bytes;
        case cudaDevAttrReservedSharedMemoryPerBlock: return profile.reserved_smem_bytes;
        case cudaDevAttrMaxRegistersPerMultiprocessor: return profile.registers_per_sm;
        case cudaDevAttrMaxRegistersPerBlock: return profile.registers_per_block;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return profile.threads_per_sm;
        case cudaDevAttrMaxBlocksPerMultiprocessor: return profile.blocks_per_sm;
        default: return std::nullopt;
    }
}

}  // namespace

std::optional<int> device_attribute(int attribute) {
    if (const auto value = profile_attribute(attribute)) return value;
    const auto found = fixed_attributes().find(attribute);
    return found == fixed_attributes().end() ? std::nullopt : std::optional<int>(found->second);
}

void fill_properties(cudaDeviceProp& properties) {
    const Profile& profile = state().profile;
    properties = cudaDeviceProp{};
    std::strncpy(properties.name, profile.name.c_str(), sizeof properties.name - 1);
    properties.totalGlobalMem = profile.memory_bytes;
    properties.sharedMemPerBlock = static_cast<std::size_t>(profile.smem_per_block_bytes);
    properties.sharedMemPerBlockOptin = static_cast<std::size_t>(profile.smem_optin_bytes);
    properties.sharedMemPerMultiprocessor = static_cast<std::size_t>(profile.smem_per_sm_bytes);
    properties.reservedSharedMemPerBlock = static_cast<std::size_t>(profile.reserved_smem_bytes);
    properties.regsPerBlock = profile.registers_per_block;
    properties.regsPerMultiprocessor = profile.registers_per_sm;
    properties.warpSize = 32;
    properties.memPitch = 2147483647;
    properties.maxThreadsPerBlock = 1024;
    properties.maxThreadsPerMultiProcessor = profile.threads_per_sm;
    properties.maxBlocksPerMultiProcessor = profile.blocks_per_sm;
    properties.maxThreadsDim[0] = properties.maxThreadsDim[1] = 1024;
    properties.maxThreadsDim[2] = 64;
    properties.maxGridSize[0] = 2147483647;
    properties.maxGridSize[1] = properties.maxGridSize[2] = 65535;
    properties.totalConstMem = 65536;
    properties.major = profile.cc_major;
    properties.minor = profile.cc_minor;
    properties.textureAlignment = properties.surfaceAlignment = 512;
    properties.texturePitchAlignment = 32;
    properties.multiProcessorCount = profile.sm_count;
    properties.canMapHostMemory = properties.concurrentKernels = properties.ECCEnabled = 1;
    properties.asyncEngineCount = 3;
    properties.unifiedAddressing = properties.streamPrioritiesSupported = 1;
    properties.memoryBusWidth = profile.memory_bus_bits;
    properties.l2CacheSize = profile.l2_bytes;
    properties.persistingL2CacheMaxSize = profile.persisting_l2_bytes;
    properties.accessPolicyMaxWindowSize = profile.access_policy_window_bytes;
    properties.globalL1CacheSupported = properties.localL1CacheSupported = 1;
    properties.managedMemory = properties.concurrentManagedAccess = properties.computePreemptionSupported = 1;
    properties.cooperativeLaunch = properties.clusterLaunch = properties.memoryPoolsSupported = 1;
    properties.hostRegisterSupported = properties.canUseHostPointerForRegisteredMem = 1;
}

std::optional<std::size_t> device_limit(int limit) {
    switch (limit) {  // defaults of an H200
        case cudaLimitStackSize: return 1024;
        case cudaLimitPrintfFifoSize: return 8650752;
        case cudaLimitMallocHeapSize: return 8388608;
        case cudaLimitDevRuntimePendingLaunchCount: return 2048;
        case cudaLimitMaxL2FetchGranularity: return 64;
        case cudaLimitPersistingL2CacheSize: return 11796480;
        default: return std::nullopt;
    }
}

}  // namespace recorder
