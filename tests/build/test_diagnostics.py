"""Real messages of the real compiler: one mistake each, with the line and words that an author needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ptxgym.build import Build
from ptxgym.build.demangle import demangle, demangle_all, function_name, name_functions
from ptxgym.build.diagnostics import MAX_DIAGNOSTICS, read_messages, scrub
from ptxgym.build.hints import syntax_hint
from ptxgym.build.outcome import _compile_failure, judge_outcome
from ptxgym.build.ptx_lines import PtxLines
from ptxgym.verdict import Severity, Status
from tests.build.conftest import DECLARATION, GOOD, HEAD, RUN, failed


def kernel(body: str, before: str = "") -> str:
    """A submission whose kernel's body starts at line 3 (plus the lines of `before`)."""
    return HEAD + before + "__global__ void fill(__nv_bfloat16* C, int n) {\n" + body + "\n}\n" + RUN


MISTAKES = {
    "undefined name": (kernel("  C[0] = missing;"), 3, 'identifier "missing" is undefined'),
    "missing semicolon": (kernel("  n = 1\n  n = 2;"), 4, 'expected a ";"'),
    "wrong type": (kernel("  int* p = 3.5f;"), 3, 'a value of type "float" cannot be used to initialize'),
    "host function in a kernel": (
        kernel("  helper();", "void helper() {}\n"),
        4,
        'calling a __host__ function("helper()") from a __global__ function("fill")',
    ),
    "static assertion": (kernel('  static_assert(1 == 2, "one is not two");'), 3, "one is not two"),
    "error directive": ("#error stop here\n" + GOOD, 1, "stop here"),
    "unknown PTX instruction": (kernel('  asm volatile("frobnicate.b32 %0;" ::"r"(n));'), 3, "frobnicate"),
    "wrong PTX operand": (kernel('  asm volatile("mov.b64 %0, %0;" : "+r"(n));'), 3, "mismatch"),
    "PTX of an inlined function": (
        kernel(
            "  wrong(n);", '__device__ __forceinline__ void wrong(int x) {\n  asm volatile("bad.op %0;" ::"r"(x));\n}\n'
        ),
        3,
        "bad",
    ),
    "asm constraint": (kernel('  asm volatile("mov.b32 %0, 1;" : "=q"(n));'), 3, "asm"),
    "bad host instruction": (GOOD + 'void f() { asm("frob %eax"); }\n', 6, "no such instruction"),
    "error in a template of a header": (
        "#include <vector>\nstruct Fixed { Fixed(const Fixed&) = delete; Fixed() = default; };\n"
        "void f(std::vector<Fixed>& v) {\n  Fixed x;\n  v.push_back(x);\n}\n" + GOOD,
        5,
        "",
    ),
    "a header that refuses": (HEAD + "#include <bits/dirent.h>\n" + GOOD, 2, "Never use"),
    "second line of a macro": (
        "#define TWICE(x) \\\n  x; \\\n  x\n" + kernel("  TWICE(lost);"),
        6,
        '"lost" is undefined',
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_names_line_and_cause(compile_text, name):
    text, line, words = MISTAKES[name]
    failure = compile_text(text)
    errors = [d for d in failure.diagnostics if d.severity is Severity.ERROR]
    assert line in [d.line for d in errors], errors
    assert any(words in d.message for d in errors if d.line == line), errors
    for diagnostic in failure.diagnostics:
        if diagnostic.line is not None:
            assert diagnostic.source_line == text.split("\n")[diagnostic.line - 1].rstrip()
    dumped = failure.model_dump_json()
    for forbidden in ("/usr/", "/tmp", "site-packages", "/kernel.cu", "entry.cu", ".ii"):
        assert forbidden not in dumped, forbidden


def test_column_is_given_where_it_is_certain(compile_text):
    plain = compile_text(GOOD + "int x = missing;\n")
    assert (plain.diagnostics[0].line, plain.diagnostics[0].column) == (6, 9)
    expanded = compile_text("#define NOTHING_AT_ALL\n" + GOOD + "int NOTHING_AT_ALL x = missing;\n")
    assert (expanded.diagnostics[0].line, expanded.diagnostics[0].column) == (7, None)


def test_messages_are_the_same_every_time(compile_text):
    text = kernel('  asm volatile("frobnicate.b32 %0;" ::"r"(n));\n  int idle;')
    assert compile_text(text) == compile_text(text)


def test_too_much_shared_memory_names_the_kernel_readably(compile_text):
    text = kernel("  __shared__ int s[70000]; s[n] = n; C[0] = s[n / 2];")
    failure = compile_text(text.replace(HEAD, HEAD + "namespace {\n").replace(RUN, "}\n" + RUN))
    assert failure.code == "build.ptxas"
    assert "(anonymous namespace)::fill(__nv_bfloat16*, int)' uses too much shared data" in failure.message


def test_ptxas_advice_is_kept_as_warnings(compile_text):
    body = '  asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");\n  C[n] = C[0];'
    result = compile_text(kernel(body))
    assert isinstance(result, Build)
    (advice,) = result.diagnostics
    assert advice.severity is Severity.WARNING
    assert "'setmaxnreg' ignored" in advice.message
    control = compile_text(kernel(body).replace("void fill", "void __launch_bounds__(128, 1) fill"))
    assert control.diagnostics == ()


def test_errors_come_before_warnings_and_notes_follow_their_error(compile_text):
    failure = compile_text(kernel("  int idle;\n  constexpr int x = n;"))
    severities = [d.severity for d in failure.diagnostics]
    assert severities[0] is Severity.ERROR
    assert severities == sorted(severities, key=lambda s: s is Severity.WARNING)


def test_many_errors_are_cut(compile_text):
    failure = compile_text(kernel("\n".join(f"  C[{i}] = missing{i};" for i in range(90))))
    assert len(failure.diagnostics) == MAX_DIAGNOSTICS
    assert failure.diagnostics[0].line == 3


def test_lines_of_ptx_lead_to_the_call_where_a_header_is_to_blame():
    ptx = "\n".join(
        [
            '.file 1 "/kernel.cu"',
            '.file 2 "/toolkit/include/cuda_bf16.hpp"',
            ".visible .entry k()",
            "{",
            ".loc 1 10 3",
            "mov.b32 a, b;",
            ".loc 2 99 1, function_name $L__info_string0, inlined_at 1 20 5",
            "mov.b32 c, d;",
            ".loc 2 98 1",
            "mov.b32 e, f;",
            "}",
        ]
    )
    source = "\n".join(f"line {n}" for n in range(1, 31))

    def line_of(ptx_line: int) -> int | None:
        said = f"ptxas kernel.ptx, line {ptx_line}; error   : Wrong"
        return read_messages(said, source, ptx).diagnostics[0].line

    assert [line_of(n) for n in (6, 8, 10, 4)] == [10, 20, None, None]


def test_lines_beyond_the_file_are_not_quoted():
    report = read_messages("/kernel.cu(99): error: odd\n", "one line", None)
    assert (report.diagnostics[0].line, report.diagnostics[0].source_line) == (None, None)


@pytest.mark.parametrize(
    ("message", "clean"),
    [
        ("in /usr/include/c++/12/bits/stl_algo.h", "in stl_algo.h"),
        ("/home/me/.cache/ptxgym/tmp/x1/job/kernel.cu is bad", "kernel.cu is bad"),
        ("/kernel.cu", "kernel.cu"),
        ("file cc5NAZkL.s", "file temporary.s"),
        ("a/b is a quotient, 1/2 too", "a/b is a quotient, 1/2 too"),
        ("'_Z3addIiET_S0_S0_' failed", "'int add<int>(int, int)' failed"),
    ],
)
def test_scrubbing(message, clean):
    assert scrub(message) == clean


def test_demangling():
    name = "_ZN36_GLOBAL__N__2ea6481e_9_kernel_cu_run10gemm_naiveEPKfi"
    assert demangle(name) == "(anonymous namespace)::gemm_naive(float const*, int)"
    assert demangle("plain_name") == "plain_name"
    assert demangle("_Znonsense") == "_Znonsense"
    assert demangle_all("call _Z1fv and _Z1gv now") == "call f() and g() now"


ASM = '  int x, y;\n  asm volatile("mov.u32 %0, 1;\\n"\n    "mov.u32 %1, 2{}\\n"\n    "add.u32 %0, %0, %1;"'
ASM += ' : "=r"(x), "=r"(y));\n  C[0] = x + y;'


def test_a_missing_semicolon_in_asm_text_is_named_at_its_line(compile_text):
    failure = compile_text(kernel(ASM.format("")))
    assert failure.code == "build.ptxas" and "a `;` is missing after `mov.u32 %r" in failure.message
    assert failure.diagnostics[0].line == 5 and failure.diagnostics[0].source_line.strip().startswith('"mov.u32 %1, 2')
    last = compile_text(kernel('  int x;\n  asm volatile("mov.u32 %0, 1" : "=r"(x));\n  C[0] = x;'))
    assert "a `;` is missing after `mov.u32 %r" in last.message and last.diagnostics[0].line == 4


def test_an_error_inside_asm_text_is_located_by_its_opcode(compile_text):
    failure = compile_text(kernel(ASM.replace("add.u32", "addd.u32").format(";")))
    assert failure.diagnostics[0].line == 6 and "';' is missing" not in failure.message


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("Here is the kernel you asked for:", "looks like prose"),
        ("It's fast, and uses one thread per element.", "looks like prose"),
        ("int x = “text”;", 'U+201C): write "'),
        ("int\u200b x;", "U+200B (zero width space): remove it"),
        ("int\u00a0x;", "U+00A0 (no-break space): write a plain space"),
        ("\u00a0int x;\u00a0", "U+00A0 (no-break space): write a plain space"),
        ("int x;\u2028int y;", "U+2028 (line separator): end the line by a plain newline"),
        ("int x;\x85", "U+0085 (next line): end the line by a plain newline"),
        (" \tint x;\r", ""),
        ("C[0] = missing;", ""),
        ("__global__ void fill(int n) {", ""),
        ("Kernel kernel", ""),
        ("// Here is the kernel you asked for:", ""),
        (None, ""),
    ],
)
def test_hints_on_lines_that_are_no_code(line, hint):
    found = syntax_hint(line)
    assert hint in found and bool(found) == bool(hint)


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"])
def test_what_ends_no_line_for_compilers_ends_no_message(compile_text, mark):
    named = f"U+{ord(mark):04X}"
    stray = compile_text(kernel(f"  n = 1;{mark} n = missing;"))
    assert f"at line 3: extended character {named} is not valid in an identifier; the line holds" in stray.message
    assert (stray.diagnostics[0].line, stray.diagnostics[0].source_line) == (3, f"  n = 1;{mark} n = missing;")
    quoted = compile_text(f"// one{mark}two\n" + kernel(f"  /*{mark}*/ n = missing;"))
    assert (
        f'at line 4: identifier "missing" is undefined; the line holds the invisible character {named}'
        in quoted.message
    )
    in_asm = compile_text(kernel(f'  n = 1;\n  asm volatile("mov{mark}.b32 %0, 1;" : "=r"(n));'))
    assert "at line 4: Unexpected non-ASCII character" in in_asm.message and "on line" not in in_asm.message


