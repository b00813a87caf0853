"""From the episodes of a source to a running server, or to a directory that a server starts from."""
