"""What moves the measured time of a kernel: `python benchmarks/timing_study.py [--budget-s 140] [--json FILE]`.

Times a kernel against itself and against another under one factor at a time: how many processes hold the pair, where
its buffers lie, the order inside a pair, warm-up, the L2 flush, and how long and how unequally the GPU rests between
calls. Needs torch, cuda-bindings, nvcc and a GPU of compute capability 9.0; nothing of ptxgym. `docs/timing.md` holds
what it showed on an H200.

The main process never touches the GPU: it has torch imported and forks *workers*, each with its own CUDA context, and
asks one of them at a time for one call (or, for the layout `stream`, for a run of pairs). A call is enqueued as
[L2 flush, event, kernel, event] with nothing between flush and kernel.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

ORACLE = Path(__file__).resolve().parents[1] / "tasks" / "gemm" / "solutions" / "h100" / "oracle.cu"
LARGE, SMALL = (8192, 7168, 5120), (2048, 2048, 2048)
FLUSH_BYTES = 256 << 20
SLOTS = 4
"""Physical copies of each tensor for the allocations `slots` and `fresh`."""
GRANULE = 2 << 20
RECIPE = struct.Struct("=cccc3iddi")
"""kernel, allocation, flush, verb; M, N, K; rest before in s, copies before, pairs or slot seed."""
ANSWER = struct.Struct("=dd")


# ------------------------------------------------------------------------------------------------------------- worker


@dataclass(frozen=True)
class Recipe:
    """One request to a worker."""

    kernel: str
    """`v`endor library or `o`racle."""
    shape: tuple[int, int, int]
    allocation: str = "m"
    """sa`m`e buffers, one of several prepared `s`lots, the same remapped to `f`resh addresses; `n`ew: allocate now."""
    flush: bool = True
    rest_s: float = 0.0
    """Idle time before the call."""
    copies: float = 0.0
    """256 MiB device copies just before the call."""
    seed: int = 0

    def pack(self, verb: bytes = b"c") -> bytes:
        flags = (self.kernel.encode(), self.allocation.encode(), b"1" if self.flush else b"0", verb)
        return RECIPE.pack(*flags, *self.shape, self.rest_s, self.copies, self.seed)


class Mapped:
    """Physical slots of one tensor that are mapped at a fresh address for each call, at the end of their mapping."""

    def __init__(self, content: Any) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self.shape, self.dtype = content.shape, content.dtype
        self.size_bytes = content.numel() * content.element_size()
        self.mapped_bytes = -(-self.size_bytes // GRANULE) * GRANULE
        place = driver.CUmemAllocationProp()
        place.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        place.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.location.id = 0
        self.access = driver.CUmemAccessDesc()
        self.access.location = place.location
        self.access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        self.handles = [self.checked(driver.cuMemCreate(self.mapped_bytes, place, 0)) for _ in range(SLOTS)]
        for slot in range(SLOTS):
            address, tensor = self.map(slot)
            tensor.copy_(content)
            torch.cuda.synchronize()
            self.unmap(address)

    def checked(self, answer: Any) -> Any:
        if answer[0] != self.driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"driver call failed: {answer[0]}")
        return answer[1] if len(answer) > 1 else None

    def map(self, slot: int) -> tuple[int, Any]:
        reserved = self.mapped_bytes + GRANULE
        hint = random.randrange(1 << 20, 1 << 24) * GRANULE
        address = int(self.checked(self.driver.cuMemAddressReserve(reserved, 0, hint, 0)))
        self.checked(self.driver.cuMemMap(address, self.mapped_bytes, 0, self.handles[slot], 0))
        self.checked(self.driver.cuMemSetAccess(address, self.mapped_bytes, [self.access], 1))
        start = (address + self.mapped_bytes - self.size_bytes) & ~511
        words = type("Words", (), {})()
        words.__cuda_array_interface__ = {
            "shape": (self.size_bytes // 2,),
            "typestr": "<i2",
            "data": (start, False),
            "version": 3,
        }
        return address, torch.as_tensor(words, device="cuda").view(self.dtype).view(self.shape)

    def unmap(self, address: int) -> None:
        self.checked(self.driver.cuMemUnmap(address, self.mapped_bytes))
        self.checked(self.driver.cuMemAddressFree(address, self.mapped_bytes + GRANULE))


class Worker:
    """One process with its own CUDA context: makes timed calls on request until the socket closes."""

    def __init__(self, library: str) -> None:
        torch.cuda.init()
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        self.oracle = ctypes.CDLL(library)
        self.flush = torch.empty(FLUSH_BYTES, device="cuda", dtype=torch.uint8)
        self.other = torch.empty(FLUSH_BYTES, device="cuda", dtype=torch.uint8)
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.sets: dict[Any, list[tuple[Any, ...]]] = {}
        self.mapped: dict[Any, tuple[Mapped, ...]] = {}

    def tensors(self, shape: tuple[int, int, int]) -> tuple[Any, ...]:
        m, n, k = shape
        generator = torch.Generator("cuda").manual_seed(m + n + k)
        a, b = (torch.randn(rows, k, device="cuda", generator=generator).to(torch.bfloat16) for rows in (m, n))
        return a, b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def kernel(self, name: str, a: Any, b: Any, c: Any) -> Callable[[], None]:
        if name == "v":
            return lambda: torch.matmul(a, b.T, out=c)
        m, k = a.shape
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c)]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        return lambda: self.oracle.run(*pointers, m, b.shape[0], k, stream)

    def buffers(self, recipe: Recipe) -> tuple[tuple[Any, ...], Callable[[], None]]:
        """Return the tensors of a call, and what to do after it."""
        if recipe.allocation == "n":
            self.sets.pop(recipe.shape, None)
            torch.cuda.empty_cache()
        if recipe.allocation == "f":
            if recipe.shape not in self.mapped:
                self.mapped[recipe.shape] = tuple(Mapped(tensor) for tensor in self.tensors(recipe.shape))
            places = [each.map((recipe.seed >> 2 * i) % SLOTS) for i, each in enumerate(self.mapped[recipe.shape])]

            def unmap() -> None:
                for each, (address, _) in zip(self.mapped[recipe.shape], places, strict=True):
                    each.unmap(address)

            return tuple(tensor for _, tensor in places), unmap
        wanted = SLOTS if recipe.allocation == "s" else 1
        have = self.sets.setdefault(recipe.shape, [])
        while len(have) < wanted:
            have.append(self.tensors(recipe.shape))
            torch.cuda.synchronize()
        chosen = recipe.seed % SLOTS if recipe.allocation == "s" else 0
        return have[chosen], lambda: None

    def enqueue(self, recipe: Recipe, function: Callable[[], None], start: Any, end: Any) -> None:
        for _ in range(int(recipe.copies)):
            self.other.copy_(self.flush)
        if recipe.flush:
            self.flush.zero_()
        start.record()
        function()
        end.record()

    def timed(self, recipe: Recipe) -> tuple[float, float]:
        """Return (event time in µs, wall time in µs around enqueueing and waiting)."""
        tensors, after = self.buffers(recipe)
        function = self.kernel(recipe.kernel, *tensors)
        if recipe.rest_s:
            time.sleep(recipe.rest_s)
        began = time.perf_counter()
        self.enqueue(recipe, function, self.start, self.end)
        self.end.synchronize()
        wall_us = (time.perf_counter() - began) * 1e6
        after()
        return self.start.elapsed_time(self.end) * 1e3, wall_us

    def pairs(self, first: Recipe, second: Recipe, order: str, count: int) -> list[tuple[float, float]]:
        """Time pairs back to back on one stream; waits only between pairs."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        tensors = self.buffers(first)[0]
        functions = [self.kernel(recipe.kernel, *tensors) for recipe in (first, second)]
        rows = []
        for index in range(count):
            for side in sides(order, index, count):
                self.enqueue((first, second)[side], functions[side], *events[2 * side : 2 * side + 2])
            torch.cuda.synchronize()
            rows.append((events[0].elapsed_time(events[1]) * 1e3, events[2].elapsed_time(events[3]) * 1e3))
        return rows

    def serve(self, link: socket.socket) -> None:
        while request := link.recv(RECIPE.size, socket.MSG_WAITALL):
            kernel, allocation, flush, verb, *rest = RECIPE.unpack(request)
            shape, (rest_s, copies, seed) = tuple(rest[:3]), rest[3:]
            recipe = Recipe(kernel.decode(), shape, allocation.decode(), flush == b"1", rest_s, copies, seed)
            if verb == b"c":
                link.sendall(ANSWER.pack(*self.timed(recipe)))
                continue
            second = Recipe(verb.decode(), shape, recipe.allocation, recipe.flush)
            for row in self.pairs(recipe, second, "random", seed):
                link.sendall(ANSWER.pack(*row))


