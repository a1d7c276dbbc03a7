// Honest host code, one feature per value of `mode`. The kernels do nothing of interest: only plans are looked at.
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

struct Padded {
    char flag;
    float* out;
    short small;
    const float* in;
};
struct Globals {
    int rows;
    alignas(128) CUtensorMap map;
    float* out;
};

__constant__ float coefficients[8];
__device__ float scratch[64];
namespace {
__device__ int hidden;
template <int N>
__global__ void templated(float* out) {
    out[0] = N + hidden;
}
}  // namespace
static __global__ void fixed(float* out) { out[1] = coefficients[0] + scratch[threadIdx.x]; }
__global__ void plain(const float* in, float* out, int n) {
    if (threadIdx.x < n) out[threadIdx.x] = in[threadIdx.x];
}
__global__ void padded(Padded p) {
    if (p.flag) p.out[p.small] = p.in[0];
}
__global__ void mapped(const __grid_constant__ CUtensorMap map, float* out) {
    out[0] = static_cast<float>(reinterpret_cast<unsigned long long>(&map));
}
__global__ void mapped_globals(const __grid_constant__ Globals globals) {
    globals.out[0] = static_cast<float>(reinterpret_cast<unsigned long long>(&globals.map) + globals.rows);
}
__global__ void by_pointer(const CUtensorMap* map, const float* const* table, float* out) {
    out[0] = table[1][0] + static_cast<float>(reinterpret_cast<unsigned long long>(map));
}
__global__ void __cluster_dims__(2, 1, 1) clustered(float* out) { out[0] = 1; }
__global__ void dynamic(float* out) {
    extern __shared__ float shared[];
    shared[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = shared[threadIdx.x ^ 1];
}
__global__ void cooperative(float* out) {
    cooperative_groups::this_grid().sync();
    out[0] = 1;
}

static CUresult encode(CUtensorMap* map, const void* address, int rows, int columns,
                       decltype(&cuTensorMapEncodeTiled) call) {
    cuuint64_t dim[2] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[1] = {cuuint64_t(columns) * 2};
    cuuint32_t box[2] = {64, 8}, steps[2] = {1, 1};
    return call(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(address), dim, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void attributes(float* out, cudaStream_t stream) {
    cudaLaunchAttribute list[4] = {};
    list[0].id = cudaLaunchAttributeClusterDimension;
    list[0].val.clusterDim = {4, 1, 1};
    list[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    list[1].val.programmaticStreamSerializationAllowed = 1;
    list[2].id = cudaLaunchAttributePriority;
    list[3].id = cudaLaunchAttributePreferredClusterDimension;
    list[3].val.preferredClusterDim = {8, 1, 1};
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = dim3(16);
    configuration.blockDim = dim3(64);
    configuration.dynamicSmemBytes = 512;
    configuration.stream = stream;
    configuration.attrs = list;
    configuration.numAttrs = 4;
    cudaLaunchKernelEx(&configuration, dynamic, out);
}

static void symbols(float* out, cudaStream_t stream) {
    const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    cudaMemcpyToSymbol(coefficients, values, sizeof values);
    void* address = nullptr;
    size_t size = 0;
    cudaGetSymbolAddress(&address, scratch);
    cudaGetSymbolSize(&size, scratch);
    cudaMemsetAsync(address, 0, size, stream);
    fixed<<<1, 32, 0, stream>>>(out);
    cudaMemcpyToSymbolAsync(coefficients, values, 8, 16, cudaMemcpyHostToDevice, stream);
    fixed<<<1, 32, 0, stream>>>(static_cast<float*>(address) + 3);
}

static void maps_in_memory(const float* in, float* out, cudaStream_t stream) {
    CUtensorMap maps[2];
    encode(&maps[0], in, 64, 64, cuTensorMapEncodeTiled);
    encode(&maps[1], out, 32, 64, cuTensorMapEncodeTiled);
    CUtensorMap* device = nullptr;
    cudaMalloc(&device, sizeof maps);
    cudaMemcpy(device, maps, sizeof maps, cudaMemcpyHostToDevice);
    const float* table[3] = {in, in + 16, out};
    const float** device_table = nullptr;
    cudaMalloc(&device_table, sizeof table);
    cudaMemcpyAsync(device_table, table, sizeof table, cudaMemcpyHostToDevice, stream);
    by_pointer<<<1, 32, 0, stream>>>(device + 1, device_table, out);
    cudaFree(device);
}

static void entry_points(const float* in, float* out, int mode, cudaStream_t stream) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status;
    if (mode == 6)
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
    if (mode == 7) found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuTensorMapEncodeTiled");
    if (mode == 8) {
        CUdriverProcAddressQueryResult result;
        cuGetProcAddress("cuTensorMapEncodeTiled", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &result);
    }
    if (mode == 23) {  // the call of CUDA 11, which the library still has by this name
        void* lookup = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress");
        reinterpret_cast<CUresult (*)(const char*, void**, int, cuuint64_t)>(lookup)("cuTensorMapEncodeTiled", &found,
                                                                                     12000, 0);
    }
    CUtensorMap map;
    encode(&map, in, 64, 64, reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found));
    mapped<<<1, 32, 0, stream>>>(map, out);
}

static void fills_and_copies(const float* in, float* out, cudaStream_t stream) {
    const CUdeviceptr target = reinterpret_cast<CUdeviceptr>(out);
    cudaDeviceSynchronize();  // calls without a stream go to the default stream
    cudaMemset(out, 0x1ff, 64);
    cudaMemset2DAsync(out + 16, 32, 7, 8, 3, stream);
    cudaMemset2D(out + 64, 16, 9, 16, 4);
    cudaDeviceSynchronize();
    cuMemsetD8Async(target, 1, 5, stream);
    cuMemsetD16(target + 2, 0xbeef, 6);
    cuCtxSynchronize();
    cuMemsetD32Async(target + 4, 0xdeadbeef, 7, stream);
    cudaMemcpyAsync(out + 8, in, 32, cudaMemcpyDeviceToDevice, stream);
    cudaMemcpyAsync(out + 8, in + 1, 16, cudaMemcpyDefault, stream);
    cuMemcpyDtoDAsync(target, reinterpret_cast<CUdeviceptr>(in), 12, stream);
    plain<<<1, 32, 0, stream>>>(in, out, 1);
}

static void streams_and_events(const float* in, float* out, cudaStream_t stream) {
    int least = 9, greatest = 9;
    cudaDeviceGetStreamPriorityRange(&least, &greatest);
    cudaStream_t other;
    cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, greatest);
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    plain<<<1, 32, 0, stream>>>(in, out, 1);
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(other, event, 0);
    plain<<<1, 32, 0, other>>>(in, out, 2);
    cudaEventSynchronize(event);
    plain<<<1, 32>>>(in, out, 3);
    if (cudaEventQuery(event) != cudaSuccess || cudaStreamQuery(other) != cudaSuccess) return;
    cudaStreamAttrValue window = {};
    cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &window);
    cudaEventDestroy(event);
    cudaStreamDestroy(other);
    cudaDeviceSynchronize();
}

