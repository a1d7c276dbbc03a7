// C = A·Bᵀ the Ampere way: a cp.async ring of three stages, ldmatrix, mma.sync.m16n8k16. No Hopper instruction.
// 128×128 tile per CTA of eight warps, two by four, each 64×32.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace {

constexpr int kTile = 128;
constexpr int kTileK = 64;
constexpr int kStages = 3;
constexpr int kThreads = 256;
constexpr int kChunk = 8;                       // elements in the 16 bytes that one cp.async moves
constexpr int kRowChunks = kTileK / kChunk;     // eight: a row spans all 32 banks once
constexpr int kOperandBytes = kTile * kTileK * sizeof(__nv_bfloat16);
constexpr int kSharedBytes = kStages * 2 * kOperandBytes;

// Byte offset of a chunk in a tile; the XOR spreads the eight rows of an 8×8 matrix over all banks.
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  return (row * kRowChunks + (chunk ^ row % 8)) * 16;
}

__device__ __forceinline__ void copy_tile(uint32_t target, const __nv_bfloat16* source, int stride) {
#pragma unroll
  for (int i = threadIdx.x; i < kTile * kRowChunks; i += kThreads) {
    const int row = i / kRowChunks;
    const int chunk = i % kRowChunks;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + chunk_offset(row, chunk)),
                 "l"(source + static_cast<size_t>(row) * stride + chunk * kChunk)
                 : "memory");
  }
}

__device__ __forceinline__ void load_matrices(uint32_t (&fragment)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__global__ void __launch_bounds__(kThreads)
gemm_mma_sync(const __nv_bfloat16* __restrict__ A, const __nv_bfloat16* __restrict__ B, __nv_bfloat16* __restrict__ C,
              int N, int K) {
  extern __shared__ __align__(128) uint8_t raw[];
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(raw));
  const int lane = threadIdx.x % 32;
  const int warp_row = threadIdx.x / 32 / 4 * 64;
  const int warp_column = threadIdx.x / 32 % 4 * 32;
  const __nv_bfloat16* a_tile = A + static_cast<size_t>(blockIdx.y) * kTile * K;
  const __nv_bfloat16* b_tile = B + static_cast<size_t>(blockIdx.x) * kTile * K;
  const int slices = K / kTileK;

  auto fetch = [&](int slice) {
    if (slice < slices) {
      const uint32_t slot = base + slice % kStages * 2 * kOperandBytes;
      copy_tile(slot, a_tile + slice * kTileK, K);
      copy_tile(slot + kOperandBytes, b_tile + slice * kTileK, K);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // an empty group keeps the count of pending groups right
  };

  for (int slice = 0; slice < kStages - 1; ++slice) fetch(slice);

  float sums[4][4][4] = {};
  for (int slice = 0; slice < slices; ++slice) {
    asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
    __syncthreads();  // this slice has landed for everyone, and everyone has left the slot that is filled next
    fetch(slice + kStages - 1);
    const uint32_t a_slot = base + slice % kStages * 2 * kOperandBytes;
    const uint32_t b_slot = a_slot + kOperandBytes;
#pragma unroll
    for (int k = 0; k < kTileK / 16; ++k) {
      uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_matrices(a[i], a_slot + chunk_offset(warp_row + i * 16 + lane % 16, k * 2 + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = warp_column + j * 16 + lane % 8 + lane / 16 * 8;
        load_matrices(b[j], b_slot + chunk_offset(row, k * 2 + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) mma(sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
      }
    }
  }

  const size_t row = static_cast<size_t>(blockIdx.y) * kTile + warp_row + lane / 4;
  const int column = blockIdx.x * kTile + warp_column + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      __nv_bfloat16* top = C + (row + i * 16) * N + column + j * 8;
      *reinterpret_cast<__nv_bfloat162*>(top) = __floats2bfloat162_rn(sums[i][j][0], sums[i][j][1]);
      *reinterpret_cast<__nv_bfloat162*>(top + 8 * static_cast<size_t>(N)) =
          __floats2bfloat162_rn(sums[i][j][2], sums[i][j][3]);
    }
  }
}

}  // namespace

extern "C" void run(const __nv_bfloat16* A, const __nv_bfloat16* B, __nv_bfloat16* C, int M, int N, int K,
                    cudaStream_t stream) {
  cudaFuncSetAttribute(gemm_mma_sync, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  gemm_mma_sync<<<dim3(N / kTile, M / kTile), kThreads, kSharedBytes, stream>>>(A, B, C, N, K);
}