def sides(order: str, index: int, count: int) -> tuple[int, int]:
    """Return the order of the two sides in one pair."""
    if order == "random":
        return random.choice(((0, 1), (1, 0)))
    return (0, 1) if order == "AB" or (order == "alternate" and index % 2 == 0) else (1, 0)


def fork_worker(library: str) -> socket.socket:
    """Start a worker; return the socket to it."""
    here, there = socket.socketpair()
    if os.fork() == 0:
        here.close()
        code = 1
        try:
            Worker(library).serve(there)
            code = 0
        except BaseException as error:
            print(f"worker: {error!r}", flush=True)
        finally:
            os._exit(code)
    there.close()
    return here


def ask(link: socket.socket, recipe: Recipe) -> tuple[float, float]:
    """Return (event µs, worker's wall µs) of one call."""
    link.sendall(recipe.pack())
    answer = link.recv(ANSWER.size, socket.MSG_WAITALL)
    if len(answer) < ANSWER.size:
        raise RuntimeError("a worker ended; its message is above")
    event_us, wall_us = ANSWER.unpack(answer)
    return event_us, wall_us


# -------------------------------------------------------------------------------------------------------------- study


@dataclass(frozen=True)
class Setup:
    """One configuration: side 0 is the baseline, side 1 the candidate; the ratio is baseline ÷ candidate."""

    name: str
    layout: str = "two"
    """`stream`: one process, pairs back to back; `one`: one process, call by call; `two`: two processes."""
    baseline: str = "v"
    candidate: str = "v"
    shape: tuple[int, int, int] = LARGE
    allocation: str = "m"
    order: str = "random"
    flush: bool = True
    warm_calls: int = 10
    idle_s: float = 0.0
    """Before each repeat."""
    rest_s: tuple[float, float] = (0.0, 0.0)
    """Before each call of (baseline, candidate)."""
    pace_s: float = 0.0
    """Least time from the start of one call to the start of the next, 0 for none."""
    copies: tuple[int, int] = (0, 0)
    repeats: int = 20
    pairs: int = 24
    new_each_repeat: bool = False
    each_process: bool = False
    """A candidate process of its own for each repeat."""


