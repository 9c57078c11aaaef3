"""Connections of the Postgres store. This module checks the server, migrates its tables, and retries requests.

Statements that are sent together form one transaction, take one round trip, and are idempotent. So if the response was
lost, they are sent again for some seconds. After that, `OverloadedError` is raised.

This module uses libpq, which psycopg contains, but not psycopg's cursors. A cursor takes three times the CPU time for a
statement, and waits for a response without a timeout. Psycopg's pool isn't used either, because it reconnects with
growing delays while a standby takes over. `hosts.py` opens the connections.

A Postgres with a synchronous standby acknowledges a commit when the standby has received the commit. If the wait for
the standby is canceled, Postgres acknowledges the commit anyway, with a warning. So a response with a warning counts as
lost.
"""

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from toolpack_server.base.errors import OverloadedError, SettingsError, StateDamagedError
from toolpack_server.features.stores.postgres import statements as sql
from toolpack_server.features.stores.postgres.values import DECODE, decode_row, encode

try:
    from psycopg import Error, pq

    from toolpack_server.features.stores.postgres.hosts import Hosts, LostError
except ImportError:
    raise SettingsError("A postgresql:// store needs psycopg: pip install 'toolpack-server[postgres]'.") from None

T = TypeVar("T")
Statement = tuple[str, Sequence[Any]]
Rows = list[tuple[Any, ...]]

MIN_VERSION = 130000
MAX_CONNECTIONS = 8  # maximum number of connections of a process; by default, a Postgres accepts 100 in total
ANSWER_SECONDS = 5.0  # timeout for the next bytes of a response, in seconds
GIVE_UP_SECONDS = 5.0  # seconds after which no further attempt is made
MAX_DELAY_SECONDS = 0.25  # maximum delay between two attempts, in seconds
# Settings of a connection. With these, all joins use an index, even for tables without statistics.
_SET = {
    "standard_conforming_strings": "on",
    "default_transaction_isolation": "read committed",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "lock_timeout": "4s",
    "idle_in_transaction_session_timeout": "2s",
    "client_min_messages": "warning",
}
SET_UP = "SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SET.items())

UNREACHABLE = "The store can't be reached: send the request again, with the same call_id."
BUSY = "All connections to the store are in use: send the request again, with the same call_id."
REFUSED = "The store refuses to change anything now ({}); nothing was changed."
# SQLSTATEs after which a retry can succeed. The connection or the primary was lost, or the transaction was canceled,
# conflicted with another transaction, or waited too long for a lock.
TEMPORARY = ("08", "40", "57", "25006", "55P03", "25P03")
LIMITED = ("53", "54000", "58")  # SQLSTATEs for no disk space, no memory, no free connection, or a disk error
DAMAGED = ("XX001", "XX002")  # SQLSTATEs for damaged tables or indices


