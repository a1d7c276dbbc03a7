"""Vendor libraries for attention; torch and FlashInfer are imported when a baseline is prepared.

cuDNN is called as torch does. Its operators return tensors of their own, which are handed over after the timed call, so
that no copy is counted. Where a variant asks for some outputs only, they compute the others as well; inputs that it
does without are replaced by others of the same shape, on which no output that it asks for depends.
"""

import functools
import math

from ptxgym.errors import NotApplicableError

WORKSPACE_BYTES = 128 << 20  # what FlashInfer's documentation allocates
FLASHINFER_DIMS = (64, 128, 256)  # head dimensions for which it has kernels (include/flashinfer/utils.cuh)


def forward(causal):
    """Return the baselines of attention forward."""
    return {
        "cuDNN": functools.partial(cudnn_forward, causal),
        "FlashInfer": functools.partial(flashinfer_forward, causal),
    }


def backward(causal):
    """Return the baselines of attention backward, which get O and LSE as a submission does."""
    return {"cuDNN": functools.partial(cudnn_backward, causal)}


def cudnn_forward(causal, tensors, axes):
    """Return a call that runs cuDNN's attention forward, and one that hands over O and LSE."""
    import torch

    query, key = tensors["Q"], tensors["K"]
    value, wants_lse = tensors.get("V", key), "LSE" in tensors
    made = {}

    def call():
        made.clear()  # so that torch's allocator gives the next results the same memory
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, None, wants_lse, 0.0, causal)
        made.update(O=found[0])
        if wants_lse:
            made.update(LSE=found[1].squeeze(-1))

    return call, functools.partial(_hand_over, made, tensors)


def cudnn_backward(causal, tensors, axes):
    """Return a call that runs cuDNN's attention backward alone, and one that hands over the gradients."""
    import torch

    query, key, gradient = (tensors[name] for name in ("Q", "K", "dO"))
    value, output = tensors.get("V", key), tensors.get("O", gradient)
    lse = tensors["LSE"].unsqueeze(-1)
    seed, offset = (torch.zeros((), dtype=torch.int64, device=query.device) for _ in range(2))  # of no dropout
    made = {}

    def call():
        made.clear()
        found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            gradient, query, key, value, output, lse, seed, offset, None, None, None, axes["S"], axes["S"], 0.0, causal
        )
        made.update(zip(("dQ", "dK", "dV"), found, strict=True))

    return call, functools.partial(_hand_over, made, tensors)


def flashinfer_forward(causal, tensors, axes):
    """Return a call that runs FlashInfer on ragged sequences of one head each, which need no other layout.

    Its LSE is in base 2; it is turned to the natural one after the timed call.

    Raises:
        NotApplicableError: for variants that it has no kernel for, or that are stored otherwise.
    """
    import flashinfer
    import torch

    if not {"O", "LSE"} <= set(tensors) or not tensors["Q"].is_contiguous() or axes["D"] not in FLASHINFER_DIMS:
        raise NotApplicableError(f"prepared for O with LSE, [B, H, S, D] in memory, D among {FLASHINFER_DIMS}")
    heads = axes["B"] * axes["H"]
    query, key, value, output = (tensors[name].view(heads * axes["S"], 1, axes["D"]) for name in ("Q", "K", "V", "O"))
    starts = torch.arange(heads + 1, dtype=torch.int32, device=query.device) * axes["S"]
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=query.device)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(starts, starts, 1, 1, axes["D"], causal=causal, q_data_type=torch.bfloat16)
    lse = torch.empty((heads * axes["S"], 1), dtype=torch.float32, device=query.device)

    def call():
        wrapper.run(query, key, value, out=output, lse=lse, return_lse=True)

    def hand_over():
        tensors["LSE"].copy_((lse * math.log(2)).view(tensors["LSE"].shape))

    return call, hand_over


def _hand_over(made, tensors):
    for name, result in made.items():
        if name in tensors:
            tensors[name].copy_(result)
