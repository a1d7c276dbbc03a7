// Split-K with a counter: every CTA leaves the sum of its slice, the last one to come adds the slices up.
__global__ void split_k(const float* input, float* out, float* parts, unsigned* counter, int rows) {
  __shared__ unsigned arrived;
  const int t = threadIdx.x, threads = blockDim.x;
  const float* slice = input + blockIdx.x * rows * threads;
  float sum = 0;
  for (int row = 0; row < rows; ++row) sum += slice[row * threads + t];
  parts[blockIdx.x * threads + t] = sum;
  __syncthreads();
  if (t == 0) {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(arrived) : "l"(counter) : "memory");
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
  }
  __syncthreads();
  if (arrived != gridDim.x - 1) return;
  float total = 0;
  for (int part = 0; part < gridDim.x; ++part) total += parts[part * threads + t];
  out[t] = total;
}
