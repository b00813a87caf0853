"""`rlds2reverb doctor`; broken installations are simulated by modules that come first on the path."""

import json
import os
import subprocess
import sys

import internals
import pytest

from rlds2reverb.cli import doctor as doctor_module, run
from rlds2reverb.errors import ServerUnavailableError
from rlds2reverb.reverb.server import interpreter


def doctor(capsys, *arguments):
    code = run(["doctor", "--json", *arguments])
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] == (code == 0)
    return code, {finding["name"]: finding for finding in report["findings"]}


def run_doctor(folder, *arguments):
    """Runs the command in a process in which the modules and distributions of a folder come first."""
    return subprocess.run(
        [sys.executable, "-m", "rlds2reverb.cli", "doctor", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


@pytest.fixture
def versions(monkeypatch):
    """Versions that replace those of installed packages, by name; `pip check`, which takes seconds, is not run."""
    versions, real = {}, getattr(doctor_module, internals.FIND_VERSION)
    monkeypatch.setattr(doctor_module, internals.CHECK_REQUIREMENTS, lambda: iter(()))
    monkeypatch.setattr(doctor_module, internals.FIND_VERSION, lambda name: versions.get(name, real(name)))
    return versions


@pytest.mark.slow
def test_doctor_finds_no_error_in_this_installation(capsys):
    code, findings = doctor(capsys)
    assert code == 0, findings
    python, _ = interpreter.find_server_python()
    assert findings[f"Reverb server on {python}"]["result"] == "wrote an item and read it back"
    assert findings["requirements"]["result"] == "satisfied"
    assert {"h5py", "TensorFlow", "TF-Agents", "TFDS"} <= set(findings)


def test_both_variants_of_tensorflow_are_reported(capsys, versions):
    versions |= {"tensorflow": "2.15.1", "tensorflow-cpu": "2.15.1"}
    code, findings = doctor(capsys, "--quick")
    both = findings["tensorflow and tensorflow-cpu"]
    assert code == 1 and both["state"] == "error"
    assert both["fix"].startswith("pip uninstall tensorflow tensorflow-cpu")


def test_packages_that_do_not_work_together_are_reported(capsys, versions):
    versions |= {"tensorflow": "2.15.1", "tensorflow-cpu": None, "numpy": "2.4.1", "triton": "3.8.0"}
    code, findings = doctor(capsys, "--quick")
    numpy, torch = findings["numpy and tensorflow"], findings["torch and tensorflow"]
    assert code == 1 and numpy["state"] == "error" and numpy["fix"] == 'pip install "numpy<2"'
    assert torch["state"] == "info" and "`import triton`" in torch["fix"]
    versions |= {"tensorflow": "2.20.0", "triton": None}
    code, findings = doctor(capsys, "--quick")
    assert code == 0 and not {"numpy and tensorflow", "torch and tensorflow"} & findings.keys()


def test_a_missing_extra_is_an_info_with_a_fix(capsys, versions):
    versions["mujoco"] = None
    code, findings = doctor(capsys, "--quick")
    assert code == 0 and findings["gymnasium (optional)"]["result"] == "1.3.0"
    mujoco = findings["mujoco (optional)"]
    assert mujoco["state"] == "info" and mujoco["fix"].endswith("mujoco==3.3.7")
    assert mujoco["result"] == "not installed; needed to evaluate policies"


@pytest.mark.slow
def test_violated_requirements_are_errors_only_for_this_package(tmp_path):
    states = {"rlds2reverb": "error", "plugin": "info"}
    for name in states:
        info = tmp_path / f"{name}-9.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9\nRequires-Dist: absent\n")
    process = run_doctor(tmp_path, "--quick")
    for name, state in states.items():
        assert (
            f"{state:<5}  requirements: {name} 9 requires absent, which is not installed.\n       pip install --no-deps"
        ) in process.stdout
    assert process.returncode == 1 and "\n1 error found; run the commands above\n" in process.stdout


def answer(monkeypatch, returncode=0, stdout="", stderr=""):
    """Makes all programs that the command starts end like this; returns the arguments of their calls."""
    calls = []

    def start(command, **options):
        assert options["capture_output"] and options["text"]
        calls.append((command, options))
        return subprocess.CompletedProcess(command, returncode, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", start)
    return calls


def test_each_violated_requirement_that_the_lock_files_satisfy_is_found(capsys, monkeypatch):
    expected = ["tensorflow-text 2.15 requires libclang, which is not installed."]
    violated = [
        "rlds2reverb 9 requires absent, which is not installed.",
        "plugin 9 has requirement x<3, but you have x 3.",
    ]
    calls = answer(monkeypatch, 1, "\n".join([*expected, *violated]))
    assert run(["doctor", "--quick"]) == 1
    printed = capsys.readouterr().out
    assert f"error  requirements: {violated[0]}\n       pip install --no-deps" in printed
    assert f"info   requirements: {violated[1]}" in printed and "libclang" not in printed
    assert "\n1 error found; run the commands above\n" in printed and "satisfied" not in printed
    assert [command[1:] for command, _ in calls] == [["-m", "pip", "check"]]
    for code, output in ((1, expected[0]), (0, "No broken requirements found."), (0, violated[0])):
        answer(monkeypatch, code, output)
        code, findings = doctor(capsys, "--quick")
        assert (code, findings["requirements"]["result"]) == (0, "satisfied")
    assert run(["doctor", "--quick"]) == 0
    assert "no errors found (libraries were not loaded; leave out --quick to try them)" in capsys.readouterr().out


def test_programs_that_fail_are_found_with_their_last_line(capsys, versions, monkeypatch):
    for code, result in ((-6, "crashed (SIGABRT): it is odd"), (3, "exited with code 3: it is odd")):
        calls = answer(monkeypatch, code, "text\n", "first\nit is odd\n")
        exit_code, findings = doctor(capsys, "--timeout", "7")
        assert exit_code == 1 and findings["TensorFlow"]["result"] == findings["h5py"]["result"] == result
        assert findings["TensorFlow"]["fix"].startswith("pip install --no-deps -r requirements/py3")
        assert all(options["timeout"] == 7 and options["env"]["PYTHONSAFEPATH"] == "1" for _, options in calls)
    answer(monkeypatch, 0, "Loading\n2.15 with 2 cores\n", "a warning\n")
    exit_code, findings = doctor(capsys)
    assert (exit_code, findings["TensorFlow"]["result"]) == (0, "2.15 with 2 cores")


def test_server_of_the_doctor_returns_the_written_item(capsys):
    doctor_module.try_server()
    assert capsys.readouterr().out == "wrote an item and read it back\n"


BROKEN_LIBRARIES = {
    "numpy 2": ("numpy", "raise AttributeError('_ARRAY_API not found')", "AttributeError: _ARRAY_API not found"),
    "a crash of native code": ("tensorflow", "import os; os.abort()", "crashed (SIGABRT)"),
    "no answer": ("tensorflow", "import signal; signal.pause()", "took longer than 5 s"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN_LIBRARIES)
def test_the_report_is_complete_when_a_library_is_broken(name, tmp_path):
    module, source, error = BROKEN_LIBRARIES[name]
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text(source)
    process = run_doctor(tmp_path, "--json", "--timeout", "5" if name == "no answer" else "60")
    findings = {finding["name"]: finding for finding in json.loads(process.stdout)["findings"]}
    assert process.returncode == 1 and process.stderr == ""
    assert {"python", "requirements", "h5py", "TF-Agents", "TFDS"} <= set(findings)
    assert any(name.startswith("Reverb server on ") for name in findings)
    assert findings["TensorFlow"]["state"] == "error" and error in findings["TensorFlow"]["result"]
    assert findings["TensorFlow"]["fix"].startswith("pip install --no-deps -r requirements/py3")


def test_a_missing_environment_for_servers_is_reported(monkeypatch):
    def raise_error():
        raise ServerUnavailableError("no environment; install uv")

    monkeypatch.setattr(interpreter, "find_server_python", raise_error)
    finding = doctor_module.check_server(10.0)
    assert (finding.state, finding.result) == ("error", "no environment; install uv")


def test_other_commands_suggest_the_doctor_after_an_import_error(tmp_path):
    (tmp_path / "h5py.py").write_text("raise ImportError('h5py is compiled for numpy 2')")
    process = subprocess.run(
        [sys.executable, "-m", "rlds2reverb.cli", "inspect", "x.hdf5"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.returncode == 1
    assert process.stderr.startswith("error: h5py is compiled for numpy 2; run 'rlds2reverb doctor'")
