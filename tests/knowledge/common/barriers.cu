// A ring of bulk copies: one warpgroup brings lines of 128 floats, the other doubles and reverses them.
constexpr int kStages = 3;
constexpr int kLine = 128;

__global__ void __launch_bounds__(256, 1) ring_of_lines(const float* in, float* out, int lines) {
  __shared__ alignas(128) float line[kStages][kLine];
  __shared__ uint64_t full[kStages], empty[kStages];
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < kStages; ++slot) {
      mbarrier_init(&full[slot], 1);
      mbarrier_init(&empty[slot], 4);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  Ring<kStages> ring;
  if (threadIdx.x < 128) {
    registers_shrink<40>();
    if (threadIdx.x < 32) {
      for (int i = 0; i < lines; ++i, ring.advance()) {
        if (elect_one()) {
          mbarrier_wait(&empty[ring.slot], ring.parity ^ 1);
          mbarrier_arrive_expect_tx(&full[ring.slot], sizeof(line[0]));
          bulk_load(line[ring.slot], in + i * kLine, &full[ring.slot], sizeof(line[0]));
        }
        __syncwarp();
      }
    }
  } else {
    registers_grow<208>();
    for (int i = 0; i < lines; ++i, ring.advance()) {
      mbarrier_wait(&full[ring.slot], ring.parity);
      out[i * kLine + threadIdx.x - 128] = 2 * line[ring.slot][kLine - 1 - (threadIdx.x - 128)];
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[ring.slot]);
    }
  }
}

// Two halves of a CTA pass values by a pair of named barriers.
__global__ void pass_by_name(const float* in, float* out) {
  __shared__ float box[64];
  if (threadIdx.x < 64) {
    box[threadIdx.x] = in[threadIdx.x];
    named_barrier_arrive(1, 128);
    named_barrier_sync(2, 128);
    out[threadIdx.x] = box[threadIdx.x];
  } else {
    named_barrier_sync(1, 128);
    const float other = box[127 - threadIdx.x];
    named_barrier_sync(3, 64);
    box[threadIdx.x - 64] = other + 1;
    named_barrier_arrive(2, 128);
  }
}

extern "C" void run(const float* in, float* out, int lines, cudaStream_t stream) {
  if (lines > 0) ring_of_lines<<<1, 256, 0, stream>>>(in, out, lines);
  else pass_by_name<<<1, 128, 0, stream>>>(in, out);
}
