"""The transfer of episodes to a running server, or to a directory that a server starts from."""
