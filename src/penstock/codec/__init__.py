"""Convert values to bytes and back: S-expressions, frames of messages, blocks of events, XML and YAML within bounds.

- `sexp` reads and writes S-expressions.
- `values` converts attribute values to S-expressions and back.
- `wire` packs messages into frames, in msgpack.
- `blocks` reads and writes sealed blocks: a header in the clear, and columns as bytes.
- `block_names` writes a block's type and attributes as names or as labels.
- `encoded_blocks` encodes the columns of a block before sealing and decodes them after opening.
- `rows` converts events between rows and columns.
- `columns` encodes typed columns of values.
- `cells` encodes single values.
- `xml_text` parses XML within bounds, without entities.
- `yaml_text` parses YAML as plain data.
"""
