// Every variant of attention backward on CUDA cores, without atomics: a warp owns a query and sums dQ over the keys, or
// owns a key and sums dK and dV over the queries.
//
// Both walk in steps of 32. In a step each lane takes one partner of the warp's row and makes its P and dS from two dot
// products. Then the lanes turn round: each owns every 32nd column and adds up 32 rows, weighted by P or dS. delta is
// computed first and kept in a workspace.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>

// What a variant sets; as they stand, this is attn_bwd itself.
#define CAUSAL 0
#define HEAD_DIM 128
#define BSHD 0  // tensors are [B, S, H, D] instead of [B, H, S, D]; LSE is [B, H, S] in any case
#define WANT_DQ 1
#define WANT_DK 1
#define WANT_DV 1

#define WANT_DS (WANT_DQ || WANT_DK)  // without dS neither V nor O is needed, and run does not get them

namespace {

constexpr int kWarps = 8;
constexpr int kColumns = HEAD_DIM / 32;  // per lane
constexpr float kLog2e = 1.44269504088896f;

struct Tensors {
  const __nv_bfloat16 *Q, *K, *V, *O, *dO;
  const float* LSE;
  __nv_bfloat16 *dQ, *dK, *dV;
  float* delta;  // [B, H, S], as LSE
  int H, S;
  float scale;  // 1/√D

  __device__ __forceinline__ size_t scalar(int position) const {
    return (static_cast<size_t>(blockIdx.z) * H + blockIdx.y) * S + position;
  }

  // Where the row of a position of the block's batch and head begins, in a tensor with D columns.
  __device__ __forceinline__ size_t row(int position) const {
    const size_t index = BSHD ? (static_cast<size_t>(blockIdx.z) * S + position) * H + blockIdx.y : scalar(position);
    return index * HEAD_DIM;
  }
};

using Row = float4[HEAD_DIM / 4];
using Sums = float[kColumns];

// A bf16 is the upper half of a float.
__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ void load(Row& row, const __nv_bfloat16* from, int lane) {
  float* values = reinterpret_cast<float*>(row);
  for (int d = lane; d < HEAD_DIM; d += 32) values[d] = __bfloat162float(from[d]);
}

__device__ __forceinline__ void store(__nv_bfloat16* row, int lane, const Sums& sums, float factor) {
  for (int i = 0; i < kColumns; ++i) row[lane + 32 * i] = __float2bfloat16(sums[i] * factor);
}

// sums += weight · row, the lane's columns.
__device__ __forceinline__ void add(Sums& sums, float weight, const __nv_bfloat16* row, int lane) {
  for (int i = 0; i < kColumns; ++i) sums[i] = fmaf(weight, __bfloat162float(row[lane + 32 * i]), sums[i]);
}

// Σ_d own[d] · other[d]: one row as floats in shared memory, the other as bf16 in global memory.
__device__ __forceinline__ float dot(const Row& own, const __nv_bfloat16* other) {
  const uint4* vectors = reinterpret_cast<const uint4*>(other);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < HEAD_DIM / 8; ++i) {
    const uint4 x = vectors[i];
    const float4 y0 = own[2 * i];
    const float4 y1 = own[2 * i + 1];
    sum = fmaf(y0.x, low(x.x), sum);
    sum = fmaf(y0.y, high(x.x), sum);
    sum = fmaf(y0.z, low(x.y), sum);
    sum = fmaf(y0.w, high(x.y), sum);
    sum = fmaf(y1.x, low(x.z), sum);
    sum = fmaf(y1.y, high(x.z), sum);
    sum = fmaf(y1.z, low(x.w), sum);
    sum = fmaf(y1.w, high(x.w), sum);
  }
  return sum;
}

// P from the raw score of a query and a key that it sees.
__device__ __forceinline__ float weight_of(float score, float scale, float lse) {
  return exp2f((score * scale - lse) * kLog2e);
}

