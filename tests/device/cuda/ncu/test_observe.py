from __future__ import annotations

import pytest

from ptxgym.device.cuda.listing import Listing, Place
from ptxgym.device.cuda.observe import instruction_counts, kernel_profiles, profile_lines, stalls
from ptxgym.device.cuda.report import Launch
from ptxgym.device.protocol import Execution, InstructionCount
from ptxgym.judge.conditions import Case
from ptxgym.judge.evidence import family_counts, gather
from ptxgym.task import Task, load_arch
from ptxgym.verdict import Evidence, HotLine, KernelProfile, Stall

from .support import made_launch

STALL = "smsp__pcsamp_warps_issue_stalled_"


def test_the_oracle_did_every_multiply_add_of_its_gemm_with_wgmma(oracle: Launch) -> None:
    families = family_counts(instruction_counts([oracle], {}))
    assert families["wgmma"].multiply_adds == 8192 * 7168 * 5120
    others = {name: row.multiply_adds for name, row in families.items() if row.multiply_adds and name != "wgmma"}
    assert set(others) == {"alu"} and others["alu"] < 1e-6 * families["wgmma"].multiply_adds
    # Two loads for each 64-deep slice of each 128 × 256 tile, four stores for each half tile, as many flushes.
    tiles, slices = (8192 // 128) * (7168 // 256), 5120 // 64
    assert families["tma"].thread_instructions == tiles * slices * 2 + 2 * tiles * (4 + 4)
    assert families["stmatrix"].warp_instructions > 0


def test_counts_of_nsight_compute_are_evidence(oracle: Launch, gemm: Task) -> None:
    case = Case("hardware/0", {"M": 8192, "N": 7168, "K": 5120}, "normal", 1, hidden=False)
    counts = instruction_counts([oracle], {})

    def evidence(*more: InstructionCount) -> Evidence:
        execution = Execution(buffers={}, counts=(*counts, *more))
        return gather(gemm, load_arch("h100"), case, execution, correct=True, ablation="depends", source="ncu")

    assert (evidence().coverage, evidence().target_ok, evidence().source) == (1.0, True, "ncu")
    threads = 8192 * 7168 * 5120 // 8
    for text in ("FFMA R0, R1, R2, R3", "FMUL R0, R1, R2", "IMAD R0, R1, R2, R3", "HFMA2 R0, R1, R2, R3"):
        launch = made_launch(sass=(text,), warp=(threads // 32,), thread=(threads,))
        redundant = evidence(*instruction_counts([launch], {}))
        assert not redundant.target_ok and "multiply-adds" in (redundant.explanation or "")
    launch = made_launch(sass=("IMAD.MOV.U32 R0, RZ, RZ, R3",), warp=(threads // 32,), thread=(threads,))
    assert evidence(*instruction_counts([launch], {})).target_ok


def test_counts_leave_out_what_never_ran_and_name_line_and_opcode() -> None:
    launch = made_launch(sass=("@P0 FMUL R1, R2, R3", "NOP", "EXIT"), warp=(4, 0, 4), thread=(96, 0, 128))
    first, last = instruction_counts([launch], {"k": {0: Place(3, 5)}})
    assert (first.kernel, first.form, first.family, first.line) == ("k", "FMUL", "fmul", 3)
    assert (first.warp, first.thread, first.multiply_adds) == (4, 96, 96)
    assert (last.form, last.line, last.multiply_adds) == ("EXIT", None, 0)


def test_counts_of_all_launches_are_there() -> None:
    launches = [made_launch("a"), made_launch("b"), made_launch("a")]
    assert [count.kernel for count in instruction_counts(launches, {}) if count.form == "FFMA"] == ["a", "b", "a"]
    assert family_counts(instruction_counts(launches, {}))["fma"].multiply_adds == 3 * 128


def test_profile_of_the_oracle(oracle: Launch, oracle_places: Listing) -> None:
    (profile,) = kernel_profiles([oracle], oracle_places, "")
    assert profile.kernel.startswith("_Z") and profile.launches == 1
    assert profile.duration_us == pytest.approx(670.368)
    assert profile.tensor_pipe_percent == pytest.approx(92.78, abs=0.01)
    assert profile.sm_throughput_percent == pytest.approx(92.78, abs=0.01)
    assert profile.memory_throughput_percent == pytest.approx(62.69, abs=0.01)
    assert profile.dram_throughput_percent == pytest.approx(25.12, abs=0.01)
    assert profile.occupancy_percent == pytest.approx(14.06, abs=0.01)
    assert profile.theoretical_occupancy_percent == 18.75
    assert (profile.registers_per_thread, profile.smem_per_block_bytes) == (168, 230464)
    assert profile.occupancy_limiter == "registers"
    assert profile.bank_conflicts == 0
    assert profile.stalls[0].reason == "barrier" and profile.stalls[0].share == pytest.approx(31690 / 74160, abs=1e-3)
    assert "selected" not in {stall.reason for stall in profile.stalls}
    # wgmma.wait_group, wgmma, the wait for the loads; asm of wrappers is where these were called.
    assert [hot.line for hot in profile.hot_lines[:3]] == [191, 188, 182] and profile.hot_lines[0].stall == "barrier"
    assert profile.hot_lines[0].share == pytest.approx((19592 + 11027) / 74160, abs=1e-3)
    (without_places,) = kernel_profiles([oracle], {}, "")
    assert without_places.hot_lines == () and without_places.stalls == profile.stalls


def test_a_kernel_is_profiled_by_its_longest_launch_and_the_longest_kernel_comes_first() -> None:
    launches = [
        made_launch("short", values={"gpu__time_duration.sum": 3.0}),
        made_launch("long", values={"gpu__time_duration.sum": 20.0, "launch__registers_per_thread": 40.0}),
        made_launch("long", values={"gpu__time_duration.sum": 10.0, "launch__registers_per_thread": 50.0}),
    ]
    profiles = kernel_profiles(launches, {}, "")
    assert [(p.kernel, p.launches, p.duration_us) for p in profiles] == [("long", 2, 20.0), ("short", 1, 3.0)]
    assert profiles[0].registers_per_thread == 40
    assert profiles[1].occupancy_limiter is None and profiles[1].bank_conflicts is None


def test_hot_lines_are_where_wrappers_were_called_and_hold_their_text() -> None:
    launch = made_launch(
        sass=("LDS R1, [R2]", "FADD R1, R2, R3", "EXIT"), warp=(1, 1, 1), thread=(32, 32, 32),
        instances={STALL + "wait": (60, 0, 1), STALL + "short_scoreboard": (0, 30, 0), STALL + "selected": (5, 4, 0)},
    )  # fmt: skip
    places = {"k": {0: Place(1, 2), 16: Place(3, 3)}}
    (profile,) = kernel_profiles([launch], places, "one\n  two;\nthree\nfour")
    assert profile.hot_lines == (
        HotLine(line=2, share=0.65, source_line="two;", stall="wait"),
        HotLine(line=3, share=0.34, source_line="three", stall="short_scoreboard"),
    )
    assert profile.stalls == (Stall(reason="wait", share=0.61), Stall(reason="short_scoreboard", share=0.30))


def test_few_samples_say_nothing() -> None:
    few = made_launch(instances={STALL + "wait": (30, 19)})
    enough = made_launch(instances={STALL + "wait": (30, 20)})
    places = {"k": {0: Place(1, 1), 16: Place(2, 2)}}
    assert stalls(few) == () and kernel_profiles([few], places, "")[0].hot_lines == ()
    assert stalls(enough) == (Stall(reason="wait", share=1.0),) and kernel_profiles([enough], places, "")[0].hot_lines


def test_bank_conflicts_are_wavefronts_beyond_the_ideal() -> None:
    launch = made_launch(
        instances={"memory_l1_wavefronts_shared": (800, 10), "memory_l1_wavefronts_shared_ideal": (100, 10)}
    )
    (profile,) = kernel_profiles([launch], {}, "")
    assert profile.bank_conflicts == 700
    assert "shared memory: 700 wavefronts more than without bank conflicts" in profile_lines(profile)


@pytest.mark.parametrize(
    ("limits", "scarcest"),
    [((1, 5, 6, 32, 4), "registers"), ((3, 2, 6, 32, 4), "shared memory"), ((8, 8, 2, 32, 4), "warps"),
     ((8, 8, 8, 4, 4), "blocks"), ((8, 8, 8, 32, 4), "barriers"), ((2, 2, 8, 32, 4), "registers")],
)  # fmt: skip
def test_the_limiter_is_the_scarcest_resource(limits: tuple[int, ...], scarcest: str) -> None:
    names = ("registers", "shared_mem", "warps", "blocks", "barriers")
    values = {f"launch__occupancy_limit_{name}": float(limit) for name, limit in zip(names, limits, strict=True)}
    assert kernel_profiles([made_launch(values=values)], {}, "")[0].occupancy_limiter == scarcest


def test_profile_as_text() -> None:
    profile = KernelProfile(
        kernel="k", launches=3, duration_us=670.37, tensor_pipe_percent=92.8, sm_throughput_percent=92.8,
        memory_throughput_percent=62.7, dram_throughput_percent=25.1, occupancy_percent=14.06,
        theoretical_occupancy_percent=18.75, occupancy_limiter="registers", registers_per_thread=168,
        smem_per_block_bytes=230464, bank_conflicts=0, stalls=(Stall(reason="barrier", share=0.427),),
        hot_lines=(HotLine(line=191, share=0.41, source_line="x", stall="barrier"), HotLine(line=5, share=0.03)),
    )  # fmt: skip
    assert profile_lines(profile) == [
        "duration 670.4 µs (longest of 3 launches)",
        "of peak: tensor pipe 93 %, SM 93 %, memory 63 %, DRAM 25 %",
        "occupancy 14 % of at most 19 %, limited by registers: 168 registers per thread, 230,464 bytes of shared "
        "memory per block",
        "warps wait for: barrier 43 %",
        "line 191: 41 % of the samples, mostly barrier",
        "line 5: 3 % of the samples",
    ]
    assert profile_lines(KernelProfile(kernel="k", launches=1, duration_us=2.0)) == ["duration 2.0 µs"]
