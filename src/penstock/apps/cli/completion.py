"""`penstock completion`: print the script that makes a shell complete our commands."""

import click
from click.shell_completion import get_completion_class

from penstock.apps.cli.shared.commands import argument, command, option_class


@option_class
class _Completion:
    shell: str = argument(type=click.Choice(["bash", "zsh", "fish"]))


@command(
    example="""
penstock completion bash > ~/.local/share/bash-completion/completions/penstock
penstock completion zsh > ~/.zfunc/_penstock
penstock completion fish > ~/.config/fish/completions/penstock.fish
"""
)
def completion(options: _Completion) -> None:
    """Print the completion script of a SHELL. Put it where the shell looks for such scripts."""
    kind = get_completion_class(options.shell)
    if kind is None:
        raise click.UsageError(f"no completion for {options.shell}")
    root = click.get_current_context().find_root().command
    script = kind(root, {}, "penstock", "_PENSTOCK_COMPLETE")
    # Not `script.source()`: for bash it starts a bash to get its version.
    click.echo(script.source_template % script.source_vars())
