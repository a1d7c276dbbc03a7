// Small kernels that make nvcc print what submissions are made of. Every kernel whose name does not begin with `refused_` must
// decode; the others must be refused with the code that the test names.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cassert>
#include <cstdint>
#include <cstdio>
#include <cuda/barrier>

__device__ int counter = 3;
__device__ int* counter_pointer = &counter;
__constant__ float weights[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ const char* names[2] = {"one", "two"};
__shared__ float module_shared[32];
struct Mixed { int a; double b; char c[3]; };

extern "C" __global__ void integers(const int* x, const long long* y, unsigned* out, short* s, unsigned char* u) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const int a = x[i], b = x[i + 1];
  const long long c = y[i], d = y[i + 1];
  unsigned r = a / b + a % b + unsigned(c / d) + unsigned(c % d) + min(a, b) + max(unsigned(a), unsigned(b)) + abs(a);
  r += __mulhi(a, b) + __umulhi(a, b) + unsigned(__mul64hi(c, d)) + __mul24(a, b) + __umul24(a, b) + __sad(a, b, r) + __usad(r, a, b);
  r += __popc(a) + __popcll(c) + __clz(a) + __clzll(d) + __ffs(b) + __ffsll(c) + __brev(a) + unsigned(__brevll(c));
  r += __byte_perm(a, b, r & 0x7777) + __funnelshift_l(a, b, r) + __funnelshift_rc(a, b, r) + __hadd(a, b) + __urhadd(a, b);
  r += __dp4a(a, b, int(r)) + __dp4a(unsigned(a), unsigned(b), r) + __dp2a_lo(a, b, int(r)) + __dp2a_hi(a, b, int(r));
  r += (a >> (b & 31)) + (unsigned(a) >> 3) + (a << (b & 31)) + unsigned(c >> (b & 63)) + (a ? b : int(r)) + a / 7 + unsigned(a) / 10u;
  s[i] = short(s[i] * s[i + 1] / (s[i + 2] | 1) + (s[i] > s[i + 1] ? 1 : -1));
  u[i] = u[i] + u[i + 1] * 3;
  out[i] = r ^ ~unsigned(a) ^ (a < b && c > d || a == 7);
  asm volatile("{ .reg .u32 lo, hi; mul.lo.u32 lo, %1, %2; mad.hi.cc.u32 hi, %1, %2, lo; addc.cc.u32 lo, lo, hi; subc.u32 %0, lo, 1; }"
               : "=r"(r) : "r"(a), "r"(b));
  asm volatile("{ bfe.s32 %0, %1, 3, 5; bfi.b32 %0, %1, %0, 4, 8; bfind.u32 %0, %0; lop3.b32 %0, %0, %1, 7, 0xE8; }" : "+r"(r) : "r"(a));
  out[i + 1] = r;
}

extern "C" __global__ void reals(const float* x, const double* y, float* out, double* dout) {
  const int i = threadIdx.x;
  const float a = x[i], b = x[i + 1];
  const double c = y[i], d = y[i + 1];
  float r = a / b + sqrtf(a) + rsqrtf(b) + expf(a) + logf(b) + sinf(a) + cosf(b) + tanhf(a) + powf(a, b) + fmodf(a, b) + erff(a);
  r += __expf(a) + __logf(b) + __sinf(a) + __cosf(b) + __fdividef(a, b) + __frcp_rn(a) + __fsqrt_rn(b) + exp2f(a) + log2f(b);
  r += __fmaf_rz(a, b, r) + __fadd_rd(a, b) + __fmul_ru(a, b) + __fdiv_rn(a, b) + fminf(a, b) + fmaxf(a, b) + __saturatef(a);
  r += floorf(a) + ceilf(b) + rintf(a) + truncf(b) + roundf(a) + fabsf(a) + copysignf(a, b) + float(isnan(a)) + float(isinf(b));
  r += float(__float2int_rn(a)) + float(__float2uint_rz(b)) + float(__float2ll_rd(a)) + __int2float_rn(i) + float(c) + (a < b ? 1.f : !(a <= b) ? 2.f : 3.f);
  double q = c / d + sqrt(c) + exp(d) + log(c) + fma(c, d, q) + floor(c) + fmin(c, d) + double(i) + double(a) + rsqrt(d);
  q += double((long long)c) + double((unsigned)d) + __dadd_rz(c, d) + (c < d ? 1 : 2);
  out[i] = r;
  dout[i] = q;
}

