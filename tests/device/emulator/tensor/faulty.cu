// Kernels that break a rule when args[15] is set, and keep it otherwise. Parameters as in tests/gpu/conformance/device.cuh.
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

extern __shared__ uint8_t raw_smem[];
__shared__ alignas(8) uint64_t bar;

__device__ uint32_t smem_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ uint8_t* image() { return raw_smem + (1024 - smem_address(raw_smem) % 1024) % 1024; }
__device__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}
__device__ void load_tile(const Params& p, uint32_t to, int bytes) {
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem_address(&bar)) : "memory");
  publish();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem_address(&bar)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&p.map), "r"(0), "r"(0), "r"(smem_address(&bar)) : "memory");
  }
  asm volatile("{\n.reg .pred p;\nL:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0;\n@!p bra L;\n}" ::"r"(smem_address(&bar))
               : "memory");
}
__device__ void multiply(float* d, uint64_t a, uint64_t b, int scale) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, "
               "1, 0, 0;\n}" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b), "r"(scale) : "memory");
}
__device__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void finish() { asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory"); }
__device__ void clear(uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) image()[i] = 0;
}

// A by a tensor copy, B by stores. args[0]: 1 overwrites A by stores, after which its layout is the kernel's own affair.
extern "C" __global__ void swizzle_mismatch(const __grid_constant__ Params p) {
  clear(32768);
  publish();
  load_tile(p, smem_address(image()), p.args[1]);
  if (p.args[0]) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < 8192; i += blockDim.x) image()[i] = static_cast<uint8_t>(i % 7 + 1);
  }
  publish();
  float d[4] = {};
  const uint64_t base = smem_address(image()) >> 4;
  fence();
  multiply(d, p.wide[0] + base, p.wide[1] + base, 0);
  finish();
  reinterpret_cast<float*>(p.out)[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

// Writes the first args[0] bytes of four lines of 128, and stores all of them through the tensor map.
extern "C" __global__ void clipped_store(const __grid_constant__ Params p) {
  for (int i = threadIdx.x; i < 512; i += blockDim.x)
    if (i % 128 < p.args[0]) image()[i] = static_cast<uint8_t>(i % 128 + 1);
  publish();
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %1}], [%2];" ::"l"(&p.map), "r"(0),
                 "r"(smem_address(image())) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

// args[0]: what differs. 0 nothing, 1 the descriptor of one lane, 2 that of one warp, 3 scale-d of one warp, 4 scale-d of one lane,
// 5 one lane has exited
extern "C" __global__ void differing_operands(const __grid_constant__ Params p) {
  clear(32768);
  publish();
  const int what = p.args[0];
  if (what == 5 && threadIdx.x == 37) return;
  const bool lane = threadIdx.x == 37, warp = threadIdx.x / 32 == 2;
  const uint64_t base = smem_address(image()) >> 4;
  const uint64_t a = p.wide[0] + base + ((what == 1 && lane) || (what == 2 && warp) ? 64 : 0);
  const int scale = (what == 3 && warp) || (what == 4 && lane) ? 1 : 0;
  float d[4] = {};
  fence();
  multiply(d, a, p.wide[1] + base, scale);
  finish();
  reinterpret_cast<float*>(p.out)[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

// args[0]: 1 leaves one warp out, so that the others wait for ever.
extern "C" __global__ void missing_warp(const __grid_constant__ Params p) {
  clear(32768);
  publish();
  float d[4] = {};
  const uint64_t base = smem_address(image()) >> 4;
  if (!p.args[0] || threadIdx.x / 32 != 1) {
    fence();
    multiply(d, p.wide[0] + base, p.wide[1] + base, 0);
    finish();
  }
  __syncthreads();
  reinterpret_cast<float*>(p.out)[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

// Two bulk stores of 256 bytes in two groups. out: both targets, then what a thread reads of them after wait_group 1 and after
// wait_group 0 (16 bytes each).
extern "C" __global__ void bulk_groups(const __grid_constant__ Params p) {
  for (uint32_t i = threadIdx.x; i < 512; i += blockDim.x) image()[i] = p.in[i];
  publish();
  if (threadIdx.x) return;
  const auto store = [&](int index) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;\ncp.async.bulk.commit_group;" ::"l"(p.out + 256 * index),
                 "r"(smem_address(image()) + 256 * index) : "memory");
  };
  uint32_t* seen = reinterpret_cast<uint32_t*>(p.out + 512);
  store(0);
  store(1);
  asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
  seen[0] = *reinterpret_cast<volatile uint32_t*>(p.out);
  seen[1] = *reinterpret_cast<volatile uint32_t*>(p.out + 256);
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  seen[2] = *reinterpret_cast<volatile uint32_t*>(p.out);
  seen[3] = *reinterpret_cast<volatile uint32_t*>(p.out + 256);
}

// A store, a wait (args[0]: 0 .read, 1 whole, 2 none), then its source is overwritten.
extern "C" __global__ void bulk_source_reused(const __grid_constant__ Params p) {
  for (uint32_t i = threadIdx.x; i < 256; i += blockDim.x) image()[i] = p.in[i];
  publish();
  if (threadIdx.x) return;
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;\ncp.async.bulk.commit_group;" ::"l"(p.out),
               "r"(smem_address(image())) : "memory");
  if (p.args[0] == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  if (p.args[0] == 1) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  for (int i = 0; i < 256; ++i) image()[i] = 0;
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// One warp; lane l copies 16 bytes from in + 16 l + args[0] to 16 l + args[1], of which args[2] come from memory.
extern "C" __global__ void cp_async_checked(const __grid_constant__ Params p) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(image()) + 16 * threadIdx.x + p.args[1]),
               "l"(p.in + 16 * threadIdx.x + p.args[0]), "r"(p.args[2]) : "memory");
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
  for (int i = 0; i < 16; ++i) p.out[16 * threadIdx.x + i] = image()[16 * threadIdx.x + i + p.args[1]];
}

// args[0] cp.async.mbarrier.arrive.noinc by each of 32 threads, at a barrier that expects one of each, and bytes that never come.
extern "C" __global__ void cp_async_arrivals(const __grid_constant__ Params p) {
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 32;" ::"r"(smem_address(&bar)) : "memory");
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(smem_address(&bar)) : "memory");
  }
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem_address(image()) + 4 * threadIdx.x), "l"(p.in + 4 * threadIdx.x)
               : "memory");
  for (int i = 0; i < p.args[0]; ++i) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(smem_address(&bar)) : "memory");
  }
}

// In: per lane one register of A, one of B, two of C.
extern "C" __global__ void mma_m8n8k16(const __grid_constant__ Params p) {
  const uint32_t* w = reinterpret_cast<const uint32_t*>(p.in) + threadIdx.x * 4;
  uint32_t d[2];
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
               : "=r"(d[0]), "=r"(d[1]) : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]));
  reinterpret_cast<uint32_t*>(p.out)[threadIdx.x * 2] = d[0];
  reinterpret_cast<uint32_t*>(p.out)[threadIdx.x * 2 + 1] = d[1];
}

// args[0]: 1 lets a lane exit before the collectives of its warp; 2 also skips the mma
extern "C" __global__ void partial_warp(const __grid_constant__ Params p) {
  if (p.args[0] && threadIdx.x == 9) return;
  float d[4] = {};
  const uint32_t one = 0x3F803F80;
  if (p.args[0] != 2) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4}, {%4}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(one));
  }
  uint32_t word;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(word) : "r"(one));
  reinterpret_cast<float*>(p.out)[threadIdx.x] = d[0] + __uint_as_float(word & 0xFFFF0000);
}
