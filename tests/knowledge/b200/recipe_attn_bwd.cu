// The recipe for attention backward, kernel (b), from the pack's functions: a CTA keeps 128 keys, queries stream;
// transposed tiles in tensor memory, Pt over St and dSt over dPt. dK and dV come out. D = 128; S a multiple of 128.
constexpr int kRows = 128;
constexpr int kD = 128;
constexpr int kBox = kRows * 64;
constexpr int kStages = 2;
constexpr int kScores = 0, kSlopes = 128, kV = 256, kK = 384, kColumns = 512;
constexpr uint32_t kTileBytes = 2 * kBox * sizeof(__nv_bfloat16);
constexpr float kScale = 0.08838834764831845f;
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  __nv_bfloat16 k[2 * kBox], v[2 * kBox];  // and dK, dV on their way out
  __nv_bfloat16 q[kStages][2 * kBox], d_out[kStages][2 * kBox];
  float lse[kStages][kRows], delta[kStages][kRows];
  uint64_t loaded, full[kStages], empty[kStages], scores, slopes, weights, differences, done;
  uint32_t slot;
};
static_assert(sizeof(Shared) <= 232448, "the recipe's budget");

__device__ void load_tile(__nv_bfloat16* tile, const CUtensorMap* map, uint64_t* full, int row) {
  for (int box = 0; box < 2; ++box) tma_load_2d(tile + box * kBox, map, full, 64 * box, row);
}

// d = a * bt over D.
__device__ void over_d(uint32_t d, const __nv_bfloat16* a, const __nv_bfloat16* b) {
  for (int k = 0; k < kD; k += 16) {
    const int at = k / 64 * kBox;
    mma_ss(d, descriptor_k_major<128>(a + at) + k % 64 / 8, descriptor_k_major<128>(b + at) + k % 64 / 8,
           instruction_bf16(kRows, kRows), k > 0);
  }
}

// d (+)= a * b over the tile's rows; A is in two pieces of 64 elements, in the first halves of 64 columns each.
__device__ void over_rows(uint32_t d, uint32_t a, const __nv_bfloat16* b, bool accumulate) {
  const uint64_t operand = descriptor_mn_major<128>(b, kBox * sizeof(__nv_bfloat16));
  for (int k = 0; k < kRows; k += 16)
    mma_ts(d, a + k / 64 * 64 + k % 64 / 2, operand + k * 8, instruction_bf16(kRows, kD, false, true),
           accumulate || k > 0);
}