class PostgresConnection:
    """One connection, which only one thread at a time can use."""

    def __init__(self, hosts: Hosts) -> None:
        self._libpq: Any = hosts.connect()
        self._warning = ""
        self._libpq.notice_handler = self._on_notice
        self._libpq.nonblocking = 1
        self._libpq.enter_pipeline_mode()
        self._poll = select.poll()
        self._prepared: dict[str, bytes] = {}  # names of prepared statements, by SQL text
        self._number = 0  # number of the last prepared statement
        self.server_version = self._libpq.server_version
        try:
            self.run([(SET_UP, ())])
        except BaseException:
            self.close()
            raise

    def _on_notice(self, result: Any) -> None:
        """Remember a warning of the server."""
        self._warning = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"a warning").decode()

    def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send statements together, and return the rows of each.

        Outside a transaction, the statements form one transaction.

        Raises:
            LostError: The response was lost, or a retry can succeed.
            OverloadedError: The server lacks space, memory or connections.
            StateDamagedError: The tables are damaged.
        """
        self._warning = ""
        try:
            indices, preparations = self._send(statements)
            answers = self._answers()
        except Error as error:
            raise LostError(str(error)) from error
        for answer in answers:
            if answer.status == pq.ExecStatus.FATAL_ERROR:
                for index, text in preparations:  # Forget the statements that weren't prepared because of the error
                    if answers[index].status != pq.ExecStatus.COMMAND_OK:
                        del self._prepared[text]
                _raise_error(answer)
        if self._warning:
            raise LostError(self._warning)
        return [_rows(answers[index]) for index in indices]

    def _send(self, statements: Sequence[Statement]) -> tuple[list[int], list[tuple[int, str]]]:
        """Send statements, after preparing those with a new SQL text.

        Returns:
            The index of each statement's response, and the index and the SQL text of each preparation.
        """
        indices, preparations, count = [], [], 0
        for text, parameters in statements:
            name = self._prepared.get(text)
            if name is None:
                self._number += 1
                name = self._prepared[text] = b"s%d" % self._number
                self._libpq.send_prepare(name, text.encode())
                preparations.append((count, text))
                count += 1
            # psycopg 3.2.0 accepts only lists.
            values, formats = map(list, zip(*map(encode, parameters), strict=True)) if parameters else ([], [])
            self._libpq.send_query_prepared(name, values, formats, result_format=1)
            indices.append(count)
            count += 1
        self._libpq.pipeline_sync()
        return indices, preparations

    def _answers(self) -> list[Any]:
        """Read the responses to all statements that were sent."""
        answers: list[Any] = []
        while True:
            unsent = self._libpq.flush()
            self._poll.register(self._libpq.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            if not self._poll.poll(ANSWER_SECONDS * 1000):
                raise LostError(f"it hasn't answered for {ANSWER_SECONDS:g} s")
            self._libpq.consume_input()
            while not self._libpq.is_busy():
                answer = self._libpq.get_result()
                if answer is None:
                    continue
                if answer.status == pq.ExecStatus.PIPELINE_SYNC:
                    return answers
                answers.append(answer)

    @property
    def status(self) -> Any:
        """The transaction status.

        `IDLE` means no transaction and no unread responses. `ACTIVE` means unread responses.
        """
        return self._libpq.transaction_status

    def close(self) -> None:
        """Close the connection."""
        self._libpq.finish()


def _rows(answer: Any) -> Rows:
    """Decode the rows of a response."""
    kinds = [DECODE[answer.ftype(column)] for column in range(answer.nfields)]
    columns = range(answer.nfields)
    return [decode_row(kinds, [answer.get_value(row, column) for column in columns]) for row in range(answer.ntuples)]


def _raise_error(answer: Any) -> None:
    """Raise the store error for the error in a response."""
    code = (answer.error_field(pq.DiagnosticField.SQLSTATE) or b"08000").decode()
    message = (answer.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
    if code.startswith(TEMPORARY):
        raise LostError(message)
    if code.startswith(LIMITED):
        raise OverloadedError(REFUSED.format(message))
    if code in DAMAGED:
        raise StateDamagedError(f"The store is damaged ({message}): restore a backup of it.")
    raise RuntimeError(f"{code}: {message}")


class PostgresConnections:
    """Connections to one database: one for each thread that uses it at the same time, up to `MAX_CONNECTIONS`.

    Raises:
        SettingsError: The URL is wrong, or the server can't be used.
    """

    def __init__(self, url: str) -> None:
        self._hosts = Hosts(url)
        self._idle: deque[PostgresConnection] = deque()
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._closed = False
        try:
            if self._retry(_format) < len(sql.MIGRATIONS):
                self.transaction(_migrate)
        except BaseException as error:
            self.close()
            if isinstance(error, OverloadedError):
                reason = str(error.__cause__ or error).rstrip(".")
                raise SettingsError(
                    f"The Postgres store can't be used: {reason}. Correct --store, or start it."
                ) from None
            raise

    def run(self, *statements: Statement) -> list[Rows]:
        """Send statements as one transaction, in one round trip. Return the rows of each statement.

        Raises:
            OverloadedError: The server can't be used now.
        """
        return self._retry(lambda connection: connection.run(statements))

    def transaction(self, work: Callable[[PostgresConnection], T]) -> T:
        """Call `work`, which can take several round trips, in one transaction, with retries after temporary errors.

        Raises:
            OverloadedError: The server can't be used now.
        """

        def all_or_nothing(connection: PostgresConnection) -> T:
            """Call `work` in a transaction. Roll back after an error."""
            connection.run([("BEGIN", ())])
            try:
                result = work(connection)
            except LostError:
                raise
            except BaseException:
                # A connection with unread answers will be closed, which also rolls back.
                if connection.status != pq.TransactionStatus.ACTIVE:
                    connection.run([("ROLLBACK", ())])
                raise
            connection.run([("COMMIT", ())])
            return result

        return self._retry(all_or_nothing)

    def _retry(self, work: Callable[[PostgresConnection], T]) -> T:
        """Call `work` with a connection. After a `LostError`, call it again, for at most `GIVE_UP_SECONDS`."""
        deadline = time.monotonic() + GIVE_UP_SECONDS
        delay = 0.0  # the first retry is immediate, because usually only an idle connection was closed
        while True:
            try:
                with self._connection() as connection:
                    return work(connection)
            except LostError as error:
                if time.monotonic() + delay > deadline:
                    raise OverloadedError(UNREACHABLE) from error
            time.sleep(delay)
            delay = min(max(2 * delay, 0.02), MAX_DELAY_SECONDS)

    @contextmanager
    def _connection(self) -> Iterator[PostgresConnection]:
        """Lend a connection to a `with` block. Raise `OverloadedError` if all connections are in use for too long."""
        if not self._free.acquire(timeout=GIVE_UP_SECONDS):
            raise OverloadedError(BUSY)
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = PostgresConnection(self._hosts)
            try:
                yield connection
            except LostError:
                connection.close()
                self._close_idle()  # the other connections are probably also broken
                raise
            finally:
                self._return(connection)
        finally:
            self._free.release()

    def _return(self, connection: PostgresConnection) -> None:
        """Keep a connection for the next use, or close it if it has an open transaction or unread responses.

        This method also runs after any error.
        """
        if connection.status == pq.TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:
            self._close_idle()

    def close(self) -> None:
        """Close the connections. A thread that is using a connection closes it afterwards."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        """Close the idle connections."""
        while self._idle:
            try:
                self._idle.popleft().close()
            except IndexError:
                return


def _format(connection: PostgresConnection) -> int:
    """Return the schema number of the tables, or 0 if the tables don't exist.

    Raises:
        SettingsError: Postgres is too old, or the tables belong to a newer version of this server.
    """
    if connection.server_version < MIN_VERSION:
        raise SettingsError(f"Postgres {connection.server_version // 10_000} is too old: 13 or newer is needed.")
    ((exists,),) = connection.run([(sql.HAS_FORMAT, ())])[0]
    number: int = connection.run([(sql.FORMAT, ())])[0][0][0] if exists else 0
    if number > len(sql.MIGRATIONS):
        raise SettingsError(
            f"The Postgres store has schema {number}, but this toolpack-server needs schema {len(sql.MIGRATIONS)}: run "
            "the version that wrote it, or choose another database."
        )
    return number


def _migrate(connection: PostgresConnection) -> None:
    """Migrate the tables to the current schema. A lock ensures that only one of several starting servers does so."""
    connection.run([(sql.LOCK_FORMAT, ())])
    for step in sql.MIGRATIONS[_format(connection) :]:
        connection.run([(statement, ()) for statement in step.split(";\n") if statement.strip()])
