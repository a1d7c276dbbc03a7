// What nvcc's generated code calls: registration of kernels and variables, and the two halves of <<<>>>.

#include <cstring>

#include "launch.hpp"
#include "memory.hpp"
#include "state.hpp"
#include "wire.hpp"

using namespace recorder;

extern "C" {

void** __cudaRegisterFatBinary(void*) {
    static void* handle = nullptr;  // the image itself comes from the build
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
    const auto found = state().kernels.find(name);
    if (found == state().kernels.end())
        fail("plan.unknown_kernel", format("the host code registers kernel %s, which the build does not have", name));
    state().functions[host] = &found->second;
}

void __cudaRegisterVar(void**, char* host, char*, const char* name, int, std::size_t bytes, int, int) {
    state().variables[host] = {name, add_buffer(name, bytes, Role::symbol), bytes};
}

void __cudaRegisterManagedVar(void**, void**, char*, const char* name, int, std::size_t, int, int) {
    fail("plan.refused_call",
         format("__managed__ variable %s: managed memory is not supported; use __device__ or a workspace", name));
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t smem, CUstream_st* stream) {
    state().configurations.push_back({grid, block, smem, stream, here()});
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* smem, void* stream) {
    auto& pushed = state().configurations;
    if (pushed.empty()) return error("__cudaPopCallConfiguration", cudaErrorInvalidConfiguration, "nothing was pushed");
    *grid = pushed.back().grid;
    *block = pushed.back().block;
    *smem = pushed.back().smem;
    std::memcpy(stream, &pushed.back().stream, sizeof(cudaStream_t));
    place_next_launch(pushed.back().frames);
    pushed.pop_back();
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    Kernel* found = find_kernel(host);
    if (found == nullptr)
        return error("__cudaGetKernel", cudaErrorInvalidDeviceFunction, "no kernel was registered for this address");
    *kernel = reinterpret_cast<cudaKernel_t>(found);
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t smem,
                               cudaStream_t stream) {
    return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, smem, stream);
}

cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, std::size_t smem,
                                    cudaStream_t stream) {
    return __cudaLaunchKernel(kernel, grid, block, arguments, smem, stream == nullptr ? cudaStreamPerThread : stream);
}

}  // extern "C"
