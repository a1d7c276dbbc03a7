"""Lines of host code, against binutils' addr2line where there is one, and from bytes that are no line tables."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxgym.build import Build, build, dwarf, lines
from ptxgym.build.elf import section
from ptxgym.build.lines import HostLines, host_lines
from ptxgym.cache import Cache

SOURCE = """#include <algorithm>
#line 1 "/kernel.cu"
extern "C" int outside(int);
static inline __attribute__((always_inline)) int innermost(int x) {
    return outside(x) + 3;
}
static inline __attribute__((always_inline)) int inner(int x) {
    int sum = outside(x + 1);
    if (x > 3) sum += innermost(sum);
    return sum;
}
extern "C" int outer(int* data, int n) {
    std::sort(data, data + n);
    int sum = inner(data[0]);
    for (int i = 0; i < n; ++i)
        sum += inner(data[i]) * 7;
    return sum;
}
#line 1 "/entry.cu"
extern "C" int other(int x) { return outside(x); }
"""
NAMES = (".debug_line", ".debug_info", ".debug_abbrev", ".debug_ranges")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with code of the submission, of a header and of another file."""
    folder = tmp_path_factory.mktemp("lines")
    (folder / "a.cpp").write_text(SOURCE)
    options = ["-O3", "-shared", "-fPIC", "-gdwarf-4", "-g1"]
    subprocess.run(["g++", *options, "a.cpp", "-o", "a.so"], cwd=folder, check=True)
    return folder / "a.so"


def sections(library: Path) -> list[bytes]:
    """What lines are read from."""
    return [section(library, name) or b"" for name in NAMES]


def addresses(library: Path) -> list[int]:
    """Every address that a line program names, and one beyond."""
    return sorted({row.address + more for row in dwarf.LineUnit(sections(library)[0], 0).rows() for more in (0, 1)})


@pytest.mark.skipif(shutil.which("addr2line") is None, reason="no addr2line")
def test_agrees_with_addr2line(library: Path) -> None:
    lines = host_lines(library)
    asked = addresses(library)
    text = "\n".join(map(hex, asked))
    command = ["addr2line", "-a", "-i", "-e", str(library)]
    said = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    answers = said.split("0x")[1:]
    assert len(answers) == len(asked) > 100
    several = 0
    for address, answer in zip(asked, answers, strict=True):
        places = (place.split(" ")[0].rsplit(":", 1) for place in answer.splitlines()[1:])
        expected = tuple(int(line) for file, line in places if file.endswith("/kernel.cu") and line not in "?0")
        assert lines.lines(address) == expected, hex(address)
        several += len(expected) > 1
    assert several > 10


def test_the_innermost_call_has_three_lines(library: Path) -> None:
    found = {host_lines(library).lines(address) for address in addresses(library)}
    assert (3, 7, 14) in found or (3, 7, 12) in found
    assert all(0 < line < 18 for lines in found for line in lines)


def test_a_library_without_lines(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(SOURCE)
    subprocess.run(["g++", "-shared", "-fPIC", "a.cpp", "-o", "a.so"], cwd=tmp_path, check=True)
    assert host_lines(tmp_path / "a.so").lines(0x1100) == ()
    assert host_lines(tmp_path / "missing.so").lines(0x1100) == ()
    (tmp_path / "b.so").write_bytes(b"\x7fELF\x02\x01 and no more")
    assert host_lines(tmp_path / "b.so").lines(0x1100) == ()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_damaged_sections_are_no_error(library: Path, data: st.DataObject) -> None:
    damaged = []
    for name, content in zip(NAMES, sections(library), strict=True):
        changed = bytearray(content)
        for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255))), name):
            changed[at] = byte
        damaged.append(bytes(changed[: data.draw(st.integers(0, len(content)))]))
    HostLines(*damaged).lines(0x1100)


@given(st.lists(st.binary(max_size=200), min_size=4, max_size=4))
def test_any_bytes_are_no_error(content: list[bytes]) -> None:
    HostLines(*content).lines(0)


