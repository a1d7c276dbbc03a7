"""How plans become jobs: order, set-up, programmatic launches, the module's writable memory, the wire."""

from __future__ import annotations

import socket
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.build import Build, build
from ptxgym.device.cuda import wire
from ptxgym.device.cuda.job import Order, orders
from ptxgym.device.cuda.job_cubin import Variable, uses_device_heap, variables
from ptxgym.plan.model import Copy, Launch, Memset, Operation, Upload

from .harness import cubin, launch, literal, ref

KERNEL = """
#include <cstdio>
__device__ int plain;
static __device__ int hidden[5] = {1, 2, 3};
namespace { __device__ float unnamed; }
__constant__ int constants[4];
__managed__ int managed;
__global__ void k(int* p, int i) {
  static __device__ int inner;
  inner++; plain++; hidden[i] += constants[i]; unnamed += 1; p[0] = hidden[1] + managed++;
  asm volatile(".global .u32 sneaky;\\n\\t{ .reg .u32 r; ld.global.u32 r, [sneaky]; add.u32 r, r, 1; st.global.u32 [sneaky], r; }");
}
extern "C" void run(int* p, int i, cudaStream_t stream) { k<<<1, 1, 0, stream>>>(p, i); }
"""  # noqa: E501


def test_variables_of_a_real_cubin() -> None:
    made = build(KERNEL, declaration='extern "C" void run(int* p, int i, cudaStream_t stream)', arch="sm_90a")
    assert isinstance(made, Build), made
    found = variables(made.cubin.read_bytes())
    starts = {"plain": True, "hidden": False, "unnamed": True, "inner": True, "sneaky": True, "constants": False,
              "managed": True}  # fmt: skip
    for part, zeros in starts.items():
        assert [variable.zeros for variable in found if part in variable.name] == [zeros], part
    assert len(found) == len(starts)


@pytest.mark.parametrize(
    ("statement", "uses"),
    [
        ("p[0] = *static_cast<int*>(malloc(64));", True),
        ("p[0] = *new int;", True),
        ("p[0] = *static_cast<int*>(__nv_aligned_device_malloc(64, 64));", True),
        ("p[0] = i;", False),
        ('printf("%d", i);', False),
        ("int malloc = i; p[0] = malloc;", False),
    ],
)
def test_use_of_the_devices_heap_is_seen(statement: str, uses: bool) -> None:
    text = f"""#include <cstdio>
        __global__ void k(int* p, int i) {{ {statement} }}
        extern "C" void run(int* p, int i, cudaStream_t stream) {{ k<<<1, 1, 0, stream>>>(p, i); }}"""
    made = build(text, declaration='extern "C" void run(int* p, int i, cudaStream_t stream)', arch="sm_90a")
    assert isinstance(made, Build), made
    assert uses_device_heap(made.cubin.read_bytes()) is uses


def test_variables_of_other_files() -> None:
    assert variables(cubin({".text": (8, [("k", 0, 8, 0)])})) == ()
    image = cubin({".nv.global": (8, [("a", 4, 4, 0), ("empty", 8, 0, 0)]), ".nv.constant3": (4, [])})
    assert variables(image) == (Variable("a", True), Variable(".nv.constant3", False))
    with pytest.raises(ValueError, match="ELF"):
        variables(b"// PTX")
    with pytest.raises(ValueError, match="damaged"):
        variables(image[:-80])


@given(st.binary(max_size=400))
def test_no_bytes_after_an_elf_magic_break_the_reader(rest: bytes) -> None:
    try:
        variables(b"\x7fELF\x02\x01" + rest)
    except ValueError:
        return


def upload(buffer: str, offset: int, size: int) -> Upload:
    return Upload(target=ref(buffer, offset), data=literal(0, size))


def setups(*operations: Operation) -> list[bool]:
    return [order.setup for order in orders(operations)]


def test_uploads_are_set_up_unless_something_before_them_matters() -> None:
    early = upload("W", 8, 8)
    kernel = launch("k")
    assert setups(early, kernel, early) == [True, False, False]
    assert setups(Memset(target=ref("W"), value=0, width_bytes=4, count=2), early) == [False, True]
    assert setups(Memset(target=ref("W"), value=0, width_bytes=4, count=3), early) == [False, False]
    assert setups(Memset(target=ref("V"), value=0, width_bytes=4, count=9), early) == [False, True]
    assert setups(Copy(target=ref("V"), source=ref("W", 15), size_bytes=1), early) == [False, False]
    assert setups(Copy(target=ref("V"), source=ref("W", 16), size_bytes=1), early) == [False, True]
    assert setups(early, early) == [True, True]


