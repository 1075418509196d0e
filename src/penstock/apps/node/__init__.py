"""A broker as a process: its file, its log, what it tells of itself over HTTP, and how it starts and stops.

- `config` reads and checks the node file, in TOML, and has the file that `penstock up --example` prints.
- `load` reads the files that a node file names, and makes the settings of a node and its key manager from them.
- `process` runs a node until it is stopped, reloads its files, and counts for Prometheus.
- `roles` follows domains' roles in stores, as a source of authority.
- `decision_points` asks remote decision points, as a source of authority.
- `logs` writes the log, for people or as JSON.
- `starter` has the network that `penstock init` creates, `dev_network` the one that `penstock dev` runs.
- `limits` are the bounds that a node file can set.
"""
