"""A W&B server that takes what wandb's own client sends and keeps it: GraphQL, file streams, uploads.

    with WandbServer() as server:
        subprocess.run(["wandb", "sync", folder], env={**os.environ, "WANDB_BASE_URL": server.url})
        server.history(run_id)

It answers what wandb 0.31 asks when it syncs or streams a run. Reading an offline run so is reading it with wandb's own
reader: nothing else knows the format.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class WandbServer:
    """Listens on 127.0.0.1 as long as the context lasts."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        """What the last `upsertBucket` of each run said, by id."""
        self.inserted: list[str] = []
        self.streams: dict[str, dict[str, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
        """Lines by run, file and number."""
        self.files: dict[tuple[str, str], bytes] = {}
        """By run and name."""
        self.artifacts: list[dict[str, Any]] = []
        """Name, type, run and `files` of each, in the order in which they came."""
        self.bodies: list[bytes] = []
        """All that was ever sent."""
        self.complete: dict[str, int] = {}
        """Exit status by run."""
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def history(self, run: str) -> list[dict[str, Any]]:
        """Rows of `run.log`, by wandb's step."""
        lines = self.streams[run]["wandb-history.jsonl"]
        return [json.loads(lines[number]) for number in sorted(lines)]

    def table(self, run: str, name: str) -> list[dict[str, Any]]:
        """All rows of an incremental table, as the artefacts hold them; its first piece is named None."""
        rows: list[dict[str, Any]] = []
        for artifact in self.artifacts:
            if artifact["name"] == f"run-{run}-incr-{name}":
                for file, data in artifact["files"].items():
                    table = json.loads(data)
                    rows = [] if file.startswith("None-") else rows
                    rows += [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        return rows

    def artifact(self, name: str) -> dict[str, Any]:
        """The last artefact of a name."""
        return next(each for each in reversed(self.artifacts) if each["name"] == name)

    def config(self, run: str) -> dict[str, Any]:
        """The configuration of a run."""
        told = json.loads(self.runs[run]["config"])
        return {name: value["value"] for name, value in told.items() if name != "_wandb"}

    def metrics(self, run: str) -> list[dict[str, Any]]:
        """What `define_metric` said of a run; names of fields are numbers."""
        return list(json.loads(self.runs[run]["config"])["_wandb"]["value"]["m"])

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any]:
        """Answer a GraphQL query."""
        if "mutation UpsertBucket" in query:
            return self._upsert(given)
        if "RunResumeStatus" in query:
            return {"model": self._resume(given["name"])}
        if "mutation CreateArtifact " in query:
            return self._create_artifact(given["input"])
        if "mutation CreateArtifactManifest" in query:
            manifest = {"id": f"M{given['artifactID']}", "file": {"id": "F", **self._upload("manifest")}}
            return {"createArtifactManifest": {"artifactManifest": manifest}}
        if "mutation UpdateArtifactManifest" in query:
            manifest = {"id": given["artifactManifestID"], "file": {"id": "F", **self._upload("manifest")}}
            return {"updateArtifactManifest": {"artifactManifest": manifest}}
        if "mutation CreateArtifactFiles" in query:
            files = given["input"]["artifactFiles"]
            nodes = [
                {
                    "storagePath": each["name"], "uploadMultipartUrls": None, "artifact": {"id": each["artifactID"]},
                    **self._upload(f"artifact/{each['artifactID']}/{each['name']}"),
                }
                for each in files
            ]  # fmt: skip
            return {"createArtifactFiles": {"files": {"edges": [{"node": node} for node in nodes]}}}
        if "mutation CommitArtifact" in query:
            return {"commitArtifact": {"artifact": {"id": given["artifactID"], "digest": "d"}}}
        if "createRunFiles" in query:
            files = [{"name": each, **self._upload(f"run/{given['run']}/{each}")} for each in given["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        if "query ArtifactType" in query:
            return {"project": {"artifact": None}}
        if "viewer" in query:
            viewer = {"id": "u", "entity": "me", "username": "me", "flags": "{}", "email": "", "admin": False}
            return {"viewer": {**viewer, "teams": {"edges": []}}, "serverInfo": None}
        return {}

    def upload(self, path: str, body: bytes) -> None:
        """Take a file."""
        kind, _, rest = path.removeprefix("/upload/").partition("/")
        owner, _, name = rest.partition("/")
        if kind == "run":
            self.files[owner, name] = body
        elif kind == "artifact":
            self.artifacts[int(owner)]["files"][name] = body

    def stream(self, run: str, told: dict[str, Any]) -> None:
        """Take lines of a run's files."""
        for name, part in told.get("files", {}).items():
            for number, line in enumerate(part["content"], part["offset"]):
                self.streams[run][name][number] = line
        if told.get("complete"):
            self.complete[run] = told.get("exitcode", 0)

    def _upsert(self, given: dict[str, Any]) -> dict[str, Any]:
        run = given["name"]
        new = run not in self.runs
        if new:
            self.inserted.append(run)
        self.runs[run] = {**self.runs.get(run, {}), **{key: value for key, value in given.items() if value is not None}}
        project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "me"}}
        bucket = {
            "id": "b", "name": run, "displayName": self.runs[run].get("displayName"), "description": "",
            "config": None, "sweepName": None, "project": project, "historyLineCount": self._lines(run),
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": new}}

    def _resume(self, run: str) -> dict[str, Any] | None:
        if run not in self.runs:
            return None
        history = self.history(run)
        bucket = {
            "id": "b", "name": run, "displayName": None, "tags": [], "notes": "", "logLineCount": 0,
            "historyLineCount": self._lines(run), "eventsLineCount": 0, "eventsTail": "[]",
            "historyTail": json.dumps([json.dumps(row) for row in history[-1:]]),
            "summaryMetrics": self.files.get((run, "wandb-summary.json"), b"{}").decode(),
            "config": self.runs[run].get("config", "{}"), "wandbConfig": json.dumps({"t": 1}),
        }  # fmt: skip
        return {"id": "p", "name": "p", "entity": {"id": "e", "name": "me"}, "bucket": bucket}

    def _lines(self, run: str) -> int:
        return len(self.streams[run]["wandb-history.jsonl"])

    def _create_artifact(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["artifactCollectionName"]
        told = {"name": name, "type": given["artifactTypeName"], "run": given["runName"], "files": {}}
        self.artifacts.append({**told, "metadata": json.loads(given["metadata"] or "{}")})
        artifact = {
            "id": str(len(self.artifacts) - 1),
            "state": "PENDING",
            "artifactSequence": {"latestArtifact": None},
        }
        return {"createArtifact": {"artifact": artifact}}

    def _upload(self, path: str) -> dict[str, Any]:
        return {"uploadUrl": f"{self.url}/upload/{path}", "uploadHeaders": []}

    def __enter__(self) -> Self:
        keep = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self._body()
                if self.path == "/graphql":
                    asked = json.loads(body)
                    with keep._lock:
                        found = keep.answer(asked["query"], asked.get("variables") or {})
                    self._reply({"data": found})
                    return
                if self.path.endswith("/file_stream"):
                    with keep._lock:
                        keep.stream(self.path.split("/")[-2], json.loads(body))
                self._reply({"exitcode": None, "limits": {}})

            def do_PUT(self) -> None:
                body = self._body()
                with keep._lock:
                    keep.upload(self.path, body)
                self._reply({})

            def do_GET(self) -> None:
                self._reply({})

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = b""
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                else:
                    body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                keep.bodies.append(body)
                return body

            def _reply(self, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that is killed resets its connections."""

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
