"""The PostgreSQL servers that other tests use."""

from tests.databases import PostgresServer


def test_a_crashed_server_restarts_on_the_same_address_with_its_data() -> None:
    with PostgresServer(fsync=True) as server:
        server.execute("CREATE TABLE kept (number INTEGER)")
        server.execute("INSERT INTO kept VALUES (7)")
        url = server.url()
        server.crash()
        assert not server.running
        server.start()
        assert server.url() == url
        assert server.execute("SELECT number FROM kept") == "7"


def test_a_server_with_fsync_commits_as_in_production() -> None:
    with PostgresServer(fsync=True) as server:
        assert server.execute("SHOW fsync") == "on"
        assert server.execute("SHOW synchronous_commit") == "on"
