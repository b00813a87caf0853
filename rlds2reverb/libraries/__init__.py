"""Uses of other libraries' internals: one module per library, each bound to the version that it was tested with."""
