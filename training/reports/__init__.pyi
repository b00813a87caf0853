from .dataset_report import report_source as report_source
from .page import Report as Report
from .run_report import report_runs as report_runs
