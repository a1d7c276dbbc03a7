// Naive fp32 matrix product, one thread per element: the scalar work of the emulator's speed measurement.
#include <cuda_runtime.h>

__global__ void sgemm(const float* A, const float* B, float* C, int N) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
  float sum = 0;
  for (int k = 0; k < N; ++k) sum += A[row * N + k] * B[k * N + column];
  C[row * N + column] = sum;
}

extern "C" void run(const float* A, const float* B, float* C, int N, cudaStream_t stream) {
  sgemm<<<dim3(N / 32, N / 8), dim3(32, 8), 0, stream>>>(A, B, C, N);
}
