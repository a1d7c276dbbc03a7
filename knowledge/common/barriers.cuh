#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

// The 32-bit address that PTX wants for a pointer into shared memory.
__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// True in one thread of a converged warp; all 32 must call it (PTX ISA 9.7.13).
__device__ __forceinline__ bool elect_one() {
  uint32_t chosen;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(chosen)::"memory");
  return chosen != 0;
}

// One thread, once per barrier. `arrivals` = arrive instructions that complete a phase; bytes of copies come on top
// (PTX ISA 9.7.13.15).
__device__ __forceinline__ void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem_address(barrier)), "r"(arrivals) : "memory");
}

// By the thread that initialised, after the last mbarrier_init() and before the __syncthreads() (cluster: cluster_sync())
// that lets others use them: makes them visible to the cluster and to copies.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

// One arrival, and `bytes` more that copies must deliver before the phase completes. Issue it before the copies.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(barrier)), "r"(bytes)
               : "memory");
}

// One arrival; releases what this thread did before.
__device__ __forceinline__ void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem_address(barrier)) : "memory");
}

// Block until the phase of this parity has completed. A new barrier is in phase 0: waiting for parity 0 blocks until it
// first completes, waiting for parity 1 returns at once. Every thread that reads the data must wait itself, or meet one
// that did at a barrier.
__device__ __forceinline__ void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "POLL:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra POLL;\n}" ::"r"(smem_address(barrier)), "r"(parity) : "memory");
}

// A place in a ring of stages. Consumers wait for full[slot] with `parity`; producers wait for empty[slot] with
// `parity ^ 1`, which passes at once on the first round.
template <int kStages>
struct Ring {
  int slot = 0;
  uint32_t parity = 0;
  // To the next stage; the parity flips each time around.
  __device__ __forceinline__ void advance() {
    slot = slot + 1 == kStages ? 0 : slot + 1;
    parity ^= slot == 0;
  }
};

// Barrier `id` (1 to 15; 0 is __syncthreads()) among `threads` threads, whole warps.
__device__ __forceinline__ void named_barrier_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same without waiting; `threads` counts those that arrive and those that sync.
__device__ __forceinline__ void named_barrier_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// By every thread that wrote shared memory with ordinary stores, before the barrier after which a TMA store or a matrix
// instruction reads those bytes.
__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Give up or claim registers; all four warps of a warpgroup, counts are multiples of 8. The kernel's launch bounds fix
// the registers that all start with; what one warpgroup gives up another can claim (PTX ISA 9.7.19.5).
template <int kRegisters>
__device__ __forceinline__ void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