// Grid of all kernels: (rows / kWarps rounded up, heads, batches); a warp owns a row.
#if WANT_DS
__global__ void __launch_bounds__(32 * kWarps) attn_bwd_delta(const Tensors t) {
  const int lane = threadIdx.x % 32;
  const int query = blockIdx.x * kWarps + threadIdx.x / 32;
  if (query >= t.S) return;
  const size_t row = t.row(query);
  float sum = 0.0f;
  for (int d = lane; d < HEAD_DIM; d += 32) {
    sum = fmaf(__bfloat162float(t.dO[row + d]), __bfloat162float(t.O[row + d]), sum);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (lane == 0) t.delta[t.scalar(query)] = sum;
}
#endif

#if WANT_DQ
__global__ void __launch_bounds__(32 * kWarps) attn_bwd_queries(const Tensors t) {
  __shared__ Row own_query[kWarps];
  __shared__ Row own_gradient[kWarps];
  __shared__ float shared_ds[kWarps][32];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int query = blockIdx.x * kWarps + warp;
  if (query >= t.S) return;
  load(own_query[warp], t.Q + t.row(query), lane);
  load(own_gradient[warp], t.dO + t.row(query), lane);
  __syncwarp();

  const float delta = t.delta[t.scalar(query)];
  const float lse = t.LSE[t.scalar(query)];
  Sums dq = {};
  const int seen = CAUSAL ? query + 1 : t.S;
  for (int first = 0; first < seen; first += 32) {
    const int count = min(32, seen - first);
    const size_t key = t.row(first + min(lane, count - 1));
    const float score = dot(own_query[warp], t.K + key);
    const float dp = dot(own_gradient[warp], t.V + key);
    shared_ds[warp][lane] = weight_of(score, t.scale, lse) * (dp - delta);
    __syncwarp();
#pragma unroll 4
    for (int k = 0; k < count; ++k) add(dq, shared_ds[warp][k], t.K + t.row(first + k), lane);
    __syncwarp();
  }
  store(t.dQ + t.row(query), lane, dq, t.scale);
}
#endif

#if WANT_DK || WANT_DV
__global__ void __launch_bounds__(32 * kWarps) attn_bwd_keys(const Tensors t) {
  __shared__ Row own_key[kWarps];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int key = blockIdx.x * kWarps + warp;
  if (key >= t.S) return;
  load(own_key[warp], t.K + t.row(key), lane);
#if WANT_DK
  __shared__ Row own_value[kWarps];
  __shared__ float shared_ds[kWarps][32];
  load(own_value[warp], t.V + t.row(key), lane);
  Sums dk = {};
#endif
#if WANT_DV
  __shared__ float shared_p[kWarps][32];
  Sums dv = {};
#endif
  __syncwarp();

  for (int first = CAUSAL ? key / 32 * 32 : 0; first < t.S; first += 32) {
    const int count = min(32, t.S - first);
    const int query = first + min(lane, count - 1);
    const float score = dot(own_key[warp], t.Q + t.row(query));
    const bool sees = !CAUSAL || query >= key;
    const float p = sees ? weight_of(score, t.scale, t.LSE[t.scalar(query)]) : 0.0f;
#if WANT_DK
    shared_ds[warp][lane] = p * (dot(own_value[warp], t.dO + t.row(query)) - t.delta[t.scalar(query)]);
#endif
#if WANT_DV
    shared_p[warp][lane] = p;
#endif
    __syncwarp();
#pragma unroll 4
    for (int q = 0; q < count; ++q) {
#if WANT_DK
      add(dk, shared_ds[warp][q], t.Q + t.row(first + q), lane);
#endif
#if WANT_DV
      add(dv, shared_p[warp][q], t.dO + t.row(first + q), lane);
#endif
    }
    __syncwarp();
  }
#if WANT_DK
  store(t.dK + t.row(key), lane, dk, t.scale);
#endif
#if WANT_DV
  store(t.dV + t.row(key), lane, dv, 1.0f);
#endif
}
#endif

}  // namespace

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K,
#if WANT_DS
                    const __nv_bfloat16* V, const __nv_bfloat16* O,
#endif
                    const __nv_bfloat16* dO, const float* LSE,
#if WANT_DQ
                    __nv_bfloat16* dQ,
#endif
#if WANT_DK
                    __nv_bfloat16* dK,
#endif
#if WANT_DV
                    __nv_bfloat16* dV,
#endif
                    int B, int H, int S, int D, cudaStream_t stream) {
  Tensors tensors = {};
  tensors.Q = Q;
  tensors.K = K;
  tensors.dO = dO;
  tensors.LSE = LSE;
  tensors.H = H;
  tensors.S = S;
  tensors.scale = 1.0f / std::sqrt(static_cast<float>(D));
  const dim3 grid((S + kWarps - 1) / kWarps, H, B);
#if WANT_DS
  tensors.V = V;
  tensors.O = O;
  cudaMallocAsync(reinterpret_cast<void**>(&tensors.delta), sizeof(float) * B * H * S, stream);
  attn_bwd_delta<<<grid, 32 * kWarps, 0, stream>>>(tensors);
#endif
#if WANT_DQ
  tensors.dQ = dQ;
  attn_bwd_queries<<<grid, 32 * kWarps, 0, stream>>>(tensors);
#endif
#if WANT_DK
  tensors.dK = dK;
#endif
#if WANT_DV
  tensors.dV = dV;
#endif
#if WANT_DK || WANT_DV
  attn_bwd_keys<<<grid, 32 * kWarps, 0, stream>>>(tensors);
#endif
#if WANT_DS
  cudaFreeAsync(tensors.delta, stream);
#endif
}
