from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from ptxgym.agent import ModelError, Reply
from ptxgym.agent.prompting import fenced
from ptxgym.errors import UsageError
from ptxgym.fixit.rationalise import pairs, rationalise_all
from ptxgym.fixit.recipe import FixitRecipe, RationaleRules, RepairRules
from ptxgym.fixit.records import FailedKernel, Repair
from ptxgym.fixit.repair import EPOCH, repair_all
from ptxgym.fixit.workshop import REPAIRS, Front, Workshop
from tests.fixit.fakes import Reading, failure
from tests.fixit.scripted import CANARY, GOOD, Scripted

RECIPE = FixitRecipe(
    name="test",
    summary="for tests",
    repair=RepairRules(attempts=3),
    rationale=RationaleRules(attempts=2, quiet_share=0.3),
)
FINE = GOOD.format(headline="the numbers are wrong")


def a_workshop(folder: Path, kernels: Sequence[FailedKernel]) -> Workshop:
    front = Front(ptxgym="0", recipe=RECIPE, seed=0, runs=("r",), canaries=(CANARY,))
    return Workshop.begin(folder, front, kernels)


def repaired(workshop: Workshop, teacher: Scripted, epoch: int = EPOCH, secret: str = "run") -> int:
    return asyncio.run(repair_all(workshop, teacher, Reading("emulator", secret=secret, epoch=epoch)))


def answers(*texts: str) -> Scripted:
    """Answers turn after turn with these kernels."""
    return Scripted(lambda messages, turn: fenced(texts[min(turn.number, len(texts)) - 1]), name="teacher")


@pytest.mark.parametrize(
    ("given", "status", "attempts", "kept"),
    [
        (("right",), "repaired", 1, "right"),
        (("no", "nor this", "right"), "repaired", 3, "right"),
        (("no",), "failed", 3, ""),
        (("plain",), "failed", 3, ""),  # right, but without target instructions
        (("plain", "right and more"), "repaired", 2, "right and more"),
        (("lucky",), "failed", 3, ""),  # passes under the conditions of the failing run, and under no others
    ],
)
def test_only_what_the_evaluator_passes_by_target_instructions_is_kept(
    tmp_path: Path, given: tuple[str, ...], status: str, attempts: int, kept: str
) -> None:
    workshop = a_workshop(tmp_path, [failure("no")])
    assert repaired(workshop, answers(*given)) == 0
    (found,) = workshop.repairs().values()
    assert (found.status, found.attempts, found.source.strip()) == (status, attempts, kept)
    assert found.teacher == "teacher"
    if kept:
        assert found.conditions == f"run-{EPOCH}" != workshop.mined[0].conditions


def test_the_lucky_kernel_would_pass_in_the_failing_runs_epoch(tmp_path: Path) -> None:
    """The control of the case above: what it is refused for is the other epoch."""
    workshop = a_workshop(tmp_path, [failure("no", conditions="other")])
    repaired(workshop, answers("lucky"), epoch=0)
    assert [found.status for found in workshop.repairs().values()] == ["repaired"]


def test_conditions_of_the_failing_run_are_refused(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, [failure("no", conditions="run-0")])
    with pytest.raises(UsageError, match="very conditions"):
        repaired(workshop, answers("right"), epoch=0)
    assert workshop.repairs() == {}


def test_a_failure_that_passes_under_other_conditions_is_none(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, [failure("right")])
    teacher = answers("right")
    repaired(workshop, teacher)
    assert [found.status for found in workshop.repairs().values()] == ["passes_already"]
    assert teacher.asked == []


def test_a_teacher_that_refuses_is_on_record(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, [failure("no")])
    repaired(workshop, Scripted(lambda messages, turn: Reply("I will not.", refused=True)))
    assert [found.status for found in workshop.repairs().values()] == ["refused"]


def test_the_teacher_sees_task_kernel_and_feedback_and_is_told_to_change_little(tmp_path: Path) -> None:
    seen = []

    def say(messages: Sequence[object], turn: object) -> str:
        seen.append("\n".join(message.content for message in messages))  # type: ignore[attr-defined]
        return fenced("right")

    repaired(a_workshop(tmp_path, [failure("no // mine")]), Scripted(say))
    (text,) = seen
    assert "no // mine" in text
    assert "bias[n]" in text
    assert "wrong_output" in text
    assert "smallest change" in text
    assert CANARY not in text


def test_nothing_is_asked_twice_after_an_endpoint_failed(tmp_path: Path) -> None:
    """The second turn of one failure meets a dead endpoint; the next sitting asks that turn and nothing before it."""
    kernels = [failure("no"), failure("not either"), failure("nor this")]
    bad = sorted(kernel.id for kernel in kernels)[1]
    workshop = a_workshop(tmp_path, kernels)

    def dying(messages: object, turn: object) -> str:
        if turn.identity.arm == bad and turn.number == 2:  # type: ignore[attr-defined]
            raise ModelError("the endpoint is gone")
        return fenced("no" if turn.number == 1 else "right")  # type: ignore[attr-defined]

    first, second = Scripted(dying, name="teacher"), answers("no", "right")
    assert repaired(workshop, first) == 1
    assert set(workshop.repairs()) == {kernel.id for kernel in kernels} - {bad}
    assert repaired(Workshop(tmp_path), second) == 0
    assert second.asked == [(bad, 2)]
    assert {found.status for found in workshop.repairs().values()} == {"repaired"}
    third = answers("right")
    assert repaired(Workshop(tmp_path), third) == 0
    assert third.asked == []
    assert len((tmp_path / REPAIRS).read_text().splitlines()) == 3


