// One use of as many kinds of instruction as possible; never run.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
__global__ void k(__nv_bfloat162* a, __half2* h, double* d, int* i, float* f, unsigned char* c){
 int t=threadIdx.x; a[t]=__hadd2(a[t],a[t+1]); a[t+2]=__hmul2(a[t+2],a[t+3]); a[t+4]=__hfma2(a[t],a[t+5],a[t+6]); h[t]=__hadd2(h[t],h[t+1]); h[t+3]=__hfma2(h[t],h[t+1],h[t+2]); h[t+7]=__hmul2(h[t],h[t+9]);
 a[t+9]=__hmax2(a[t+7],a[t+8]); a[t+40]=__hsub2(a[t+40],a[t+41]);
 d[t]=d[t]*d[t+1]+d[t+2]; i[t]=__dp4a(i[t],i[t+1],i[t+2]); i[t+5]=i[t+4]/i[t+3]; f[t]=f[t]*f[t+1]; f[t+2]=expf(f[t+3]); f[t+4]=__frcp_rn(f[t+5]); f[t+8]=f[t+9]/f[t+10];
 i[t+9]=__popc(i[t]); i[t+10]=__reduce_add_sync(-1,i[t]); atomicAdd(f+t+30,f[t]); f[t+50]=__shfl_xor_sync(-1,f[t],1); i[t+60]=i[t+61]*i[t+62]*3+ (i[t+63]<<2);
 __nv_fp8x4_e4m3 q(float4{f[t],f[t+1],f[t+2],f[t+3]}); *(unsigned*)(c+4*t)=q.__x; f[t+100]=__bfloat162float(a[t].x)+__half2float(h[t].y);
 unsigned r[4]={(unsigned)i[0],(unsigned)i[1],(unsigned)i[2],(unsigned)i[3]};
 asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%4,%5},{%0,%1,%2,%3};":"+f"(f[0]),"+f"(f[1]),"+f"(f[2]),"+f"(f[3]):"r"(r[0]),"r"(r[1]),"r"(r[2]),"r"(r[3]));
 asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%4,%5},{%0,%1,%2,%3};":"+r"(i[0]),"+r"(i[1]),"+r"(i[2]),"+r"(i[3]):"r"(r[0]),"r"(r[1]),"r"(r[2]),"r"(r[3]));
 asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1},{%2,%3,%4,%5},{%2,%3},{%0,%1};":"+r"(i[0]),"+r"(i[1]):"r"(r[0]),"r"(r[1]),"r"(r[2]),"r"(r[3]));
 asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1},{%2},{%3},{%0,%1};":"+d"(d[0]),"+d"(d[1]):"d"(d[2]),"d"(d[3]));
 asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%0,%1},{%2,%3,%2,%3,%2,%3,%2,%3},{%2,%3,%2,%3},{%0,%1,%0,%1};":"+d"(d[0]),"+d"(d[1]):"d"(d[2]),"d"(d[3]));
 asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%4,%5},{%0,%1,%2,%3};":"+f"(f[0]),"+f"(f[1]),"+f"(f[2]),"+f"(f[3]):"r"(r[0]),"r"(r[1]),"r"(r[2]),"r"(r[3]));
 asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%4,%5,%6,%7},{%0,%1,%2,%3},%4,0;":"+f"(f[0]),"+f"(f[1]),"+f"(f[2]),"+f"(f[3]):"r"(r[0]),"r"(r[1]),"r"(r[2]),"r"(r[3]));
 asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; griddepcontrol.wait; griddepcontrol.launch_dependents; fence.proxy.async; fence.proxy.alias;");
 asm volatile("{ .reg .b64 q; createpolicy.fractional.L2::evict_last.b64 q; st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0],%1,[%2]; red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%0],%1,[%2]; }"::"r"(r[0]),"r"(r[1]),"r"(r[2]));
 asm volatile("cp.async.bulk.prefetch.L2.global [%0], 64; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0],[%1],64; cp.async.mbarrier.arrive.noinc.shared.b64 [%1]; cp.async.wait_all; cp.async.bulk.wait_group.read 0; prefetch.global.L2 [%0]; multimem.red.relaxed.sys.global.add.f32 [%0], %2;"::"l"(f),"r"(r[0]),"f"(f[0]));
}
