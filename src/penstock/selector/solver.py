"""Answer questions about any selectors with z3, within a limit of time and effort.

An attribute is a null flag and a value; a term adds whether it is in error; a condition is the pair of formulas that
say when it is TRUE and when FALSE. A row that is neither is null or in error, which no question needs to tell apart.

Integers and timestamps are mathematical integers with their bounds and explicit overflow. Floats are real numbers as
long as nothing is computed with them, with infinity as a number beyond the largest double: no row is lost, so "none
exists" holds, and a row that is found is evaluated. If it does not survive, or floats are computed with, a few rows
are tried and then floats are IEEE doubles. Strings are z3's, over the alphabet of alphabet.py.

This module imports z3, which takes a while; analysis.py imports it on first use. Each question has a z3 context of
its own, so that answers do not depend on earlier ones and threads do not meet.
"""

import ctypes
import math

import z3

from penstock.model.limits import Limits
from penstock.model.values import Enumerated, Kind, Scalar, Schema
from penstock.selector.alphabet import Alphabet
from penstock.selector.ast import Arithmetic, Attribute, Like, Literal, Node, Term, walk
from penstock.selector.encode import Encoder
from penstock.selector.like import parse_pattern
from penstock.selector.question import Question
from penstock.selector.represent import Representation
from penstock.selector.represent import UnsettledError as UnsettledError
from penstock.selector.selector import Selector
from penstock.selector.trial import try_rows


def search(question: Question, limits: Limits) -> dict[str, Scalar] | None:
    """Return a row that answers the question, or None if there is none. The row has been evaluated.

    Raises `UnsettledError` when z3 gives up, cannot express the question, or its row does not survive.
    """
    if not any(_computes_floats(selector.root, question.schema) for selector in _selectors(question)):
        try:
            row = _search(question, limits, exact=False)
        except UnsettledError:
            row = try_rows(question)
            if row is None:
                raise
        if row is None or question.shown_by(row):
            return row
    # Doubles are slow to reason about; a row may be near at hand.
    row = try_rows(question)
    if row is not None:
        return row
    row = _search(question, limits, exact=True)
    if row is None or question.shown_by(row):
        return row
    raise UnsettledError


def _search(question: Question, limits: Limits, *, exact: bool) -> dict[str, Scalar] | None:
    try:
        values = Representation(_alphabet(question), exact=exact)
        encoder = Encoder(question.schema, values)
        formulas = [encoder.condition(selector.root)[0] for selector in question.holding]
        formulas += [z3.Not(encoder.condition(selector.root)[0]) for selector in question.failing]
        solver = z3.Solver(ctx=values.context)
        solver.set("timeout", limits.solver_time)
        solver.set("rlimit", limits.solver_effort)
        solver.add(*encoder.constraints, *formulas)
        verdict = solver.check()
        if verdict == z3.unsat:
            return None
        if verdict != z3.sat:
            raise UnsettledError
        return _row(encoder, solver.model())
    except (z3.Z3Exception, OverflowError, ctypes.ArgumentError) as error:
        raise UnsettledError from error


def _row(encoder: Encoder, model: z3.ModelRef) -> dict[str, Scalar]:
    row: dict[str, Scalar] = {}
    for name in sorted(encoder.attributes):
        term = encoder.attributes[name]
        if term.kind is None or z3.is_true(model.eval(term.null, model_completion=True)):
            row[name] = None
        elif z3.is_true(model.eval(term.error, model_completion=True)):
            row[name] = math.nan
        else:
            row[name] = encoder.values.read(term.kind, model.eval(term.value, model_completion=True))
    return row


def _alphabet(question: Question) -> Alphabet:
    """Number the characters that the question names."""
    named: set[str] = set()
    nodes = 0
    for selector in _selectors(question):
        for node in walk(selector.root):
            nodes += 1
            if isinstance(node, Like):
                segments = parse_pattern(node.pattern, node.escape).segments
                named.update(*(character for segment in segments for character in segment if character))
            elif isinstance(node, Literal) and isinstance(node.value, str):
                named.update(node.value)
    for name in question.attributes:
        domain = question.schema[name].domain
        if isinstance(domain, Enumerated):
            named.update(*(value for value in domain.values if isinstance(value, str)))
    # There are at most as many comparisons as nodes.
    return Alphabet(named, comparisons=nodes)


def _computes_floats(root: Node, schema: Schema) -> bool:
    return any(isinstance(node, Arithmetic) and _is_float(node, schema) for node in walk(root))


def _is_float(term: Term, schema: Schema) -> bool:
    return any(
        (isinstance(node, Attribute) and schema[node.name].kind is Kind.FLOAT)
        or (isinstance(node, Literal) and node.kind is Kind.FLOAT)
        for node in walk(term)
    )


def _selectors(question: Question) -> tuple[Selector, ...]:
    return question.holding + question.failing
