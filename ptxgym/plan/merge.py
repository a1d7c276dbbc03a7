"""Two recordings of the same host code become one plan: what differs by the shift of a buffer is a reference to it.

Every buffer lies at another distance from its neighbours in the second recording, so that each has a shift of its own:
a pointer names its buffer by the shift alone, and a difference of two pointers, or half of one, does not pass for a
literal.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ptxgym.plan.events import (
    Ordered,
    RawBuffer,
    RawCopy,
    RawFree,
    RawFunction,
    RawLaunch,
    RawMemset,
    RawOrder,
    RawTensorMap,
    RawUpload,
    Recording,
    dim3,
)
from ptxgym.plan.model import (
    Blob,
    Buffer,
    BufferRef,
    Copy,
    FunctionAttributes,
    Launch,
    Memset,
    Operation,
    PointerRef,
    Ref,
    TensorMap,
    TensorMapRef,
    Upload,
)
from ptxgym.plan.module import Module

TENSOR_MAP_BYTES = 128
_POINTER_BYTES = 8
MAX_REFERENCES = 65536
"""Pointers in all uploads of a call."""
_TAG = b"ptxgymTM"  # as in native/recorder/tensor_map.cpp
_WORD = 1 << 64
T = TypeVar("T")
_ADVICE = "host code depends on addresses, time or randomness; compute everything from the arguments of `run`"


class NotAPlan(Exception):
    """Raised when two recordings make no plan; `record` turns it into a `Failure`."""

    def __init__(self, code: str, message: str, operation: int | None = None) -> None:
        """Keep the code beside the message, and at which operation it came up."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.operation = operation


@dataclass(frozen=True)
class Merged:
    """The parts of a plan that come from the recordings."""

    buffers: tuple[Buffer, ...]
    tensor_maps: tuple[TensorMap, ...]
    functions: tuple[FunctionAttributes, ...]
    operations: tuple[Operation, ...]


def merge(first: Recording, second: Recording, roles: Mapping[str, str], module: Module) -> Merged:
    """Merge two recordings at different bases.

    Args:
        first: One recording.
        second: The other.
        roles: `input` or `output` of every argument, by name.
        module: The build's PTX.

    Raises:
        NotAPlan: if they differ in anything but the addresses of buffers, or point outside buffers.
    """
    return _Merger(first, second, module).merge(roles)


def joined(one: Merged, two: Merged, names: Mapping[str, str]) -> Merged:
    """Return two calls of one process as one: the operations of `one`, then those of `two`.

    Args:
        one: What an earlier call asked for.
        two: What a later one did, over all buffers and tensor maps up to then.
        names: New names of buffers.
    """

    def place(ref: BufferRef) -> BufferRef:
        return ref.model_copy(update={"buffer": names.get(ref.buffer, ref.buffer)})

    def blob(data: Blob) -> Blob:
        refs = tuple(
            ref.model_copy(update={"target": place(ref.target)}) if isinstance(ref, PointerRef) else ref
            for ref in data.refs
        )
        return data.model_copy(update={"refs": refs})

    def operation(each: Operation, shift: int) -> Operation:
        changes: dict[str, object] = {"after": tuple(earlier + shift for earlier in each.after)}
        match each:
            case Launch():
                changes["params"] = tuple(map(blob, each.params))
            case Upload():
                changes |= {"target": place(each.target), "data": blob(each.data)}
            case Memset():
                changes["target"] = place(each.target)
            case Copy():
                changes |= {"target": place(each.target), "source": place(each.source)}
        return each.model_copy(update=changes)

    buffers = {each.name: each for each in (*two.buffers, *one.buffers)}
    return Merged(
        buffers=tuple(b.model_copy(update={"name": names.get(b.name, b.name)}) for b in buffers.values()),
        tensor_maps=tuple(
            each.model_copy(update={"global_address": place(each.global_address)}) for each in two.tensor_maps
        ),
        functions=two.functions,
        operations=(
            *(operation(each, 0) for each in one.operations),
            *(operation(each, len(one.operations)) for each in two.operations),
        ),
    )


