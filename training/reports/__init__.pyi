from .findings_report import report_findings as report_findings
from .page import Report as Report
from .run_report import report_runs as report_runs
from .source_report import report_source as report_source
