from __future__ import annotations

from dataclasses import replace

import pytest

from ptxgym.build import disassemble
from ptxgym.errors import InfrastructureError


def test_sass_is_made_on_demand_and_kept(good):
    assert not good.sass.exists()
    path = disassemble(good)
    assert path == good.sass
    text = path.read_text()
    assert "EXIT" in text
    assert 'File "/kernel.cu", line 2' in text
    written = path.stat().st_mtime_ns
    assert disassemble(good).stat().st_mtime_ns == written
    assert [f.name for f in good.folder.iterdir() if f.name.startswith(".")] == []


def test_a_broken_cubin_is_an_infrastructure_fault(good, tmp_path):
    (tmp_path / "kernel.cubin").write_bytes(b"not a cubin")
    broken = replace(good, cubin=tmp_path / "kernel.cubin", sass=tmp_path / "kernel.sass", folder=tmp_path)
    with pytest.raises(InfrastructureError, match="nvdisasm exited"):
        disassemble(broken)
    assert not broken.sass.exists()
