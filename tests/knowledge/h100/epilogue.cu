// Two products in a row, the first one's sums as the second one's operand; rows reduced; the result stored by TMA.
// scores[64, 64] = A * Bt, out[64, 128] = BF16(scores) * V, written as BF16; extremes = max and sum of the scores' rows.
__global__ void __launch_bounds__(128)
chain(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
      const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_out, float* extremes) {
  __shared__ alignas(1024) __nv_bfloat16 a[64 * 64];
  __shared__ alignas(1024) __nv_bfloat16 b[64 * 64];
  __shared__ alignas(1024) __nv_bfloat16 v[2][64 * 64];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(&full, sizeof(a) + sizeof(b) + sizeof(v));
    tma_load_2d(a, &map_a, &full, 0, 0);
    tma_load_2d(b, &map_b, &full, 0, 0);
    for (int box = 0; box < 2; ++box) tma_load_2d(v[box], &map_v, &full, 64 * box, 0);
  }
  __syncthreads();
  mbarrier_wait(&full, 0);
  float scores[32];
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 64; k += 16) {
    wgmma_ss(scores, descriptor_k_major<128>(a) + k / 8, descriptor_k_major<128>(b) + k / 8, k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>(scores);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float maximum = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (i / 2 % 2 != half) continue;
      maximum = fmaxf(maximum, scores[i]);
      sum += scores[i];
    }
    maximum = row_max(maximum);
    sum = row_sum(sum);
    if (threadIdx.x % 4 == 0) {
      extremes[2 * fragment_row(2 * half)] = maximum;
      extremes[2 * fragment_row(2 * half) + 1] = sum;
    }
  }
  uint32_t p[4][4];
#pragma unroll
  for (int step = 0; step < 4; ++step) accumulators_to_a(scores, step, p[step]);
  float out[64];
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 64; k += 16) {
    wgmma_rs<1>(out, p[k / 16], descriptor_mn_major<128>(v, sizeof(v[0])) + k * 8, k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>(out);
  __syncthreads();  // both products have read their tiles
  __nv_bfloat16* boxes[] = {a, b};
#pragma unroll
  for (int box = 0; box < 2; ++box) sums_to_box(boxes[box], out, 64 * box);
  async_proxy_fence();
  named_barrier_sync(1, 128);
  if (threadIdx.x == 0) {
    for (int box = 0; box < 2; ++box) tma_store_2d(&map_out, boxes[box], 64 * box, 0);
    tma_commit();
    tma_wait<0>();
  }
}

extern "C" void run(const __nv_bfloat16* a, const __nv_bfloat16* b, const __nv_bfloat16* v, __nv_bfloat16* out,
                    float* extremes, cudaStream_t stream) {
  chain<<<1, 128, 0, stream>>>(bf16_map(a, 64, 64, 64), bf16_map(b, 64, 64, 64), bf16_map(v, 64, 128, 64),
                               bf16_map(out, 64, 128, 64), extremes);
}
