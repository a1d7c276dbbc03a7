// The CUDA runtime: device and host memory, copies, fills, symbols.

#include <cstdlib>

#include "memory.hpp"
#include "state.hpp"
#include "transfer.hpp"
#include "wire.hpp"

using namespace recorder;

namespace {

constexpr std::size_t page_bytes = 4096;

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

cudaError_t result(const char* call, const std::string& problem) {
    return problem.empty() ? cudaSuccess : error(call, cudaErrorInvalidValue, problem);
}

cudaError_t allocate(const char* call, void** out, std::size_t bytes, bool in_stream_order = false) {
    if (out == nullptr) return error(call, cudaErrorInvalidValue, "the address of the pointer is null");
    *out = bytes == 0 ? nullptr : reinterpret_cast<void*>(allocate_workspace(call, bytes, in_stream_order));
    return cudaSuccess;
}

cudaError_t release(const char* call, void* memory) {
    if (memory == nullptr || free_workspace(number(memory))) return cudaSuccess;
    return error(call, cudaErrorInvalidValue, "the pointer was not returned by cudaMalloc, or was freed before");
}

// The queue of a call without a stream.
constexpr Queue synchronous{1, true};

Queue asynchronous(const char* call, const void* stream) { return {stream_index(call, stream), false}; }

cudaError_t copy(const char* call, void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                 Queue queue) {
    Direction direction;
    switch (kind) {
        case cudaMemcpyHostToHost: direction = Direction::on_host; break;
        case cudaMemcpyHostToDevice: direction = Direction::to_device; break;
        case cudaMemcpyDeviceToHost: direction = Direction::from_device; break;
        case cudaMemcpyDeviceToDevice: direction = Direction::on_device; break;
        case cudaMemcpyDefault: direction = Direction::by_address; break;
        default:
            return error(call, cudaErrorInvalidMemcpyDirection, format("cudaMemcpyKind %d", static_cast<int>(kind)));
    }
    return result(call, transfer(call, target, source, bytes, direction, queue));
}

const Variable* find_variable(const char* call, const void* symbol, cudaError_t& status) {
    const auto found = state().variables.find(symbol);
    if (found != state().variables.end()) return &found->second;
    status =
        error(call, cudaErrorInvalidSymbol, "the address is no __device__ or __constant__ variable of this submission");
    return nullptr;
}

cudaError_t copy_to_symbol(const char* call, const void* symbol, const void* source, std::size_t bytes,
                           std::size_t offset, cudaMemcpyKind kind, Queue queue) {
    cudaError_t status = cudaSuccess;
    const Variable* variable = find_variable(call, symbol, status);
    if (variable == nullptr) return status;
    if (offset > variable->bytes || bytes > variable->bytes - offset) {
        return error(call, cudaErrorInvalidValue,
                     format("%zu bytes at offset %zu of %s, which has %llu", bytes, offset, variable->name.c_str(),
                            static_cast<unsigned long long>(variable->bytes)));
    }
    return copy(call, reinterpret_cast<void*>(variable->address + offset), source, bytes, kind, queue);
}

[[noreturn]] void from_symbol(const char* call) {
    fail("plan.device_to_host", format("%s copies device memory to the host; a plan is recorded without data", call));
}

cudaError_t allocate_host(const char* call, void** out, std::size_t bytes) {
    if (out == nullptr) return error(call, cudaErrorInvalidValue, "the address of the pointer is null");
    *out = std::aligned_alloc(page_bytes, (bytes + page_bytes - 1) / page_bytes * page_bytes);
    if (bytes > 0) state().pinned[number(*out)] = bytes;
    return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** out, std::size_t bytes) { return allocate("cudaMalloc", out, bytes); }
cudaError_t cudaMallocAsync(void** out, std::size_t bytes, cudaStream_t stream) {
    stream_index("cudaMallocAsync", stream);
    return allocate("cudaMallocAsync", out, bytes, true);
}
cudaError_t cudaFree(void* memory) { return release("cudaFree", memory); }
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
    stream_index("cudaFreeAsync", stream);
    return release("cudaFreeAsync", memory);
}

