"""A tracking server for a lab, on this machine: `python -m harness.tracking_server` (make tracking-server).

PostgreSQL and `mlflow server` as children of one process, in one folder, stopped together by Ctrl-C or a signal to that
process. PostgreSQL listens on a socket in a folder of its own and on no network; MLflow listens on loopback unless told
otherwise (it knows no users: whoever reaches its port may read and write). MLflow's background jobs are off: they cost
2 GB and the harness uses none of them; so is its telemetry.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO

from harness.children import die_with_parent, leave
from harness.tracking_postgres import Postgres, ServerError, tail

UP_SECONDS = 180.0  # a first start makes the tables (22 to 25 s measured on two busy cores)
LEAVE_SECONDS = 20.0
NAME = "server.json"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Settings:
    """folder: everything the server keeps; port: 0 for a free one; allowed_hosts: names under which others reach it."""

    folder: Path
    port: int = 5000
    host: str = LOOPBACK
    allowed_hosts: str | None = None
    workers: int = 2


class Server:
    """Starts both, and stops both whatever goes wrong in between. A context manager; raises ServerError."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = settings.folder.expanduser().absolute()
        self.uri = ""
        self._log = self.folder / "mlflow.log"
        self._postgres = Postgres(self.folder)
        self._lock: IO[str] | None = None
        self._mlflow: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------------------------------------ starting
    def _start(self) -> None:
        _need("psycopg", "pip install -e '.[server]' in the clone")
        _need("mlflow", "make install")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = self._locked()
        host, port = self.settings.host, self.settings.port
        if not _free(host, port):
            raise ServerError(f"port {port} of {host} is taken; choose another one (PORT=..., 0: any)")
        port = port or _free_port(host)
        self._postgres.start()
        self._mlflow = self._start_mlflow(port)
        self.uri = f"http://{_reached_at(host)}:{port}"
        self._wait_until_up()
        content = json.dumps({"uri": self.uri, "pid": os.getpid()})
        (self.folder / NAME).write_text(content + "\n", encoding="utf-8")

    def _locked(self) -> IO[str]:
        lock = (self.folder / "server.lock").open("a", encoding="utf-8")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise ServerError(f"a server runs in {self.folder} already{self._known()}") from error
        return lock

    def _known(self) -> str:
        with contextlib.suppress(OSError, ValueError, KeyError):
            known = json.loads((self.folder / NAME).read_text(encoding="utf-8"))
            return f": {known['uri']}, process {known['pid']}"
        return ""

    def _start_mlflow(self, port: int) -> subprocess.Popen[bytes]:
        settings = self.settings
        artifacts = self.folder / "artifacts"
        artifacts.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "mlflow", "server", "--host", settings.host, "--port", str(port)]
        command += ["--backend-store-uri", self._postgres.uri, "--artifacts-destination", str(artifacts)]
        command += ["--workers", str(settings.workers)]
        if settings.allowed_hosts:
            command += ["--allowed-hosts", settings.allowed_hosts]
        environment = {
            **os.environ,
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "true",
            "GIT_PYTHON_REFRESH": "quiet",
        }
        environment.pop("MLFLOW_TRACKING_URI", None)  # a server must not be its own client
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGTERM),
            )

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + UP_SECONDS
        while not answers(self.uri):
            self.alive()
            if time.monotonic() > deadline:
                raise ServerError(f"MLflow does not answer within {UP_SECONDS:g} s; {tail(self._log)}")
            time.sleep(0.2)

    # ------------------------------------------------------------------------------------------------ running
    def alive(self) -> None:
        """Raise ServerError if one of them has ended by itself."""
        self._postgres.alive()
        if self._mlflow is not None and self._mlflow.poll() is not None:
            raise ServerError(f"MLflow ended with status {self._mlflow.returncode}; {tail(self._log)}")

    def stop(self) -> None:
        """MLflow first, so that it loses no connection in mid-request. Safe to call again."""
        if self._mlflow is not None:  # the group: its parent does not pass a signal on to its workers
            leave(self._mlflow, signal.SIGTERM, LEAVE_SECONDS, group=True)
            self._mlflow = None
        self._postgres.stop()
        if self._lock is not None:
            (self.folder / NAME).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


def answers(uri: str) -> bool:
    """Whether a tracking server is up."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for this machine's servers
    with contextlib.suppress(OSError), opener.open(f"{uri}/health", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _need(module: str, how: str) -> None:
    if find_spec(module) is None:
        raise ServerError(f"the package {module} is not installed: {how}")


def _reached_at(host: str) -> str:
    """The host of an address at which this machine reaches what listens on `host`."""
    own = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, host)
    return f"[{own}]" if ":" in own else own


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _free_port(host: str) -> int:
    with socket.socket(_family(host)) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _free(host: str, port: int) -> bool:
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


# ------------------------------------------------------------------------------------------------------------- command
@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """A list that a signal to stop is added to; while the server starts or stops it is an interrupt."""
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield seen
    finally:
        for number, old in before.items():
            signal.signal(number, old if old is not None else signal.SIG_DFL)


def parse(arguments: Sequence[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m harness.tracking_server", description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("tracking"), help="what it keeps; default: ./tracking")
    parser.add_argument("--port", type=int, default=5000, help="of MLflow; 0: a free one")
    parser.add_argument("--host", default=LOOPBACK, help="address to listen on; default: this machine only")
    parser.add_argument("--allowed-hosts", help="names under which others reach it, as `mlflow server` wants them")
    parser.add_argument("--workers", type=int, default=2, help="processes that answer requests")
    read = parser.parse_args(arguments)
    return Settings(read.folder, read.port, read.host, read.allowed_hosts, read.workers)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 after Ctrl-C or a signal, 1 if it could not start or one of them ended by itself."""
    settings = parse(arguments)
    with _stop_signals() as stop:
        try:
            say(f"starting PostgreSQL and MLflow in {settings.folder} (the first time half a minute)")
            with Server(settings) as server:
                print(f"tracking.uri={server.uri}", flush=True)
                say(f"stop it with Ctrl-C, or: kill {os.getpid()}")
                while True:
                    server.alive()
                    time.sleep(0.3)
        except (ServerError, OSError) as error:
            say(f"error: {error}")
            return 1
        except KeyboardInterrupt:
            say("stopped")
            return 0 if stop else 130


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
