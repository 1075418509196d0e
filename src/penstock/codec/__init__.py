"""Convert values to bytes and back: S-expressions, frames of messages, blocks of events, XML and YAML within bounds.

- `sexp` reads and writes S-expressions.
- `values` converts attribute values to S-expressions and back.
- `wire` packs messages into frames, in msgpack.
- `blocks` reads and writes blocks of events: names or labels in a header in the clear, and columns as bytes.
- `columns` encodes typed columns of values, and single values.
- `xml_text` parses XML within bounds, without entities.
- `yaml_text` parses YAML as plain data.
"""
