// Attention forward on CUDA cores: a warp owns a query and walks over the keys in steps of 32 with an online softmax.
//
// In a step each lane scores one key against the query, which lies in shared memory. Then the lanes turn round: each
// owns four of the 128 columns of O and adds up the 32 values, weighted.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>

namespace {

constexpr int kDim = 128;
constexpr int kWarps = 8;
constexpr int kColumns = kDim / 32;  // of O, per lane
constexpr bool kCausal = false;

// A bf16 is the upper half of a float.
__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Σ_d query[d] · key[d]: the query as floats in shared memory, the key as 16 vectors of eight bf16.
__device__ __forceinline__ float dot(const float4* query, const uint4* key) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDim / 8; ++i) {
    const uint4 k = key[i];
    const float4 q0 = query[2 * i];
    const float4 q1 = query[2 * i + 1];
    sum = fmaf(q0.x, low(k.x), sum);
    sum = fmaf(q0.y, high(k.x), sum);
    sum = fmaf(q0.z, low(k.y), sum);
    sum = fmaf(q0.w, high(k.y), sum);
    sum = fmaf(q1.x, low(k.z), sum);
    sum = fmaf(q1.y, high(k.z), sum);
    sum = fmaf(q1.z, low(k.w), sum);
    sum = fmaf(q1.w, high(k.w), sum);
  }
  return sum;
}

// Grid: (queries / kWarps, heads of all batches).
__global__ void __launch_bounds__(32 * kWarps)
attn_fwd_naive(const __nv_bfloat16* __restrict__ Q, const __nv_bfloat16* __restrict__ K,
               const __nv_bfloat16* __restrict__ V, __nv_bfloat16* __restrict__ O, float* __restrict__ LSE, int S,
               float scale_log2) {
  __shared__ float4 queries[kWarps][kDim / 4];
  __shared__ float weights[kWarps][32];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int row = blockIdx.x * kWarps + warp;
  const size_t head = static_cast<size_t>(blockIdx.y) * S * kDim;
  const uint4* keys = reinterpret_cast<const uint4*>(K + head);
  const uint2* values = reinterpret_cast<const uint2*>(V + head);

  const uint2 own = reinterpret_cast<const uint2*>(Q + head + static_cast<size_t>(row) * kDim)[lane];
  queries[warp][lane] = make_float4(low(own.x), high(own.x), low(own.y), high(own.y));
  __syncwarp();

  float maximum = -INFINITY;  // of scores · log2(e)
  float total = 0.0f;         // of this lane's keys
  float sums[kColumns] = {};
  const int seen = kCausal ? row + 1 : S;
  for (int first = 0; first < seen; first += 32) {
    const int key = first + lane;
    const float score = dot(queries[warp], keys + static_cast<size_t>(key) * (kDim / 8)) * scale_log2;
    const float mine = key < seen ? score : -INFINITY;
    const float grown = fmaxf(maximum, warp_max(mine));
    const float shrink = exp2f(maximum - grown);
    const float weight = exp2f(mine - grown);
    maximum = grown;
    total = fmaf(total, shrink, weight);
    weights[warp][lane] = weight;
    __syncwarp();
    for (float& sum : sums) sum *= shrink;
#pragma unroll 8
    for (int k = 0; k < 32; ++k) {
      const float p = weights[warp][k];
      const uint2 v = values[static_cast<size_t>(first + k) * (kDim / 4) + lane];
      sums[0] = fmaf(p, low(v.x), sums[0]);
      sums[1] = fmaf(p, high(v.x), sums[1]);
      sums[2] = fmaf(p, low(v.y), sums[2]);
      sums[3] = fmaf(p, high(v.y), sums[3]);
    }
    __syncwarp();
  }

  total = warp_sum(total);
  const float inverse = 1.0f / total;
  __nv_bfloat162 out[2] = {__floats2bfloat162_rn(sums[0] * inverse, sums[1] * inverse),
                           __floats2bfloat162_rn(sums[2] * inverse, sums[3] * inverse)};
  reinterpret_cast<uint2*>(O + head + static_cast<size_t>(row) * kDim)[lane] = *reinterpret_cast<uint2*>(out);
  if (lane == 0) {
    constexpr float kLn2 = 0.693147180559945f;
    LSE[static_cast<size_t>(blockIdx.y) * S + row] = (maximum + log2f(total)) * kLn2;
  }
}

}  // namespace

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, __nv_bfloat16* O,
                    float* LSE, int B, int H, int S, int D, cudaStream_t stream) {
  constexpr float kLog2e = 1.44269504088896f;
  const float scale_log2 = kLog2e / std::sqrt(static_cast<float>(D));
  attn_fwd_naive<<<dim3(S / kWarps, B * H), 32 * kWarps, 0, stream>>>(Q, K, V, O, LSE, S, scale_log2);
}