class _Merger:
    def __init__(self, first: Recording, second: Recording, module: Module) -> None:
        self._first, self._second, self._module = first, second, module
        self._shifts: dict[int, RawBuffer] = {}
        self._freed_before = first.freed
        self._freed: set[str] = set()
        self._uploaded = 0

    def merge(self, roles: Mapping[str, str]) -> Merged:
        self._match_buffers()
        self._maps = maps = self._tensor_maps()
        functions = self._functions()
        operations = self._operations()
        used = _referenced(operations, maps)
        buffers = tuple(
            Buffer.model_validate({"name": b.name, "role": roles.get(b.name, b.role), "size_bytes": b.bytes})
            for b in self._first.buffers
            if b.role != "symbol" or b.name in used
        )
        return Merged(buffers, maps, functions, operations)

    def _match_buffers(self) -> None:
        pairs = _paired("allocation", self._first.buffers, self._second.buffers)
        for one, two in pairs:
            if (one.name, one.role, one.bytes) != (two.name, two.role, two.bytes):
                raise _differs(f"device allocation {one.name}")
            self._shifts[(two.address - one.address) % _WORD] = one

    def _tensor_maps(self) -> tuple[TensorMap, ...]:
        maps = []
        for index, (one, two) in enumerate(_paired("tensor map", self._first.tensor_maps, self._second.tensor_maps)):
            where = f"tensor map {index}"
            if one.model_copy(update={"address": two.address}) != two:
                raise _differs(f"the arguments of {where}")
            maps.append(self._tensor_map(one, self._address(one.address, two.address, f"globalAddress of {where}")))
        return tuple(maps)

    def _tensor_map(self, raw: RawTensorMap, address: BufferRef) -> TensorMap:
        return TensorMap(
            data_type=raw.data_type,
            global_address=address,
            global_dim=tuple(raw.global_dim),
            global_strides_bytes=tuple(raw.global_strides_bytes),
            box_dim=tuple(raw.box_dim),
            element_strides=tuple(raw.element_strides),
            interleave=raw.interleave,
            swizzle=raw.swizzle,
            l2_promotion=raw.l2_promotion,
            oob_fill=raw.oob_fill,
        )

    def _functions(self) -> tuple[FunctionAttributes, ...]:
        if self._first.functions != self._second.functions:
            raise _differs("a function attribute")
        final: dict[str, dict[str, int | bool]] = {}
        for raw in self._first.functions:
            final.setdefault(raw.kernel, {})[raw.attribute] = self._attribute(raw, final.get(raw.kernel, {}))
        return tuple(FunctionAttributes.model_validate({"kernel": k, **final[k]}) for k in sorted(final))

    @staticmethod
    def _attribute(raw: RawFunction, before: Mapping[str, int | bool]) -> int | bool:
        """Attributes are set up once for all launches: the most that was asked for, but of the carve-out the last."""
        if raw.attribute == "max_dynamic_smem_bytes":
            return max(raw.value, before.get(raw.attribute, 0))
        if raw.attribute == "non_portable_cluster":
            return raw.value != 0 or bool(before.get(raw.attribute, False))
        return raw.value

    def _operations(self) -> tuple[Operation, ...]:
        operations: list[Operation] = []
        for one, two in _paired("operation", self._first.ordered, self._second.ordered):
            where = f"operation {len(operations)}"
            if isinstance(one, RawFree):
                if one != two:
                    raise _differs(f"what is freed before {where}")
                self._freed.add(one.name)
            elif isinstance(one, RawOrder):
                if one != two:
                    raise _differs(f"what orders the streams before {where}")
            else:
                try:
                    operations.append(self._operation(one, two, where))
                except NotAPlan as error:
                    raise NotAPlan(error.code, error.message, len(operations)) from error
        return tuple(operations)

    def _operation(self, one: Ordered, two: Ordered, where: str) -> Operation:
        match one, two:
            case RawLaunch(), RawLaunch():
                return self._launch(one, two, f"{where} (launch of {one.kernel})")
            case RawMemset(), RawMemset():
                target = self._address(one.target, two.target, f"target of {where} (memset)")
                _same(one, two, {"target"}, f"{where} (memset)")
                return Memset(
                    target=target, value=one.value, width_bytes=one.width_bytes, count=one.count, stream=one.stream
                )
            case RawCopy(), RawCopy():
                target = self._address(one.target, two.target, f"target of {where} (copy)")
                source = self._address(one.source, two.source, f"source of {where} (copy)")
                _same(one, two, {"target", "source"}, f"{where} (copy)")
                return Copy(target=target, source=source, size_bytes=one.bytes, stream=one.stream)
            case RawUpload(), RawUpload():
                target = self._address(one.target, two.target, f"target of {where} (upload)")
                _same(one, two, {"target", "data"}, f"{where} (upload)")
                blob = self._blob(bytes.fromhex(one.data), bytes.fromhex(two.data), None, f"{where} (upload)")
                self._uploaded += len(blob.refs)
                self._check_not_freed(blob, self._freed_before, f"{where} (upload)")
                return Upload(target=target, data=blob, stream=one.stream)
        raise _differs(f"the kind of {where} ({one.event} against {two.event})")

    def _launch(self, one: RawLaunch, two: RawLaunch, where: str) -> Launch:
        _same(one, two, {"params"}, where)
        params = []
        for index, (a, b) in enumerate(_paired(f"parameter of {where}", one.params, two.params)):
            left, right = bytes.fromhex(a), bytes.fromhex(b)
            used = self._module.used(one.kernel, index, len(left))
            blob = self._blob(left, right, used, f"parameter {index} of {where}")
            # A struct may hold what this call has done with; what an earlier call freed serves nothing.
            freed = self._freed_before | self._freed if len(left) == _POINTER_BYTES else self._freed_before
            self._check_not_freed(blob, freed, f"parameter {index} of {where}")
            params.append(blob)
        return Launch(
            kernel=one.kernel,
            grid=dim3(one.grid),
            block=dim3(one.block),
            dynamic_smem_bytes=one.dynamic_smem_bytes,
            params=tuple(params),
            cluster=dim3(one.cluster) if len(one.cluster) == 3 else None,
            cooperative=one.cooperative,
            programmatic=one.programmatic,
            stream=one.stream,
        )

    def _check_not_freed(self, blob: Blob, freed: AbstractSet[str], where: str) -> None:
        for ref in blob.refs:
            if isinstance(ref, PointerRef):
                how, buffer = "points into", ref.target.buffer
            else:
                how, buffer = "holds a tensor map of", self._maps[ref.index].global_address.buffer
            if buffer in freed:
                raise NotAPlan("plan.use_after_free", f"{where} {how} {buffer}, which was freed before")

    def _address(self, one: int, two: int, where: str) -> BufferRef:
        """Return what an address points to."""
        if one == two:
            raise NotAPlan("plan.not_device_memory", f"{where} is {one:#x}, which is no device memory")
        buffer = self._shifts.get((two - one) % _WORD)
        if buffer is None:
            raise _differs(where)
        offset = one - buffer.address
        if not 0 <= offset <= buffer.bytes:
            place = f"{-offset} bytes before" if offset < 0 else f"{offset - buffer.bytes} bytes after the end of"
            raise NotAPlan(
                "plan.pointer_out_of_bounds", f"{where} points {place} {buffer.name}, which has {buffer.bytes} bytes"
            )
        return BufferRef(buffer=buffer.name, offset=offset)

    def _blob(self, one: bytes, two: bytes, used: bytes | None, where: str) -> Blob:
        """Find references in two versions of the same bytes."""
        if len(one) != len(two):
            raise _differs(f"the size of {where}")
        left, right = bytearray(one), bytearray(two)
        if used is not None:
            for i, wanted in enumerate(used):
                if not wanted:
                    left[i] = right[i] = 0
        refs: list[Ref] = [*self._take_tensor_maps(left, right, where)]
        refs += self._take_pointers(left, right, where)
        return Blob(data=left.hex(), refs=tuple(sorted(refs, key=lambda ref: ref.at)))

    def _take_tensor_maps(self, left: bytearray, right: bytearray, where: str) -> list[Ref]:
        refs: list[Ref] = []
        at = left.find(_TAG)
        while at >= 0:
            block = bytes(left[at : at + TENSOR_MAP_BYTES])
            index = int.from_bytes(block[8:16], "little")
            if index >= len(self._maps) or block != tensor_map_tag(index):
                raise NotAPlan(
                    "plan.partial_tensor_map", f"byte {at} of {where} holds a part of a tensor map, or a changed one"
                )
            if right[at : at + TENSOR_MAP_BYTES] != block:
                raise _differs(f"byte {at} of {where}")
            if at % 8:
                raise NotAPlan("plan.partial_tensor_map", f"byte {at} of {where} holds a misaligned tensor map")
            left[at : at + TENSOR_MAP_BYTES] = right[at : at + TENSOR_MAP_BYTES] = bytes(TENSOR_MAP_BYTES)
            refs.append(TensorMapRef(at=at, index=index))
            at = left.find(_TAG, at + TENSOR_MAP_BYTES)
        if _TAG in right:
            raise _differs(f"a tensor map in {where}")
        return refs

    def _take_pointers(self, left: bytearray, right: bytearray, where: str) -> list[Ref]:
        refs: list[Ref] = []
        done = 0
        differing = np.flatnonzero(np.frombuffer(left, np.uint8) != np.frombuffer(right, np.uint8))
        for at in map(int, differing):
            if at < done:
                continue
            start = self._pointer_start(left, right, at, done)
            if start is None:
                raise _differs(f"byte {at} of {where}")
            one, two = _word(left, start), _word(right, start)
            refs.append(PointerRef(at=start, target=self._address(one, two, f"the pointer at byte {start} of {where}")))
            done = start + 8
            if len(refs) > MAX_REFERENCES - self._uploaded:
                raise NotAPlan(
                    "plan.reference_limit",
                    f"{where} and the uploads before it hold more than {MAX_REFERENCES} pointers",
                )
        for ref in refs:
            left[ref.at : ref.at + 8] = bytes(8)
        return refs

    def _pointer_start(self, left: bytearray, right: bytearray, at: int, done: int) -> int | None:
        """Return where the pointer starts whose first differing byte is `at`: aligned places first."""
        starts = range(max(done, at - 7), min(at, len(left) - 8) + 1)
        for start in sorted(starts, key=lambda s: (s % 8 != 0, s % 4 != 0, s)):
            if (_word(right, start) - _word(left, start)) % _WORD in self._shifts:
                return start
        return None


