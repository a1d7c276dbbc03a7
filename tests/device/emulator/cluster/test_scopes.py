"""Scopes of flags in shared memory: .cta reaches the threads of one CTA, and no other CTA of its cluster."""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.core.harness import Run, kernel, run

MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
START = f"""
  .shared .align 16 .b8 sm[64]; mov.u32 %r10, sm; mov.u32 %r9, %cluster_ctarank; setp.ne.u32 %p1, %r9, 0;
  shr.u32 %r8, %r0, 5; setp.ne.u32 %p2, %r8, 0; and.b32 %r7, %r0, 31; setp.ne.u32 %p3, %r7, 0;
  mapa.shared::cluster.u32 %r11, %r10, 1; or.pred %p4, %p2, %p3; @%p4 bra READY;
  st.shared.u32 [%r10], 0; st.shared.u32 [%r10+4], 0; st.shared.u32 [%r10+8], 0;
  mbarrier.init.shared::cta.b64 [%r10+16], 1; fence.mbarrier_init.release.cluster;
READY: {MEET}
  @%p3 bra DONE;
"""
"""Words at %r10: data, two flags; at +16 an mbarrier. %r11: the same in CTA 1. Lane 0 of each warp goes on."""
DATA = "st.shared::cluster.u32 [%r11], 77;"
READ = "ld.shared.u32 %r20, [%r10];"
LOOP = "setp.eq.u32 %p5, %r21, 0; @%p5 bra W;"


def go(body: str, *, schedule: str = "fair", seed: int = 0, size: int = 2, block: int = 32) -> Run:
    return run(
        kernel(f"{START} {body} DONE: {MEET}"), {"out": np.zeros(32, "<u4")},
        grid=size, block=block, schedule=schedule, seed=seed, cluster=(size, 1, 1),
    )  # fmt: skip


def handed_over(release: str, acquire: str) -> str:
    """CTA 0 stores into CTA 1 and sets a flag there, for which CTA 1 waits before it reads."""
    return f"@%p1 bra SECOND; {DATA} {release} bra DONE; SECOND: W: {acquire} {LOOP} {READ}"


def store(how: str) -> str:
    return f"st.{how}.shared::cluster.u32 [%r11+4], 1;"


def load(how: str) -> str:
    return f"ld.{how}.shared::cta.u32 %r21, [%r10+4];"


def count(how: str) -> str:
    return f"atom.{how}.shared::cluster.add.u32 %r22, [%r11+4], 1;"


FAR, NEAR = "fence.acq_rel.cluster;", "fence.acq_rel.cta;"
WAIT_CTA, WAIT_CLUSTER = (
    f"mbarrier.try_wait.parity.acquire.{scope}.shared::cta.b64 %p6, [%r10+16], 0; selp.u32 %r21, 1, 0, %p6;"
    for scope in ("cta", "cluster")
)
WITHIN = "@!%p1 ld.relaxed.cta.shared::cta.u32 %r23, [%r10+8];"
"""Some scope of the kernel ends at the CTA."""
RIGHT = {
    "cluster": WITHIN + handed_over(store("release.cluster"), load("acquire.cluster")),
    "gpu": WITHIN + handed_over(store("release.gpu"), load("acquire.gpu")),
    "fences": WITHIN + handed_over(f"{FAR} {store('relaxed.cluster')}", f"{load('relaxed.cluster')} {FAR}"),
    "a near fence after the far one": handed_over(
        f"{FAR} {NEAR} {store('relaxed.cluster')}", f"{load('relaxed.cluster')} {NEAR} {FAR}"),
    "volatile": WITHIN + handed_over(
        f"{FAR} st.volatile.shared::cluster.u32 [%r11+4], 1;", f"ld.volatile.shared.u32 %r21, [%r10+4]; {FAR}"),
    "atomics": WITHIN + handed_over(count("release.cluster"), "atom.acquire.shared::cta.add.u32 %r21, [%r10+4], 0;"),
    # practice: CUTLASS arrives and waits without a scope, the ISA's example of a remote arrival says .cta
    "mbarrier": WITHIN + handed_over("mbarrier.arrive.shared::cluster.b64 _, [%r11+16];", WAIT_CLUSTER),
    "mbarrier, .cta": WITHIN + handed_over("mbarrier.arrive.release.cta.shared::cluster.b64 _, [%r11+16];", WAIT_CTA),
}  # fmt: skip
WRONG = {
    "both": handed_over(store("release.cta"), load("acquire.cta")),
    "the release": handed_over(store("release.cta"), load("acquire.cluster")),
    "the acquire": handed_over(store("release.cluster"), load("acquire.cta")),
    "the fence before": handed_over(f"{NEAR} {store('relaxed.cluster')}", load("acquire.cluster")),
    "the fence after": handed_over(store("release.cluster"), f"{load('relaxed.cluster')} {NEAR}"),
    "the relaxed store": handed_over(f"{FAR} {store('relaxed.cta')}", load("acquire.cluster")),
    "the relaxed load": handed_over(store("release.cluster"), f"{load('relaxed.cta')} {FAR}"),
    "membar": handed_over(f"membar.cta; {store('relaxed.cluster')}", load("acquire.cluster")),
    "an atomic": handed_over(count("release.cta"), load("acquire.cluster")),
    "a reduction": handed_over("red.release.cta.shared::cluster.add.u32 [%r11+4], 1;", load("acquire.cluster")),
}  # fmt: skip
schedules = pytest.mark.parametrize("schedule", ["fair", "lazy", "random"])


