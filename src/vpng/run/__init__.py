"""Parts of a run: when it stops, and how an interrupted one ends."""
