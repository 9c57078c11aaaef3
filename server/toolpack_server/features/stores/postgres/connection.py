"""The connections of the Postgres store: what it requires of the server, how it sends, and how it retries.

What is sent together is one transaction and takes one round trip, and it is safe to repeat. So it is sent
again if its answer was lost, for some seconds; then it ends with `OverloadedError`.

This speaks through libpq, which psycopg brings along, and not through psycopg's cursors: these take three times as much
of the processor for a statement, and wait for an answer however long it takes. It isn't psycopg's pool either, which
tries to connect again after ever longer pauses, while a standby takes over. `hosts.py` connects.

A Postgres with a synchronous standby acknowledges a commit when the standby has it. If somebody cancels that wait, it
acknowledges the commit all the same, with a warning. So a warning is an answer that was lost.
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

OLDEST = 130000
CONNECTIONS = 8  # of a process: a Postgres has 100 in all, by default
ANSWER_SECONDS = 5.0  # for the next bytes of an answer
GIVE_UP_SECONDS = 5.0  # for all attempts, not counting the wait for the last answer
LONGEST_PAUSE = 0.25
# All joins are by index, whatever Postgres believes of tables of which it has no statistics yet.
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
# SQLSTATEs after which the same may succeed: the connection, the primary or a lock was lost to somebody else, or
# somebody has cancelled it.
TEMPORARY = ("08", "40", "57", "25006", "55P03", "25P03")
LIMITED = ("53", "54000", "58")  # no space, no memory, no connections, or an error of the disk
DAMAGED = ("XX001", "XX002")


class PostgresConnection:
    """One connection, for one thread at a time."""

    def __init__(self, hosts: Hosts) -> None:
        self._libpq: Any = hosts.connect()
        self._warning = ""
        self._libpq.notice_handler = self._note
        self._libpq.nonblocking = 1
        self._libpq.enter_pipeline_mode()
        self._poll = select.poll()
        self._prepared: dict[str, bytes] = {}  # the names of statements
        self._number = 0
        self.server_version = self._libpq.server_version
        try:
            self.run([(SET_UP, ())])
        except BaseException:
            self.close()
            raise

    def _note(self, result: Any) -> None:
        self._warning = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"a warning").decode()

    def run(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send statements together, and get the rows of each; they are a transaction, if none has begun."""
        self._warning = ""
        try:
            wanted, preparations = self._send(statements)
            answers = self._answers()
        except Error as error:
            raise LostError(str(error)) from error
        for answer in answers:
            if answer.status == pq.ExecStatus.FATAL_ERROR:
                for place, text in preparations:  # after it nothing was prepared
                    if answers[place].status != pq.ExecStatus.COMMAND_OK:
                        del self._prepared[text]
                _refuse(answer)
        if self._warning:
            raise LostError(self._warning)
        return [_rows(answers[place]) for place in wanted]

    def _send(self, statements: Sequence[Statement]) -> tuple[list[int], list[tuple[int, str]]]:
        """Send statements; get which answers are theirs, and which those of their preparation."""
        wanted, preparations, sent = [], [], 0
        for text, given in statements:
            name = self._prepared.get(text)
            if name is None:
                self._number += 1
                name = self._prepared[text] = b"s%d" % self._number
                self._libpq.send_prepare(name, text.encode())
                preparations.append((sent, text))
                sent += 1
            # psycopg 3.2.0 takes lists alone.
            values, formats = map(list, zip(*map(encode, given), strict=True)) if given else ([], [])
            self._libpq.send_query_prepared(name, values, formats, result_format=1)
            wanted.append(sent)
            sent += 1
        self._libpq.pipeline_sync()
        return wanted, preparations

    def _answers(self) -> list[Any]:
        """Read until the end of what was sent."""
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
        """`IDLE`: all answers were read, and no transaction is open. `ACTIVE`: answers wait to be read."""
        return self._libpq.transaction_status

    def close(self) -> None:
        self._libpq.finish()