static void driver_launches(float* out, cudaStream_t stream) {
    cudaFunction_t function = nullptr;
    cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(&dynamic));
    CUfunction handle = reinterpret_cast<CUfunction>(function);
    cuFuncSetAttribute(handle, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536);
    void* arguments[] = {&out};
    cuLaunchKernel(handle, 2, 1, 1, 64, 1, 1, 65536, stream, arguments, nullptr);
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {2, 1, 1};
    CUlaunchConfig configuration = {};
    configuration.gridDimX = 4;
    configuration.gridDimY = configuration.gridDimZ = configuration.blockDimY = configuration.blockDimZ = 1;
    configuration.blockDimX = 32;
    configuration.hStream = stream;
    configuration.attrs = &attribute;
    configuration.numAttrs = 1;
    cuLaunchKernelEx(&configuration, handle, arguments, nullptr);
}

static void queries(const float* in, float* out, cudaStream_t stream) {
    int sms = 0, device = 9, optin = 0, count = 0, driver_sms = 0;
    cudaGetDevice(&device);
    cudaGetDeviceCount(&count);
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, device);
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    CUdevice handle = 9;
    cuDeviceGet(&handle, 0);
    cuDeviceGetAttribute(&driver_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle);
    plain<<<dim3(sms, count, device + 1), dim3(properties.major, properties.warpSize, 1), 0, stream>>>(in, out, optin);
    plain<<<dim3(driver_sms, properties.multiProcessorCount), 32, 0, stream>>>(in, out, properties.l2CacheSize);
    cudaFuncAttributes attributes;
    cudaFuncGetAttributes(&attributes, dynamic);
    cudaPointerAttributes pointer, host;
    cudaPointerGetAttributes(&pointer, in + 4);
    cudaPointerGetAttributes(&host, &count);
    plain<<<dim3(attributes.maxThreadsPerBlock, pointer.type, host.type + 1), 32, 0, stream>>>(
        in, out, attributes.maxDynamicSharedSizeBytes);
}

