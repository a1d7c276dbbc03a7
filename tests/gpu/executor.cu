// What the executor must replay on hardware, one case for each value of `which`; n elements of A and C.
#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cassert>
#include <cstdio>

__device__ int counter;
static __device__ int hidden = 40;
namespace {
__device__ int unnamed[3] = {1, 2, 3};
}
__constant__ int table[4];
__constant__ int fixed[2] = {5, 6};

__global__ void scale(const int* A, int* C, int n, int factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) C[i] = A[i] * factor;
}

__global__ void ranks(int* C) {
  unsigned rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) C[blockIdx.x] = size * 100 + rank;
}

__global__ void __cluster_dims__(2, 1, 1) ranks_compiled_in(int* C) {
  unsigned size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) C[blockIdx.x] = size;
}

__global__ void turns(int* C, int* W) {  // every block sees what all blocks wrote before the barrier
  if (threadIdx.x == 0) W[blockIdx.x] = blockIdx.x + 1;
  cooperative_groups::this_grid().sync();
  int sum = 0;
  for (unsigned i = 0; i < gridDim.x; ++i) sum += W[i];
  if (threadIdx.x == 0) C[blockIdx.x] = sum;
}

__global__ void first_of_two(int* W) {
  asm volatile("griddepcontrol.launch_dependents;");
  for (int i = 0; i < 1000; ++i) __nanosleep(100);
  W[threadIdx.x] = threadIdx.x + 7;
}

__global__ void second_of_two(const int* W, int* C) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  C[threadIdx.x] = W[threadIdx.x];
}

__global__ void variables(int* C) {
  static __device__ int inner;
  C[0] = counter++;
  C[1] = hidden++;
  C[2] = unnamed[1]++;
  C[3] = inner++;
  C[4] = table[2];
  C[5] = fixed[1];
}

__global__ void touch(int* C, long long at) { C[at] = 1; }
__global__ void touch_wide(int* C) { *reinterpret_cast<long long*>(C + 1) = 1; }
__global__ void forever(int* C) {
  while (*reinterpret_cast<volatile int*>(C) != 12345) {}
}
__global__ void check(int n) { assert(n < 0 && "asserted on purpose"); }
__global__ void speak(int n) { printf("thread %d of %d\n", threadIdx.x, n); }
__global__ void stop() { asm volatile("trap;"); }

__global__ void spin(int* C) {
  const long long start = clock64();
  while (clock64() - start < 400000) {}
  if (threadIdx.x == 0) C[blockIdx.x] = 1;
}

// How many words of uninitialised memory already hold the mark; leaves it there.
__global__ void stale_shared(int* C, int words) {
  extern __shared__ volatile unsigned left[];
  int found = 0;
  for (int i = threadIdx.x; i < words; i += blockDim.x) {
    found += left[i] == 0xC0FFEE11u;
    left[i] = 0xC0FFEE11u;
  }
  atomicAdd(C, found);
}

__global__ void stale_local(int* C) {
  int found = 0;
  asm volatile(
      "{\n\t"
      ".local .align 16 .b8 left[1024];\n\t"
      ".reg .u64 at, end;\n\t"
      ".reg .u32 word;\n\t"
      ".reg .pred stale, more;\n\t"
      "mov.u64 at, left;\n\t"
      "cvta.local.u64 at, at;\n\t"
      "add.u64 end, at, 1024;\n\t"
      "next_word:\n\t"
      "ld.volatile.u32 word, [at];\n\t"
      "setp.eq.u32 stale, word, 0xC0FFEE22;\n\t"
      "@stale add.u32 %0, %0, 1;\n\t"
      "mov.u32 word, 0xC0FFEE22;\n\t"
      "st.volatile.u32 [at], word;\n\t"
      "add.u64 at, at, 4;\n\t"
      "setp.lt.u64 more, at, end;\n\t"
      "@more bra next_word;\n\t"
      "}"
      : "+r"(found)::"memory");
  atomicAdd(C, found);
}

