// Kernels that do little but write to global memory: what the ordering of global memory between CTAs costs at most.
#include <cuda_runtime.h>

constexpr int kThreads = 256, kTurns = 16;

// 16 words a thread, each word by one thread.
__global__ void stores(float* C) {
  float* at = C + blockIdx.x * kThreads * kTurns + threadIdx.x;
  for (int i = 0; i < kTurns; ++i) at[i * kThreads] = static_cast<float>(i);
}

// The same, as pairs of bf16 in the layout of an accumulator of mma.sync: eight rows of 16 bytes a warp.
__global__ void fragments(float* C) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float* at = C + blockIdx.x * kThreads * kTurns + (warp * 8 + lane / 4) * 64 + lane % 4;
  for (int i = 0; i < kTurns; ++i) at[i * 4] = static_cast<float>(i);
}

// All CTAs add to one tile, as split-K does.
__global__ void sums(float* C) {
  for (int i = 0; i < kTurns; ++i) atomicAdd(C + i * kThreads + threadIdx.x, 1.0f);
}

// A histogram: the lanes of a warp add to places that have nothing to do with each other.
__global__ void histogram(float* C) {
  unsigned seed = blockIdx.x * kThreads + threadIdx.x;
  for (int i = 0; i < kTurns; ++i) {
    seed = seed * 1664525u + 1013904223u;
    atomicAdd(C + (seed >> 20), 1.0f);
  }
}

// One sum a CTA, which its first thread adds to the total.
__global__ void total(float* C) {
  __shared__ float parts[kThreads / 32];
  float sum = static_cast<float>(threadIdx.x);
  for (int apart = 16; apart; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x) return;
  for (int i = 1; i < kThreads / 32; ++i) sum += parts[i];
  atomicAdd(C, sum);
}

extern "C" void run(float* C, int N, int KIND, cudaStream_t stream) {
  void (*const kernels[])(float*) = {stores, fragments, sums, histogram, total};
  kernels[KIND]<<<N / (kThreads * kTurns), kThreads, 0, stream>>>(C);
}
