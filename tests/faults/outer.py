"""Groups that share a log, for tests: real servers of Redis, and jobs."""

import contextlib
import json
import pathlib
import re
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from support import BIN, ENVIRONMENT, MPIRUN, SESSIONS, TINY, Job, JobTest, run, wait_for, words
from tests.tools.support import LOG_PASSWORD, LogServer, skip_without_log

PATIENCE = 120.0  # seconds after which what takes a moment hangs
FREE = [*TINY, "--batch", "8", "--outer-steps", "5"]  # without rounds


class Log(LogServer):
    def do(self, *words: bytes) -> bytes:
        """What the server answers to a command: a text, a number, or nothing."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            file = connection.makefile("rb")
            for command in ([b"AUTH", self.password.encode()], words):
                parts = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in command)
                connection.sendall(b"*%d\r\n%s" % (len(command), parts))
                answer = file.readline()
                if answer.startswith(b"-"):
                    raise AssertionError(answer)
            length = int(answer[1:]) if answer.startswith(b"$") else 0
            return file.read(length) if length > 0 else b"" if length < 0 else answer[1:].strip()

    def is_loaded(self) -> bool:
        """Whether it has read its file after a start."""
        with contextlib.suppress(AssertionError):
            return self.do(b"PING") == b"PONG"
        return False

    def key(self, name: str, what: str) -> bytes:
        return f"ddptrain:{name}:{what}".encode()

    def add(self, name: str, *fields: bytes) -> None:
        """An entry in the log of a run."""
        self.do(b"XADD", self.key(name, "log"), b"*", *fields)

    def trimmed(self, name: str) -> bytes:
        """The position up to which entries have been removed."""
        return self.do(b"GET", self.key(name, "trimmed"))

    def snapshots(self, name: str) -> list[dict[str, Any]]:
        """The newest first."""
        listed = self.do(b"GET", self.key(name, "snapshots"))
        return json.loads(listed[32:])["snapshots"] if listed else []

    def entries(self, name: str) -> int:
        """Of the groups of a run."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            connection.sendall(b"AUTH %s\r\nXREAD COUNT 100000 STREAMS ddptrain:%s:log 0\r\n" % (
                self.password.encode(), name.encode()))
            connection.settimeout(2.0)
            data = b""
            with contextlib.suppress(TimeoutError):
                while more := connection.recv(1 << 20):
                    data += more
        return data.count(b"DDPO")


class FakeServer:
    """Listens at `port` while `accept` runs in a thread. A context."""

    def __init__(self, accept: Callable[[], None]) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=accept, daemon=True)

    def __enter__(self) -> "FakeServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(PATIENCE)


class LoadingServer(FakeServer):
    """Answers the first connections as a Redis server that is reading its file, and hands on later ones to `port`."""

    def __init__(self, port: int, refusals: int) -> None:
        super().__init__(lambda: self._serve(port, refusals))

    def _serve(self, port: int, refusals: int) -> None:
        with contextlib.suppress(OSError):
            for _ in range(refusals):
                connection, _ = self._socket.accept()
                with connection:
                    while connection.recv(1 << 16):
                        connection.sendall(b"-LOADING Redis is loading the dataset in memory\r\n")
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve_by, args=(port, connection), daemon=True).start()

    @staticmethod
    def _serve_by(port: int, connection: socket.socket) -> None:
        with connection, socket.create_connection(("127.0.0.1", port)) as server:
            answers = threading.Thread(target=LoadingServer._hand_on, args=(server, connection), daemon=True)
            answers.start()
            LoadingServer._hand_on(connection, server)
            answers.join()

    @staticmethod
    def _hand_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


class EndlessServer(FakeServer):
    """Answers with `beginning` and bytes without end, `size` each `pause` seconds; if `opens`, as Redis does to commands
    that open a connection."""

    def __init__(self, opens: bool, beginning: bytes, pause: float, size: int = 10_000) -> None:
        super().__init__(self._accept)
        self._opens, self._beginning, self._pause, self._size = opens, beginning, pause, size

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while (asked := connection.recv(1 << 16)) and self._opens and (b"AUTH" in asked or b"PING" in asked):
                connection.sendall(b"+OK\r\n")
            connection.sendall(self._beginning)
            while True:
                connection.sendall(b"x" * self._size)
                time.sleep(self._pause)


class OuterCase(JobTest):
    @classmethod
    def setUpClass(cls) -> None:
        skip_without_log()

    def setUp(self) -> None:
        super().setUp()
        self.log = Log(self.folder / "log")
        self.addCleanup(self.log.kill)
        ENVIRONMENT[LOG_PASSWORD] = self.log.password
        self.addCleanup(ENVIRONMENT.pop, LOG_PASSWORD, None)

    def group(self, name: str, run_name: str, *arguments: Any, ranks: int = 1) -> Job:
        """Starts it, in a folder of its own."""
        folder = self.folder / run_name / name
        folder.mkdir(parents=True, exist_ok=True)
        outer = ["--outer", self.log.url(run_name), "--group", name, "--metrics", "m.jsonl", "--outer-record", "record"]
        command = [*MPIRUN, "-np", str(ranks), str(BIN / "ddptrain"), *words(*outer, *arguments)]
        job = Job(["env", f"{SESSIONS}={folder}/mpirun", *command], folder)  # as launch/local-groups does
        self.addCleanup(job.end)
        return job

    def result(self, job: Job) -> dict[str, Any]:  # type: ignore[override]
        """The summary of a group that ends well. What it has folded gives the same bits again."""
        self.assertEqual(job.wait(), 0, job.text())
        summary = self.lines(str((job.folder / "m.jsonl").relative_to(self.folder)))[-1]
        self.assertEqual(summary["event"], "summary", job.text())
        self.assertEqual(self.replayed(job), summary["outer_hash"])
        return summary

    def results(self, jobs: list[Job]) -> list[dict[str, Any]]:
        """Of groups of one run. If one fails, the others would wait for it."""
        wait_for(lambda: not all(map(Job.running, jobs)), "no group ends", 300.0, lambda: jobs[0].text())
        for job in sorted(jobs, key=Job.running):
            self.assertIn(job.process.poll(), (None, 0), job.text())
        return [self.result(job) for job in jobs]

    def replayed(self, job: Job) -> str:
        return self.replay(job.folder / "record")[1]

    def replay(self, record: pathlib.Path) -> tuple[int, str]:
        """Version and hash of the outer weights."""
        text = run([BIN / "ddptrain", "--replay-log", record], cwd=self.folder, env=ENVIRONMENT).stdout
        return int(re.search(r"Version +(\d+)", text)[1]), re.search(r"Hash +(\w{32})", text)[1]

    def hash_at(self, record: pathlib.Path, version: int) -> str:
        """Of the outer weights of this version, from a record that has all entries of one fragment."""
        whole = record.read_bytes()
        end = whole.index(b"DDPO") - 8
        part = self.folder / "part"
        found = -1
        while found < version:
            entries = version - max(found, 0)
            for _ in range(entries):
                end += 8 + int.from_bytes(whole[end : end + 8], "little")
            self.assertLessEqual(end, len(whole), "the record is too short")
            part.write_bytes(whole[:end])
            found, value = self.replay(part)
        self.assertEqual(found, version)
        return value

    def refused(self, *arguments: Any, says: str) -> None:
        job = self.job(1, *TINY, "--steps", "4", *arguments)
        self.assertEqual(job.wait(), 2, job.text())
        self.assertRegex(job.text(), says)
