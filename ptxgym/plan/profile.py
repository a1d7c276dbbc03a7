"""Which GPU the host code believes to run on: device profiles, nominal ones by name."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ptxgym.errors import UnknownNameError

FEW_SMS = 2
MANY_SMS = 1 << 14


@dataclass(frozen=True)
class DeviceProfile:
    """Answers to device queries; the recorder derives attributes, properties, occupancy and launch limits from it."""

    key: str
    """Short name, stored with every plan."""
    name: str
    """As `cudaDeviceProp.name`."""
    cc_major: int
    cc_minor: int
    sm_count: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    memory_bytes: int
    l2_bytes: int
    persisting_l2_bytes: int
    access_policy_window_bytes: int
    gpc_sms: tuple[int, ...]
    """SMs of each GPC that clusters of more than two CTAs can use; differs from chip to chip."""
    smem_per_sm_bytes: int = 233472
    smem_per_block_bytes: int = 49152
    """Without opt-in."""
    smem_optin_bytes: int = 232448
    reserved_smem_bytes: int = 1024
    """Per CTA, by the driver."""
    registers_per_sm: int = 65536
    registers_per_block: int = 65536
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    portable_cluster: int = 8
    max_cluster: int = 16
    """With `cudaFuncAttributeNonPortableClusterSizeAllowed`."""

    def of_few_sms(self, cluster_ctas: int = 1) -> DeviceProfile:
        """Return the profile of a GPU so small that resident CTAs must take several tiles even of a small problem.

        Args:
            cluster_ctas: CTAs of the largest cluster, for which there is room once.
        """
        sms = max(FEW_SMS, cluster_ctas)
        return replace(self, sm_count=sms, gpc_sms=(sms,))

    def of_many_sms(self) -> DeviceProfile:
        """Return the profile of a GPU so large that persistent kernels launch as many CTAs as there are tiles."""
        return replace(self, sm_count=MANY_SMS, gpc_sms=(16,) * (MANY_SMS // 16))

    def request_lines(self) -> list[str]:
        """Return the profile as lines of the recorder's request."""
        lines = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "key":
                text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
                lines.append(f"profile {field.name} {text}")
        return lines


# The defaults above: CUDA C++ programming guide, technical specifications of compute capability 9.0 and 10.0, equal for
# both; and read on an H200 (driver 580.95). What a chip adds:
# - H100 SXM5: NVIDIA H100 datasheet and Hopper whitepaper (132 SMs, 50 MB of L2, 80 GB HBM3, 5120 bits).
# - H200: read on one (driver 580.95). GPC sizes are those that explain the results of cudaOccupancyMaxActiveClusters
#   there; taken for the H100 too, which is the same chip.
# - B200: pytorch/ao pull request 4002 prints its device properties (148 SMs, 126.5 MiB of L2, 178.35 GiB, 3996 MHz, and
#   8192 bits, which newer drivers give as 7680); clock from NVIDIA's datasheet peak rates. GPC sizes are assumed: eight
#   GPCs that sum to 148.
_PROFILES = {
    profile.key: profile
    for profile in (
        DeviceProfile(
            key="h100",
            name="NVIDIA H100 80GB HBM3",
            cc_major=9,
            cc_minor=0,
            sm_count=132,
            clock_khz=1_980_000,
            memory_clock_khz=2_619_000,
            memory_bus_bits=5120,
            memory_bytes=80 << 30,
            l2_bytes=50 << 20,
            persisting_l2_bytes=(50 << 20) * 5 // 8,
            access_policy_window_bytes=128 << 20,
            gpc_sms=(18, 16, 16, 16, 16, 16, 16, 10),
        ),
        DeviceProfile(
            key="h200",
            name="NVIDIA H200",
            cc_major=9,
            cc_minor=0,
            sm_count=132,
            clock_khz=1_980_000,
            memory_clock_khz=3_201_000,
            memory_bus_bits=6016,
            memory_bytes=150_109_880_320,
            l2_bytes=62_914_560,
            persisting_l2_bytes=39_321_600,
            access_policy_window_bytes=134_217_728,
            gpc_sms=(18, 16, 16, 16, 16, 16, 16, 10),
        ),
        DeviceProfile(
            key="b200",
            name="NVIDIA B200",
            cc_major=10,
            cc_minor=0,
            sm_count=148,
            clock_khz=1_965_000,
            memory_clock_khz=3_996_000,
            memory_bus_bits=8192,
            memory_bytes=191_501_852_672,
            l2_bytes=132_644_864,
            persisting_l2_bytes=132_644_864 * 5 // 8,
            access_policy_window_bytes=128 << 20,
            gpc_sms=(20, 20, 18, 18, 18, 18, 18, 18),
        ),
    )
}


def device_profile(key: str) -> DeviceProfile:
    """Return a nominal profile: `h100`, `h200` or `b200`.

    Raises:
        UnknownNameError: if there is no such profile.
    """
    try:
        return _PROFILES[key]
    except KeyError:
        raise UnknownNameError(f"no device profile is named {key!r}; there are: {', '.join(_PROFILES)}") from None
