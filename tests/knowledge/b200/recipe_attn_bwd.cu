// The recipe for attention backward, three kernels, from the pack's functions: statistics of queries; dK and dV by CTAs
// that keep 128 keys; dQ by CTAs that keep 128 queries. Where keys are kept, tiles are transposed, and P lies over S,
// dS over dP in tensor memory. D = 128; S a multiple of 128. CAUSAL is 0 or 1.
constexpr int kRows = 128;
constexpr int kD = 128;
constexpr int kBox = kRows * 64;
constexpr int kStages = 2;
constexpr int kScores = 0, kSlopes = 128, kFirst = 256, kSecond = 384, kColumns = 512;
constexpr uint32_t kTileBytes = 2 * kBox * sizeof(__nv_bfloat16);
constexpr float kScale = 0.08838834764831845f;
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  __nv_bfloat16 kept[2][2 * kBox];  // K and V, or Q and dO; at the end the sums on their way out
  __nv_bfloat16 stream[kStages][2][2 * kBox];
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

// LSE in base 2, and the sum of dO * O: a warp for each query.
__global__ void __launch_bounds__(256) prepare(const __nv_bfloat16* O, const __nv_bfloat16* dO, const float* LSE,
                                               float* lse, float* delta) {
  const size_t query = blockIdx.x * size_t{8} + threadIdx.x / 32;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < kD; d += 32)
    sum += __bfloat162float(O[query * kD + d]) * __bfloat162float(dO[query * kD + d]);
  for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (threadIdx.x % 32 == 0) {
    lse[query] = LSE[query] * kLog2E;
    delta[query] = sum;
  }
}

struct Maps {
  CUtensorMap kept[2], stream[2], sums[2];
};

