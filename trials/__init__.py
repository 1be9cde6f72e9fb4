"""Programs that run one trial in a child process; the only room that imports torch."""
