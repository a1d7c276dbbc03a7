// Every variant of C = A·Bᵀ on CUDA cores: one thread per element of C, eight products at a time, then the epilogue.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>

// What a variant sets; as they stand, this is the task itself.
#define A_KM 0      // A is [K, M] instead of [M, K]
#define B_KN 0      // B is [K, N] instead of [N, K]
#define SCALE 0     // x becomes scale[n] · x
#define DIV_32 0    // x becomes x / 32
#define BIAS 0      // x becomes x + bias[n]
#define RELU 0      // x becomes max(x, 0)
#define GELU 0      // x becomes GELU(x)
#define RESIDUAL 0  // x becomes x + residual[m, n]
#define FP32 0      // C is FP32 instead of BF16

namespace {

#if FP32
using Result = float;
#else
using Result = __nv_bfloat16;
#endif

constexpr int kTile = 16;

struct Epilogue {
  const float* scale;
  const __nv_bfloat16 *bias, *residual;
};

// Eight values that follow each other along K, `stride` elements apart.
template <bool kContiguous>
__device__ __forceinline__ void load8(const __nv_bfloat16* from, size_t stride, float (&values)[8]) {
  if constexpr (kContiguous) {
    const uint4 packed = *reinterpret_cast<const uint4*>(from);
    const unsigned pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(pairs[i] << 16);  // a bf16 is the upper half of a float
      values[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __bfloat162float(from[i * stride]);
  }
}

__device__ __forceinline__ float finish(float x, const Epilogue& epilogue, size_t row, size_t column, int N) {
#if SCALE
  x *= epilogue.scale[column];
#endif
#if DIV_32
  x /= 32.0f;
#endif
#if BIAS
  x += __bfloat162float(epilogue.bias[column]);
#endif
#if RELU
  x = fmaxf(x, 0.0f);
#endif
#if GELU
  constexpr float kRoot2OverPi = 0.797884560802865f;
  x = 0.5f * x * (1.0f + tanhf(kRoot2OverPi * (x + 0.044715f * x * x * x)));
#endif
#if RESIDUAL
  x += __bfloat162float(epilogue.residual[row * N + column]);
#endif
  return x;
}

__global__ void __launch_bounds__(kTile * kTile)
gemm_naive(const __nv_bfloat16* __restrict__ A, const __nv_bfloat16* __restrict__ B, Result* __restrict__ C,
           const Epilogue epilogue, int M, int N, int K) {
  const size_t row = blockIdx.y * kTile + threadIdx.y;
  const size_t column = blockIdx.x * kTile + threadIdx.x;
  if (row >= M || column >= N) return;
  const size_t a_step = A_KM ? M : 1;
  const size_t b_step = B_KN ? N : 1;
  const __nv_bfloat16* a = A_KM ? A + row : A + row * K;
  const __nv_bfloat16* b = B_KN ? B + column : B + column * K;

  float sum = 0.0f;
  for (int k = 0; k < K; k += 8) {
    float x[8], y[8];
    load8<!A_KM>(a + k * a_step, a_step, x);
    load8<!B_KN>(b + k * b_step, b_step, y);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(x[i], y[i], sum);
  }
  const float x = finish(sum, epilogue, row, column, N);
#if FP32
  C[row * N + column] = x;
#else
  C[row * N + column] = __float2bfloat16(x);
#endif
}

}  // namespace

extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B,
#if SCALE
                    const float* scale,
#endif
#if BIAS
                    const __nv_bfloat16* bias,
#endif
#if RESIDUAL
                    const __nv_bfloat16* residual,
#endif
                    Result* C, int M, int N, int K, cudaStream_t stream) {
  Epilogue epilogue = {};
#if SCALE
  epilogue.scale = scale;
#endif
#if BIAS
  epilogue.bias = bias;
#endif
#if RESIDUAL
  epilogue.residual = residual;
#endif
  const dim3 grid((N + kTile - 1) / kTile, (M + kTile - 1) / kTile);
  gemm_naive<<<grid, dim3(kTile, kTile), 0, stream>>>(A, B, C, epilogue, M, N, K);
}
