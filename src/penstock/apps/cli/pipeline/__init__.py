"""`penstock pipeline`: jobs on Spark.

`commands` lists the jobs without importing Spark. `jobs`, `sealed`, `conflicts` and `components` have the
commands, `runs` runs a job, `spark_session` starts Spark, `options` and `output` are shared.
May import from `penstock.apps.cli`: `moderator`, `net`, `policy`, `sealed`, `sexp`, `certs`, `shared`.
"""
