"""The migrations and the code's idea of the tables; part of `make check`, too."""

from gateway.store.migrate import differences


def test_migrations_lead_to_the_tables_that_the_code_expects(database_url: str) -> None:
    """Nobody changes `tables.py` without a migration."""
    assert differences(database_url) == []
