"""Cases of fences, registers and addresses against numpy, whatever a GPU has recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.device.emulator.tensor.harness import Kernels, succeeded
from tests.gpu.cases import proxy_cases
from tests.gpu.cases.proxies import SPACES

CASES = {case.name.partition("/")[2]: case for case in proxy_cases()}


def ran(kernels: Kernels, name: str) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Words of the input, four a row, and of the output."""
    run = kernels.run(CASES[name])
    assert succeeded(run) and not run.codes(severity=1)
    return np.frombuffer(CASES[name].input, np.uint32).reshape(-1, 4), run.output.view(np.uint32)


def test_words_go_through_every_proxy_fence(conformance: Kernels) -> None:
    words, output = ran(conformance, "proxy_fences")
    want = words.copy()
    want[:, 0] += 1
    want[:, 3] += np.arange(32, dtype=np.uint32)
    np.testing.assert_array_equal(output[:128].reshape(32, 4), want)
    np.testing.assert_array_equal(output[128:].reshape(32, 4), words)


def test_a_missing_fence_would_be_found(conformance: Kernels) -> None:
    """The one before the store from shared memory; what a CTA does to itself in global memory is not watched."""
    case = CASES["proxy_fences"]
    text = case.ptx.replace("fence.proxy.async.shared::cluster;", "")
    text = text.replace("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;", "")
    assert len(text) < len(case.ptx)
    assert conformance.run(replace(case, ptx=text)).codes(severity=1)


def test_registers_keep_their_values(conformance: Kernels) -> None:
    words, output = ran(conformance, "registers")
    w0 = words[:, 0] + words[:, 1]
    w1 = words[:, 1] ^ words[:, 2]
    w2 = words[:, 2] + words[:, 3]
    np.testing.assert_array_equal(output.reshape(-1, 4), np.stack([w0, w1, w2, words[:, 3] ^ w0], axis=1))


def test_addresses_tell_their_space_and_rank(conformance: Kernels) -> None:
    _, output = ran(conformance, "addresses")
    within = [["global"], ["local"], ["shared::cta", "shared::cluster"], ["shared::cluster"]]
    sets = [sum(1 << SPACES.index(space) for space in spaces) for spaces in within]
    for rank, seen in enumerate(output.reshape(2, 32)):
        assert seen[:3].tolist() == [1 - rank, rank, 1 - rank]
        assert seen[4:8].tolist() == sets
