"""The bridge from newer kernels to Python 3.11, with real kernels on both sides."""

import json
import os
import platform
import signal
import subprocess
import sys

import psutil
import pytest
from notebook_format import BRIDGE, NOTEBOOKS
from outer_kernels import KINDS, TIMEOUT, OuterKernel, make_outer_python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="requires Linux"),
]


@pytest.fixture(scope="module", params=KINDS)
def outer_python(request, tmp_path_factory):
    return make_outer_python(request.param, tmp_path_factory.mktemp("outer") / "venv")


@pytest.fixture
def fresh_kernel(outer_python, tmp_path):
    """A kernel in which no cell has run, for tests that end it."""
    kernel = OuterKernel(outer_python, tmp_path)
    yield kernel
    kernel.close()


@pytest.fixture(scope="module")
def kernel(outer_python, tmp_path_factory):
    """A kernel whose cells run on Python 3.11."""
    kernel = OuterKernel(outer_python, tmp_path_factory.mktemp("notebook"))
    kernel.first_output = kernel.text(BRIDGE.FIRST_CELL)
    yield kernel
    kernel.close()


def inner_process(kernel):
    return psutil.Process(kernel.value("__import__('os').getpid()"))


def test_first_cell_says_in_one_line_which_python_answers(kernel):
    (line,) = kernel.first_output.splitlines()
    assert line.startswith(f"Python {platform.python_version()} in {sys.prefix} answers from now on")
    assert kernel.value("__import__('sys').version_info[:2]") == sys.version_info[:2]
    assert kernel.value("(DATA / 'd4rl/hopper_medium-v2.hdf5').is_file()") is True


def test_notebook_begins_with_no_other_variables(fresh_kernel):
    fresh_kernel.text(BRIDGE.FIRST_CELL)
    assert fresh_kernel.text("%who").split() == ["DATA"]


def test_first_cell_can_run_again(kernel):
    number = inner_process(kernel).pid
    assert kernel.text(BRIDGE.FIRST_CELL).startswith(f"Python {platform.python_version()} answers, from ")
    assert inner_process(kernel).pid == number


def test_streams_arrive_while_the_cell_runs_and_in_order(kernel, tmp_path):
    answer = tmp_path / "answer"
    cell = f"""
import os, sys, time
print("first", flush=True)
while not os.path.exists({str(answer)!r}):
    time.sleep(0.01)
print("second", file=sys.stderr, flush=True)
print("third")
"""

    def on_output(kind, content):
        if "first" in content.get("text", ""):
            answer.touch()

    reply, outputs = kernel.run(cell, on_output)
    assert reply["status"] == "ok"
    assert [(content["name"], content["text"].strip()) for _, content in outputs if content["text"].strip()] == [
        ("stdout", "first"),
        ("stderr", "second"),
        ("stdout", "third"),
    ]


def test_results_have_the_number_of_their_cell(kernel):
    reply, outputs = kernel.run("6 * 7")
    assert outputs[0][0] == "execute_result" and outputs[0][1]["data"]["text/plain"] == "42"
    assert outputs[0][1]["execution_count"] == reply["execution_count"]
    assert kernel.text(f"Out[{reply['execution_count']}]") == "42"
    kernel.run("%%outer\n1")  # A cell that the inner kernel does not count.
    reply, _ = kernel.run("43")
    assert kernel.text(f"_{reply['execution_count']}") == "43"


def test_figure_arrives_as_a_picture(kernel):
    _, outputs = kernel.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    (picture,) = [content["data"]["image/png"] for kind, content in outputs if kind == "display_data"]
    assert picture.startswith("iVBOR")


