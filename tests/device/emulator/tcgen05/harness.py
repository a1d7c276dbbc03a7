"""Run tcgen05 kernels on the emulator's core: PTX that is written here, one module per kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ptxgym import native
from ptxgym.device.emulator.core import Core, LaunchOutcome, LaunchShape, Outcome, PlacedBuffer, Program
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.findings import RECORD_DTYPE

HEAD = ".version 9.0\n.target sm_100a\n.address_size 64\n"
IN, OUT = 0x1000_0000_0000, 0x1000_1000_0000
SCHEDULES = ("fair", "lazy", "random")
LANES, COLUMNS = 128, 512
DATA = 2048
"""Shared address (from the start of dynamic memory) of what tests copy in: a multiple of 1024 with the 1 KiB that the
emulator reserves."""


@dataclass(frozen=True)
class Run:
    """What one launch came to."""

    output: NDArray[np.uint8]
    launch: LaunchOutcome

    @property
    def ok(self) -> bool:
        return self.launch.outcome is Outcome.OK

    def codes(self, severity: int = 1) -> set[str]:
        """Codes of findings of at least this severity (2 error, 1 warning, 0 note)."""
        records = np.frombuffer(self.launch.records, RECORD_DTYPE)
        return {record["code"].decode() for record in records if record["severity"] >= severity}

    def message(self, code: str) -> str:
        """All messages of findings of a kind."""
        records = np.frombuffer(self.launch.records, RECORD_DTYPE)
        return "\n".join(record["message"].decode() for record in records if record["code"].decode() == code)

    def words(self, *shape: int) -> NDArray[np.uint32]:
        return self.output.view(np.uint32).reshape(shape)


@dataclass
class Body:
    """The text of a kernel, with what the tests say often."""

    lines: list[str] = field(default_factory=list)
    _labels: int = 0

    def add(self, text: str) -> Body:
        self.lines += [line.strip() for line in text.strip().splitlines()]
        return self

    def thread(self, number: int, text: str) -> Body:
        """`text` in one thread, the others waiting for it at a barrier."""
        self._labels += 1
        label = f"SKIP{self._labels}"
        self.add(f"setp.ne.u32 q, tid, {number};\n@q bra {label};\n{text}\n{label}:")
        return self.sync()

    def warp(self, number: int, text: str) -> Body:
        """`text` in one warp."""
        self._labels += 1
        label = f"SKIP{self._labels}"
        return self.add(f"setp.ne.u32 q, warp, {number};\n@q bra {label};\n{text}\n{label}:")

    def sync(self) -> Body:
        return self.add("bar.sync 0;")

    def fenced_sync(self) -> Body:
        """A barrier that orders what touches tensor memory, too."""
        return self.add("tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;")

    def wait(self, barrier: str = "mbar", parity: int = 0) -> Body:
        self._labels += 1
        return self.add(
            f"WAIT{self._labels}:\nmbarrier.try_wait.parity.shared::cta.b64 q, [{barrier}], {parity};\n"
            f"@!q bra WAIT{self._labels};"
        )

    def text(self) -> str:
        return "\n".join(self.lines)


PROLOGUE = """
ld.param.u64 from, [input];
ld.param.u64 to, [output];
mov.u32 tid, %tid.x;
shr.u32 warp, tid, 5;
mov.u32 base, dynamic;
add.u32 mbar, base, 8;
add.u32 mbar2, base, 16;
add.u32 slot, base, 32;
add.u32 data, base, 2048;
shl.b32 rowbits, warp, 21;
"""
START = """
mbarrier.init.shared::cta.b64 [mbar], 1;
mbarrier.init.shared::cta.b64 [mbar2], 1;
fence.mbarrier_init.release.cluster;
"""


def allocated(columns: int = COLUMNS) -> Body:
    """A kernel's beginning: barriers, tensor memory in `tmem`."""
    body = Body().add(PROLOGUE)
    body.thread(0, START)
    body.warp(0, f"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], {columns};")
    return body.fenced_sync().add("ld.shared.u32 tmem, [slot];")


