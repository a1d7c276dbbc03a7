// Pairs of CTAs: each reads and writes the other's shared memory, and receives what the other loads.
constexpr int kSide = 64;

__global__ void __cluster_dims__(2, 1, 1) exchange(const float* in, float* out) {
  __shared__ float own[32], given[32];
  __shared__ uint64_t full;
  const uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(&full, sizeof(given));
  }
  own[threadIdx.x] = in[rank * 32 + threadIdx.x];
  cluster_sync();
  const uint32_t other = rank ^ 1;
  cluster_store_async(cluster_address(&given[threadIdx.x], other), 10 * own[threadIdx.x],
                      cluster_address(&full, other));
  mbarrier_wait_cluster(&full, 0);
  const float read = cluster_load(cluster_address(&own[31 - threadIdx.x], other));
  out[rank * 64 + threadIdx.x] = given[threadIdx.x];
  out[rank * 64 + 32 + threadIdx.x] = read;
  cluster_sync();
}

// `boxes` boxes of 64 x 64 BF16: CTA r brings rows [32 * r, 32 * r + 32) of each to both; each adds up what it gets.
__global__ void __cluster_dims__(2, 1, 1)
share(const __grid_constant__ CUtensorMap map, float* out, int boxes) {
  constexpr int kStages = 2;
  __shared__ alignas(1024) __nv_bfloat16 box[kStages][kSide * kSide];
  __shared__ uint64_t full[kStages], empty[kStages];
  const uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      mbarrier_init(&full[slot], 1);
      mbarrier_init(&empty[slot], 2);  // the consumers of both CTAs
    }
    mbarrier_init_fence();
  }
  cluster_sync();
  Ring<kStages> ring;
  if (threadIdx.x < 32) {
    for (int i = 0; i < boxes; ++i, ring.advance()) {
      if (elect_one()) {
        mbarrier_wait_cluster(&empty[ring.slot], ring.parity ^ 1);
        mbarrier_arrive_expect_tx(&full[ring.slot], sizeof(box[0]));
        tma_load_2d_multicast(box[ring.slot] + rank * 32 * kSide, &map, &full[ring.slot], 64 * i, 32 * rank, 0b11);
      }
      __syncwarp();
    }
  } else {
    float sums[128] = {};
    for (int i = 0; i < boxes; ++i, ring.advance()) {
      mbarrier_wait_cluster(&full[ring.slot], ring.parity);
      const uint8_t* bytes = reinterpret_cast<const uint8_t*>(box[ring.slot]);
      for (int e = 0; e < 128; ++e) {
        const int at = e * 32 + threadIdx.x - 32;
        const uint32_t offset = swizzled<128>(at / kSide, at % kSide * 2);
        sums[e] += __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(bytes + offset));
      }
      __syncwarp();
      if (threadIdx.x < 34) mbarrier_arrive_at(&empty[ring.slot], threadIdx.x - 32);
    }
    for (int e = 0; e < 128; ++e) out[rank * kSide * kSide + e * 32 + threadIdx.x - 32] = sums[e];
  }
  cluster_sync();
}

extern "C" void run(const float* in, const __nv_bfloat16* boxes, float* out, float* sums, int count,
                    cudaStream_t stream) {
  exchange<<<2, 32, 0, stream>>>(in, out);
  share<<<2, 64, 0, stream>>>(bf16_map(boxes, 64, 64 * count, 32), sums, count);
}
