"""Writers of datasets: one module per format, next to `writing`, which calls them."""
