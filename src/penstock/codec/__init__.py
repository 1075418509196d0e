"""Convert values to bytes and back: S-expressions, frames of messages, blocks of events, XML and YAML within bounds."""