extern "C" __global__ void halves(const __half* h, const __nv_bfloat16* b, const __half2* h2, const __nv_bfloat162* b2, float* out, __half2* hout) {
  const int i = threadIdx.x;
  __half a = h[i] * h[i + 1] + h[i + 2] - h[i + 3] / h[i + 4];
  __nv_bfloat16 c = b[i] * b[i + 1] + b[i + 2] - b[i + 3] / b[i + 4];
  __half2 a2 = __hfma2(h2[i], h2[i + 1], __hadd2_sat(h2[i + 2], h2[i + 3]));
  __nv_bfloat162 c2 = __hfma2(b2[i], b2[i + 1], __hmax2(b2[i + 2], b2[i + 3]));
  a2 = __hmul2(a2, __hmin2(h2[i + 4], __habs2(__hneg2(a2))));
  a2 = h2exp2(a2) + h2tanh_approx(a2) + h2sqrt(a2) + h2rcp(a2) + __hfma2_relu(a2, a2, a2);
  c2 = h2exp2(c2) + h2tanh_approx(c2) + __hfma2_relu(c2, c2, c2);
  float r = __half2float(a) + __bfloat162float(c) + float(__hgt(a, h[i])) + float(__hltu(c, b[i])) + float(__hbeq2(a2, h2[i]));
  r += float(__half2int_rn(a)) + float(__half2ushort_rz(a)) + __half2float(__int2half_rn(i)) + __bfloat162float(__float2bfloat16_rz(r));
  r += __bfloat162float(__int2bfloat16_rn(i)) + float(__bfloat162int_rz(c)) + __low2float(a2) + __high2float(c2);
  hout[i] = __heq2(a2, h2[i]) + __floats2half2_rn(r, 1.f) + __half2(a, a) + __half2half2(hexp(a)) * a2;
  out[i] = r + __bfloat162float(__floats2bfloat162_rn(r, 2.f).x) + float(__heq2_mask(a2, h2[i])) + float(__hisnan(a));
}

extern "C" __global__ void vectors(const float4* x, const uint2* y, const double2* z, uchar4* u, float4* out) {
  extern __shared__ __align__(1024) float4 tile[];
  __shared__ uint2 pairs[64];
  __shared__ unsigned char bytes[64];
  const int i = threadIdx.x;
  tile[i] = __ldg(x + i);
  pairs[i] = y[i];
  bytes[i] = u[i].x;
  module_shared[i & 31] = weights[i & 7];
  __syncthreads();
  float4 v = tile[i ^ 1];
  v.x += float(pairs[63 - i].y) + float(bytes[i ^ 2]) + module_shared[i & 15];
  v.y += float(z[i].x) + __ldcg(&x[i].y) + __ldcs(&x[i].z) + __ldlu(&x[i].w) + __ldcv(&x[i].x);
  __stcs(&out[i + 1], v);
  u[i] = make_uchar4(v.x, v.y, v.z, v.w);
  out[i] = v;
}

