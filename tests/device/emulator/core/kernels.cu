#include <cuda_runtime.h>
#include <cassert>
#include <cstdio>

__device__ int counter = 40;
__constant__ float weights[4] = {1.0f, 2.0f, 3.0f, 4.0f};
__device__ const int* pointer = &counter;

extern "C" __global__ void scale(const float* in, float* out, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = in[i] * factor;
}

extern "C" __global__ void through_workspace(const float* in, float* work, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (out == nullptr) work[i] = in[i] + 1.0f;
  else out[i] = work[n - 1 - i];
}

extern "C" __global__ void bump(int* out) {
  if (threadIdx.x == 0) {
    counter += 2;
    out[0] = counter;
    out[1] = *pointer;
    out[2] = static_cast<int>(weights[3] + weights[threadIdx.x]);
  }
}

extern "C" __global__ void past_the_end(float* out, int n) {
  out[n + threadIdx.x] = 1.0f;  // the line of the fault
}

extern "C" __global__ void endless(volatile int* out) {
  while (out[0] != 12345) out[1] += 1;  // the line of the loop
}

extern "C" __global__ void checked(int* out) {
  assert(threadIdx.x < 5);
  out[threadIdx.x] = 1;
}

extern "C" __global__ void hello(int* out) {
  printf("thread %d of %s\n", threadIdx.x, "hello");
  out[threadIdx.x] = 1;
}

struct Map {
  char bytes[128];
};
extern "C" __global__ void dump(const __grid_constant__ Map map, char* out) { out[threadIdx.x] = map.bytes[threadIdx.x]; }

extern "C" __global__ void refused(unsigned* out) {
  asm volatile("discard.global.L2 [%0], 128;" ::"l"(out) : "memory");
}

// ---- launches that may overlap

extern "C" __global__ void signals_early(int* shared_data, const int* given, int n) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) shared_data[i] = given[i] + 1;
}

extern "C" __global__ void signals_late(int* shared_data, const int* given, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) shared_data[i] = given[i] + 1;
  __syncthreads();  // the first thread to signal speaks for its CTA
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

extern "C" __global__ void waits(int* out, const int* shared_data, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (i < n) out[i] = 3 * shared_data[i];
}

extern "C" __global__ void does_not_wait(int* out, const int* shared_data, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 3 * shared_data[i];  // the line that should have waited
}

extern "C" __global__ void reads_own_then_waits(int* out, const int* given, const int* shared_data, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int own = i < n ? given[i] : 0;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (i < n) out[i] = shared_data[i] - own;
}