def test_displays_are_updated_and_cleared(kernel):
    cell = """
from IPython.display import clear_output, display
handle = display("before", display_id="bar")
handle.update("after")
clear_output(wait=True)
"""
    _, outputs = kernel.run(cell)
    assert [kind for kind, _ in outputs] == ["display_data", "update_display_data", "clear_output"]
    assert [content["transient"]["display_id"] for _, content in outputs[:2]] == ["bar", "bar"]
    assert outputs[1][1]["data"]["text/plain"] == "'after'" and outputs[2][1] == {"wait": True}


def test_progress_of_training_is_shown(kernel, tmp_path):
    cell = f"""
from rlds2reverb import train
run = train(DATA / "d4rl/pendulum_mixed-v2.hdf5", "bc", {str(tmp_path / "run")!r}, steps=20, log_every=10, env=None)
print("trained", run.progress["step"])
"""
    reply, outputs = kernel.run(cell)
    assert reply["status"] == "ok", reply
    shown = json.dumps([content for _, content in outputs])
    assert "20 of 20" in shown and "trained [10. 20.]" in join_all(outputs)


def join_all(outputs):
    return "".join(content.get("text", "") for _, content in outputs)


def test_magics_and_shell_commands_run(kernel):
    assert "Wall time" in kernel.text("%%time\nsum(range(10))")
    assert kernel.text("!echo to the shell").strip() == "to the shell"
    assert kernel.text("lines = !echo one; echo two\nprint(lines)").strip() == "['one', 'two']"
    assert kernel.text("%%bash\necho from bash").strip() == "from bash"
    assert kernel.text("!which rlds2reverb").strip() == f"{sys.prefix}/bin/rlds2reverb"


def test_top_level_await_and_multiline_cells_run(kernel):
    assert kernel.text("import asyncio\nawait asyncio.sleep(0, 'awaited')") == "'awaited'"
    assert kernel.text('text = """?\n%%outer \'"\n"""\nprint(text)') == "?\n%%outer '\"\n\n"


def test_error_shows_the_remote_traceback_and_stops_the_run(kernel):
    kernel.run("def divide(x):\n    return x / 0")
    failing, later = (kernel.client.execute(code) for code in ("divide(123)", "print('not run')"))
    reply = kernel.reply_to(failing)
    assert (reply["status"], reply["ename"], reply["evalue"]) == ("error", "ZeroDivisionError", "division by zero")
    traceback = "\n".join(reply["traceback"])
    assert "in divide" in strip_colours(traceback) and "kernel_bridge" not in traceback
    assert kernel.reply_to(later)["status"] == "aborted"
    assert kernel.text("print('continues')") == "continues\n"


def strip_colours(text):
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_error_appears_once_among_the_outputs(kernel):
    _, outputs = kernel.run("raise KeyError('missing')")
    ((kind, content),) = outputs
    assert kind == "error" and content["ename"] == "KeyError" and content["evalue"] == "'missing'"


def test_syntax_error_is_reported(kernel):
    reply, _ = kernel.run("1 +")
    assert reply["ename"] == "SyntaxError"


def test_input_and_getpass_ask_the_frontend(kernel):
    reply, outputs = kernel.run("x = input('name? ')\nprint(x.upper())", answers=["ada"])
    assert ("input_request", {"prompt": "name? ", "password": False}) in outputs
    assert reply["status"] == "ok" and join_all(outputs) == "ADA\n"
    _, outputs = kernel.run("import getpass\nprint(len(getpass.getpass('key: ')))", answers=["secret"])
    assert ("input_request", {"prompt": "key: ", "password": True}) in outputs and join_all(outputs) == "6\n"


@pytest.mark.parametrize("cell", ["print('started', flush=True)\nwhile True:\n    pass", "!echo started; sleep 1000"])
def test_interrupt_stops_the_cell_and_keeps_variables(kernel, cell):
    kernel.run("kept = 5")

    def on_output(kind, content):
        if "started" in content.get("text", ""):
            kernel.manager.interrupt_kernel()

    reply, _ = kernel.run(cell, on_output)
    assert (reply["status"] == "error" and reply["ename"] == "KeyboardInterrupt") or cell.startswith("!")
    assert kernel.value("kept") == 5


