"""Episodes without Gymnasium, and kernels of which only regions may change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ptxgym.device.protocol import Execution, RunOptions
from ptxgym.envs import load_env
from ptxgym.episode import Episode
from ptxgym.errors import UnknownNameError, UsageError, WorkerDied
from ptxgym.evaluator import Evaluator
from ptxgym.skeleton import Skeleton
from ptxgym.verdict import Status
from tests.bad_kernels import host
from tests.scripted import ScriptedDevice

RIGHT = host("")
ENV = "PTX-Gemm-H100"


@pytest.fixture
def device() -> ScriptedDevice:
    return ScriptedDevice(family="fma")


@pytest.fixture
def evaluator(device: ScriptedDevice) -> Iterator[Evaluator]:
    with Evaluator(device) as made:
        yield made


def test_turns_rewards_and_best(evaluator: Evaluator, device: ScriptedDevice) -> None:
    episode = Episode(ENV, evaluator, turns=4)
    assert (episode.done, episode.turns_left, episode.best_score, episode.best_source) == (False, 4, 0.0, "")
    first = episode.submit("nothing")
    assert (first.number, first.score, first.reward, first.done) == (1, 0.0, 0.0, False)
    assert first.verdict.status is Status.COMPILE_ERROR and first.feedback.startswith("Does not compile.")
    second = episode.submit(RIGHT)
    assert (second.score, second.reward, second.best_score) == (0.2, pytest.approx(0.2), 0.2)
    device.family = "wgmma"
    third = episode.submit(RIGHT + "// with wgmma\n")
    assert (third.score, third.reward) == (0.5, pytest.approx(0.3))
    assert episode.best is third
    fourth = episode.submit(RIGHT)
    assert (fourth.score, fourth.reward, fourth.best_score, fourth.done) == (0.2, 0.0, 0.5, True)
    assert episode.best_source == RIGHT + "// with wgmma\n"
    assert (episode.done, episode.turns_left, len(episode.turns)) == (True, 0, 4)
    with pytest.raises(UsageError, match="over after turn 4"):
        episode.submit(RIGHT)


def test_answers_are_searched_for_a_kernel(evaluator: Evaluator) -> None:
    episode = Episode(ENV, evaluator, turns=4)
    nothing = episode.answer("I would use TMA.")
    assert (nothing.verdict.code, nothing.source, nothing.score) == ("submission.no_code", "I would use TMA.", 0.0)
    cut = episode.answer("I would use", cut_off=True)
    assert cut.verdict.code == "submission.truncated_response" and cut.verdict.status is Status.REJECTED
    found = episode.answer(f"```\nint x;\n```\nNow the kernel:\n```cuda\n{RIGHT}```\n")
    assert (found.source, found.score, found.notes, found.number) == (RIGHT, 0.2, (), 3)
    several = episode.answer(f"```cuda\nint x;\n```\n```cuda\n{RIGHT}```\n")
    assert (several.source, several.notes, several.done) == (RIGHT, ("several_blocks",), True)
    with pytest.raises(UsageError, match="over after turn 4"):
        episode.answer(RIGHT)


def test_an_answer_must_keep_to_the_skeleton(evaluator: Evaluator) -> None:
    skeleton = RIGHT.replace("kernel<<<", "// ptxgym: begin launch\n  // ptxgym: end\n  kernel<<<")
    episode = Episode(ENV, evaluator, turns=2, skeleton=skeleton)
    assert episode.answer(f"```cuda\n{RIGHT}```").verdict.code == "submission.skeleton_changed"
    assert episode.answer(f"```cuda\n{skeleton}```").score == 0.2


def test_rewards_at_the_end(evaluator: Evaluator) -> None:
    episode = Episode(ENV, evaluator, turns=2, reward="final")
    assert [episode.submit(text).reward for text in (RIGHT, "nothing")] == [0.0, pytest.approx(0.2)]


def test_machine_failure_costs_no_turn(evaluator: Evaluator, device: ScriptedDevice) -> None:
    def die(options: RunOptions, execution: Execution) -> Execution:
        raise WorkerDied("gone")

    episode = Episode(ENV, evaluator, turns=1)
    device.interfere = die
    with pytest.raises(WorkerDied):
        episode.submit(RIGHT)
    assert episode.turns == () and not episode.done
    device.interfere = lambda options, execution: execution
    assert episode.submit(RIGHT).done


def test_asynchronous_submissions_are_turns_one_after_the_other(evaluator: Evaluator) -> None:
    async def play() -> list[int]:
        episode = Episode(ENV, evaluator, turns=3)
        turns = await asyncio.gather(*(episode.asubmit(text) for text in ("a", "b", RIGHT)))
        return sorted(turn.number for turn in turns)

    assert asyncio.run(play()) == [1, 2, 3]


def test_configuration_may_be_given_and_changed(evaluator: Evaluator) -> None:
    config = load_env(ENV)
    episode = Episode(config, evaluator, turns=2, feedback_bytes=3000)
    assert (episode.config.turns, episode.config.feedback_bytes, config.turns) == (2, 3000, 8)
    assert "You have 2 turns" in episode.prompt()
    assert len(episode.submit("x = ;\n" * 500).feedback.encode()) <= 3000
    with pytest.raises(UnknownNameError, match="did you mean 'final'"):
        Episode(ENV, evaluator, reward="finl")


def test_start_kernel_counts_as_paid_and_as_best_until_one_is_better(
    evaluator: Evaluator, device: ScriptedDevice
) -> None:
    episode = Episode(ENV, evaluator, init=RIGHT)
    assert (episode.best_score, episode.best_source) == (0.2, RIGHT)
    assert episode.opening().startswith("Correct.")
    assert episode.submit(RIGHT + "// other\n").reward == 0.0
    assert episode.best_source == RIGHT
    device.family = "wgmma"
    assert episode.submit(RIGHT + "// better\n").reward == pytest.approx(0.3)
    assert episode.best_source == RIGHT + "// better\n"
    assert Episode(ENV, evaluator).opening() == ""


def test_prompt_comes_from_content(evaluator: Evaluator) -> None:
    episode = Episode(ENV, evaluator)
    prompt = episode.prompt()
    assert f"{episode.task.signature.declaration()};" in prompt
    for fact in ("M=256, N=512, K=576", "a multiple of 256", "`wgmma` must do at least 90%", "132 SMs", "sm_90a"):
        assert fact in prompt
    for shape in episode.task.workload("emulation").hidden:
        assert f"M={shape['M']}, N={shape['N']}" not in prompt
    fenced = Episode(ENV, evaluator, init="// ```\n").prompt()
    assert "````cuda\n// ```\n````" in fenced


TWO = "head\n// ptxgym: begin one\nold\n// ptxgym: end\nmiddle\n  //ptxgym: begin two\n// ptxgym: end\ntail\n"


@pytest.mark.parametrize(
    ("submission", "place"),
    [
        (TWO, None),
        (TWO.replace("old", "new\nlines"), None),
        (TWO.replace("two\n", "two\nnew\n"), None),
        (TWO.rstrip("\n"), None),
        (TWO.replace("old\n", ""), None),
        (TWO.replace("head", "HEAD"), "before region 'one'"),
        ("x" + TWO, "before region 'one'"),
        (TWO.replace("middle", "muddle"), "before region 'two'"),
        (TWO.replace("tail", "tail2"), "after region 'two'"),
        (TWO + "more\n", "after region 'two'"),
        (TWO.replace("begin one", "begin other"), "before region 'one'"),
        ("", "before region 'one'"),
    ],
)
def test_skeleton_names_the_fixed_part_that_differs(submission: str, place: str | None) -> None:
    failure = Skeleton.parse(TWO).check(submission)
    if place is None:
        assert failure is None
    else:
        assert failure is not None and failure.code == "submission.skeleton_changed" and place in failure.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("#if 0", "#endif"),
        ("#else", ""),
        ("#ifdef X\n#endif\n#elif 1", ""),
        ("#endif\n#if 1", ""),
        ("#/*\n*/if 0", "#endif"),
        ("%: \\\nif 0", "%:endif"),
        ("/* open", "*/"),
        ("/\\\n* open", "*/"),
        ("/*/", "*/"),
        ('auto s = R"(', ')";'),
        ('auto s = u8R"x( )"', ')x";'),
        ('auto s = R"( )\\\n"', ')";'),
        ('auto s = wordR"(" /* ")"', "*/"),
        ('auto s = "a"R"(" /* ")"', "*/"),
        ("int x = 1'0; /* '", "*/"),
        ("#define X \\", ""),
    ],
)
def test_a_region_switches_nothing_off(old: str, new: str) -> None:
    failure = Skeleton.parse(TWO).check(TWO.replace("old", old).replace("two\n", f"two\n{new}\n"))
    assert failure is not None and failure.code == "submission.skeleton_changed"
    assert "Region 'one' leaves" in failure.message


@pytest.mark.parametrize(
    "old",
    [
        "#ifdef X\n#if 1\n#elif 2\n#else\n#endif\n#endif",
        "/* #if */ // #if \\\n #if\nx",
        'auto s = R"(#if\n#else /* )" "/*" u8"R(";',
        "#define X \\\n  1'000 // it's /*",
        "int iffy;\n# iffy",
    ],
)
def test_a_region_may_hold_what_it_closes(old: str) -> None:
    assert Skeleton.parse(TWO).check(TWO.replace("old", old)) is None


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("no region", "no region"),
        ("// ptxgym: begin one\n", "'one' is not ended"),
        (TWO.replace("begin two", "begin one"), "two regions are named 'one'"),
    ],
)
def test_skeleton_that_is_none(text: str, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        Skeleton.parse(text)


def test_regions_are_named() -> None:
    assert Skeleton.parse(TWO).regions == ("one", "two")
