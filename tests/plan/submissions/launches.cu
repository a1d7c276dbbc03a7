// Launches at a limit (n = 0) and one step beyond it (n = 1), one limit per value of `mode`.
#include <cuda.h>
#include <cuda_runtime.h>

__global__ void plain(float* out) { out[0] = 1; }
__global__ void __launch_bounds__(128) bounded(float* out) { out[0] = 1; }
__global__ void __block_size__((64, 2, 1)) exact(float* out) { out[0] = 1; }
__global__ void __launch_bounds__(128, 1, 2) ranked(float* out) { out[0] = 1; }
__global__ void __block_size__((128, 1, 1), (2, 1, 1)) blocks(float* out) { out[0] = 1; }
__global__ void __cluster_dims__(2, 1, 1) clustered(float* out) { out[0] = 1; }
__global__ void fixed_40k(float* out) {
    __shared__ int shared[10240];
    shared[threadIdx.x] = 1;
    __syncthreads();
    out[0] = shared[(threadIdx.x * 7) % 10240];
}
__global__ void greedy(float* out, float* in) {
    float values[160];
    for (int i = 0; i < 160; i++)
        values[i] = in[i * threadIdx.x];
    __syncthreads();
    for (int k = 0; k < 10; k++)
        for (int i = 0; i < 160; i++)
            values[i] = values[i] * values[(i + 17) % 160] + in[k];
    for (int i = 0; i < 160; i++)
        out[i * 77 + threadIdx.x] = values[i];
}

static void extended(const void* kernel, int grid, int cluster, float* out, cudaStream_t stream, int attribute_id = 0,
                     int preferred = 0) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {unsigned(cluster), 1, 1};
    cudaLaunchConfig_t configuration = {};
    configuration.gridDim = dim3(grid);
    configuration.blockDim = dim3(32);
    configuration.stream = stream;
    configuration.attrs = attributes;
    configuration.numAttrs = cluster ? 1 : 0;
    if (attribute_id) {
        attributes[configuration.numAttrs].id = static_cast<cudaLaunchAttributeID>(attribute_id);
        attributes[configuration.numAttrs].val.preferredClusterDim = {unsigned(preferred), 1, 1};
        configuration.numAttrs++;
    }
    void* arguments[] = {&out};
    cudaLaunchKernelExC(&configuration, kernel, arguments);
}

#define ADDRESS(kernel) reinterpret_cast<const void*>(&kernel)

// A kernel sets a workspace up; another one uses it at once (n = 1), or when the first is over.
static void set_up(int n, float* out, cudaStream_t stream) {
    float* workspace = nullptr;
    cudaMalloc(&workspace, 64);
    plain<<<1, 32>>>(n == 2 ? out : workspace);
    if (n != 1) cudaDeviceSynchronize();
    plain<<<1, 32, 0, stream>>>(workspace);
}

