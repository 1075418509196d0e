"""What people run: the command line, the broker process and the decision service.

- `cli` is the command `penstock`.
- `http` is the decision service.
- `node` runs a broker from its node file.
"""
