"""A broker as a process: its file, its log, what it tells of itself over HTTP, and how it starts and stops."""
