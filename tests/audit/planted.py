# ruff: noqa: E501  (a row is an edit, and edits hold lines of kernels)
"""Violations of the contract as edits of kernels that keep it, each with the item that must name it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """One edit."""

    item: str
    env: str
    file: str
    """Of the solution, without its suffix."""
    old: str
    new: str
    line_of: str = ""
    """Text of the line that the checklist names; empty where the item names none, or no single one."""

    def __str__(self) -> str:
        return f"{self.item}-{self.env.rpartition('-')[2]}"


_GEMM, _GEMM_B200 = "PTX-Gemm-H100", "PTX-Gemm-B200"
_EXPECT = "barrier_expect(&shared.full[cursor.slot], kStageBytes"
_PROXY_FENCE = (
    '    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // TMA reads what ordinary stores wrote\n'
)
_COMMIT = '    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");\n'
_RELINQUISH = '    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");\n'
_ALLOC_32 = (
    '    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"('
    'shared_address(&shared.tensor_memory)), "r"(32) : "memory");\n'
)
_DEALLOC = '    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tensor_memory), "r"(kTensorColumns));\n'
_DONE = "    barrier_wait(&shared.done[accumulator.slot], accumulator.parity);\n"
_SUMS = "const uint32_t sums = tensor_memory + accumulator.slot * kTileN;"


def _hopper(item: str, old: str, new: str, line_of: str = "", file: str = "wgmma") -> Planted:
    return Planted(item, _GEMM, file, old, new, line_of)


def _blackwell(item: str, old: str, new: str, line_of: str = "", file: str = "oracle") -> Planted:
    return Planted(item, _GEMM_B200, file, old, new, line_of)


PLANTED = (
    _hopper("host.compiles", "cursor.advance()) {\n    barrier_wait(&shared.empty", "cursor.advnce()) {\n    barrier_wait(&shared.empty"),
    _hopper("launch.block", "kThreads, kSharedBytes, stream", "kThreads + 128, kSharedBytes, stream", "gemm_wgmma<<<"),
    _hopper("launch.registers", "aligned.u32 232", "aligned.u32 248", "aligned.u32 248"),
    _hopper("smem.sum", "kStages = 4", "kStages = 5", "gemm_wgmma<<<"),
    _hopper("smem.sum", "  cudaFuncSetAttribute(gemm_wgmma, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);\n", ""),
    _hopper("map.box", "static_cast<cuuint32_t>(box_rows)", "static_cast<cuuint32_t>(box_rows + 64)"),
    _hopper("map.swizzle", "SWIZZLE_128B", "SWIZZLE_64B", "cuTensorMapEncodeTiled"),
    _hopper("map.strides", "* sizeof(__nv_bfloat16)};", "* sizeof(__nv_bfloat16) + 8};"),
    _hopper("map.extent", "* sizeof(__nv_bfloat16)};", "* 4};"),
    _hopper("map.extent", "{static_cast<cuuint64_t>(columns),", "{320,"),
    _hopper("copy.target", "tma_load(shared.a[cursor.slot], ", "tma_load(shared.a[cursor.slot] + 8, ", "tma_load(shared.a"),
    _hopper("copy.groups", 'asm volatile("cp.async.bulk.commit_group;" ::: "memory");', "", "tma_store(", "oracle"),
    _hopper("mbarrier.init", "barrier_init(&shared.empty[slot], kConsumers);", "", "barrier_wait(&shared.empty"),
    _hopper("mbarrier.bytes", _EXPECT, _EXPECT + " + 128", "barrier_expect(&shared.full"),
    _hopper("mbarrier.bytes", _EXPECT, _EXPECT + " - 16384", "barrier_expect(&shared.full"),
    _hopper("mbarrier.parity", "shared.empty[slot], kConsumers", "shared.empty[slot], 1", "barrier_wait(&shared.empty"),
    _hopper("mbarrier.waits", "cursor.parity ^ 1", "cursor.parity", "barrier_wait(&shared.empty"),
    _hopper("order.read", "full[cursor.slot], cursor.parity)", "full[cursor.slot], cursor.parity ^ 1)", "wgmma_m64n256k16(sums"),
    _hopper("order.proxy", _PROXY_FENCE, "", file="oracle"),
    _hopper("order.overwrite", 'if (issuer) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");', "", file="oracle"),
    _hopper("wgmma.fence", '    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n', "", "wgmma_m64n256k16(sums"),
    _hopper("wgmma.wait", _COMMIT, "", "wgmma_m64n256k16(sums"),
    _hopper("descriptor.swizzle", "SWIZZLE_128B", "SWIZZLE_NONE", "wgmma_m64n256k16(sums"),
    _hopper("descriptor.offsets", "kStride = 1024 / 16", "kStride = 512 / 16", "wgmma_m64n256k16(sums"),
    _hopper("descriptor.base_offset", "kSwizzle128 << 62;", "kSwizzle128 << 62 | 1ull << 49;", "wgmma_m64n256k16(sums"),
    _hopper("output.written", "dim3(N / kTileN, M / kTileM)", "dim3(1, 1)"),
    _blackwell("barrier.named", '"bar.sync 1, %0;" ::"n"(32 * kEpilogueWarps)', '"bar.sync 0, %0;" ::"n"(32 * kEpilogueWarps)'),
    _blackwell("tcgen05.commit", "    tensor_commit(&shared.done[accumulator.slot]);\n", ""),
    _blackwell("tcgen05.fences", _DONE + "    fence_after_sync();\n", _DONE, "load_sums(sums"),
    _blackwell("tcgen05.waits", '      "tcgen05.wait::ld.sync.aligned;"\n', ""),
    _blackwell("tcgen05.waits", "shared.drained[slot], kEpilogueWarps", "shared.drained[slot], kEpilogueWarps - 1"),
    _blackwell("descriptor.start", "kVersion = 1", "kVersion = 0", "multiply_add(sums, descriptor"),
    _blackwell("descriptor.swizzle", "kSwizzle128 = 2", "kSwizzle128 = 4", "multiply_add(sums, descriptor"),
    _blackwell("instruction.fields", "(kTileM / 16) << 24", "(96 / 16) << 24", "multiply_add(sums, descriptor"),
    _blackwell("tmem.columns", "kTensorColumns = kAccumulators * kTileN;", "kTensorColumns = 500;"),
    _blackwell("tmem.columns", _RELINQUISH, _ALLOC_32 + _RELINQUISH),
    _blackwell("tmem.permit", _RELINQUISH, _RELINQUISH + _ALLOC_32),
    _blackwell("tmem.dealloc", _DEALLOC, ""),
    _blackwell("tmem.addresses", _SUMS, _SUMS.replace(" + acc", " + 320 + acc"), "multiply_add(sums, descriptor"),
    _blackwell("launch.cluster", "__cluster_dims__(kPair, 1, 1)", "__cluster_dims__(4, 1, 1)", file="pair"),
    Planted("mbarrier.bytes", "PTX-AttnFwd-H100", "oracle", "barrier_expect(barrier, kTileBytes)", "barrier_expect(barrier, kTileBytes - 128)"),
    Planted("tmem.dealloc", "PTX-AttnFwdCausal-B200", "oracle", '"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;"', '"// %0, %1"'),
)  # fmt: skip
