// The CUDA runtime: kernels, their attributes, occupancy.

#include <cuda.h>

#include <algorithm>

#include "functions.hpp"
#include "launch.hpp"
#include "occupancy.hpp"
#include "wire.hpp"

using namespace recorder;

namespace {

Kernel* kernel_or_error(const char* call, const void* function, cudaError_t& status) {
    Kernel* kernel = find_kernel(function);
    if (kernel == nullptr)
        status = error(call, cudaErrorInvalidDeviceFunction, "the address is no kernel of this submission");
    return kernel;
}

const Kernel& launched(const char* call, const void* function) {
    const Kernel* kernel = find_kernel(function);
    if (kernel == nullptr)
        fail_launch("launch.function", format("%s: %p is no kernel of this submission", call, function));
    return *kernel;
}

cudaError_t launch(const char* call, const void* function, LaunchRequest request) {
    request.kernel = &launched(call, function);
    record_launch(call, request);
    return cudaSuccess;
}

LaunchRequest from_configuration(const char* call, const cudaLaunchConfig_t& configuration) {
    LaunchRequest request;
    request.grid = configuration.gridDim;
    request.block = configuration.blockDim;
    request.dynamic_smem_bytes = configuration.dynamicSmemBytes;
    request.stream = configuration.stream;
    for (unsigned i = 0; i < configuration.numAttrs; ++i)
        apply_attribute(call, configuration.attrs[i], request);
    return request;
}

int cluster_ctas(const Kernel& kernel, const LaunchRequest& request) {
    const dim3& cluster = request.cluster.x != 0 ? request.cluster : kernel.cluster;
    return cluster.x == 0 ? 1 : static_cast<int>(cluster.x * cluster.y * cluster.z);
}

}  // namespace

extern "C" {

cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t smem,
                             cudaStream_t stream) {
    LaunchRequest request;
    request.grid = grid;
    request.block = block;
    request.dynamic_smem_bytes = smem;
    request.stream = stream;
    request.arguments = arguments;
    return launch("cudaLaunchKernel", function, request);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function, void** arguments) {
    if (configuration == nullptr)
        fail_launch("launch.arguments", "cudaLaunchKernelExC: the launch configuration is null");
    LaunchRequest request = from_configuration("cudaLaunchKernelExC", *configuration);
    request.arguments = arguments;
    return launch("cudaLaunchKernelExC", function, request);
}

cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments, std::size_t smem,
                                        cudaStream_t stream) {
    LaunchRequest request;
    request.grid = grid;
    request.block = block;
    request.dynamic_smem_bytes = smem;
    request.stream = stream;
    request.arguments = arguments;
    request.cooperative = true;
    return launch("cudaLaunchCooperativeKernel", function, request);
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
    cudaError_t status = cudaSuccess;
    Kernel* kernel = kernel_or_error("cudaFuncSetAttribute", function, status);
    if (kernel == nullptr) return status;
    FunctionAttribute known;
    switch (attribute) {
        case cudaFuncAttributeMaxDynamicSharedMemorySize: known = FunctionAttribute::max_dynamic_smem; break;
        case cudaFuncAttributePreferredSharedMemoryCarveout: known = FunctionAttribute::carveout; break;
        case cudaFuncAttributeNonPortableClusterSizeAllowed: known = FunctionAttribute::non_portable_cluster; break;
        case cudaFuncAttributeClusterSchedulingPolicyPreference: known = FunctionAttribute::ignored; break;
        default:
            fail("plan.refused_attribute", format("cudaFuncSetAttribute: attribute %d is not supported; give clusters "
                                                  "by __cluster_dims__ or a launch attribute",
                                                  static_cast<int>(attribute)));
    }
    const std::string problem = set_function_attribute(*kernel, known, value);
    return problem.empty() ? cudaSuccess : error("cudaFuncSetAttribute", cudaErrorInvalidValue, problem);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* out, const void* function) {
    cudaError_t status = cudaSuccess;
    const Kernel* kernel = kernel_or_error("cudaFuncGetAttributes", function, status);
    if (kernel == nullptr) return status;
    *out = cudaFuncAttributes{};
    out->sharedSizeBytes = static_cast<std::size_t>(kernel->static_smem_bytes);
    out->localSizeBytes = static_cast<std::size_t>(kernel->stack_bytes);
    out->maxThreadsPerBlock = launchable_threads(*kernel);
    out->numRegs = kernel->registers;
    out->ptxVersion = out->binaryVersion = state().profile.cc_major * 10 + state().profile.cc_minor;
    out->maxDynamicSharedSizeBytes = dynamic_smem_limit(*kernel);
    out->preferredShmemCarveout = kernel->carveout;
    out->clusterDimMustBeSet = kernel->cluster.x != 0;
    out->requiredClusterWidth = static_cast<int>(kernel->cluster.x);
    out->requiredClusterHeight = static_cast<int>(kernel->cluster.y);
    out->requiredClusterDepth = static_cast<int>(kernel->cluster.z);
    out->nonPortableClusterSizeAllowed = kernel->non_portable_cluster;
    return cudaSuccess;
}

