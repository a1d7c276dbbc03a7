"""Merging of recordings, on made-up bytes: what was planted is found, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.plan.events import RawBuffer, RawMemset, RawUpload, Recording
from ptxgym.plan.merge import NotAPlan, _differs, _paired, _same, merge, tensor_map_tag
from ptxgym.plan.model import BufferRef, PointerRef, TensorMapRef, Upload
from ptxgym.plan.module import Module

SIZES = {"A": 4096, "B": 100, "workspace0": 1 << 20}
BASES = ({"A": 0x1000_0040_0200, "B": 0x1000_0080_0200, "workspace0": 0x1000_00C0_0200},
         {"A": 0x2B5A_6D00_0200, "B": 0x2B5A_6DA0_0200, "workspace0": 0x2B5A_6E60_0200})  # fmt: skip


def recording(which: int, data: bytes) -> Recording:
    """A recording with one upload of `data` to the workspace."""
    result = Recording(started=True, ended=True)
    for name, size in SIZES.items():
        role = "workspace" if name.startswith("work") else "argument"
        raw = {"event": "buffer", "name": name, "role": role, "address": BASES[which][name], "bytes": size,
               "in_stream_order": False}  # fmt: skip
        result.buffers.append(RawBuffer.model_validate(raw))
    target = BASES[which]["workspace0"]
    upload = {"event": "upload", "target": target, "data": data.hex(), "stream": 0,
              "host_waits": False}  # fmt: skip
    result.ordered.append(RawUpload.model_validate(upload))
    return result


def merged(one: bytes, two: bytes) -> Upload:
    """Merge two uploads."""
    result = merge(recording(0, one), recording(1, two), {"A": "input", "B": "output"}, Module(""))
    (operation,) = result.operations
    assert isinstance(operation, Upload)
    return operation


def without_tag(data: bytes) -> bool:
    """The tag of tensor maps is the one text that is no literal."""
    return b"ptxgymTM" not in data


@st.composite
def planted(draw: st.DrawFn) -> tuple[bytes, bytes, dict[int, tuple[str, int]]]:
    """Literal bytes with pointers at places that are multiples of four."""
    literal = draw(st.binary(min_size=8, max_size=160).filter(without_tag))
    one, two = bytearray(literal), bytearray(literal)
    pointers: dict[int, tuple[str, int]] = {}
    at = 4 * draw(st.integers(0, 3))
    while at + 8 <= len(one):
        name = draw(st.sampled_from(sorted(SIZES)))
        offset = draw(st.integers(0, SIZES[name]))
        for which, data in enumerate((one, two)):
            data[at : at + 8] = (BASES[which][name] + offset).to_bytes(8, "little")
        pointers[at] = (name, offset)
        at += 8 + 4 * draw(st.integers(0, 6))
    return bytes(one), bytes(two), pointers


@given(planted())
def test_planted_pointers_are_found(case: tuple[bytes, bytes, dict[int, tuple[str, int]]]) -> None:
    one, two, pointers = case
    blob = merged(one, two).data
    found = {ref.at: (ref.target.buffer, ref.target.offset) for ref in blob.refs if isinstance(ref, PointerRef)}
    assert found == pointers
    literal = bytearray(one)
    for at in pointers:
        literal[at : at + 8] = bytes(8)
    assert blob.raw == bytes(literal)


@given(st.binary(min_size=1, max_size=200).filter(without_tag))
def test_equal_bytes_are_literal(data: bytes) -> None:
    blob = merged(data, data).data
    assert blob.raw == data and blob.refs == ()


@given(planted(), st.data())
def test_any_other_difference_is_refused(
    case: tuple[bytes, bytes, dict[int, tuple[str, int]]], data: st.DataObject
) -> None:
    one, two, pointers = case
    free = [i for i in range(len(one)) if not any(at <= i < at + 8 for at in pointers)]
    if not free:
        return
    at = data.draw(st.sampled_from(free))
    changed = bytearray(two)
    changed[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(NotAPlan) as raised:
        merged(one, bytes(changed))
    assert raised.value.code == "plan.not_deterministic"
    assert f"byte {at} of operation 0" in raised.value.message


def test_values_that_differ_are_not_told_since_they_would_differ_each_time() -> None:
    messages = set()
    for values in ((33, 103), (36, 116)):
        one, two = (
            RawMemset.model_validate(
                {"event": "memset", "target": 0, "value": value, "width_bytes": 1, "count": 64, "stream": 0}
            )
            for value in values
        )
        with pytest.raises(NotAPlan) as raised:
            _same(one, two, {"target"}, "operation 0 (memset)")
        messages.add(raised.value.message)
        with pytest.raises(NotAPlan) as raised:
            _paired("operation", range(values[0]), range(values[1]))
        messages.add(raised.value.message)
    said = {_differs("value of operation 0 (memset)").message, _differs("the number of operations").message}
    assert messages == said


@given(st.sampled_from(sorted(SIZES)), st.integers(-(1 << 19), 1 << 21))
def test_pointers_stay_inside_their_buffer(name: str, offset: int) -> None:
    words = [(bases[name] + offset).to_bytes(8, "little") for bases in BASES]
    if 0 <= offset <= SIZES[name]:
        assert merged(*words).data.refs == (PointerRef(at=0, target=BufferRef(buffer=name, offset=offset)),)
    else:
        with pytest.raises(NotAPlan) as raised:
            merged(*words)
        assert raised.value.code == "plan.pointer_out_of_bounds" and name in raised.value.message


@pytest.mark.parametrize("take", [slice(0, 4), slice(4, 8)], ids=["low", "high"])
def test_half_a_pointer_is_refused(take: slice) -> None:
    halves = [bases["A"].to_bytes(8, "little")[take] for bases in BASES]
    with pytest.raises(NotAPlan, match="depends on addresses"):
        merged(*halves)


def test_a_difference_of_pointers_is_refused() -> None:
    distances = [(bases["B"] - bases["A"]).to_bytes(8, "little") for bases in BASES]
    with pytest.raises(NotAPlan, match="depends on addresses"):
        merged(*distances)


def test_tensor_maps_in_an_upload() -> None:
    from ptxgym.plan.events import RawTensorMap

    data = bytes(64) + tensor_map_tag(1) + tensor_map_tag(0)
    pair = [recording(which, data) for which in (0, 1)]
    for which, one in enumerate(pair):
        for _ in range(2):
            raw = {"event": "tensor_map", "data_type": "UINT8", "address": BASES[which]["A"], "global_dim": [16],
                   "global_strides_bytes": [], "box_dim": [16], "element_strides": [1], "interleave": "NONE",
                   "swizzle": "NONE", "l2_promotion": "NONE", "oob_fill": "NONE"}  # fmt: skip
            one.tensor_maps.append(RawTensorMap.model_validate(raw))
    (upload,) = merge(*pair, {"A": "input", "B": "output"}, Module("")).operations
    assert isinstance(upload, Upload)
    assert upload.data.refs == (TensorMapRef(at=64, index=1), TensorMapRef(at=192, index=0))
    assert upload.data.raw == bytes(len(data))


@pytest.mark.parametrize("data", [tensor_map_tag(0)[:64], b"\1" + tensor_map_tag(0)[1:], tensor_map_tag(9)])
def test_part_of_a_tensor_map_is_refused(data: bytes) -> None:
    if not data.startswith(b"ptxgymTM"):
        assert merged(data, data).data.refs == ()  # without its tag it is any literal
        return
    with pytest.raises(NotAPlan) as raised:
        merged(data, data)
    assert raised.value.code == "plan.partial_tensor_map"


def test_buffers_of_other_sizes_are_refused() -> None:
    second = recording(1, b"x")
    second.buffers[1] = second.buffers[1].model_copy(update={"bytes": 101})
    with pytest.raises(NotAPlan, match="allocation B"):
        merge(recording(0, b"x"), second, {}, Module(""))
