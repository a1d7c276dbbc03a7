// One kernel parameter whose padding holds what else lay on the host's stack: pieces of two other tensor maps.
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>

struct Globals {
    const float* in;
    int rows;  // 116 bytes of padding after it
    alignas(128) CUtensorMap map;
    float scale;  // and 124 bytes here
};

static __device__ void load(float* tile, const CUtensorMap& map) {
    __shared__ unsigned long long barrier;
    const unsigned bar = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(bar) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::
                "r"(static_cast<unsigned>(__cvta_generic_to_shared(tile))),
            "l"(&map), "r"(0), "r"(bar)
            : "memory");
    }
    __syncthreads();
    asm volatile(
        "{ .reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again; }" ::"r"(bar)
        : "memory");
}
__global__ void members(const __grid_constant__ Globals g, float* out, int) {
    __shared__ alignas(128) float tile[32];
    load(tile, g.map);
    out[threadIdx.x] = tile[threadIdx.x] * g.scale + g.rows + g.in[1];
}
__global__ void padding(const __grid_constant__ Globals g, float* out, int) {
    out[threadIdx.x] = g.scale + reinterpret_cast<const unsigned*>(&g)[5];
}
__global__ void indexed(const __grid_constant__ Globals g, float* out, int n) {
    out[threadIdx.x] = g.scale + reinterpret_cast<const unsigned*>(&g)[n];
}
static __device__ __noinline__ float called(const Globals* g) {
    asm volatile("mov.b64 %0, %0;" : "+l"(g));  // or nvcc hands over the member
    return g->scale;
}
__global__ void passed(const __grid_constant__ Globals g, float* out, int) { out[threadIdx.x] = called(&g); }

static void encode(void* map, const float* data) {
    const cuuint64_t dim = 32, stride = 0;
    const cuuint32_t box = 32, step = 1;
    cuTensorMapEncodeTiled(static_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, const_cast<float*>(data),
                           &dim, &stride, &box, &step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                           CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

extern "C" void run(const float* A, float* B, int mode, int n, cudaStream_t stream) {
    static int calls = 0;
    const int odd = (calls++ * 3) % 5;  // 0, 3, 1, 4: counts nothing
    alignas(128) char stack[sizeof(Globals)];
    encode(stack, A);
    encode(stack + 256, A + 32);
    Globals* g = reinterpret_cast<Globals*>(stack);
    const int rows = mode == 5 ? odd : 7;
    const float scale = 2;
    memcpy(&g->in, &A, 8);
    memcpy(&g->rows, &rows, 4);
    encode(&g->map, A + 64);
    memcpy(&g->scale, &scale, 4);
    if (mode == 4) memcpy(stack + 20, &odd, 4);
    const void* kernels[] = {reinterpret_cast<void*>(members), reinterpret_cast<void*>(padding),
                             reinterpret_cast<void*>(indexed), reinterpret_cast<void*>(passed)};
    void* arguments[] = {stack, &B, &n};
    cudaLaunchKernel(kernels[mode < 4 ? mode : 0], dim3(1), dim3(32), arguments, 0, stream);
}
