// cuTensorMapEncodeTiled with every argument from a table: `mode` chooses the row.
#include <cuda.h>
#include <cuda_runtime.h>

__global__ void mapped(const __grid_constant__ CUtensorMap map, float* out) {
    out[0] = static_cast<float>(reinterpret_cast<unsigned long long>(&map));
}

struct Arguments {
    int type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank = 2;
    long long address = 0;
    unsigned long long dim[6] = {256, 128, 1, 1, 1, 1}, strides[5] = {512, 65536, 65536, 65536, 65536};
    unsigned box[6] = {64, 64, 1, 1, 1, 1}, steps[6] = {1, 1, 1, 1, 1, 1};
    int interleave = 0, swizzle = CU_TENSOR_MAP_SWIZZLE_128B, promotion = 0, fill = 0;
    int misalign = 0;
    bool no_strides = false;
};

static Arguments row(int mode) {
    Arguments a;
    switch (mode) { /* ROWS */ }
    return a;
}

extern "C" void run(const float* A, float* B, int mode, int n, cudaStream_t stream) {
    Arguments a = row(mode);
    alignas(128) char space[256];
    CUtensorMap* map = reinterpret_cast<CUtensorMap*>(space + a.misalign);
    const CUresult status = cuTensorMapEncodeTiled(
        map, static_cast<CUtensorMapDataType>(a.type), a.rank,
        const_cast<char*>(reinterpret_cast<const char*>(A)) + a.address, reinterpret_cast<cuuint64_t*>(a.dim),
        a.no_strides ? nullptr : reinterpret_cast<cuuint64_t*>(a.strides), a.box, a.steps,
        static_cast<CUtensorMapInterleave>(a.interleave), static_cast<CUtensorMapSwizzle>(a.swizzle),
        static_cast<CUtensorMapL2promotion>(a.promotion), static_cast<CUtensorMapFloatOOBfill>(a.fill));
    if (status == CUDA_SUCCESS) mapped<<<1, 32, 0, stream>>>(*map, B);
}
