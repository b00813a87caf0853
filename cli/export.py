"""`rlds2reverb export`: writes the policy of a training run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rlds2reverb.system.text import format_bytes

from . import output
from .declarations import EXISTING_DIRECTORY, PATH, option
from .options import require_unused
from .output import json_option
from .quiet import import_quietly, status


@click.command()
@click.argument("folder", metavar="RUN", type=EXISTING_DIRECTORY)
@option("--out", required=True, metavar="PATH", type=PATH, help="File to create, or directory for a SavedModel.")
@option(
    "--format",
    type=click.Choice(["savedmodel", "onnx", "tflite"]),
    show_default="from the name of --out: onnx for .onnx, tflite for .tflite, savedmodel without a suffix",
    help="Format of the file; onnx requires the extra onnx (see rlds2reverb doctor).",
)
@option(
    "--policy",
    choices=["last", "best"],
    help="Policy of a training run: the last policy, or the one with the best evaluation.",
)
@json_option
def export(folder: Path, out: Path, format: Any, policy: Any, as_json: bool) -> None:
    """Write the policy of a training run as an ONNX or TFLite file, or as a SavedModel.

    \b
    Examples:
      rlds2reverb export runs/iql --out iql.onnx
      rlds2reverb export runs/iql --policy best --out iql.tflite
      rlds2reverb eval iql.onnx --env Hopper-v5

    RUN is the --run-dir of rlds2reverb train, or a directory that TF-Agents' PolicySaver wrote. The file takes
    observations as the environment returns them, in batches of any size, and returns actions in the environment's
    units. Policies of decision_transformer and of chunks also take and return their state. The file appears under its
    path when it is complete; an existing one is not replaced.
    """
    from rlds2reverb.datasets.writers.atomic_output import require_vacant
    from rlds2reverb.learners.runs import load_run
    from rlds2reverb.policies.saved_policies import is_saved_model
    from rlds2reverb.training.directories import require_one_run

    require_vacant(out)
    require_one_run(folder)
    run = None if is_saved_model(folder) else load_run(folder)
    if run is None:
        require_unused({"policy"}, "requires a training run")
    import_quietly("tensorflow")
    from rlds2reverb.learners.policy_formats import write_policy

    with status(f"writing {out}"):
        if run is None:
            write_policy(folder, out, format)
        else:
            run.export_policy(out, format=format, policy=policy)
    num_bytes = sum(path.stat().st_size for path in [out, *out.rglob("*")] if path.is_file())
    document = {"out": str(out), "size_bytes": num_bytes}
    output.print_result(document, f"wrote {out} ({format_bytes(num_bytes)})", as_json=as_json)
