"""The process in which Reverb runs: it serves tables, and finished batches of their items.

`rlds2reverb.reverb.server.process` starts it, with this interpreter or in an environment that contains little more than
dm-reverb. So these modules import only the standard library, NumPy, gRPC, protobuf, TensorFlow and Reverb, and each
other. They are the only ones that import Reverb for servers.
"""