__global__ void __launch_bounds__(320, 1)
keys(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
     const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_d_out,
     const __grid_constant__ CUtensorMap map_dk, const __grid_constant__ CUtensorMap map_dv, const float* LSE,
     const float* delta, int length) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32;
  const int steps = length / kRows, row = blockIdx.x * kRows, head_row = blockIdx.x / steps * length;
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.loaded, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], 1);
    }
    mbarrier_init(&shared.scores, 1);
    mbarrier_init(&shared.slopes, 1);
    mbarrier_init(&shared.weights, 8);
    mbarrier_init(&shared.differences, 8);
    mbarrier_init(&shared.done, 1);
    mbarrier_init_fence();
  }
  if (warp == 9) tmem_alloc(&shared.slot, kColumns);
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  const uint32_t tmem = shared.slot;
  Ring<kStages> ring;
  if (warp == 8 && elect_one()) {
    mbarrier_arrive_expect_tx(&shared.loaded, 2 * kTileBytes);
    load_tile(shared.k, &map_k, &shared.loaded, row);
    load_tile(shared.v, &map_v, &shared.loaded, row);
    for (int step = 0; step < steps; ++step, ring.advance()) {
      uint64_t* full = &shared.full[ring.slot];
      const int query = head_row + step * kRows;
      mbarrier_wait(&shared.empty[ring.slot], ring.parity ^ 1);
      mbarrier_arrive_expect_tx(full, 2 * kTileBytes + 2 * sizeof(shared.lse[0]));
      load_tile(shared.q[ring.slot], &map_q, full, query);
      load_tile(shared.d_out[ring.slot], &map_d_out, full, query);
      bulk_load(shared.lse[ring.slot], LSE + query, full, sizeof(shared.lse[0]));
      bulk_load(shared.delta[ring.slot], delta + query, full, sizeof(shared.delta[0]));
    }
  } else if (warp == 9 && elect_one()) {
    Ring<kStages> next;
    mbarrier_wait(&shared.loaded, 0);
    mbarrier_wait(&shared.full[0], 0);
    over_d(tmem + kScores, shared.k, shared.q[0]);
    tcgen05_commit(&shared.scores);
    over_d(tmem + kSlopes, shared.v, shared.d_out[0]);
    tcgen05_commit(&shared.slopes);
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const bool last = step == steps - 1;
      next.advance();
      mbarrier_wait(&shared.weights, step % 2);
      tcgen05_fence_after();
      over_rows(tmem + kV, tmem + kScores, shared.d_out[ring.slot], step > 0);
      if (!last) {
        mbarrier_wait(&shared.full[next.slot], next.parity);
        over_d(tmem + kScores, shared.k, shared.q[next.slot]);
        tcgen05_commit(&shared.scores);
      }
      mbarrier_wait(&shared.differences, step % 2);
      tcgen05_fence_after();
      over_rows(tmem + kK, tmem + kSlopes, shared.q[ring.slot], step > 0);
      tcgen05_commit(&shared.empty[ring.slot]);
      if (last) break;
      over_d(tmem + kSlopes, shared.v, shared.d_out[next.slot]);
      tcgen05_commit(&shared.slopes);
    }
    tcgen05_commit(&shared.done);
  } else if (warp < 8) {
    const int half = warp / 4, key = threadIdx.x % 128;
    const uint32_t own = tmem + tmem_own_lanes() + 64 * half;
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const float* lse = shared.lse[ring.slot] + 64 * half;
      const float* delta_of = shared.delta[ring.slot] + 64 * half;
      float p[64], ds[64];
      uint32_t packed[32];
      mbarrier_wait(&shared.full[ring.slot], ring.parity);
      mbarrier_wait(&shared.scores, step % 2);
      tcgen05_fence_after();
      tmem_load(own + kScores, p);
      tmem_wait_load(p);
#pragma unroll
      for (int i = 0; i < 64; ++i) p[i] = exp2_approx(fmaf(p[i], kScale * kLog2E, -lse[i] * kLog2E));
#pragma unroll
      for (int i = 0; i < 32; ++i) packed[i] = pack_bf16(p[2 * i], p[2 * i + 1]);
      tmem_store(own + kScores, packed);
      tmem_wait_store();
      warp_arrive(&shared.weights);
      mbarrier_wait(&shared.slopes, step % 2);
      tcgen05_fence_after();
      tmem_load(own + kSlopes, ds);
      tmem_wait_load(ds);
#pragma unroll
      for (int i = 0; i < 32; ++i)
        packed[i] = pack_bf16(p[2 * i] * (ds[2 * i] - delta_of[2 * i]),
                              p[2 * i + 1] * (ds[2 * i + 1] - delta_of[2 * i + 1]));
      tmem_store(own + kSlopes, packed);
      tmem_wait_store();
      warp_arrive(&shared.differences);
    }
    mbarrier_wait(&shared.done, 0);
    tcgen05_fence_after();
    tmem_to_box(shared.v + half * kBox, key, own + kV);
    tmem_to_box(shared.k + half * kBox, key, own + kK, kScale);
    async_proxy_fence();
    named_barrier_sync(1 + half, 128);
    if (key == 0) {
      tma_store_2d(&map_dv, shared.v + half * kBox, 64 * half, row);
      tma_store_2d(&map_dk, shared.k + half * kBox, 64 * half, row);
      tma_commit();
      tma_wait<0>();
    }
  }
  __syncwarp();
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  if (warp == 9) tmem_dealloc(tmem, kColumns);
}

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, const __nv_bfloat16* dO,
                    const float* LSE, const float* delta, __nv_bfloat16* dK, __nv_bfloat16* dV, int heads, int S,
                    cudaStream_t stream) {
  const int rows = heads * S;
  const auto map = [&](const __nv_bfloat16* matrix) { return bf16_map(matrix, rows, kD, kRows); };
  cudaFuncSetAttribute(keys, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  keys<<<rows / kRows, 320, sizeof(Shared), stream>>>(map(Q), map(K), map(V), map(dO), map(dK), map(dV), LSE, delta, S);
}
