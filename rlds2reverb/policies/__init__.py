"""Policies that were saved to disk, called with arrays; this needs neither an agent nor an environment."""