extern "C" void run(const float* A, float* B, int mode, int n, cudaStream_t stream) {
    const unsigned step = n;
    void* arguments[] = {&B};
    switch (mode) {
        case 0: plain<<<1 - step, 32, 0, stream>>>(B); break;
        case 1: plain<<<dim3(1, 65535 + step), 32, 0, stream>>>(B); break;
        case 2: plain<<<0x7fffffffu + step, 32, 0, stream>>>(B); break;
        case 3: plain<<<1, 1 - step, 0, stream>>>(B); break;
        case 4: plain<<<1, 1024 + step, 0, stream>>>(B); break;
        case 5: plain<<<1, dim3(512, 2 + step), 0, stream>>>(B); break;
        case 6: plain<<<1, dim3(1, 1, 64 + step), 0, stream>>>(B); break;
        case 7: bounded<<<1, 128 + step, 0, stream>>>(B); break;
        case 8: cudaLaunchKernel(ADDRESS(exact), dim3(1), n ? dim3(128) : dim3(64, 2), arguments, 0, stream); break;
        case 9: greedy<<<1, n ? 1024 : 128, 0, stream>>>(B, B); break;
        case 10: plain<<<1, 32, 49152 + step, stream>>>(B); break;
        case 11: fixed_40k<<<1, 32, 8192 + step, stream>>>(B); break;
        case 12:
            cudaFuncSetAttribute(plain, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448);
            plain<<<1, 32, 232448 + step, stream>>>(B);
            break;
        case 13:
            cudaFuncSetAttribute(plain, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000);
            plain<<<1, 32, 60000 + step, stream>>>(B);
            break;
        case 14: extended(ADDRESS(plain), 8 + 8 * step, 8 + 8 * step, B, stream); break;
        case 15:
            cudaFuncSetAttribute(plain, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
            extended(ADDRESS(plain), 16 + step, 16 + step, B, stream);
            break;
        case 16: extended(ADDRESS(plain), 4 + step, 2, B, stream); break;
        case 17: extended(ADDRESS(clustered), 4, 2 + 2 * step, B, stream); break;
        case 18: clustered<<<4 + step, 32, 0, stream>>>(B); break;
        case 19:
            cudaLaunchCooperativeKernel(ADDRESS(plain), dim3(132 * 16 + step), dim3(128), arguments, 0, stream);
            break;
        case 20: cudaLaunchKernel(ADDRESS(plain), dim3(1), dim3(32), n ? nullptr : arguments, 0, stream); break;
        case 21:
            cudaLaunchKernel(n ? static_cast<const void*>(&arguments) : ADDRESS(plain), dim3(1), dim3(32), arguments, 0,
                             stream);
            break;
        case 22:
            extended(ADDRESS(plain), 8, 2, B, stream, cudaLaunchAttributePreferredClusterDimension, 4 - step);
            break;
        case 23:
            extended(ADDRESS(plain), 8, 2, B, stream,
                     n ? cudaLaunchAttributeProgrammaticEvent : cudaLaunchAttributeIgnore);
            break;
        case 26: greedy<<<1, 256 + 32 * step, 0, stream>>>(B, B); break;
        case 27: {  // as many threads as the runtime says, or the driver; then one more
            cudaFuncAttributes known;
            cudaFuncGetAttributes(&known, greedy);
            if (n == 2) {
                cudaFunction_t function;
                cudaGetFuncBySymbol(&function, ADDRESS(greedy));
                cuFuncGetAttribute(&known.maxThreadsPerBlock, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function);
            }
            greedy<<<1, known.maxThreadsPerBlock + (n == 1), 0, stream>>>(B, B);
            break;
        }
        case 28: {  // by the bound of its source, which leaves registers over
            cudaFuncAttributes known;
            cudaFuncGetAttributes(&known, bounded);
            bounded<<<1, known.maxThreadsPerBlock, 0, stream>>>(B);
            break;
        }
        case 29: extended(ADDRESS(ranked), 8, 2 + 2 * step, B, stream); break;
        case 30:  // as the programming guide has it; the twin names its cluster otherwise
            if (n)
                blocks<<<4, 1, 0, stream>>>(B);
            else
                clustered<<<8, 128, 0, stream>>>(B);
            break;
        case 31: {  // a cluster beyond the portable size, which is then forbidden again; n = 1: a kernel of other rights
            for (int allowed : {1, 0}) {
                cudaFuncSetAttribute(plain, cudaFuncAttributeNonPortableClusterSizeAllowed, allowed);
                if (allowed != int(step)) extended(ADDRESS(plain), 16, 16, B, stream);
            }
            plain<<<1, 32, 0, stream>>>(B);
            break;
        }
        case 32:  // rows that lie apart
            cudaMemset2DAsync(B, 32, 0, 16, 20 + step, stream);
            for (int i = 0; i < 19979; ++i)
                plain<<<1, 32, 0, stream>>>(B);
            cudaMemset2DAsync(B, 32, 0, 16, 1 + step, stream);
            break;
        case 33: {  // what the driver says of a kernel, as the runtime does
            int said[5] = {};
            cudaFunction_t function;
            cudaGetFuncBySymbol(&function, ADDRESS(clustered));
            const CUfunction_attribute asked[5] = {
                CU_FUNC_ATTRIBUTE_BINARY_VERSION, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET,
                CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED,
                CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
            };
            for (int i = 0; i < 5; ++i)
                if (cuFuncGetAttribute(&said[i], asked[i], function) != CUDA_SUCCESS) return;
            plain<<<dim3(said[0], said[1], said[2]), dim3(1 + said[3], 2 + said[4]), 0, stream>>>(B);
            break;
        }
        case 34: {  // how many clusters of a kernel that names none
            cudaLaunchConfig_t configuration = {};
            configuration.gridDim = configuration.blockDim = dim3(32);
            int clusters = -1;
            const void* kernel = n ? ADDRESS(plain) : ADDRESS(clustered);
            const int error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &configuration);
            plain<<<1, dim3(1 + error, 2 + (clusters > 0)), 0, stream>>>(B);
            break;
        }
        case 25: set_up(n, B, stream); break;
        case 24:
            fixed_40k<<<1, 32, 0, stream>>>(B);
            cudaFuncSetAttribute(fixed_40k, cudaFuncAttributeMaxDynamicSharedMemorySize, 191488 + step);
            fixed_40k<<<1, 32, 191488, stream>>>(B);
            break;
    }
}
