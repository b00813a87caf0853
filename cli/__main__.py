"""The entry point of `python -m rlds2reverb.cli`."""

from . import main

main()
