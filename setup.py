"""Packaging: the core and the layers are sibling directories, mapped into one package."""

import sys
from pathlib import Path

from setuptools import setup

if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    raise SystemExit(
        f"rlds2reverb requires Python 3.10 to 3.13, got {sys.version_info[0]}.{sys.version_info[1]}; "
        "run 'python3.13 -m pip install .' in the checkout."
    )

#: With dm-reverb, which has wheels for these versions only, and loads with TensorFlow 2.14 and 2.15 only.
WITH_REVERB = 'python_version < "3.12"'
WITHOUT_REVERB = 'python_version >= "3.12"'


def only(marker, *requirements):
    """Returns the requirements with a marker for some versions of Python."""
    return [f"{requirement}; {marker}" for requirement in requirements]


# TF-Agents 0.19.0 requires exact versions of gym, pygame and typing-extensions that Python 3.12 and its TensorFlow
# reject. There it is installed without its requirements, of which it needs the following.
TF_AGENTS = [
    *only(WITH_REVERB, "tensorflow==2.15.1", "tf-agents==0.19.0", "numpy<2"),
    *only(WITHOUT_REVERB, "tensorflow>=2.19,<2.22", "tf-keras>=2.19,<2.22", "tensorflow-probability>=0.25,<0.26"),
    *only(WITHOUT_REVERB, "tensorboard", "gym==0.26.2", "gin-config", "pillow", "pygame>=2.6", "six", "wrapt"),
]

# Minari downloads with the extra "hf". Install it together with the rest: on its own it upgrades typing-extensions.
# The versions that accept the typing-extensions 4.5.0 that TF-Agents requires; pip tries hundreds before it finds them.
MINARI = ["minari[hdf5,arrow,hf]==0.5.3", *only(WITH_REVERB, "anyio<4", "typer<0.29")]

# Videos of LeRobot datasets. Everything else is read with the pyarrow and pillow that the package requires anyway.
LEROBOT = ["av>=14,<19"]

# Replay buffers of Diffusion Policy. zarr 3, which reads Zarr's format 3, requires typing-extensions 4.9.
ZARR = [*only(WITH_REVERB, "zarr>=2.16,<3", "numcodecs<0.16"), *only(WITHOUT_REVERB, "zarr>=3")]

# Bags of ROS 2 and other MCAP files. rosbags contains the definitions of ROS 2's own messages.
MCAP = ["mcap>=1.2", "mcap-protobuf-support>=0.5.3", "rosbags>=0.10.10"]

# Environments for evaluation. MuJoCo is pinned as well, because returns differ slightly between its versions.
EVAL = ["gymnasium[mujoco]>=1,<2", "mujoco==3.3.7"]

# The DeepMind Control Suite.
DM_CONTROL = [*EVAL, "dm_control==1.0.34"]

# OGBench's environments, and the rewards of its single-task datasets.
OGBENCH = [*DM_CONTROL, "ogbench>=1.2,<2"]

# Experiment trackers: versions that accept the typing-extensions 4.5.0 that TF-Agents requires.
WANDB = [*only(WITH_REVERB, "wandb>=0.18,<=0.19.11", "pydantic<2"), *only(WITHOUT_REVERB, "wandb>=0.18")]
MLFLOW = [*only(WITH_REVERB, "mlflow-skinny>=2.9,<3.6", "pydantic<2"), *only(WITHOUT_REVERB, "mlflow-skinny>=2.9")]

# Conversion on Apache Beam. Install it together with the rest: on its own it upgrades protobuf.
BEAM = ["apache-beam==2.77.0"]

# Training on a Ray cluster. Ray rejects the pydantic 1 that wandb and mlflow require here.
RAY = ["ray==2.60.0"]

# Policies as ONNX files. ONNX 1.18 and later require a later typing-extensions than TF-Agents.
ONNX = [
    "onnxruntime>=1.17",
    "tf2onnx>=1.17,<2",
    *only(WITH_REVERB, "onnx>=1.16,<1.18"),
    *only(WITHOUT_REVERB, "onnx>=1.18"),
]

# Films of policies.
FILM = [*EVAL, "imageio-ffmpeg>=0.5"]

# The documentation site: versions that accept the typing-extensions 4.5.0 that TF-Agents requires.
DOCS = ["sphinx>=8,<8.2", "furo", "myst-nb>=1.2,<2", "sphinx-click", "sphinx-copybutton", "sphinx-design"]
DOCS += only(WITH_REVERB, "ipython<8.22")

# The notebooks, run by a kernel in this environment. Tests run them without a frontend.
NOTEBOOKS = [*MINARI, *EVAL, "ipykernel>=6.29,<8", *only(WITH_REVERB, "ipython<8.22")]
NOTEBOOK_TESTS = ["jupyter_client>=8", "nbclient>=0.10", "nbformat>=5.10"]

