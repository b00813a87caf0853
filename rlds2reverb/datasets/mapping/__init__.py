"""Mappings of datasets: declared changes of fields, episodes and rates, which `load` applies to any format."""