extern "C" __global__ void locals(const int* x, int* out, Mixed by_value, const __grid_constant__ Mixed constant) {
  int stack[24];
  float4 wide[4];
  for (int i = 0; i < 24; i++) stack[i] = x[i];
  for (int i = 0; i < 4; i++) wide[i] = make_float4(x[i], 1, 2, 3);
  const int* fields = &constant.a;
  out[0] = stack[x[30] & 15] + int(wide[x[31] & 3].x) + fields[x[3] & 1] + by_value.c[x[2] & 1] + int(by_value.b);
  printf("value %d of %s: %f\n", out[0], names[x[1] & 1], by_value.b);
  assert(x[5] > 0);
  out[1] = counter + *counter_pointer;
  switch (x[6]) {
    case 0: out[2] = 5; break;
    case 1: out[3] = 6; break;
    case 2: out[4] = 7; break;
    case 3: out[5] = 8; break;
    case 4: out[6] = 9; break;
    default: __trap();
  }
}

extern "C" __global__ void atomics(int* g, unsigned long long* l, float* f, double* d, __half2* h, __nv_bfloat162* b, float4* v) {
  __shared__ int s[4];
  __shared__ float sf;
  int r = atomicAdd(g, 1) + atomicSub(g + 1, 2) + atomicMin(g + 2, 3) + atomicMax((unsigned*)g + 3, 4u) + atomicExch(g + 4, 5);
  r += atomicCAS(g + 5, 6, 7) + atomicInc((unsigned*)g + 6, 8u) + atomicDec((unsigned*)g + 7, 9u) + atomicAnd(g + 8, 10) + atomicOr(g + 9, 11);
  r += atomicXor(g + 10, 12) + int(atomicAdd(l, 13ull)) + int(atomicMax(l + 1, 14ull)) + int(atomicCAS(l + 2, 1ull, 2ull));
  r += atomicAdd(s, 1) + atomicMin(s + 1, 2) + atomicCAS(s + 2, 3, 4) + atomicAdd_block(g + 11, 1) + atomicAdd_system(g + 12, 1);
  atomicAdd(&sf, 1.f);
  atomicAdd(f, 2.f);
  atomicAdd(d, 3.0);
  atomicAdd(h, __half2(1, 2));
  atomicAdd(b, __nv_bfloat162(1, 2));
  atomicAdd(v, make_float4(1, 2, 3, 4));
  __threadfence();
  __threadfence_block();
  __threadfence_system();
  volatile int* polled = g + 13;
  while (*polled == 0) __nanosleep(20);
  g[14] = r + s[3] + int(sf);
}

