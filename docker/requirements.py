"""Write what the image installs besides torch and torchvision: ``requirements.py PYPROJECT CONSTRAINTS``.

Into this folder: ``requirements.txt``, and ``other-constraints.txt`` without the versions of what comes with torch.
"""

import re
import sys
import tomllib
from pathlib import Path

# What the image's build arguments choose, and what only CUDA builds bring along, in versions of their own.
OF_TORCH = re.compile(r"(torch|torchvision|triton)\b|nvidia-|cuda-")


def others(lines: list[str]) -> str:
    """Return the lines that are not of torch."""
    return "".join(f"{line}\n" for line in lines if not OF_TORCH.match(line))


if __name__ == "__main__":
    project, constraints = map(Path, sys.argv[1:])
    declared = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    # Clients in containers train with torch, and the audit attacks.
    wanted = [*declared["dependencies"], *declared["optional-dependencies"]["audit"]]
    Path("requirements.txt").write_text(others(wanted), encoding="utf-8")
    Path("other-constraints.txt").write_text(others(constraints.read_text(encoding="utf-8").splitlines()))
