"""The files in `deploy/`: their schemas, their commands, and their network policies."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from rlds2reverb.cli.cluster import train

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[1] / "deploy"
pytestmark = pytest.mark.skipif(not DEPLOY.is_dir(), reason="not in the wheel")


def load(name):
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


@pytest.mark.slow
def test_compose_file_matches_the_schema():
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, DEPLOY / "compose/compose.yaml"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_publishes_no_port_and_has_no_way_out():
    compose = load("compose/compose.yaml")
    assert compose["networks"]["cluster"]["internal"] is True
    for service in compose["services"].values():
        assert service["networks"] == ["cluster"] and "ports" not in service


def find_pods():
    spec = load("kuberay/training.yaml")["spec"]["rayClusterSpec"]
    return [group["template"] for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def test_kubernetes_objects_match_the_schema():
    validator = pytest.importorskip("kubernetes_validate")
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", **pod["metadata"]}, "spec": pod["spec"]}
        for pod in find_pods()
    ]
    for document in (load("kuberay/network-policy.yaml"), *pods):
        validator.validate(document, validator.latest_version(), strict=True)


def test_network_policy_selects_all_pods_and_admits_only_them_and_the_operator():
    policy = load("kuberay/network-policy.yaml")["spec"]
    labels = policy["podSelector"]["matchLabels"]
    assert all(pod["metadata"]["labels"].items() >= labels.items() for pod in find_pods())
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    sources = [source["podSelector"]["matchLabels"] for rule in policy["ingress"] for source in rule["from"]]
    assert sources == [labels, {"app.kubernetes.io/name": "kuberay-operator"}]


def test_ray_versions_are_the_pinned_one():
    setup = DEPLOY.with_name("setup.py").read_text(encoding="utf-8")
    pinned = re.search(r"ray==([\d.]+)", setup)[1]
    assert load("kuberay/training.yaml")["spec"]["rayClusterSpec"]["rayVersion"] == pinned


def test_slurm_script_is_valid_bash():
    subprocess.run(["bash", "-n", DEPLOY / "slurm/train.sbatch"], check=True, timeout=10)


@pytest.mark.parametrize("name", ["kuberay", "compose", "slurm"])
def test_commands_have_valid_options(name):
    commands = {
        "kuberay": lambda: load("kuberay/training.yaml")["spec"]["entrypoint"],
        "compose": lambda: load("compose/compose.yaml")["services"]["train"]["command"],
        "slurm": lambda: (DEPLOY / "slurm/train.sbatch").read_text(encoding="utf-8").replace("\\\n", " "),
    }
    text = commands[name]().rpartition("rlds2reverb cluster train")[2]
    arguments = shlex.split(text.replace('"', " "))
    assert {"--run-dir", "--algo", "--address"} <= set(arguments)
    with click.Context(train, info_name="train"):
        train.make_context("train", arguments, resilient_parsing=True)
