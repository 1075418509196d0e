"""Tags: what a certificate grants, as sets of requests that can be intersected (RFC 2693, 6.3 and our extensions).

A tag is the `x` of `(tag x)`. It stands for the set of requests that match it:

    atom                      that atom, with the same display hint
    (a b …)                   every list at least as long whose leading elements match: shorter is more general
    (*)                       everything
    (* set x …)               what any member matches
    (* prefix s)              atoms that begin with s
    (* range ORDERING …)      atoms between two limits, compared as alpha, binary, date, numeric or time
    (* glob p)                atoms that the pattern matches; each `*` in it stands for any run of bytes
    (* and x …)               atoms that all of these patterns match: an intersection without a closed form
    (* where conjunct …)      a predicate on the event; a request has `EVENT` in its place

The law: `matches(r, intersect(s, t))` exactly when `matches(r, s)` and `matches(r, t)`. Everything here is pure, and
nothing recurses deeper than `TAG_DEPTH`. Reading a tag takes time linear in its size.

- `syntax` parses a tag and puts it into normal form.
- `values` has the forms of a tag in memory.
- `algebra` matches, intersects and compares tags.
- `patterns` compares and intersects patterns over atoms. `globs` and `ranges` work for it:
- `globs` has patterns with wildcards.
- `ranges` has ranges under the five orderings.
"""

from penstock.trust.tags.algebra import TagBudget as TagBudget
from penstock.trust.tags.algebra import covers as covers
from penstock.trust.tags.algebra import intersect as intersect
from penstock.trust.tags.algebra import matches as matches
from penstock.trust.tags.algebra import to_sexp as to_sexp
from penstock.trust.tags.globs import Glob as Glob
from penstock.trust.tags.globs import Prefix as Prefix
from penstock.trust.tags.patterns import AllPatterns as AllPatterns
from penstock.trust.tags.ranges import Range as Range
from penstock.trust.tags.syntax import TAG_DEPTH as TAG_DEPTH
from penstock.trust.tags.syntax import parse_tag as parse_tag
from penstock.trust.tags.values import ANY as ANY
from penstock.trust.tags.values import EVENT as EVENT
from penstock.trust.tags.values import NOTHING as NOTHING
from penstock.trust.tags.values import Set as Set
from penstock.trust.tags.values import Tag as Tag
from penstock.trust.tags.values import Where as Where
