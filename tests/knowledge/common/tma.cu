// Copies between global and shared memory; what shared memory holds is read and written by swizzled().
constexpr CUtensorMapDataType kFloat = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
constexpr int kRows = 24;

enum Which { kLoad128, kLoad64, kLoad32, kLoadPlanes, kStore, kAdd, kBf16, kStorePlanes };

// One box of kRows rows of kSpan bytes from (x, y), to out, row by row.
template <int kSpan>
__global__ void load_box(const __grid_constant__ CUtensorMap map, float* out, int x, int y) {
  __shared__ alignas(1024) uint8_t box[kRows * kSpan];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    tma_prefetch(&map);
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(&full, sizeof(box));
    tma_load_2d(box, &map, &full, x, y);
  }
  __syncthreads();
  mbarrier_wait(&full, 0);
  for (int i = threadIdx.x; i < kRows * kSpan / 4; i += blockDim.x) {
    const uint32_t at = swizzled<kSpan>(i / (kSpan / 4), i % (kSpan / 4) * 4);
    out[i] = *reinterpret_cast<const float*>(box + at);
  }
}

__global__ void load_planes(const __grid_constant__ CUtensorMap map, float* out, int x, int y, int z) {
  __shared__ alignas(128) float box[2][8][8];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(&full, sizeof(box));
    tma_load_3d(box, &map, &full, x, y, z);
  }
  __syncthreads();
  mbarrier_wait(&full, 0);
  for (int i = threadIdx.x; i < 128; i += blockDim.x) out[i] = (&box[0][0][0])[i];
}

// Two boxes, one after the other, from one buffer: out[y + r][x + c] (+)= in[box][r][c].
template <bool kAdds>
__global__ void store_boxes(const __grid_constant__ CUtensorMap map, const float* in, int x, int y) {
  __shared__ alignas(1024) uint8_t box[kRows * 128];
  for (int part = 0; part < 2; ++part) {
    if (threadIdx.x == 0) tma_wait_read<0>();
    __syncthreads();
    for (int i = threadIdx.x; i < kRows * 32; i += blockDim.x) {
      *reinterpret_cast<float*>(box + swizzled<128>(i / 32, i % 32 * 4)) = in[part * kRows * 32 + i];
    }
    async_proxy_fence();
    __syncthreads();
    if (threadIdx.x == 0) {
      if (kAdds) tma_add_2d(&map, box, x, y + part * 8);
      else tma_store_2d(&map, box, x, y + part * kRows);
      tma_commit();
    }
  }
  if (threadIdx.x == 0) tma_wait<0>();
}

__global__ void store_planes(const __grid_constant__ CUtensorMap map, const float* in, int x, int y, int z) {
  __shared__ alignas(128) float box[2][8][8];
  for (int i = threadIdx.x; i < 128; i += blockDim.x) (&box[0][0][0])[i] = in[i];
  async_proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    tma_store_3d(&map, box, x, y, z);
    tma_commit();
    tma_wait<0>();
  }
}

__global__ void load_bf16(const __grid_constant__ CUtensorMap map, float* out, int x, int y) {
  __shared__ alignas(1024) uint8_t box[kRows * 128];
  __shared__ uint64_t full;
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(&full, sizeof(box));
    tma_load_2d(box, &map, &full, x, y);
  }
  __syncthreads();
  mbarrier_wait(&full, 0);
  for (int i = threadIdx.x; i < kRows * 64; i += blockDim.x) {
    out[i] = __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(box + swizzled<128>(i / 64, i % 64 * 2)));
  }
}

// `rows` and `columns` of the tensor in global memory.
extern "C" void run(const float* in, float* out, int which, int rows, int columns, int x, int y, cudaStream_t stream) {
  const cuuint64_t dims[] = {cuuint64_t(columns), cuuint64_t(rows)};
  const cuuint64_t strides[] = {cuuint64_t(columns) * 4};
  const auto planes = [&](const float* tensor) {  // of 20 rows
    return tensor_map<3>(kFloat, tensor, {cuuint64_t(columns), 20, cuuint64_t(rows) / 20},
                         {cuuint64_t(columns) * 4, cuuint64_t(columns) * 80}, {8, 8, 2}, CU_TENSOR_MAP_SWIZZLE_NONE);
  };
  if (which == kLoad128) {
    const auto map = tensor_map<2>(kFloat, in, dims, strides, {32, kRows}, CU_TENSOR_MAP_SWIZZLE_128B);
    load_box<128><<<1, 64, 0, stream>>>(map, out, x, y);
  } else if (which == kLoad64) {
    const auto map = tensor_map<2>(kFloat, in, dims, strides, {16, kRows}, CU_TENSOR_MAP_SWIZZLE_64B);
    load_box<64><<<1, 64, 0, stream>>>(map, out, x, y);
  } else if (which == kLoad32) {
    const auto map = tensor_map<2>(kFloat, in, dims, strides, {8, kRows}, CU_TENSOR_MAP_SWIZZLE_32B);
    load_box<32><<<1, 64, 0, stream>>>(map, out, x, y);
  } else if (which == kLoadPlanes) {
    load_planes<<<1, 64, 0, stream>>>(planes(in), out, x, y, 1);
  } else if (which == kStorePlanes) {
    cudaMemsetAsync(out, 0, size_t(rows) * columns * 4, stream);
    store_planes<<<1, 64, 0, stream>>>(planes(out), in, x, y, 1);
  } else if (which == kBf16) {
    const auto map = bf16_map(reinterpret_cast<const __nv_bfloat16*>(in), rows, columns, kRows);
    load_bf16<<<1, 64, 0, stream>>>(map, out, x, y);
  } else {
    cudaMemsetAsync(out, 0, size_t(rows) * columns * 4, stream);
    const auto map = tensor_map<2>(kFloat, out, dims, strides, {32, kRows}, CU_TENSOR_MAP_SWIZZLE_128B);
    if (which == kStore) store_boxes<false><<<1, 64, 0, stream>>>(map, in, x, y);
    else store_boxes<true><<<2, 64, 0, stream>>>(map, in, x, y);
  }
}
