// Attention backward on CUDA cores in two kernels, without atomics: a warp owns a query and sums dQ over the
// keys, or owns a key and sums dK and dV over the queries.
//
// Both walk in steps of 32. In a step each lane takes one partner of the warp's row and makes its P and dS from two dot
// products. Then the lanes turn round: each owns four of the 128 columns and adds up 32 rows, weighted by P or dS.
// delta, which the second kernel needs for every query, is computed by the first and kept in a workspace.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cmath>

namespace {

constexpr int kDim = 128;
constexpr int kWarps = 8;
constexpr int kColumns = kDim / 32;  // per lane
constexpr float kLog2e = 1.44269504088896f;
constexpr bool kCausal = false;

struct Tensors {
  const __nv_bfloat16 *Q, *K, *V, *O, *dO;
  const float* LSE;
  __nv_bfloat16 *dQ, *dK, *dV;
  float* delta;
  int S;
  float scale;  // 1/√D
};

// A bf16 is the upper half of a float.
__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float4 four(const __nv_bfloat16* row, int lane) {
  const uint2 pair = reinterpret_cast<const uint2*>(row)[lane];
  return make_float4(low(pair.x), high(pair.x), low(pair.y), high(pair.y));
}

__device__ __forceinline__ float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  return value;
}

// Σ_d own[d] · other[d]: one row as floats in shared memory, the other as bf16 in global memory.
__device__ __forceinline__ float dot(const float4* own, const __nv_bfloat16* other) {
  const uint4* vectors = reinterpret_cast<const uint4*>(other);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDim / 8; ++i) {
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

// sums += weight · row, the lane's four columns.
__device__ __forceinline__ void add(float (&sums)[kColumns], float weight, const float4& row) {
  sums[0] = fmaf(weight, row.x, sums[0]);
  sums[1] = fmaf(weight, row.y, sums[1]);
  sums[2] = fmaf(weight, row.z, sums[2]);
  sums[3] = fmaf(weight, row.w, sums[3]);
}

__device__ __forceinline__ void store(__nv_bfloat16* row, int lane, const float (&sums)[kColumns], float factor) {
  __nv_bfloat162 out[2] = {__floats2bfloat162_rn(sums[0] * factor, sums[1] * factor),
                           __floats2bfloat162_rn(sums[2] * factor, sums[3] * factor)};
  reinterpret_cast<uint2*>(row)[lane] = *reinterpret_cast<uint2*>(out);
}

// P from the raw score of a query and a key that it sees.
__device__ __forceinline__ float weight_of(float score, float scale, float lse) {
  return exp2f((score * scale - lse) * kLog2e);
}

// Grid of both kernels: (rows / kWarps, heads of all batches).
__global__ void __launch_bounds__(32 * kWarps) attn_bwd_queries(const Tensors t) {
  __shared__ float4 own_query[kWarps][kDim / 4];
  __shared__ float4 own_gradient[kWarps][kDim / 4];
  __shared__ float shared_ds[kWarps][32];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int query = blockIdx.x * kWarps + warp;
  const size_t head = static_cast<size_t>(blockIdx.y) * t.S;
  const size_t row = head + query;

  own_query[warp][lane] = four(t.Q + row * kDim, lane);
  const float4 gradient = four(t.dO + row * kDim, lane);
  own_gradient[warp][lane] = gradient;
  const float4 output = four(t.O + row * kDim, lane);
  const float delta = warp_sum(gradient.x * output.x + gradient.y * output.y + gradient.z * output.z +
                               gradient.w * output.w);
  if (lane == 0) t.delta[row] = delta;
  const float lse = t.LSE[row];
  __syncwarp();

  float dq[kColumns] = {};
  const int seen = kCausal ? query + 1 : t.S;
  for (int first = 0; first < seen; first += 32) {
    const size_t key = head + first + lane;
    const float score = dot(own_query[warp], t.K + key * kDim);
    const float dp = dot(own_gradient[warp], t.V + key * kDim);
    const float ds = weight_of(score, t.scale, lse) * (dp - delta);
    shared_ds[warp][lane] = first + lane < seen ? ds : 0.0f;
    __syncwarp();
#pragma unroll 8
    for (int k = 0; k < 32; ++k) add(dq, shared_ds[warp][k], four(t.K + (head + first + k) * kDim, lane));
    __syncwarp();
  }
  store(t.dQ + row * kDim, lane, dq, t.scale);
}

__global__ void __launch_bounds__(32 * kWarps) attn_bwd_keys(const Tensors t) {
  __shared__ float4 own_key[kWarps][kDim / 4];
  __shared__ float4 own_value[kWarps][kDim / 4];
  __shared__ float shared_p[kWarps][32];
  __shared__ float shared_ds[kWarps][32];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int key = blockIdx.x * kWarps + warp;
  const size_t head = static_cast<size_t>(blockIdx.y) * t.S;
  const size_t row = head + key;

  own_key[warp][lane] = four(t.K + row * kDim, lane);
  own_value[warp][lane] = four(t.V + row * kDim, lane);
  __syncwarp();

  float dk[kColumns] = {};
  float dv[kColumns] = {};
  for (int first = kCausal ? key / 32 * 32 : 0; first < t.S; first += 32) {
    const size_t query = head + first + lane;
    const float score = dot(own_key[warp], t.Q + query * kDim);
    const float dp = dot(own_value[warp], t.dO + query * kDim);
    const bool sees = !kCausal || first + lane >= key;
    const float p = sees ? weight_of(score, t.scale, t.LSE[query]) : 0.0f;
    shared_p[warp][lane] = p;
    shared_ds[warp][lane] = p * (dp - t.delta[query]);
    __syncwarp();
#pragma unroll 4
    for (int q = 0; q < 32; ++q) {
      add(dv, shared_p[warp][q], four(t.dO + (head + first + q) * kDim, lane));
      add(dk, shared_ds[warp][q], four(t.Q + (head + first + q) * kDim, lane));
    }
    __syncwarp();
  }
  store(t.dK + row * kDim, lane, dk, t.scale);
  store(t.dV + row * kDim, lane, dv, 1.0f);
}

}  // namespace

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, const __nv_bfloat16* O,
                    const __nv_bfloat16* dO, const float* LSE, __nv_bfloat16* dQ, __nv_bfloat16* dK,
                    __nv_bfloat16* dV, int B, int H, int S, int D, cudaStream_t stream) {
  float* delta = nullptr;
  cudaMallocAsync(reinterpret_cast<void**>(&delta), sizeof(float) * B * H * S, stream);
  const Tensors tensors{Q, K, V, O, dO, LSE, dQ, dK, dV, delta, S, 1.0f / std::sqrt(static_cast<float>(D))};
  const dim3 grid(S / kWarps, B * H);
  attn_bwd_queries<<<grid, 32 * kWarps, 0, stream>>>(tensors);
  attn_bwd_keys<<<grid, 32 * kWarps, 0, stream>>>(tensors);
  cudaFreeAsync(delta, stream);
}
