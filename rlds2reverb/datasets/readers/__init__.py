"""Readers of datasets: one module per format, next to those that read the files which several formats use."""
