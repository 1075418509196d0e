"""What people run: the command line, the broker process and the decision service."""
