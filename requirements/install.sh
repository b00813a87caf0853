#!/usr/bin/env bash
# install.sh PYTHON VENV: creates VENV from the lock file for this Python, and installs the project in editable mode.
# install.sh --dev VENV: adds what tests, linters and the documentation need, in the versions of py3xx-dev.lock.
# install.sh --link VENV: installs only the project, after files were added or removed. The editable mode is "strict",
# a tree of links, because type checkers and editors do not follow the other modes.
set -euo pipefail
python=$1 venv=$2
root=$(cd "$(dirname "$0")/.." && pwd)
uv=$(command -v uv || command -v "$venv/bin/uv" || true)
install_lock() {
	# The lock files are complete, and leave out requirements of TensorFlow and extras that do not exist.
	local options=(--quiet --no-deps --require-hashes -r "$1")
	if [ -n "$uv" ]; then
		"$uv" pip install --python "$venv/bin/python" "${options[@]}"
	else
		"$venv/bin/python" -m pip install --disable-pip-version-check --no-compile "${options[@]}"
	fi
	# 0.2 GB of C++ headers and of PyArrow's own tests, which Python does not use.
	rm -rf "$venv"/lib/python3.*/site-packages/{tensorflow/include,pyarrow/include,pyarrow/tests}
}
link() {
	local strict=(--no-deps --no-build-isolation --config-settings editable_mode=strict -e "$root")
	rm -rf "$root"/build/__editable__.*
	if [ -n "$uv" ]; then
		"$uv" pip install --quiet --python "$venv/bin/python" "${strict[@]}"
	else
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${strict[@]}"
	fi
}
if [ "$python" = --link ]; then
	link
	exit
fi
[ "$python" = --dev ] && interpreter="$venv/bin/python" || interpreter=$python
version=$("$interpreter" -c 'import sys; print("%d%d" % sys.version_info[:2])')
if [ "$python" = --dev ]; then
	echo "adding the packages of the tests to $venv (1.5 GB more) ..." >&2
	install_lock "$root/requirements/py$version-dev.lock"
	exit
fi
lock="$root/requirements/py$version.lock"
if [ ! -f "$lock" ]; then
	echo "there is no lock file for Python $version; use Python 3.10 to 3.13: make install PYTHON=python3.13" >&2
	exit 1
fi

rm -rf "$venv"
echo "installing into $venv (about 1.7 GB; with uv 10 to 30 s, with pip 70 to 90 s) ..." >&2
"$python" -m venv "$venv"
uv=$(command -v uv || true)
if [ -z "$uv" ] && "$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv 2>/dev/null; then
	uv="$venv/bin/uv"
fi
install_lock "$lock"
link
# Without the bytecode of these modules, TensorFlow starts seconds later if Python may not write to the venv.
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c \
	"import gymnasium, minari, tensorflow_datasets, rlds2reverb.training.training" 2>/dev/null || true
echo "done; activate the environment with: source $venv/bin/activate" >&2
