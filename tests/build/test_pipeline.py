from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ptxgym.build import Build, build, nvcc, outcome, pipeline
from ptxgym.build.elf import exported_functions
from ptxgym.build.nvcc import Products
from ptxgym.cache import Cache
from ptxgym.errors import InfrastructureError
from ptxgym.sandbox import Completed, Isolation, isolation
from ptxgym.verdict import Failure, Severity, Stage, Status
from tests.build.conftest import DECLARATION, GOOD, HEAD, KERNEL, RUN

BAIT = "BAIT_4711"


def files_under(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def children() -> set[str]:
    mine = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                mine.add(stat.parent.name)
        except OSError:
            continue
    return mine


def test_a_good_file_gives_every_product(good):
    assert good.source.read_text() == GOOD
    assert "run" in exported_functions(good.library)
    assert ".entry" in good.ptx.read_text()
    assert good.cubin.read_bytes()[:4] == b"\x7fELF"
    (kernel,) = good.kernels
    assert "fill" in kernel.name
    assert good.kernel(kernel.name) is kernel
    assert (kernel.param_bytes, kernel.param_aligns) == ((8, 4), (8, 4))
    assert good.compiler.startswith("nvcc 13.")
    with pytest.raises(KeyError):
        good.kernel("nothing")


def test_the_library_embeds_the_kept_cubin(good):
    assert good.cubin.read_bytes() in good.library.read_bytes()


def test_the_kept_ptx_gives_the_kept_cubin(good, tmp_path):
    from ptxgym.build import find_toolchain

    ptxas = find_toolchain().root / "bin" / "ptxas"
    again = tmp_path / "again.cubin"
    subprocess.run([ptxas, "-arch=sm_90a", "-m64", "--generate-line-info", good.ptx, "-o", again], check=True)
    code = [
        subprocess.run([find_toolchain().nvdisasm, "-c", cubin], check=True, capture_output=True).stdout
        for cubin in (again, good.cubin)
    ]
    assert code[0] == code[1]


def test_the_library_needs_no_cuda_library(good):
    dynamic = subprocess.run(["readelf", "-d", good.library], capture_output=True, text=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert needed
    assert not any("cuda" in name for name in needed)


def test_undefined_driver_calls_are_allowed(compile_text):
    text = "#include <cuda.h>\n" + GOOD.replace(
        "{\n  fill", "{\n  cuTensorMapEncodeTiled(0, {}, 1, 0, 0, 0, 0, 0, {}, {}, {}, {});\n  fill"
    )
    assert isinstance(compile_text(text), Build)


def test_equal_texts_give_equal_bytes(tmp_path):
    clock = "extern const char clock_text[];\nconst char clock_text[] = __DATE__ __TIME__ __TIMESTAMP__;\n"
    text = HEAD + clock + "namespace {\n" + KERNEL + "}\n" + RUN
    options = {"declaration": DECLARATION, "arch": "sm_90a"}
    first, second = (build(text, cache=Cache(tmp_path / name), **options) for name in ("one", "two"))
    assert first.key == second.key
    assert first.folder != second.folder
    for name in ("library", "cubin", "ptx"):
        assert getattr(first, name).read_bytes() == getattr(second, name).read_bytes()
    assert first.kernels == second.kernels
    assert str(tmp_path).encode() not in first.library.read_bytes() + first.ptx.read_bytes()


def test_the_second_time_comes_from_the_cache(good, compile_text, monkeypatch):
    monkeypatch.setattr(pipeline, "compile_unit", None)
    assert compile_text(GOOD) == good


def test_keys_differ_where_the_product_may():
    base = {"declaration": DECLARATION, "arch": "sm_90a", "compiler": "nvcc 13.0.88, g++ 12"}
    keys = {
        pipeline.build_key("a", **base),
        pipeline.build_key("b", **base),
        pipeline.build_key("a", **{**base, "declaration": "void run()"}),
        pipeline.build_key("a", **{**base, "arch": "sm_100a"}),
        pipeline.build_key("a", **{**base, "compiler": "nvcc 13.1.0, g++ 12"}),
    }
    assert len(keys) == 5


def test_the_library_loads_and_has_host_code(good):
    # Its CUDA calls are undefined here and bound lazily, so that loading fails only where they are called.
    with pytest.raises(OSError, match="cuda"):
        ctypes.CDLL(str(good.library), mode=os.RTLD_NOW)


BAD = {
    "build.syntax": GOOD.replace("C, N);", "C, N)"),
    "build.ptxas": GOOD.replace("{ C[", '{ asm volatile("frobnicate.b32 %0;" ::"r"(n)); C['),
    "build.wrong_signature": GOOD.replace("int K,", "long K,"),
    "build.no_entry": HEAD + KERNEL,
    "build.foreign_include": GOOD + '#include "helper.cuh"\n',
}


@pytest.mark.parametrize("code", BAD)
def test_each_mistake_has_its_code(compile_text, cache, code):
    before = files_under(cache.root)
    failure = compile_text(BAD[code])
    assert isinstance(failure, Failure)
    assert (failure.stage, failure.code) == (Stage.BUILD, code)
    assert failure.status in (Status.COMPILE_ERROR, Status.REJECTED)
    assert failure.message.endswith((".", ")")) or ":" in failure.message
    assert files_under(cache.root) == before
    assert "/tmp" not in failure.model_dump_json()
    assert str(cache.root) not in failure.model_dump_json()


SIGNATURES = {
    "other types": (DECLARATION.replace("const __nv_bfloat16* A", "const float* A"), "build.wrong_signature"),
    "fewer parameters": ('extern "C" void run(__nv_bfloat16* C, cudaStream_t stream)', "build.wrong_signature"),
    "not const": (DECLARATION.replace("const ", "", 1), "build.wrong_signature"),
    "other result": (DECLARATION.replace("void run", "int run"), "build.wrong_signature"),
    "no C linkage": (DECLARATION.replace('extern "C" ', ""), "build.no_entry"),
    "static": (DECLARATION.replace('extern "C" ', "static "), "build.no_entry"),
    "in a namespace": ("namespace x { " + DECLARATION.replace('extern "C" ', "static "), "build.no_entry"),
    "other name": (DECLARATION.replace("run", "solve"), "build.no_entry"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_wrong_entry_points(compile_text, name):
    signature, code = SIGNATURES[name]
    body = " { return 0; }" if "int run" in signature else " {}"
    failure = compile_text(HEAD + signature + body + ("}" if "namespace" in signature else "") + "\n")
    assert failure.code == code
    assert f"Expected: {DECLARATION}" in failure.message
    if code == "build.wrong_signature":
        assert f"Found: {signature}." in failure.message
    if name not in ("other name",):
        assert failure.diagnostics[0].line == 2


MACROS = "#define M 128\n#define run solve\n#define int long\n#define __nv_bfloat16 float\n"


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("int M", "int rows").replace("const __nv_bfloat16* B", "nv_bfloat16 const* __restrict__ B")
        + MACROS,
        HEAD + KERNEL + 'extern "C" {\n' + RUN.replace('extern "C" ', "") + "}  // no newline at the end",
        (HEAD + KERNEL + DECLARATION + ";\n" + RUN + "\\").replace("\n", "\r\n"),
    ],
)
def test_right_entry_points(compile_text, text):
    assert isinstance(compile_text(text), Build)


@pytest.mark.parametrize(
    ("tail", "message", "line"),
    [
        ("#if 0\n", "unterminated #if", 7),
        ("/* open\n", "unterminated comment", 7),
        ("void f() {\n", 'expected a "}"', 7),
        ('const char* s = R"(\n', "unterminated raw string", 7),
    ],
)
def test_what_is_left_open_is_named(compile_text, tail, message, line):
    failure = compile_text(GOOD + "\n" + tail)
    assert failure.code == "build.syntax"
    assert message in failure.diagnostics[0].message
    assert failure.diagnostics[0].line == line


def baits(path: Path) -> dict[str, str]:
    escaped = str(path).replace("/", "\\57")
    return {
        "include": f'#include "{path}"\n',
        "include through a macro": f'#define FILE_NAME "{path}"\n#include FILE_NAME\n',
        "has_include": f'#if __has_include("{path}")\n#error there\n#endif\n',
        "has_include through a macro": f'#define P "{path}"\n#if __has_include(P)\n#error there\n#endif\n',
        "relative": f'#include "{os.path.relpath(path, "/a/b/c")}"\n',
        "incbin": f'asm(".section .rodata\\nbait: .incbin \\"{path}\\"\\n.previous");\n',
        "incbin in a function": f'void f() {{ asm(".pushsection .rodata\\n.incbin \\"{path}\\"\\n.popsection"); }}\n',
        "incbin, escaped": f'asm(".section .rodata\\n.incbin \\"{escaped}\\"\\n.previous");\n',
        "assembler include": f'asm(".include \\"{path}\\"");\n',
    }


@pytest.mark.skipif(isolation().filesystem == "none", reason="the compiler's file view cannot be restricted here")
@pytest.mark.parametrize("name", baits(Path("/bait")))
def test_outside_files_cannot_be_read(compile_text, tmp_path, name):
    bait = tmp_path / "oracle.cu"
    bait.write_text(f"int {BAIT};\n")
    (tmp_path / "link.cu").symlink_to(bait)
    for path in (bait, tmp_path / "link.cu") if "macro" in name else (bait,):
        failure = compile_text(baits(path)[name] + GOOD)
        if name == "has_include through a macro" and isolation().namespace == "ok":
            assert isinstance(failure, Build)  # as if the file did not exist
            continue
        assert isinstance(failure, Failure)
        assert failure.code == "build.foreign_include"
        assert BAIT not in failure.model_dump_json()


@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/self/cwd/kernel.cu", "/etc/passwd", "/no/such/file", "../x.h"]
)
def test_literal_paths_are_refused_alike_whether_they_exist_or_not(compile_text, path):
    for text in (f'#include "{path}"\n', f'#if __has_include("{path}")\n#endif\n'):
        assert compile_text(text + GOOD).code == "build.foreign_include"


def test_headers_of_the_system_are_available(compile_text):
    headers = "".join(f"#include <{h}>\n" for h in ("cuda.h", "mma.h", "cstdio", "unistd.h"))
    result = compile_text(headers + "#if __has_include(<cuda/ptx>) && __has_include(<algorithm>)\n" + GOOD + "#endif\n")
    assert isinstance(result, Build)


def test_own_text_may_be_included_again_only_to_its_own_harm(compile_text):
    assert compile_text(GOOD + '#include "kernel.cu"\n').code == "build.syntax"


def test_endless_template_recursion(compile_text):
    text = "template <int N> struct Deep { static constexpr int v = Deep<N + 1>::v; };\nint d = Deep<0>::v;\n" + GOOD
    failure = compile_text(text)
    assert failure.code == "build.recursion"
    assert "never ends" in failure.message
    assert failure.diagnostics[0].line == 1


BUSY = "template <int D, long P> struct T { static constexpr long v = T<D-1, 2*P>::v + T<D-1, 2*P+1>::v; };\n" + (
    "template <long P> struct T<0, P> { static constexpr long v = P & 1; };\nlong busy = T<26, 1>::v;\n"
)


def test_what_compiles_too_long_is_stopped(compile_text):
    failure = compile_text(BUSY + GOOD, timeout_s=1.0)
    assert (failure.code, failure.status) == ("build.timeout", Status.COMPILE_ERROR)
    assert "more than 1 s" in failure.message


def test_what_needs_too_much_memory_is_stopped(compile_text, monkeypatch):
    monkeypatch.setattr("ptxgym.build.nvcc.MEMORY_BYTES", 400 << 20)
    failure = compile_text(BUSY + GOOD, timeout_s=60.0)
    assert failure.code == "build.memory"
    assert failure.diagnostics[0].line in (1, 2)


def test_what_writes_too_much_is_stopped(compile_text, monkeypatch):
    text = HEAD + "__device__ char big[3 << 20] = {1};\n" + KERNEL + RUN
    monkeypatch.setattr(outcome, "MAX_OUTPUT_BYTES", 1 << 20)
    failure = compile_text(text)
    assert failure.code == "build.too_large_output"
    monkeypatch.setattr("ptxgym.build.nvcc.MAX_FILE_BYTES", 1 << 20)
    assert compile_text(text).code == "build.too_large_output"


def test_variables_that_the_linker_cannot_place_are_named(compile_text):
    declared = "#include <cuda_bf16.h>\n// big[1]\nnamespace {\n__device__ float small[1 << 20];\n"
    declared += "__device__ float big[1ull << 30][2];\n}\n"
    uses = KERNEL.replace("1.0f", "big[n][0] + small[n]")
    failure = compile_text(declared + uses + RUN)
    assert (failure.code, failure.status) == ("build.link", Status.COMPILE_ERROR)
    assert "at line 5: the variables of the file are too large together (`big` has 8,589,934,592" in failure.message
    assert "small" not in failure.message and failure.diagnostics[0].source_line == declared.split("\n")[4]
    assert isinstance(compile_text(declared.replace("1ull << 30", "1ull << 20") + uses + RUN), Build)


def test_host_variables_that_the_linker_cannot_place_are_told(compile_text):
    failure = compile_text(GOOD + "static char huge[5ull << 30];\nchar* other() { return huge; }\n")
    assert failure.code == "build.link" and "the variables of the file are too large together; " in failure.message


def test_a_name_of_the_runtime_is_told(compile_text):
    failure = compile_text(GOOD + 'extern "C" void _init() {}\n')
    assert (failure.code, failure.diagnostics[0].line) == ("build.link", 6)
    assert "at line 6: multiple definition of `_init`" in failure.message
    assert isinstance(compile_text(GOOD + 'extern "C" void init_() {}\n'), Build)


def test_an_error_of_the_file_is_not_the_linkers(compile_text):
    failure = compile_text(GOOD + "#error relocation truncated to fit\n")
    assert failure.code == "build.syntax"


@pytest.mark.parametrize(
    "completed",
    [
        Completed("signalled", signal.SIGXFSZ, 0.5, 1 << 20, b"", b"", False, 1.0),
        Completed("exited", 1, 0.5, 1 << 20, b"", b"ld: final link failed: File too large\n", False, 1.0),
    ],
)
def test_a_low_limit_of_the_machine_on_file_sizes_is_not_the_submissions_fault(compile_text, monkeypatch, completed):
    nothing = Products(Path("/x"), Path("/x"), Path("/x"), completed)
    monkeypatch.setattr(pipeline, "compile_unit", lambda *_: nothing)
    for limit in (resource.RLIM_INFINITY, nvcc.MAX_FILE_BYTES):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (4096, limit))
        assert compile_text(GOOD + "// large\n").code == "build.too_large_output"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (204_800, 204_800))
    with pytest.raises(InfrastructureError, match=r"at most 204,800 bytes.*RLIMIT_FSIZE.*ulimit -f"):
        compile_text(GOOD + "// large\n")


