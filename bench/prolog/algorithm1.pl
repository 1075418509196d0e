% Algorithm 1 of paper 1 (conflict detection on attribute lists, upward scope), and how the benchmark speaks with it.
%
% Who includes this file says which rules stand on the same event type, above and below: at/2, over/2 and under/2 each
% yield rule(Id, Attributes) for an event type.
%
% parent/2 and child/2 are the tree; rule/4 are the rules in force: event type, id, publishers, attribute list.

:- use_module(library(lists)).
:- dynamic parent/2, child/2, rule/4.

% --- the algorithm ---------------------------------------------------------------------------------------------------

conflict(Event, Attributes, conflict(same, Id, Missing, Extra)) :-
    at(Event, rule(Id, Others)),
    subtract(Others, Attributes, Missing),
    subtract(Attributes, Others, Extra),
    ( Missing \== [] -> true ; Extra \== [] ).
conflict(Event, Attributes, conflict(up, Id, Missing, [])) :-
    over(Event, rule(Id, Others)),
    subtract(Others, Attributes, Missing),
    Missing \== [].
conflict(Event, Attributes, conflict(down, Id, [], Extra)) :-
    under(Event, rule(Id, Others)),
    subtract(Attributes, Others, Extra),
    Extra \== [].

add(candidate(Event, Id, Publisher, Attributes), Conflicts) :-
    findall(Conflict, conflict(Event, Attributes, Conflict), Conflicts),
    (   Conflicts == []
    ->  assertz(rule(Event, Id, [Publisher], Attributes))
    ;   true
    ).

% --- what the benchmark asks for, one term a line ---------------------------------------------------------------------

main :-
    prompt(_, ''),
    repeat,
    read(Command),
    (   Command == end_of_file
    ->  !
    ;   run(Command),
        flush_output,
        fail
    ).

% A balanced tree: below type N stand 2N and 2N + 1.
run(tree(Types)) :-
    retractall(parent(_, _)),
    retractall(child(_, _)),
    forall(between(2, Types, Type), ( Parent is Type // 2, assertz(parent(Type, Parent)), assertz(child(Parent, Type)) )),
    % Indexes are made when they are first needed.
    ignore(parent(2, _)),
    ignore(child(1, _)),
    writeln(done).
% Rules that are known not to collide come into force unseen.
run(fill(File)) :-
    candidates(File, Candidates),
    retractall(rule(_, _, _, _)),
    forall(member(candidate(Event, Id, Publisher, Attributes), Candidates),
           assertz(rule(Event, Id, [Publisher], Attributes))),
    writeln(done).
% Candidates are added one after the other; how long that takes, and how many rules are in force then.
run(add(File)) :-
    candidates(File, Candidates),
    garbage_collect,
    statistics(cputime, Before),
    forall(member(Candidate, Candidates), add(Candidate, _)),
    statistics(cputime, After),
    predicate_property(rule(_, _, _, _), number_of_clauses(InForce)),
    Seconds is After - Before,
    format("~9f ~d~n", [Seconds, InForce]).
% What each candidate collides with.
run(tell(File)) :-
    candidates(File, Candidates),
    forall(( member(candidate(Event, Id, _, Attributes), Candidates), conflict(Event, Attributes, Conflict) ),
           ( Conflict = conflict(Kind, Rule, Missing, Extra),
             length(Missing, M),
             length(Extra, X),
             format("~w ~w ~w ~d ~d~n", [Id, Kind, Rule, M, X]) )),
    writeln(done).

candidates(File, Candidates) :-
    setup_call_cleanup(open(File, read, Stream), all_terms(Stream, Candidates), close(Stream)).

all_terms(Stream, Terms) :-
    read(Stream, Term),
    (   Term == end_of_file
    ->  Terms = []
    ;   Terms = [Term | Rest],
        all_terms(Stream, Rest)
    ).
