"""The program kubectl-gang: its command line, and how it ends.

As `kubectl gang` it is a plugin of kubectl. What always holds: it only reads; an answer is on standard output, all
else on standard error; it never ends in a traceback for what the outside did, be it a cluster, a person's Ctrl-C or
a pipe that closes early.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Annotated, NoReturn, TypeAlias

import typer
from typer.exceptions import TyperException

from startgate.cli import connect, list_gangs, output, queues, simulate, why
from startgate.cli.failure import EXIT_CODES, INTERRUPTED, USAGE, VerbError
from startgate.cli.output import Format, Output

Answer: TypeAlias = Callable[[], object]
"""What a verb has read, ready to be printed."""

app = typer.Typer(
    help="Gangs and queues of Startgate: who waits, and why.",
    epilog=EXIT_CODES,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def no_verb(context: typer.Context) -> Answer | None:
    if context.invoked_subcommand is None:
        return partial(sys.stdout.write, f"{context.get_help()}\n")
    return None


@app.command("list", short_help="List gangs, by queue.", epilog=EXIT_CODES)
def list_verb(
    namespace: connect.Namespace = None,
    everywhere: connect.AllNamespaces = False,
    context: connect.Context = None,
    kubeconfig: connect.Kubeconfig = None,
    output_format: Output = Format.TABLE,
) -> Answer:
    """List gangs by queue, each queue in the order in which it takes them."""
    if everywhere and namespace:
        raise VerbError(USAGE, "-n and -A contradict each other: give one of them.")
    found, where = asyncio.run(list_gangs.read(connect.Target(kubeconfig, context), namespace, everywhere=everywhere))
    if output_format is Format.TABLE:
        return partial(list_gangs.show, found, where)
    return partial(output.write, found, output_format)


@app.command("why", short_help="Say why a gang waits.", epilog=EXIT_CODES)
def why_verb(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a Job or a Gang; or job/NAME, gang/NAME.")],
    namespace: connect.Namespace = None,
    context: connect.Context = None,
    kubeconfig: connect.Kubeconfig = None,
    output_format: Output = Format.TABLE,
) -> Answer:
    """Say why a gang waits, with numbers, and what would let it start."""
    wanted = why.asked(name)
    answer = asyncio.run(why.read(connect.Target(kubeconfig, context), namespace, wanted))
    if output_format is Format.TABLE:
        return partial(why.show, answer)
    return partial(output.write, answer, output_format)


@app.command("queues", short_help="Show each queue's limits and use.", epilog=EXIT_CODES)
def queues_verb(
    context: connect.Context = None,
    kubeconfig: connect.Kubeconfig = None,
    output_format: Output = Format.TABLE,
) -> Answer:
    """Show each queue below its parent: what it may have, has, and could still take."""
    found = asyncio.run(queues.read(connect.Target(kubeconfig, context)))
    if output_format is Format.TABLE:
        return partial(queues.show, found)
    return partial(output.write, found, output_format)


@app.command("simulate", short_help="Tell what would happen, from files alone.", epilog=EXIT_CODES)
def simulate_verb(
    files: simulate.Files = None,
    what_if: simulate.WhatIf = None,
    until: simulate.Until = None,
    patience: simulate.Patience = None,
    output_format: Output = Format.TABLE,
) -> Answer:
    """Tell which gangs would start when, where, and why not, from manifests or a dump; no cluster is asked."""
    answer = simulate.ask(files or (), what_if or (), until, patience)
    if isinstance(answer, tuple):
        comparison, notes = answer
        shown, document = partial(simulate.show_comparison, comparison, notes), comparison
        return shown if output_format is Format.TABLE else partial(simulate.write, document, notes, output_format)
    if output_format is Format.TABLE:
        return partial(simulate.show, answer)
    return partial(simulate.write, answer.told, answer.notes, output_format)


def run() -> NoReturn:
    """The program."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: list[str]) -> int:
    """Its exit code, once everything is printed."""
    try:
        # Typer has its own way with a closed pipe (it ends with 1), so printing is left until it is done.
        answer: Answer | int = app(arguments, prog_name="kubectl gang", standalone_mode=False)
        if isinstance(answer, int):
            return answer
        answer()
        sys.stdout.flush()
    except VerbError as error:
        output.note(f"Error: {error}")
        return error.code
    except TyperException as error:
        output.note(f"Error: {error.format_message().replace(': Value error, ', ': ')}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has read enough. What is still buffered goes nowhere, lest the interpreter complain in the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