def test_work_is_bounded() -> None:
    """A thousand inlined calls that share a list of ten thousand ranges; entries of many attributes without bytes."""
    abbreviations = bytes([1, 0x1D, 0, 0x55, 0x17, 0, 0, 0])
    ranges = struct.pack("<QQ", 1, 2) * 10_000 + bytes(16)
    body = (b"\1" + bytes(4)) * 1_000
    info = struct.pack("<IHIB", 7 + len(body), 4, 0, 8) + body
    reader = dwarf.InfoReader(info, abbreviations, ranges)
    read = 0
    with pytest.raises(ValueError, match="too much"):
        for _ in reader.inlined():
            read += 1
    assert 900_000 < read < dwarf.MAX_STEPS
    wide = bytes([1, 0x11, 1]) + bytes([0x3F, 0x19]) * 65 + bytes(3)
    with pytest.raises(ValueError, match="65 attributes"):
        list(dwarf.InfoReader(info, wide, b"").inlined())


def line_unit(program: bytes, files: int = 1) -> bytes:
    """A line program of `files` files, all of which are the submission."""
    names = bytes([0]) + b"/kernel.cu\0\0\0\0" * files + bytes([0])
    header = struct.pack("<BBBbBB", 1, 1, 1, -5, 14, 13) + bytes([0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1]) + names
    body = struct.pack("<HI", 4, len(header)) + header + program
    return struct.pack("<I", len(body)) + body


COPY, SET_COLUMN = b"\1", b"\5\0"


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte makes a row; nothing of the pieces before the limit is lost."""
    monkeypatch.setattr(lines, "MAX_KEPT", 1000)
    monkeypatch.setattr(dwarf, "MAX_STEPS", 5000)
    forward = bytes([13 + 14 + 5 + 1])  # a byte and a line further
    kept = HostLines(line_unit(forward * 10) + line_unit(COPY * 3000))
    assert len(kept._addresses) == len(kept._lines) == 1000
    assert [kept.lines(address) for address in (1, 2, 9, 10)] == [(2,), (3,), (10,), (11,)]
    assert HostLines(line_unit(SET_COLUMN * 4990 + COPY)).lines(0) == (1,)
    assert HostLines(line_unit(SET_COLUMN * 5010 + COPY)).lines(0) == ()


def test_units_and_files_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dwarf, "MAX_STEPS", 5000)
    with pytest.raises(ValueError, match="too much"):
        dwarf.LineUnit(line_unit(COPY, files=5000), 0)
    assert HostLines(line_unit(b"") * 2000 + line_unit(COPY)).lines(0) == (1,)
    assert HostLines(line_unit(b"") * 5000 + line_unit(COPY)).lines(0) == ()
    unit = struct.pack("<IHIB", 7, 4, 0, 8)
    assert list(dwarf.InfoReader(unit * 4000, b"\0", b"").inlined()) == []
    with pytest.raises(ValueError, match="too much"):
        list(dwarf.InfoReader(unit * 5001, b"\0", b"").inlined())


def test_lines_that_no_file_has_are_left_out() -> None:
    for line in (b"\xff" * 8 + b"\0", b"\x80" * 8 + b"\x40"):  # 2⁵⁶ − 1, −2⁶²
        assert HostLines(line_unit(b"\3" + line + COPY)).lines(0) == ()
    far = b"\2" + b"\xff" * 9 + b"\1" + COPY  # 2⁶⁴ − 1
    assert HostLines(line_unit(far * 2)).lines((1 << 64) - 1) == (1,)


@pytest.mark.parametrize("folder", ["elsewhere", "a folder, with=signs"])
def test_libraries_are_equal_wherever_they_are_built(tmp_path: Path, folder: str) -> None:
    text = '__global__ void kernel() {}\nextern "C" void run(cudaStream_t stream) { kernel<<<1, 32, 0, stream>>>(); }\n'
    libraries = []
    for place in (tmp_path / "here", tmp_path / folder):
        product = build(text, declaration='extern "C" void run(cudaStream_t stream)', arch="sm_90a", cache=Cache(place))
        assert isinstance(product, Build), product
        libraries.append(product.library.read_bytes())
    assert (libraries[0] == libraries[1]) == ("," not in folder)
