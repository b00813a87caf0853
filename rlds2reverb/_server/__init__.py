"""A Reverb server: start it, ask it, wait for it, and its checkpoint directory."""
