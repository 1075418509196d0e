"""The authorization components of a domain: they join it at run time, and ask and answer each other over topics.

- `dependencies` says which components depend on each other, and what policies require.
- `information_combining` combines the answers of several information points, field by field.
"""