def test_a_message_quotes_the_submission_beyond_what_ends_no_line():
    said = '/kernel.cu(2): error: static assertion failed with "so\u2028/kernel.cu(1): error: made up"\n'
    assert [(d.line, d.message) for d in read_messages(said, "one\ntwo\n").errors] == [
        (2, 'static assertion failed with "soU+2028kernel.cu(1): error: made up"')
    ]


def test_prose_around_the_code_is_called_so(compile_text):
    spaced = compile_text(GOOD + "\u00a0int x;\n").message
    assert f"at line {GOOD.count(chr(10)) + 1}: " in spaced and "U+00A0 (no-break space)" in spaced
    assert "the line looks like prose" in compile_text("Here is the kernel you asked for:\n" + GOOD).message
    assert isinstance(compile_text("\ufeff" + GOOD), Build), "a byte order mark is no part of the text"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ('/kernel.cu(2): internal error: assertion failed at: "decls.c", line 17\n', 2),
        ("/kernel.cu:2:7: internal compiler error: Segmentation fault\n", 2),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)\n", None),
        ("Segmentation fault\n", None),
    ],
)
def test_a_compiler_that_breaks_down_is_not_quoted(said, line):
    failure = _compile_failure(said, read_messages(said, GOOD), GOOD, "void run()")
    assert failure.code == "build.crash" and "internal error of the compiler" in failure.message
    assert "decls.c" not in failure.message and [d.line for d in failure.diagnostics] == ([line] if line else [])


