"""`rlds2reverb doctor`; broken installations are simulated by modules that come first on the path."""

import json
import os
import subprocess
import sys

import pytest
from properties import mark_slow_except
from rlds2reverb.cli import pins, run
from rlds2reverb.cli.doctor import _TRIALS

#: Whether dm-reverb has wheels for this Python.
WITH_REVERB = sys.version_info < (3, 12)


def doctor(capsys, *arguments):
    code = run(["doctor", "--json", *arguments])
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] == (code == 0)
    return code, {finding["name"]: finding for finding in report["findings"]}


def distribution(folder, name, version, *requires):
    """Writes the metadata of an installed distribution, without its files."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {other}" for other in requires)]
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines]) + "\n")


@pytest.mark.slow
def test_doctor_finds_no_problem_in_this_installation(capsys):
    code, findings = doctor(capsys)
    assert code == 0, findings
    assert not WITH_REVERB or findings["Reverb works"]["result"] == "wrote an item to a server and read it back"
    assert {name for name, _ in _TRIALS.values()} <= set(findings)
    assert "without authentication" in findings["exposure"]["result"] and findings["exposure"]["fix"]


def test_violated_requirements_are_reported_with_a_fix(capsys, monkeypatch):
    real = pins.installed_version
    versions = {"tensorflow-datasets": "4.10.0", "dm-tree": None}
    monkeypatch.setattr(pins, "installed_version", lambda name: versions.get(name, real(name)))
    code, findings = doctor(capsys, "--quick")
    broken = {name: finding["fix"] for name, finding in findings.items() if finding["state"] == "broken"}
    assert code == 1
    assert broken == {
        "tensorflow-datasets": "pip install 'tensorflow-datasets<4.10,>=4.9.7'",
        "dm-tree": "pip install 'dm-tree'",
    }
    monkeypatch.setattr(
        pins, "installed_version", lambda name: real(name) or ("2.15.1" if name.startswith("tensorflow") else None)
    )
    both = doctor(capsys, "--quick")[1]["tensorflow and tensorflow-cpu"]
    assert both["state"] == "broken" and both["fix"].startswith("pip uninstall tensorflow tensorflow-cpu")


def test_a_missing_extra_is_a_note_with_a_fix(capsys, monkeypatch):
    assert doctor(capsys, "--quick")[1]["evaluation (optional)"]["result"].startswith("gymnasium 1.3.0, mujoco 3.")
    real = pins.installed_version
    monkeypatch.setattr(pins, "installed_version", lambda name: None if name == "mujoco" else real(name))
    code, findings = doctor(capsys, "--quick")
    evaluation = findings["evaluation (optional)"]
    assert code == 0 and evaluation["state"] == "note" and evaluation["fix"].startswith("pip install '.[eval]'")
    assert evaluation["result"].startswith("mujoco not installed")


@pytest.mark.skipif(not WITH_REVERB, reason="TF-Agents is installed without its requirements")
def test_violated_requirements_of_dependencies_are_reported(capsys, monkeypatch, tmp_path):
    distribution(tmp_path, "typing_extensions", "4.12.2")
    distribution(tmp_path, "ml_dtypes", "0.5.4")  # The version that current JAX releases install.
    monkeypatch.syspath_prepend(tmp_path)
    code, findings = doctor(capsys, "--quick")
    broken = {name: finding for name, finding in findings.items() if finding["state"] == "broken"}
    assert code == 1 and {"typing-extensions", "ml-dtypes"} == set(broken)
    assert broken["typing-extensions"]["result"] == "4.12.2; tf-agents 0.19.0 requires ==4.5.0"
    assert findings["indirect requirements"]["result"].startswith("2 of ")
    assert broken["typing-extensions"]["fix"] == "pip install 'typing-extensions==4.5.0'"


def test_extras_and_markers_are_followed_as_by_an_installer(monkeypatch, tmp_path):
    distribution(tmp_path, "root", "1", "left[more]", "right; python_version < '3'", "also; extra == 'given'", "?!")
    distribution(tmp_path, "left", "2", "deep>=5; extra == 'more'", "never; extra == 'other'", "root")
    distribution(tmp_path, "deep", "4")
    distribution(tmp_path, "also", "1")
    monkeypatch.syspath_prepend(tmp_path)
    requirements = list(pins.iterate_pins("root", extras=frozenset({"given"})))
    assert [(pin.name, pin.specifier, pin.version, pin.is_satisfied) for pin in requirements] == [
        ("left", "", "2", True),
        ("also", "", "1", True),
        ("deep", ">=5", "4", False),
        ("root", "", "1", True),
    ]
    assert requirements[2].required_by == "left 2"


BROKEN_LIBRARIES = {
    "numpy 2": ("numpy", "raise AttributeError('_ARRAY_API not found')", "AttributeError: _ARRAY_API not found"),
    "a crash of native code": ("tensorflow", "import os; os.abort()", "crashed (SIGABRT)"),
    "no answer": ("tensorflow", "import signal; signal.pause()", "took longer than 3 s"),
}


@pytest.mark.parametrize("name", ["numpy 2", *mark_slow_except((), list(BROKEN_LIBRARIES)[1:])])
def test_the_report_is_complete_when_a_library_is_broken(name, tmp_path):
    module, source, error = BROKEN_LIBRARIES[name]
    timeout = "3" if name == "no answer" else "60"
    (tmp_path / module).mkdir()
    (tmp_path / module / "__init__.py").write_text(source)
    process = subprocess.run(
        [sys.executable, "-m", "rlds2reverb.cli", "doctor", "--json", "--timeout", timeout],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    findings = {finding["name"]: finding for finding in json.loads(process.stdout)["findings"]}
    assert process.returncode == 1 and process.stderr == ""
    assert {name for name, _ in _TRIALS.values()} | {"python", "indirect requirements", "exposure"} <= set(findings)
    assert error in findings["TensorFlow works"]["result"]
    tensorflow = "tensorflow-cpu" if pins.installed_version("tensorflow-cpu") else "tensorflow"
    version = "==2.15.1" if WITH_REVERB else ">=2.19"
    assert f"'{tensorflow}{version}" in findings["TensorFlow works"]["fix"]
    assert not WITH_REVERB or findings["Reverb works"]["state"] == "broken"


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


def test_findings_are_printed_with_their_fixes(capsys, monkeypatch):
    real = pins.installed_version
    monkeypatch.setattr(pins, "installed_version", lambda name: None if name == "dm-tree" else real(name))
    code = run(["doctor", "--quick"])
    out = capsys.readouterr().out
    assert code == 1
    assert "broken  dm-tree: not installed; rlds2reverb 0.1.0 requires it\n        pip install 'dm-tree'\n" in out
    assert "in the checkout: pip install --no-deps -r requirements/py3" in out
