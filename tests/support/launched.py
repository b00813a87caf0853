"""Starts the launcher of servers on import, so that processes forked from this one share it."""

from rlds2reverb.reverb.server.process import start_launcher

start_launcher()
