"""Vendor libraries for C = A·Bᵀ; torch is imported when a baseline is prepared."""


def cublas(tensors, axes):
    """Return a call without arguments that runs cuBLAS through torch on device tensors `A`, `B`, `C` (BF16).

    FP32 accumulation: reduced-precision split-K reductions are off while the call runs, so that the baseline computes
    what the task asks for.
    """
    import torch

    a, b, c = tensors["A"], tensors["B"], tensors["C"]

    def call():
        flags = torch.backends.cuda.matmul
        before = flags.allow_bf16_reduced_precision_reduction
        flags.allow_bf16_reduced_precision_reduction = False
        try:
            torch.matmul(a, b.T, out=c)
        finally:
            flags.allow_bf16_reduced_precision_reduction = before

    return call


BASELINES = {"cuBLAS": cublas}
