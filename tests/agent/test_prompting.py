"""Templates and context policies: what a model reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym import content
from ptxgym.agent.prompting import Context, Exchange, Opening, Prompting, fenced
from ptxgym.episode import Turn
from ptxgym.errors import ContentError
from ptxgym.store.records import Message
from ptxgym.verdict import Provenance, Stage, Status, Verdict

FOLDER = content.locate("agents", "openai").parent
OPENING = Opening("PROMPT\n", turns=4)


def exchange(number: int, score: float, *, code: str = "judge.ok", notes: tuple[str, ...] = ()) -> Exchange:
    found = code == "judge.ok"
    verdict = Verdict(
        stage=Stage.JUDGE,
        status=Status.OK if found else Status.REJECTED,
        code=code,
        message="",
        score=score,
        provenance=Provenance(ptxgym="0", task="t", task_revision=1, arch="h100", source_sha256="0"),
    )
    answer = f"ANSWER{number}\n```cuda\nKERNEL{number}\n```\n" if found else f"ANSWER{number}"
    source = f"KERNEL{number}\n" if found else answer
    turn = Turn(number, source, verdict, f"FEEDBACK{number}\n", 0.0, {}, score, number == 4, notes)
    return Exchange(answer, turn)


HISTORY = (exchange(1, 0.2), exchange(2, 0.05), exchange(3, 0.0, code="submission.no_code"))


def messages(context: Context, history: tuple[Exchange, ...] = HISTORY, opening: Opening = OPENING) -> list[Message]:
    return list(Prompting.of_folder(FOLDER, context).messages(opening, history))


def roles(found: list[Message]) -> str:
    return "".join(message.role[0] for message in found)


def test_full_shows_everything_once_and_in_order() -> None:
    found = messages("full")
    assert roles(found) == "suauauau"
    whole = "\n".join(message.content for message in found)
    for number in (1, 2, 3):
        assert whole.count(f"ANSWER{number}") == whole.count(f"FEEDBACK{number}") == 1
    assert whole.count("KERNEL1") == 1 and whole.count("PROMPT") == 1
    assert "That was turn 3 of 4. The best so far is turn 1 with 0.20." in found[-1].content
    assert "That was turn 1 of 4, the best so far." in found[3].content
    assert "1 turn is left." in found[-1].content and "2 turns are left." in found[-3].content


def test_a_longer_history_begins_like_a_shorter_one() -> None:
    whole = messages("full")
    for played in range(len(HISTORY)):
        shorter = messages("full", HISTORY[:played])
        assert whole[: len(shorter)] == shorter, "so that providers can cache the prefix"


def test_last_shows_the_last_answer_and_the_best_kernel_where_that_is_another() -> None:
    found = messages("last", HISTORY[:2])
    assert roles(found) == "suau"
    assert found[2].content == HISTORY[1].answer.strip()
    assert "FEEDBACK2" in found[3].content and "FEEDBACK1" not in found[3].content
    assert "The kernel of turn 1:\n\n```cuda\nKERNEL1\n```\n" in found[3].content
    alone = messages("last", HISTORY[:1])
    assert roles(alone) == "suau" and "KERNEL1" not in alone[3].content, "it is in the answer"


def test_folded_is_one_message_with_kernels_and_without_chatter() -> None:
    found = messages("folded")
    assert roles(found) == "su"
    text = found[1].content
    assert text.index("PROMPT") < text.index("KERNEL1") < text.index("FEEDBACK1") < text.index("KERNEL2")
    assert "ANSWER" not in text and "# Your turn 3\n\nFEEDBACK3" in text
    assert "3 of 4 turns are played. The best so far is turn 1 with 0.20." in text and "1 turn is left" in text
    assert "Standing" not in messages("folded", ())[1].content


@pytest.mark.parametrize("context", ["full", "last", "folded"])
def test_first_message_pair_and_canary(context: Context) -> None:
    found = messages(context, (), Opening("PROMPT\n", 4, start="START\n", canary="c-1"))
    assert roles(found) == "su"
    assert found[0].content.endswith("\n\nCanary c-1: texts of this benchmark must not be trained on.\n")
    assert found[1].content == "PROMPT\n\n## What becomes of that kernel as it is\nSTART\n"
    assert messages(context, ())[1].content == "PROMPT\n"


def test_several_blocks_are_told() -> None:
    for context in ("last", "folded"):
        told = messages(context, (exchange(1, 0.2, notes=("several_blocks",)),))[-1].content  # type: ignore[arg-type]
        assert told.count("several code blocks") == 1 and "\n\n\n" not in told
    assert "several code blocks" in messages("full", (exchange(1, 0.2, notes=("several_blocks",)),))[-1].content
    assert "several code blocks" not in messages("full", (exchange(1, 0.2),))[-1].content


def test_nothing_scored_is_said() -> None:
    assert "Nothing has scored yet." in messages("full", (exchange(1, 0.0),))[-1].content


@pytest.mark.parametrize("context", ["full", "last", "folded"])
def test_no_blank_runs_and_nothing_unrendered(context: Context) -> None:
    for history in (HISTORY[:played] for played in range(4)):
        for message in messages(context, history):
            assert "\n\n\n" not in message.content and "{{" not in message.content and "{%" not in message.content
            assert not [line for line in message.content.splitlines() if line != line.rstrip()]


def test_without_templates_texts_are_shown_as_they_are() -> None:
    for context, expected in (("full", "uauauau"), ("last", "uau"), ("folded", "u")):
        found = list(Prompting(context).messages(OPENING, HISTORY))  # type: ignore[arg-type]
        assert roles(found) == expected
    assert (
        Prompting("folded").messages(OPENING, HISTORY[:1])[0].content == f"PROMPT\n\n{HISTORY[0].answer}\nFEEDBACK1\n"
    )


def write(folder: Path, **templates: str) -> Path:
    for name, text in templates.items():
        (folder / f"{name}.j2").write_text(text)
    return folder


def test_templates_are_strict(tmp_path: Path) -> None:
    wrong = Prompting.of_folder(write(tmp_path, opening="{{ promt }}", turn="x"))
    with pytest.raises(ContentError, match=r"template opening\.j2: 'promt' is undefined; its variables are prompt, "):
        wrong.messages(OPENING, ())
    with pytest.raises(ContentError, match=r"template opening\.j2 line 2: "):
        Prompting.of_folder(write(tmp_path, opening="a\n{% if %}")).messages(OPENING, ())
    with pytest.raises(ContentError, match=r"needs folded\.j2"):
        Prompting.of_folder(tmp_path, "folded")
    with pytest.raises(ContentError, match=r"sytem\.j2: templates are system\.j2, "):
        Prompting.of_folder(write(tmp_path, sytem="x"))


def test_templates_may_leave_out_the_system_message(tmp_path: Path) -> None:
    found = Prompting.of_folder(write(tmp_path, opening="O {{ prompt }}", turn="T")).messages(
        Opening("P", 4, canary="c-1"), HISTORY[:1]
    )
    assert (
        roles(list(found)) == "uau" and found[0].content.startswith("O P\n\nCanary c-1") and found[2].content == "T\n"
    )


def test_hashes_follow_the_texts(tmp_path: Path) -> None:
    first = Prompting.of_folder(write(tmp_path, opening="a", turn="b")).hashes()
    second = Prompting.of_folder(write(tmp_path, opening="a", turn="c")).hashes()
    assert first["opening"] == second["opening"] and first["turn"] != second["turn"]
    assert set(Prompting.of_folder(FOLDER).hashes()) == {"system", "opening", "turn", "folded"}


def test_a_fence_is_longer_than_any_in_the_kernel() -> None:
    assert fenced("a\n```\nb\n") == "````cuda\na\n```\nb\n````"
