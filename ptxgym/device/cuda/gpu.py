"""Which GPUs this process may use, and what the host code of a submission is to believe about one.

Nothing here makes a CUDA context or imports a CUDA package, so that the evaluator's process stays free to fork.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ptxgym.device.cuda.nvml import Counters, Described, NvmlError, opened
from ptxgym.errors import InfrastructureError
from ptxgym.plan import DeviceProfile, device_profile

ARCH_CC: Mapping[str, tuple[int, int]] = {"h100": (9, 0)}
"""Compute capability on which code for an architecture runs; `sm_90a` is exact, H100, H200 and GH200 have it."""

NOMINAL: Mapping[str, str] = {"NVIDIA H200": "h200", "NVIDIA H100 80GB HBM3": "h100"}
"""GPUs whose profile is known, by the driver's name."""

ATTRIBUTES_LIMIT_S = 60.0

# CUdevice_attribute, cuda.h of CUDA 13.0.
_ATTRIBUTES = {
    "clock_khz": 13,
    "sm_count": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "persisting_l2_bytes": 108,
    "access_policy_window_bytes": 109,
    "smem_per_sm_bytes": 81,
    "smem_per_block_bytes": 8,
    "smem_optin_bytes": 97,
    "reserved_smem_bytes": 111,
    "registers_per_sm": 82,
    "registers_per_block": 12,
    "threads_per_sm": 39,
    "blocks_per_sm": 106,
}


@dataclass(frozen=True)
class Gpu:
    """One GPU."""

    uuid: str
    index: int
    """As NVML and nvidia-smi count."""
    name: str
    cc: tuple[int, int]
    memory_bytes: int
    driver: str
    mig: bool = False
    """Whether it is split into instances; those are not measured on."""


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that this process may use (`CUDA_VISIBLE_DEVICES`); () where there is none, or no driver."""
    return _gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))


@functools.lru_cache(maxsize=8)
def _gpus(visible: str | None) -> tuple[Gpu, ...]:
    try:
        with opened() as nvml:
            driver, devices = nvml.driver, nvml.devices()
    except NvmlError:
        return ()
    return tuple(
        Gpu(one.uuid, one.index, one.name, one.cc, one.memory_bytes, driver, one.mig)
        for one in select(devices, visible)
    )


def select(devices: Sequence[Described], visible: str | None) -> list[Described]:
    """Return those of `devices` that `CUDA_VISIBLE_DEVICES` names, in its order; numbers count as NVML does.

    As the CUDA programming guide has it: the list ends at the first entry that names no device, and a UUID may be cut
    short where that is unique.
    """
    if visible is None:
        return list(devices)
    chosen: list[Described] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.lstrip("-").isdigit():
            found = [one for one in devices if one.index == int(entry)]
        else:
            found = [one for one in devices if entry and one.uuid.startswith(entry)]
        if len(found) != 1:
            break
        chosen += found
    return chosen


def gpu_for(arch: str) -> Gpu | None:
    """Return the first whole GPU that runs code for `arch`; None where there is none."""
    return next((gpu for gpu in gpus() if gpu.cc == ARCH_CC.get(arch) and not gpu.mig), None)


def why_none(arch: str) -> str:
    """Say why `gpu_for(arch)` found nothing: what there is instead, and the way out."""
    found = gpus()
    if not found:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None:
            return f"CUDA_VISIBLE_DEVICES={hidden!r} leaves no GPU; unset it, or name one"
        return "this machine shows no NVIDIA GPU; see `nvidia-smi`, and give a container access with `--gpus all`"
    split = [gpu for gpu in found if gpu.mig and gpu.cc == ARCH_CC.get(arch)]
    if split:
        return f"{split[0].name} is split by MIG, whose slices are not measured on; `nvidia-smi -mig 0` makes it whole"
    names = ", ".join(dict.fromkeys(f"{gpu.name} (compute capability {gpu.cc[0]}.{gpu.cc[1]})" for gpu in found))
    return f"code for {arch} does not run on {names}"


def counters(gpu: Gpu) -> Counters:
    """Return free memory and error counters of a GPU.

    Raises:
        InfrastructureError: if the driver does not answer.
    """
    try:
        with opened() as nvml:
            return nvml.counters(gpu.uuid)
    except NvmlError as error:
        raise InfrastructureError(f"the driver no longer answers for {gpu.name}: {error}; see `nvidia-smi`") from error


@functools.lru_cache(maxsize=16)
def profile_of(gpu: Gpu) -> DeviceProfile:
    """Return what host code is told about `gpu`: nominal where the name is known, else what the driver says.

    Raises:
        InfrastructureError: if the driver does not answer.
    """
    if gpu.name in NOMINAL:
        return device_profile(NOMINAL[gpu.name])
    command = [sys.executable, "-c", "from ptxgym.device.cuda.gpu import print_attributes; print_attributes()"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=ATTRIBUTES_LIMIT_S
        )
        values = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        values = None
    if not values:
        raise InfrastructureError(f"the driver does not tell the attributes of {gpu.name}; see `nvidia-smi`")
    return described(gpu, values)


def described(gpu: Gpu, values: Mapping[str, int]) -> DeviceProfile:
    """Return the profile of a GPU from its attributes; how its SMs lie in GPCs is not told: they are spread evenly."""
    return replace(
        device_profile("h200"),
        key="-".join(gpu.name.lower().removeprefix("nvidia ").split()),
        name=gpu.name,
        cc_major=gpu.cc[0],
        cc_minor=gpu.cc[1],
        memory_bytes=gpu.memory_bytes,
        gpc_sms=tuple(values["sm_count"] // 8 + (i < values["sm_count"] % 8) for i in range(8)),
        **values,
    )


def print_attributes() -> None:
    """Write the attributes of CUDA device 0 as JSON; runs in a process of its own, since it starts the driver."""
    driver = ctypes.CDLL("libcuda.so.1")
    device, value = ctypes.c_int(), ctypes.c_int()
    for code in (driver.cuInit(0), driver.cuDeviceGet(ctypes.byref(device), 0)):
        if code:
            sys.exit(f"libcuda: error {code}")
    found = {}
    for name, number in _ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device):
            sys.exit(f"libcuda: attribute {number} failed")
        found[name] = value.value
    sys.stdout.write(json.dumps(found))
