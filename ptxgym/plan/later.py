"""May `run` be called again? What later calls in one process ask for, against a first call at the same sizes.

A caller calls `run` many times, with other buffers and other sizes. Host code may keep what serves them all: entry
points, attributes, numbers of SMs, workspaces that are large enough, constants uploaded once, tensor maps by pointer
and shape. It may not keep what belonged to one call: a pointer, a tensor map, a size, or that the work is done.

Uploads, memsets and launches that touch no argument may be left out later: they set something up. An upload must still
be there. Whether kernels leave the rest as they found it is for a device to show (`LaunchPlan.kept`). At hidden sizes
only the advice is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ptxgym.plan.kept import Counter, Different, Kept, changed_words
from ptxgym.plan.merge import Merged
from ptxgym.plan.model import (
    Blob,
    BufferRef,
    Copy,
    Launch,
    Memset,
    Operation,
    PointerRef,
    Ref,
    TensorMap,
    Upload,
)

MAX_CHOICES = 64
"""Ways to say which operations were left out that are tried."""
MAX_MATCHES = 5_000
"""Operations that are matched before no third way with fewer counts is tried: where thousands count, that is slow."""

_POINTER_ADVICE = "make tensor maps and pointers anew in every call, or keep them by pointer and shape"
_SIZE_ADVICE = "compute it from the arguments in every call, or keep it by these arguments"
_WORK_ADVICE = "every call must do the whole work; only the set-up of constants and workspaces may happen once"
_SPACE_ADVICE = "keep a workspace by its size and enlarge it where a call needs more, or allocate it in every call"


@dataclass(frozen=True)
class Asked:
    """What one call asked for."""

    merged: Merged
    own: Mapping[str, str]
    """The argument that each of its buffers is."""
    freed: frozenset[str] = frozenset()
    """Workspaces that earlier calls had freed."""


def compare(first: Asked, earlier: Sequence[Asked], later: Asked, kept: Kept) -> None:
    """Compare a later call with a first call at its sizes.

    Args:
        first: The first call.
        earlier: The calls before the later one in its process, in order.
        later: The later call.
        kept: Takes what the call found as earlier ones left it.

    Raises:
        Different: if it is more than that.
    """
    _Comparison(first, earlier, later, kept).run()


class _Pairs:
    """Which workspaces and streams of the two calls correspond."""

    def __init__(self) -> None:
        self.forward: dict[tuple[str, object], object] = {}
        self.backward: dict[tuple[str, object], object] = {}

    def copy(self) -> _Pairs:
        other = _Pairs()
        other.forward, other.backward = dict(self.forward), dict(self.backward)
        return other

    def agree(self, kind: str, one: object, two: object) -> bool:
        """Pair the two if neither is paired; return whether they are a pair."""
        return self.forward.setdefault((kind, one), two) == two and self.backward.setdefault((kind, two), one) == one


_Item = TypeVar("_Item")


@dataclass(frozen=True)
class _Shared(Generic[_Item]):
    """A list that shares what comes before its last items with others: every choice that is kept has one."""

    last: tuple[_Item, ...] = ()
    before: _Shared[_Item] | None = None
    length: int = 0

    def with_more(self, items: Sequence[_Item]) -> _Shared[_Item]:
        return _Shared(tuple(items), self, self.length + len(items)) if items else self

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[_Item]:
        parts = list[tuple[_Item, ...]]()
        at: _Shared[_Item] | None = self
        while at is not None:
            parts.append(at.last)
            at = at.before
        return itertools.chain.from_iterable(reversed(parts))


@dataclass
class _State:
    """How far two calls have been aligned."""

    at: int = 0
    """Of the first call's operations."""
    later_at: int = 0
    pairs: _Pairs = field(default_factory=_Pairs)
    left_out: _Shared[int] = field(default_factory=_Shared)
    counters: _Shared[Counter] = field(default_factory=_Shared)