setup(
    name="rlds2reverb",
    version="0.1.0",
    description="Converts offline RL datasets (D4RL, RLDS, Minari) into Reverb tables, and trains agents from them.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    # setuptools does not find packages through package_dir, so each one is listed here.
    packages=[
        "rlds2reverb",
        "rlds2reverb.types",
        "rlds2reverb.system",
        "rlds2reverb.libraries",
        "rlds2reverb.policies",
        "rlds2reverb.datasets",
        "rlds2reverb.datasets.mapping",
        "rlds2reverb.datasets.readers",
        "rlds2reverb.datasets.writers",
        "rlds2reverb.datasets.checks",
        "rlds2reverb.datasets.steps",
        "rlds2reverb.reverb",
        "rlds2reverb.reverb.wire",
        "rlds2reverb.reverb.process",
        "rlds2reverb.reverb.client",
        "rlds2reverb.reverb.server",
        "rlds2reverb.reverb.writing",
        "rlds2reverb.reverb.sampling",
        "rlds2reverb.replay",
        "rlds2reverb.beam",
        "rlds2reverb.adders",
        "rlds2reverb.learners",
        "rlds2reverb.learners.hooks",
        "rlds2reverb.learners.agents",
        "rlds2reverb.envs",
        "rlds2reverb.training",
        "rlds2reverb.training.reports",
        "rlds2reverb.training.cluster",
        "rlds2reverb.cli",
    ],
    package_dir={
        "rlds2reverb": "rlds2reverb",
        "rlds2reverb.adders": "adders",
        "rlds2reverb.learners": "learners",
        "rlds2reverb.envs": "envs",
        "rlds2reverb.training": "training",
        "rlds2reverb.cli": "cli",
        "rlds2reverb.training.reports": "training/reports",
        "rlds2reverb.training.cluster": "training/cluster",
    },
    package_data={
        "rlds2reverb": ["py.typed"],
        "rlds2reverb.system": ["replacements.ini"],
        "": ["*.pyi"],
        "rlds2reverb.reverb.process": ["requirements.txt"],
        "rlds2reverb.datasets.readers": ["d4rl_files.txt"],
        "rlds2reverb.learners": ["algorithms.ini"],
        "rlds2reverb.training": ["presets.ini"],
        "rlds2reverb.training.reports": ["assets/*"],
    },
    install_requires=[
        *TF_AGENTS,
        'dm-reverb==0.14.0; python_version < "3.12" and sys_platform == "linux" and platform_machine == "x86_64"',
        *only(WITH_REVERB, "rlds==0.1.8"),  # imports dm-reverb
        "tensorflow-datasets>=4.9.7,<4.10",
        # Two traps that `pip check` does not detect: with a tensorflow-metadata that requires protobuf 5 (TF 2.15
        # requires 4.25), TFDS imports as an empty module; without importlib_resources, it cannot prepare a dataset.
        *only(WITH_REVERB, "tensorflow-metadata>=1.15,<1.18"),
        "importlib_resources",
        "fsspec",  # datasets at addresses
        # TFDS imports it, and 26 fails with the NumPy that TF 2.15 requires, without declaring it.
        *only(WITH_REVERB, "pyarrow<26"),
        *only(WITHOUT_REVERB, "pyarrow"),
        "dm-tree",
        "h5py",
        "deflate>=0.9",  # libdeflate, which reads the gzip chunks of HDF5 files and compresses images of TFDS
        "gymnasium>=1,<2",  # spaces, which describe the bounds of actions and observations
        # For the bulk writer: messages, checksums and compression.
        "grpcio",
        "protobuf",
        "google-crc32c",
        "xxhash",
        "cramjam>=2.8",
        "absl-py",
        "cloudpickle",  # sends planned runs to worker processes
        "click>=8.1,<9",
        "rich>=13,<15",
        "matplotlib>=3.8,<4",  # learning curves and reports
        "pyyaml",  # mappings
        "lazy-loader>=0.4",  # imports names on first use
    ],
    extras_require={
        "minari": MINARI,
        "lerobot": LEROBOT,
        "zarr": ZARR,
        "mcap": MCAP,
        "eval": EVAL,
        "beam": BEAM,
        "ray": RAY,
        "dm-control": DM_CONTROL,
        "ogbench": OGBENCH,
        "wandb": WANDB,
        "mlflow": MLFLOW,
        "film": FILM,
        "onnx": ONNX,
        "docs": DOCS,
        "notebooks": NOTEBOOKS,
        "dev": [
            "pytest>=8,<9",
            "pytest-timeout",
            "pytest-xdist",
            "pytest-randomly",
            "portpicker",
            "hypothesis",
            "mypy==1.10.1",
            "pyright==1.1.414",
            "ruff",
            "build",
            "setuptools>=64,<81",
            "wheel",
            *MINARI,
            *LEROBOT,
            *ZARR,
            *MCAP,
            *RAY,
            "check-jsonschema",  # the schemas of compose files
            "kubernetes-validate",
            *EVAL,
            *BEAM,
            *WANDB,
            *MLFLOW,
            *FILM,
            *ONNX,
            *DOCS,
            *NOTEBOOKS,
            *NOTEBOOK_TESTS,
        ],
    },
    entry_points={"console_scripts": ["rlds2reverb=rlds2reverb.cli:main", "r2r=rlds2reverb.cli:main"]},
    zip_safe=False,
)