def freed(body: Body, columns: int = COLUMNS) -> Body:
    """A kernel's end."""
    body.fenced_sync()
    return body.warp(0, f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 tmem, {columns};")


def copy_in(size: int) -> str:
    """Copy `size` bytes of the input to shared memory at `data`, by all threads, for the async proxy to see."""
    return f"""
mul.wide.u32 off, tid, 16;
add.u64 cursor, from, off;
shl.b32 r0, tid, 4;
add.u32 place, data, r0;
mov.u32 r1, {size};
COPY:
setp.ge.u32 q, r0, r1;
@q bra COPIED;
ld.global.v4.b32 {{r4, r5, r6, r7}}, [cursor];
st.shared.v4.b32 [place], {{r4, r5, r6, r7}};
add.u64 cursor, cursor, 2048;
add.u32 place, place, 2048;
add.u32 r0, r0, 2048;
bra COPY;
COPIED:
fence.proxy.async.shared::cta;
"""


def dump(columns: int, first: int = 0) -> str:
    """Write columns of all 128 lanes to the output: [lane][column] words, one thread per lane."""
    lines = [f"mul.wide.u32 off, tid, {4 * columns};", "add.u64 cursor, to, off;", "add.u32 r0, tmem, rowbits;"]
    for column in range(0, columns, 8):
        names = [f"r{4 + i}" for i in range(8)]
        lines += [
            f"add.u32 r1, r0, {first + column};",
            f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{', '.join(names)}}}, [r1];",
            "tcgen05.wait::ld.sync.aligned;",
            *(f"st.global.u32 [cursor+{4 * (column + i)}], {name};" for i, name in enumerate(names)),
        ]
    return "\n".join(lines)


def fill(columns: int, value: str = "mad.lo.u32 {r}, tid, 65536, {c};") -> str:
    """Store to columns of all lanes: lane << 16 | column, unless `value` says otherwise."""
    lines = ["add.u32 r0, tmem, rowbits;"]
    for column in range(0, columns, 8):
        names = [f"r{4 + i}" for i in range(8)]
        lines += [value.format(r=name, c=column + i) for i, name in enumerate(names)]
        lines += [
            f"add.u32 r1, r0, {column};",
            f"tcgen05.st.sync.aligned.32x32b.x8.b32 [r1], {{{', '.join(names)}}};",
        ]
    return "\n".join([*lines, "tcgen05.wait::st.sync.aligned;"])


def module(body: str) -> str:
    """One entry `k` around a body."""
    return f"""{HEAD}.extern .shared .align 1024 .b8 dynamic[];
.visible .entry k(.param .u64 input, .param .u64 output, .param .align 64 .b8 map[128])
{{
.reg .b64 from, to, cursor, off, da, db;
.reg .b32 tid, warp, base, mbar, mbar2, slot, data, tmem, rowbits, place, rank, other;
.reg .b32 r<160>;
.reg .b16 h<4>;
.reg .pred p, q, q2;
{body}
ret;
}}
"""


@lru_cache(maxsize=1)
def core() -> Core:
    return Core(native.library("emulator"))


@lru_cache(maxsize=512)
def _program(text: str) -> Program:
    return core().load(DecodedModule.parse(module(text), "k").kernel("k"))


def run(
    body: Body | str,
    data: bytes = b"",
    *,
    out_bytes: int = 16,
    threads: int = 128,
    schedule: str = "fair",
    seed: int = 0,
    zero: bool = False,
    ctas: int = 1,
    tensor_map: bytes = bytes(128),
    apart: bool = False,
    host_threads: int = 1,
) -> Run:
    """Launch one CTA, or a cluster of several, or several `apart`; `data` is the input, `tensor_map` a parameter."""
    source = np.frombuffer(data.ljust(16, b"\0"), np.uint8).copy()
    output = np.full(max(out_bytes, 16), 0xEE, np.uint8)
    shape = LaunchShape(
        grid=(ctas, 1, 1),
        cluster=(ctas, 1, 1) if ctas > 1 and not apart else None,
        threads=host_threads,
        block=(threads, 1, 1),
        dynamic_smem_bytes=DATA + 200 * 1024,
        schedule=schedule,
        seed=seed,
        zero_target_results=zero,
        warp_instruction_budget=10_000_000,
    )
    buffers = [PlacedBuffer("in", IN, source, is_input=True), PlacedBuffer("out", OUT, output)]
    params = (IN.to_bytes(8, "little") + OUT.to_bytes(8, "little")).ljust(64, b"\0") + tensor_map
    text = body if isinstance(body, str) else body.text()
    return Run(output[:out_bytes], _program(text).launch(shape, buffers, params))