def test_wall_clock_expiry_on_a_busy_host_is_not_the_submissions_fault(compile_text, monkeypatch):
    def starved(*arguments):
        completed = Completed("timeout", 0, 0.5, 1 << 20, b"", b"", False, 60.0)
        return Products(Path("/x"), Path("/x"), Path("/x"), completed)

    monkeypatch.setattr(pipeline, "compile_unit", starved)
    with pytest.raises(InfrastructureError, match="overloaded"):
        compile_text(GOOD + "// starved\n")


def test_warnings_of_a_good_build_are_kept(compile_text):
    text = GOOD.replace("{ C[", "{ int idle = 3; C[")
    result = compile_text(text)
    assert [(d.severity, d.line) for d in result.diagnostics] == [(Severity.WARNING, 2)]
    assert "idle" in result.diagnostics[0].message
    assert compile_text(text).diagnostics == result.diagnostics  # from the cache


def test_what_inline_assembly_comments_out_is_no_directive(compile_text):
    comment = f'/*\\n.file {"9" * 5000} \\"/kernel.cu\\"\\n*/'
    text = GOOD.replace("{ C[", f'{{ asm volatile("{comment}"); int idle = 3; C[')
    assert [(d.severity, d.line) for d in compile_text(text).diagnostics] == [(Severity.WARNING, 2)]
    refusal = compile_text(text.replace("*/", "*/ fail;"))
    assert (refusal.code, refusal.diagnostics[0].line) == ("build.ptxas", 2)