extern "C" __global__ void warps(const int* x, unsigned* out, long long* clocks) {
  const unsigned lane = threadIdx.x & 31, mask = __activemask();
  unsigned r = __shfl_sync(~0u, x[lane], 3) + __shfl_up_sync(~0u, x[lane], 1) + __shfl_down_sync(~0u, x[lane], 2, 16);
  r += __shfl_xor_sync(~0u, x[lane], 4) + __ballot_sync(mask, x[lane] > 0) + __any_sync(mask, x[lane] == 1) + __all_sync(mask, x[lane] == 2);
  r += __match_any_sync(~0u, x[lane]) + __reduce_add_sync(~0u, x[lane]) + __reduce_min_sync(~0u, unsigned(x[lane])) + __reduce_xor_sync(~0u, r);
  int same;
  r += __match_all_sync(~0u, (long long)x[lane], &same) + same + __syncthreads_count(x[lane]) + __syncthreads_and(x[lane]) + __syncthreads_or(x[lane]);
  double wide = __shfl_xor_sync(~0u, double(r), 1);
  __syncwarp();
  unsigned elected;
  asm volatile("{ .reg .pred p; elect.sync _|p, -1; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
  if (elected) out[32] = 1;
  asm volatile("bar.arrive 1, 64;\n bar.sync 1, 64;\n barrier.sync 2;");
  clocks[0] = clock64() + clock();
  unsigned long long time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  clocks[1] = time;
  out[lane] = r + unsigned(wide) + gridDim.x + blockDim.y + __isGlobal(x) + __isShared(x) + unsigned(__cvta_generic_to_shared(out));
}

extern "C" __global__ void barriers(const float* x, float* out) {
  __shared__ alignas(16) float tile[256];
  __shared__ cuda::barrier<cuda::thread_scope_block> bar;
  if (threadIdx.x == 0) init(&bar, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) cuda::memcpy_async(tile, x, cuda::aligned_size_t<16>(1024), bar);
  bar.arrive_and_wait();
  auto token = bar.arrive();
  bar.wait(std::move(token));
  out[threadIdx.x] = tile[threadIdx.x];
}

extern "C" __global__ void copies(const float* x, float* out, const int* sizes) {
  __shared__ alignas(128) float tile[1024];
  __shared__ alignas(8) unsigned long long bar;
  const unsigned dst = unsigned(__cvta_generic_to_shared(tile)), mb = unsigned(__cvta_generic_to_shared(&bar));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(dst), "l"(x));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0+16], [%1+16], 16, %2;" ::"r"(dst), "l"(x), "r"(sizes[0]));
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(mb));
  asm volatile("cp.async.commit_group;\n cp.async.wait_group 1;\n cp.async.wait_all;");
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n fence.mbarrier_init.release.cluster;" ::"r"(mb), "r"(1));
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mb), "r"(512));
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(x), "r"(512), "r"(mb));
  asm volatile("{ .reg .pred p; LAB: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra LAB; DONE: }" ::"r"(mb), "r"(0));
  asm volatile("fence.proxy.async.shared::cta;\n cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out), "r"(dst), "r"(512));
  asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group.read 0;\n cp.async.bulk.wait_group 0;");
  asm volatile("prefetch.global.L2 [%0];\n griddepcontrol.wait;\n griddepcontrol.launch_dependents;" ::"l"(x));
}

struct alignas(64) Map { char bytes[128]; };

extern "C" __global__ void __launch_bounds__(128) tensors(const __grid_constant__ Map load, const __grid_constant__ Map store, float* out) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const unsigned base = unsigned(__cvta_generic_to_shared(smem)), bar = base + 65536;
  asm volatile("prefetch.tensormap [%0];" ::"l"(&load));
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
               "r"(base), "l"(&load), "r"(0), "r"(int(blockIdx.x)), "r"(bar) : "memory");
  float d[4];
  unsigned a[4] = {1, 2, 3, 4};
  const unsigned long long desc = base;
#if __CUDA_ARCH__ == 900
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 1; }"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(desc), "l"(desc), "r"(1));
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, 1, -1, 1, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc));
  asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;");
#endif
  unsigned r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(base));
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(a[0]), "r"(a[1]));
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(base), "r"(r[0]), "r"(r[1]));
  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
  asm volatile("{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
               "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2, %3}], [%4], policy; }" ::
               "l"(&store), "r"(0), "r"(0), "r"(0), "r"(base));
  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

extern "C" __global__ void refused_malloc(int* x) { int* m = (int*)malloc(x[0]); x[1] = m[3]; free(m); }
__device__ __noinline__ int helper(int x) { return x * 3 + counter; }
extern "C" __global__ void calls(int* x) { x[0] = helper(x[1]); }
typedef int (*Operation)(int);
__device__ Operation table[2];
extern "C" __global__ void indirect_calls(int* x) { x[1] = table[x[0]](x[2]); }
extern "C" __global__ void __cluster_dims__(2) clusters(int* x) {
  __shared__ int cell[32];
  cell[threadIdx.x % 32] = threadIdx.x;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  unsigned remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, 1;" : "=r"(remote) : "r"((unsigned)__cvta_generic_to_shared(cell)));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x[blockIdx.x]) : "r"(remote));
}
#if __CUDA_ARCH__ == 900
extern "C" __global__ void refused_b1(int* x, unsigned long long desc) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc {%0, %1, %2, %3}, %4, %4, p; }"
               : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3]) : "l"(desc));
}
#endif
