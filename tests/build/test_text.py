from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxgym.build.elf import exported_functions
from ptxgym.build.entry import entry_name, translation_unit, written_signature
from ptxgym.build.text import blank_comments, blank_directives, code_only, line_of, literal_foreign_path, ptx_code
from ptxgym.build.unconfined import foreign_file_in, has_host_assembly


@pytest.mark.parametrize(
    ("text", "blanked"),
    [
        ("a // b\nc", "a     \nc"),
        ("a /* b\nc */ d", "a     \n     d"),
        ('"// no" // yes', '"// no"       '),
        ("'\"' // x", "'\"'     "),
        ('R"(// no)" // x', 'R"(// no)"     '),
        ("a // b \\\nc\nd", "a       \n \nd"),
        ("/* open", "       "),
        ('"no \\\n// end" // x', '"no \\\n// end"     '),
        ("1'000 // it's", "1'000        "),
        ("u8'\"' // x", "u8'\"'     "),
    ],
)
def test_blank_comments(text, blanked):
    assert blank_comments(text) == blanked


@given(st.text(alphabet="/*\"'\\\n aR()#", max_size=60))
def test_blanking_keeps_offsets_and_lines(text):
    for blank in (blank_comments, blank_directives):
        result = blank(text)
        assert len(result) == len(text)
        assert [i for i, c in enumerate(result) if c == "\n"] == [i for i, c in enumerate(text) if c == "\n"]
        assert all(a == b or a == " " for a, b in zip(result, text, strict=True))


def test_code_only_keeps_numbers():
    assert code_only("f(1'000, 'a', \"b\", 0x1'0)") == "f(1'000,    ,    , 0x1'0)"


def test_line_of():
    assert [line_of("a\nb\n", offset) for offset in range(4)] == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("text", "signature"),
    [
        ('#include <x>\nextern "C" void run(int a,\n   int b) {\n}', ('extern "C" void run(int a, int b)', 2)),
        ('extern "C" {\nvoid run(int a) {}\n}', ('extern "C" void run(int a)', 2)),
        ("void run(int);\nvoid run(int a) { }", ("void run(int a)", 2)),
        ("void run(int);", ("void run(int)", 1)),
        ("// void run(int a) {}\nstatic int run(long) noexcept {", ("static int run(long) noexcept", 2)),
        ("void prerun(int) {} void runner() {}", None),
        ("", None),
    ],
)
def test_written_signature(text, signature):
    assert written_signature(text, "run") == signature


def test_entry_name():
    assert entry_name('extern "C" void run(int a, cudaStream_t s)') == "run"
    with pytest.raises(ValueError, match="not a function"):
        entry_name("int x")


def test_translation_unit_keeps_the_lines_of_the_text():
    unit = translation_unit("first\nsecond", 'extern "C" void run(const __nv_bfloat16* A, int M)').split("\n")
    assert unit[:3] == ['#line 1 "/kernel.cu"', "first", "second"]
    assert "#undef run" in unit
    assert "#undef M" in unit
    assert "#undef C" not in unit
    assert "struct __nv_bfloat16;" in unit


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('#include "/etc/passwd"', "/etc/passwd"),
        ("  #  include <../x.h>", "../x.h"),
        ('#if __has_include("a/../../x")', "a/../../x"),
        ('#include "~/x.h"', "~/x.h"),
        ('// #include "/etc/passwd"', None),
        ('#include "x/y..h"', None),
        ("#include <cuda/ptx>", None),
        ('const char* s = "/etc/passwd";', None),
    ],
)
def test_literal_foreign_path(text, path):
    assert literal_foreign_path(text) == path


@pytest.mark.parametrize(
    "text",
    [
        '#include "/etc/passwd"',
        '// #include "/etc/passwd"',
        "#include FILE_NAME",
        '%:include "/x"',
        '??=include "/x"',
        '#inc\\\nlude "/x"',
        '#/* */include/* \n */"/x"',
        "#if __has_include(FILE_NAME)",
        "#line 7",
        '# 7 "/usr/include/x.h"',
        "#include <../x>",
        '#embed "/x"',
        'R"(\n#/*\n# 1 "x"\n*/include <cstdio>\n)"',
        'R"(\n#include <cstdio> \\\n# 1 "x"\n)"',
        'R"(\r# 1 "x"\n)"',
        '#if __has_include(<a>) || __has_include("/x")',
        "#include/**/<cuda.h>",
    ],
)
def test_unconfined_refuses(text):
    assert foreign_file_in(text) is not None


