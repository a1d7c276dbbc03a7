"""Vendor libraries for C = A·Bᵀ; torch is imported when a baseline is prepared.

Both accumulate in FP32, split-K reductions included: the baseline computes what the task asks for. Variants with an
epilogue are computed by cuBLAS into FP32 and then by torch, step by step: a library that does it all in one kernel
would be faster.
"""

import ctypes
import functools
from types import SimpleNamespace

from ptxgym.errors import NotApplicableError


def with_settings(activation="none", rounds=True, over_32=False):
    """Return the baselines of a variant; see `reference.with_settings`."""
    steps = functools.partial(cublas, activation=activation, over_32=over_32)
    return SimpleNamespace(BASELINES={"cuBLAS": steps, "cuBLASLt": _not_prepared})


def cublas(tensors, axes, activation="none", over_32=False):
    """Return a call without arguments that runs cuBLAS through torch on device tensors `A`, `B`, `C` and others."""
    import torch

    a, b, c = tensors["A"], tensors["B"], tensors["C"]
    plain = set(tensors) == {"A", "B", "C"} and activation == "none" and not over_32
    sums = c if plain else torch.empty(c.shape, dtype=torch.float32, device=c.device)

    def call():
        flags = torch.backends.cuda.matmul
        before = flags.allow_bf16_reduced_precision_reduction
        flags.allow_bf16_reduced_precision_reduction = False
        try:
            if sums.dtype == torch.float32:
                torch.mm(a, b.T, torch.float32, out=sums)
            else:
                torch.matmul(a, b.T, out=sums)
        finally:
            flags.allow_bf16_reduced_precision_reduction = before
        if not plain:
            finish()

    def finish():
        if "scale" in tensors:
            sums.mul_(tensors["scale"])
        if over_32:
            sums.div_(32)
        if "bias" in tensors:
            sums.add_(tensors["bias"])
        x = {"none": lambda x: x, "relu": torch.relu, "gelu": gelu}[activation](sums)
        if "residual" in tensors:
            x.add_(tensors["residual"])
        c.copy_(x)

    def gelu(x):
        return torch.nn.functional.gelu(x, approximate="tanh")

    return call


def cublaslt(tensors, axes):
    """Return a call that runs the fastest of the algorithms that cuBLASLt's heuristics propose for this size.

    Raises:
        NotApplicableError: where a variant asks for more than a BF16 product of operands that are contiguous along K.
    """
    import torch

    contiguous = tensors["A"].is_contiguous() and tensors["B"].is_contiguous()
    if set(tensors) != {"A", "B", "C"} or not contiguous or tensors["C"].dtype != torch.bfloat16:
        _not_prepared(tensors, axes)
    product = _LtProduct(tensors["A"], tensors["B"], tensors["C"])
    key = tuple(axes.items())
    if key not in _FASTEST:
        _FASTEST[key] = product.fastest(PROPOSALS)
    algorithm = product.proposals(PROPOSALS)[_FASTEST[key]]
    return lambda: product.run(algorithm)


def _not_prepared(tensors, axes):
    raise NotApplicableError("prepared for the task itself, without another layout, type or epilogue")


BASELINES = {"cuBLAS": cublas, "cuBLASLt": cublaslt}
CHOOSES = {"cuBLASLt"}

PROPOSALS = 16
WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for Hopper (cuBLAS documentation, cublasSetWorkspace)
_FASTEST: dict = {}

# Values of cublasLt.h and library_types.h, CUDA 13.
_BF16, _FP32, _COMPUTE_FP32 = 14, 0, 68
_TRANSPOSE_A, _TRANSPOSED = 3, 1
_WORKSPACE_LIMIT, _REDUCTIONS, _REDUCE_IN_COMPUTE_TYPE = 1, 3, 2


