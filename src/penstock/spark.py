"""What a reader may see of a DataFrame, and the rest of Penstock on Spark.

    import penstock.spark as ps

    df = spark.read.csv("meter.csv", header=True)
    ps.view(df, "policy.toml", reader="planner", mapping="mapping.toml")   # the rows and columns that it may see
    ps.quarantine(df, "policy.toml", reader="planner", mapping="mapping.toml")   # rows that are not events, and why
    ps.explain_view(df, "policy.toml", reader="planner", mapping="mapping.toml")   # why each row is shown, or not
    ps.whatif(df, "policy.toml", "new.toml", mapping="mapping.toml").changes   # what another policy would change
    df.transform(ps.restrict("policy.toml", reader="planner", mapping="mapping.toml"))   # the same as `view`

    ps.register(spark)   # for tools that can only name a source
    spark.read.format("penstock").option("policy", "policy.toml").option("reader", "planner").load("ingested")

The data can be any DataFrame, also a stream or one of Spark Connect. `mapping` is a mapping file, a dict of columns by
attribute name, or not needed if the columns have the names of the attributes. docs/how-to/use-from-a-notebook.md tells
the whole story.

Below that are the steps of `penstock pipeline`: read and ingest events, admit and deliver them, compare two policies,
audit decision logs, evaluate tables of requests, find conflicts between rules, and read and write sealed logs. The
how-to pages on Spark show each of them at work. Everything needs `penstock[spark]`.
"""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ModuleNotFoundError("`penstock.spark` needs Spark: run `pip install 'penstock[spark]'`", name="pyspark")

from penstock.pipeline.audit import AuditReport as AuditReport
from penstock.pipeline.audit import audit as audit
from penstock.pipeline.audit import flows as flows
from penstock.pipeline.audit import log_frame as log_frame
from penstock.pipeline.audit import read_log as read_log
from penstock.pipeline.audit import refusals as refusals
from penstock.pipeline.audit import rights_unused as rights_unused
from penstock.pipeline.audit import rights_used as rights_used
from penstock.pipeline.audit import within as within
from penstock.pipeline.comparison import AffectedReader as AffectedReader
from penstock.pipeline.comparison import PolicyComparison as PolicyComparison
from penstock.pipeline.comparison import fails_on as fails_on
from penstock.pipeline.comparison import whatif_html as whatif_html
from penstock.pipeline.conflicts.forms import RuleTerms as RuleTerms
from penstock.pipeline.conflicts.input import InputTable as InputTable
from penstock.pipeline.conflicts.input import read_rules as read_rules
from penstock.pipeline.conflicts.input import read_types as read_types
from penstock.pipeline.enforce.admit import Admitted as Admitted
from penstock.pipeline.enforce.admit import admit as admit
from penstock.pipeline.enforce.deliver import Delivered as Delivered
from penstock.pipeline.enforce.deliver import deliver as deliver
from penstock.pipeline.enforce.policy import PipelinePolicy as PipelinePolicy
from penstock.pipeline.enforce.policy import Subscriber as Subscriber
from penstock.pipeline.enforce.policy import load_policy as load_policy
from penstock.pipeline.enforce.restrict import deliver_one as deliver_one
from penstock.pipeline.enforce.restrict import mask as mask
from penstock.pipeline.evaluate import TablePolicies as TablePolicies
from penstock.pipeline.evaluate import read_request_mapping as read_request_mapping
from penstock.pipeline.frames import to_transit as to_transit
from penstock.pipeline.frames import transit_sources as transit_sources
from penstock.pipeline.frames import typed_schema as typed_schema
from penstock.pipeline.ingest.ingest import Ingested as Ingested
from penstock.pipeline.ingest.ingest import StoredRecords as StoredRecords
from penstock.pipeline.ingest.ingest import ingest_envelopes as ingest_envelopes
from penstock.pipeline.ingest.ingest import ingest_table as ingest_table
from penstock.pipeline.ingest.ingest import run_ingest as run_ingest
from penstock.pipeline.ingest.mapping import read_mapping as read_mapping
from penstock.pipeline.ingest.records import read_csv as read_csv
from penstock.pipeline.ingest.records import read_lines as read_lines
from penstock.pipeline.ingest.records import read_parquet as read_parquet
from penstock.pipeline.jetstream.source import register_jetstream as register_jetstream
from penstock.pipeline.jobs.conflicts import Conflicts as Conflicts
from penstock.pipeline.jobs.reports import audit_html as audit_html
from penstock.pipeline.sealed.log import KeyFiles as KeyFiles
from penstock.pipeline.sealed.reader import BlockReader as BlockReader
from penstock.pipeline.sealed.reader import events_schema as events_schema
from penstock.pipeline.sealed.reader import sealed_columns as sealed_columns
from penstock.pipeline.sealed.writer import Writing as Writing
from penstock.pipeline.view_source import register as register
from penstock.pipeline.views import explain_view as explain_view
from penstock.pipeline.views import quarantine as quarantine
from penstock.pipeline.views import restrict as restrict
from penstock.pipeline.views import view as view
from penstock.pipeline.views import whatif as whatif
from penstock.pipeline.whatif import compare as compare
from penstock.pipeline.whatif import compare_admission as compare_admission

__all__ = [
    "Admitted",
    "AffectedReader",
    "AuditReport",
    "BlockReader",
    "Conflicts",
    "Delivered",
    "Ingested",
    "InputTable",
    "KeyFiles",
    "PipelinePolicy",
    "PolicyComparison",
    "RuleTerms",
    "StoredRecords",
    "Subscriber",
    "TablePolicies",
    "Writing",
    "admit",
    "audit",
    "audit_html",
    "compare",
    "compare_admission",
    "deliver",
    "deliver_one",
    "events_schema",
    "explain_view",
    "fails_on",
    "flows",
    "ingest_envelopes",
    "ingest_table",
    "load_policy",
    "log_frame",
    "mask",
    "quarantine",
    "read_csv",
    "read_lines",
    "read_log",
    "read_mapping",
    "read_parquet",
    "read_request_mapping",
    "read_rules",
    "read_types",
    "refusals",
    "register",
    "register_jetstream",
    "restrict",
    "rights_unused",
    "rights_used",
    "run_ingest",
    "sealed_columns",
    "to_transit",
    "transit_sources",
    "typed_schema",
    "view",
    "whatif",
    "whatif_html",
    "within",
]
