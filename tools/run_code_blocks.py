"""Executes the Python blocks of Markdown files, one fresh interpreter for each file.

The blocks of a file run in order and share their names, as a reader would type them.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def main(paths: list[str]) -> int:
    """Run every file's blocks; 1 if any file fails, else 0."""
    failed = 0
    for path in paths:
        blocks = BLOCK.findall(Path(path).read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "blocks.py"
            script.write_text("\n".join(blocks), encoding="utf-8")
            code = subprocess.run(
                [sys.executable, "-W", "error::RuntimeWarning", str(script)],
                cwd=folder,
                check=False,
            ).returncode
        failed += code != 0
        print(f"{'failed' if code else 'ok'}: {path}, {len(blocks)} blocks", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
