#!/usr/bin/env bash
# install_test.sh PYTHON [EXTRAS ...]: installs the checkout with each documented set of extras in a new venv, in the
# newest versions that the requirements accept, and imports what the extras are for. Without uv, pip resolves them.
set -euo pipefail
python=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
uv=$(command -v uv || command -v "$root/.venv/bin/uv" || true)
# The modules that each extra provides. TFDS imports its dependencies when it is used, not when it is imported.
declare -A modules=(
	[base]="rlds2reverb.learners rlds2reverb.training rlds2reverb.training.reports gymnasium.spaces"
	[eval]="gymnasium mujoco" [minari]="minari pyarrow huggingface_hub" [lerobot]="av" [zarr]="zarr" [mcap]="mcap rosbags mcap_protobuf" [ray]="ray rlds2reverb.training.cluster"
	[film]="imageio_ffmpeg mujoco" [onnx]="onnx onnxruntime tf2onnx" [wandb]="wandb" [mlflow]="mlflow"
	[beam]="apache_beam rlds2reverb.beam" [dm-control]="dm_control.suite" [docs]="sphinx"
	[notebooks]="ipykernel minari mujoco"
)
sets=("$@")
if [ ${#sets[@]} = 0 ]; then
	sets=(base eval,minari ray,eval eval,minari lerobot zarr mcap film onnx wandb mlflow beam dm-control notebooks docs)
fi

for extras in "${sets[@]}"; do
	echo "== $extras" >&2
	venv=$work/venv
	rm -rf "$venv"
	"$python" -m venv "$venv"
	requirement="$root[$extras]"
	if [ "$extras" = base ]; then requirement=$root; fi
	if [ -n "$uv" ]; then
		install=("$uv" pip install --quiet --python "$venv/bin/python")
	else
		install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
	fi
	"${install[@]}" "$requirement"
	"${install[@]}" --no-deps tf-agents==0.19.0
	names=${modules[base]}
	for extra in ${extras//,/ }; do names+=" ${modules[$extra]}"; done
	(cd "$work" && CUDA_VISIBLE_DEVICES='' "$venv/bin/python" - $names <<-'PROGRAM'
		import importlib
		import sys

		import tensorflow_datasets as tfds

		for name in ["tf_agents.agents.tf_agent", *sys.argv[1:]]:
		    importlib.import_module(name)
		builder = tfds.testing.DummyDataset(data_dir="tfds")  # Imports what TFDS imports lazily, such as PyArrow.
		builder.download_and_prepare()
		assert len(list(builder.as_dataset(split="train"))) == 3
		PROGRAM
	)
	rm -rf "$work/tfds"
	(cd "$work" && "$venv/bin/rlds2reverb" doctor)
done