class _Comparison:
    def __init__(self, first: Asked, earlier: Sequence[Asked], later: Asked, kept: Kept) -> None:
        self._first, self._earlier, self._later, self._kept = first, earlier, later, kept
        self._sizes = {b.name: b.size_bytes for b in first.merged.buffers}
        self._later_sizes = {b.name: b.size_bytes for b in later.merged.buffers}
        self._roles = {b.name: b.role for asked in (first, later) for b in asked.merged.buffers}
        self._before = {b.name for b in earlier[-1].merged.buffers}
        self._leads_on = _leading_to(first)
        self._matches = 0

    def run(self) -> None:
        state = self._align()
        if not state.left_out:
            for index, (one, two) in enumerate(self._both()):
                if one.after != two.after:
                    what = f"operation {index} waits for operations {two.after}, in a first call for {one.after}"
                    raise Different(what, _WORK_ADVICE, index)
        for index in state.left_out:
            self._check_left_out(self._first.merged.operations[index], state.pairs)
        for (kind, name), its in state.pairs.forward.items():
            if kind == "workspace" and its in self._before:
                self._kept.names.setdefault(str(name))
        for counter in state.counters:
            seen = self._kept.counters.setdefault(counter.place, {})
            seen[len(self._earlier)] = (counter.more, counter.different)

    def _both(self) -> Iterator[tuple[Operation, Operation]]:
        return zip(self._first.merged.operations, self._later.merged.operations, strict=True)

    def _align(self) -> _State:
        """Match every operation of the later call with one of the first; what is left over may have been left out.

        Of the ways to do so that are tried, the one that takes the fewest words for counts. Until there is one, the
        last choice is changed first, which is the nearest to what failed; from then on the one with the fewest counts
        before it, which may be far from the end.
        """
        todo, choices = [_State()], 0
        problem: Different | None = None
        best: _State | None = None
        while todo and choices < MAX_CHOICES:
            if best is not None:
                if choices > 1 and self._matches >= MAX_MATCHES:
                    break
                todo.sort(key=lambda each: len(each.counters), reverse=True)  # of as many, the last stays behind
            state, choices = todo.pop(), choices + 1
            try:
                found = self._follow(state, todo)
            except Different as different:
                problem = problem or different
            else:
                if best is None or len(found.counters) < len(best.counters):
                    best = found
                if not best.counters:
                    break
        if best is not None:
            return best
        assert problem is not None
        raise problem

    def _follow(self, state: _State, todo: list[_State]) -> _State:
        """Match from `state` on; where an operation could also have been left out, note that as a choice."""
        firsts, laters = self._first.merged.operations, self._later.merged.operations
        while state.at < len(firsts):
            self._matches += 1
            one = firsts[state.at]
            skipped = (
                _State(
                    state.at + 1,
                    state.later_at,
                    state.pairs.copy(),
                    state.left_out.with_more([state.at]),
                    state.counters,
                )
                if self._may_be_left_out(one)
                else None
            )
            try:
                if state.later_at == len(laters):
                    raise Different(f"{_named(one, state.at)} is missing", _WORK_ADVICE)
                state = self._matched(state, one, laters[state.later_at])
            except Different:
                if skipped is None:
                    raise
                state = skipped
            else:
                if skipped is not None:
                    todo.append(skipped)
        if state.later_at < len(laters):
            extra = _named(laters[state.later_at], state.later_at)
            raise Different(f"{extra} is one that a first call has not", _WORK_ADVICE, state.later_at)
        return state

    def _matched(self, state: _State, one: Operation, two: Operation) -> _State:
        """Return the state after a match.

        Raises:
            Different: if the operations do not correspond.
        """
        pairs, counters = state.pairs.copy(), list[Counter]()
        where, at = _named(one, state.at), state.later_at
        try:
            match one, two:
                case Launch(), Launch() if one.kernel == two.kernel:
                    self._match_launch(one, two, where, pairs, state.at, counters)
                case Memset(), Memset():
                    self._match_place(one.target, two.target, f"the target of {where}", pairs)
                    self._match_fill(one, two, where)
                case Copy(), Copy():
                    self._match_place(one.target, two.target, f"the target of {where}", pairs)
                    self._match_place(one.source, two.source, f"the source of {where}", pairs)
                    _same(one, two, ("size_bytes",), where)
                case Upload(), Upload():
                    self._match_place(one.target, two.target, f"the target of {where}", pairs)
                    self._match_blob(one.data, two.data, f"the data of {where}", pairs)
                case _:
                    raise Different(f"{where} is missing", _WORK_ADVICE)
            if not pairs.agree("stream", one.stream, two.stream):
                raise Different(f"{where} is on another stream", _WORK_ADVICE)
        except Different as different:
            different.operation = at
            raise
        return _State(state.at + 1, at + 1, pairs, state.left_out, state.counters.with_more(counters))

    def _match_fill(self, one: Memset, two: Memset, where: str) -> None:
        """A kept workspace may be cleared as far as it has grown; nothing less than a first call clears."""
        _same(one, two, ("value", "width_bytes"), where)
        if one.count > two.count or self._roles[two.target.buffer] != "workspace":
            _same(one, two, ("count",), where)

    def _match_launch(
        self,
        one: Launch,
        two: Launch,
        where: str,
        pairs: _Pairs,
        at: int,
        counters: list[Counter],
    ) -> None:
        _same(one, two, ("grid", "block", "dynamic_smem_bytes", "cluster", "cooperative", "programmatic"), where)
        for index, (a, b) in enumerate(zip(one.params, two.params, strict=True)):
            parameter = f"parameter {index} of {where}"
            self._match_refs(a, b, parameter, pairs)
            if a.data != b.data:
                different = Different(f"{parameter} holds another value", _SIZE_ADVICE)
                words = changed_words(a.raw, b.raw)
                counters += [Counter((at, index, offset), more, different) for offset, more in words.items()]

    def _match_blob(self, one: Blob, two: Blob, where: str, pairs: _Pairs) -> None:
        self._match_refs(one, two, where, pairs)
        if len(one.raw) != len(two.raw):
            raise Different(f"{where} has another size", _SIZE_ADVICE)
        if one.data != two.data:
            raise Different(f"{where} holds another value", _SIZE_ADVICE)

    def _match_refs(self, one: Blob, two: Blob, where: str, pairs: _Pairs) -> None:
        if [(ref.at, ref.kind) for ref in one.refs] != [(ref.at, ref.kind) for ref in two.refs]:
            stale = next((ref for ref in two.refs if self._is_stale(ref)), None)
            if stale is not None:
                raise Different(f"{where} still points to {self._stale_name(self._target(stale))}", _POINTER_ADVICE)
            raise Different(f"{where} holds pointers or tensor maps elsewhere than in a first call", _POINTER_ADVICE)
        for a, b in zip(one.refs, two.refs, strict=True):
            if isinstance(a, PointerRef) and isinstance(b, PointerRef):
                self._match_place(a.target, b.target, where, pairs)
            elif not isinstance(a, PointerRef) and not isinstance(b, PointerRef):
                self._match_map(
                    self._first.merged.tensor_maps[a.index], self._later.merged.tensor_maps[b.index], where, pairs
                )

    def _match_map(self, one: TensorMap, two: TensorMap, where: str, pairs: _Pairs) -> None:
        self._match_place(one.global_address, two.global_address, f"the tensor map in {where}", pairs)
        for name in TensorMap.model_fields:
            a, b = getattr(one, name), getattr(two, name)
            if name != "global_address" and a != b:
                raise Different(f"the tensor map in {where} has another {name}", _POINTER_ADVICE)

    def _match_place(self, one: BufferRef, two: BufferRef, where: str, pairs: _Pairs) -> None:
        mine, its = self._first.own.get(one.buffer), self._later.own.get(two.buffer)
        if its is None and self._roles[two.buffer] in ("input", "output"):
            raise Different(f"{where} still points to {self._stale_name(two)}", _POINTER_ADVICE)
        fixed = self._roles[one.buffer] == "symbol" or self._roles[two.buffer] == "symbol"
        if mine is not None or its is not None:
            corresponds = mine == its
        else:
            corresponds = one.buffer == two.buffer if fixed else pairs.agree("workspace", one.buffer, two.buffer)
        if not corresponds or one.offset != two.offset:
            it, first = its or two.buffer, mine or one.buffer
            instead = f"{it}, not to {first}" if it != first else f"another byte of {it}"
            raise Different(f"{where} points to {instead}", _POINTER_ADVICE)
        size, wanted = self._later_sizes[two.buffer], self._sizes[one.buffer]
        if size < wanted:
            less = "which an earlier call allocated with fewer bytes than a first call does"
            raise Different(f"{where} points to {two.buffer}, {less}", _SPACE_ADVICE)

    def _target(self, ref: Ref) -> BufferRef:
        return ref.target if isinstance(ref, PointerRef) else self._later.merged.tensor_maps[ref.index].global_address

    def _is_stale(self, ref: Ref) -> bool:
        buffer = self._target(ref).buffer
        return buffer not in self._later.own and self._roles[buffer] in ("input", "output")

    def _stale_name(self, ref: BufferRef) -> str:
        call = next(index for index, asked in enumerate(self._earlier, 1) if ref.buffer in asked.own)
        return f"{self._earlier[call - 1].own[ref.buffer]} of call {call}"

    def _may_be_left_out(self, operation: Operation) -> bool:
        """Return whether an operation touches no argument; an upload may hold pointers to them, which a launch follows.

        Pointers in variables serve any launch, named or not, so that nothing follows from them: their uploads are
        looked at one by one where they are left out.
        """
        match operation:
            case Upload() | Memset():
                return operation.target.buffer not in self._first.own
            case Copy():
                return not {operation.target.buffer, operation.source.buffer} & self._first.own.keys()
        maps = self._first.merged.tensor_maps
        return not any(
            (ref.target if isinstance(ref, PointerRef) else maps[ref.index].global_address).buffer in self._leads_on
            for blob in operation.params
            for ref in blob.refs
        )

    def _check_left_out(self, operation: Operation, pairs: _Pairs) -> None:
        """See that an upload that was left out is still there, and note what else was."""
        if isinstance(operation, Launch):
            self._kept.names.setdefault("what a launch of the first call set up")
            return
        name = operation.target.buffer
        its = pairs.forward.get(("workspace", name), name if self._roles[name] == "symbol" else None)
        if its is None:  # nothing uses it
            return
        self._kept.names.setdefault(name)
        if not isinstance(operation, Upload):
            return
        length = len(operation.data.raw)
        target = BufferRef(buffer=str(its), offset=operation.target.offset)
        last = next((each for each in self._writes() if _overlaps(each, target, length)), None)
        where = f"the upload to {name}, left out here,"
        if not isinstance(last, Upload) or last.target != target or len(last.data.raw) != length:
            raise Different(f"{where} is not what an earlier call left there", _WORK_ADVICE)
        if gone := [ref for ref in last.data.refs if self._target(ref).buffer in self._later.freed]:
            what = f"{where} points to {self._target(gone[0]).buffer}, which an earlier call freed"
            raise Different(what, _POINTER_ADVICE)
        self._match_blob(operation.data, last.data, f"what {where} left there", pairs)

    def _writes(self) -> Iterator[Memset | Copy | Upload]:
        """Yield what wrote to buffers before and in the later call, from the last on."""
        for asked in (self._later, *reversed(self._earlier)):
            for operation in reversed(asked.merged.operations):
                if not isinstance(operation, Launch):
                    yield operation


