"""The fixture run and its page, made once; a browser where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ptxgym.report import write_report
from tests.report.fixture import write_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run")  # fmt: skip


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "spring")


@pytest.fixture(scope="session")
def page_file(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([run_folder], tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="session")
def html(page_file: Path) -> str:
    return page_file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")  # while it is open an event loop runs in this thread, in which others want their own
def browser() -> Iterator[Browser]:
    """Headless Chromium, of the system; the library brings none of its own."""
    # pip brings no browser, and a contributor's machine may have none; `.ci/run` installs one.
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser: install one of {', '.join(BROWSERS)}")
    playwright = pytest.importorskip("playwright.sync_api", reason="install ptxgym[dev]")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=found, args=list(QUIET))
        yield opened
        opened.close()
