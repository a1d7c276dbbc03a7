"""Which GPUs a process may use, what host code is told of one, and whether one is well: against a scripted NVML."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ptxgym.device.cuda import gpu as gpus
from ptxgym.device.cuda.gpu import Gpu, described, gpu_for, profile_of, select, why_none
from ptxgym.device.cuda.health import Health
from ptxgym.device.cuda.nvml import Counters, Described, Nvml
from ptxgym.errors import InfrastructureError
from ptxgym.plan import device_profile

H200 = Gpu("GPU-aaaa", 0, "NVIDIA H200", (9, 0), 150_754_820_096, "580.95")
A100 = Gpu("GPU-bbbb", 1, "NVIDIA A100-SXM4-80GB", (8, 0), 80 << 30, "580.95")
DEVICES = [Described(i, f"GPU-{letter * 4}", "NVIDIA H200", (9, 0), 1 << 37, False) for i, letter in enumerate("abc")]
ATTRIBUTES = {
    "clock_khz": 1_755_000, "sm_count": 114, "memory_clock_khz": 1_593_000, "memory_bus_bits": 5120,
    "l2_bytes": 50 << 20, "persisting_l2_bytes": 32 << 20, "access_policy_window_bytes": 128 << 20,
    "smem_per_sm_bytes": 233472, "smem_per_block_bytes": 49152, "smem_optin_bytes": 232448,
    "reserved_smem_bytes": 1024, "registers_per_sm": 65536, "registers_per_block": 65536, "threads_per_sm": 2048,
    "blocks_per_sm": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, "abc"),
        ("", ""),
        ("1", "b"),
        ("2,0", "ca"),
        ("GPU-bb", "b"),
        ("GPU-aaaa, 2", "ac"),
        ("0,-1,1", "a"),  # the list ends at the first that is none
        ("7", ""),
        ("GPU-", ""),  # names no single one
        ("NoDevFiles", ""),
    ],
)
def test_visible_devices(visible: str | None, chosen: str) -> None:
    assert "".join(one.uuid[-1] for one in select(DEVICES, visible)) == chosen


class Library:
    """NVML of three GPUs, of which one has fallen off the bus."""

    LOST = 15

    def __init__(self, lost: int | None) -> None:
        self._lost = lost

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(DEVICES)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index.value + 1
        return self.LOST if index.value == self._lost else 0

    def nvmlDeviceGetUUID(self, handle: Any, buffer: Any, size: Any) -> int:  # noqa: N802
        buffer.value = DEVICES[handle.value - 1].uuid.encode()
        return 0

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: 0


@pytest.mark.parametrize(("lost", "left"), [(None, [0, 1, 2]), (0, [1, 2]), (1, [0, 2])])
def test_gpu_that_is_lost_hides_no_other(lost: int | None, left: list[int]) -> None:
    found = Nvml(Library(lost)).devices()  # type: ignore[arg-type]
    assert [(one.index, one.uuid) for one in found] == [(index, DEVICES[index].uuid) for index in left]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return lambda *found: monkeypatch.setattr(gpus, "gpus", lambda: found)


def test_gpu_of_an_architecture_is_the_first_whole_one(machine: Callable[..., None]) -> None:
    machine(A100, replace(H200, uuid="GPU-split", mig=True), H200)
    assert gpu_for("h100") == H200
    assert gpu_for("b200") is None


def test_reason_for_having_none(machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine(A100)
    assert "does not run on NVIDIA A100-SXM4-80GB (compute capability 8.0)" in why_none("h100")
    machine(replace(H200, mig=True))
    assert "split by MIG" in why_none("h100") and "nvidia-smi -mig 0" in why_none("h100")
    machine()
    assert "no NVIDIA GPU" in why_none("h100")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    assert "CUDA_VISIBLE_DEVICES='9'" in why_none("h100")


def test_known_gpu_has_its_nominal_profile() -> None:
    assert profile_of(H200) == device_profile("h200")
    assert profile_of(replace(H200, name="NVIDIA H100 80GB HBM3")) == device_profile("h100")


def test_unknown_gpu_is_described_by_its_attributes() -> None:
    pcie = replace(H200, name="NVIDIA H100 PCIe", memory_bytes=80 << 30)
    profile = described(pcie, ATTRIBUTES)
    assert (profile.key, profile.name, profile.sm_count, profile.l2_bytes) == (
        "h100-pcie",
        "NVIDIA H100 PCIe",
        114,
        50 << 20,
    )
    assert profile.memory_bytes == 80 << 30 and sum(profile.gpc_sms) == 114 and profile.cc_major == 9
    assert (profile.portable_cluster, profile.max_cluster) == (8, 16)


# Health


WELL = Counters(free_bytes=100 << 30, uncorrected_ecc=3, remap_pending=False, remap_failed=False)


class Machine:
    """What the driver and the probe say now."""

    def __init__(self) -> None:
        self.counters = WELL
        self.xids: tuple[int, ...] = ()
        self.probes: list[bool | Exception] = []

    def probe(self) -> bool:
        answer = self.probes.pop(0) if self.probes else True
        if isinstance(answer, Exception):
            raise answer
        return answer

    def health(self) -> Health:
        return Health(H200, self.probe, lambda gpu: self.counters, lambda: self.xids)


def test_fault_of_a_program_leaves_the_gpu_well() -> None:
    machine = Machine()
    health = machine.health()
    machine.xids = (13, 31, 43, 45)
    machine.probes = [RuntimeError("the driver is cleaning up"), True]
    health.check()


@pytest.mark.parametrize(
    ("counters", "said"),
    [
        (replace(WELL, uncorrected_ecc=4), "uncorrectable error; reset it"),
        (replace(WELL, remap_pending=True), "wait for being remapped"),
        (replace(WELL, remap_failed=True), "replace it"),
        (replace(WELL, free_bytes=200 << 20), r"200 MiB of its memory are free; end what else runs"),
    ],
)
def test_counters_that_say_that_it_is_not(counters: Counters, said: str) -> None:
    machine = Machine()
    health = machine.health()
    health.check()
    machine.counters = counters
    with pytest.raises(InfrastructureError, match=f"NVIDIA H200 is not well: .*{said}"):
        health.check()


@pytest.mark.parametrize("xid", [48, 79, 119])
def test_hardware_xid_is_named(xid: int) -> None:
    machine = Machine()
    health = machine.health()
    machine.xids = (31, xid)
    with pytest.raises(InfrastructureError, match=f"Xid {xid};"):
        health.check()


def test_probe_that_keeps_failing_is_the_machines_failure() -> None:
    machine = Machine()
    machine.probes = [False, RuntimeError("an illegal memory access was encountered")]
    with pytest.raises(InfrastructureError, match="trusted kernel fails: an illegal memory access"):
        machine.health().check()
    machine.probes = [False, False]
    with pytest.raises(InfrastructureError, match="wrong numbers"):
        machine.health().check()


def test_probe_that_never_ends_is_the_machines_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgym.device.cuda.health.PROBE_LIMIT_S", 0.05)
    ended = threading.Event()
    health = Health(H200, lambda: ended.wait(30), lambda gpu: WELL, tuple)
    with pytest.raises(InfrastructureError, match=r"does not end within 0\.05 s"):
        health.check()
    ended.set()
