"""A connection to Postgres is used again only if the next request begins on it anew."""

import pytest

pytest.importorskip("psycopg")

from toolpack_server.features.stores.postgres.connection import PostgresConnection, PostgresConnections


class Ended(BaseException):
    """Ends a request wherever it is, as no error of a store does."""


def ask(connections, number):
    return connections.run(("SELECT $1::bigint", (number,)))[0]


METHODS = ("run", "_send", "_answers")


@pytest.mark.parametrize("transaction", [False, True])
@pytest.mark.parametrize("step", METHODS)
@pytest.mark.parametrize("before", [True, False])
def test_a_request_ended_anywhere_leaves_no_answers(postgres_url, monkeypatch, step, before, transaction):
    connections = PostgresConnections(postgres_url)
    original = getattr(PostgresConnection, step)

    def ending(self, *given):
        if before:
            raise Ended
        original(self, *given)
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


def test_a_transaction_that_is_not_ended_reaches_no_other_request(postgres_url):
    connections = PostgresConnections(postgres_url)

    def begin(connection):
        connection.run([("BEGIN", ())])

    try:
        connections._retry(begin)
        assert not connections._idle
        assert ask(connections, 1) == [(1,)]
    finally:
        connections.close()
