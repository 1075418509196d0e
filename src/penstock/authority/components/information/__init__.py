"""The attributes that decisions need.

- `dependencies` says which components depend on each other, and what policies require.
- `sources` reads attributes from files, SQL, HTTP, trees and functions.
- `combining` combines the answers of several information points, field by field.
- `attribute_mapping` has signed tables that say what attributes of other domains' subjects mean here.
"""
