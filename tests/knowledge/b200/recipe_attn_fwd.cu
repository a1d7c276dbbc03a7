// The recipe for attention forward, first version, from the pack's functions: 128 queries a CTA, keys in tiles of 128
// through a ring, P over S in tensor memory, O scaled in place where a maximum grows. D = 128, or 96 with columns that
// TMA fills with zeros; S a multiple of 128.
constexpr int kRows = 128;
constexpr int kD = 128;  // in shared and tensor memory
constexpr int kBox = kRows * 64;
constexpr int kStages = 3;  // tiles of K and V
constexpr int kScores = 0, kOut = 128, kColumns = 256;
constexpr uint32_t kTileBytes = 2 * kBox * sizeof(__nv_bfloat16);
constexpr float kLog2E = 1.4426950408889634f;

struct Shared {
  __nv_bfloat16 q[2 * kBox];  // and O on its way out
  __nv_bfloat16 ring[kStages][2 * kBox];
  uint64_t q_full, full[kStages], empty[kStages], scores, weights, out;
  uint32_t slot;
};

__device__ void load_tile(__nv_bfloat16* tile, const CUtensorMap* map, uint64_t* full, int row) {
  mbarrier_arrive_expect_tx(full, kTileBytes);
  for (int box = 0; box < 2; ++box) tma_load_2d(tile + box * kBox, map, full, 64 * box, row);
}

__global__ void __launch_bounds__(192, 1)
attention(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
          const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_o, float* LSE, int length,
          float scale, bool causal) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const int warp = threadIdx.x / 32;
  const int tiles = length / kRows;
  const int tile = blockIdx.x % tiles, head_row = blockIdx.x / tiles * length, query = head_row + tile * kRows;
  const int steps = causal ? tile + 1 : tiles;
  if (threadIdx.x == 0) {
    mbarrier_init(&shared.q_full, 1);
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&shared.full[i], 1);
      mbarrier_init(&shared.empty[i], 1);
    }
    mbarrier_init(&shared.scores, 1);
    mbarrier_init(&shared.weights, 4);
    mbarrier_init(&shared.out, 1);
    mbarrier_init_fence();
  }
  if (warp == 5) tmem_alloc(&shared.slot, kColumns);
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  const uint32_t tmem = shared.slot;
  Ring<kStages> ring;
  if (warp == 4 && elect_one()) {
    load_tile(shared.q, &map_q, &shared.q_full, query);
    for (int step = 0; step < 2 * steps; ++step, ring.advance()) {
      mbarrier_wait(&shared.empty[ring.slot], ring.parity ^ 1);
      load_tile(shared.ring[ring.slot], step % 2 ? &map_v : &map_k, &shared.full[ring.slot],
                head_row + step / 2 * kRows);
    }
  } else if (warp == 5 && elect_one()) {
    mbarrier_wait(&shared.q_full, 0);
    for (int step = 0; step < steps; ++step) {
      mbarrier_wait(&shared.full[ring.slot], ring.parity);
      for (int d = 0; d < kD; d += 16) {
        const int at = d / 64 * kBox;
        mma_ss(tmem + kScores, descriptor_k_major<128>(shared.q + at) + d % 64 / 8,
               descriptor_k_major<128>(shared.ring[ring.slot] + at) + d % 64 / 8, instruction_bf16(kRows, kRows),
               d > 0);
      }
      tcgen05_commit(&shared.empty[ring.slot]);
      tcgen05_commit(&shared.scores);
      ring.advance();
      mbarrier_wait(&shared.full[ring.slot], ring.parity);
      mbarrier_wait(&shared.weights, step % 2);
      tcgen05_fence_after();
      const uint64_t v = descriptor_mn_major<128>(shared.ring[ring.slot], kBox * sizeof(__nv_bfloat16));
      for (int key = 0; key < kRows; key += 16)
        mma_ts(tmem + kOut, tmem + kScores + key / 2, v + key * 8, instruction_bf16(kRows, kD, false, true),
               step > 0 || key > 0);
      tcgen05_commit(&shared.empty[ring.slot]);
      tcgen05_commit(&shared.out);
      ring.advance();
    }
  } else if (warp < 4) {
    const uint32_t own = tmem + tmem_own_lanes();
    const int row = threadIdx.x;
    float maximum = -INFINITY, sum = 0;
    for (int step = 0; step < steps; ++step) {
      float s[2][64];
      mbarrier_wait(&shared.scores, step % 2);
      tcgen05_fence_after();
      for (int half = 0; half < 2; ++half) tmem_load(own + kScores + 64 * half, s[half]);
      for (int half = 0; half < 2; ++half) {
        tmem_wait_load(s[half]);
        if (causal && step == tile) row_mask(s[half], row + 1 - 64 * half);
      }
      const float grown = row_max(s[1], row_max(s[0], maximum));
      const float factor = exp2_approx((maximum - grown) * scale * kLog2E);
      maximum = grown;
      sum *= factor;
      for (int half = 0; half < 2; ++half) {
        uint32_t packed[32];
        sum += row_exp2(s[half], scale * kLog2E, maximum * scale * kLog2E, packed);
        tmem_store(own + kScores + 32 * half, packed);
      }
      tmem_wait_store();
      if (step > 0) {
        mbarrier_wait(&shared.out, (step - 1) % 2);
        tcgen05_fence_after();
        if (__any_sync(~0u, factor < 1)) tmem_scale<kD>(own + kOut, factor);
      }
      warp_arrive(&shared.weights);
    }
    mbarrier_wait(&shared.out, (steps - 1) % 2);
    tcgen05_fence_after();
    for (int box = 0; box < 2; ++box) tmem_to_box(shared.q + box * kBox, row, own + kOut + 64 * box, 1 / sum);
    LSE[query + row] = maximum * scale + logf(sum);
    async_proxy_fence();
    named_barrier_sync(1, 128);
    if (row == 0) {
      for (int box = 0; box < 2; ++box) tma_store_2d(&map_o, shared.q + box * kBox, 64 * box, query);
      tma_commit();
      tma_wait<0>();
    }
  }
  __syncwarp();
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  if (warp == 5) tmem_dealloc(tmem, kColumns);
}

void launch(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, __nv_bfloat16* O, float* LSE,
            int heads, int S, int D, bool causal, cudaStream_t stream) {
  const int rows = heads * S;
  cudaFuncSetAttribute(attention, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  const auto map = [&](const __nv_bfloat16* matrix) { return bf16_map(matrix, rows, D, kRows); };
  attention<<<rows / kRows, 192, sizeof(Shared), stream>>>(map(Q), map(K), map(V), map(O), LSE, S, 1 / sqrtf(float(D)),
                                                           causal);
}

#ifdef CAUSAL
extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, __nv_bfloat16* O,
                    float* LSE, int B, int H, int S, int D, cudaStream_t stream) {
  launch(Q, K, V, O, LSE, B * H, S, D, CAUSAL, stream);
}
#else
extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, __nv_bfloat16* O,
                    float* LSE, int heads, int S, int D, int causal, cudaStream_t stream) {
  launch(Q, K, V, O, LSE, heads, S, D, causal, stream);
}
#endif
