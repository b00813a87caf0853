"""Training: from tables and data sets to a trained agent."""