cudaError_t cudaFuncSetCacheConfig(const void* function, cudaFuncCache) {
    cudaError_t status = cudaSuccess;
    if (kernel_or_error("cudaFuncSetCacheConfig", function, status) != nullptr)
        note_ignored("cudaFuncSetCacheConfig", "L1 cache");
    return status;
}

cudaError_t cudaFuncGetName(const char** name, const void* function) {
    cudaError_t status = cudaSuccess;
    const Kernel* kernel = kernel_or_error("cudaFuncGetName", function, status);
    if (kernel != nullptr) *name = kernel->name.c_str();
    return status;
}

// One handle serves as cudaKernel_t, cudaFunction_t, CUfunction and CUkernel.
cudaError_t cudaGetKernel(cudaKernel_t* out, const void* function) {
    cudaError_t status = cudaSuccess;
    *out = reinterpret_cast<cudaKernel_t>(kernel_or_error("cudaGetKernel", function, status));
    return status;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* out, const void* function) {
    cudaError_t status = cudaSuccess;
    *out = reinterpret_cast<cudaFunction_t>(kernel_or_error("cudaGetFuncBySymbol", function, status));
    return status;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                   std::size_t smem, unsigned) {
    constexpr const char* call = "cudaOccupancyMaxActiveBlocksPerMultiprocessor";
    cudaError_t status = cudaSuccess;
    const Kernel* kernel = kernel_or_error(call, function, status);
    if (kernel == nullptr) return status;
    if (threads <= 0) return error(call, cudaErrorInvalidValue, format("%d threads", threads));
    *blocks = blocks_per_sm(*kernel, threads, smem);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t smem) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, smem, 0);
}

cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* smem, const void* function, int blocks,
                                                      int threads) {
    cudaError_t status = cudaSuccess;
    const Kernel* kernel = kernel_or_error("cudaOccupancyAvailableDynamicSMemPerBlock", function, status);
    if (kernel != nullptr) *smem = available_smem_bytes(*kernel, blocks, threads);
    return status;
}

cudaError_t cudaOccupancyMaxPotentialClusterSize(int* ctas, const void* function, const cudaLaunchConfig_t*) {
    cudaError_t status = cudaSuccess;
    const Kernel* kernel = kernel_or_error("cudaOccupancyMaxPotentialClusterSize", function, status);
    if (kernel == nullptr) return status;
    const auto allowed = static_cast<unsigned>(kernel->non_portable_cluster ? state().profile.max_cluster
                                                                            : state().profile.portable_cluster);
    const unsigned bound = kernel->max_cluster_rank == 0 ? allowed : std::min(allowed, kernel->max_cluster_rank);
    const unsigned required = kernel->cluster.x * kernel->cluster.y * kernel->cluster.z;  // zero: none
    *ctas = static_cast<int>(required != 0 ? required : bound);
    return status;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* configuration) {
    constexpr const char* call = "cudaOccupancyMaxActiveClusters";
    cudaError_t status = cudaSuccess;
    const Kernel* kernel = kernel_or_error(call, function, status);
    if (kernel == nullptr) return status;
    const LaunchRequest request = from_configuration(call, *configuration);
    const int threads = static_cast<int>(request.block.x * request.block.y * request.block.z);
    if (threads <= 0) return error(call, cudaErrorInvalidValue, "the block has no threads");
    if (request.cluster.x == 0 && kernel->cluster.x == 0)
        return error(call, cudaErrorInvalidValue, "neither the configuration nor the kernel names a cluster");
    *clusters = active_clusters(*kernel, cluster_ctas(*kernel, request), threads, request.dynamic_smem_bytes);
    return cudaSuccess;
}

}  // extern "C"
