"""Outputs of jobs: files, commits, pages, and how the next job follows.

`outputs` is a job's output, its commits, and how a stream follows another job's output; `files` reads and replaces
files strictly, `task_errors` carries errors out of tasks, `pages` writes HTML.
May import from `penstock.pipeline`: `frames`.
"""
