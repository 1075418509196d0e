% All rules, one after the other, three times, as the loops of Algorithm 1 are written.

:- include(algorithm1).

at(Event, rule(Id, Attributes)) :-
    rule(Other, Id, _, Attributes),
    Other == Event.

over(Event, rule(Id, Attributes)) :-
    rule(Other, Id, _, Attributes),
    above(Event, Other).

under(Event, rule(Id, Attributes)) :-
    rule(Other, Id, _, Attributes),
    above(Other, Event).

above(Event, Other) :-
    parent(Event, Parent),
    (   Parent == Other
    ->  true
    ;   above(Parent, Other)
    ).
