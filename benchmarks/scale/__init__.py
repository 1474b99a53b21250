"""The parts of the scaling benchmark."""
