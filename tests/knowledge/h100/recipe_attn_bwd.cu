// The recipe for attention backward, its first structure, by template functions alone. CAUSAL is defined by the test.
constexpr int kD = 128, kRows = 64, kStages = 3;
constexpr int kBox = kRows * 64;  // elements of a box: 64 tokens of 64 dimensions
constexpr float kLog2E = 1.4426950408889634f;
using Tile = __nv_bfloat16[2][kBox];

struct Tiles {
  Tile kept[2][2];  // of each consumer: K and V, or Q and dO
  Tile ring[kStages][2];
  float statistics[kStages][2][kRows];
  uint64_t loaded, full[kStages], empty[kStages];
};
constexpr int kBytes = sizeof(Tiles) + 1024;

// A warp per query: LSE in base 2, and delta.
__global__ void statistics(const __nv_bfloat16* O, const __nv_bfloat16* dO, const float* LSE, float* lse2, float* delta) {
  const size_t query = blockIdx.x * 8 + threadIdx.x / 32;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < kD; d += 32) {
    sum += __bfloat162float(O[query * kD + d]) * __bfloat162float(dO[query * kD + d]);
  }
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
  if (threadIdx.x % 32 == 0) {
    lse2[query] = LSE[query] * kLog2E;
    delta[query] = sum;
  }
}

__device__ void load_tile(Tile& tile, const CUtensorMap* map, uint64_t* full, int row) {
  for (int box = 0; box < 2; ++box) tma_load_2d(tile[box], map, full, 64 * box, row);
}

__device__ void times_transposed(float (&d)[32], Tile& a, Tile& b) {
#pragma unroll
  for (int k = 0; k < kD; k += 16) {
    wgmma_ss(d, descriptor_k_major<128>(a[k / 64]) + k % 64 / 8, descriptor_k_major<128>(b[k / 64]) + k % 64 / 8, k > 0);
  }
  wgmma_commit();
}

__device__ void add_product(float (&d)[64], const uint32_t (&a)[4][4], Tile& b, bool accumulate) {
  const uint64_t start = descriptor_mn_major<128>(b, kBox * 2);
#pragma unroll
  for (int group = 0; group < 4; ++group) wgmma_rs<1>(d, a[group], start + 128 * group, accumulate || group > 0);
  wgmma_commit();
}

__device__ void send(Tile& tile, const CUtensorMap* map, float (&sums)[64], float factor, int barrier, int row) {
#pragma unroll
  for (float& sum : sums) sum *= factor;
  for (int box = 0; box < 2; ++box) sums_to_box(tile[box], sums, 64 * box);
  async_proxy_fence();
  named_barrier_sync(barrier, 128);
  if (threadIdx.x % 128 == 0) {
    for (int box = 0; box < 2; ++box) tma_store_2d(map, tile[box], 64 * box, row);
    tma_commit();
  }
}

