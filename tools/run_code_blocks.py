"""Executes the Python blocks of Markdown files and notebooks, one fresh interpreter for each file.

The blocks of a file run in order and share their names, as a reader would type them.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plain_compilation import environment

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks_of(path: Path) -> list[str]:
    """The Python code of a Markdown file, or of the code cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return BLOCK.findall(text)
    cells = json.loads(text)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(path: Path, variables: dict[str, str]) -> tuple[bool, str]:
    """Whether the blocks of a file run through, and what they print."""
    blocks = blocks_of(path)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "blocks.py"
        script.write_text("\n".join(blocks), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", str(script)],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    failed = done.returncode != 0
    word = f"{'failed' if failed else 'ok'}: {path}, {len(blocks)} blocks"
    return not failed, f"{done.stdout}{word}"


def main(paths: list[str]) -> int:
    """Run every file's blocks, one file on each core at a time; 1 if any file fails, else 0."""
    with (
        tempfile.TemporaryDirectory() as compiled,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        variables = {**os.environ, "MPLBACKEND": "Agg", **environment(compiled)}
        well = True
        for fine, said in pool.map(lambda path: run(Path(path), variables), paths):
            print(said, flush=True)
            well &= fine
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
