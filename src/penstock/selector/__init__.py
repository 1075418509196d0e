"""The predicate language: SQL-92 conditional expressions, typed, three-valued, total and bounded.

`parse` reads a selector, `Selector.check` types it, `evaluate` and `compile_selector` apply it to a row, and
`covers`, `overlaps`, `equivalent` and `satisfiable` say what it means for all rows, with a row that shows it. The
language is described in docs/reference/selector.md.

- `selector` is the facade: `parse`, and the `Selector` with its checks and bounds.
- `grammar` cuts the text into tokens and parses them into a syntax tree.
- `ast` has the nodes of the syntax tree.
- `evaluate` interprets a selector: the reference for its meaning.
- `compile` compiles a selector to a fast Python function.
- `like` matches LIKE patterns.
- `analysis` is the facade for questions about all rows. The next three work for it:
- `algebra` answers the question for simple selectors: is there a row on which some are TRUE and others are not?
- `sets` has the sets of values that `algebra` uses.
- `solver` answers the question for all other selectors with z3.
"""

from penstock.selector.analysis import AnalysisVerdict as AnalysisVerdict
from penstock.selector.analysis import SelectorAnalysis as SelectorAnalysis
from penstock.selector.analysis import covers as covers
from penstock.selector.analysis import equivalent as equivalent
from penstock.selector.analysis import overlaps as overlaps
from penstock.selector.analysis import satisfiable as satisfiable
from penstock.selector.compile import Compiled as Compiled
from penstock.selector.compile import compile_selector as compile_selector
from penstock.selector.evaluate import evaluate as evaluate
from penstock.selector.selector import ALWAYS as ALWAYS
from penstock.selector.selector import NEVER as NEVER
from penstock.selector.selector import Selector as Selector
from penstock.selector.selector import built as built
from penstock.selector.selector import conjunction as conjunction
from penstock.selector.selector import conjuncts as conjuncts
from penstock.selector.selector import disjunction as disjunction
from penstock.selector.selector import equals as equals
from penstock.selector.selector import negation as negation
from penstock.selector.selector import parse as parse

#: the public names; the others are for other packages of Penstock
__all__ = [
    "ALWAYS",
    "NEVER",
    "AnalysisVerdict",
    "Selector",
    "SelectorAnalysis",
    "compile_selector",
    "covers",
    "equivalent",
    "evaluate",
    "overlaps",
    "parse",
    "satisfiable",
]