@given(st.lists(st.tuples(st.sampled_from("lmu"), st.integers(0, 2), st.booleans()), max_size=12), st.data())
def test_waits_and_programmatic_launches(kinds: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    operations: list[Operation] = []
    for index, (kind, stream, programmatic) in enumerate(kinds):
        earlier = data.draw(st.sets(st.integers(0, max(index - 1, 0)), max_size=2)) if index else set()
        common = {"stream": stream, "after": tuple(sorted(earlier))}
        if kind == "l":
            operations.append(launch("k", programmatic=programmatic, **common))
        elif kind == "m":
            operations.append(Memset(target=ref("V"), value=0, width_bytes=1, count=1, **common))
        else:
            operations.append(upload("W", 0, 4).model_copy(update=common))
    found = orders(operations)
    crossing = {earlier for order in found for earlier in order.after}
    for index, (operation, order) in enumerate(zip(operations, found, strict=True)):
        for earlier in operation.after:
            awaited = earlier in order.after
            assert awaited == (operations[earlier].stream != operation.stream and not found[earlier].setup)
        assert before_each(operations, found)[index] == before_each(operations)[index] - {
            i for i, other in enumerate(found) if other.setup
        }
        before = [i for i in range(index) if operations[i].stream == operation.stream and not found[i].setup]
        if order.programmatic:
            assert isinstance(operation, Launch)
            assert operation.programmatic
            assert isinstance(operations[before[-1]], Launch)
            assert before[-1] not in crossing
        elif isinstance(operation, Launch) and operation.programmatic and before and not order.after:
            assert not isinstance(operations[before[-1]], Launch) or before[-1] in crossing


def before_each(operations: list[Operation], found: tuple[Order, ...] | None = None) -> list[set[int]]:
    """What is over before each operation: by the plan, or as it is replayed."""
    behind: list[set[int]] = []
    for index, operation in enumerate(operations):
        direct = set(found[index].after if found else operation.after)
        direct |= {
            i for i in range(index) if operations[i].stream == operation.stream and not (found and found[i].setup)
        }
        behind.append(direct.union(*(behind[i] for i in direct)))
    return behind


def test_what_waits_for_a_set_up_upload_waits_for_what_that_one_waited_for() -> None:
    clear = Memset(target=ref("V"), value=0, width_bytes=1, count=1, stream=3)
    constants = upload("W", 0, 4)
    behind_it = constants.model_copy(update={"after": (0,)})
    beside_it = constants.model_copy(update={"stream": 3})
    assert [o.after for o in orders([clear, behind_it, launch("k")])] == [(), (0,), (0,)]
    assert [o.after for o in orders([clear, beside_it, launch("k", after=(1,))])] == [(), (), (0,)]


def test_frames_keep_numbers_texts_and_their_ends() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        out = wire.Writer().numbers("IBQ", 7, 1, 1 << 40).text("µs")
        out.items([3, 4], lambda number: out.numbers("H", number))
        theirs.sendall(struct.pack("<QII", len(out.body), wire.Answer.CALLED, 0) + out.body)
        kind, body = wire.receive(ours)
        assert kind is wire.Answer.CALLED
        assert body.numbers("IBQ") == (7, 1, 1 << 40)
        assert body.text() == "µs"
        assert body.numbers("IHH") == (2, 3, 4)
        body.end()
        with pytest.raises(ValueError, match="ends early"):
            body.numbers("B")
        theirs.sendall(struct.pack("<QII", wire.MAX_ANSWER_BYTES + 1, wire.Answer.CALLED, 0))
        with pytest.raises(ValueError, match="announces"):
            wire.receive(ours)
        theirs.sendall(struct.pack("<QII", 0, 99, 0))
        with pytest.raises(ValueError, match="99"):
            wire.receive(ours)
        theirs.close()
        with pytest.raises(EOFError):
            wire.receive(ours)


def test_an_answer_in_many_pieces_has_the_same_time_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    frame = struct.pack("<QII", 40, wire.Answer.CALLED, 0) + bytes(40)
    ended = threading.Event()

    def drip() -> None:
        for at in range(len(frame)):
            if ended.wait(0.05):
                return
            theirs.sendall(frame[at : at + 1])

    with ours, theirs:
        ours.settimeout(0.5)
        dripping = threading.Thread(target=drip)
        dripping.start()
        with pytest.raises(TimeoutError):
            wire.receive(ours)
        ended.set()
        dripping.join()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        for at in range(len(frame)):  # the control: as many pieces, in time
            theirs.sendall(frame[at : at + 1])
        kind, body = wire.receive(ours)
        assert kind is wire.Answer.CALLED and body.numbers("5Q") == (0,) * 5


def test_a_body_with_more_than_was_read_is_refused() -> None:
    body = wire.Reader(b"\1\0\0\0x?")
    assert body.text() == "x"
    with pytest.raises(ValueError, match="1 bytes are left over"):
        body.end()
