// The recipe for attention forward, its first version, by template functions alone. CAUSAL is defined by the test.
constexpr int kD = 128, kRows = 128, kStages = 4;
constexpr int kBox = kRows * 64;  // elements of a box: 64 columns
constexpr float kLog2E = 1.4426950408889634f;

struct Tiles {
  __nv_bfloat16 q[2][kBox];
  __nv_bfloat16 ring[kStages][2][kBox];
  uint64_t q_full, full[kStages], empty[kStages];
};
constexpr int kBytes = sizeof(Tiles) + 1024;

__device__ void load_tile(__nv_bfloat16 (&tile)[2][kBox], const CUtensorMap* map, uint64_t* full, int row) {
  mbarrier_arrive_expect_tx(full, sizeof(tile));
  for (int box = 0; box < 2; ++box) tma_load_2d(tile[box], map, full, 64 * box, row);
}

__global__ void __launch_bounds__(384, 1)
attention(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
          const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_o, float* lse, int S) {
  extern __shared__ __align__(1024) uint8_t memory[];
  Tiles& tiles = *reinterpret_cast<Tiles*>(memory + (-smem_address(memory) & 1023));
  const int head = blockIdx.y * S, first = (gridDim.x - 1 - blockIdx.x) * kRows;
  const int steps = CAUSAL ? first / kRows + 1 : S / kRows;
  if (threadIdx.x == 0) {
    mbarrier_init(&tiles.q_full, 1);
    for (int slot = 0; slot < kStages; ++slot) {
      mbarrier_init(&tiles.full[slot], 1);
      mbarrier_init(&tiles.empty[slot], 2);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  Ring<kStages> ring;
  if (threadIdx.x < 128) {
    registers_shrink<24>();
    if (threadIdx.x != 0) return;
    load_tile(tiles.q, &map_q, &tiles.q_full, head + first);
    for (int step = 0; step < 2 * steps; ++step, ring.advance()) {  // K and V in turns
      mbarrier_wait(&tiles.empty[ring.slot], ring.parity ^ 1);
      load_tile(tiles.ring[ring.slot], step % 2 ? &map_v : &map_k, &tiles.full[ring.slot], head + step / 2 * kRows);
    }
    return;
  }
  registers_grow<240>();
  const int consumer = threadIdx.x / 128 - 1;
  const bool issues = threadIdx.x % 128 == 0;
  const float scale = rsqrtf(float(kD)), c = scale * kLog2E;
  float out[64], scores[64], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll
  for (float& o : out) o = 0;
  mbarrier_wait(&tiles.q_full, 0);
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(&tiles.full[ring.slot], ring.parity);
    wgmma_fence();
#pragma unroll
    for (int d = 0; d < kD; d += 16) {
      const uint64_t a = descriptor_k_major<128>(tiles.q[d / 64] + consumer * 64 * 64) + d % 64 / 8;
      wgmma_ss(scores, a, descriptor_k_major<128>(tiles.ring[ring.slot][d / 64]) + d % 64 / 8, d > 0);
    }
    wgmma_commit();
    wgmma_wait<0>(scores);
    if (issues) mbarrier_arrive(&tiles.empty[ring.slot]);
    ring.advance();
    if (CAUSAL && step == steps - 1) {
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        const int query = consumer * 64 + fragment_row(i % 4);
        if (fragment_column(i / 4, i % 4) > query) scores[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = maximum[half];
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        if (i / 2 % 2 == half) highest = fmaxf(highest, scores[i]);
      }
      highest = row_max(highest);
      const float correction = exp2_approx((maximum[half] - highest) * c);
      maximum[half] = highest;
      sum[half] *= correction;
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        if (i / 2 % 2 != half) continue;
        out[i] *= correction;
        scores[i] = exp2_approx(fmaf(scores[i], c, -highest * c));
        sum[half] += scores[i];
      }
    }
    uint32_t p[8][4];
#pragma unroll
    for (int group = 0; group < 8; ++group) accumulators_to_a(scores, group, p[group]);
    mbarrier_wait(&tiles.full[ring.slot], ring.parity);
    const uint64_t b = descriptor_mn_major<128>(tiles.ring[ring.slot], kBox * 2);
    wgmma_fence();
#pragma unroll
    for (int group = 0; group < 8; ++group) wgmma_rs<1>(out, p[group], b + 128 * group, 1);
    wgmma_commit();
    wgmma_wait<0>(out);
    if (issues) mbarrier_arrive(&tiles.empty[ring.slot]);
    ring.advance();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = row_sum(sum[half]);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      if (i / 2 % 2 == half) out[i] /= total;
    }
    if (threadIdx.x % 4 == 0) {
      lse[head + first + consumer * 64 + fragment_row(2 * half)] = maximum[half] * scale + logf(total);
    }
  }
  // Its own half of Q's boxes, which no product reads any more, takes the warpgroup's output.
  for (int box = 0; box < 2; ++box) sums_to_box(tiles.q[box] + consumer * 64 * 64, out, 64 * box);
  async_proxy_fence();
  named_barrier_sync(1 + consumer, 128);
  if (issues) {
    for (int box = 0; box < 2; ++box) {
      tma_store_2d(&map_o, tiles.q[box] + consumer * 64 * 64, 64 * box, head + first + consumer * 64);
    }
    tma_commit();
    tma_wait<0>();
  }
}

extern "C" void run(const __nv_bfloat16* Q, const __nv_bfloat16* K, const __nv_bfloat16* V, __nv_bfloat16* O,
                    float* LSE, int B, int H, int S, int D, cudaStream_t stream) {
  const uint64_t tokens = uint64_t(B) * H * S;
  cudaFuncSetAttribute(attention, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  attention<<<dim3(S / kRows, B * H), 384, kBytes, stream>>>(bf16_map(Q, tokens, D, kRows), bf16_map(K, tokens, D, kRows),
                                                             bf16_map(V, tokens, D, kRows), bf16_map(O, tokens, D, 64),
                                                             LSE, S);
}
