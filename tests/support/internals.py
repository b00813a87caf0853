"""The private names of the sources that tests use, to inject faults, to find processes, or to forget what was done.

Everything else is tested through public names. `tests/test_layout.py` finds private names elsewhere, and counts these.
"""

import tree

# --- Functions that tests replace by ones that fail, wait, or count their calls

#: Writes the states, and then each array, of a checkpoint of a buffer.
WRITE_STATES, AS_BYTES = "_write_states", "_as_bytes"
#: Enlarges the ring of a buffer's rows.
GROW = "_grow"
#: Samples from a buffer, once its lock is held.
SAMPLE = "_sample"
#: Builds the store of a dataset, and writes one of its arrays.
BUILD, WRITE_ALL = "_build", "_write_all"
#: Assembles a converted directory from its parts.
ASSEMBLE = "_assemble"
#: Makes the function that a block's thread reads a column with.
MAKE_READER = "_make_reader"
#: The functions of Beam's workers.
JOB = "_Job"
#: Binds a socket to an interface, in a server's process.
BIND = "_bind"
#: Forks the process of a server.
FORK_SERVER = "_fork_server"
#: Transfers of Python's `multiprocessing.connection.Connection`.
RECV, SEND = "_recv", "_send"
#: Finds the version of a distribution, and runs `pip check`.
FIND_VERSION, CHECK_REQUIREMENTS = "_find_version", "_check_requirements"

# --- What a process remembers

#: The process that this one's servers are forked from.
LAUNCHER = "_launcher"
#: Messages that were made in this process, and sizes of batches that it has warned about.
MESSAGES, NOTED_SIZES = "_MESSAGES", "_NOTED_SIZES"
#: The mapped files of stored steps.
MAPPED = "_mapped"


def forget_evaluations(learner):
    """Makes the next evaluation of a learner its first one, as in a new process."""
    learner._log.forget_evaluations()


def end_part(destination, state):
    """Ends a part of a directory before it has its size, so that a journal is written."""
    destination._end_part(state)


# --- Processes and graphs, which users do not see


def find_pid(owner):
    """Returns the ID of the process of a writer, or of a worker of an environment."""
    return owner._process.pid


def get_workers(env):
    """Returns the workers of a `ParallelEnvironment`."""
    return env._workers


def get_statistics(env):
    """Returns the statistics of an `ObservationNormalizer`, which must be picklable although its environment is not."""
    return env._statistics


def get_server(actor):
    """Returns the server of a `ReplayActor`, which runs in a thread of a test instead of a process of Ray."""
    return actor._server


def get_feed(learner):
    """Returns the source of a learner's batches."""
    return learner._loop._feed


def get_input_types(learner):
    """Returns the dtypes of the arrays that a learner passes to its graph."""
    loop = learner._loop
    return [argument.dtype for argument in loop._run.inputs[: len(tree.flatten(loop._batch_specs))]]
