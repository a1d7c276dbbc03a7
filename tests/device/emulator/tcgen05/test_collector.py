"""Collector buffers of tcgen05.mma: a product may take a matrix from one only after a fill that is still valid.

PTX ISA 9.7.16.10.9.1 (A) and 9.7.16.10.9.3 (B of .ws).
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.device.emulator.tcgen05 import pair
from tests.device.emulator.tcgen05.harness import SCHEDULES, Body, Run, allocated, dump, fill, freed, run
from tests.device.emulator.tcgen05.operands import instruction, small_integers
from tests.device.emulator.tcgen05.test_findings import AFTER, COMMIT, DATA, operands
from tests.device.emulator.tcgen05.test_mma import mma

ERROR, WARNING = 2, 1
OTHER = "off"
"""Descriptor of another A: the next slice of K."""


def product(use: str = "", a: str = "da", m: int = 128, accumulate: bool = True) -> str:
    text = mma(instruction(m, 8), accumulate, a=a)
    return text.replace("kind::f16", f"kind::f16.collector::a::{use}") if use else text


def issued(*products: str, schedule: str = "fair", body: Body | None = None) -> Run:
    kernel = (body or operands()).add("add.u64 off, da, 2;")
    kernel.thread(0, "\n".join([product(accumulate=False, a=OTHER), *products, COMMIT])).wait().add(AFTER).add(dump(8))
    return run(freed(kernel), DATA, out_bytes=128 * 32, schedule=schedule)


CLEAN = {
    "discard": [product("discard"), product()],
    "one fill": [product("fill"), product("use"), product("use"), product("lastuse")],
    "two fills": [product("fill"), product("lastuse"), product("fill", OTHER), product("lastuse", OTHER)],
    "never used": [product("fill"), product("fill", OTHER), product("use", OTHER), product()],
}
BAD = {
    "use alone": ([product("use")], ERROR, "no product has filled"),
    "lastuse alone": ([product("lastuse")], ERROR, "no product has filled"),
    "another A": ([product("fill"), product("lastuse", OTHER)], ERROR, "with another A (another place, shape or kind)"),
    "A of the fill before": ([product("fill"), product("fill", OTHER), product("use")], ERROR, "with another A"),
    "another shape": ([product("fill"), product("use", m=64)], ERROR, "with another A"),
    "another A since": (
        [product("fill"), product("", OTHER), product("use")],
        ERROR,
        "it may hold another matrix by now",
    ),
    "after lastuse": ([product("fill"), product("lastuse"), product("lastuse")], WARNING, "has let go of it since"),
    "after discard": ([product("fill"), product("discard"), product("use")], WARNING, "has let go of it since"),
    "after no qualifier": ([product("fill"), product(), product("use")], WARNING, "has let go of it since"),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("products", CLEAN.values(), ids=CLEAN)
def test_what_a_fill_allows(products: list[str], schedule: str) -> None:
    done = issued(*products, schedule=schedule)
    assert done.ok and not done.codes(WARNING), done.codes(0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("products", "severity", "says"), BAD.values(), ids=BAD)
def test_what_it_does_not(products: list[str], severity: int, says: str, schedule: str) -> None:
    done = issued(*products, schedule=schedule)
    assert done.ok
    assert done.codes(severity) == {"tcgen05.collector"} and not done.codes(severity + 1)
    assert says in done.message("tcgen05.collector")


def test_the_product_is_that_of_memory() -> None:
    plain = issued(product(), product("", OTHER))
    assert not plain.codes(WARNING)
    np.testing.assert_array_equal(issued(product("fill"), product("use", OTHER)).output, plain.output)


# ---- A that changes


@pytest.mark.parametrize(
    ("store", "last", "severity"),
    [
        ("st.shared.u32 [data], r9;", "use", ERROR),
        ("ld.shared.u32 r9, [data];\nst.shared.u32 [data], r9;", "use", 0),
        ("st.shared.u32 [data], r9;", "fill", 0),
    ],
    ids=["changed", "stored as it was", "filled anew"],
)
def test_a_fill_is_not_valid_for_what_is_stored_later(store: str, last: str, severity: int) -> None:
    body = operands().thread(0, f"{product('fill', accumulate=False)}\n{COMMIT}").wait().sync()
    body.thread(0, f"mov.u32 r9, 0x40404040;\n{store}\nfence.proxy.async.shared::cta;\n{product(last)}\n{COMMIT}")
    done = run(freed(body.wait(parity=1).add(AFTER).add(dump(8))), DATA, out_bytes=128 * 32)
    assert done.ok and done.codes(WARNING) == ({"tcgen05.collector"} if severity else set()), done.codes(0)
    if severity:
        assert "A has changed since line" in done.message("tcgen05.collector")


def test_a_in_tensor_memory() -> None:
    def codes(*products: str) -> set[str]:
        value = "mov.u32 {r}, 0x3f803f80;"
        return issued(*products, body=operands(allocated().add(fill(88, value)))).codes(WARNING)

    assert not codes(product("fill", "[tmem+64]"), product("lastuse", "[tmem+64]"))
    assert codes(product("fill", "[tmem+64]"), product("lastuse", "[tmem+72]")) == {"tcgen05.collector"}
    assert codes(product("fill", "[tmem+64]"), product("lastuse")) == {"tcgen05.collector"}


# ---- B of .ws


def stationary(use: str = "") -> str:
    qualifier = f".collector::{use}" if use else ""
    return mma(instruction(128, 64), False).replace("mma.cta", "mma.ws.cta").replace("f16 ", f"f16{qualifier} ")


@pytest.mark.parametrize(
    ("uses", "severity"),
    [
        (["b2::fill", "b2::use", "b2::lastuse"], 0),
        (["b2::fill", "", "b1::discard", "b2::lastuse"], 0),
        (["b2::fill", "b3::fill", "b2::lastuse", "b3::lastuse"], 0),
        (["b2::use"], ERROR),
        (["b2::fill", "b3::lastuse"], ERROR),
        (["b0::fill", "", "b0::use"], WARNING),
    ],
    ids=str,
)
def test_the_four_buffers_of_b(uses: list[str], severity: int) -> None:
    body = operands().thread(0, "\n".join([*(stationary(use) for use in uses), COMMIT])).wait().add(AFTER).add(dump(8))
    done = run(freed(body), DATA, out_bytes=128 * 32)
    assert done.ok
    assert done.codes(max(severity, WARNING)) == ({"tcgen05.collector"} if severity else set()), done.codes(0)


# ---- pairs


@pytest.mark.parametrize(
    ("uses", "codes"), [(["fill", "lastuse"], set()), (["lastuse"], {"tcgen05.collector"})], ids=str
)
def test_a_of_a_pair(uses: list[str], codes: set[str]) -> None:
    rng = np.random.default_rng(3)
    data = pair.images(small_integers(rng, 256, 16), small_integers(rng, 16, 16))
    one = pair.mma(instruction(256, 16), False)
    issue = "\n".join(one.replace("kind::f16", f"kind::f16.collector::a::{use}") for use in uses)
    done = pair.product(issue, 16, data)
    assert done.ok and done.codes(ERROR) == codes, done.codes(0)