// Last error: set by a failing call, kept by peeking, cleared by getting, untouched by calls that succeed.
static void errors(const float* in, float* out, cudaStream_t stream) {
    const int returned = cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 1 << 20);
    int device;
    cudaGetDevice(&device);
    const int peeked = cudaPeekAtLastError(), got = cudaGetLastError(), after = cudaGetLastError();
    plain<<<dim3(returned, peeked, got), after + 32, 0, stream>>>(
        in, out, static_cast<int>(std::strlen(cudaGetErrorString(cudaErrorInvalidValue))));
    const int freed = cudaFree(out + 4), symbol = cudaMemcpyToSymbol(in, &device, 4);
    cudaGetLastError();
    const char* name = nullptr;
    cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &name);
    plain<<<dim3(freed, symbol, cudaSetDevice(1) == cudaErrorInvalidDevice), 32, 0, stream>>>(
        in, out, static_cast<int>(std::strlen(name)));
}

static void workspaces(const float* in, float* out, int n, cudaStream_t stream) {
    static float* cached = nullptr;  // a fresh process for each recording: the first call is the only one
    if (cached == nullptr) cudaMalloc(&cached, 4 * n);
    plain<<<1, 32, 0, stream>>>(in, cached, n);
    float *first = nullptr, *second = nullptr;
    cudaMallocAsync(&first, 1000, stream);
    plain<<<1, 32, 0, stream>>>(in, first, n);
    cudaFreeAsync(first, stream);
    cudaMalloc(&second, 1000);  // a real allocator may give the same address again
    plain<<<1, 32, 0, stream>>>(second, out, n);
    cudaFree(second);
}

// Everything that a computer without a GPU can do: containers, exceptions that are caught, printing, pinned memory.
static void plain_host_code(const float* in, float* out, int n, cudaStream_t stream) {
    std::vector<int> table(n);
    for (int i = 0; i < n; ++i)
        table[i] = i * i;
    try {
        table.at(n + 1);
    } catch (const std::out_of_range& thrown) {
        std::printf("caught %s\n", thrown.what());
    }
    std::fprintf(stderr, "on standard error\n");
    std::fflush(stdout);
    int* pinned = nullptr;
    cudaMallocHost(&pinned, sizeof(int) * n);
    std::memcpy(pinned, table.data(), sizeof(int) * n);
    int* device = nullptr;
    cudaMalloc(&device, sizeof(int) * n);
    cudaMemcpyAsync(device, pinned, sizeof(int) * n, cudaMemcpyHostToDevice, stream);
    cudaFreeHost(pinned);
    auto owned = std::make_unique<int[]>(16);
    std::this_thread::sleep_for(std::chrono::milliseconds(30000));
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1)) {
    }
    plain<<<1, 32, 0, stream>>>(in, out, table[n - 1] + owned[3]);
}

// Occupancy travels as the grid; `n` chooses kernel, threads and shared memory.
static void occupancy(float* out, int n, cudaStream_t stream) {
    static const int cases[][3] = {
        // opt-in, threads, dynamic shared memory
        {0, 128, 0},      {0, 128, 1000},   {0, 128, 49152},  {0, 128, 60000}, {1, 128, 60000}, {1, 128, 100000},
        {1, 128, 115712}, {1, 128, 115713}, {1, 128, 232448}, {1, 1024, 0},    {1, 33, 0},      {1, 96, 0},
    };
    if (cases[n][0]) cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448);
    int blocks = -1;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, dynamic, cases[n][1], cases[n][2]);
    size_t available = 0;
    cudaOccupancyAvailableDynamicSMemPerBlock(&available, dynamic, 2, 128);
    plain<<<blocks + 1, 32, 0, stream>>>(out, out, static_cast<int>(available));
}