@schedules
@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_what_reaches_the_cluster_is_clean(body: str, schedule: str) -> None:
    assert [(r["code"], r["message"]) for r in go(body, schedule=schedule).records] == []


@schedules
@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_what_ends_at_the_cta_hands_over_in_practice_alone(body: str, schedule: str) -> None:
    (record,) = go(body, schedule=schedule).records
    assert (record["code"], int(record["severity"])) == (b"smem.race", 1)
    message = record["message"].decode()
    assert message.startswith("warp 0 of CTA 1 reads shared 0x")
    assert "which warp 0 of CTA 0 writes at line" in message
    assert record["remedy"].startswith(b"The scope of a flag's release and acquire")


@schedules
def test_no_flag_at_all_is_an_error_whatever_the_scopes(schedule: str) -> None:
    (record,) = go(f"{WITHIN} @%p1 bra SECOND; {DATA} bra DONE; SECOND: {READ}", schedule=schedule).records
    assert (record["code"], int(record["severity"])) == (b"smem.race", 2)
    assert not record["remedy"].startswith(b"The scope of")


@schedules
@pytest.mark.parametrize("how", ["release.cta", "relaxed.cta"])
def test_a_scope_of_the_cta_serves_its_own_threads(how: str, schedule: str) -> None:
    """Warp 0 hands data to warp 1 of its CTA; a relaxed store without a fence does not."""
    data, flag = "st.shared.u32 [%r10], 77;", f"st.{how}.shared::cta.u32 [%r10+4], 1;"
    body = f"@%p1 bra DONE; @%p2 bra SECOND; {data} {flag} bra DONE; SECOND: W: {load('acquire.cta')} {LOOP} {READ}"
    found = [(r["code"], int(r["severity"])) for r in go(body, schedule=schedule, block=64).records]
    assert found == ([] if how == "release.cta" else [(b"smem.race", 1)])


@schedules
@pytest.mark.parametrize(("onward", "clean"), [("cluster", True), ("cta", False)])
def test_what_one_warp_was_handed_another_hands_on(onward: str, clean: bool, schedule: str) -> None:
    """Warp 0 of CTA 0 stores into CTA 1 and tells warp 1 of its own CTA, with scope .cta; warp 1 tells CTA 1."""
    near = "st.release.cta.shared::cta.u32 [%r10+8], 1; bra DONE;"
    middle = "V: ld.acquire.cta.shared::cta.u32 %r21, [%r10+8]; setp.eq.u32 %p5, %r21, 0; @%p5 bra V;"
    body = f"""
      @%p1 bra SECOND; @%p2 bra MIDDLE; {DATA} {near}
      MIDDLE: {middle} {store(f"release.{onward}")} bra DONE;
      SECOND: @%p2 bra DONE; W: {load("acquire.cluster")} {LOOP} {READ}"""
    found = [(r["code"], int(r["severity"])) for r in go(body, schedule=schedule, block=64).records]
    assert found == ([] if clean else [(b"smem.race", 1)])
