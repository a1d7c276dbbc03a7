"""The page in headless Chromium: no error, every chart has marks, the viewer steps through turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ptxgym.store.reader import read_run

pytestmark = pytest.mark.browser
MARKS = "[class*='role-mark'] path, [class*='role-mark'] line, [class*='role-mark'] text, [class*='role-mark'] rect"


def opened(browser: Any, file: Path, **settings: Any) -> tuple[Any, list[str]]:
    """Open the page offline; what the console says is collected."""
    context = browser.new_context(**settings)
    context.set_offline(True)
    page = context.new_page()
    told: list[str] = []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: told.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(file.as_uri())
    page.wait_for_selector(".steps button")
    return page, told


def test_no_console_error_no_request_and_every_chart_has_marks(browser: Any, page_file: Path) -> None:
    page, told = opened(browser, page_file)
    figures = page.locator("figure.chart")
    assert figures.count() == 4
    for at in range(4):
        figure = figures.nth(at)
        assert figure.locator(MARKS).count() > 4, figure.get_attribute("id")
        box = figure.locator("svg").bounding_box()
        assert box["width"] > 300 and box["height"] > 100
        drawn = float(str(figure.locator("svg").first.get_attribute("viewBox")).split()[2])
        assert 0.6 < box["width"] / drawn < 1.2, "letters are as large as those of the page"
    assert told == []
    page.context.close()


def test_keys_step_through_turns_and_trajectories(browser: Any, page_file: Path, run_folder: Path) -> None:
    page, told = opened(browser, page_file)
    stored = read_run(run_folder)
    page.select_option("#filter-task", "ptxgym/Gemm-H100-v1")
    page.locator("#list li", has_text="patient · parameters #1").click()
    identifier = "ptxgym/Gemm-H100-v1/base/patient/parameters/0"
    turns = stored.turns_of(identifier)
    page.locator("#detail[aria-busy='false']").wait_for()  # a trajectory is unpacked when it is chosen
    page.locator(".steps button").first.click()
    for turn in turns:
        current = page.locator(".steps button[aria-current='true']")
        assert current.get_attribute("data-turn") == str(turn.turn)
        assert current.locator("b").inner_text() == f"{turn.score:.2f}"
        assert page.locator(".verdict .code").inner_text().startswith(str(turn.verdict.status))
        histogram = page.locator(".histogram .bars span:nth-child(3n+1)")
        families = [] if turn.verdict.evidence is None else list(turn.verdict.evidence.families)
        assert sorted(histogram.all_inner_texts()) == sorted(families)
        errors = [each for each in turn.verdict.diagnostics if each.severity == "error"]
        assert page.locator(".source tr.mark.error").count() == len(errors) + sum(
            each.line is not None and each.severity == "error" for each in turn.verdict.findings
        )
        rewards = page.locator(".panel").first.locator(".bars span:nth-child(3n)").all_inner_texts()
        assert rewards == [f"{value:.3f}" for value in turn.terms.values()]
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(30)
    assert page.locator(".steps button[aria-current='true']").get_attribute("data-turn") == str(len(turns)), "stays"
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("document.querySelector('.steps [aria-current=true]').dataset.turn === '3'")
    before = page.locator("#list li[aria-current='true']").get_attribute("data-index")
    page.keyboard.press("ArrowDown")
    page.wait_for_function(f"document.querySelector('#list [aria-current=true]').dataset.index !== '{before}'")
    assert told == []
    page.context.close()


def test_the_difference_marks_lines_that_came_and_went(browser: Any, page_file: Path, run_folder: Path) -> None:
    page, _ = opened(browser, page_file)
    page.locator("#list li", has_text="swift · ").first.click()
    page.locator("#detail[aria-busy='false']").wait_for()
    page.locator(".steps button").nth(1).click()
    page.wait_for_selector("#whole")
    added, deleted = page.locator(".source tr.add"), page.locator(".source tr.del")
    remark = page.locator(".tools small").inner_text()
    assert f"+{added.count()} −{deleted.count()} lines" in remark and added.count() > 0
    folded = page.locator(".source tr.fold").count()
    lines = page.locator(".source tr").count()
    page.keyboard.press("w")
    page.wait_for_function("document.querySelectorAll('.source tr.fold').length === 0")
    assert folded > 0 and page.locator(".source tr").count() > lines
    page.context.close()


def test_filters_and_links_choose_trajectories(browser: Any, page_file: Path) -> None:
    page, _ = opened(browser, page_file)
    everything = page.locator("#list li").count()
    page.select_option("#filter-agent", "stubborn · contract")
    assert 0 < page.locator("#list li").count() < everything
    page.locator("#detail[aria-busy='false']").wait_for()
    assert "stubborn" in page.locator("#detail h3").first.inner_text()
    page.goto(page_file.as_uri() + "#ptxgym%2FGemm-H100-v1%2Fbase%2Fswift%2Fcontract%2F1@2")
    page.reload()
    page.wait_for_selector(".steps button")
    assert page.locator("#detail h3").first.inner_text() == "swift on Gemm-H100-v1"
    assert page.locator(".steps button[aria-current='true']").get_attribute("data-turn") == "2"
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_fits_its_window_and_is_readable_in_both_schemes(
    browser: Any, page_file: Path, scheme: str, width: int
) -> None:
    page, told = opened(browser, page_file, viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    contrast = """(selector) => {
      const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number).map((value) => value / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
      const light = ([red, green, blue]) => 0.2126 * red + 0.7152 * green + 0.0722 * blue;
      const ink = light(parse(getComputedStyle(document.querySelector(selector)).color));
      const paper = light(parse(getComputedStyle(document.body).backgroundColor));
      return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    }"""
    for selector, least in (("h1", 7.0), (".note", 4.5), ("nav a", 4.5), (".facts .good", 4.5)):
        assert page.evaluate(contrast, selector) >= least, selector  # WCAG 2.2, 1.4.3
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == ("dark" if scheme == "light" else "light")
    assert told == []
    page.context.close()
