"""Reverb: the wire format, a client, servers and their process, writing of items, and sampling."""