def _rows(answer: Any) -> Rows:
    kinds = [DECODE[answer.ftype(column)] for column in range(answer.nfields)]
    columns = range(answer.nfields)
    return [decode_row(kinds, [answer.get_value(row, column) for column in columns]) for row in range(answer.ntuples)]


def _refuse(answer: Any) -> None:
    """Raise the error of an answer as one of a store."""
    code = (answer.error_field(pq.DiagnosticField.SQLSTATE) or b"08000").decode()
    said = (answer.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
    if code.startswith(TEMPORARY):
        raise LostError(said)
    if code.startswith(LIMITED):
        raise OverloadedError(REFUSED.format(said))
    if code in DAMAGED:
        raise StateDamagedError(f"The store is damaged ({said}): restore a backup of it.")
    raise RuntimeError(f"{code}: {said}")


class PostgresConnections:
    """Connections to one database, as many as threads use it at the same time, up to `CONNECTIONS`.

    Raises:
        SettingsError: The URL is wrong, or the server can't be used.
    """

    def __init__(self, url: str) -> None:
        self._hosts = Hosts(url)
        self._idle: deque[PostgresConnection] = deque()
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._closed = False
        try:
            if self._insist(_format) < len(sql.MIGRATIONS):
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
        """Send statements as one transaction, in one round trip; get the rows of each."""
        return self._insist(lambda connection: connection.run(statements))

    def transaction(self, work: Callable[[PostgresConnection], T]) -> T:
        """Do work of several round trips in one transaction, again if that fails by what passes."""

        def all_or_nothing(connection: PostgresConnection) -> T:
            connection.run([("BEGIN", ())])
            try:
                done = work(connection)
            except LostError:
                raise
            except BaseException:
                if connection.status != pq.TransactionStatus.ACTIVE:  # else it is closed, which rolls back, too
                    connection.run([("ROLLBACK", ())])
                raise
            connection.run([("COMMIT", ())])
            return done

        return self._insist(all_or_nothing)

    def _insist(self, work: Callable[[PostgresConnection], T]) -> T:
        give_up = time.monotonic() + GIVE_UP_SECONDS
        pause = 0.0  # an idle connection may have been closed
        while True:
            try:
                with self._lent() as connection:
                    return work(connection)
            except LostError as error:
                if time.monotonic() + pause > give_up:
                    raise OverloadedError(UNREACHABLE) from error
            time.sleep(pause)
            pause = min(max(2 * pause, 0.02), LONGEST_PAUSE)

    @contextmanager
    def _lent(self) -> Iterator[PostgresConnection]:
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
                self._close_idle()  # the others have mostly ended, too
                raise
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    def _give_back(self, connection: PostgresConnection) -> None:
        """Keep a connection for the next request, or close it if that would get answers to this one.

        That doesn't depend on what has ended its use.
        """
        if connection.status == pq.TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        if self._closed:
            self._close_idle()

    def close(self) -> None:
        """Close the connections; a thread that uses one closes its own."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                self._idle.popleft().close()
            except IndexError:
                return


def _format(connection: PostgresConnection) -> int:
    """Get the number of the tables' format, 0 if there are none; raise `SettingsError` if the server can't be used."""
    if connection.server_version < OLDEST:
        raise SettingsError(f"Postgres {connection.server_version // 10_000} is too old: 13 is needed.")
    ((exists,),) = connection.run([(sql.HAS_FORMAT, ())])[0]
    found: int = connection.run([(sql.FORMAT, ())])[0][0][0] if exists else 0
    if found > len(sql.MIGRATIONS):
        raise SettingsError(
            f"The Postgres store has schema {found}, this toolpack-server reads {len(sql.MIGRATIONS)}: run the version "
            "that wrote it, or name another database."
        )
    return found


def _migrate(connection: PostgresConnection) -> None:
    """Bring the tables to this format; of several servers that start, one does so."""
    connection.run([(sql.LOCK_FORMAT, ())])
    for step in sql.MIGRATIONS[_format(connection) :]:
        connection.run([(statement, ()) for statement in step.split(";\n") if statement.strip()])