// kKeys: keeps K and V, Q and dO stream past; out_a, out_b are dK and dV. Otherwise Q and dO, K and V; out_a is dQ.
template <bool kKeys>
__global__ void __launch_bounds__(384, 1)
gradients(const __grid_constant__ CUtensorMap kept_a, const __grid_constant__ CUtensorMap kept_b,
          const __grid_constant__ CUtensorMap stream_a, const __grid_constant__ CUtensorMap stream_b,
          const __grid_constant__ CUtensorMap out_a, const __grid_constant__ CUtensorMap out_b, const float* lse2,
          const float* delta, int S) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory + (-smem_address(memory) & 1023));
  const int head = blockIdx.y * S, own = blockIdx.x * 2 * kRows;
  const int begin = CAUSAL && kKeys ? own / kRows : 0;
  const int end = CAUSAL && !kKeys ? own / kRows + 2 : S / kRows;
  if (threadIdx.x == 0) {
    mbarrier_init(&tiles.loaded, 1);
    for (int slot = 0; slot < kStages; ++slot) {
      mbarrier_init(&tiles.full[slot], 1);
      mbarrier_init(&tiles.empty[slot], 8);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  Ring<kStages> ring;
  if (threadIdx.x < 128) {
    registers_shrink<24>();
    if (threadIdx.x != 0) return;
    mbarrier_arrive_expect_tx(&tiles.loaded, sizeof(tiles.kept));
    for (int consumer = 0; consumer < 2; ++consumer) {
      load_tile(tiles.kept[consumer][0], &kept_a, &tiles.loaded, head + own + consumer * kRows);
      load_tile(tiles.kept[consumer][1], &kept_b, &tiles.loaded, head + own + consumer * kRows);
    }
    for (int step = begin; step < end; ++step, ring.advance()) {
      uint64_t* full = &tiles.full[ring.slot];
      const int row = head + step * kRows;
      mbarrier_wait(&tiles.empty[ring.slot], ring.parity ^ 1);
      mbarrier_arrive_expect_tx(full, sizeof(tiles.ring[0]) + (kKeys ? sizeof(tiles.statistics[0]) : 0));
      load_tile(tiles.ring[ring.slot][0], &stream_a, full, row);
      load_tile(tiles.ring[ring.slot][1], &stream_b, full, row);
      if (kKeys) {
        bulk_load(tiles.statistics[ring.slot][0], lse2 + row, full, kRows * 4);
        bulk_load(tiles.statistics[ring.slot][1], delta + row, full, kRows * 4);
      }
    }
    return;
  }
  registers_grow<240>();
  const int consumer = threadIdx.x / 128 - 1;
  const int first = own + consumer * kRows;
  const float scale = rsqrtf(float(kD));
  float rows[2][2];
  if (!kKeys) {
    for (int half = 0; half < 2; ++half) {
      rows[half][0] = lse2[head + first + fragment_row(2 * half)];
      rows[half][1] = delta[head + first + fragment_row(2 * half)];
    }
  }
  float sums_a[64], sums_b[64];
  mbarrier_wait(&tiles.loaded, 0);
  for (int step = begin; step < end; ++step, ring.advance()) {
    Tile(&streamed)[2] = tiles.ring[ring.slot];
    float p[32], ds[32];
    uint32_t fragments_p[4][4], fragments_ds[4][4];
    mbarrier_wait(&tiles.full[ring.slot], ring.parity);
    wgmma_fence();
    times_transposed(p, tiles.kept[consumer][0], streamed[0]);
    times_transposed(ds, tiles.kept[consumer][1], streamed[1]);
    wgmma_wait<1>(p);
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int row = fragment_row(i % 4), column = fragment_column(i / 4, i % 4);
      const float lse = kKeys ? tiles.statistics[ring.slot][0][column] : rows[i / 2 % 2][0];
      p[i] = exp2_approx(fmaf(p[i], scale * kLog2E, -lse));
      const int query = kKeys ? step * kRows + column : first + row, key = kKeys ? first + row : step * kRows + column;
      if (CAUSAL && key > query) p[i] = 0;
    }
    if (kKeys) {
#pragma unroll
      for (int group = 0; group < 4; ++group) accumulators_to_a(p, group, fragments_p[group]);
      wgmma_fence();
      add_product(sums_b, fragments_p, streamed[1], step > begin);
      wgmma_wait<1>(ds);
    } else {
      wgmma_wait<0>(ds);
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int column = fragment_column(i / 4, i % 4);
      ds[i] = p[i] * (ds[i] - (kKeys ? tiles.statistics[ring.slot][1][column] : rows[i / 2 % 2][1]));
    }
#pragma unroll
    for (int group = 0; group < 4; ++group) accumulators_to_a(ds, group, fragments_ds[group]);
    wgmma_fence();
    add_product(sums_a, fragments_ds, streamed[0], step > begin);
    wgmma_wait<0>(sums_a);
    if (kKeys) wgmma_wait<0>(sums_b);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&tiles.empty[ring.slot]);
  }
  send(tiles.kept[consumer][0], &out_a, sums_a, scale, 1 + consumer, head + first);
  if (kKeys) send(tiles.kept[consumer][1], &out_b, sums_b, 1, 1 + consumer, head + first);
  if (threadIdx.x % 128 == 0) tma_wait<0>();
}

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, const __nv_bfloat16* O,
                    const __nv_bfloat16* dO, const float* LSE, __nv_bfloat16* dQ, __nv_bfloat16* dK, __nv_bfloat16* dV,
                    int B, int H, int S, int D, cudaStream_t stream) {
  const uint64_t tokens = uint64_t(B) * H * S;
  const auto map = [&](const __nv_bfloat16* matrix) { return bf16_map(matrix, tokens, D, kRows); };
  void* workspace = nullptr;
  cudaMallocAsync(&workspace, tokens * 8, stream);
  float* lse2 = static_cast<float*>(workspace);
  float* delta = lse2 + tokens;
  statistics<<<tokens / 8, 256, 0, stream>>>(O, dO, LSE, lse2, delta);
  const dim3 grid(S / (2 * kRows), B * H);
  cudaFuncSetAttribute(gradients<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cudaFuncSetAttribute(gradients<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  gradients<true><<<grid, 384, kBytes, stream>>>(map(K), map(V), map(Q), map(dO), map(dK), map(dV), lse2, delta, S);
  gradients<false><<<grid, 384, kBytes, stream>>>(map(Q), map(dO), map(K), map(V), map(dQ), map(dQ), lse2, delta, S);
  cudaFreeAsync(workspace, stream);
}
