from __future__ import annotations

import asyncio
import http.client
import json
import logging
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest

import ptxgym
from ptxgym.bench.journal import RecordedRemote
from ptxgym.cluster import Fleet
from ptxgym.cluster.wants import asking
from ptxgym.episode import Episode
from ptxgym.errors import (
    AccessDenied,
    DeadlineExceeded,
    InfrastructureError,
    Overloaded,
    UnknownNameError,
    UsageError,
)
from ptxgym.evaluator import Evaluator
from ptxgym.judging import Judging
from ptxgym.serve import client
from ptxgym.serve.connection import Connections
from ptxgym.serve.journal import Journal
from ptxgym.serve.remote import RemoteEvaluator
from ptxgym.serve.wire import Answer, Asked, Problem
from ptxgym.task import load_task
from ptxgym.verdict import Status
from tests.serve.conftest import TOKEN, Killable


def call(address: str, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict, str]:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    with closing(http.client.HTTPConnection(address.partition("//")[2], timeout=30)) as connection:
        connection.request(method, path, data, {"Authorization": f"Bearer {TOKEN}"} | headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def steps(log: Path) -> list[tuple[str, str]]:
    path = log / "steps"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [(kind, text) for kind, _, text in (line.split(" ", 2) for line in lines)]


def test_verdicts_travel_whole_and_equal_texts_are_evaluated_once(start, log):
    address, _, service = start(fleet=Fleet(cpu=2))
    with Evaluator(address) as evaluator, ThreadPoolExecutor(16) as threads:
        texts = [f"// ok {number % 4} é\n" for number in range(40)]
        verdicts = list(threads.map(lambda text: evaluator.evaluate(text, "gemm"), texts))
        assert [verdict.message for verdict in verdicts] == texts
        assert verdicts[0] == service.evaluate(texts[0], "gemm")
        assert evaluator.gpu("h100") is None and evaluator.tier == "standard"
        assert evaluator.secret_hash == service.secret_hash
    assert len(steps(log)) == 8


def test_a_connection_that_is_used_while_its_client_is_closed_is_closed_too(start):
    address, _, _ = start()
    asked = client.Client(address)
    asked.about()
    assert len(asked._connections._idle) == 1
    asked.close()
    asked._about = None
    asked.about()
    assert asked._connections._idle == []


def test_connections_that_the_server_has_ended_meanwhile_cost_one_try(monkeypatch):
    monkeypatch.setenv("PTXGYM_TOKEN", TOKEN)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(5) as threads:
        server.settimeout(30.0)
        connections = Connections(f"http://127.0.0.1:{server.getsockname()[1]}")

        def exchange() -> tuple[int, bytes]:
            return connections.exchange("GET", "/", None, 30.0)

        def serve() -> None:
            accepted.append(server.accept()[0])
            assert accepted[-1].recv(4096).startswith(b"GET / HTTP/1.1")

        asked = [threads.submit(exchange) for _ in range(4)]
        for _ in asked:
            serve()
        for link in accepted:
            link.sendall(answer)
        assert [each.result() for each in asked] == [(200, b"{}")] * 4
        for link in accepted:
            link.close()
        again = threads.submit(exchange)
        serve()
        accepted[-1].sendall(answer)
        assert again.result() == (200, b"{}") and len(accepted) == 5
        accepted[-1].close()  # where a new one hangs up, too, that is told
        once_more = threads.submit(exchange)
        serve()
        accepted[-1].close()
        with pytest.raises(ConnectionError):
            once_more.result()
        connections.close()


QUICK = {"PATIENCE_S": 2.0, "FIRST_PATIENCE_S": 0.5, "POLL_S": 0.1, "SLACK_S": 0.2, "PAUSE_S": 0.05}


def test_a_service_that_was_waited_for_in_vain_is_waited_for_less_until_it_answers(start, monkeypatch):
    address, _, _ = start()
    with Evaluator(address) as evaluator, socket.create_server(("127.0.0.1", 0)) as deaf:
        asked = evaluator._client
        there, gone = asked._connections, Connections(f"http://127.0.0.1:{deaf.getsockname()[1]}")  # it only accepts

        def waited_s(text: str) -> float:
            began = time.monotonic()
            with (
                monkeypatch.context() as quick,
                pytest.raises(InfrastructureError, match="no service of ptxgym answers"),
            ):
                for name, seconds in QUICK.items():
                    quick.setattr(client, name, seconds)
                quick.setattr(asked, "_connections", gone)
                evaluator.evaluate(text, "gemm")
            return time.monotonic() - began

        assert evaluator.evaluate("// ok 1", "gemm").status is Status.OK
        assert waited_s("// ok 2") > 1.4 and max(waited_s("// ok 2"), waited_s("// ok 3")) < 1.2
        assert asked._connections is there and evaluator.evaluate("// ok 4", "gemm").status is Status.OK
        assert waited_s("// ok 5") > 1.4


def test_errors_arrive_as_they_were_raised(start):
    address, _, _ = start(retries=0)
    with Evaluator(address) as evaluator:
        with pytest.raises(InfrastructureError, match="the disk is full"):
            evaluator.evaluate("// infra", "gemm")
        with pytest.raises(UsageError, match="other content"):
            evaluator.evaluate("// usage", "gemm")
        with pytest.raises(RuntimeError, match=r"fault \(ZeroDivisionError\)") as caught:
            evaluator.evaluate("// bug", "gemm")
        assert "division by zero" not in str(caught.value)
        with pytest.raises(UnknownNameError, match="nosuch"):
            evaluator.evaluate("// ok", "gemm", workload="nosuch")
        with asking(deadline_s=0.5), pytest.raises(DeadlineExceeded):
            evaluator.evaluate("// sleep 600", "gemm")
        other = load_task("gemm").model_copy(update={"revision": 99})
        with pytest.raises(UsageError, match="not the same here"):
            evaluator.evaluate("// ok", other)
        assert evaluator.evaluate("// ok", "gemm").status is Status.OK


def test_a_text_that_cannot_travel_gets_its_verdict_all_the_same(start, log):
    address, _, _ = start()
    with Evaluator(address) as evaluator:
        assert evaluator.evaluate("x" * (1 << 20), "gemm").code == "submission.too_large"
        assert evaluator.evaluate("\ud800", "gemm").code == "submission.not_text"
    assert steps(log) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "EOF"),
        (b"\xff\xfe", "no evaluation"),
        (b"[]", "no evaluation"),
        ({"text": "x"}, "task"),
        ({"text": "x", "task": "gemm", "extra": 1}, "extra"),
        ({"text": 1, "task": "gemm"}, "text"),
        ({"text": "x", "task": "gemm", "deadline_s": -1}, "deadline_s"),
        (b'{"text": "\\ud800", "task": "gemm"}', "no evaluation"),
    ],
)
def test_malformed_requests_are_told_so(started, body, words):
    status, _, text = call(started, "POST", "/v1/evaluations", body)
    told = Problem.model_validate_json(text)
    assert (status, told.type) == (400, "UsageError") and words in told.message


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> object:
    """A server that several tests ask."""
    import os

    folder = tmp_path_factory.mktemp("served")
    (folder / "log").mkdir()
    before = {name: os.environ.get(name) for name in ("PTXGYM_TOKEN", "PTXGYM_TEST_LOG")}
    os.environ |= {"PTXGYM_TOKEN": TOKEN, "PTXGYM_TEST_LOG": str(folder / "log")}
    server = Killable(folder, workers=1)
    yield server.start()
    server.kill()
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def test_what_there_is_not_is_told_so(started):
    asked = {"text": "// ok", "task": "gemm"}
    until = time.monotonic() + 30
    while call(started, "GET", "/v1/service")[0] == 503 and time.monotonic() < until:
        time.sleep(0.1)
    assert call(started, "GET", "/v1/evaluations/" + "0" * 64)[0] == 404
    assert call(started, "GET", "/v1/evaluations/..%2f..%2fsecret")[0] == 404
    assert call(started, "DELETE", "/v1/evaluations/" + "0" * 64)[0] == 404
    assert call(started, "GET", "/nowhere")[0] == 404
    assert call(started, "PUT", "/v1/evaluations", asked)[0] == 405
    assert call(started, "POST", "/v1/evaluations?wait_s=nan", asked)[0] == 422
    assert call(started, "POST", "/v1/evaluations?wait_s=31", asked)[0] == 422
    assert call(started, "POST", "/v1/evaluations", asked | {"task": "gem"})[0] == 422
    status, _, text = call(started, "POST", "/v1/evaluations?wait_s=20", asked)
    answer = Answer.model_validate_json(text)
    assert status == 200 and answer.verdict is not None
    assert call(started, "GET", f"/v1/evaluations/{answer.key}")[::2] == (200, text)
    assert json.loads(call(started, "GET", "/v1/service/status")[2])["backend"] == "local"