template <typename... Expected, typename... Given>
void launch(void (*kernel)(Expected...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream,
            cudaLaunchAttribute attribute, Given... given) {
  cudaLaunchConfig_t config = {grid, block, smem, stream, &attribute, 1};
  cudaLaunchKernelEx(&config, kernel, static_cast<Expected>(given)...);
}

void wait_for(cudaStream_t first, cudaStream_t next) {
  cudaEvent_t reached;
  cudaEventCreate(&reached);
  cudaEventRecord(reached, first);
  cudaStreamWaitEvent(next, reached, 0);
}

cudaStream_t fork(cudaStream_t stream) {
  cudaStream_t side;
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  wait_for(stream, side);
  return side;
}

extern "C" void run(const int* A, int* C, int which, int n, cudaStream_t stream) {
  cudaLaunchAttribute attribute = {};
  int* W = nullptr;
  switch (which) {
    case 0: {  // fills of every width, copies, constants, two streams
      cudaMallocAsync(&W, 4096, stream);
      const int constants[4] = {10, 20, 30, 40};
      cudaMemcpyAsync(W, constants, sizeof constants, cudaMemcpyHostToDevice, stream);
      cudaMemsetAsync(C, 0x11, 16, stream);
      cudaMemcpyAsync(C + 4, A, 16, cudaMemcpyDeviceToDevice, stream);
      cudaMemcpyAsync(C + 8, W, 16, cudaMemcpyDeviceToDevice, stream);
      const cudaStream_t side = fork(stream);
      scale<<<1, 32, 0, side>>>(A, C + 12, 4, 3);
      wait_for(side, stream);
      scale<<<1, 32, 0, stream>>>(C + 12, C + 16, 4, 2);
      break;
    }
    case 1:
    case 2:
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {which == 1 ? 4u : 16u, 1, 1};
      if (which == 2) cudaFuncSetAttribute(ranks, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
      launch(ranks, 32, 32, 0, stream, attribute, C);
      break;
    case 3: ranks_compiled_in<<<32, 32, 0, stream>>>(C); break;
    case 4:
      cudaMallocAsync(&W, 4096, stream);
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
      launch(turns, 64, 32, 0, stream, attribute, C, W);
      break;
    case 5:
      cudaMallocAsync(&W, 4096, stream);
      first_of_two<<<1, 64, 0, stream>>>(W);
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      launch(second_of_two, 1, 64, 0, stream, attribute, W, C);
      break;
    case 6: {
      const int values[4] = {0, 0, 77, 0};
      cudaMemcpyToSymbolAsync(table, values, sizeof values, 0, cudaMemcpyHostToDevice, stream);
      variables<<<1, 1, 0, stream>>>(C);
      break;
    }
    case 7: touch<<<1, 1, 0, stream>>>(C, 1ll << 35); break;
    case 8: touch<<<1, 1, 0, stream>>>(C, (n * 4ll + 511) / 512 * 128); break;  // the first byte that is not mapped
    case 9: touch<<<1, 1, 0, stream>>>(C, n); break;
    case 10: touch<<<1, 1, 0, stream>>>(C, -3); break;
    case 11: touch_wide<<<1, 1, 0, stream>>>(C); break;
    case 12: forever<<<1, 1, 0, stream>>>(C); break;
    case 13: check<<<1, 2, 0, stream>>>(n); break;
    case 14: speak<<<1, 2, 0, stream>>>(n); break;
    case 15: stop<<<1, 1, 0, stream>>>(); break;
    case 16: spin<<<4, 32, 0, stream>>>(C); break;
    case 17:
    case 18:
      cudaFuncSetAttribute(stale_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000);
      cudaMemsetAsync(C, 0, 4, stream);
      for (int i = 17; i <= which; ++i) stale_shared<<<132, 512, 200000, stream>>>(C, 50000);
      break;
    case 19:
    case 20:
      cudaMemsetAsync(C, 0, 4, stream);
      for (int i = 19; i <= which; ++i) stale_local<<<264, 512, 0, stream>>>(C);
      break;
    case 21: {  // beside each other
      const cudaStream_t side = fork(stream);
      spin<<<4, 32, 0, side>>>(C);
      spin<<<4, 32, 0, stream>>>(C + 4);
      wait_for(side, stream);
      break;
    }
  }
}
