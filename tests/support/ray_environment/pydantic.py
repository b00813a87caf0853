"""Hides pydantic 1, which wandb and mlflow require here, from Ray, which works with pydantic 2 or none at all."""

raise ImportError("hidden from Ray")
