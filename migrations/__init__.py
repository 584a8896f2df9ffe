"""Alembic's migrations. Names say when they may run: `pre` before the new code starts, `post` after the old has gone."""
