"""What is not collected: the modules of extras that this machine cannot have."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("cyclonedds") else ["penstock/fabric/dds*.py"]
