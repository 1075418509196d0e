"""The forms that a database had, and the steps between them: a file for each in `versions`, run by Alembic."""
