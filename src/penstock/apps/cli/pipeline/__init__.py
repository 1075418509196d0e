"""`penstock pipeline`: jobs on Spark, and on small inputs without it.

`commands` lists the jobs without importing Spark, and `small` runs some without it; `done` is the result of either.
`jobs`, `sealed`, `conflicts` and `components` have the commands, `plan` runs several of them, `runs` runs a job,
`spark_session` starts Spark, `serve` keeps one that `warm_spark` finds, `options` and `output` are shared.
May import from `penstock.apps.cli`: `moderator`, `net`, `policy`, `sealed`, `sexp`, `certs`, `shared`.
"""
