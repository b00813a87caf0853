"""Reverb servers: starting them, connecting to them, and their checkpoints."""
