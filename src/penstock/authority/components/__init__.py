"""The authorization components of a domain: they join it at run time, and ask and answer each other over topics.

- `information_combining` combines the answers of several information points, field by field.
"""
