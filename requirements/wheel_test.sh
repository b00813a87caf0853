#!/usr/bin/env bash
# wheel_test.sh PYTHON: builds the wheel, installs it in another venv without the sources, and tests it.
set -euo pipefail
python=$(realpath -s "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git -C "$root" ls-files -z --cached --others --exclude-standard | (cd "$root" && xargs -0 cp --parents -t "$work" 2>/dev/null || true)
"$python" -m build --wheel --no-isolation --outdir "$work/dist" "$work" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$python" -m venv "$work/venv"
# A .pth file makes the locked packages of the first venv importable, but not its editable install of the project.
"$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$("$work/venv/bin/python" -c \
	'import sysconfig; print(sysconfig.get_path("purelib"))')/locked.pth"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$work"/dist/*.whl
mkdir "$work/elsewhere"
cp -r "$root/tests" "$root/pyproject.toml" "$work/elsewhere/"
cd "$work/elsewhere"
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider --import-mode=importlib tests/test_installed.py tests/test_packaging.py