def test_a_failed_assertion_of_the_text_is_no_broken_compiler(compile_text):
    failure = compile_text('static_assert(sizeof(int) == 8, "internal error");\n' + GOOD)
    assert failure.code == "build.syntax" and failure.diagnostics[0].line == 1


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN12_GLOBAL__N_110gemm_naiveEPK13__nv_bfloat16S2_PS0_iii", "gemm_naive"),
        ("_Z4gemmILi128ELb1EEvPfPKfi", "gemm<128, true>"),
        ("_ZN3opsplERKNS_1AES2_", "ops::operator+"),
        ("run", "run"),
    ],
)
def test_messages_name_functions_without_their_parameters(mangled, name):
    assert function_name(mangled) == name
    assert name_functions(f"launch of {mangled}: refused") == f"launch of {name}: refused"


MANY = "9" * 5000  # digits; Python's `int` refuses more than 4,300


@pytest.mark.parametrize(
    "said",
    [
        f"/kernel.cu({MANY}): error: a",
        f"/kernel.cu({MANY}): catastrophic error: out of memory",
        f"/kernel.cu({MANY}): internal error: a",
        f"/kernel.cu:{MANY}: Error: a",
        f"/kernel.cu:1:{MANY}: error: a",
        f"In file included from /kernel.cu:{MANY}:\n/usr/include/x.h:1:1: error: a",
        f"/usr/x.h(1): error: a\n          detected at line {MANY} of /kernel.cu\n",
        f"ptxas kernel.ptx, line {MANY}; error   : a",
        f"ptxas error   : a in around line {MANY}",
        f"/kernel.cu:{MANY}: multiple definition of `x'\ncollect2: error: ld returned 1 exit status",
        f"nvcc error   : 'cicc' died due to signal {MANY}",
    ],
)
def test_numbers_of_any_length_are_no_error(tmp_path: Path, said: str) -> None:
    products = failed(tmp_path, said, ptx=f'.visible .entry k()\n{{\n.file {MANY} "x"\n.loc {MANY} {MANY} 1\n}}\n')
    refusal, _ = judge_outcome(products, GOOD, DECLARATION, 60.0, lambda: True)
    assert refusal is not None and refusal.status is Status.COMPILE_ERROR
    assert all(diagnostic.line in (None, 1) for diagnostic in refusal.diagnostics)


