"""A connection to Postgres: it is reused only if it is in a clean state."""

import pytest

pytest.importorskip("psycopg")

from toolpack_server.features.stores.postgres.connection import PostgresConnection, PostgresConnections


class Ended(BaseException):
    """Exception that ends a request at any point. It isn't an error of a store."""


def ask(connections, number):
    return connections.run(("SELECT $1::bigint", (number,)))[0]


METHODS = ("run", "_send", "_answers")


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("step", METHODS)
@pytest.mark.parametrize("before", [True, False])
def test_request_ended_at_any_point_leaves_no_answers(postgres_url, monkeypatch, step, before, transaction):
    connections = PostgresConnections(postgres_url)
    original = getattr(PostgresConnection, step)

    def ending(self, *arguments):
        if before:
            raise Ended
        original(self, *arguments)
        raise Ended

    def work(connection):
        monkeypatch.setattr(PostgresConnection, step, ending)
        return connection.run([("SELECT 1::bigint", ())])

    try:
        for _ in range(10):
            with pytest.raises(Ended):
                (connections.transaction if transaction else connections._retry)(work)
            monkeypatch.undo()
            assert [ask(connections, number) for number in range(3)] == [[(number,)] for number in range(3)]
    finally:
        connections.close()


def test_open_transaction_does_not_affect_the_next_request(postgres_url):
    connections = PostgresConnections(postgres_url)

    def begin(connection):
        connection.run([("BEGIN", ())])

    try:
        connections._retry(begin)
        assert not connections._idle
        assert ask(connections, 1) == [(1,)]
    finally:
        connections.close()