def test_fifty_bad_builds_leave_nothing(compile_text, cache):
    before, processes = files_under(cache.root), children()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with ThreadPoolExecutor(2) as pool:
        failures = list(pool.map(lambda n: compile_text(f"#error number {n}\n" + GOOD), range(50)))
    assert {failure.code for failure in failures} == {"build.syntax"}
    assert failures[7].diagnostics[0].message == "#error number 7"
    assert files_under(cache.root) == before
    assert children() == processes
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
    assert isinstance(compile_text(GOOD), Build)


def test_parallel_builds_of_one_text_agree(compile_text, cache):
    text = GOOD + "// in parallel\n"
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: compile_text(text), range(2)))
    assert results[0] == results[1]
    assert list((cache.root / "tmp").iterdir()) == []


@pytest.fixture
def unconfined(monkeypatch):
    monkeypatch.setattr(pipeline, "isolation", lambda: Isolation("no", 0, "no", "ok"))


def test_strict_rules_where_no_file_view_can_be_had(unconfined, compile_text, tmp_path):
    bait = tmp_path / "oracle.cu"
    bait.write_text(f"int {BAIT};\n")
    texts = baits(bait)
    for name in ("include", "include through a macro", "has_include through a macro", "relative"):
        assert compile_text(texts[name] + GOOD).code == "build.foreign_include", name
    for name in ("incbin in a function", "assembler include"):
        assert compile_text(texts[name] + GOOD).code == "build.host_asm", name
    assert isinstance(compile_text(GOOD + '__device__ void f() { asm volatile("trap;"); }\n'), Build)


def test_what_is_preprocessed_to_too_much_is_read_nowhere(unconfined, compile_text, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(nvcc, "MAX_PREPROCESSED_BYTES", 1 << 20)
        assert compile_text(GOOD + "// much\n").code == "build.too_large_output"
    assert isinstance(compile_text(GOOD + "// much\n"), Build)


@pytest.mark.skipif(isolation().namespace != "ok", reason="no mount namespaces here")
def test_a_mount_namespace_serves_as_well(monkeypatch, compile_text, tmp_path):
    offered = Isolation("no", 0, "ok", isolation().seccomp)
    monkeypatch.setattr("ptxgym.sandbox.process.isolation", lambda: offered)
    assert isinstance(compile_text(GOOD + "// in a namespace\n"), Build)
    bait = tmp_path / "oracle.cu"
    bait.write_text(f"int {BAIT};\n")
    for name in ("include through a macro", "incbin"):
        failure = compile_text(baits(bait)[name] + GOOD)
        assert failure.code == "build.foreign_include"
        assert BAIT not in failure.model_dump_json()
    # Here nothing tells whether a file exists: the text compiles as if it did not.
    assert isinstance(compile_text(baits(bait)["has_include through a macro"] + GOOD), Build)
