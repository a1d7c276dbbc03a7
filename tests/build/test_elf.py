from __future__ import annotations

import subprocess

from ptxgym.build.elf import exported_functions

SOURCE = """
extern "C" void plain() {}
extern "C" __attribute__((weak)) int weak_one() { return 1; }
extern "C" __attribute__((visibility("hidden"))) void hidden() {}
static void local() {}
extern "C" void outside();
void mangled() { local(); outside(); }
int data = 1;
"""


def test_agrees_with_nm(tmp_path):
    (tmp_path / "a.cpp").write_text(SOURCE)
    library = tmp_path / "a.so"
    subprocess.run(["g++", "-shared", "-fPIC", tmp_path / "a.cpp", "-o", library], check=True)
    listed = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    by_nm = {line.split()[2] for line in listed.splitlines() if line.split()[1] in "TW"}
    assert exported_functions(library) == by_nm == {"plain", "weak_one", "_Z7mangledv"}
