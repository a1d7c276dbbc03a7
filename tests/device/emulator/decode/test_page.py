"""The page of forms is what the decoder says, and every rule names its section of the PTX ISA."""

from __future__ import annotations

import re
from pathlib import Path

from ptxgym.device.emulator import decode  # noqa: F401  (fills the grammar)
from ptxgym.device.emulator.decode_grammar import OP_AT, RULES
from ptxgym.device.emulator.forms_page import REFUSED, instance, page
from ptxgym.device.emulator.ir import OP
from ptxgym.device.emulator.sources import CHAPTERS, chapter, section

PAGE = Path(__file__).parents[4] / "docs" / "emulator.md"


def test_the_committed_page_is_what_is_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m ptxgym.device.emulator.forms_page > docs/emulator.md"


def test_every_rule_has_a_section_and_an_instance() -> None:
    for rules in RULES.values():
        for rule in rules:
            assert chapter(section(rule)) in CHAPTERS, rule.text()
            assert instance(rule).row[OP_AT] < len(OP)


def test_sections_of_rules_whose_place_is_known() -> None:
    """Read off the headings of the ISA."""
    known = {
        "add.{u16x2,s16x2}": "9.7.1.1", "add.cc": "9.7.2.1", "fma": "9.7.3.6", "setp": "9.7.6.2",
        "ld.global.nc": "9.7.9.9", "cp.async.wait_all": "9.7.9.25.3.3", "mbarrier.init": "9.7.13.15.9",
        "mma.sync.aligned.{m8n8k4,m16n8k4,m16n8k8,m16n8k16}": "9.7.14.5.14", "wgmma.fence": "9.7.15.7.1",
        "griddepcontrol": "9.7.13.13", "tensormap.cp_fenceproxy": "9.7.13.16", "setmaxnreg": "9.7.19.5",
        "clusterlaunchcontrol.try_cancel": "9.7.13.17", "cp.reduce.async.bulk.tensor": "9.7.9.25.5.3",
        "tanh.approx.{f32": "9.7.3.22", "ex2.approx.{f16,f16x2}": "9.7.4.10", "set.": "9.7.6.1",
    }  # fmt: skip
    for start, number in known.items():
        found = {section(rule) for rules in RULES.values() for rule in rules if rule.text().startswith(start)}
        assert number in found, (start, found)


def test_no_form_is_refused_and_executed() -> None:
    rows = re.findall(r"^\| `([^`]+)`", page(), flags=re.M)
    assert len(rows) == len(set(rows)) > 300
    assert set(REFUSED) <= set(rows)
