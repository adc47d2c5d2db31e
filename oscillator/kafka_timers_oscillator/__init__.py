"""The process that writes one tick per UNIX second into every partition of the `oscillator` topic."""