@dataclass
class Outcome:
    """Times in µs by repeat and pair."""

    setup: Setup
    rows: list[list[tuple[float, float]]] = field(default_factory=list)
    wall_s: float = 0.0
    slack_us: list[float] = field(default_factory=list)
    state: str = ""

    def ratios(self) -> list[float]:
        return [statistics.median(a / b for a, b in repeat) for repeat in self.rows]

    def line(self) -> str:
        ratios = self.ratios()
        middle = statistics.median(ratios)
        scatter = statistics.median(
            statistics.stdev(a / b for a, b in repeat) if len(repeat) > 1 else 0.0 for repeat in self.rows
        )
        times = [statistics.median(pair[side] for repeat in self.rows for pair in repeat) for side in (0, 1)]
        far = max(abs(ratio - middle) for ratio in ratios)
        pairs = sum(len(repeat) for repeat in self.rows)
        return (
            f"| {self.setup.name:46} | {times[0]:7.1f} | {times[1]:7.1f} | {middle:6.4f} | {min(ratios):6.4f} | "
            f"{max(ratios):6.4f} | {100 * far:5.2f} | {100 * scatter:5.2f} | {1e3 * self.wall_s / pairs:5.2f} | "
            f"{self.state} |"
        )


HEADER = (
    "| configuration | baseline µs | candidate µs | ratio | least | most | far % | pair σ % | ms/pair | MHz, W, °C |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def gpu_state() -> str:
    """Return clock, power and temperature, or nothing without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        clock = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
        power = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        return f"{clock}, {power:.0f}, {pynvml.nvmlDeviceGetTemperature(handle, 0)}"
    except Exception as error:
        return type(error).__name__


def gpu_name() -> str:
    """Return name and driver of the first GPU, as nvidia-smi prints them."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version,power.limit", "--format=csv,noheader", "--id=0"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def repeat_by_calls(setup: Setup, links: tuple[socket.socket, socket.socket], outcome: Outcome) -> None:
    """One repeat of a layout in which the main process asks for each call."""
    kernels = (setup.baseline, setup.candidate)
    base = [
        Recipe(kernels[side], setup.shape, setup.allocation, setup.flush, setup.rest_s[side], setup.copies[side])
        for side in (0, 1)
    ]
    if setup.new_each_repeat:
        for link in {id(link): link for link in links}.values():
            ask(link, replace(base[0], allocation="n"))
    last = 0.0

    def once(side: int) -> float:
        nonlocal last
        if setup.pace_s:
            while time.perf_counter() < last + setup.pace_s:
                pass
            last = time.perf_counter()
        began = time.perf_counter()
        event_us, _ = ask(links[side], replace(base[side], seed=random.getrandbits(30)))
        outcome.slack_us.append((time.perf_counter() - began) * 1e6 - event_us)
        return event_us

    if setup.idle_s:
        time.sleep(setup.idle_s)
    for index in range(setup.warm_calls):
        once(index % 2)
    if setup.order == "blocked":
        blocks = [[once(side) for _ in range(setup.pairs)] for side in (0, 1)]
        outcome.rows.append(list(zip(*blocks, strict=True)))
        return
    rows = []
    for index in range(setup.pairs):
        order = sides(setup.order, index, setup.pairs)
        timed = {side: once(side) for side in order}
        rows.append((timed[0], timed[1]))
    outcome.rows.append(rows)


def repeat_on_stream(setup: Setup, link: socket.socket, outcome: Outcome) -> None:
    """One repeat in one process without a host gap inside a pair."""
    count = setup.pairs + setup.warm_calls // 2
    recipe = Recipe(setup.baseline, setup.shape, setup.allocation, setup.flush, seed=count)
    link.sendall(recipe.pack(setup.candidate.encode()))
    rows = [ANSWER.unpack(link.recv(ANSWER.size, socket.MSG_WAITALL)) for _ in range(count)]
    outcome.rows.append(rows[setup.warm_calls // 2 :])


def measure(setup: Setup, links: list[socket.socket]) -> Outcome:
    """Run one configuration; workers 0 and 1 hold the pair, the others are candidates of their own."""
    outcome = Outcome(setup)
    random.seed(setup.name)
    judge = links[0]
    for link in links if setup.each_process else links[:2]:  # first touch: allocation, library handles
        for kernel in {setup.baseline, setup.candidate}:
            ask(link, Recipe(kernel, setup.shape, setup.allocation))
    began = time.perf_counter()
    for repeat in range(setup.repeats):
        if setup.layout == "stream":
            repeat_on_stream(setup, judge, outcome)
            continue
        own = links[2 + repeat % (len(links) - 2)] if setup.each_process else links[1]
        repeat_by_calls(setup, (judge, judge if setup.layout == "one" else own), outcome)
    outcome.wall_s = time.perf_counter() - began
    outcome.state = gpu_state()
    return outcome


KERNELS = {"cuBLAS/cuBLAS": ("v", "v"), "oracle/oracle": ("o", "o"), "cuBLAS/oracle": ("v", "o")}


def plan_of_study() -> list[Setup]:
    """Return the configurations, the most telling first."""
    setups = []

    def add(kernels: str, detail: str, **changes: Any) -> None:
        baseline, candidate = KERNELS[kernels]
        layout = changes.get("layout", "two")
        size = "2048³ " if changes.get("shape") == SMALL else ""
        name = f"{size}{kernels}, {layout}{', ' if detail else ''}{detail}"
        setups.append(Setup(name, baseline=baseline, candidate=candidate, **changes))

    for kernels in KERNELS:
        for layout in ("stream", "one", "two"):
            add(kernels, "", layout=layout)
    for kernels in ("cuBLAS/cuBLAS", "cuBLAS/oracle"):
        for layout in ("stream", "one", "two"):
            add(kernels, "", layout=layout, shape=SMALL)
    for kernels in KERNELS:
        add(kernels, "4 slots", allocation="s")
        add(kernels, "fresh addresses", allocation="f")
    add("cuBLAS/oracle", "fresh addresses", layout="one", allocation="f")
    for kernels in ("cuBLAS/cuBLAS", "cuBLAS/oracle"):
        add(kernels, "new buffers each repeat", new_each_repeat=True)
    for order in ("AB", "BA", "alternate", "blocked"):
        add("cuBLAS/cuBLAS", f"order {order}", order=order)
    add("cuBLAS/oracle", "order AB", order="AB")
    add("cuBLAS/oracle", "order BA", order="BA")
    for baseline_ms, candidate_ms in ((0, 0.5), (0, 2), (2, 2), (0, 5), (5, 5)):
        rest = (baseline_ms / 1e3, candidate_ms / 1e3)
        add("cuBLAS/cuBLAS", f"rest {baseline_ms} and {candidate_ms} ms", rest_s=rest, repeats=10)
    add("cuBLAS/oracle", "rest 2 and 2 ms", rest_s=(0.002, 0.002), repeats=10)
    add("cuBLAS/oracle", "rest 5 and 5 ms", rest_s=(0.005, 0.005), repeats=10)
    add("cuBLAS/cuBLAS", "rest 0 and 2 ms, pace 4 ms", rest_s=(0, 0.002), pace_s=0.004, repeats=10)
    add("cuBLAS/cuBLAS", "copies 0 and 4", copies=(0, 4), repeats=10)
    add("cuBLAS/cuBLAS", "copies 4 and 4", copies=(4, 4), repeats=10)
    for warm in (0, 5, 30):
        add("cuBLAS/cuBLAS", f"idle 0.3 s, {warm} warm calls", warm_calls=warm, idle_s=0.3, repeats=10)
    add("cuBLAS/oracle", "idle 0.3 s, 0 warm calls", warm_calls=0, idle_s=0.3, repeats=10)
    add("cuBLAS/cuBLAS", "no flush", flush=False)
    add("cuBLAS/oracle", "no flush", flush=False)
    add("cuBLAS/cuBLAS", "no flush", flush=False, shape=SMALL)
    add("cuBLAS/cuBLAS", "fresh addresses", allocation="f", shape=SMALL)
    for kernels in KERNELS:
        add(kernels, "a process each repeat", each_process=True)
    for kernels in KERNELS:
        add(kernels, "the same processes again", each_process=True)
    add("cuBLAS/oracle", "again, last", layout="two")
    return setups


def compile_oracle(folder: str) -> str:
    """Compile the oracle to a shared library; return its path."""
    library = f"{folder}/oracle.so"
    gencode = "arch=compute_90a,code=sm_90a"
    command = ["nvcc", "-std=c++17", "-O3", "-gencode", gencode, "-shared", "-Xcompiler", "-fPIC", str(ORACLE)]
    subprocess.run([*command, "-o", library, "-lcuda"], check=True)
    return library


def main() -> None:
    """Run the study and print one table; configurations that the time budget does not reach are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget-s", type=float, default=140.0, help="start no configuration after this")
    parser.add_argument("--json", type=Path, help="write every single time there")
    parser.add_argument("--only", default="", help="configurations whose name holds this text")
    options = parser.parse_args()
    began = time.perf_counter()
    setups = [setup for setup in plan_of_study() if options.only in setup.name]
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        library = compile_oracle(folder)
        links = [fork_worker(library) for _ in range(2)]
        print(f"torch {torch.__version__}, {gpu_name()}\n\n{HEADER}", flush=True)
        for setup in setups:
            if time.perf_counter() - began > options.budget_s:
                print(f"not reached: {setup.name}")
                continue
            if setup.each_process and len(links) == 2:
                links += [fork_worker(library) for _ in range(20)]
            try:
                outcomes.append(measure(setup, links))
                print(outcomes[-1].line(), flush=True)
            except (RuntimeError, ConnectionError) as error:
                print(f"failed: {setup.name}: {error}", flush=True)
                links = [fork_worker(library) for _ in range(2)]
        for link in links:
            link.close()
    slack = sorted(value for outcome in outcomes if not outcome.setup.rest_s[1] for value in outcome.slack_us)
    if slack:
        least, middle, most = slack[0], slack[len(slack) // 2], slack[len(slack) * 99 // 100]
        print(
            f"\nwall time of a call as the main process sees it, minus its event time: least {least:.0f} µs, ", end=""
        )
        print(f"median {middle:.0f} µs, 99 % {most:.0f} µs")
    print(f"seconds: {time.perf_counter() - began:.0f}")
    if options.json:
        rows = [{"name": each.setup.name, "rows": each.rows, "wall_s": each.wall_s} for each in outcomes]
        options.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
