// Kernels that go wrong, each in one way, at the line whose comment names it; `which` picks one.
#include <cstdint>
#include <cuda_runtime.h>

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__global__ void write_past(float* c, int n) {
  c[blockIdx.x * blockDim.x + threadIdx.x + n - 700] = 1.0f;  // write_past
}

__global__ void read_past(const float* a, float* c, int n) {
  c[threadIdx.x] = a[threadIdx.x + n];  // read_past
}

__global__ void read_far(const float* a, float* c) {
  c[threadIdx.x] = a[threadIdx.x + (1ull << 38)];  // read_far
}

__global__ void misaligned(float* c) {
  *reinterpret_cast<float*>(reinterpret_cast<char*>(c) + 4 * threadIdx.x + 2) = 1.0f;  // misaligned
}

__global__ void shared_past(float* c) {
  extern __shared__ float tile[];
  tile[threadIdx.x + 300] = 1.0f;  // shared_past
  __syncthreads();
  c[threadIdx.x] = tile[threadIdx.x];
}

__global__ void race(float* c) {
  __shared__ float tile[256];
  tile[threadIdx.x] = threadIdx.x;  // race
  c[threadIdx.x] = tile[255 - threadIdx.x];
}

__global__ void divergent(float* c) {
  if (threadIdx.x < 40) __syncthreads();  // divergent
  c[threadIdx.x] = 1.0f;
}

__global__ void unwritten(float* c) {
  c[threadIdx.x] = c[threadIdx.x] + 1.0f;  // unwritten
}

__global__ void traps(float* c) {
  if (threadIdx.x == 5) __trap();  // traps
  c[threadIdx.x] = 1.0f;
}

__global__ void through_null(float* c) {
  c[threadIdx.x] = 1.0f;  // through_null
}

__device__ __forceinline__ void store(float* at) {
  asm volatile("st.global.f32 [%0], 0f3f800000;" ::"l"(at) : "memory");
}

__global__ void in_wrapper(float* c, int n) {
  store(c + threadIdx.x);
  store(c + threadIdx.x + n);  // in_wrapper
}

__device__ __noinline__ void store_slowly(float* at) {
  *at = 1.0f;  // in_function
}

__global__ void in_function(float* c, int n) {
  store_slowly(c + threadIdx.x + n);
}

__global__ void bulk_past(float* c, int n) {
  __shared__ alignas(128) float tile[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) tile[i] = 1.0f;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    const uint32_t source = shared_address(tile);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 2048;" ::"l"(c + n - 256), "r"(source));  // bulk_past
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

__global__ void bad_mbarrier(float* c) {
  __shared__ alignas(8) uint64_t barrier;
  if (threadIdx.x == 0) barrier = 0xdeadbeefdeadbeefull;
  __syncthreads();
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");  // bad_mbarrier
  c[threadIdx.x] = 1.0f;
}

__global__ void spins(float* c) {
  while (*reinterpret_cast<volatile float*>(c) != 77.0f) {
  }
}

__global__ void fine(const float* a, float* c, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i];
}

extern "C" void run(const float* A, float* C, int which, int n, cudaStream_t stream) {
  switch (which) {
    case 0: fine<<<4, 64, 0, stream>>>(A, C, n); return;
    case 1: write_past<<<3, 256, 0, stream>>>(C, n); return;
    case 2: read_past<<<1, 64, 0, stream>>>(A, C, n); return;
    case 3: read_far<<<1, 64, 0, stream>>>(A, C); return;
    case 4: misaligned<<<1, 64, 0, stream>>>(C); return;
    case 5: shared_past<<<1, 128, 1024, stream>>>(C); return;
    case 6: race<<<2, 256, 0, stream>>>(C); return;
    case 7: divergent<<<1, 64, 0, stream>>>(C); return;
    case 8: unwritten<<<1, 64, 0, stream>>>(C); return;
    case 9: traps<<<2, 64, 0, stream>>>(C); return;
    case 10: through_null<<<1, 64, 0, stream>>>(nullptr); return;
    case 11: in_wrapper<<<1, 64, 0, stream>>>(C, n); return;
    case 12: in_function<<<1, 64, 0, stream>>>(C, n); return;
    case 13: bulk_past<<<1, 64, 0, stream>>>(C, n); return;
    case 14: bad_mbarrier<<<1, 64, 0, stream>>>(C); return;
    case 15: spins<<<1, 64, 0, stream>>>(C); return;
  }
}
