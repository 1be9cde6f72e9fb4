"""The command line: each command reads its arguments, calls one function and prints one thing.

Heavy libraries are imported inside commands, so that ``autotune --help`` stays quick.
"""

from autotune.cli.group import cli

__all__ = ["cli"]