def test_interrupt_stops_a_request_for_input(kernel):
    reply, _ = kernel.run("input('waits')", answers=[kernel.manager.interrupt_kernel])
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert kernel.text("print('continues')") == "continues\n"


def test_completion_and_inspection_answer_from_the_inner_kernel(kernel):
    kernel.run("def remarkable_function(alpha):\n    '''Explains itself.'''\n    return alpha")
    matches = kernel.reply_to(kernel.client.complete("remarkable_f"))
    assert matches["matches"] == ["remarkable_function"] and (matches["cursor_start"], matches["cursor_end"]) == (0, 12)
    found = kernel.reply_to(kernel.client.inspect("remarkable_function"))
    assert found["found"] and "Explains itself." in found["data"]["text/plain"]
    assert not kernel.reply_to(kernel.client.inspect("unknown_name"))["found"]


def test_question_mark_shows_the_help_of_the_inner_kernel(kernel):
    kernel.run("def another_function(beta):\n    '''Explains itself.'''")
    reply, _ = kernel.run("another_function?")
    (page,) = reply["payload"]
    assert page["source"] == "page" and "Explains itself." in page["data"]["text/plain"]


def test_incomplete_code_is_recognized(kernel):
    assert kernel.reply_to(kernel.client.is_complete("for x in y:"))["status"] == "incomplete"
    assert kernel.reply_to(kernel.client.is_complete("x = 1"))["status"] == "complete"


def test_messages_of_widgets_pass_in_both_directions(kernel):
    cell = """
import comm
widget = comm.create_comm(target_name="echo", data={"opened": True})
widget.on_msg(lambda message: widget.send({"echo": message["content"]["data"]}, buffers=[b"binary"]))
"""
    _, outputs = kernel.run(cell)
    ((kind, content),) = outputs
    assert kind == "comm_open" and content["data"] == {"opened": True}
    message = kernel.client.session.msg("comm_msg", {"comm_id": content["comm_id"], "data": {"value": 3}})
    kernel.client.shell_channel.send(message)
    reply = next_output(kernel, "comm_msg")
    assert reply["content"] == {"comm_id": content["comm_id"], "data": {"echo": {"value": 3}}}
    assert [bytes(part) for part in reply["buffers"]] == [b"binary"]
    assert reply["parent_header"]["msg_id"] == message["header"]["msg_id"]


def next_output(kernel, kind):
    """Returns the next message of a type, without running a cell."""
    while True:
        message = kernel.client.get_iopub_msg(timeout=TIMEOUT)
        if message["header"]["msg_type"] == kind:
            return message


def test_output_of_a_thread_arrives_after_its_cell(kernel, tmp_path):
    cell = f"""
import os, threading, time
def wait_and_print():
    while not os.path.exists({str(tmp_path / "go")!r}):
        time.sleep(0.01)
    print("from the thread", flush=True)
threading.Thread(target=wait_and_print).start()
"""
    kernel.run(cell)
    (tmp_path / "go").touch()
    assert "from the thread" in next_output(kernel, "stream")["content"]["text"]


def test_cells_of_the_outer_kernel_run_there(kernel):
    assert kernel.text("%%outer\nimport sys\nprint(sys.version_info >= (3, 12))") == "True\n"


def test_silent_requests_of_frontends_stay_in_the_outer_kernel(kernel):
    request = kernel.client.execute(
        "", silent=True, user_expressions={"newer": "__import__('sys').version_info[:2] >= (3, 12)"}
    )
    assert kernel.reply_to(request)["user_expressions"]["newer"]["data"]["text/plain"] == "True"


