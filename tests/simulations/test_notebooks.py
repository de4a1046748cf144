"""Every notebook runs as it stands in the repository, where it is kept without outputs."""

import json
import re
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "simulations" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_kept_without_outputs_and_paths_of_a_machine(file):
    text = file.read_text()
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert not re.search(r"/(home|Users|tmp|root|work)/", text)
    assert json.loads(text)["metadata"].keys() == {"kernelspec", "language_info"}


def outputs_of(notebook):
    """What cells show, by kind."""
    shown = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for kind, data in output.get("data", {}).items():
                shown.setdefault(kind, []).append(data)
    return shown


@pytest.mark.flower
@pytest.mark.slow
def test_the_audit_runs_and_shows_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(ROOT / "simulations" / "notebooks" / "audit.ipynb", as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.create_kernel_manager()
    # The kernel is this very Python, whatever kernels this machine knows.
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client.km._kernel_spec = KernelSpec(argv=command, language="python")
    client.execute()

    pages = outputs_of(notebook)["text/html"]
    table, card, report, frame, pivot = pages
    assert table.startswith("<table>")
    assert "<code>membership.tpr-at-1pct-fpr</code>" in table
    assert "corrected" in card
    assert report.startswith("<iframe")
    assert "sandbox" in report
    assert "membership.tpr-at-1pct-fpr" in frame
    assert "individual" in pivot
    assert "aggregate" in pivot
    assert len(outputs_of(notebook)["image/png"]) == 1
