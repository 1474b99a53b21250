"""What is fuzzed: strategies for input, and what must hold of whatever comes out.

Bad input may end in a `vpng.InputError`, on the command line in exit code 2 with one line, and in
nothing else. What is accepted must be right: every target compares it with an oracle of its own.
No target may leave a file outside of its own folder.
"""

import fuzz_checkpoints
import fuzz_command_line
import fuzz_problems
import fuzz_readers
import fuzz_saved_models
from fuzz_target import Target

TARGETS: dict[str, Target] = {
    **fuzz_readers.TARGETS,
    **fuzz_saved_models.TARGETS,
    **fuzz_checkpoints.TARGETS,
    **fuzz_command_line.TARGETS,
    **fuzz_problems.TARGETS,
}
