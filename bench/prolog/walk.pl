% The path to the root and the subtree are walked, and the rules on each event type are found by the first-argument index.

:- include(algorithm1).

at(Event, rule(Id, Attributes)) :-
    rule(Event, Id, _, Attributes).

over(Event, Rule) :-
    parent(Event, Parent),
    (   at(Parent, Rule)
    ;   over(Parent, Rule)
    ).

under(Event, Rule) :-
    child(Event, Child),
    (   at(Child, Rule)
    ;   under(Child, Rule)
    ).