// kKeys: (K, V) are kept, (Q, dO) stream, sums are dK and dV. Otherwise the other way round, and the sum is dQ.
template <bool kKeys>
__global__ void __launch_bounds__(320, 1)
backward(const __grid_constant__ Maps maps, const float* lse, const float* delta, int length) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32;
  const int tiles = length / kRows, tile = blockIdx.x % tiles, row = blockIdx.x * kRows;
  const int first = CAUSAL && kKeys ? tile : 0, steps = (CAUSAL && !kKeys ? tile + 1 : tiles) - first;
  const int stream_row = row - (tile - first) * kRows;
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
    for (int i = 0; i < 2; ++i) load_tile(shared.kept[i], &maps.kept[i], &shared.loaded, row);
    for (int step = 0; step < steps; ++step, ring.advance()) {
      uint64_t* full = &shared.full[ring.slot];
      const int at = stream_row + step * kRows;
      mbarrier_wait(&shared.empty[ring.slot], ring.parity ^ 1);
      mbarrier_arrive_expect_tx(full, 2 * kTileBytes + (kKeys ? 2 * sizeof(shared.lse[0]) : 0));
      for (int i = 0; i < 2; ++i) load_tile(shared.stream[ring.slot][i], &maps.stream[i], full, at);
      if (kKeys) bulk_load(shared.lse[ring.slot], lse + at, full, sizeof(shared.lse[0]));
      if (kKeys) bulk_load(shared.delta[ring.slot], delta + at, full, sizeof(shared.delta[0]));
    }
  } else if (warp == 9 && elect_one()) {
    Ring<kStages> next;
    mbarrier_wait(&shared.loaded, 0);
    mbarrier_wait(&shared.full[0], 0);
    over_d(tmem + kScores, shared.kept[0], shared.stream[0][0]);
    tcgen05_commit(&shared.scores);
    over_d(tmem + kSlopes, shared.kept[1], shared.stream[0][1]);
    tcgen05_commit(&shared.slopes);
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const bool last = step == steps - 1;
      next.advance();
      mbarrier_wait(&shared.weights, step % 2);
      tcgen05_fence_after();
      if (kKeys) over_rows(tmem + kSecond, tmem + kScores, shared.stream[ring.slot][1], step > 0);
      if (!last) {
        mbarrier_wait(&shared.full[next.slot], next.parity);
        over_d(tmem + kScores, shared.kept[0], shared.stream[next.slot][0]);
        tcgen05_commit(&shared.scores);
      }
      mbarrier_wait(&shared.differences, step % 2);
      tcgen05_fence_after();
      over_rows(tmem + kFirst, tmem + kSlopes, shared.stream[ring.slot][0], step > 0);
      tcgen05_commit(&shared.empty[ring.slot]);
      if (last) break;
      over_d(tmem + kSlopes, shared.kept[1], shared.stream[next.slot][1]);
      tcgen05_commit(&shared.slopes);
    }
    tcgen05_commit(&shared.done);
  } else if (warp < 8) {
    const int half = warp / 4, lane = threadIdx.x % 128;
    const uint32_t own = tmem + tmem_own_lanes() + 64 * half;
    const float own_lse = kKeys ? 0 : lse[row + lane], own_delta = kKeys ? 0 : delta[row + lane];
    for (int step = 0; step < steps; ++step, ring.advance()) {
      const bool diagonal = CAUSAL && step == (kKeys ? 0 : steps - 1);
      float p[64], ds[64];
      uint32_t packed[32];
      if (kKeys) mbarrier_wait(&shared.full[ring.slot], ring.parity);
      mbarrier_wait(&shared.scores, step % 2);
      tcgen05_fence_after();
      tmem_load(own + kScores, p);
      tmem_wait_load(p);
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int column = 64 * half + i;
        const bool seen = !diagonal || (kKeys ? lane <= column : column <= lane);
        const float relative = kKeys ? shared.lse[ring.slot][column] : own_lse;
        p[i] = seen ? exp2_approx(fmaf(p[i], kScale * kLog2E, -relative)) : 0;
      }
      if (kKeys) {
#pragma unroll
        for (int i = 0; i < 32; ++i) packed[i] = pack_bf16(p[2 * i], p[2 * i + 1]);
        tmem_store(own + kScores, packed);
        tmem_wait_store();
      }
      warp_arrive(&shared.weights);
      mbarrier_wait(&shared.slopes, step % 2);
      tcgen05_fence_after();
      tmem_load(own + kSlopes, ds);
      tmem_wait_load(ds);
#pragma unroll
      for (int i = 0; i < 64; ++i)
        ds[i] = p[i] * (ds[i] - (kKeys ? shared.delta[ring.slot][64 * half + i] : own_delta));
#pragma unroll
      for (int i = 0; i < 32; ++i) packed[i] = pack_bf16(ds[2 * i], ds[2 * i + 1]);
      tmem_store(own + kSlopes, packed);
      tmem_wait_store();
      warp_arrive(&shared.differences);
    }
    mbarrier_wait(&shared.done, 0);
    tcgen05_fence_after();
    tmem_to_box(shared.kept[0] + half * kBox, lane, own + kFirst, kScale);
    if (kKeys) tmem_to_box(shared.kept[1] + half * kBox, lane, own + kSecond);
    async_proxy_fence();
    named_barrier_sync(1 + half, 128);
    if (lane == 0) {
      for (int i = 0; i < 1 + kKeys; ++i) tma_store_2d(&maps.sums[i], shared.kept[i] + half * kBox, 64 * half, row);
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

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, const __nv_bfloat16* O,
                    const __nv_bfloat16* dO, const float* LSE, __nv_bfloat16* dQ, __nv_bfloat16* dK, __nv_bfloat16* dV,
                    int B, int H, int S, int D, cudaStream_t stream) {
  const int rows = B * H * S;
  const auto map = [&](const __nv_bfloat16* matrix) { return bf16_map(matrix, rows, kD, kRows); };
  float* workspace = nullptr;
  cudaMallocAsync(&workspace, 2 * sizeof(float) * rows, stream);
  prepare<<<rows / 8, 256, 0, stream>>>(O, dO, LSE, workspace, workspace + rows);
  cudaFuncSetAttribute(backward<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  cudaFuncSetAttribute(backward<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  backward<true><<<rows / kRows, 320, sizeof(Shared), stream>>>(
      Maps{{map(K), map(V)}, {map(Q), map(dO)}, {map(dK), map(dV)}}, workspace, workspace + rows, S);
  backward<false><<<rows / kRows, 320, sizeof(Shared), stream>>>(
      Maps{{map(Q), map(dO)}, {map(K), map(V)}, {map(dQ), map(dQ)}}, workspace, workspace + rows, S);
  cudaFreeAsync(workspace, stream);
}
