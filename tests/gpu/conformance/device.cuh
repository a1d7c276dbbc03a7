// What the conformance kernels share: their one parameter, and steps that many of them take.
#pragma once
#include <cuda.h>
#include <cstdint>

struct alignas(128) Params {
  CUtensorMap map;
  const uint8_t* in;
  uint8_t* out;
  uint32_t in_bytes, out_bytes;
  int32_t args[16];
  uint64_t wide[4];
};

constexpr int POLLS = 20000;

extern __shared__ uint8_t raw_smem[];
__shared__ alignas(8) uint64_t bar[2];

__device__ uint32_t smem_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
// The image starts at a multiple of 1024, the length of the longest swizzle pattern.
__device__ uint8_t* image() { return raw_smem + (1024 - smem_address(raw_smem) % 1024) % 1024; }

__device__ void fill(uint8_t* to, uint32_t bytes, uint8_t value) {
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = value;
}
__device__ void copy(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}
__device__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}
__device__ void init(uint64_t* b, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(b)), "r"(count) : "memory");
}
__device__ void expect(uint64_t* b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(b)), "r"(bytes) : "memory");
}
__device__ uint32_t test(uint64_t* b, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done) : "r"(smem_address(b)), "r"(parity) : "memory");
  return done;
}
// Bounded, so that a wrong byte count is a result and not a hang.
__device__ uint32_t poll(uint64_t* b, uint32_t parity) {
  for (int i = 0; i < POLLS; ++i) {
    if (test(b, parity)) return 1;
  }
  return 0;
}

