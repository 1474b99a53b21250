"""The paper's experiments, on the public parts of the library."""