class _Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _LtProduct:
    """One product for cuBLASLt, which reads columns: it sees Bᵀ [K, N] and Aᵀ [K, M], and computes Cᵀ = (Bᵀ)ᵀ · Aᵀ."""

    def __init__(self, a, b, c):
        import torch

        self.torch, self.tensors = torch, (a, b, c)
        self.library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}")
        (m, k), n = a.shape, b.shape[0]
        self.handle, self.operation, self.preference = (ctypes.c_void_p() for _ in range(3))
        self.check("Create", ctypes.byref(self.handle))
        self.check("MatmulDescCreate", ctypes.byref(self.operation), _COMPUTE_FP32, _FP32)
        self.set("MatmulDescSetAttribute", self.operation, _TRANSPOSE_A, ctypes.c_int32(_TRANSPOSED))
        self.check("MatmulPreferenceCreate", ctypes.byref(self.preference))
        self.set("MatmulPreferenceSetAttribute", self.preference, _WORKSPACE_LIMIT, ctypes.c_uint64(WORKSPACE_BYTES))
        self.set("MatmulPreferenceSetAttribute", self.preference, _REDUCTIONS, ctypes.c_uint32(_REDUCE_IN_COMPUTE_TYPE))
        self.layouts = [self.layout(*extents) for extents in ((k, n), (k, m), (n, m))]
        self.workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self.one, self.zero = ctypes.c_float(1), ctypes.c_float(0)

    def check(self, function, *arguments):
        status = getattr(self.library, f"cublasLt{function}")(*arguments)
        if status:
            raise RuntimeError(f"cublasLt{function} answered {status}")

    def set(self, function, target, attribute, value):
        self.check(function, target, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))

    def layout(self, rows, columns):
        found = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        self.check("MatrixLayoutCreate", ctypes.byref(found), _BF16, *sizes)
        return found

    def proposals(self, count):
        """Return up to `count` algorithms, the most promising first; the same ones each time."""
        found, number = (_Proposal * count)(), ctypes.c_int()
        b, a, c = self.layouts
        arguments = (self.handle, self.operation, b, a, c, c, self.preference, count, found, ctypes.byref(number))
        self.check("MatmulAlgoGetHeuristic", *arguments)
        return [found[index] for index in range(number.value) if found[index].state == 0]

    def run(self, proposal):
        a, b, c = (ctypes.c_void_p(tensor.data_ptr()) for tensor in self.tensors)
        of_b, of_a, of_c = self.layouts
        self.check(
            "Matmul", self.handle, self.operation, ctypes.byref(self.one), b, of_b, a, of_a, ctypes.byref(self.zero),
            c, of_c, c, of_c, ctypes.byref(proposal.algorithm), ctypes.c_void_p(self.workspace.data_ptr()),
            ctypes.c_size_t(WORKSPACE_BYTES), ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream),
        )  # fmt: skip

    def fastest(self, count, rounds=7):
        """Return which proposal was fastest, by median, called in turns on a cold L2, with rests for the clock.

        The caller has the GPU alone (`CHOOSES`), and all of a call is enqueued before it begins: other threads of this
        process would lengthen some by a gap of the host.
        """
        import statistics
        import time

        from ptxgym.device.cuda.gate import Gate

        proposals = self.proposals(count)
        flush = self.torch.empty(4 * WORKSPACE_BYTES, dtype=self.torch.uint8, device="cuda")
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        gate, stream = Gate(), self.torch.cuda.current_stream().cuda_stream
        for proposal in proposals:  # the first call of each loads its code, for which it may wait for the GPU
            self.run(proposal)
        self.torch.cuda.synchronize()
        times = [[] for _ in proposals]
        for _ in range(rounds):
            for proposal, mine in zip(proposals, times, strict=True):
                with gate.closed(stream):
                    flush.zero_()
                    start.record()
                    self.run(proposal)
                    end.record()
                end.synchronize()
                mine.append(start.elapsed_time(end))
                time.sleep(min(0.005, mine[-1] / 1e3))
        medians = [statistics.median(mine) for mine in times]
        return medians.index(min(medians))