def test_dead_process_is_reported_and_the_next_cell_starts_another(fresh_kernel):
    fresh_kernel.text(BRIDGE.FIRST_CELL)
    old = inner_process(fresh_kernel).pid
    fresh_kernel.run("lost = 1")
    reply, outputs = fresh_kernel.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert (reply["status"], reply["ename"]) == ("error", "KernelDiedError")
    assert (
        "was killed by SIGKILL" in reply["evalue"] and "run the notebook again from its first cell" in reply["evalue"]
    )
    assert len(outputs) == 1 and len(outputs[0][1]["traceback"]) == 1
    assert "answers in a new process" in fresh_kernel.text("print(DATA)")
    assert inner_process(fresh_kernel).pid != old
    assert fresh_kernel.run("lost")[0]["ename"] == "NameError"


def test_crash_shows_where_it_happened(fresh_kernel):
    fresh_kernel.text(BRIDGE.FIRST_CELL)
    reply, _ = fresh_kernel.run("import ctypes\nctypes.string_at(0)")
    assert "was killed by SIGSEGV" in reply["evalue"] and "string_at" in reply["evalue"]


def test_exit_of_the_inner_kernel_is_reported(fresh_kernel):
    fresh_kernel.text(BRIDGE.FIRST_CELL)
    reply, _ = fresh_kernel.run("import os\nos._exit(3)")
    assert "exited with status 3" in reply["evalue"]


@pytest.mark.parametrize("end", ["shutdown", "restart", "kill"])
def test_no_process_is_left_behind(fresh_kernel, end):
    fresh_kernel.text(BRIDGE.FIRST_CELL)
    inner = inner_process(fresh_kernel)
    folder = fresh_kernel.value("__import__('os').environ['IPYTHONDIR']")
    if end == "kill":
        os.kill(fresh_kernel.manager.provisioner.pid, signal.SIGKILL)
    elif end == "restart":
        fresh_kernel.manager.restart_kernel()
    else:
        fresh_kernel.manager.shutdown_kernel()
    inner.wait(timeout=TIMEOUT)
    assert end == "kill" or not os.path.exists(os.path.dirname(folder))


def test_missing_packages_are_reported_in_one_sentence(outer_python, tmp_path):
    for python, reason in (
        ("/nowhere/python", "'/nowhere/python', which does not have a usable Python 3.11"),
        (outer_python, "does not have Python 3.11"),
    ):
        kernel = OuterKernel(outer_python, tmp_path, RLDS2REVERB_PYTHON=python)
        try:
            reply, _ = kernel.run(BRIDGE.FIRST_CELL)
            assert reply["ename"] == "BridgeError" and reason in reply["evalue"]
            assert len(reply["traceback"]) == 1
            assert kernel.text("print('still here')") == "still here\n"
        finally:
            kernel.close()


def test_first_cell_fetches_the_module_and_clones_the_repository(outer_python, tmp_path):
    repository, content = tmp_path / "repository", tmp_path / "content"
    content.mkdir()
    (repository / "tests/data/d4rl").mkdir(parents=True)
    (repository / "tests/data/d4rl/file").write_text("cloned")
    author = ("-c", "user.name=test", "-c", "user.email=test@localhost")
    for command in (["init", "-q", "-b", BRIDGE.BRANCH], ["add", "."], [*author, "commit", "-q", "-m", "Data"]):
        subprocess.run(["git", *command], cwd=repository, check=True)
    variables = {
        "PYTHONPATH": "",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"{BRIDGE.REPOSITORY}.git",
    }
    kernel = OuterKernel(outer_python, content, **variables)
    try:
        reply, _ = kernel.run(BRIDGE.FIRST_CELL.replace(BRIDGE._RAW, NOTEBOOKS.as_uri()))
        assert reply["status"] == "ok", reply
        assert kernel.text("print((DATA / 'd4rl/file').read_text())") == "cloned\n"
        assert (content / "kernel_bridge.py").is_file()
        assert kernel.text(BRIDGE.FIRST_CELL).startswith("Python 3.1")  # The module is there now.
    finally:
        kernel.close()
