"""The page `docs/emulator.md`: which forms the emulator executes, ignores and refuses, generated from the decoder.

`python -m ptxgym.device.emulator.forms_page > docs/emulator.md` writes it; a test compares the two.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator

from ptxgym.device.emulator import decode  # noqa: F401  (fills the grammar)
from ptxgym.device.emulator.decode_grammar import OP_AT, RULES, NotEmulated, Rule, Slot, Template, resolve
from ptxgym.device.emulator.ir import OP
from ptxgym.device.emulator.sources import CHAPTERS, chapter, section

_HEAD = """\
# The instructions that the emulator knows

This page is generated from the decoder (`python -m ptxgym.device.emulator.forms_page`), so it cannot promise more than
the code accepts. How the emulator executes a kernel, and what its findings mean, stands in
[execution.md](execution.md).

Decoding is closed: a form stands here and is executed, or the kernel is refused before it runs, with the form, its line
and what to use instead (status `not_emulated`). `.{a,b}` is one modifier of several, `{.a}` and `.{a,b}?` may be left
out. *Counted as* is the family of the instruction in the counts of a verdict. *No effect* names what is accepted and
changes no result: cache operators, eviction priorities, prefetch sizes and cache policies concern speed alone, and
prefetches and policies themselves are counted only. *Source* is the section of the PTX ISA (9.0) that the rule was
written from.
"""
_IGNORED_SLOTS = frozenset({"cache", "L1", "L2", "prefetch", "hint"})
REFUSED: tuple[str, ...] = (
    "tex.2d.v4.f32.f32", "tld4.r.2d.v4.f32.f32", "txq.width.b32", "istypep.texref", "suld.b.1d.b32.trap",
    "sust.b.1d.b32.trap", "sured.b.add.1d.u32.trap", "suq.width.b32", "multimem.ld_reduce.relaxed.sys.global.add.f32",
    "alloca.u64", "stacksave.u64", "stackrestore.u64", "discard.global.L2", "ld.mmio.relaxed.sys.global.u32",
    "st.mmio.relaxed.sys.global.u32", "st.bulk.weak.shared::cta", "st.async.release.gpu.global.u32",
    "shfl.up.b32", "vote.all.pred", "vadd.u32.u32.u32", "cvt.rs.f16.f32", "cvt.pack.sat.u8.s32",
    "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32",
    "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32", "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16",
    "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e3m2.e2m1.f32", "wmma.load.a.sync.aligned.row.m8n8k32.s4",
    "wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.bf16.bf16",
    "wgmma.mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc",
    "ldmatrix.sync.aligned.m16n16.x1.shared.b8", "stmatrix.sync.aligned.m16n8.x1.shared.b8",
    "tensormap.replace.im2col.rank.shared::cta.b1024.b32", "redux.sync.add.f32",
    "tcgen05.mma.sp.cta_group::1.kind::f16", "tcgen05.mma.cta_group::1.kind::f16.ashift",
    "tcgen05.ld.red.sync.aligned.32x32b.x2.max.f32",
)  # fmt: skip
"""Forms that are refused with a reason of their own."""


def page() -> str:
    """Return the text of the page."""
    chapters: dict[str, list[tuple[str, Rule]]] = defaultdict(list)
    for rule in itertools.chain.from_iterable(RULES.values()):
        number = section(rule)
        chapters[chapter(number)].append((number, rule))
    count = sum(map(len, chapters.values()))
    parts = [_HEAD, f"{count} rules for {len(RULES)} opcodes.\n"]
    for number, title in CHAPTERS.items():
        rules = sorted(chapters.pop(number), key=lambda item: ([int(n) for n in item[0].split(".")], item[1].text()))
        parts.append(
            f"## {title}\n\n| form | operands | counted as | notes | source |\n| --- | --- | --- | --- | --- |"
        )
        parts += [_row(source, rule) for source, rule in rules]
        parts.append("")
    assert not chapters, f"chapters without a title: {sorted(chapters)}"
    parts.append("## Refused by name\n\nWhatever stands neither above nor here is refused too, as not emulated.\n")
    parts.append("| form | reason |\n| --- | --- |")
    parts += [f"| `{form}` | {_escaped(_reason(form))} |" for form in REFUSED]
    return "\n".join(parts) + "\n"


def _row(source: str, rule: Rule) -> str:
    template = instance(rule)
    notes = [rule.note] if rule.note else []
    if template.row[OP_AT] == OP["NOP"] and template.family == "hint":
        notes.append("no effect")
    ignored = [f"`{choice}`" for slot in rule.slots if _is_ignored(slot) for choice in slot.choices]
    if ignored:
        notes.append("no effect: " + ", ".join(f"`.{choice[1:]}" for choice in ignored))
    cells = (f"`{_shortened(rule)}`", f"`{rule.example}`" if rule.example else "", template.family, "; ".join(notes))
    return "| " + " | ".join(_escaped(cell) for cell in (*cells, source)) + " |"


def _is_ignored(slot: Slot) -> bool:
    return slot.name in _IGNORED_SLOTS and not slot.required


def _shortened(rule: Rule) -> str:
    """The rule's text without what has no effect, which the notes name, and with long ranges of shapes cut."""
    slots = [slot for slot in rule.slots if not _is_ignored(slot)]
    return rule.opcode + "".join(_slot(slot) for slot in slots)


def _slot(slot: Slot) -> str:
    names = list(slot.choices)
    if len(names) > 20:
        return ".{" + ",".join((names[0], names[1], "…", names[-1])) + "}"
    return slot.text()


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def instance(rule: Rule) -> Template:
    """Return the template of one opcode that `rule` accepts."""
    for modifiers in _modifiers(rule):
        form = rule.match(modifiers)
        template = rule.build(form) if form is not None else None
        if template is not None:
            return template
    raise AssertionError(f"no opcode fits {rule.text()}")


def _modifiers(rule: Rule) -> Iterator[tuple[str, ...]]:
    required = [list(slot.choices) for slot in rule.slots if slot.required]
    yield from itertools.product(*required)
    everything = [[*slot.choices] if slot.required else ["", *slot.choices] for slot in rule.slots]
    for chosen in itertools.product(*everything):
        yield tuple(word for word in chosen if word)


def _reason(form: str) -> str:
    try:
        resolve(form)
    except NotEmulated as refusal:
        return refusal.reason
    raise AssertionError(f"{form} is not refused")


if __name__ == "__main__":
    sys.stdout.write(page())