@pytest.mark.parametrize(
    "text", ["#include <cuda.h>", '#include "cuda/ptx"', "#if __has_include(<mma.h>)", "#define X 1"]
)
def test_unconfined_accepts(text):
    assert foreign_file_in(text) is None


DEVICE = "__attribute__((device)) "
HOST = "__attribute__((host)) "


@pytest.mark.parametrize(
    ("code", "host"),
    [
        ('asm("x");', True),
        ('void f() { asm("x"); }', True),
        (HOST + DEVICE + 'void f() { asm("x"); }', True),
        ('void f(int device) { asm("x"); }', True),
        ("void f(" + DEVICE + 'int x) { asm("x"); }', True),
        (DEVICE + 'void f() { } void g() { __asm__("x"); }', True),
        (DEVICE + 'int v = 3; void g() { asm("x"); }', True),
        (DEVICE + 'void f() { if (1) { asm("x"); } }', False),
        ('__attribute__((global)) void __attribute__((launch_bounds(384))) f(int a) { asm("x"); }', False),
        ("namespace a { struct B { " + DEVICE + 'int f() const { __asm__ volatile("x"); } }; }', False),
        ("template <class T> " + DEVICE + 'T f() { asm("x"); }', False),
        ('const char* s = "asm";', False),
        ("int x = 1'0; asm(\"x\"); char c = 'a';", True),
        ("int x = 1'0; char c = 'a'; const char* s = \"asm\";", False),
        ('auto s = LR"(")"; asm("x"); auto t = "";', True),
        ('auto s = u8R"-(" asm()-";', False),
        ('auto s = "a"R"("; asm("x"); auto t = ")";', True),
        ('auto s = "a\\\\"; asm("x");', True),
        ('__attribute__((section(".text\\n.incbin 1"))) int v;', True),
        ('[[gnu::__alias__(R"(x)")]] int f();', True),
        ('void section(const char*); void f() { g("section"); }', False),
        ("namespace a { void f() { " + DEVICE + 'int v; { asm("x"); } } }', True),
        (DEVICE + 'void f() { struct B { int g() { asm("x"); } }; }', False),
    ],
)
def test_host_assembly(code, host):
    assert has_host_assembly(f'# 1 "/usr/include/x.h"\nasm("of a header");\n# 1 "/kernel.cu"\n{code}\n') is host


def test_exported_functions_needs_an_elf_file(tmp_path):
    (tmp_path / "x").write_text("no")
    with pytest.raises(ValueError, match="not a 64-bit"):
        exported_functions(tmp_path / "x")


LONG = 100_000  # quadratic time would exceed the suite's limit
UNITS = ["a ", 'R"(', "run ", "run(", "//", '"\n', "{", "\\\n", '\\"', "\\'", "1'", "/*", "__has_include(<", "#/*"]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("before", ["", '"'])
def test_long_texts_take_linear_time(before, unit):
    text = before + unit * (LONG // len(unit))
    assert len(blank_comments(text)) == len(code_only(text)) == len(text)
    assert literal_foreign_path(text) is None
    assert written_signature(text, "run") is None


def test_paths_after_what_is_left_open_are_found():
    assert literal_foreign_path('#if 0\ndon\'t /*\n#endif\n#include "/etc/passwd" // */\n') == "/etc/passwd"
    assert literal_foreign_path('#if __has_include(<a>) || __has_include("/etc/passwd")\n') == "/etc/passwd"


@pytest.mark.parametrize(
    "unit", ["#/**/", "#/*", "# ", "__has_include(", "#include <", '\\"', "\\'", "a{", "asm", "asm ", "asm{"]
)
@pytest.mark.parametrize("before", ["", '"', "'", "namespace a{"])
def test_the_strict_rules_take_linear_time(before, unit):
    text = before + unit * (LONG // len(unit))
    assert (foreign_file_in(text) is not None) == unit.startswith(("#/", "#i", "__has"))
    assert has_host_assembly(f'# 1 "/kernel.cu"\n{text}') == (unit in ("asm ", "asm{") and before not in ('"', "'"))


def test_an_open_raw_string_hides_the_rest():
    assert blank_comments('R"(a // b') == 'R"(a // b'


@pytest.mark.parametrize(
    ("ptx", "code"),
    [
        ("a // .entry k(\nb", "a  \nb"),
        ("a /* .entry k(\n */ b", "a   b"),
        ('.pragma ".entry k";', ".pragma  ;"),
        ('.file 1 "a//b" c', ".file 1   c"),
        ("/* open", " "),
    ],
)
def test_ptx_code(ptx, code):
    assert ptx_code(ptx) == code
