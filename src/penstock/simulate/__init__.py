"""The real system under virtual time: thousands of components in one process, replayable by one seed.

- `loop` runs asyncio code in virtual time, with a processor of its own for each simulated process.
- `simulation` is one run: its seed, clocks, processes, service times, log and trace.
- `network` carries messages and links between processes, `fabric` is a fabric across it, `disk` the disk of a process.
- `calibrate` measures service times on this machine, and keeps them in a file.
- `brokers` is a network of real brokers and clients, `routers` a large one of routers alone.
- `isolation` makes simulated code fail that reads a real clock or random source, opens a socket or starts a thread.
- `scenario` writes down what to run; `faults` what goes wrong meanwhile.
- `checkers` reads a log, and finds what must not be.
- `pure_work` computes results of pure functions once for all processes of a simulation, and for all seeds of a search.
- `run` runs a scenario; `explore` runs it with many seeds, and shrinks what violates something.
- `worlds` has the parts of the system that are run, and says what a world is.
- `experiments` measures figures and tables of the papers again.
- `plans` tries domain plans and network plans before they are rolled out.
"""
