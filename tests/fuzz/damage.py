"""Damaged PTX: whatever is in a module, the decoder takes it or refuses it, and the core runs it or faults."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from ptxgym.device.emulator.core import LaunchShape, PlacedBuffer
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.device.emulator.decode_grammar import NotEmulated
from ptxgym.device.emulator.ir import DecodedKernel
from ptxgym.device.emulator.placement import place
from ptxgym.device.emulator.ptx import PtxSyntaxError
from ptxgym.device.emulator.session import Memory
from tests.device.emulator.core.harness import core
from tests.device.emulator.decode.instances import LINES
from tests.device.emulator.decode.support import DECLARATIONS, FIELDS, kernel
from tests.fuzz.generate import program
from tests.fuzz.interpreter import inputs
from tests.fuzz.text import ptx_of

_TOKEN = re.compile(r"\s+|//[^\n]*|[%$\w.]+|\"[^\"]*\"|.", re.S)
_NUMBERS = (
    "0", "-1", "1", "2147483648", "4294967295", "4294967296", "9223372036854775808", "18446744073709551616",
    "0x" + "F" * 40, "1" * 400, "0f7F800000", "0d7FF0000000000000", "0f1", "1e400", "0b2", "09", "1U", "-0",
)  # fmt: skip
_BRACKETS = ("{", "}", "(", ")", "[", "]", ",", ";", ":", "|", "@", "!", "<", ">", "=", "+", "-")
_BUFFER_BYTES = 4096
_MOST_SHARED, _MOST_REGISTERS, _MOST_LOCAL = 232_448, 8 << 20, 1 << 20


def damaged(seed: int, modules: Mapping[str, str]) -> str:
    """Return a module with a few places changed; `modules` are further texts to begin with."""
    chance = random.Random(seed)
    kind = chance.random()
    if kind < 0.25 and modules:
        text = modules[chance.choice(sorted(modules))]
    elif kind < 0.6:
        text = _instances(chance)
    else:
        fuzzed = program(chance.randrange(1 << 30), 12)
        text = ptx_of(fuzzed, inputs(fuzzed).table)
    tokens = _TOKEN.findall(text)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 8))):
        if not tokens:
            break
        chance.choice(_CHANGES)(tokens, chance)
    return "".join(tokens)


def _instances(chance: random.Random) -> str:
    """A kernel of random instructions that the decoder knows, in any order."""
    lines = "\n".join(f"{chance.choice(LINES)[0]};" for _ in range(chance.randint(1, 25)))
    if chance.random() < 0.7:  # addresses that exist, small numbers, a barrier
        lines = "".join(_defined(field, chance) for field in FIELDS) + lines
    head = ".extern .shared .align 16 .b8 dyn[];\n"
    head += ".global .align 8 .u64 t[2] = {generic(s), 3};\n.global .b8 s[4] = {1, 2};\n"
    body = f"{DECLARATIONS}LABEL:\nTABLE: .branchtargets LABEL, LABEL;\n{lines}\nret;\n"
    return kernel(body, head, ".param .u64 in, .param .align 64 .b8 map[128]")


def _defined(field: str, chance: random.Random) -> str:
    small = chance.choice((0, 1, 32, 64, 1024))
    text = f"ld.param.u64 {field}64, [in+{8 * chance.randrange(3)}]; mov.u16 {field}16, {small};\n"
    text += f"setp.eq.u32 {field}p, {small}, 1;\n"
    text += f"mov.u32 {field}32, {chance.choice(('dyn', 'dyn+1024', 'dyn+8', str(small)))};\n"
    if chance.random() < 0.15:
        text += (
            f"mov.u32 {field}32, dyn; mbarrier.init.shared.b64 [{field}32], {chance.choice((1, 32, 64))}; bar.sync 0;\n"
        )
    return text


def _solid(tokens: list[str], chance: random.Random) -> int:
    """Index of a token that is no blank, if one is found soon."""
    for _ in range(20):
        at = chance.randrange(len(tokens))
        if not tokens[at].isspace():
            return at
    return 0


def _drop(tokens: list[str], chance: random.Random) -> None:
    at = _solid(tokens, chance)
    del tokens[at : at + chance.choice((1, 1, 1, 5, 40))]


def _swap(tokens: list[str], chance: random.Random) -> None:
    one, other = _solid(tokens, chance), _solid(tokens, chance)
    tokens[one], tokens[other] = tokens[other], tokens[one]


def _copy(tokens: list[str], chance: random.Random) -> None:
    one, other = _solid(tokens, chance), _solid(tokens, chance)
    tokens[other] = tokens[one]


def _same_kind(tokens: list[str], chance: random.Random) -> None:
    """A register for a register, an opcode for an opcode: these often decode."""
    at = _solid(tokens, chance)
    alike = [t for t in tokens if t[0] == tokens[at][0] and t.count(".") == tokens[at].count(".")]
    tokens[at] = chance.choice(alike)


def _modifiers(tokens: list[str], chance: random.Random) -> None:
    at = _solid(tokens, chance)
    words = tokens[at].split(".")
    extra = chance.choice(chance.choice(LINES)[0].split()[0].split("."))
    change = chance.randrange(3)
    if change == 0:
        words.insert(chance.randint(0, len(words)), extra)
    elif change == 1 and len(words) > 1:
        del words[chance.randrange(len(words))]
    else:
        words[chance.randrange(len(words))] = extra
    tokens[at] = ".".join(words) or "."


def _number(tokens: list[str], chance: random.Random) -> None:
    numbers = [i for i, token in enumerate(tokens) if token[0].isdigit()]
    if numbers:
        tokens[chance.choice(numbers)] = chance.choice((*_NUMBERS, str(chance.getrandbits(chance.randrange(1, 70)))))


def _bracket(tokens: list[str], chance: random.Random) -> None:
    tokens.insert(chance.randrange(len(tokens)), chance.choice(_BRACKETS) * chance.choice((1, 1, 2, 3000)))


def _nest(tokens: list[str], chance: random.Random) -> None:
    opening, closing = chance.choice(("{}", "()", "[]", ("{ .reg .b32 %r0;", "}"), ("-", ""), ("{{", "}}"), ("@!", "")))
    depth = chance.choice((3, 40, 2000, 20000))
    at = chance.randrange(len(tokens))
    tokens[at] = opening * depth + tokens[at] + closing * depth


def _cut(tokens: list[str], chance: random.Random) -> None:
    del tokens[chance.randrange(len(tokens)) :]


def _noise(tokens: list[str], chance: random.Random) -> None:
    length = chance.choice((1, 3, 50, 5000))
    text = "".join(chr(chance.choice((chance.randrange(128), chance.randrange(0x20, 0x2FF)))) for _ in range(length))
    tokens.insert(chance.randrange(len(tokens)), text)


def _line(tokens: list[str], chance: random.Random) -> None:
    """A known instruction where some statement ends."""
    ends = [i for i, token in enumerate(tokens) if token == ";"]
    if ends:
        tokens.insert(chance.choice(ends) + 1, f"\n{chance.choice(LINES)[0]};")


_Change = Callable[[list[str], random.Random], None]
_CHANGES: tuple[_Change, ...] = (
    *[_same_kind] * 5, *[_modifiers] * 2, *[_number] * 3, *[_line] * 4,
    _drop, _swap, _copy, _bracket, _nest, _cut, _noise,
)  # fmt: skip


def survives(seed: int, modules: Mapping[str, str]) -> str:
    """Decode the damaged module of a seed and run what decodes; returns what came of it.

    Raises:
        Exception: anything but the decoder's typed refusals is a fault of it.
    """
    chance = random.Random(seed)
    text = damaged(seed, modules)
    try:
        module = DecodedModule.parse(text)
        _ = module.symbols
        kernels = [module.kernel(name) for name in module.names]
    except (PtxSyntaxError, NotEmulated) as refusal:
        assert str(refusal)
        return type(refusal).__name__
    outcome = "empty"
    for decoded in kernels[:3]:
        outcome = _launched(module, decoded, chance)
    return outcome


def _launched(module: DecodedModule, decoded: DecodedKernel, chance: random.Random) -> str:
    loaded = core().load(decoded)
    block, cluster = chance.choice((32, 64, 128)), chance.choice((None, None, (2, 1, 1)))
    warps = block // 32
    if (
        decoded.static_smem_bytes > _MOST_SHARED or decoded.reg_bytes * warps > _MOST_REGISTERS
        or decoded.local_bytes * block > _MOST_LOCAL * 64
    ):  # fmt: skip
        return "too large"
    addresses = place((name, _BUFFER_BYTES) for name in "abcd")
    placed = [PlacedBuffer(name, at, _bytes(chance.random() < 0.5).copy()) for name, at in addresses.items()]
    memory = Memory(placed, module.symbols)
    loaded.relocate(memory.addresses)
    params = bytearray(decoded.param_bytes)
    for at in range(0, decoded.param_bytes - 7, 8):
        word = chance.choice((*addresses.values(), chance.getrandbits(8), chance.getrandbits(64)))
        struct.pack_into("<Q", params, at, word)
    shape = LaunchShape(
        (2, 1, 1), (block, 1, 1), dynamic_smem_bytes=chance.choice((0, 1024, 8192)), cluster=cluster,
        schedule=chance.choice(("fair", "lazy", "random")), seed=chance.randrange(9), threads=chance.choice((1, 2)),
        registers=chance.choice((0, 128)), warp_instruction_budget=20_000,
    )  # fmt: skip
    return loaded.launch(shape, memory.ascending, bytes(params)).outcome.name


@cache
def _bytes(zero: bool) -> np.ndarray:
    random_bytes = np.random.default_rng(1).integers(0, 256, _BUFFER_BYTES, np.uint8)
    return np.zeros(_BUFFER_BYTES, np.uint8) if zero else random_bytes
