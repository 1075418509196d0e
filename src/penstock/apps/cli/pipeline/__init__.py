"""`penstock pipeline`: jobs on Spark.

`commands` lists the jobs without importing Spark. `jobs`, `sealed`, `conflicts` and `components` have the
commands, `plan` runs several of them, `runs` runs a job, `spark_session` starts Spark, `serve` keeps one that
`warm_spark` finds, `options` and `output` are shared.
May import from `penstock.apps.cli`: `moderator`, `net`, `policy`, `sealed`, `sexp`, `certs`, `shared`.
"""
