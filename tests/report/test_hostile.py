"""Nothing that a submission or a model wrote is markup, script or style in the page."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.report.page import render
from ptxgym.report.text import LONGEST, shown, visible
from ptxgym.store.reader import StoredRun, read_run
from tests.report.reading import Page

ATTACKS = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    '" onmouseover="window.hacked=1" x=\'',
    "<!--<script>",
    "]]></style><style>body{display:none}</style>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.hacked=1",
    "&lt;b&gt;&amp;",
    "abc\u202edcba\u2066\x00\x1b[31m",
)
ATTACK = " ".join(ATTACKS)


def spoiled(stored: StoredRun) -> StoredRun:
    """The run with the attack in every text that is not the project's own."""
    agent = f"evil {ATTACK}"
    episodes, turns = [], []
    for episode in stored.episodes[:8]:
        name = agent if episode.agent == "patient" else episode.agent
        episodes.append(episode.model_copy(update={"agent": name, "problem": ATTACK, "arm": f"{episode.arm}{ATTACK}"}))
        for turn in stored.turns_of(episode.id):
            found = turn.verdict
            output = {"name": ATTACK, "worst_region": ATTACK, "pattern": ATTACK, "explanations": (ATTACK,)}
            update = {
                "message": ATTACK,
                "code": ATTACK,
                "printed": ATTACK,
                "outputs": tuple(each.model_copy(update=output) for each in found.outputs),
                "diagnostics": tuple(each.model_copy(update={"message": ATTACK}) for each in found.diagnostics),
                "findings": tuple(
                    each.model_copy(update={"message": ATTACK, "code": ATTACK, "remedy": ATTACK})
                    for each in found.findings
                ),
            }
            turns.append(
                turn.model_copy(
                    update={
                        "source": f"// {ATTACK}\n{turn.source}",
                        "response": ATTACK,
                        "reasoning": ATTACK,
                        "feedback": ATTACK,
                        "model": ATTACK,
                        "finish_reason": ATTACK,
                        "notes": (ATTACK,),
                        "terms": {ATTACK: turn.reward},
                        "verdict": found.model_copy(update=update),
                    }
                )
            )
    record = stored.record.model_copy(update={"tags": {"summary": ATTACK}, "device": ATTACK, "canary": ATTACK})
    record = record.model_copy(update={"versions": {ATTACK: ATTACK}, "prompts_sha256": {ATTACK: ATTACK}})
    sweep = {**record.sweep, "agents": {"swift": {"base_url": ATTACK, "sampling": {ATTACK: ATTACK}}}}
    record = record.model_copy(update={"sweep": sweep})
    return StoredRun(stored.folder, record, tuple(episodes), tuple(turns), ())


@pytest.fixture(scope="session")
def hostile_file(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hostile") / "report.html"
    file.write_text(render([spoiled(read_run(run_folder))]), encoding="utf-8")
    return file


def test_the_page_has_the_tags_of_an_innocent_one(hostile_file: Path, html: str) -> None:
    text = hostile_file.read_text()
    page, innocent = Page(text), Page(html)
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in innocent.tags}
    attributes = {name for _, found in innocent.tags for name in found}
    assert {name for _, found in page.tags for name in found} <= attributes
    assert [found.get("type") for found, _ in page.scripts if not found.get("type")] == [None]
    assert "window.hacked" in text, "it is there, as text"
    assert text.count("<style>") == 1 and "49{% raw" not in text
    assert not {"\u202e", "\u2066", "\x00", "\x1b"} & set(text), "nothing invisible, either"
    assert "\\u202e" in text


def browser_page(browser, file: Path):  # type: ignore[no-untyped-def]
    page = browser.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: told.append(dialog.message))
    page.goto(file.as_uri())
    page.wait_for_selector(".steps button")
    return page, told


@pytest.mark.browser
def test_nothing_of_it_runs_in_a_browser(browser, hostile_file: Path) -> None:  # type: ignore[no-untyped-def]
    page, told = browser_page(browser, hostile_file)
    for item in range(page.locator("#list li").count()):
        page.locator("#list li").nth(item).click()
        page.locator("#detail[aria-busy='false']").wait_for()
        for turn in range(page.locator(".steps button").count()):
            page.locator(".steps button").nth(turn).click()
            for summary in page.locator("#detail details summary").all():
                summary.click()
            assert page.evaluate("window.hacked") is None
            assert page.locator("#detail img, #detail svg, #detail script, #detail style").count() == 0
    assert "</script><script>window.hacked = 1</script>" in page.locator("#detail").inner_text()
    assert told == []
    page.close()


@given(st.text(alphabet=st.characters()))
def test_visible_text_has_no_character_that_hides_or_turns(text: str) -> None:
    found = visible(text)
    hidden = {letter for letter in found if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")} - {"\n", "\t"}
    assert not hidden and not any(
        unicodedata.bidirectional(letter) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI", "FSI", "PDI")
        for letter in found
    )
    assert visible(found.encode().decode()) == found


def test_ordinary_text_stays_and_long_text_is_cut_in_the_open() -> None:
    assert visible("naïve × 2 − Ωπ → 好\tok\r\nnext") == "naïve × 2 − Ωπ → 好\tok\nnext"
    assert visible("a\u202eb\ud800") == "a\\u202eb\\ud800"
    assert shown("x" * LONGEST) == "x" * LONGEST
    assert shown("x" * (LONGEST + 5)).endswith("\n… 5 more characters are not shown …")
