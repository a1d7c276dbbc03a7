"""What endpoints and users write: any text is parsed or refused, never a surprise."""

from __future__ import annotations

import json

from hypothesis import example, given
from hypothesis import strategies as st

from ptxgym.agent.answer import split_thinking
from ptxgym.agent.prompting import fenced
from ptxgym.agent.trouble import retry_after_s
from ptxgym.cli.settings import parse_settings
from ptxgym.errors import UsageError
from ptxgym.submission import extract

HEADERS = st.text() | st.from_regex(r"\A-?\d{1,30}(\.\d+)?\Z") | st.from_regex(
    r"\A(Mon, )?\d{1,2} (Jan|Feb|Dec) \d{1,6} \d{1,2}:\d{2}(:\d{2})?( GMT| [+-]\d{4,6})?\Z"
)  # fmt: skip


@given(HEADERS, HEADERS)
@example("Mon, 01 Jan 99999 00:00:00 GMT", "")
@example("1 Jan 2026 00:00:00 +999999", "")
@example("Mon, 01 Jan 99999999999 00:00:00 GMT", "")
def test_any_retry_after_is_a_wait_or_nothing(after: str, milliseconds: str) -> None:
    wait_s = retry_after_s({"retry-after": after, "retry-after-ms": milliseconds})
    assert wait_s is None or wait_s >= 0


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_numbers_are_seconds_and_milliseconds(seconds: int, milliseconds: int) -> None:
    assert retry_after_s({"retry-after": str(seconds)}) == seconds
    assert retry_after_s({"retry-after-ms": str(milliseconds)}) == milliseconds * 1e-3


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "\n", " ", "a", "```cuda\nx\n```"]), max_size=8).map("".join)


@given(PIECES)
def test_thinking_and_answer_lose_nothing_but_tags_and_blank(text: str) -> None:
    thought, answer = split_thinking(text)
    kept = (thought + answer).replace("<think>", "").replace("</think>", "")
    whole = text.replace("<think>", "").replace("</think>", "")
    assert "".join(kept.split()) == "".join(whole.split())
    assert text.endswith(answer)


@given(st.text(alphabet="`~ \nxcuda", max_size=60).map(lambda text: f'extern "C" {text}'))
def test_what_is_fenced_is_extracted_as_it_was(source: str) -> None:
    assert extract(fenced(source)).text.rstrip() == source.rstrip()


@given(st.lists(st.text(max_size=20) | st.builds("{}={}".format, st.sampled_from(["a", "b.c"]), st.text(max_size=20))))
def test_settings_are_json_or_refused(texts: list[str]) -> None:
    try:
        found = parse_settings(texts)
    except UsageError:
        return
    json.dumps(found, allow_nan=False)
    assert len(found) == len(texts)


def test_a_value_of_several_lines_stays_one() -> None:
    assert parse_settings(["a=1\nb = 2", 'c="""x\ny"""']) == {"a": "1\nb = 2", "c": "x\ny"}
