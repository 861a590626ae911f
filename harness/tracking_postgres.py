"""A PostgreSQL of the project's own, for its tracking server: one folder, one socket, no network, no passwords."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.children import die_with_parent, leave

LEAVE_SECONDS = 30.0  # for a fast shutdown
UP_SECONDS = 60.0
_USERS = ("postgres", "nobody")  # PostgreSQL refuses to run as root
_BINARIES = ("initdb", "postgres")
_PLACES = ("usr/lib/postgresql/*/bin", "usr/pgsql-*/bin", "opt/homebrew/opt/postgresql*/bin")


class ServerError(RuntimeError):
    """A server cannot be started, or has stopped; the message says why and what to do."""


def binaries() -> Path:
    """The folder with PostgreSQL's programs: that of the one on PATH, what pg_config says, or where packages put it.

    Raises ServerError.
    """
    candidates: list[Path] = []
    if found := shutil.which("initdb"):
        candidates.append(Path(found).resolve().parent)
    if found := shutil.which("pg_config"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            said = subprocess.run([found, "--bindir"], capture_output=True, text=True, timeout=20, check=False).stdout
            candidates.append(Path(said.strip()))
    for pattern in _PLACES:
        candidates += sorted(Path("/").glob(pattern), reverse=True)
    for folder in candidates:
        if all((folder / name).is_file() for name in _BINARIES):
            return folder
    raise ServerError(
        "PostgreSQL's initdb and postgres are not found: install it (Debian: apt-get install postgresql), or use the "
        "default store, a sqlite file that needs no server"
    )


def run_as() -> str | None:
    """Whom PostgreSQL runs as where this process is root; None: as whoever this is. Raises ServerError."""
    if os.geteuid() != 0:
        return None
    for name in _USERS:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise ServerError(f"PostgreSQL refuses to run as root, and there is no user {' or '.join(_USERS)} to run it as")


class Postgres:
    """One database, `mlflow`, in `folder`/postgres. Started by `start`, always ended by `stop`."""

    def __init__(self, folder: Path) -> None:
        self.data, self.log = folder / "postgres", folder / "postgres.log"
        self._bin, self._user = binaries(), run_as()
        self._sockets: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """For SQLAlchemy. Holds no password: whoever reaches the socket is let in, and its folder is one user's."""
        return f"postgresql+psycopg://harness@/mlflow?host={self._sockets}"

    def start(self) -> None:
        """Make the cluster if there is none, start it, make the database. Raises ServerError."""
        self._make_cluster()
        self._sockets = Path(tempfile.mkdtemp(prefix="harness-pg-"))  # short: a socket's path has 107 characters
        self._own(self._sockets)
        options = {"listen_addresses": "", "unix_socket_directories": str(self._sockets), "max_connections": "60"}
        command = [str(self._bin / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                preexec_fn=die_with_parent(signal.SIGINT),  # its fast shutdown
                **self._as_user(),
            )
        self._create_database()

    def alive(self) -> None:
        """Raise ServerError if it was started and has ended."""
        if self.process is not None and self.process.poll() is not None:
            raise ServerError(f"PostgreSQL ended with status {self.process.returncode}; {tail(self.log)}")

    def stop(self) -> None:
        if self.process is not None:  # its own children are its business; SIGQUIT ends them, too
            leave(self.process, signal.SIGINT, LEAVE_SECONDS, signal.SIGQUIT, group=False)
            self.process = None
        if self._sockets is not None:
            shutil.rmtree(self._sockets, ignore_errors=True)
            self._sockets = None

    # ------------------------------------------------------------------------------------------------ its parts
    def _make_cluster(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        self._own(self.data)
        self._must_reach()
        if (self.data / "PG_VERSION").is_file():
            return
        command = [str(self._bin / "initdb"), "-D", str(self.data), "-U", "harness", "-A", "trust"]
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [*command, "-E", "UTF8", "--locale=C"],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            **self._as_user(),
        )
        if done.returncode != 0:
            shutil.rmtree(self.data, ignore_errors=True)
            raise ServerError(f"initdb failed: {(done.stderr or done.stdout).strip()[-400:]}")

    def _own(self, folder: Path) -> None:
        folder.chmod(0o700)
        if self._user is not None:
            shutil.chown(folder, self._user, pwd.getpwnam(self._user).pw_gid)

    def _must_reach(self) -> None:
        """Raise ServerError unless PostgreSQL's user can get to its folder."""
        if self._user is None:
            return
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            ["test", "-w", str(self.data)], check=False, cwd="/", **self._as_user()
        )
        if done.returncode != 0:
            raise ServerError(
                f"user {self._user} cannot get to {self.data} (PostgreSQL refuses to run as root, so it runs as that "
                "user): choose a folder whose parents it may enter (FOLDER=/var/lib/harness-tracking), or start this "
                "as another user than root"
            )

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        entry = pwd.getpwnam(self._user)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def _create_database(self) -> None:
        import psycopg

        deadline = time.monotonic() + UP_SECONDS
        while True:
            try:
                where = f"host={self._sockets} user=harness dbname=postgres"
                with psycopg.connect(where, autocommit=True) as connection:
                    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = 'mlflow'").fetchone():
                        connection.execute("CREATE DATABASE mlflow")
                return
            except psycopg.OperationalError as error:
                self.alive()
                if time.monotonic() > deadline:
                    raise ServerError(f"PostgreSQL does not answer: {error}; {tail(self.log)}") from error
                time.sleep(0.2)


def tail(path: Path) -> str:
    """The last lines of a log, for an error."""
    with contextlib.suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return f"the end of {path}: {' | '.join(lines[-4:])}"
    return f"see {path}"