def test_files_are_not_read_from_comments() -> None:
    """A control: the same directive as a statement makes the file the submission's."""
    ptx = '/*\n.file 7 "/kernel.cu"\n*/\n.loc 7 3 1\nfail;\n'
    assert PtxLines(ptx).submission_line(5) is None
    assert PtxLines(ptx.replace("/*", "").replace("*/", "")).submission_line(5) == 3


def doubled(times: int) -> str:
    """A mangled name of `A<int, int>`, then `times` types, each an `A` of twice the one before it."""
    numbers = [f"S{digit}_" for digit in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    return "_Z1f1AIiiE" + "".join(f"S_I{number}{number}E" for number in numbers[:times])


def test_names_that_stand_for_gigabytes_stay_mangled() -> None:
    """Twenty doublings are 70 MB, thirty 70 GB."""
    assert demangle(doubled(1)) == "f(A<int, int>, A<A<int, int>, A<int, int> >)"
    assert len(demangle(doubled(4))) > 200
    for name in (doubled(20), doubled(20).replace("S0_", "S00000_"), "_Z" + "1a" * 600):
        assert demangle(name) == name
    assert len(scrub((doubled(4) + " ") * 3000)) < 2000


def test_names_of_template_libraries_are_readable() -> None:
    name = "_ZN3lib11scan_kernelINS_6PolicyIiiNS_4plusIvEEEEPKiPiNS_4TileIiLb1EEENS_4NullEEEvT0_T1_T2_iT3_"
    assert demangle(name) == (
        "void lib::scan_kernel<lib::Policy<int, int, lib::plus<void> >, int const*, int*, lib::Tile<int, true>, "
        "lib::Null>(int const*, int*, lib::Tile<int, true>, int, lib::Null)"
    )


@pytest.mark.parametrize("wrong", ["x;\n", "\n", "x\n", "/*"])
def test_many_messages_about_one_long_asm_statement(wrong: str) -> None:
    """Each would be a walk to the statement's begin; the first ones are located as those of a short one are."""
    count = 200_000
    before = '.file 1 "/kernel.cu"\n.visible .entry k()\n{\n.loc 1 2 1\n// begin inline asm\n'
    ptx = f"{before}{wrong * count}// end inline asm\n}}\n"
    numbers = [*range(6, 106), *range(count // 2, count // 2 + 5000)]
    said = "".join(f"ptxas kernel.ptx, line {number}; error   : Parsing error near '{number}'\n" for number in numbers)
    source = ["__global__ void k() {", 'asm volatile(R"(', *wrong.split("\n")[:-1] * 5, ')");']
    report = read_messages(said, "\n".join(source), ptx)
    assert len(report.errors) == MAX_DIAGNOSTICS
    assert {error.line for error in report.errors} <= {2, 3, 4, 5, 6, 7}


def test_a_line_beyond_the_ptx_is_no_error() -> None:
    assert PtxLines("a\nb").submission_line(9) is None
    assert PtxLines("a\nb").unfinished(9) is None