def test_a_torn_line_is_settled_again_without_a_question(tmp_path: Path) -> None:
    workshop = a_workshop(tmp_path, [failure("no"), failure("not either")])
    repaired(workshop, answers("right"))
    before, path = workshop.repairs(), tmp_path / REPAIRS
    path.write_bytes(path.read_bytes()[:-20])
    again = answers("right")
    repaired(Workshop(tmp_path), again)
    assert again.asked == []
    assert workshop.repairs() == before


def test_a_wrongly_set_up_teacher_ends_it(tmp_path: Path) -> None:
    def wrong(messages: object, turn: object) -> str:
        raise UsageError("no such model")

    with pytest.raises(UsageError, match="no such model"):
        repaired(a_workshop(tmp_path, [failure("no")]), Scripted(wrong))


def test_a_folder_holds_one_sample(tmp_path: Path) -> None:
    first = a_workshop(tmp_path, [failure("no")])
    secret = first.secret
    assert a_workshop(tmp_path, [failure("no")]).secret == secret  # the same again changes nothing
    with pytest.raises(UsageError, match="another sample"):
        a_workshop(tmp_path, [failure("other")])
    with pytest.raises(UsageError, match="fixit mine"):
        Workshop(tmp_path / "nowhere")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "fixit.json").write_text((tmp_path / "fixit.json").read_text()[:100])
    with pytest.raises(UsageError, match="cut off"):
        Workshop(tmp_path / "cut")
    with first.writing(REPAIRS, "repair"), pytest.raises(UsageError, match="another process"):
        repaired(Workshop(tmp_path), answers("right"))


def with_repairs(folder: Path, *sources: str) -> Workshop:
    workshop = a_workshop(folder, [failure(f"no {number}") for number in range(len(sources))])
    with workshop.writing(REPAIRS, "repair") as (lines, _):
        for kernel, source in zip(workshop.mined, sources, strict=True):
            lines.append(
                Repair(failure=kernel.id, status="repaired", attempts=1, source=source, score=0.5, teacher="teacher")
            )
    return workshop


def test_a_rationale_that_leaks_is_asked_for_again_and_then_given_up(tmp_path: Path) -> None:
    workshop = with_repairs(tmp_path, "int a = first_new_line(1, 2);")
    leaking = f"{FINE} So says the corrected kernel."
    for number, (said, text, rejected) in enumerate(
        [
            ((FINE,), FINE.strip(), ()),
            ((leaking, FINE), FINE.strip(), ("names_repair",)),
            ((leaking, f"int a = first_new_line(1, 2); {FINE}"), "", ("names_repair", "quotes_early")),
            ((Reply("no", refused=True), Reply(FINE, finish_reason="length")), "", ("refused", "cut_off")),
        ]
    ):
        workshop = with_repairs(tmp_path / str(number), "int a = first_new_line(1, 2);")
        teacher = Scripted(lambda messages, turn, said=said: said[turn.number - 1], name="thinker")  # type: ignore[misc]
        assert asyncio.run(rationalise_all(workshop, teacher)) == 0
        (found,) = workshop.rationales(direct=False).values()
        assert (found.text, found.rejected) == (text, rejected)
        again = Scripted(lambda messages, turn: FINE)
        asyncio.run(rationalise_all(workshop, again))
        assert again.asked == []


def test_the_reasoning_teacher_is_not_shown_what_the_repair_teacher_said(tmp_path: Path) -> None:
    workshop, seen = a_workshop(tmp_path, [failure("no")]), []
    repaired(workshop, Scripted(lambda messages, turn: f"It was the flux capacitor.\n{fenced('right')}"))

    def say(messages: Sequence[object], turn: object) -> str:
        seen.append(messages[0].content)  # type: ignore[attr-defined]
        return FINE

    asyncio.run(rationalise_all(workshop, Scripted(say)))
    assert len(seen) == 1
    assert "flux capacitor" not in seen[0]
    assert "it is wrong" in seen[0]  # the feedback of the failing run
    assert "```cuda\nright\n```" in seen[0]


def test_direct_rationales_are_written_once_a_kernel_and_without_the_failure(tmp_path: Path) -> None:
    workshop, seen = with_repairs(tmp_path, "right", "right", "right too"), []

    def say(messages: Sequence[object], turn: object) -> str:
        seen.append(messages[0].content)  # type: ignore[attr-defined]
        return FINE

    assert len(pairs(workshop)) == 3
    asyncio.run(rationalise_all(workshop, Scripted(say), direct=True))
    assert len(seen) == 2
    assert not any("it is wrong" in text or "no 0" in text for text in seen)
    assert workshop.rationales(direct=False) == {}


def test_without_repairs_there_is_nothing_to_explain(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none is repaired"):
        asyncio.run(rationalise_all(a_workshop(tmp_path, [failure("no")]), answers("x")))
