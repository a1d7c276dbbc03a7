// Rows of scores become weights: S = A * Bt, a causal mask, P = 2^(scale * (S - max)), O = P * V from tensor memory,
// twice over with O rescaled in between. Six warps: four have rows, one thread copies, one multiplies.
constexpr int kRows = 128;
constexpr int kScores = 0, kSums = 128, kColumns = 256;

__global__ void __launch_bounds__(192)
weigh(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
      const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_out,
      const __grid_constant__ CUtensorMap map_sums, float* statistics, float scale, float factor) {
  extern __shared__ __align__(1024) uint8_t raw[];
  __nv_bfloat16* a = reinterpret_cast<__nv_bfloat16*>(raw);
  __nv_bfloat16* b = a + kRows * 64;
  __nv_bfloat16* v = b + kRows * 64;  // 128 keys x 64 dimensions
  __nv_bfloat16* box = v + kRows * 64;
  float* float_box = reinterpret_cast<float*>(box + kRows * 64);
  __shared__ uint64_t full, scores, weights, done, again;
  __shared__ uint32_t slot;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init(&scores, 1);
    mbarrier_init(&weights, 4);
    mbarrier_init(&done, 1);
    mbarrier_init(&again, 4);
    mbarrier_init_fence();
  }
  if (warp == 5) tmem_alloc(&slot, kColumns);
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  const uint32_t tmem = slot;
  if (warp == 4) {
    if (elect_one()) {
      mbarrier_arrive_expect_tx(&full, 3 * kRows * 128);
      tma_load_2d(a, &map_a, &full, 0, 0);
      tma_load_2d(b, &map_b, &full, 0, 0);
      tma_load_2d(v, &map_v, &full, 0, 0);
    }
  } else if (warp == 5) {
    if (elect_one()) {
      mbarrier_wait(&full, 0);
      for (int k = 0; k < 64; k += 16) {
        mma_ss(tmem + kScores, descriptor_k_major<128>(a) + k / 8, descriptor_k_major<128>(b) + k / 8,
               instruction_bf16(128, 128), k > 0);
      }
      tcgen05_commit(&scores);
      for (int round = 0; round < 2; ++round) {
        mbarrier_wait(round ? &again : &weights, 0);
        tcgen05_fence_after();
        for (int k = 0; k < kRows; k += 16) {
          mma_ts(tmem + kSums, tmem + kScores + k / 2, descriptor_mn_major<128>(v, kRows * 128) + k * 8,
                 instruction_bf16(128, 64, false, true), round > 0 || k > 0);
        }
        tcgen05_commit(&done);
      }
    }
  } else {
    const uint32_t own = tmem + tmem_own_lanes();
    const int row = threadIdx.x;
    float s[2][64];
    mbarrier_wait(&scores, 0);
    tcgen05_fence_after();
    tmem_load(own + kScores, s[0]);
    tmem_load(own + kScores + 64, s[1]);
    tmem_wait_load(s[0]);
    tmem_wait_load(s[1]);
    for (int half = 0; half < 2; ++half) row_mask(s[half], row + 1 - 64 * half);
    const float maximum = row_max(s[1], row_max(s[0], -INFINITY));
    float sum = 0;
    for (int half = 0; half < 2; ++half) {
      uint32_t packed[32];
      sum += row_exp2(s[half], scale, maximum * scale, packed);
      tmem_store(own + kScores + 32 * half, packed);
    }
    tmem_wait_store();
    warp_arrive(&weights);
    statistics[2 * row] = maximum;
    statistics[2 * row + 1] = sum;
    mbarrier_wait(&done, 0);
    tcgen05_fence_after();
    tmem_scale<64>(own + kSums, factor);
    warp_arrive(&again);
    mbarrier_wait(&done, 1);
    tcgen05_fence_after();
    tmem_to_box(box, row, own + kSums, 1 / sum);
    tmem_to_float_box(float_box, row, own + kSums + 32, 2);
    async_proxy_fence();
    named_barrier_sync(1, 128);
    if (row == 0) {
      tma_store_2d(&map_out, box, 0, 0);
      tma_add_2d(&map_sums, float_box, 0, 0);
      tma_commit();
      tma_wait<0>();
    }
  }
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  if (warp == 5) tmem_dealloc(tmem, kColumns);
}

extern "C" void run(const __nv_bfloat16* a, const __nv_bfloat16* b, const __nv_bfloat16* v, __nv_bfloat16* out,
                    float* sums, float* statistics, cudaStream_t stream) {
  constexpr int kBytes = 4 * kRows * 128 + kRows * 128;
  cudaFuncSetAttribute(weigh, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  cudaMemsetAsync(sums, 0, kRows * 32 * 4, stream);
  const CUtensorMap map_sums = tensor_map<2>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, sums, {32, kRows}, {128}, {32, kRows},
                                             CU_TENSOR_MAP_SWIZZLE_128B);
  weigh<<<1, 192, kBytes, stream>>>(bf16_map(a, kRows, 64, kRows), bf16_map(b, kRows, 64, kRows),
                                    bf16_map(v, kRows, 64, kRows), bf16_map(out, kRows, 64, kRows), map_sums,
                                    statistics, 0.125f, 0.5f);
}
