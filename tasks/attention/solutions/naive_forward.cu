// Every variant of attention forward on CUDA cores: a warp owns a query and walks over the keys in steps of 32 with an
// online softmax.
//
// In a step each lane scores one key against the query, which lies in shared memory. Then the lanes turn round: each
// owns every 32nd column of O and adds up the 32 values, weighted.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>

// What a variant sets; as they stand, this is attn_fwd itself.
#define CAUSAL 0
#define HEAD_DIM 128
#define BSHD 0      // tensors are [B, S, H, D] instead of [B, H, S, D]; LSE is [B, H, S] in any case
#define WANT_O 1    // run gets V and O
#define WANT_LSE 1  // run gets LSE

namespace {

constexpr int kWarps = 8;
constexpr int kColumns = HEAD_DIM / 32;  // of O, per lane

struct Tensors {
  const __nv_bfloat16 *Q, *K, *V;
  __nv_bfloat16* O;
  float* LSE;
  int H, S;
  float scale_log2;  // log2(e) / √D

  // Where the row of a position begins, in a tensor with D columns.
  __device__ __forceinline__ size_t row(int batch, int head, int position) const {
    const size_t index = BSHD ? (static_cast<size_t>(batch) * S + position) * H + head
                              : (static_cast<size_t>(batch) * H + head) * S + position;
    return index * HEAD_DIM;
  }
};

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

// Σ_d query[d] · key[d]: the query as floats in shared memory, the key in vectors of eight bf16.
__device__ __forceinline__ float dot(const float4* query, const __nv_bfloat16* key) {
  const uint4* vectors = reinterpret_cast<const uint4*>(key);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < HEAD_DIM / 8; ++i) {
    const uint4 k = vectors[i];
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

// Grid: (queries / kWarps rounded up, heads, batches).
__global__ void __launch_bounds__(32 * kWarps) attn_fwd_naive(const Tensors t) {
  __shared__ float4 queries[kWarps][HEAD_DIM / 4];
  __shared__ float weights[kWarps][32];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int head = blockIdx.y;
  const int batch = blockIdx.z;
  const int query = blockIdx.x * kWarps + warp;
  if (query >= t.S) return;
  const size_t row = t.row(batch, head, query);

  float* own = reinterpret_cast<float*>(queries[warp]);
  for (int d = lane; d < HEAD_DIM; d += 32) own[d] = __bfloat162float(t.Q[row + d]);
  __syncwarp();

  float maximum = -INFINITY;  // of scores · log2(e)
  float total = 0.0f;         // of this lane's keys
#if WANT_O
  float sums[kColumns] = {};
#endif
  const int seen = CAUSAL ? query + 1 : t.S;
  for (int first = 0; first < seen; first += 32) {
    const int count = min(32, seen - first);
    const int key = first + min(lane, count - 1);
    const float score = dot(queries[warp], t.K + t.row(batch, head, key)) * t.scale_log2;
    const float mine = lane < count ? score : -INFINITY;
    const float grown = fmaxf(maximum, warp_max(mine));
    const float shrink = exp2f(maximum - grown);
    const float weight = exp2f(mine - grown);
    maximum = grown;
    total = fmaf(total, shrink, weight);
#if WANT_O
    weights[warp][lane] = weight;
    __syncwarp();
    for (float& sum : sums) sum *= shrink;
#pragma unroll 4
    for (int k = 0; k < count; ++k) {
      const __nv_bfloat16* value = t.V + t.row(batch, head, first + k);
      for (int i = 0; i < kColumns; ++i) {
        sums[i] = fmaf(weights[warp][k], __bfloat162float(value[lane + 32 * i]), sums[i]);
      }
    }
    __syncwarp();
#endif
  }

  total = warp_sum(total);
#if WANT_O
  for (int i = 0; i < kColumns; ++i) t.O[row + lane + 32 * i] = __float2bfloat16(sums[i] / total);
#endif
#if WANT_LSE
  constexpr float kLn2 = 0.693147180559945f;
  if (lane == 0) t.LSE[(static_cast<size_t>(batch) * t.H + head) * t.S + query] = (maximum + log2f(total)) * kLn2;
#endif
}

}  // namespace

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K,
#if WANT_O
                    const __nv_bfloat16* V, __nv_bfloat16* O,
#endif
#if WANT_LSE
                    float* LSE,
#endif
                    int B, int H, int S, int D, cudaStream_t stream) {
  constexpr float kLog2e = 1.44269504088896f;
  Tensors tensors = {};
  tensors.Q = Q;
  tensors.K = K;
#if WANT_O
  tensors.V = V;
  tensors.O = O;
#endif
#if WANT_LSE
  tensors.LSE = LSE;
#endif
  tensors.H = H;
  tensors.S = S;
  tensors.scale_log2 = kLog2e / std::sqrt(static_cast<float>(D));
  attn_fwd_naive<<<dim3((S + kWarps - 1) / kWarps, H, B), 32 * kWarps, 0, stream>>>(tensors);
}
