"""Our files and theirs: the 0.0.x package beside this one."""

from pathlib import Path


def nnunet_cases_path() -> Path:
    """The script that only an interpreter with nnU-Net can import."""
    return Path(__file__).with_name("nnunet_cases.py")
