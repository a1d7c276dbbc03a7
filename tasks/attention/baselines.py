"""Vendor libraries for attention; torch and FlashInfer are imported when a baseline is prepared.

cuDNN is called as torch does. Its operators return tensors of their own, which are handed over after the timed call, so
that no copy is counted.
"""

import functools
import math

WORKSPACE_BYTES = 128 << 20  # what FlashInfer's documentation allocates


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

    query, key, value = (tensors[name] for name in "QKV")
    made = {}

    def call():
        made.clear()  # so that torch's allocator gives the next results the same memory
        found = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, None, True, 0.0, causal)
        made.update(O=found[0], LSE=found[1].squeeze(-1))

    return call, functools.partial(_hand_over, made, tensors)


def cudnn_backward(causal, tensors, axes):
    """Return a call that runs cuDNN's attention backward alone, and one that hands over the gradients."""
    import torch

    query, key, value, output, gradient = (tensors[name] for name in ("Q", "K", "V", "O", "dO"))
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
    """
    import flashinfer
    import torch

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
        tensors[name].copy_(result)
