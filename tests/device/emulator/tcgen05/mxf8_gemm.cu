// D = (A · SFA) (B · SFB)ᵀ on one tile of 128 × 128 per CTA: MXFP8 operands (e4m3, a ue8m0 scale factor for every 32
// elements of K), fp32 sums. A [M, K] and B [N, K] by tensor copies in 128B swizzle, 128 of K at a time, through a ring
// of stages; their scale factors, 512 bytes for 128 rows and 128 of K, by bulk copies. K is a multiple of 128.
//
// Warp 0 copies, warp 1 multiplies, warps 2 to 5 store: row r of D is lane r of tensor memory.
#include <cuda.h>
#include <cstdint>

constexpr int kTile = 128, kDepth = 128, kStages = 3, kScaleBytes = 512;
constexpr uint32_t kTileBytes = kTile * kDepth, kStageBytes = 2 * kTileBytes + 2 * kScaleBytes;
constexpr uint32_t kScaleColumnA = 128, kScaleColumnB = 132, kColumns = 256;

__device__ __forceinline__ uint32_t address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra WAIT;\n}" ::"r"(
          address(barrier)), "r"(parity) : "memory");
}

__device__ __forceinline__ void tensor_load(void* to, const CUtensorMap* map, int x, int y, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          address(to)), "l"(map), "r"(x), "r"(y), "r"(address(barrier)) : "memory");
}

__device__ __forceinline__ void bulk_load(void* to, const uint8_t* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   address(to)), "l"(from), "r"(bytes), "r"(address(barrier)) : "memory");
}

// Rows of 128 bytes in 128B swizzle: atoms of 8 rows. The next 32 elements of K are 2 further (16-byte units).
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
  return (address(tile) & 0x3ffff) >> 4 | uint64_t(1024 >> 4) << 32 | 1ull << 46 | 2ull << 61;
}
// 32 rows of 16 bytes, not swizzled: 8 rows are 128 bytes.
__device__ __forceinline__ uint64_t scale_descriptor(const void* factors) {
  return (address(factors) & 0x3ffff) >> 4 | uint64_t(128 >> 4) << 32 | 1ull << 46;
}

__device__ __forceinline__ void copy_scales(uint32_t to, uint64_t from) {
  asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(from) : "memory");
}

// kind::mxf8f6f4: e4m3, N = 128, ue8m0, M = 128; the byte of the scale factors of both operands.
__device__ __forceinline__ uint32_t instruction(uint32_t byte) {
  return byte << 4 | uint32_t(kTile / 8) << 17 | 1u << 23 | 1u << 27 | byte << 29;
}

__device__ __forceinline__ void multiply(uint32_t d, uint64_t a, uint64_t b, uint32_t idesc, uint32_t sfa, uint32_t sfb,
                                         int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
      "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%4], [%5], p;\n}" ::"r"(d),
      "l"(a), "l"(b), "r"(idesc), "r"(sfa), "r"(sfb), "r"(accumulate) : "memory");
}

__device__ __forceinline__ void commit(uint64_t* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(address(barrier))
               : "memory");
}

// sfa [M / 128, K / 128, 512], sfb [N / 128, K / 128, 512], in the order of scale_image() of the tests.
extern "C" __global__ void __launch_bounds__(192)
    mxf8_gemm(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b, const uint8_t* sfa,
              const uint8_t* sfb, float* d, int n, int k) {
  extern __shared__ __align__(1024) uint8_t stages[];
  __shared__ __align__(8) uint64_t full[kStages], empty[kStages], done;
  __shared__ uint32_t slot;
  const int warp = threadIdx.x / 32, steps = k / kDepth;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&full[s])));
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&empty[s])));
    }
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&done)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (warp == 1)
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address(&slot)), "r"(kColumns)
                 : "memory");
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
  const uint32_t tmem = slot;

  if (warp == 0 && threadIdx.x == 0) {
    for (int step = 0; step < steps; ++step) {
      const int s = step % kStages;
      if (step >= kStages) wait(&empty[s], (step / kStages - 1) & 1);
      uint8_t* stage = stages + s * kStageBytes;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&full[s])), "r"(kStageBytes)
                   : "memory");
      tensor_load(stage, &map_a, step * kDepth, blockIdx.y * kTile, &full[s]);
      tensor_load(stage + kTileBytes, &map_b, step * kDepth, blockIdx.x * kTile, &full[s]);
      bulk_load(stage + 2 * kTileBytes, sfa + (blockIdx.y * steps + step) * kScaleBytes, kScaleBytes, &full[s]);
      bulk_load(stage + 2 * kTileBytes + kScaleBytes, sfb + (blockIdx.x * steps + step) * kScaleBytes, kScaleBytes,
                &full[s]);
    }
  } else if (warp == 1 && threadIdx.x == 32) {
    for (int step = 0; step < steps; ++step) {
      const int s = step % kStages;
      wait(&full[s], (step / kStages) & 1);
      asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
      const uint8_t* stage = stages + s * kStageBytes;
      copy_scales(tmem + kScaleColumnA, scale_descriptor(stage + 2 * kTileBytes));
      copy_scales(tmem + kScaleColumnB, scale_descriptor(stage + 2 * kTileBytes + kScaleBytes));
      const uint64_t a = tile_descriptor(stage), b = tile_descriptor(stage + kTileBytes);
      for (int part = 0; part < kDepth / 32; ++part)
        multiply(tmem, a + 2 * part, b + 2 * part, instruction(part), tmem + kScaleColumnA, tmem + kScaleColumnB,
                 step + part > 0);
      commit(&empty[s]);
    }
    commit(&done);
  } else if (warp >= 2) {
    wait(&done, 0);
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    const int quarter = warp % 4, row = blockIdx.y * kTile + quarter * 32 + threadIdx.x % 32;
    for (int column = 0; column < kTile; column += 8) {
      uint32_t v[8];
      asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                   : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7])
                   : "r"(tmem + (uint32_t(quarter * 32) << 16) + column));
      asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
      float* to = d + size_t(row) * n + blockIdx.x * kTile + column;
      for (int i = 0; i < 8; ++i) to[i] = __uint_as_float(v[i]);
    }
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  }
  __syncthreads();
  if (warp == 1) {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "r"(kColumns));
  }
}
