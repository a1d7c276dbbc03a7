from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym.build import find_toolchain, toolchain
from ptxgym.errors import ToolchainError


def fake_toolkit(root: Path, version: str, *, cicc: bool = True, nvdisasm: bool = False) -> Path:
    for folder in ("bin", "include", "nvvm/bin"):
        (root / folder).mkdir(parents=True)
    nvcc = root / "bin" / "nvcc"
    nvcc.write_text(
        f'#!/bin/sh\nif [ "$1" = --dryrun ]; then echo "#$ TOP={root}" >&2; else echo "Cuda tools, V{version}"; fi\n'
    )
    nvcc.chmod(0o755)
    (root / "include" / "cuda.h").write_text("")
    if cicc:
        (root / "nvvm" / "bin" / "cicc").write_text("")
    if nvdisasm:
        (root / "bin" / "nvdisasm").write_text("")
    return root


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without any toolkit, except the system's own under /usr/local, which is hidden."""
    monkeypatch.setattr(toolchain, "_wheel_roots", list)
    monkeypatch.setattr(toolchain, "SYSTEM_ROOT", tmp_path / "none")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    find_toolchain.cache_clear()
    yield tmp_path
    find_toolchain.cache_clear()


def test_says_what_to_install(bare):
    with pytest.raises(ToolchainError, match=r'no nvcc was found; .*pip install "ptxgym\[toolchain\]"'):
        find_toolchain()


def test_prefers_wheels_then_cuda_home_then_path(bare, monkeypatch):
    home, path, wheels = (fake_toolkit(bare / name, f"13.{n}.7") for n, name in enumerate(("home", "path", "wheels")))
    (bare / "scripts").mkdir()
    wrapper = bare / "scripts" / "nvcc"
    wrapper.write_text(f'#!/bin/sh\nexec {path}/bin/nvcc "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bare / 'scripts'}:/bin:/usr/bin")
    found = find_toolchain()
    assert (found.root, found.version, found.source, found.name) == (path, "13.1.7", "system", "nvcc 13.1.7")
    monkeypatch.setenv("CUDA_HOME", str(home))
    find_toolchain.cache_clear()
    assert find_toolchain().root == home
    monkeypatch.setattr(toolchain, "_wheel_roots", lambda: [wheels])
    find_toolchain.cache_clear()
    assert (find_toolchain().root, find_toolchain().source) == (wheels, "wheels")


def test_old_and_incomplete_toolkits_are_named(bare, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(fake_toolkit(bare / "old", "12.9.86")))
    monkeypatch.setattr(toolchain, "SYSTEM_ROOT", fake_toolkit(bare / "half", "13.0.88", cicc=False))
    with pytest.raises(
        ToolchainError, match=r"old/bin/nvcc \(version 12\.9\.86\); .*half/bin/nvcc \(cuda\.h or cicc is missing"
    ):
        find_toolchain()


def test_nvdisasm_may_come_from_the_wheels_alone(bare, monkeypatch):
    system, wheels = fake_toolkit(bare / "system", "13.0.88"), bare / "wheels"
    monkeypatch.setattr(toolchain, "SYSTEM_ROOT", system)
    assert find_toolchain().nvdisasm is None
    (wheels / "bin").mkdir(parents=True)
    (wheels / "bin" / "nvdisasm").write_text("")
    monkeypatch.setattr(toolchain, "_wheel_roots", lambda: [wheels])
    find_toolchain.cache_clear()
    assert (find_toolchain().root, find_toolchain().nvdisasm) == (system, wheels / "bin" / "nvdisasm")
