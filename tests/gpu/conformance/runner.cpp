// Runs a file of jobs, each one block of one kernel, on the first GPU: `runner JOBS RESULTS MODULE…`, modules as cubins.
//
// Results: per job its status and, where that is 0, its output. After a fault the context is lost, so the program stops.
#include <cuda.h>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#pragma pack(push, 1)
struct MapSpec {
  int32_t over;  // -1 none, 0 in, 1 out
  uint32_t offset, type, rank, swizzle, fill;
  uint64_t dims[5], strides[4];
  uint32_t box[5], element_strides[5];
};
struct Job {
  char kernel[48];
  uint32_t threads, smem_bytes, in_bytes, out_bytes;
  int32_t args[16];
  uint64_t wide[4];
  MapSpec map;
};
#pragma pack(pop)
struct alignas(128) Params {  // as in device.cuh
  CUtensorMap map;
  CUdeviceptr in, out;
  uint32_t in_bytes, out_bytes;
  int32_t args[16];
  uint64_t wide[4];
};
static_assert(sizeof(Params) == 256, "the kernels read their parameter at fixed places");

constexpr int UNKNOWN_KERNEL = -1, ENCODE_FAILED = -2;
constexpr uint32_t SPARE_BYTES = 16;  // so that empty buffers exist

bool encode(const MapSpec& packed, Params& p) {
  uint64_t dims[5], strides[4];
  uint32_t box[5], element_strides[5];
  memcpy(dims, packed.dims, sizeof dims);
  memcpy(strides, packed.strides, sizeof strides);
  memcpy(box, packed.box, sizeof box);
  memcpy(element_strides, packed.element_strides, sizeof element_strides);
  void* base = reinterpret_cast<void*>((packed.over ? p.out : p.in) + packed.offset);
  return cuTensorMapEncodeTiled(&p.map, static_cast<CUtensorMapDataType>(packed.type), packed.rank, base,
                                reinterpret_cast<cuuint64_t*>(dims), reinterpret_cast<cuuint64_t*>(strides), box,
                                element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                static_cast<CUtensorMapSwizzle>(packed.swizzle), CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                static_cast<CUtensorMapFloatOOBfill>(packed.fill)) == CUDA_SUCCESS;
}

CUfunction find(const std::vector<CUmodule>& modules, const char* name) {
  CUfunction kernel = nullptr;
  for (CUmodule module : modules) {
    if (cuModuleGetFunction(&kernel, module, name) == CUDA_SUCCESS) return kernel;
  }
  return nullptr;
}

int launch(CUfunction kernel, const Job& job, Params& p, std::vector<uint8_t>& output) {
  cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(job.smem_bytes));
  void* params[] = {&p};
  const uint32_t ctas = job.threads >> 16;  // of the one cluster; 0: one block without
  CUlaunchAttribute cluster{};
  cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster.value.clusterDim.x = ctas;
  cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1;
  CUlaunchConfig config{};
  config.gridDimX = ctas ? ctas : 1;
  config.blockDimX = job.threads & 0xffff;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = job.smem_bytes;
  config.attrs = &cluster;
  config.numAttrs = ctas ? 1 : 0;
  CUresult result = cuLaunchKernelEx(&config, kernel, params, nullptr);
  if (result == CUDA_SUCCESS) result = cuCtxSynchronize();
  if (result == CUDA_SUCCESS) result = cuMemcpyDtoH(output.data(), p.out, output.size());
  const char* name = nullptr;
  if (result != CUDA_SUCCESS && cuGetErrorName(result, &name) == CUDA_SUCCESS) {
    fprintf(stderr, "%s: %s\n", job.kernel, name);
  }
  return result;
}

int run(const std::vector<CUmodule>& modules, const Job& job, const std::vector<uint8_t>& input,
        std::vector<uint8_t>& output) {
  CUfunction kernel = find(modules, job.kernel);
  if (!kernel) return UNKNOWN_KERNEL;
  Params p{};
  p.in_bytes = job.in_bytes;
  p.out_bytes = job.out_bytes;
  memcpy(p.args, job.args, sizeof p.args);
  memcpy(p.wide, job.wide, sizeof p.wide);
  CUresult result = cuMemAlloc(&p.in, job.in_bytes + SPARE_BYTES);
  if (result == CUDA_SUCCESS) result = cuMemAlloc(&p.out, job.out_bytes + SPARE_BYTES);
  if (result == CUDA_SUCCESS && job.in_bytes) result = cuMemcpyHtoD(p.in, input.data(), job.in_bytes);
  if (result == CUDA_SUCCESS) result = cuMemsetD8(p.out, 0xEE, job.out_bytes);
  int status = result;
  if (status == CUDA_SUCCESS && job.map.over >= 0 && !encode(job.map, p)) status = ENCODE_FAILED;
  if (status == CUDA_SUCCESS) status = launch(kernel, job, p, output);
  cuMemFree(p.in);
  cuMemFree(p.out);
  return status;
}

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: runner JOBS RESULTS MODULE...\n");
    return 2;
  }
  CUdevice device;
  CUcontext context;
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS) {
    fprintf(stderr, "no GPU\n");
    return 3;
  }
  std::vector<CUmodule> modules;
  for (int i = 3; i < argc; ++i) {
    CUmodule module;
    if (cuModuleLoad(&module, argv[i]) != CUDA_SUCCESS) {
      fprintf(stderr, "%s is no module for this GPU\n", argv[i]);
      return 3;
    }
    modules.push_back(module);
  }
  FILE* jobs = fopen(argv[1], "rb");
  FILE* results = fopen(argv[2], "wb");
  if (!jobs || !results) {
    fprintf(stderr, "%s or %s cannot be opened\n", argv[1], argv[2]);
    return 3;
  }
  Job job;
  while (fread(&job, sizeof job, 1, jobs) == 1) {
    std::vector<uint8_t> input(job.in_bytes), output(job.out_bytes);
    if (job.in_bytes && fread(input.data(), job.in_bytes, 1, jobs) != 1) return 3;
    const int32_t status = run(modules, job, input, output);
    fwrite(&status, sizeof status, 1, results);
    if (status == 0) fwrite(output.data(), output.size(), 1, results);
    fflush(results);  // a later job may hang
    if (status > 0) break;
  }
  fclose(results);
  return 0;
}
