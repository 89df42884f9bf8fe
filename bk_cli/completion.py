# SPDX-License-Identifier: Apache-2.0
"""``bk completion``: prints the script with which a shell completes commands and options. The script is click's own."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from bk_cli import output

PROGRAM, VARIABLE = "bk", "_BK_COMPLETE"  # click looks for this name in the environment
_HOW = {
    "bash": 'eval "$(bk completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(bk completion zsh)" in ~/.zshrc',
    "fish": "bk completion fish > ~/.config/fish/completions/bk.fish",
}


@click.command(epilog="To have it in every shell: " + "; ".join(_HOW.values()) + ".")
@click.argument("shell", type=click.Choice(list(_HOW)))
def completion(shell: str) -> None:
    """Print the script that has SHELL complete commands and options of bk."""
    found = get_completion_class(shell)
    assert found is not None
    output.print_line(found(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source())
