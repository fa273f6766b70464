"""Serve large language models with NVIDIA Triton on a Slurm cluster."""

__version__ = "0.1.0"
