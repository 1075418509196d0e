"""A broker as a process: its file, its log, what it tells of itself over HTTP, and how it starts and stops.

- `config` reads and checks the node file, in TOML.
- `load` reads the files that a node file names and makes the settings of a node from them.
- `process` runs a node until it is stopped, and reloads its files.
- `key_managers` reads the table `[keys]` and starts the key manager.
- `logs` writes the log, for people or as JSON.
- `metrics` counts for Prometheus.
- `starter` has the network that `penstock init` creates.
- `example` has the node file that `penstock up --example` prints.
"""
