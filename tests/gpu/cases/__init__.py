"""Cases of the conformance kernels: run on a GPU to make the golden file, and on the emulator to be compared.

A family is a module; a case is a line or two of one of its generators. `run_conformance.py` measures what the golden
file does not have yet, `tests/device/emulator/tensor/test_golden.py` replays all of it.

Rounding. Copies move bytes: they agree bit for bit. Whole numbers multiply exactly: bit for bit too. Inexact sums of
wgmma and mma.sync also agree bit for bit with the one model that fits the H200: each group of products and the sum so
far are aligned to the largest of them, cut below 25 fractional bits, added exactly, and rounded toward zero to FP32, or
to nearest to FP16
(`tests/device/emulator/tensor/reference.py` states it for every type). mma.sync of 8-bit floats is two of fp16 and an
addition. Approximate functions: see `lanes`.
"""

from tests.gpu.cases.cluster import cluster_cases
from tests.gpu.cases.control import control_cases
from tests.gpu.cases.copies import copy_cases, load, store
from tests.gpu.cases.elements import element_cases
from tests.gpu.cases.exchanges import exchange_cases
from tests.gpu.cases.forms import form_cases
from tests.gpu.cases.lanes import lane_cases
from tests.gpu.cases.maps import map_edit_cases
from tests.gpu.cases.model import DATA_TYPES, FILLS, SWIZZLES, Case, Map
from tests.gpu.cases.products import product_cases
from tests.gpu.cases.proxies import proxy_cases
from tests.gpu.cases.reductions import reduction_cases
from tests.gpu.cases.shapes import shape_cases
from tests.gpu.cases.spellings import spelling_cases
from tests.gpu.cases.values import SPREADS, random_bytes, spread_words
from tests.gpu.cases.warp import MMA_FORMS, mma, warp_cases
from tests.gpu.cases.wgmma import (
    B_START,
    IMAGE,
    accumulation_cases,
    accumulation_rows,
    dense,
    descriptor,
    wgmma,
    wgmma_cases,
)
from tests.gpu.cases.widths import width_cases

__all__ = [
    "B_START",
    "DATA_TYPES",
    "FILLS",
    "IMAGE",
    "MMA_FORMS",
    "SPREADS",
    "SWIZZLES",
    "Case",
    "Map",
    "accumulation_cases",
    "accumulation_rows",
    "all_cases",
    "cluster_cases",
    "control_cases",
    "copy_cases",
    "dense",
    "descriptor",
    "element_cases",
    "exchange_cases",
    "form_cases",
    "lane_cases",
    "load",
    "map_edit_cases",
    "mma",
    "product_cases",
    "proxy_cases",
    "random_bytes",
    "reduction_cases",
    "shape_cases",
    "spelling_cases",
    "spread_words",
    "store",
    "warp_cases",
    "wgmma",
    "wgmma_cases",
    "width_cases",
]


def all_cases() -> list[Case]:
    """Every case of the golden file; names are unique."""
    families = (
        copy_cases, form_cases, wgmma_cases, shape_cases, element_cases, warp_cases, lane_cases, cluster_cases,
        product_cases, proxy_cases, width_cases, control_cases, reduction_cases, map_edit_cases,
        exchange_cases, spelling_cases,
    )  # fmt: skip
    cases = [case for family in families for case in family()]
    assert len({case.name for case in cases}) == len(cases)
    return cases