def tensor_map_tag(index: int) -> bytes:
    """Return the 128 bytes that the recorder writes for the tensor map `index`."""
    base = int.from_bytes(_TAG, "little")
    mixed = base ^ (index * 0x9E3779B97F4A7C15 % _WORD)
    words = [base, index, *((mixed + i) % _WORD for i in range(2, TENSOR_MAP_BYTES // 8))]
    return struct.pack(f"<{len(words)}Q", *words)


def _word(data: bytearray, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _paired(what: str, first: Sequence[T], second: Sequence[T]) -> list[tuple[T, T]]:
    if len(first) != len(second):
        raise _differs(f"the number of {what}s")
    return list(zip(first, second, strict=True))


def _same(one: RawLaunch | RawMemset | RawCopy | RawUpload, two: object, without: set[str], where: str) -> None:
    for name in type(one).model_fields:
        if name not in {"frames", *without} and getattr(one, name) != getattr(two, name):
            raise _differs(f"{name} of {where}")


def _differs(what: str) -> NotAPlan:
    """Return the failure; without the two values, which would differ at each evaluation of the same text."""
    return NotAPlan("plan.not_deterministic", f"{what} differs between two recordings: {_ADVICE}")


def _referenced(operations: Sequence[Operation], maps: Sequence[TensorMap]) -> set[str]:
    names = {tensor_map.global_address.buffer for tensor_map in maps}
    for operation in operations:
        blobs = operation.params if isinstance(operation, Launch) else ()
        if isinstance(operation, Upload):
            blobs = (operation.data,)
        if not isinstance(operation, Launch):
            names.add(operation.target.buffer)
        if isinstance(operation, Copy):
            names.add(operation.source.buffer)
        for blob in blobs:
            names.update(ref.target.buffer for ref in blob.refs if isinstance(ref, PointerRef))
    return names
