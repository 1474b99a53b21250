"""Executes the Python blocks of Markdown files and notebooks, one fresh interpreter for each file.

The blocks of a file run in order and share their names, as a reader would type them.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks_of(path: Path) -> list[str]:
    """The Python code of a Markdown file, or of the code cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return BLOCK.findall(text)
    cells = json.loads(text)["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def main(paths: list[str]) -> int:
    """Run every file's blocks; 1 if any file fails, else 0."""
    failed = 0
    for path in paths:
        blocks = blocks_of(Path(path))
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "blocks.py"
            script.write_text("\n".join(blocks), encoding="utf-8")
            code = subprocess.run(
                [sys.executable, "-W", "error::RuntimeWarning", str(script)],
                cwd=folder,
                env={**os.environ, "MPLBACKEND": "Agg"},
                check=False,
            ).returncode
        failed += code != 0
        print(f"{'failed' if code else 'ok'}: {path}, {len(blocks)} blocks", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
