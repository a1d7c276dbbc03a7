// Memory pools: the device's own, from which every allocation comes. How much it keeps is nothing that a plan holds.

#include <cuda.h>
#include <cuda_runtime.h>

#include "memory.hpp"
#include "state.hpp"
#include "streams.hpp"
#include "wire.hpp"

using namespace recorder;

namespace {

char pool;  // its address is the handle

CUmemoryPool handle() { return reinterpret_cast<CUmemoryPool>(&pool); }

bool is_ours(const void* given) { return given == &pool; }

template <typename Status>
Status get(const char* call, CUmemoryPool* out, int device, Status invalid) {
    if (out == nullptr) return error(call, invalid, "the address of the handle is null");
    if (device != 0) return error(call, invalid, format("device %d; there is device 0 alone", device));
    *out = handle();
    return Status{};
}

template <typename Status>
Status ignore(const char* call, const void* given, Status invalid) {
    if (!is_ours(given)) return error(call, invalid, "the handle is no memory pool");
    note_ignored(call, "what a memory pool keeps");
    return Status{};
}

}  // namespace

extern "C" {

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int device) {
    return get("cudaDeviceGetDefaultMemPool", out, device, cudaErrorInvalidValue);
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* out, int device) {
    return get("cudaDeviceGetMemPool", out, device, cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t given, cudaMemPoolAttr, void*) {
    return ignore("cudaMemPoolSetAttribute", given, cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t given, std::size_t) {
    return ignore("cudaMemPoolTrimTo", given, cudaErrorInvalidValue);
}
cudaError_t cudaMallocFromPoolAsync(void** out, std::size_t bytes, cudaMemPool_t given, cudaStream_t stream) {
    if (!is_ours(given))
        return error("cudaMallocFromPoolAsync", cudaErrorInvalidValue, "the handle is no memory pool");
    return cudaMallocAsync(out, bytes, stream);
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* out, CUdevice device) {
    return get("cuDeviceGetDefaultMemPool", out, device, CUDA_ERROR_INVALID_VALUE);
}
CUresult cuDeviceGetMemPool(CUmemoryPool* out, CUdevice device) {
    return get("cuDeviceGetMemPool", out, device, CUDA_ERROR_INVALID_VALUE);
}
CUresult cuMemPoolSetAttribute(CUmemoryPool given, CUmemPool_attribute, void*) {
    return ignore("cuMemPoolSetAttribute", given, CUDA_ERROR_INVALID_VALUE);
}
CUresult cuMemPoolTrimTo(CUmemoryPool given, std::size_t) {
    return ignore("cuMemPoolTrimTo", given, CUDA_ERROR_INVALID_VALUE);
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, std::size_t bytes, CUmemoryPool given, CUstream stream) {
    if (!is_ours(given))
        return error("cuMemAllocFromPoolAsync", CUDA_ERROR_INVALID_VALUE, "the handle is no memory pool");
    return cuMemAllocAsync(out, bytes, stream);
}
}
