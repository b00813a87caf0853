from .checks import Finding as Finding, check_dataset as check_dataset
from .formats import Format as Format
from .loading import load as load, register_format as register_format
from .source import Source as Source
from .summary import Summary as Summary, summarize as summarize
