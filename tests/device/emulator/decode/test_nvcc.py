"""What nvcc prints for ordinary CUDA C++ decodes, and what is refused is refused with its own code, form and line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ptxgym.build import find_toolchain
from ptxgym.device.emulator import forms, ir
from ptxgym.device.emulator.decode import DecodedModule
from ptxgym.verdict import Failure, Status

SOURCE = Path(__file__).with_name("features.cu")
KERNELS = re.findall(r"__global__ void (?:__\w+__\(\d+\) )?(\w+)\(", SOURCE.read_text())
REFUSED = {
    "refused_malloc": ("emulator.device_malloc", "call of device function malloc"),
    "refused_b1": ("emulator.not_emulated", "m64nNk16"),
}


def compiled(target: Path, arch: str) -> str:
    """The module's PTX, as the build stage makes it."""
    command = [
        find_toolchain().nvcc,
        "-std=c++17",
        "-O3",
        "-lineinfo",
        f"-arch={arch}",
        "-ptx",
        "-w",
        SOURCE,
        "-o",
        target,
    ]
    subprocess.run([*map(str, command)], check=True, capture_output=True)
    return target.read_text()


@pytest.fixture(scope="session")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> str:
    return compiled(tmp_path_factory.mktemp("features") / "features.ptx", "sm_90a")


@pytest.fixture(scope="session")
def module(ptx: str) -> DecodedModule:
    return DecodedModule.parse(ptx, str(SOURCE))


def test_every_kernel_is_there(module: DecodedModule) -> None:
    assert sorted(module.names) == sorted(KERNELS) and len(KERNELS) > 12


@pytest.mark.parametrize("name", [name for name in KERNELS if not name.startswith("refused_")])
def test_decodes(module: DecodedModule, name: str) -> None:
    refused = forms.check_module(module.module.text, str(SOURCE))[name]
    assert not refused
    decoded = module.kernel(name)
    assert len(decoded.inst) == len(decoded.forms) > 10
    assert decoded.inst["op"].max() < len(ir.OP)
    assert decoded.inst["target"].max() < len(decoded.inst)
    for field in ("d", "d2", "a", "b", "c", "e", "guard"):
        assert decoded.inst[field].max() < decoded.reg_bytes


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_with_its_reason(module: DecodedModule, name: str) -> None:
    failure = forms.decode_kernels(module, (name,))
    assert isinstance(failure, Failure) and failure.status is Status.NOT_EMULATED
    code, words = REFUSED[name]
    assert failure.code.startswith(code) and words in failure.message and name in failure.message
    line = failure.diagnostics[0].line
    assert line is not None and str(line) in failure.message
    text = SOURCE.read_text().splitlines()[: line + 1]
    assert any(name in row for row in text[-4:])


def test_lines_lead_to_the_statement(module: DecodedModule) -> None:
    """Instructions of header functions carry the line of the call in the submission."""
    text = SOURCE.read_text().splitlines()
    for kernel, form, words in (
        ("halves", "fma.rn.relu.bf16x2", "__hfma2_relu(c2"),
        ("warps", "match.any.sync.b32", "__match_any_sync"),
        ("atomics", "membar.gl", "__threadfence()"),
        ("tensors", "wgmma.wait_group.sync.aligned", "wgmma.wait_group"),
        ("copies", "cp.async.mbarrier.arrive.noinc.shared::cta.b64", "cp.async.mbarrier"),
    ):
        decoded = module.kernel(kernel)
        lines = {int(decoded.lines[n]) for n, found in enumerate(decoded.forms) if found == form}
        assert lines and all(words in text[line - 1] for line in lines), (kernel, form, lines)


def test_most_instructions_have_a_line(module: DecodedModule) -> None:
    for name in ("integers", "tensors", "copies"):
        lines = module.kernel(name).lines
        assert (lines > 0).mean() > 0.95


def test_initial_values_of_module_variables(module: DecodedModule) -> None:
    symbols = module.symbols
    assert symbols["counter"].initial == (3).to_bytes(4, "little")
    assert [r.symbol for r in symbols["counter_pointer"].relocations] == ["counter"]
    assert len(symbols["weights"].initial) == 32
    pointed = [symbols[r.symbol].initial for r in symbols["names"].relocations]
    assert pointed == [b"one\0", b"two\0"]
    assert {"counter", "counter_pointer", "names"} <= module.kernel("locals").uses


def test_checks_of_a_module_list_every_kernel(ptx: str) -> None:
    report = forms.check_module(ptx, str(SOURCE))
    assert {name for name, refused in report.items() if refused} == set(REFUSED)
    assert "at line" in str(report["refused_malloc"][0])


def test_the_newer_front_end_prints_another_style(tmp_path: Path) -> None:
    """For sm_100a nvcc 13.0 uses the front end of later versions: `.b32 %f`, `mov.b32`, `.ptr` parameters."""
    report = forms.check_module(compiled(tmp_path / "newer.ptx", "sm_100a"), str(SOURCE))
    assert {name for name, refused in report.items() if refused} == set(REFUSED) - {"refused_b1"}


def test_unreadable_ptx_is_a_failure_of_its_own() -> None:
    module = DecodedModule.parse(".version 9.0\n.target sm_90a\n.address_size 64\n.entry k()\n{\n?;\n}\n")
    failure = forms.decode_kernels(module, ("k",))
    assert isinstance(failure, Failure) and failure.code == "emulator.not_parsed" and "line 6" in failure.message


def test_grammar_is_listed() -> None:
    listed = forms.accepted_forms()
    assert any(form.syntax == "fma.{rn,rz,rm,rp}{.ftz}{.sat}.f32" and form.operands == "d, a, b, c" for form in listed)
    assert [form.opcode for form in listed] == sorted(form.opcode for form in listed)
