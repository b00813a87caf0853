"""What the other parts exchange: episodes, items and tables, their specs and fields, and checks of arguments."""
