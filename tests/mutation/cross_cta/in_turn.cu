// Stream-K: every CTA adds its slice to the tile when the CTA before it has.
__global__ void in_turn(const float* input, float* out, float*, unsigned* flag, int rows) {
  const int t = threadIdx.x, threads = blockDim.x;
  const float* slice = input + blockIdx.x * rows * threads;
  float sum = 0;
  for (int row = 0; row < rows; ++row) sum += slice[row * threads + t];
  if (t == 0) {
    unsigned turn;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(turn) : "l"(flag) : "memory");
    } while (turn != blockIdx.x);
  }
  __syncthreads();
  if (blockIdx.x) sum += out[t];
  out[t] = sum;
  __syncthreads();
  if (t == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(blockIdx.x + 1) : "memory");
}
