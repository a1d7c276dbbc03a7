// A cluster of two: the odd CTA stores its slice into the even one's shared memory and arrives at a barrier there.
#include <cstdint>

__device__ uint32_t address(const void* pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }
__device__ uint32_t at_rank_0(uint32_t local) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(local));
  return remote;
}

__global__ __cluster_dims__(2, 1, 1) void cluster_sum(const float* input, float* out, float*, unsigned*, int rows) {
  __shared__ float received[64];
  __shared__ alignas(8) uint64_t barrier;
  const int t = threadIdx.x, threads = blockDim.x;
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (t == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&barrier)), "r"(threads) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  const float* slice = input + blockIdx.x * rows * threads;
  float sum = 0;
  for (int row = 0; row < rows; ++row) sum += slice[row * threads + t];
  if (rank == 1) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at_rank_0(address(received + t))), "f"(sum) : "memory");
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(at_rank_0(address(&barrier)))
                 : "memory");
    return;
  }
  uint32_t done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
                 "selp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(address(&barrier))
                 : "memory");
  } while (!done);
  out[blockIdx.x / 2 * threads + t] = sum + received[(t + 1) % threads];
}
