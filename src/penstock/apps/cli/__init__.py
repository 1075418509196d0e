"""The command line: `penstock <noun> <verb>`. docs/reference/cli.md lists all of it.

Here, and only here, the wall clock and a random source are read: `main` puts both into a `Session`.
"""