def test_oversized_bodies_are_not_kept(start):
    address, _, _ = start(body_bytes=2048)
    status, headers, _ = call(address, "POST", "/v1/evaluations", b"x" * 4096)
    assert status == 413 and headers["connection"] == "close"
    assert call(address, "POST", "/v1/evaluations", b"x" * (16 << 20))[0] == 413
    with Evaluator(address) as evaluator, pytest.raises(UsageError, match=r"more than 2,048 bytes"):
        evaluator.evaluate("x" * 4096, "gemm")
    host, _, port = address.partition("//")[2].partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as link:  # without saying how much will come
        link.sendall(
            f"POST /v1/evaluations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        for _ in range(3):
            link.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
        assert link.recv(64).startswith(b"HTTP/1.1 413")


def test_a_wrong_token_opens_nothing_and_no_secret_is_told(start, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    address, _, service = start()
    for given in ("", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"):
        for method, path in (("POST", "/v1/evaluations"), ("GET", "/v1/service"), ("GET", "/v1/evaluations/x")):
            status, headers, text = call(address, method, path, Authorization=given)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert Problem.model_validate_json(text).type == "AccessDenied"
    monkeypatch.setenv("PTXGYM_TOKEN", "wrong-horse")
    with Evaluator(address) as evaluator, pytest.raises(AccessDenied, match="PTXGYM_TOKEN") as caught:
        evaluator.evaluate("// ok", "gemm")
    monkeypatch.delenv("PTXGYM_TOKEN")
    with Evaluator(address) as evaluator, pytest.raises(AccessDenied, match="wants its token"):
        evaluator.evaluate("// ok", "gemm")
    secret = service._secret.decode()
    about = call(address, "GET", "/v1/service")[2]
    for text in (caplog.text, str(caught.value), about, call(address, "GET", "/docs", Authorization="")[2]):
        assert all(word not in text for word in (TOKEN, "wrong-horse", secret))
    with pytest.raises(UsageError) as refused:
        Evaluator(f"http://user:{TOKEN}@localhost:1")
    assert TOKEN not in str(refused.value)


def test_a_full_queue_and_too_many_requests_push_back_and_the_client_waits(start):
    address, _, _ = start(capacity=1, requests=2)
    with Evaluator(address) as evaluator, ThreadPoolExecutor(6) as threads:
        evaluator.evaluate("// ok", "gemm")
        status, headers, text = call(
            address, "POST", "/v1/evaluations", {"text": "// sleep 1", "task": "gemm", "asker": "me"}
        )
        assert status == 202
        status, headers, text = call(address, "POST", "/v1/evaluations", {"text": "// b", "task": "gemm"})
        assert (status, headers["retry-after"]) == (503, "1")
        assert Problem.model_validate_json(text).type == "Overloaded"
        found = list(threads.map(lambda number: evaluator.evaluate(f"// ok {number}", "gemm"), range(6)))
        assert [verdict.message for verdict in found] == [f"// ok {number}" for number in range(6)]
        with asking(deadline_s=0.3), pytest.raises((Overloaded, DeadlineExceeded)):
            evaluator.evaluate("// sleep 600", "gemm")


def test_one_asker_lets_go_and_others_keep_theirs(start, log):
    address, _, _ = start()
    asked = {"text": "// sleep 1", "task": "gemm"}
    with Evaluator(address) as evaluator:
        evaluator.evaluate("// ok", "gemm")
        keys = {
            json.loads(call(address, "POST", "/v1/evaluations", asked | {"asker": asker})[2])["key"]
            for asker in ("a", "b", "b")
        }
        (key,) = keys
        assert call(address, "DELETE", f"/v1/evaluations/{key}?asker=c")[0] == 404
        assert call(address, "DELETE", f"/v1/evaluations/{key}?asker=a")[0] == 204
        assert call(address, "GET", f"/v1/evaluations/{key}?wait_s=20")[0] == 200

        async def cancelled() -> None:
            waiting = asyncio.create_task(evaluator.aevaluate("// sleep 600", "gemm"))
            while ("emulate", "// sleep 600") not in steps(log):
                await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(cancelled())
        assert asyncio.run(evaluator.aevaluate("// after", "gemm")).status is Status.OK


@pytest.mark.parametrize("evaluator_class", [RemoteEvaluator, RecordedRemote])
def test_a_cancelled_turn_lets_go_as_a_cancelled_evaluation_does(start, log, evaluator_class):
    address, _, service = start()
    with evaluator_class(address) as evaluator:
        episode = Episode("PTX-Gemm-H100", evaluator)

        async def cancelled() -> None:
            waiting = asyncio.create_task(episode.asubmit("// sleep 600"))
            while ("emulate", "// sleep 600") not in steps(log):
                await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(cancelled())
        assert asyncio.run(episode.asubmit("// after")).number == 1
        assert service.status().counters["cancelled"] == 1


def test_an_address_where_nothing_answers_is_told_soon(log, monkeypatch):
    monkeypatch.setattr(client, "FIRST_PATIENCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    refused = pytest.raises(InfrastructureError, match=f"127.0.0.1:{port}: Connection refused")
    with Evaluator(f"http://127.0.0.1:{port}") as evaluator, refused:
        evaluator.evaluate("// ok", "gemm")
    for address in ("http://", "http://h:99999", "http://h/?token=x", "https://h#x", "http://h:0", "http://a b"):
        with pytest.raises(UsageError, match="http://host:port"):
            Evaluator(address)
    with pytest.raises(UsageError, match="secret of its own"):
        Evaluator("http://localhost:1", secret="s")


def test_environments_run_on_a_service(start):
    address, _, _ = start(fleet=Fleet(cpu=2))
    env = ptxgym.make("PTX-Gemm-H100", device=address, turns=2)
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("// ok")
    assert info["verdict"].message == "// ok" and reward > 0 and not terminated and not truncated
    env.close()
    envs = gym.make_vec("PTX-Gemm-H100", num_envs=3, device=address)
    envs.reset(seed=0)
    texts = ("// ok 1", "// ok 2", "// infra")
    _, rewards, _, truncated, infos = envs.step(texts)
    assert list(truncated) == [False, False, True] and rewards[2] == 0
    assert [verdict.message for verdict in infos["verdict"][:2]] == ["// ok 1", "// ok 2"]
    envs.close()


def test_a_killed_server_goes_on_with_what_it_accepted(killable, log):
    address = killable.start()
    with Evaluator(address) as evaluator, ThreadPoolExecutor(8) as threads:
        done = evaluator.evaluate("// ok", "gemm")
        left = json.loads(call(address, "POST", "/v1/evaluations", {"text": "// sleep 0.5 left", "task": "gemm"})[2])
        waiting = [threads.submit(evaluator.evaluate, f"// sleep 0.4 {n}", "gemm") for n in range(6)]
        while sum(kind == "emulate" for kind, _ in steps(log)) < 4:
            time.sleep(0.02)
        killable.kill()
        assert not any(one.done() and one.exception() for one in waiting)
        assert killable.start() == address
        assert [one.result(60).message for one in waiting] == [f"// sleep 0.4 {n}" for n in range(6)]
        status, _, text = call(address, "GET", f"/v1/evaluations/{left['key']}?wait_s=20")  # nobody asked again
        assert status == 200 and Answer.model_validate_json(text).verdict.message == "// sleep 0.5 left"
        assert evaluator.evaluate("// ok", "gemm") == done
    emulated = [text for kind, text in steps(log) if kind == "emulate"]
    assert emulated.count("// ok") == 1
    assert len(emulated) - len(set(emulated)) <= 2  # what two workers had in hand
    assert list((killable.folder / "accepted").glob("*.json")) == []


def test_who_lets_go_while_the_server_is_down_is_heard_once_it_is_back(killable, log):
    """Else what it had accepted would go on for nobody until its deadline."""
    address = killable.start()

    async def leave(evaluator: Evaluator) -> None:
        waiting = asyncio.create_task(evaluator.aevaluate("// sleep 600", "gemm"))
        while ("emulate", "// sleep 600") not in steps(log):
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)  # its first question is answered with the key
        killable.kill()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with Evaluator(address) as evaluator:
        asyncio.run(leave(evaluator))
        (accepted,) = (killable.folder / "accepted").glob("*.json")
        killable.start()
        until = time.monotonic() + 90
        while accepted.exists():
            assert time.monotonic() < until, "it goes on for nobody"
            time.sleep(0.1)


def test_who_ends_a_second_judgement_lets_go_of_what_it_asked_for(start, log):
    address, _, service = start()
    with Evaluator(address) as evaluator:
        asked = [partial(evaluator.evaluate, text, "gemm") for text in ("// ok", "// sleep 600", "// later")]
        with closing(Judging(1, None).each(asked)) as results:
            assert next(results).message == "// ok"
            while ("emulate", "// sleep 600") not in steps(log):
                time.sleep(0.05)
    until = time.monotonic() + 60
    while service.status().counters.get("cancelled") != 1:
        assert time.monotonic() < until, "it goes on for nobody"
        time.sleep(0.1)
    assert "// later" not in {text for _, text in steps(log)}


def test_after_a_restart_one_client_s_letting_go_does_not_end_another_s_wait(killable, log):
    """Of both the new process knows only the one who would wait longer."""
    address = killable.start()
    text = "// sleep 5"
    with Evaluator(address) as evaluator, ThreadPoolExecutor(1) as threads:
        evaluator.evaluate("// ok", "gemm")  # now it has a worker
        longest = {"text": text, "task": "gemm", "asker": "a", "deadline_s": 10_000}
        key = json.loads(call(address, "POST", "/v1/evaluations", longest)[2])["key"]
        other = threads.submit(evaluator.evaluate, text, "gemm")
        time.sleep(1.5)  # its first question is answered with the key
        killable.kill()
        killable.start()
        while call(address, "DELETE", f"/v1/evaluations/{key}?asker=a")[0] != 204:
            time.sleep(0.05)
        assert other.result(120).message == text


def test_who_closes_gives_the_service_a_moment_to_hear_who_has_let_go(monkeypatch):
    told, may_tell = [], threading.Event()

    def withdraw(self: client.Client, call: client.Call, limit_s: float = 1.0) -> None:
        may_tell.wait()
        told.append(call)

    monkeypatch.setattr(client.Client, "withdraw", withdraw)
    asked = client.Call(Asked(text="x", task="gemm", asker="me"))
    evaluator = RemoteEvaluator("http://localhost:1")
    evaluator._let_go(asked)
    threading.Timer(0.2, may_tell.set).start()
    evaluator.close()
    assert told == [asked]
    may_tell.clear()
    monkeypatch.setattr("ptxgym.serve.remote.INTERRUPTED_S", 0.1)
    evaluator = RemoteEvaluator("http://localhost:1")
    evaluator._let_go(asked)
    evaluator.close()  # which does not wait for ever
    assert told == [asked]
    may_tell.set()


def test_who_is_interrupted_tells_the_service_quickly(monkeypatch):
    asked: list[tuple[str, str]] = []
    told = client.Client("http://localhost:1")

    def exchange(method: str, path: str, body: bytes | None, limit_s: float) -> tuple[int, bytes]:
        asked.append((method, path))
        assert limit_s <= client.INTERRUPTED_S
        return 204 if len(asked) > 2 else 503, b""

    def interrupted(call: client.Call) -> None:
        call.key = "k"
        raise KeyboardInterrupt

    monkeypatch.setattr(told._connections, "exchange", exchange)
    monkeypatch.setattr(told, "_waited", interrupted)
    with pytest.raises(KeyboardInterrupt):
        told.verdict(client.Call(Asked(text="x", task="gemm", asker="me")))
    assert asked == [("DELETE", "/v1/evaluations/k?asker=me")] * 3
    told.withdraw(client.Call(Asked(text="x", task="gemm", asker="me")))  # nothing was accepted yet, that is known
    assert len(asked) == 3


def test_a_signal_lets_a_server_finish_what_it_accepted_and_end_well(killable, log):
    address = killable.start()
    with Evaluator(address) as evaluator, ThreadPoolExecutor(2) as threads:
        evaluator.evaluate("// ok", "gemm")
        waiting = threads.submit(evaluator.evaluate, "// sleep 1", "gemm")
        while ("emulate", "// sleep 1") not in steps(log):
            time.sleep(0.02)
        killable.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        status, _, text = call(address, "POST", "/v1/evaluations", {"text": "// late", "task": "gemm"})
        assert status == 503 and "shutting down" in text
        assert waiting.result(30).status is Status.OK
    assert killable.process.wait(30) == 0


def test_a_folder_serves_one_server_at_a_time(tmp_path):
    first = Journal(tmp_path)
    with pytest.raises(UsageError, match="another folder"):
        Journal(tmp_path)
    first.close()
    Journal(tmp_path).close()


def test_the_document_names_what_there_is(start):
    address, _, _ = start()
    status, _, text = call(address, "GET", "/openapi.json", Authorization="")
    document = json.loads(text)
    assert status == 200 and document["openapi"] == "3.1.0"
    names = document["components"]["schemas"]
    refs = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert refs <= set(names)
    assert "text" in names["Asked"]["required"] and "verdict" in names["Answer"]["properties"]
    page = call(address, "GET", "/docs", Authorization="")[2]
    assert "POST /v1/evaluations" in page and "http://" not in page.partition("<h1>")[0]


def test_the_client_needs_neither_ray_nor_torch_nor_a_server_library(start):
    import subprocess
    import sys

    address, _, _ = start()
    script = (
        "import sys\n"
        "for name in ('ray', 'torch', 'cupy', 'starlette', 'uvicorn', 'httpx'): sys.modules[name] = None\n"
        "import ptxgym\n"
        f"env = ptxgym.make('PTX-Gemm-H100', device={address!r}); env.reset()\n"
        "assert env.step('// ok')[4]['verdict'].message == '// ok'\n"
    )
    assert threading.active_count() > 1
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_run_is_judged_by_a_service_and_says_under_which_conditions(start, tmp_path, monkeypatch, capsys):
    from ptxgym.cli.playing import run_one
    from ptxgym.envs import load_env
    from ptxgym.store.reader import read_run

    address, _, service = start()
    folder = tmp_path / "run"
    config = load_env("PTX-Gemm-H100").override(turns=1)
    monkeypatch.setattr("ptxgym.bench.sweep.find_toolchain", lambda: pytest.fail("no compiler is needed here"))
    assert run_one(config, "oracle", {}, seed=0, device=address, tier="standard", folder=folder) == 0
    stored = read_run(folder)
    assert stored.record.conditions_sha256 == service.secret_hash and stored.record.device == "emulator"
    assert [turn.verdict.code for turn in stored.turns] == ["judge.ok"]
    written = "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())
    assert TOKEN not in written + capsys.readouterr().out and service._secret.decode() not in written
