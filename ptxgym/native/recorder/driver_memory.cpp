// The CUDA driver: memory, copies, fills, pointers, tensor maps.

#include <cuda.h>

#include "memory.hpp"
#include "state.hpp"
#include "tensor_map.hpp"
#include "transfer.hpp"
#include "wire.hpp"

using namespace recorder;

namespace {

CUresult result(const char* call, const std::string& problem) {
    return problem.empty() ? CUDA_SUCCESS : error(call, CUDA_ERROR_INVALID_VALUE, problem);
}

CUresult allocate(const char* call, CUdeviceptr* out, std::size_t bytes, bool in_stream_order = false) {
    if (out == nullptr || bytes == 0) return error(call, CUDA_ERROR_INVALID_VALUE, "nothing to allocate");
    *out = allocate_workspace(call, bytes, in_stream_order);
    return CUDA_SUCCESS;
}

CUresult release(const char* call, CUdeviceptr memory) {
    if (memory == 0 || free_workspace(memory)) return CUDA_SUCCESS;
    return error(call, CUDA_ERROR_INVALID_VALUE, "the pointer was not returned by cuMemAlloc, or was freed before");
}

const void* pointer(CUdeviceptr address) { return reinterpret_cast<const void*>(address); }
void* target(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

// The queue of a call without a stream.
constexpr Queue synchronous{1, true};

Queue asynchronous(const char* call, CUstream stream) { return {stream_index(call, stream), false}; }

CUresult copy(const char* call, void* to, const void* from, std::size_t bytes, Direction direction, Queue queue) {
    return result(call, transfer(call, to, from, bytes, direction, queue));
}

CUresult set(const char* call, CUdeviceptr to, std::uint32_t value, unsigned width, std::size_t count,
             CUstream stream) {
    return result(call, fill(to, value, width, count, 1, 0, stream_index(call, stream)));
}

CUresult set_2d(const char* call, CUdeviceptr to, std::size_t pitch, std::uint32_t value, unsigned width,
                std::size_t columns, std::size_t rows, CUstream stream) {
    return result(call, fill(to, value, width, columns, rows, pitch, stream_index(call, stream)));
}

}  // namespace

extern "C" {

CUresult cuMemAlloc(CUdeviceptr* out, std::size_t bytes) { return allocate("cuMemAlloc", out, bytes); }
CUresult cuMemAllocAsync(CUdeviceptr* out, std::size_t bytes, CUstream stream) {
    stream_index("cuMemAllocAsync", stream);
    return allocate("cuMemAllocAsync", out, bytes, true);
}
CUresult cuMemFree(CUdeviceptr memory) { return release("cuMemFree", memory); }
CUresult cuMemFreeAsync(CUdeviceptr memory, CUstream stream) {
    stream_index("cuMemFreeAsync", stream);
    return release("cuMemFreeAsync", memory);
}
CUresult cuMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = *total_bytes = state().profile.memory_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
    return copy("cuMemcpyHtoD", target(to), from, bytes, Direction::to_device, synchronous);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
    constexpr const char* call = "cuMemcpyHtoDAsync";
    return copy(call, target(to), from, bytes, Direction::to_device, asynchronous(call, stream));
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copy("cuMemcpyDtoD", target(to), pointer(from), bytes, Direction::on_device, synchronous);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    constexpr const char* call = "cuMemcpyDtoDAsync";
    return copy(call, target(to), pointer(from), bytes, Direction::on_device, asynchronous(call, stream));
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
    return copy("cuMemcpyDtoH", to, pointer(from), bytes, Direction::from_device, synchronous);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    constexpr const char* call = "cuMemcpyDtoHAsync";
    return copy(call, to, pointer(from), bytes, Direction::from_device, asynchronous(call, stream));
}
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    return copy("cuMemcpy", target(to), pointer(from), bytes, Direction::by_address, synchronous);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    constexpr const char* call = "cuMemcpyAsync";
    return copy(call, target(to), pointer(from), bytes, Direction::by_address, asynchronous(call, stream));
}

CUresult cuMemsetD8(CUdeviceptr to, unsigned char value, std::size_t count) {
    return set("cuMemsetD8", to, value, 1, count, nullptr);
}
CUresult cuMemsetD16(CUdeviceptr to, unsigned short value, std::size_t count) {
    return set("cuMemsetD16", to, value, 2, count, nullptr);
}
CUresult cuMemsetD32(CUdeviceptr to, unsigned value, std::size_t count) {
    return set("cuMemsetD32", to, value, 4, count, nullptr);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) {
    return set("cuMemsetD8Async", to, value, 1, count, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream) {
    return set("cuMemsetD16Async", to, value, 2, count, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, std::size_t count, CUstream stream) {
    return set("cuMemsetD32Async", to, value, 4, count, stream);
}
CUresult cuMemsetD2D8(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width, std::size_t height) {
    return set_2d("cuMemsetD2D8", to, pitch, value, 1, width, height, nullptr);
}
CUresult cuMemsetD2D16(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width, std::size_t height) {
    return set_2d("cuMemsetD2D16", to, pitch, value, 2, width, height, nullptr);
}
CUresult cuMemsetD2D32(CUdeviceptr to, std::size_t pitch, unsigned value, std::size_t width, std::size_t height) {
    return set_2d("cuMemsetD2D32", to, pitch, value, 4, width, height, nullptr);
}
CUresult cuMemsetD2D8Async(CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
                           std::size_t height, CUstream stream) {
    return set_2d("cuMemsetD2D8Async", to, pitch, value, 1, width, height, stream);
}
CUresult cuMemsetD2D16Async(CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width,
                            std::size_t height, CUstream stream) {
    return set_2d("cuMemsetD2D16Async", to, pitch, value, 2, width, height, stream);
}
CUresult cuMemsetD2D32Async(CUdeviceptr to, std::size_t pitch, unsigned value, std::size_t width, std::size_t height,
                            CUstream stream) {
    return set_2d("cuMemsetD2D32Async", to, pitch, value, 4, width, height, stream);
}

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
    constexpr const char* call = "cuPointerGetAttribute";
    const Buffer* buffer = find_buffer(address, 0);
    if (buffer == nullptr) return error(call, CUDA_ERROR_INVALID_VALUE, "the pointer is no device memory");
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<unsigned*>(out) = CU_MEMORYTYPE_DEVICE; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(out) = address; break;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(out) = 0; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(out) = 0; break;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(out) = buffer->address; break;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<std::size_t*>(out) = buffer->bytes; break;
        default:
            fail("plan.refused_attribute",
                 format("%s: attribute %d is not supported", call, static_cast<int>(attribute)));
    }
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dim, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    const TensorMapRequest request{static_cast<int>(type),
                                   rank,
                                   reinterpret_cast<std::uint64_t>(address),
                                   dim,
                                   strides,
                                   box,
                                   element_strides,
                                   static_cast<int>(interleave),
                                   static_cast<int>(swizzle),
                                   static_cast<int>(promotion),
                                   static_cast<int>(fill)};
    // A driver returns CUDA_ERROR_INVALID_VALUE, and host code that does not look launches with a map of garbage.
    const std::string problem = tensor_map_problem(map, request);
    if (!problem.empty()) fail("plan.tensor_map", "cuTensorMapEncodeTiled: " + problem);
    record_tensor_map(map, request);
    return CUDA_SUCCESS;
}

}  // extern "C"
