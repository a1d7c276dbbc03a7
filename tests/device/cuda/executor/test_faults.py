"""What becomes of candidates that fault, hang, print or overrun, and of machines that fail."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ptxgym.device.cuda.executor import Call, Executor
from ptxgym.device.cuda.executor_failure import hang_failure
from ptxgym.errors import InfrastructureError, UsageError, WorkerDied
from ptxgym.plan.model import Copy, FunctionAttributes, LaunchPlan, Memset, TensorMap
from ptxgym.verdict import Failure, Stage, Status

from .harness import MIB, Fake, cubin, launch, literal, plan, pointer, ref

OK = plan([("C", "output", 600)], launch("copy", pointer("C"), pointer("C"), literal(1, 8)))


def fault(code: int) -> LaunchPlan:
    return plan([], launch("fault", literal(code, 4)))


def failure(executor: Executor, number: int = 0, timeout_s: float = 20) -> Failure:
    failed = executor.call(number, {}, {}, timeout_s=timeout_s)
    assert isinstance(failed, Failure), failed
    assert failed.stage is Stage.EXECUTE
    return failed


@pytest.mark.parametrize(
    ("result", "code"),
    [(700, "illegal_address"), (714, "hardware_stack_error"), (715, "illegal_instruction"),
     (716, "misaligned_address"), (717, "invalid_address_space"), (718, "invalid_pc"), (719, "launch_failed")],
)  # fmt: skip
def test_device_faults_are_the_submission_s(fake: Fake, result: int, code: str) -> None:
    with fake.loaded(fault(result), OK) as executor:
        failed = failure(executor)
        assert (failed.status, failed.code) == (Status.RUNTIME_FAULT, f"cuda.{code}")
        assert failed.message.startswith("Kernel fault ")
        assert not executor.usable
        with pytest.raises(InfrastructureError, match="start another one"):
            executor.call(1, {}, {}, timeout_s=20)


@pytest.mark.parametrize("result", [2, 214, 219, 999])
def test_other_errors_of_a_run_are_the_machine_s(fake: Fake, result: int) -> None:
    with fake.loaded(fault(result)) as executor, pytest.raises(InfrastructureError, match=f"CUDA_ERROR_{result}"):
        executor.call(0, {}, {}, timeout_s=20)


def test_a_fault_among_several_kernels_names_them_all(fake: Fake) -> None:
    good, bad = OK.operations[0], launch("fault", literal(700, 4))
    with fake.loaded(plan([("C", "output", 600)], good, bad)) as executor:
        assert failure(executor).message.startswith("One of the kernels copy, fault ")
    with fake.loaded(plan([], bad, bad)) as executor:
        failed = failure(executor)  # which the second launch reports
        assert failed.status is Status.RUNTIME_FAULT
        assert failed.message.startswith("One of the 2 launches of kernel fault ")


def test_a_failed_assertion_is_quoted(fake: Fake) -> None:
    with fake.loaded(plan([], launch("assert"))) as executor:
        failed = failure(executor)
    assert failed.code == "cuda.assert"
    assert "It said: kernel.cu:7: void k(): block: [0,0,0], thread: [1,0,0] Assertion `x > 0` failed." in failed.message


@pytest.mark.parametrize(
    ("result", "code"),
    [(1, "invalid_value"), (2, "out_of_memory"), (701, "launch_out_of_resources"),
     (720, "cooperative_launch_too_large"), (912, "invalid_cluster_size")],
)  # fmt: skip
def test_refused_launches_name_kernel_and_shape(fake: Fake, result: int, code: str) -> None:
    shape = {"grid": (6, 1, 1), "block": (64, 1, 1), "cluster": (3, 1, 1), "cooperative": True}
    refused = launch("copy", pointer("C"), pointer("C"), literal(1, 8), dynamic_smem_bytes=2048, **shape)
    twice = plan([("C", "output", 600)], refused)
    with fake.loaded(twice, script=[f"fail cuLaunchKernelEx {result} 1"]) as executor:
        failed = failure(executor)
        assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, f"cuda.{code}")
        described = "cooperative launch of copy (grid 6×1×1, block 64×1×1, cluster 3×1×1, 2,048 bytes of dynamic"
        assert described in failed.message
        assert isinstance(executor.call(0, {}, {}, timeout_s=20), Call)  # a refusal ends nothing


def test_a_refused_launch_leaves_no_stream_that_waits(fake: Fake) -> None:
    with fake.loaded(OK, script=["fail cuLaunchKernelEx 1 1"]) as executor:
        refused = executor.call(0, {}, {}, timeout_s=20, flush=True)
        assert isinstance(refused, Failure)
        assert fake.log("^hold") and fake.log("^opened")
        assert isinstance(executor.call(0, {}, {}, timeout_s=20, flush=True), Call)


def test_a_launch_that_the_machine_fails_is_no_refusal(fake: Fake) -> None:
    with (
        fake.loaded(OK, script=["fail cuLaunchKernelEx 214 1"]) as executor,
        pytest.raises(InfrastructureError, match=r"cuLaunchKernelEx returned CUDA_ERROR_214 \(214\) in stage 'launch'"),
    ):
        executor.call(0, {}, {}, timeout_s=20)


def test_refused_fills_name_their_target(fake: Fake) -> None:
    fill = Memset(target=ref("C", 16), value=0, width_bytes=4, count=5)
    with fake.loaded(plan([("C", "output", 64)], fill), script=["fail cuMemsetD32Async 1 2"]) as executor:
        failed = failure(executor)
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.invalid_value")
    assert "memset to C at byte 16 (20 bytes)" in failed.message


def test_a_refused_attribute_fails_the_load(fake: Fake) -> None:
    wide = OK.model_copy(update={"functions": (FunctionAttributes(kernel="copy", max_dynamic_smem_bytes=300_000),)})
    executor = fake.start(["fail cuFuncSetAttribute 1 1"])
    failed = executor.load(fake.build(), [wide])
    assert failed is not None
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.function_attribute")
    assert "kernel copy" in failed.message


def test_a_module_too_large_is_the_submission_s_and_one_that_does_not_load_the_machine_s(fake: Fake) -> None:
    failed = fake.start(["fail cuModuleLoadData 2 1"]).load(fake.build(), [OK])
    assert failed is not None
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.out_of_memory")
    with pytest.raises(InfrastructureError, match="209"):
        fake.start(["fail cuModuleLoadData 209 1"]).load(fake.build(), [OK])


def test_local_memory_for_all_threads_is_the_submission_s(fake: Fake) -> None:
    with fake.loaded(OK, script=["fail cuLaunchKernelEx 2 1"]) as executor:  # that which overwrites it before a call
        failed = failure(executor)
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.out_of_memory")
    assert "local memory" in failed.message


def test_memory_that_would_outlive_a_call_is_refused(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxgym.device.cuda.executor.uses_device_heap", lambda cubin: True)
    failed = fake.start().load(fake.build(), [OK])
    assert failed is not None
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.device_malloc")
    assert "cudaMallocAsync" in failed.message


def test_a_refused_tensor_map_is_described(fake: Fake) -> None:
    tensor_map = TensorMap(
        data_type="UINT8", global_address=ref("C", 48), global_dim=(16, 2), global_strides_bytes=(16,),
        box_dim=(16, 2), element_strides=(1, 1),
    )  # fmt: skip
    mapped = OK.model_copy(update={"tensor_maps": (tensor_map,)})
    with fake.loaded(mapped, script=["fail cuTensorMapEncodeTiled 1 1"]) as executor:
        failed = failure(executor)
    assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.tensor_map")
    assert "over C at byte 48" in failed.message
    assert "box (16, 2)" in failed.message


def test_memory_that_workspaces_want_is_the_submission_s_and_other_memory_the_machine_s(fake: Fake) -> None:
    def wants(role: str) -> LaunchPlan:
        copy = launch("copy", pointer("C"), pointer("C"), literal(1, 8))
        return plan([("C", "output", 2 * MIB), ("big", role, 64 * MIB)], copy)

    memory = [f"memory {32 * MIB}"]
    with fake.loaded(wants("workspace"), script=memory) as executor:
        failed = failure(executor)
        assert (failed.status, failed.code) == (Status.LAUNCH_ERROR, "cuda.out_of_memory")
        assert "big of 67,108,864 bytes" in failed.message
    with (
        fake.loaded(wants("output"), script=memory) as executor,
        pytest.raises(InfrastructureError, match="cuMemCreate"),
    ):
        executor.call(0, {}, {}, timeout_s=20)
    for enough in (70, 66):  # but for a spare one, of either size
        with fake.loaded(wants("workspace"), script=[f"memory {enough * MIB}"]) as executor:
            assert isinstance(executor.call(0, {}, {}, timeout_s=20), Call)
    with fake.loaded(wants("workspace"), script=[f"memory {64 * MIB}"]) as executor:
        assert failure(executor).code == "cuda.out_of_memory"


@pytest.mark.parametrize(
    ("offset", "said"),
    [(600, "wrote 1 byte past the end of C"), (1023, "wrote 424 bytes past the end of C"),
     (-1, "wrote 1 byte before the start of C"), (-5000, "wrote 5000 bytes before the start of C")],
)  # fmt: skip
def test_canaries_beside_a_buffer(fake: Fake, offset: int, said: str) -> None:
    poke = launch("poke", pointer("C"), literal(offset, 8), literal(0, 4))
    with fake.loaded(plan([("C", "output", 600)], poke)) as executor:
        failed = failure(executor)
        assert (failed.status, failed.code) == (Status.RUNTIME_FAULT, "cuda.out_of_bounds")
        assert f"Kernel poke {said}, which has 600 bytes" in failed.message
        assert failure(executor).code == "cuda.out_of_bounds"  # the canaries are planted anew


@pytest.mark.parametrize("offset", [0, 599])
def test_the_first_and_last_byte_are_no_canaries(fake: Fake, offset: int) -> None:
    poke = launch("poke", pointer("C"), literal(offset, 8), literal(0, 4))
    with fake.loaded(plan([("C", "output", 600)], poke)) as executor:
        assert isinstance(executor.call(0, {}, {}, timeout_s=20), Call)


def test_an_empty_buffer_has_an_address_at_which_nothing_lies(fake: Fake) -> None:
    with fake.loaded(
        plan([("C", "workspace", 0)], launch("copy", pointer("C"), pointer("C"), literal(0, 8)))
    ) as executor:
        assert isinstance(executor.call(0, {}, {}, timeout_s=20), Call)
    (_, address, size) = fake.log("^visible")[0].split()
    pointed = int.from_bytes(bytes.fromhex(fake.log("^launch")[0].split()[-2]), "little")
    assert pointed == int(address, 16) + int(size)


def test_a_hang_is_killed(fake: Fake) -> None:
    with fake.loaded(plan([], launch("hang"))) as executor:
        started = time.monotonic()
        failed = failure(executor, timeout_s=0.3)
        assert time.monotonic() - started < 30
        assert (failed.status, failed.code) == (Status.HANG, "cuda.hang")
        assert "within 0.3 s" in failed.message
        assert not executor.usable


def test_a_process_that_dies_is_the_machine_s(fake: Fake) -> None:
    with fake.loaded(plan([], launch("die"))) as executor, pytest.raises(WorkerDied, match="killed by SIGSEGV"):
        executor.call(0, {}, {}, timeout_s=20)


def test_what_kernels_print_is_kept_apart_and_bounded(fake: Fake) -> None:
    plans = [plan([], launch("print", literal(count, 4))) for count in (5, 1_000_000, 0)]
    with fake.loaded(*plans) as executor:
        printed = []
        for number in (0, 1, 2, 0):
            called = executor.call(number, {}, {}, timeout_s=20)
            assert isinstance(called, Call)
            printed.append(called.printed)
        said = executor.close()
    assert printed[0] == printed[3] == "ppppp"
    assert 32 << 10 <= len(printed[1]) <= 64 << 10
    assert set(printed[1]) == {"p"}
    assert printed[2] == said == ""


def test_calls_are_checked_before_they_are_made(fake: Fake) -> None:
    wants = plan([("A", "input", 8), ("C", "output", 8)], Copy(target=ref("C"), source=ref("A"), size_bytes=8))
    executor = fake.start()
    with pytest.raises(UsageError, match="load a build"):
        executor.call(0, {}, {}, timeout_s=20)
    assert executor.load(fake.build(cubin({})), [wants]) is None
    with pytest.raises(UsageError, match="start another one"):
        executor.load(fake.build(), [wants])
    with pytest.raises(UsageError, match="inputs A"):
        executor.call(0, {}, {}, timeout_s=20)
    with pytest.raises(UsageError, match="input A has 7 bytes; the plan wants 8"):
        executor.call(0, {"A": np.zeros(7, np.uint8)}, {}, timeout_s=20)
    assert isinstance(executor.call(0, {"A": np.zeros(8, np.uint8)}, {}, timeout_s=20), Call)


def test_kernels_are_named_as_they_are_written() -> None:
    twice = launch("_ZN12_GLOBAL__N_14gemmILi128EEEvPfi")
    assert hang_failure(plan([], twice), 2).message.startswith("Kernel gemm<128> did not end within 2 s")
    many = [launch(f"k{number}") for number in range(6)]
    assert hang_failure(plan([], *many), 2).message.startswith("One of the kernels k0, k1, k2, k3 and 2 more did not")
