from __future__ import annotations

import pytest

from ptxgym.sandbox import Isolation, isolation


@pytest.mark.parametrize(
    ("landlock", "namespace", "seccomp", "level", "filesystem"),
    [
        ("ok", "ok", "ok", "full", "landlock"),
        ("ok", "denied", "ok", "full", "landlock"),
        ("no", "ok", "ok", "full", "namespace"),
        ("no", "no", "ok", "seccomp", "none"),
        ("ok", "ok", "no", "rlimits", "landlock"),
        ("no", "no", "no", "rlimits", "none"),
    ],
)
def test_level_follows_from_what_works(landlock, namespace, seccomp, level, filesystem):
    offered = Isolation(landlock, 4 if landlock == "ok" else 0, namespace, seccomp)
    assert offered.level == level
    assert offered.filesystem == filesystem


def test_explanation_names_what_is_missing_and_why():
    text = Isolation("Landlock: Function not implemented", 0, "ok", "ok").explain()
    assert text.startswith("full: ")
    assert "no Landlock (Landlock: Function not implemented)" in text


def test_this_machine_answers():
    offered = isolation()
    assert offered is isolation()
    assert (offered.landlock == "ok") == (offered.landlock_abi > 0)
