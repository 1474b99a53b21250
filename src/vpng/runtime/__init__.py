"""The process that a run lives in: its signals and the threads of its libraries."""
