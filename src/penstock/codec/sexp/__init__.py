"""S-expressions of RFC 9804: one value, three forms.

An atom is `bytes`, an atom with a display hint is `Hinted`, a list is a `tuple`. Signatures are over the
canonical form, and `parse_canonical` reads no other; `parse` reads all three; `canonical`, `transport` and
`advanced` write one each. Hostile bytes only cause a `LimitError` or a `MalformedError`: nothing here recurses.

A `SexpRecord` describes a list with a head and fields once, for reading and for writing.

`canonical` has these types, helpers for reading them and the canonical form, `text_forms` reads all three forms and
writes the transport form, `records` implements `SexpRecord`.
"""

from penstock.codec.sexp.canonical import Hinted as Hinted
from penstock.codec.sexp.canonical import SExp as SExp
from penstock.codec.sexp.canonical import canonical as canonical
from penstock.codec.sexp.canonical import field as field
from penstock.codec.sexp.canonical import head as head
from penstock.codec.sexp.canonical import parse_canonical as parse_canonical
from penstock.codec.sexp.canonical import parse_elements as parse_elements
from penstock.codec.sexp.canonical import text as text
from penstock.codec.sexp.records import BARE as BARE
from penstock.codec.sexp.records import OMITTED as OMITTED
from penstock.codec.sexp.records import Form as Form
from penstock.codec.sexp.records import ListForm as ListForm
from penstock.codec.sexp.records import Named as Named
from penstock.codec.sexp.records import RecordParts as RecordParts
from penstock.codec.sexp.records import SexpRecord as SexpRecord
from penstock.codec.sexp.records import read_fields as read_fields
from penstock.codec.sexp.records import read_record as read_record
from penstock.codec.sexp.records import written_fields as written_fields
from penstock.codec.sexp.text_forms import advanced as advanced
from penstock.codec.sexp.text_forms import parse as parse
from penstock.codec.sexp.text_forms import parse_many as parse_many
from penstock.codec.sexp.text_forms import transport as transport
