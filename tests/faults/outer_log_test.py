"""Servers of the log that fail, are full, or have TLS, launch/outer-log itself, and the tools that start a log."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from typing import Any
from unittest import mock

from emulated import skip_without_namespaces
from outer import FREE, PATIENCE, EndlessServer, LoadingServer, Log, OuterCase
from support import BIN, ENVIRONMENT, MPIRUN, ROOT, TINY, is_alive, kill, run, wait_for, words, write_program
from tests.tools.support import LOG_PASSWORD, LogServer, free_port


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def name_of(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


def text_of(file: pathlib.Path) -> str:
    """Empty as long as there is none: a run replaces its file of metrics when it starts."""
    with contextlib.suppress(FileNotFoundError):
        return file.read_text()
    return ""


class OuterLogTest(OuterCase):
    def test_a_full_log_is_told(self) -> None:
        self.log.kill()
        self.log.memory = "3mb"
        self.log.start()
        flags = [*FREE, "--steps", "3000", "--outer-snapshot-every", "0", "--log-every", "1000"]
        job = self.group("a", "free", *flags)
        job.wait_until(lambda: job.said("The log .* is full: OOM .*until it has room.*more --memory") is not None)
        job.wait_until(lambda: job.said("Step 3000/3000") is not None)
        self.assertNotIn("out of reach", job.text())
        self.log.kill()
        self.log.memory = "100mb"
        self.log.start()
        result = self.result(job)
        self.assertEqual(result["parameter_hash"], result["outer_hash"])
        self.assertNotIn("checkpoint-every", job.text())

    def test_a_run_can_be_removed(self) -> None:
        def remove(name: str, code: int = 0) -> str:
            done = run([ROOT / "launch/outer-log", "--dir", self.log.folder, "--remove", name], code=code)
            return done.stdout + done.stderr

        for name in ("one.more", "one-more"):
            self.result(self.group("a", name, *FREE, "--steps", "10"))
        training = self.group("b", "three", *FREE, "--steps", "10000000")
        training.wait_until(lambda: self.log.entries("three") > 0)
        self.assertRegex(remove("four", 2), "no such run. Its runs: one-more one.more three")
        listed = run([ROOT / "launch/outer-log", "--dir", self.log.folder, "--list"]).stdout
        self.assertEqual(listed.splitlines(), ["one-more: no group trains", "one.more: no group trains", "three: b"])
        self.assertRegex(remove("three", 2), "groups train in this run: b")
        self.assertIn("is removed", remove("one.more"))
        self.assertRegex(remove("one.more", 2), "Its runs: one-more three")
        self.assertEqual(self.log.entries("one.more"), 0)
        self.assertGreater(self.log.entries("one-more"), 0)
        self.result(self.group("a", "one.more", *FREE, "--steps", "10"))
        self.log.kill()
        self.assertIn("the server does not answer", remove("one-more", 2))

    def test_a_full_log_of_rounds_is_told(self) -> None:
        """Groups that wait for room write no checkpoints."""
        self.log.kill()
        self.log.memory = "2mb"
        self.log.start()
        job = self.group("a", "rounds", *FREE, "--steps", "1000", "--outer-groups", "1")
        job.wait_until(lambda: job.said("is full: OOM .*until it has room. Groups that wait .*--checkpoint-every") is not None)
        self.log.kill()
        self.log.memory = "100mb"
        self.log.start()
        self.assertEqual(self.result(job)["exchanges"], 200)

    def test_a_full_log_makes_room_by_snapshots(self) -> None:
        """Whether the next one is due soon or never."""
        self.log.kill()
        self.log.memory = "3mb"
        self.log.start()
        for every, steps in (("10", 20000), ("1000000", 40000)):  # groups look once a second whether the log is full
            with self.subTest(every):
                flags = [*FREE, "--steps", steps, "--outer-snapshot-every", every]
                jobs = [self.group(name, f"every-{every}", *flags) for name in "ab"]
                self.results(jobs)
                self.assertNotEqual(self.log.trimmed(f"every-{every}"), b"")
                self.log.kill()
                shutil.rmtree(self.log.folder / "appendonlydir")
                self.log.start()

    def test_a_group_waits_until_the_log_has_read_its_file(self) -> None:
        with LoadingServer(self.log.port, 3) as loading:
            job = self.job(1, *FREE, "--steps", "5", "--outer", f"redis://127.0.0.1:{loading.port}/x", "--group", "a")
            self.assertEqual(job.wait(), 0, job.text())
            self.assertEqual(job.text().count("still reading its file: waiting"), 1, job.text())

    def test_a_silent_server(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            outer = ["--outer", f"redis://127.0.0.1:{silent.getsockname()[1]}/x", "--group", "a"]
            self.refused(*outer, says="127.0.0.1.*: the server does not answer within 5 s")
            silent.accept()[0].close()
            job = self.job(1, *TINY, "--steps", "4", *outer)
            silent.settimeout(PATIENCE)
            connection, _ = silent.accept()
            with connection:
                connection.recv(100)
                kill(job.ranks()[0], signal.SIGTERM)
                self.assertEqual(job.wait(), 128 + signal.SIGTERM, job.text())
            self.assertIn("before the first step; nothing was trained", job.text())

    def test_servers_that_answer_too_slowly_or_not_as_redis_does(self) -> None:
        for answer, says in ((b"HTTP/1.1 400", 'Protocol error.*It is no Redis server'), (None, "answers too slowly")):
            with socket.create_server(("127.0.0.1", 0)) as server:
                job = self.job(1, *TINY, "--steps", "4", "--group", "a", "--outer",
                               f"redis://127.0.0.1:{server.getsockname()[1]}/x")  # fmt: skip
                server.settimeout(PATIENCE)
                connection, _ = server.accept()
                with connection, contextlib.suppress(OSError):
                    connection.sendall(answer or b"$100000\r\n")
                    while answer is None:
                        time.sleep(0.5)
                        connection.sendall(b"x")
                self.assertEqual(job.wait(), 2, job.text())
                self.assertRegex(job.text(), says)

    def test_answers_without_end(self) -> None:
        """However fast they come, and from the first answer on or later."""
        line = "Protocol error, a line of more than 65536 bytes. It is no Redis server"
        for opens, beginning, pause, size, says in (
            (False, b"+", 0.0, 10_000, line),
            (True, b"+", 0.0, 10_000, line),
            (False, b"$1000000\r\n", 0.5, 10_000, "the server answers too slowly"),
            (True, b"$1000000\r\n", 0.02, 1, "the server answers too slowly"),
            (True, b"$400000000\r\n", 0.0, 10_000, "Protocol error, an answer of more than 67.11 MB"),
        ):
            with self.subTest(opens=opens, beginning=beginning), EndlessServer(opens, beginning, pause, size) as server:
                job = self.job(1, *FREE, "--steps", "4", "--group", "a", "--outer", f"redis://127.0.0.1:{server.port}/x")
                self.assertEqual(job.wait(), 2, job.text())
                self.assertIn(says, job.text())
                self.assertEqual(job.text().count("ddptrain: "), 1, job.text())

    def test_a_log_that_has_lost_the_run(self) -> None:
        for groups in ("0", "2"):
            with self.subTest(groups):
                flags = [*FREE, "--steps", "100000000", "--outer-groups", groups]
                job = self.group("a", "lost", *flags)
                job.wait_until(lambda: self.log.entries("lost") > 0)
                self.log.kill()
                shutil.rmtree(self.log.folder / "appendonlydir")
                self.log.start()
                self.assertEqual(job.wait(), 2, job.text())
                self.assertIn("the log has lost the run lost of this group", job.text())

    def test_a_group_that_has_trained_ends_without_the_log(self) -> None:
        job = self.group("a", "free", *FREE, "--steps", "3000", "--save", "trained", ranks=2)
        job.wait_until(lambda: job.said("^Epoch") is not None)
        self.log.kill()
        job.wait_until(lambda: job.said("Step 3000: waiting for the log") is not None)
        kill(job.ranks()[0], signal.SIGTERM)
        kill(job.ranks()[1], signal.SIGTERM)
        job.wait()
        self.assertIn("ends before the log has this group's last difference", job.text())
        self.assertIn("after the last step: what was trained is kept", job.text())
        self.assertTrue((job.folder / "trained" / "model.safetensors").exists(), job.text())

    def test_a_refused_command_leaves_no_trace(self) -> None:
        outer = ["--outer", self.log.url("x"), "--group", "a"]
        self.refused(*outer, "--outer-record", "nowhere/x", says="--outer-record nowhere/x: the file cannot be written")
        most = ["--outer-groups", "1024", "--outer-fragments", "1000"]
        self.refused(*outer, *most, says="--outer-groups 1024: with --outer-fragments 1000 there can be 40 groups")
        self.assertEqual(self.log.do(b"GET", self.log.key("x", "run")), b"")

    def test_passwords(self) -> None:
        outer = ["--outer", self.log.url("x"), "--group", "a"]
        for password, says in ((None, "NOAUTH"), ("wrong", "WRONGPASS|invalid")):
            ENVIRONMENT.pop(LOG_PASSWORD, None)
            if password is not None:
                ENVIRONMENT[LOG_PASSWORD] = password
            self.refused(*outer, says=rf"({says})[^.]*\. Set .*{LOG_PASSWORD}")
        port = free_port()
        open_server = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--dir", str(self.folder)],
                                       stdout=subprocess.DEVNULL)  # fmt: skip
        self.addCleanup(open_server.wait)
        self.addCleanup(open_server.kill)
        wait_for(lambda: accepts(port), "no server")
        outer = ["--outer", f"redis://127.0.0.1:{port}/x", "--group", "a"]
        self.refused(*outer, says=r"correct\? The server has no password: unset .*DDPTRAIN_OUTER_PASSWORD")
        self.refused("--outer", f"redis://:secret@127.0.0.1:{self.log.port}/x", "--group", "a", says="leave it out")
        self.refused("--outer", "redis://127.0.0.1:1/x", "--group", "a", says="refused.*launch/outer-log")

    def certificate(self, name: str, *flags: str) -> None:
        """NAME.crt and NAME.key in the folder."""
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj",
                   f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.crt", *flags]  # fmt: skip
        run(command, cwd=self.folder)

    def test_tls(self) -> None:
        outer = ["--outer", "rediss://127.0.0.1:1/x", "--group", "a"]
        trial = subprocess.run([BIN / "ddptrain", *TINY, *outer], env=ENVIRONMENT, capture_output=True, text=True)
        self.assertEqual((trial.returncode, trial.stderr.count("\n")), (2, 1), trial.stderr)
        if "was built without TLS" in trial.stderr:
            self.assertRegex(trial.stderr, "Install hiredis 1.0 or newer with libhiredis_ssl.*ssh tunnel")
            self.skipTest("this build has no TLS (libhiredis_ssl of hiredis 1.0 or newer, and libssl-dev)")
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl")
        self.certificate("authority")
        self.certificate("other")
        self.certificate("server", "-CA", "authority.crt", "-CAkey", "authority.key", "-addext",
                         "subjectAltName=IP:127.0.0.1")  # fmt: skip
        self.addCleanup(ENVIRONMENT.pop, "DDPTRAIN_OUTER_CA", None)
        plain = self.log
        self.log = Log(self.folder / "made", "--tls")
        self.addCleanup(self.log.kill)
        self.check_tls(self.folder / "made" / "tls-127.0.0.1.crt", plain)
        files = ["--tls-cert", str(self.folder / "server.crt"), "--tls-key", str(self.folder / "server.key")]
        self.log = Log(self.folder / "given", *files)
        self.addCleanup(self.log.kill)
        self.check_tls(self.folder / "authority.crt", plain)

    def check_tls(self, authority: pathlib.Path, plain: Log) -> None:
        """Whether groups train through the log, and through no other."""
        ENVIRONMENT[LOG_PASSWORD] = self.log.password
        ENVIRONMENT["DDPTRAIN_OUTER_CA"] = str(authority)
        large = [*FREE, "--hidden", "2000"]  # entries of more than a record and a buffer of the system
        results = self.results([self.group(name, "tls", *large, "--steps", "10", "--outer-groups", "2") for name in "ab"])
        self.assertEqual(results[0]["outer_hash"], results[1]["outer_hash"])

        def refused(url: str, says: str) -> None:
            self.refused("--outer", url, "--group", "a", says=says)

        url = self.log.url("x")
        refused(url.replace("127.0.0.1", "localhost"), "certificate of the server: hostname mismatch. Set .*_CA to the file")
        refused(url.replace("rediss", "redis"), "If the server has TLS, the address begins with rediss://")
        refused(plain.url("x").replace("redis", "rediss"), "no TLS: .*If the server has no TLS.* begins with redis://")
        ENVIRONMENT["DDPTRAIN_OUTER_CA"] = "other.crt"
        refused(url, "certificate of the server: .*certificate.*Set .*_CA to the file")
        with EndlessServer(False, b"\x16\x03\x03\x40\x00", 0.02, 1) as slow:  # the header of a record of 16 KiB
            refused(f"rediss://127.0.0.1:{slow.port}/x", "no TLS: the server does not answer within 5 s")
        ENVIRONMENT["DDPTRAIN_OUTER_CA"] = "nothing.crt"
        refused(url, "DDPTRAIN_OUTER_CA=nothing.crt: this file cannot be read as certificates")
        ENVIRONMENT.pop("DDPTRAIN_OUTER_CA")
        refused(url, "set the environment variable DDPTRAIN_OUTER_CA")

    # --- launch/outer-log --------------------------------------------------------------------------------------------

    def server_refused(self, *arguments: Any, says: str) -> None:
        done = run([ROOT / "launch" / "outer-log", *arguments], code=2, cwd=self.folder)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("outer-log: "), done.stderr)
        self.assertIn(says, done.stderr)

    def test_outer_log_checks_its_address(self) -> None:
        for bind, port in (("127.0.0.1", self.log.port), ("192.0.2.1", 6379)):  # in use; an address of documentation
            command = [ROOT / "launch" / "outer-log", "--dir", self.folder / "other", "--bind", bind, "--port", port]
            done = run(command, None, cwd=self.folder)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(f"--bind {bind} --port {port}: ", done.stderr)
            self.assertNotIn("export", done.stdout)
            self.assertFalse((self.folder / "other").exists())

    def test_a_server_of_all_addresses_tells_one_of_its_family(self) -> None:
        machine = write_program(self.folder / "bin" / "hostname", "#!/bin/sh\necho $ADDRESSES\n").parent
        write_program(machine / "redis-server", "#!/bin/sh\n")
        families = [("0.0.0.0", "192.0.2.2")]
        with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
            families.append(("::", "[fd00::2]"))
        port = free_port()
        for bind, told in families:
            flags = ["--bind", bind, "--port", str(port), "--dir", "all"]
            for found in ("fd00::2 192.0.2.2", "192.0.2.2 fd00::2"):
                environment = os.environ | {"PATH": f"{machine}:{os.environ['PATH']}", "ADDRESSES": found}
                done = run([ROOT / "launch" / "outer-log", *flags], cwd=self.folder, env=environment)
                self.assertIn(f"--outer redis://{told}:{port}/RUN", done.stdout)
            other = "192.0.2.2" if bind == "::" else "fd00::2"
            with mock.patch.dict(os.environ, environment | {"ADDRESSES": other}):
                shutil.rmtree(self.folder / "all")
                self.server_refused(*flags, says=f"--bind {bind}: this machine has no IPv{6 if bind == '::' else 4} address")
                self.assertFalse((self.folder / "all").exists())

    def test_one_server_for_a_folder(self) -> None:
        before = {path: path.read_bytes() for path in self.log.folder.glob("*.conf")}
        for port in (self.log.port, self.log.port + 1):
            says = f"another process, {self.log.process.pid}, serves"
            self.server_refused("--dir", self.log.folder, "--port", port, says=says)
        self.assertEqual({path: path.read_bytes() for path in self.log.folder.glob("*.conf")}, before)

    def test_names_of_folders_are_taken_as_they_are(self) -> None:
        for name in ("log dir", 'a "quoted" \\n name'):
            with self.subTest(name):
                server = LogServer(self.folder / name)
                server.kill(signal.SIGTERM)
                self.assertTrue(list((self.folder / name).glob("appendonly*")))

    def test_a_certificate_and_the_key_of_another(self) -> None:
        if shutil.which("openssl") is None:
            self.skipTest("there is no openssl")
        self.certificate("a b")
        self.certificate("other")
        (self.folder / "text").write_text("no certificate")
        locked = ["openssl", "pkey", "-in", "a b.key", "-aes256", "-passout", "pass:word", "-out", "locked.key"]
        run(locked, cwd=self.folder)
        for cert, key, says in (("a b.crt", "other.key", "the key is not that of the certificate"),
                                ("text", "other.key", "give a certificate and its key in PEM, without a password"),
                                ("a b.crt", "text", "give a certificate and its key in PEM, without a password"),
                                ("a b.crt", "locked.key", "give a certificate and its key in PEM, without a password")):  # fmt: skip
            flags = ["--dir", "tls", "--port", str(self.log.port + 1), "--tls-cert", cert, "--tls-key", key]
            self.server_refused(*flags, says=f"--tls-cert {cert} --tls-key {key}: {says}")
            self.assertFalse((self.folder / "tls").exists())
        server = LogServer(self.folder / "tls", "--tls-cert", str(self.folder / "a b.crt"),
                           "--tls-key", str(self.folder / "a b.key"))  # fmt: skip
        server.kill()

    def test_wrong_flags_of_the_server(self) -> None:
        for flag, what in (("--dir", "a folder"), ("--bind", "an address"), ("--port", "a number"),
                           ("--memory", "a size"), ("--tls-cert", "a file"), ("--tls-key", "a file")):  # fmt: skip
            self.server_refused(flag, says=f"{flag} takes {what}")
            self.server_refused(flag, "", says=f"{flag} takes {what}")
        for port in ("0", "08", "65536", "99999999999999999999", "x"):
            self.server_refused("--port", port, says=f"--port {port}: give a number from 1 to 65535")
        for memory in ("0", "5", "08", "1mb", "2047kb", "2097151", "0gb"):
            self.server_refused("--memory", memory, says=f"--memory {memory}: give 2mb or more")
        self.server_refused("--memory", "9999999999gb", says="give a size")
        self.server_refused("--tls", "--tls-cert", "x", says="--tls makes a certificate")
        self.server_refused("--bind", "999.1.1.1", says="--bind 999.1.1.1 --port 6379: ")
        self.assertFalse((self.folder / "outer-log" / "redis.conf").exists())

    # --- tools that start a log --------------------------------------------------------------------------------------

    def test_the_benchmark_of_groups(self) -> None:
        flags = ["--bin", BIN, "--groups", "2", "--steps", "4", "--seeds", "1", "--outer-steps", "2"]
        for more, settings in (([], ["--outer-steps 2"]), (["--asynchronous"], ["--outer-steps 2 --outer-max-age 100"])):
            done = run([ROOT / "benchmarks" / "groups", ROOT / "docs" / "CHANGELOG.md", *flags, *more], env=ENVIRONMENT)
            names = [line.split("|")[1].strip() for line in done.stdout.splitlines()]
            self.assertEqual(names[2:], ["synchronous", *settings])

    def test_the_benchmark_of_groups_ends_with_its_log(self) -> None:
        self.ends_with_its_log("groups", ROOT / "docs" / "CHANGELOG.md", "--bin", BIN, "--groups", 2, "--seeds", 1, "--steps", 4,
                               "--outer-steps", 2, "--", "--steps", 100_000_000)  # fmt: skip

    def flags_on_hosts(self, case: str, program: pathlib.Path) -> list[str]:
        skip_without_namespaces()
        if not pathlib.Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists():
            self.skipTest("there are no cgroups of version 1 for processors")
        return words("--bin", program, "--groups", 2, "--seeds", 1, "--steps", 100_000_000, "--cases", case, "--absence", 1,
                     "--outer", "--outer-steps 5", "--", *FREE)  # fmt: skip

    def test_the_benchmark_on_hosts_ends_with_its_log(self) -> None:
        """Also if a group comes and goes."""
        for case in ("asynchronous", "absent"):
            with self.subTest(case):
                self.ends_with_its_log("groups-on-hosts", *self.flags_on_hosts(case, BIN))

    def test_the_benchmark_on_hosts_ends_with_a_group_that_fails(self) -> None:
        """The others would wait for it in rounds."""
        failing = f'#!/bin/sh\ncase "$*" in *group1*) exit 7 ;; esac\nexec "{BIN}/ddptrain" "$@"\n'
        program = write_program(self.folder / "bin" / "ddptrain", failing).parent
        command = [ROOT / "benchmarks" / "groups-on-hosts", *self.flags_on_hosts("rounds", program)]
        done = run(command, 1, env=ENVIRONMENT, timeout=PATIENCE)
        self.assertIn("groups-on-hosts: a job failed: ", done.stderr)

    def ends_with_its_log(self, name: str, *arguments: Any) -> None:
        temporary = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        command = [ROOT / "benchmarks" / name, *words(*arguments)]
        with (self.folder / "output").open("w") as output:
            job = subprocess.Popen(command, env=ENVIRONMENT | {"TMPDIR": str(temporary)}, stdout=output, stderr=output)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        exchanged = lambda: '"exchange"' in "".join(map(text_of, temporary.glob("*/*.jsonl")))  # noqa: E731
        wait_for(exchanged, "no exchange", shown=(self.folder / "output").read_text, running=lambda: job.poll() is None)
        started = [pid for pid in self.processes(str(temporary)) if pid != job.pid]
        kill(next(pid for pid in started if name_of(pid) == "redis-server"))
        self.assertEqual(job.wait(PATIENCE), 1)
        self.assertEqual([pid for pid in started if is_alive(pid)], [])
        said = (self.folder / "output").read_text()
        self.assertEqual(said.count(f"{name}: "), 1, said)
        self.assertRegex(said, rf"(?m)^{name}: the log has ended \((signal 9|exit code 137)\)\. ")

    def test_a_sweep_of_groups(self) -> None:
        file = self.folder / "groups.toml"
        flags = {"device": "cpu", "baseline": "off", "model": "mlp", "data": "synthetic:600", "batch": 8, "steps": 8}
        base = "".join(f"{name} = {json.dumps(value)}\n" for name, value in flags.items())
        file.write_text(f"[base]\n{base}[[product]]\nranks = 1\ngroups = 2\nouter-groups = [0, 2]\nouter-steps = 4\n")
        run([BIN / "ddpsweep", file, "--repeats", "1", "--out", self.folder / "out"], env=ENVIRONMENT)
        summaries = [line["summary"] for line in self.lines("out/results.jsonl")]
        self.assertEqual([summary["exchanges"] for summary in summaries], [2, 2])
        for file in (self.folder / "out" / "logs").glob("*.g2"):
            self.assertEqual(json.loads(file.read_text().splitlines()[-1])["event"], "summary")

    def local_groups(self, *words: Any, code: int) -> str:
        """What it says."""
        done = run([ROOT / "launch" / "local-groups", *words], code, env=ENVIRONMENT, cwd=self.folder)
        return done.stdout + done.stderr

    def test_groups_of_one_machine_end_together(self) -> None:
        for words, says in (([], "Starts a log"), (["x", "true"], "'x': give a number of groups"), (["2"], "give a command")):
            self.assertIn(says, self.local_groups(*words, code=2 if words else 0))
        endless = [BIN / "ddptrain", *FREE, "--steps", "100000000"]
        for end, code in (("exit 7", 7), ("kill -9 $$", 128 + signal.SIGKILL), ("kill -15 $$", 128 + signal.SIGTERM)):
            failing = f'case $* in *g2*) {end} ;; *) exec "$@" ;; esac'
            self.local_groups("2", "bash", "-c", failing, "bash", *endless, code=code)

    def test_each_group_of_one_machine_has_a_folder_for_mpirun(self) -> None:
        """Open MPI 4 ends at times if another one makes the same folder at that moment."""
        train = [BIN / "ddptrain", *FREE, "--steps", "1"]
        noting = 'echo "$OMPI_MCA_orte_top_session_dir" >> folders; exec "$@"'
        self.local_groups("3", "bash", "-c", noting, "bash", *train, code=0)
        folders = (self.folder / "folders").read_text().split()
        self.assertEqual(len(set(folders)), 3, folders)
        self.assertFalse(any(pathlib.Path(folder).parent.exists() for folder in folders), folders)

    def test_groups_of_one_machine_end_on_signals(self) -> None:
        """The groups, then the log, and nothing is left, also if the program itself is killed."""
        train = [*words(*MPIRUN, "-np", 1), str(BIN / "ddptrain"), *FREE, "--steps", "100000000", "--metrics", "m.jsonl"]
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL):
            with self.subTest(number.name):
                temporary = self.folder / number.name
                temporary.mkdir()
                command = [str(ROOT / "launch" / "local-groups"), "2", *train]
                with (self.folder / "output").open("w") as output:
                    heeds = lambda number=number: signal.signal(number, signal.SIG_DFL)  # noqa: E731  nohup ignores it
                    job = subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT | {"TMPDIR": str(temporary)},
                                           stdout=output, stderr=output,
                                           preexec_fn=None if number == signal.SIGKILL else heeds)  # fmt: skip
                self.addCleanup(job.kill)
                files = [self.folder / "m.jsonl", self.folder / "m.jsonl.g2"]
                wait_for(lambda: all('"step"' in text_of(file) for file in files), "no group trains",
                         shown=(self.folder / "output").read_text, running=lambda job=job: job.poll() is None)  # fmt: skip
                started = [pid for pid in self.processes(str(temporary)) if pid != job.pid]
                self.assertGreater(len(started), 4)  # server, groups and their ranks
                job.send_signal(number)
                self.assertEqual(job.wait(PATIENCE), -number if number == signal.SIGKILL else 128 + number)
                if number != signal.SIGKILL:
                    self.assertEqual([pid for pid in started if is_alive(pid)], [])
                    self.assertEqual(list(temporary.glob("tmp*")), [])
                wait_for(lambda: not any(map(is_alive, started)), "processes are left", PATIENCE)
                self.assertNotIn("Traceback", (self.folder / "output").read_text())
                for file in files:
                    file.unlink()

    def test_groups_of_one_machine_end_with_their_log(self) -> None:
        """It cannot come back: groups that wait for it would wait without end."""
        for rounds in ("2", "0"):
            temporary = self.folder / f"temporary-{rounds}"
            temporary.mkdir()
            command = [str(ROOT / "launch" / "local-groups"), "2", str(BIN / "ddptrain"), *FREE, "--steps", "100000000",
                       "--outer-groups", rounds, "--metrics", f"m-{rounds}"]  # fmt: skip
            with (self.folder / "output").open("w") as output:
                job = subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT | {"TMPDIR": str(temporary)},
                                       stdout=subprocess.DEVNULL, stderr=output)  # fmt: skip
            self.addCleanup(job.kill)
            files = [self.folder / f"m-{rounds}", self.folder / f"m-{rounds}.g2"]
            wait_for(lambda files=files: all('"exchange"' in text_of(file) for file in files), "no exchange",
                     shown=(self.folder / "output").read_text, running=lambda job=job: job.poll() is None)  # fmt: skip
            started = [pid for pid in self.processes(str(temporary)) if pid != job.pid]
            os.kill(next(pid for pid in started if name_of(pid) == "redis-server"), signal.SIGKILL)
            self.assertEqual(job.wait(PATIENCE), 1)
            self.assertEqual([pid for pid in started if is_alive(pid)], [])
            said = [line for line in (self.folder / "output").read_text().splitlines() if line.startswith("local-groups")]
            self.assertEqual(len(said), 1, said)
            self.assertIn("local-groups: the log has ended (signal 9). ", said[0])

    def test_a_log_that_does_not_start_is_told(self) -> None:
        path = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        for end, said in (("kill -9 $$", "signal 9"), ("exit 3", "exit code 3")):
            write_program(self.folder / "redis-server", f"#!/bin/sh\n{end}\n")
            done = run([ROOT / "launch" / "local-groups", "2", "true"], 2, env=ENVIRONMENT | path, cwd=self.folder)
            self.assertEqual(done.stderr, f"local-groups: {ROOT}/launch/outer-log did not start ({said})\n")

    def processes(self, folder: str) -> list[int]:
        """Those with this folder in their environment, or in a folder below it, as Redis, which overwrites the former."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if folder in os.readlink(process / "cwd") or folder.encode() in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return found

    def test_groups_of_one_machine_write_files_of_their_own(self) -> None:
        (self.folder / "save.toml").write_text('save = "saved/"\ntrace = "/dev/null"\n')
        train = [BIN / "ddptrain", *FREE, "--steps", "10", "--log-every", "1"]
        flags = ["--metrics=m", "--ckpt", "kept", "--outer_record", "record", "--config", "save.toml"]
        self.local_groups("3", *train, *flags, "--outer-groups", "3", code=0)
        names = {path.name for path in self.folder.iterdir()}
        own = {f"{name}{end}" for name in ("m", "kept", "record", "saved") for end in ("", ".g2", ".g3")}
        self.assertLessEqual(own, names)
        self.assertFalse(pathlib.Path("/dev/null.g2").exists())
        for end in ("", ".g2", ".g3"):
            self.assertTrue((self.folder / f"saved{end}" / "model.safetensors").exists())
            summary = self.lines(f"m{end}")[-1]
            self.assertEqual(self.replay(self.folder / f"record{end}")[1], summary["outer_hash"])
        script = write_program(self.folder / "script", f'#!/bin/sh\nexec "{BIN}/ddptrain" "$@"\n')
        self.local_groups("2", script, *train[1:], "--metrics", "by-script", code=0)
        self.assertEqual(self.lines("by-script.g2")[-1]["event"], "summary")

    def test_groups_of_one_machine_refuse_once(self) -> None:
        train = [BIN / "ddptrain", *FREE, "--steps", "10"]
        for flags, says in ((["--outer", "redis://h/x"], "--outer: leave it out"), (["--group=q"], "--group=q: leave it out"),
                            (["--stepz", "3"], "unknown flag --stepz"), (["--save", ""], "--save '': the path is empty"),
                            (["--metrics"], "ddptrain: --metrics: "),
                            (["--outer-groups", "3"], "--outer-groups 3: there are 2 groups. Give --outer-groups 2 or 0.")):  # fmt: skip
            said = self.local_groups("2", *train, *flags, code=2)
            self.assertEqual(said.count("\n"), 1, said)
            self.assertIn(says, said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
