"""Alembic's entry: run the migrations on the connection that `migrate` hands over, in its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=True,
    transaction_per_migration=False,
)
context.run_migrations()
