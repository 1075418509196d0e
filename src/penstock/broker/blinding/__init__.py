"""Types whose names the network must not learn: neighbours see labels only.

`labels` computes the labels of a broker, `vault` seals and opens blocks under labels, `router` translates between
names and labels around the plain router.
May import from `penstock.broker`: `local`, `routing`, `sealing`, `matching`, `evolution`, `wire`.
"""
