"""The types that the other parts exchange: episodes, items and tables, with their specs and fields."""
