"""How long a user waits for an answer, compiling included."""
