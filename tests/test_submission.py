from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.submission import MAX_SOURCE_BYTES, Submission, check_text, extract
from ptxgym.verdict import Stage, Status

KERNEL = '__global__ void k() {}\nextern "C" void run(cudaStream_t stream) { k<<<1, 1, 0, stream>>>(); }\n'
OTHER = KERNEL.replace("k", "other")


def test_sha256_is_of_the_text():
    assert Submission("abc").sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert Submission("abc").sha256 != Submission("abd").sha256


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "submission.empty"),
        (" \n\t\r\n", "submission.empty"),
        ("x" * (MAX_SOURCE_BYTES + 1), "submission.too_large"),
        ("é" * (MAX_SOURCE_BYTES // 2 + 1), "submission.too_large"),
        ("x" * 10_000_000, "submission.too_large"),
        ("\x7fELF\x02\x01\x01\0\0", "submission.not_text"),
        ("int x;\0", "submission.not_text"),
        ("// \x1b[31m", "submission.not_text"),
        ("// \ud800", "submission.not_text"),
        ("\ufeff \n", "submission.empty"),
        (f"```cuda\n{KERNEL}```\n", "submission.markdown"),
        (f"Here it is:\n\n  ```\n{KERNEL}```\n", "submission.markdown"),
        (f"{KERNEL}#if 1\n#endif\n```\n", "submission.markdown"),
    ],
)
def test_refuses_what_is_no_kernel_file(text, code):
    failure = check_text(text)
    assert failure is not None
    assert (failure.stage, failure.status, failure.code) == (Stage.SUBMISSION, Status.REJECTED, code)
    assert failure.model_dump_json()  # no surrogate of the text comes along


FENCES_THAT_COMPILERS_SKIP = [
    f"/*\n```\nint x;\n```\n*/\n{KERNEL}",
    f"// ```cuda\n{KERNEL}// ```\n",
    f'const char* text = R"(\n```\n)";\n{KERNEL}',
    f"#if 0\n```\n#endif\n{KERNEL}",
]


def test_utf16_is_called_so():
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        assert "is UTF-16" in check_text(KERNEL.encode(encoding).decode("utf-8", "surrogateescape")).message
    for text in (KERNEL + "\0", "\0", "a\0b", "\0" * 8):
        assert "is UTF-16" not in check_text(text).message


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (b"// h\xf6he\n", "the byte 0xF6 in line 1,"),
        (KERNEL.encode() + b"//\n// \x80\n", "the byte 0x80 in line 4,"),
        (b"int x;\n\0", "the character U+0000 in line 2,"),
        (b"\n\n// \x1b[31m", "the character U+001B in line 3,"),
    ],
)
def test_what_is_no_text_is_named_with_its_line(raw, named):
    assert named in check_text(raw.decode("utf-8", "surrogateescape")).message


def test_a_fence_is_named_with_its_line():
    failure = check_text(f"Here it is:\n\n```cuda\n{KERNEL}```\n")
    assert failure.message.startswith("Line 3 is a Markdown fence, ```cuda: ") and "extract" in failure.message


@pytest.mark.parametrize(
    "text", [KERNEL, "x", "// é 语\n\tint x;\r\n\f\v", "x" * MAX_SOURCE_BYTES, *FENCES_THAT_COMPILERS_SKIP]
)
def test_accepts_text(text):
    assert check_text(text) is None


def test_limit_is_the_callers():
    assert check_text("x" * 11, max_bytes=10).code == "submission.too_large"
    assert check_text("x" * 10, max_bytes=10) is None


@given(st.binary(max_size=200))
def test_bytes_that_are_not_utf8_are_not_text(data):
    text = data.decode("utf-8", "surrogateescape")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        assert check_text(text).code == "submission.not_text"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (f"Here:\n```cuda\n{KERNEL}```\nDone.", KERNEL),
        (f"```cpp\n{KERNEL}```", KERNEL),
        (f"```C++\n{KERNEL}```", KERNEL),
        (f"```\n{KERNEL}```", KERNEL),
        (f"~~~cu\n{KERNEL}~~~", KERNEL),
        (f"```cuda title=k.cu\n{KERNEL}```", KERNEL),
        (f"````cuda\n// ```\n{KERNEL}````", "// ```\n" + KERNEL),
        (f"```cuda\r\n{KERNEL}```\r\n", KERNEL),
        (KERNEL, KERNEL),
        (f"{KERNEL}```", KERNEL),
        (f"{KERNEL}```\r\n\n", KERNEL),
        (f"{KERNEL}~~~\n", KERNEL),
        (f"```bash\nnvcc k.cu\n```\n```cuda\n{KERNEL}```\n```\nno kernel here\n```", KERNEL),
    ],
)
def test_finds_the_file(answer, text):
    found = extract(answer)
    assert (found.code, found.text, found.notes, found.failure) == (None, text, (), None)


def test_takes_the_last_whole_file_of_several():
    found = extract(f"First\n```cuda\n{KERNEL}```\nbetter:\n```cuda\n{OTHER}```\n")
    assert (found.text, found.notes) == (OTHER, ("several_blocks",))
    found = extract(f"```cuda\n{KERNEL}```\nwhere the loop is\n```cpp\nfor (;;) {{}}\n```\n")
    assert (found.text, found.notes) == (KERNEL, ("several_blocks",))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("", "no_code"),
        ("I cannot do that.", "no_code"),
        ("```python\nprint(1)\n```", "no_code"),
        ("```cuda\n```", "no_code"),
        ("I cannot do that.\n```\n", "no_code"),
        (f"{KERNEL}```\nThat is all.", "no_code"),
        (f"{KERNEL}```cuda\n", "no_code"),
        (f"```cuda\n{KERNEL}", "truncated_response"),
        (f"```cuda\n{KERNEL}```\nand now better:\n```cuda\n{OTHER[:40]}", "truncated_response"),
        (f"```\n{KERNEL[:-20]}", "truncated_response"),
    ],
)
def test_says_what_was_wrong(answer, code):
    found = extract(answer)
    assert (found.code, found.text) == (code, "")
    assert found.failure.code == f"submission.{code}"


@given(st.text(alphabet="`~ \ncuda{}_\"'", max_size=200))
def test_never_fails_and_never_invents(answer):
    found = extract(answer)
    assert found.text in answer.replace("\r\n", "\n")
    assert (found.text == "") == (found.code is not None)


def test_an_answer_that_reached_its_limit_holds_what_was_complete() -> None:
    assert extract(f"```cuda\n{KERNEL}```\nThis", cut_off=True).text == KERNEL
    for answer in ("", "I think", KERNEL, f"```cuda\n{KERNEL}"):
        assert extract(answer, cut_off=True).code == "truncated_response"
    assert extract(KERNEL).text == KERNEL and extract("I think").code == "no_code"


@pytest.mark.parametrize("line", ["```" + " " * 99_999, "```" + "a" * 99_999, "~" * 99_999, "``` a" * 20_000])
def test_a_long_line_that_is_no_fence_takes_linear_time(line: str) -> None:
    assert extract(f"{line} `\n```cuda\n{KERNEL}```\n").text == KERNEL
    assert check_text(f"// ```\n{line} `\n") is not None or line.startswith("~")


@pytest.mark.parametrize("line", ["\\\n", '\\"'])
def test_an_open_string_of_many_lines_takes_linear_time(line: str) -> None:
    assert check_text(f'// ```\n"{line * 99_999}\nint x;\n') is None