def _leading_to(asked: Asked) -> set[str]:
    """Return the arguments of a call, and the workspaces that lead to them by the pointers that it uploads."""
    found, before = set(asked.own), -1
    while len(found) != before:
        before = len(found)
        for operation in asked.merged.operations:
            match operation:
                case Upload():
                    maps = asked.merged.tensor_maps
                    targets = {
                        (ref.target if isinstance(ref, PointerRef) else maps[ref.index].global_address).buffer
                        for ref in operation.data.refs
                    }
                case Copy():
                    targets = {operation.source.buffer} - asked.own.keys()
                case _:
                    continue
            if targets & found:
                found.add(operation.target.buffer)
    roles = {buffer.name: buffer.role for buffer in asked.merged.buffers}
    return {name for name in found if roles[name] != "symbol"}


def _overlaps(operation: Memset | Copy | Upload, target: BufferRef, length: int) -> bool:
    match operation:
        case Memset():
            size = operation.count * operation.width_bytes
        case Copy():
            size = operation.size_bytes
        case Upload():
            size = len(operation.data.raw)
    start = operation.target.offset
    return operation.target.buffer == target.buffer and start < target.offset + length and target.offset < start + size


def _same(one: Operation, two: Operation, names: Sequence[str], where: str) -> None:
    for name in names:
        a, b = getattr(one, name), getattr(two, name)
        if a != b:
            raise Different(f"{name} of {where} is another", _SIZE_ADVICE)


def _named(operation: Operation, index: int) -> str:
    match operation:
        case Launch():
            what = f"launch of {operation.kernel}"
        case Memset():
            what = "memset"
        case Copy():
            what = "copy"
        case Upload():
            what = "upload"
    return f"operation {index} ({what})"
