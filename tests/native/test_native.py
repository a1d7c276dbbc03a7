from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ptxgym import native
from ptxgym.cache import Cache
from ptxgym.errors import ContentError, InfrastructureError, ToolchainError, UnknownNameError


@pytest.fixture
def cache(tmp_path):
    opened = Cache(tmp_path / "cache")
    yield opened
    opened.close()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "value.hpp").write_text("#pragma once\nconstexpr int value = 41;\n")
    (folder / "one.cpp").write_text(
        '#include "value.hpp"\nint more();\nextern "C" int answer() { return value + more(); }\n'
    )
    (folder / "two.cpp").write_text("int more() { return 1; }\n")
    return folder


def target(folder: Path, **values) -> native.Target:
    return native.Target(**{"name": "demo", "folder": folder, "output": "libdemo.so", **values})


def answer(library: Path) -> int:
    return ctypes.CDLL(str(library)).answer()


def test_announces_what_is_compiled_while_it_is_listened_to(folder, cache):
    lines = []
    with native.announcing(lines.append):
        native.build(target(folder), cache=cache)
        native.build(target(folder), cache=cache)
    assert lines == ["demo: compiling 2 files"]
    native.build(target(folder, compile_flags=("-DX",)), cache=cache)
    assert len(lines) == 1


def test_what_nobody_listens_to_is_logged(folder, cache, caplog):
    native.build(target(folder, compile_flags=("-DLOGGED",)), cache=cache)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == "demo: compiling 2 files (once per machine; it takes some minutes in all)"


@pytest.mark.parametrize("status", [0, 1])
def test_what_is_no_compiler_is_told(monkeypatch, tmp_path, status):
    silent = tmp_path / "silent"
    silent.write_text(f"#!/bin/sh\nexit {status}\n")
    silent.chmod(0o755)
    monkeypatch.setenv("CXX", str(silent))
    native.host_compiler.cache_clear()
    try:
        with pytest.raises(ToolchainError, match=rf"failed: exit status {status}, and it said nothing; set CXX"):
            native.host_compiler()
    finally:
        native.host_compiler.cache_clear()


def test_builds_a_library_once(folder, cache):
    lines = []
    library = native.build(target(folder), cache=cache, report=lines.append)
    assert answer(library) == 42
    assert lines == ["demo: compiling 2 files"]
    assert native.build(target(folder), cache=cache, report=lines.append) == library
    assert len(lines) == 1


def test_any_change_builds_anew(folder, cache):
    first = native.build(target(folder), cache=cache)
    (folder / "value.hpp").write_text("#pragma once\nconstexpr int value = 1;\n")
    second = native.build(target(folder), cache=cache)
    assert (answer(first), answer(second)) == (42, 2)
    third = native.build(target(folder, compile_flags=("-DX",)), cache=cache)
    assert len({first, second, third}) == 3


def test_unchanged_sources_are_not_compiled_again(folder, cache):
    native.build(target(folder), cache=cache)
    assert cache.stats().entries == {"native": 1, "object": 2}
    (folder / "two.cpp").write_text("int more() { return 2; }\n")
    assert answer(native.build(target(folder), cache=cache)) == 43
    assert cache.stats().entries == {"native": 2, "object": 3}


def test_builds_a_program(folder, cache):
    (folder / "main.cpp").write_text('extern "C" int answer();\nint main() { return answer(); }\n')
    program = native.build(target(folder, kind="program", output="demo"), cache=cache)
    assert subprocess.run([program]).returncode == 42


def test_soname_and_flags_reach_the_linker(folder, cache):
    library = native.build(target(folder, soname="libother.so.7", link_flags=("-Wl,-rpath,/nowhere",)), cache=cache)
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True).stdout
    assert "[libother.so.7]" in dynamic
    assert "[/nowhere]" in dynamic


def test_warnings_are_reported_and_errors_raised(folder, cache):
    (folder / "two.cpp").write_text("int more() { int unused; return 1; }\n")
    lines = []
    native.build(target(folder), cache=cache, report=lines.append)
    assert any("unused" in line for line in lines)
    (folder / "two.cpp").write_text("int more() { return; }\n")
    with pytest.raises(InfrastructureError, match=r"two\.cpp.*return-statement with no value"):
        native.build(target(folder), cache=cache)


def test_concurrent_builders_agree(folder, cache):
    results, lines = [], []
    threads = [
        threading.Thread(target=lambda: results.append(native.build(target(folder), cache=cache, report=lines.append)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert len(set(results)) == 1
    assert lines == ["demo: compiling 2 files"]


def test_a_missing_compiler_is_named(folder, cache, monkeypatch):
    native.host_compiler.cache_clear()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ToolchainError, match=r"package g\+\+"):
        native.build(target(folder), cache=cache)
    monkeypatch.setenv("CXX", "/no/such/compiler")
    with pytest.raises(ToolchainError, match="/no/such/compiler"):
        native.build(target(folder), cache=cache)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    yield
    native.host_compiler.cache_clear()


def test_unknown_names_list_the_known():
    with pytest.raises(UnknownNameError, match=r"no native program is named 'nothing'; there are: .*sandbox"):
        native.program("nothing")
    with pytest.raises(UnknownNameError, match="no native library is named 'sandbox'"):
        native.library("sandbox")


def test_declarations_are_validated(tmp_path, monkeypatch):
    monkeypatch.setattr(native, "NATIVE", tmp_path)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "a.cpp").write_text("")
    native.targets.cache_clear()
    try:
        assert native.targets()["part"].output == "libpart.so"
        native.targets.cache_clear()
        (tmp_path / "part" / "native.toml").write_text('[part]\nkind = "program"\n[extra]\nsoname = "libx.so.1"\n')
        found = native.targets()
        assert (found["part"].output, found["part/extra"].output, found["part/extra"].soname) == (
            "part",
            "libextra.so",
            "libx.so.1",
        )
        native.targets.cache_clear()
        (tmp_path / "part" / "native.toml").write_text("[part]\nkinds = 1\n")
        with pytest.raises(ContentError, match=r"native\.toml, table \[part\].*kinds"):
            native.targets()
    finally:
        native.targets.cache_clear()


def test_command_line_builds_and_reports():
    done = subprocess.run(
        [sys.executable, "-m", "ptxgym.native", "sandbox"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("sandbox: /")
    wrong = subprocess.run([sys.executable, "-m", "ptxgym.native", "nothing"], capture_output=True, text=True)
    assert wrong.returncode == 3
    assert "no native target is named 'nothing'" in wrong.stderr
