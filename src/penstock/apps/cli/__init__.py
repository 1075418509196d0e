"""The command line: `penstock <noun> <verb>`. docs/reference/cli.md lists all of it.

`main` names the nouns, each of which is imported only when it is used. A noun with several verbs is a package, one
with few a module; `shared` is what all of them use.
"""