static void cluster_occupancy(float* out, int n, cudaStream_t stream) {
    cudaFuncSetAttribute(dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448);
    cudaFuncSetAttribute(dynamic, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(n), 1, 1};
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = dim3(n);
    configuration.blockDim = dim3(384);
    configuration.dynamicSmemBytes = 200000;
    configuration.attrs = &attribute;
    configuration.numAttrs = 1;
    int clusters = 0, potential = 0;
    cudaOccupancyMaxActiveClusters(&clusters, dynamic, &configuration);
    cudaOccupancyMaxPotentialClusterSize(&potential, dynamic, &configuration);
    plain<<<dim3(clusters, potential), 32, 0, stream>>>(out, out, 0);
}

static void pools(const float* A, float* B, int n, cudaStream_t stream) {
    cudaMemPool_t pool = nullptr, mine = nullptr;
    if (cudaDeviceGetDefaultMemPool(&pool, 0) != cudaSuccess || cudaDeviceGetMemPool(&mine, 0) != cudaSuccess) return;
    if (pool != mine || cudaDeviceGetDefaultMemPool(&mine, 1) == cudaSuccess) return;
    cuuint64_t everything = UINT64_MAX;
    if (cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything) != cudaSuccess) return;
    if (cuMemPoolTrimTo(pool, 0) != CUDA_SUCCESS) return;
    if (cudaMemPoolTrimTo(reinterpret_cast<cudaMemPool_t>(B), 0) == cudaSuccess) return;
    void* space = nullptr;
    cudaMallocFromPoolAsync(&space, 4096, pool, stream);
    int maps = 0;
    cuDeviceGetAttribute(&maps, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0);
    plain<<<maps, 32, 0, stream>>>(static_cast<float*>(space), B, n);
    cudaFreeAsync(space, stream);
}

extern "C" void run(const float* A, float* B, int mode, int n, cudaStream_t stream) {
    switch (mode) {
        case 0:
            templated<3><<<dim3(2, 3), dim3(32, 2), 64, stream>>>(B);
            fixed<<<1, 32, 0, stream>>>(B + 5);
            break;
        case 1: {
            Padded p;
            p.flag = 1;
            p.out = B + 2;
            p.small = 7;
            p.in = A;
            padded<<<1, 1, 0, stream>>>(p);
            break;
        }
        case 2: symbols(B, stream); break;
        case 3: {
            CUtensorMap map;
            encode(&map, A, n, 64, cuTensorMapEncodeTiled);
            mapped<<<1, 32, 0, stream>>>(map, B);
            break;
        }
        case 4: {
            Globals globals;
            globals.rows = n;
            encode(&globals.map, A + 16, n, 64, cuTensorMapEncodeTiled);
            globals.out = B;
            mapped_globals<<<1, 32, 0, stream>>>(globals);
            break;
        }
        case 5: maps_in_memory(A, B, stream); break;
        case 6:
        case 7:
        case 8:
        case 23: entry_points(A, B, mode, stream); break;
        case 9: attributes(B, stream); break;
        case 10: clustered<<<8, 32, 0, stream>>>(B); break;
        case 11: {
            void* arguments[] = {&B};
            cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(cooperative), dim3(n), dim3(128), arguments, 0,
                                        stream);
            break;
        }
        case 12: fills_and_copies(A, B, stream); break;
        case 13: streams_and_events(A, B, stream); break;
        case 14: driver_launches(B, stream); break;
        case 15: queries(A, B, stream); break;
        case 16: errors(A, B, stream); break;
        case 17: workspaces(A, B, n, stream); break;
        case 18: plain_host_code(A, B, n, stream); break;
        case 19: occupancy(B, n, stream); break;
        case 20: cluster_occupancy(B, n, stream); break;
        case 22: pools(A, B, n, stream); break;
        case 21: plain<<<1, 32, 0, stream>>>(A + 1024, B + 1024, n); break;  // one past the end
    }
}