cudaError_t cudaMallocHost(void** out, std::size_t bytes) { return allocate_host("cudaMallocHost", out, bytes); }
cudaError_t cudaHostAlloc(void** out, std::size_t bytes, unsigned) {
    return allocate_host("cudaHostAlloc", out, bytes);
}
cudaError_t cudaFreeHost(void* memory) {
    if (memory == nullptr) return cudaSuccess;
    if (state().pinned.erase(number(memory)) == 0)
        return error("cudaFreeHost", cudaErrorInvalidValue, "the pointer was not returned by cudaMallocHost");
    std::free(memory);
    return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
    state().pinned[number(memory)] = bytes;
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
    if (state().pinned.erase(number(memory)) == 0)
        return error("cudaHostUnregister", cudaErrorInvalidValue, "the memory was not registered");
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind) {
    return copy("cudaMemcpy", target, source, bytes, kind, synchronous);
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return copy("cudaMemcpyAsync", target, source, bytes, kind, asynchronous("cudaMemcpyAsync", stream));
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* source, std::size_t bytes, std::size_t offset,
                               cudaMemcpyKind kind) {
    return copy_to_symbol("cudaMemcpyToSymbol", symbol, source, bytes, offset, kind, synchronous);
}
cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* source, std::size_t bytes, std::size_t offset,
                                    cudaMemcpyKind kind, cudaStream_t stream) {
    constexpr const char* call = "cudaMemcpyToSymbolAsync";
    return copy_to_symbol(call, symbol, source, bytes, offset, kind, asynchronous(call, stream));
}
cudaError_t cudaMemcpyFromSymbol(void*, const void*, std::size_t, std::size_t, cudaMemcpyKind) {
    from_symbol("cudaMemcpyFromSymbol");
}
cudaError_t cudaMemcpyFromSymbolAsync(void*, const void*, std::size_t, std::size_t, cudaMemcpyKind, cudaStream_t) {
    from_symbol("cudaMemcpyFromSymbolAsync");
}

cudaError_t cudaMemset(void* target, int value, std::size_t bytes) {
    return result("cudaMemset",
                  fill(number(target), value & 0xff, 1, bytes, 1, 0, stream_index("cudaMemset", nullptr)));
}
cudaError_t cudaMemsetAsync(void* target, int value, std::size_t bytes, cudaStream_t stream) {
    return result("cudaMemsetAsync",
                  fill(number(target), value & 0xff, 1, bytes, 1, 0, stream_index("cudaMemsetAsync", stream)));
}
cudaError_t cudaMemset2D(void* target, std::size_t pitch, int value, std::size_t width, std::size_t height) {
    return result("cudaMemset2D",
                  fill(number(target), value & 0xff, 1, width, height, pitch, stream_index("cudaMemset2D", nullptr)));
}
cudaError_t cudaMemset2DAsync(void* target, std::size_t pitch, int value, std::size_t width, std::size_t height,
                              cudaStream_t stream) {
    return result("cudaMemset2DAsync", fill(number(target), value & 0xff, 1, width, height, pitch,
                                            stream_index("cudaMemset2DAsync", stream)));
}

cudaError_t cudaGetSymbolAddress(void** out, const void* symbol) {
    cudaError_t status = cudaSuccess;
    const Variable* variable = find_variable("cudaGetSymbolAddress", symbol, status);
    if (variable != nullptr) *out = reinterpret_cast<void*>(variable->address);
    return status;
}
cudaError_t cudaGetSymbolSize(std::size_t* out, const void* symbol) {
    cudaError_t status = cudaSuccess;
    const Variable* variable = find_variable("cudaGetSymbolSize", symbol, status);
    if (variable != nullptr) *out = variable->bytes;
    return status;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
    *out = cudaPointerAttributes{};
    if (find_buffer(number(pointer), 0) != nullptr) {
        out->type = cudaMemoryTypeDevice;
        out->devicePointer = const_cast<void*>(pointer);
    } else {
        out->type = cudaMemoryTypeUnregistered;
        out->device = cudaInvalidDeviceId;
        out->hostPointer = const_cast<void*>(pointer);
    }
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
    *free_bytes = *total_bytes = state().profile.memory_bytes;
    return cudaSuccess;
}

}  // extern "C"
