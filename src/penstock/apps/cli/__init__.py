"""The command line: `penstock <noun> <verb>`. docs/reference/cli.md lists all of it.

`main` is the entry point and names the nouns, each of which is imported only when it is used. A noun with many verbs is
a package, one with few a module; `shared` is what all of them use.

- `init` creates a network, `dev` runs one in a process, `doctor` finds problems, `contexts` has `penstock context`.
- `certs` has `penstock cert`, `keys` has `penstock key` and `penstock sealing`, `petnames` has `penstock name`.
- `acs` runs and calls the access control service of a domain.
- `types` has `penstock type` and `penstock topic`, `selectors` has `penstock selector`, `sexp` converts S-expressions.
- `up` runs a broker, `net` shows and changes the network, `pub_sub` publishes and subscribes.
- `explain` says why a principal may or may not do something, `explain_policies` reads the policies for it,
  and `explain_roles` the roles.
- `roles` has `penstock role`, `fabrics` runs the keeper of a DDS domain.
- `pep` asks decision points over a fabric. `domain` plans, checks and runs a domain of authorization
  components, and `component` some of them.
- `policy` has `penstock policy` and `penstock pdp`, `moderator` settles conflicts, `pipeline` runs jobs on Spark.
- `sealed` seals and opens files, and proves events. `stores` has `penstock store` and `penstock log`.
- `completion` prints completion scripts for shells, `conformance` runs the test suites of standards.
- `simulate` runs the real system in virtual time.
- `experiment` measures figures and tables of the papers again.
"""
