"""What people run: the command line, and later services and a console."""
