// Cells of tensor memory by every load and store.

// out[thread][c] = in[thread][c] + 1, kCount columns at a time, with floats or raw bits.
template <int kCount, bool kBits>
__global__ void round_trip(const float* in, float* out, int columns) {
  __shared__ uint32_t slot;
  if (threadIdx.x < 32) tmem_alloc(&slot, 64);
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  const uint32_t cells = slot + tmem_own_lanes();
  for (int column = 0; column < columns; column += kCount) {
    float r[kCount];
    uint32_t bits[kCount];
    for (int i = 0; i < kCount; ++i) {
      r[i] = in[threadIdx.x * columns + column + i] + 1;
      bits[i] = __float_as_uint(r[i]);
    }
    if constexpr (kBits) tmem_store(cells + column, bits);
    else tmem_store(cells + column, r);
  }
  tmem_wait_store();
  for (int column = 0; column < columns; column += kCount) {
    float r[kCount];
    tmem_load(cells + column, r);
    tmem_wait_load(r);
    for (int i = 0; i < kCount; ++i) out[threadIdx.x * columns + column + i] = r[i];
  }
  tcgen05_fence_before();
  __syncthreads();
  if (threadIdx.x < 32) tmem_dealloc(slot, 64);
}

// A warp turns 32 lanes x 32 columns into BF16 rows by fragments and stmatrix.
__global__ void by_fragments(const float* in, __nv_bfloat16* out) {
  __shared__ alignas(16) __nv_bfloat16 tile[32][32];
  __shared__ uint32_t slot;
  tmem_alloc(&slot, 32);
  tcgen05_fence_before();
  __syncthreads();
  tcgen05_fence_after();
  float row[32];
  for (int i = 0; i < 32; ++i) row[i] = in[threadIdx.x * 32 + i];
  tmem_store(slot, row);
  tmem_wait_store();
  const int lane = threadIdx.x;
  for (int half = 0; half < 2; ++half) {
    float r[16];
    tmem_load_fragments(slot + (half * 16 << 16), r);
    tmem_wait_load(r);
    for (int pair = 0; pair < 2; ++pair) {  // 16 columns: matrices of 8 rows x 8 columns, rows first
      const float* f = r + 8 * pair;
      const __nv_bfloat16* line = &tile[half * 16 + lane % 16][pair * 16 + lane / 16 * 8];
      stmatrix_x4(smem_address(line), pack_bf16(f[0], f[1]), pack_bf16(f[2], f[3]), pack_bf16(f[4], f[5]),
                  pack_bf16(f[6], f[7]));
    }
  }
  __syncwarp();
  for (int i = 0; i < 32; ++i) out[lane * 32 + i] = tile[lane][i];
  tcgen05_fence_before();
  __syncwarp();
  tmem_dealloc(slot, 32);
}

extern "C" void run(const float* in, float* out, __nv_bfloat16* rows, int which, cudaStream_t stream) {
  if (which == 0) round_trip<8, false><<<1, 128, 0, stream>>>(in, out, 64);
  if (which == 1) round_trip<16, false><<<1, 128, 0, stream>>>(in, out, 64);
  if (which == 2) round_trip<32, false><<<1, 128, 0, stream>>>(in, out, 64);
  if (which == 3) round_trip<64, false><<<1, 128, 0, stream>>>(in, out, 64);
  if (which == 4) round_trip<8, true><<<1, 128, 0, stream>>>(in, out, 64);
  if (which == 5) round_trip<16, true><<<1, 128, 0, stream>>>(in, out, 64);
  if (which == 6) round_trip<32, true><<<1, 128, 0, stream>>>(in, out, 64);
  if (which == 7) round_trip<64, true><<<1, 128, 0, stream>>>(in, out, 64);
  by_fragments<<<1, 32, 0, stream>>>(in, rows);
}
