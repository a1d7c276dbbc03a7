"""The table of accepted forms is real PTX: the vendor's assembler takes every line of it, for sm_90a or sm_100a."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ptxgym.build import find_toolchain
from tests.device.emulator.decode.instances import LINES
from tests.device.emulator.decode.support import DECLARATIONS, HEAD

NEWER = {
    "ld.global.v8.b32 {v0, v1, v2, v3, v4, v5, v6, v7}, [a64]",
}
"""Forms of sm_100 that the decoder takes as well, beside the tcgen05 family, copies with .cta_group and .f32x2."""
_NARROW = re.compile(
    r"^cvt\.(?:rs|\S*(?:e2m1x2|e2m3x2|e3m2x2|ue8m0x2))|^redux\S*\.f32|swizzle_atomicity|^(?:min|max)\.\S*f32 .*c32"
    r"|^(?:ld|st)matrix\S*\.b8|tile::(?:gather|scatter)4"
)


def _is_newer(instruction: str) -> bool:
    newer = ".cta_group::" in instruction or ".f32x2 " in instruction or _NARROW.search(instruction)
    return bool(newer) or instruction in NEWER or instruction.startswith(("tcgen05.", "clusterlaunchcontrol."))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_ptxas_takes_every_accepted_form(arch: str, tmp_path: Path) -> None:
    instructions = [instruction for instruction, _ in LINES if _is_newer(instruction) == (arch == "sm_100a")]
    assert instructions
    text = HEAD.replace("sm_90a", arch)
    for number, instruction in enumerate(instructions):
        body = f"LABEL:\nTABLE: .branchtargets LABEL, LABEL;\n{instruction};\nret;"
        text += f".visible .entry k{number}()\n{{\n{DECLARATIONS}{body}\n}}\n"
    source = tmp_path / "accepted.ptx"
    source.write_text(text)
    ptxas = find_toolchain().root / "bin" / "ptxas"
    done = subprocess.run(
        [ptxas, f"-arch={arch}", "-O0", source, "-o", tmp_path / "accepted.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = text.splitlines()
    errors = [f"{lines[int(line) - 1]} {what}" for line, what in re.findall(r"line (\d+); error\s*: (.*)", done.stderr)]
    assert not errors
    assert done.returncode == 0, done.stderr[:2000]
