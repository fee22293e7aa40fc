"""The table of commands, and how a line typed by a person becomes a call of one of them.

Commands are named as `module:function` and imported when called. Whatever they raise ends here: as
`weft: what: cause` and `next: …` on standard error, never as a traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from weft.cli import terminal
from weft.client.documents import STANDARD_INPUT
from weft.client.errors import ApiError, WeftError
from weft.client.jobspec import BadOption

Commands = dict[str, tuple[str, str]]

COMMANDS: Commands = {
    "run": ("run:run", "Run a script, a command or a job file, and follow it."),
    "submit": ("submit:submit", "Submit job files and return at once."),
    "apply": ("submit:apply", "Make sure that what files and folders describe exists."),
    "ls": ("listing:ls", "List jobs."),
    "show": ("show:show", "Everything about a job on one page."),
    "logs": ("logs:logs", "Print or follow a job's logs."),
    "metrics": ("metrics:metrics", "A job's metrics as a table, a curve or a stream."),
    "explain": ("show:explain", "Why a job is in its state, and what it waits for."),
    "events": ("show:events", "A job's history."),
    "checkpoints": ("results:checkpoints", "List the steps a job can go on from."),
    "results": ("results:results", "List or fetch a job's result files."),
    "halt": ("change:halt", "Stop jobs so that they can be resumed."),
    "scale": ("change:scale", "Change the size of a running job."),
    "resume": ("change:resume", "Queue halted or failed jobs again."),
    "cancel": ("change:cancel", "Stop jobs for good; their logs and results stay."),
    "delete": ("change:delete", "Remove jobs and their files, or queues and job types."),
    "queue": ("queues:queue", "What waits, in order, until when, and why."),
    "queues": ("queues:queues", "The queues: who may have how much, and has how much."),
    "top": ("machine:top", "What running tasks use."),
    "jobtypes": ("machine:jobtypes", "The job types that there are."),
    "schema": ("machine:schema", "The JSON Schema of a kind, for editors."),
    "ui": ("ui:ui", "Open the server's page in a browser."),
    "sim": ("sim:sim", "Simulate a cluster: a workload under one or several policies."),
    "up": ("serve:up", "Start the server of this machine."),
    "down": ("serve:down", "Stop the server; running tasks go on."),
    "status": ("serve:status", "Whether a server runs, and how it is."),
    "backup": ("serve:backup", "Write a consistent copy of the server's data to a file."),
    "restore": ("serve:restore", "Bring a backup back."),
}
NODES: Commands = {
    "": ("machine:nodes", "The nodes, what they have and what is free."),
    "cordon": ("cordons:cordon", "Place nothing new on a node; what runs goes on."),
    "uncordon": ("cordons:uncordon", "Let tasks come to a node again."),
    "lost": ("cordons:lost", "Declare a node lost: its tasks run again elsewhere."),
}
"""What has no name is `weft nodes` itself; so below."""
SIZES: Commands = {
    "": ("sizes:list_sizes", "The sizes: what their names stand for."),
    "set": ("sizes:set_size", "Declare a size, or change one."),
    "rm": ("sizes:remove_sizes", "Delete sizes, or bring back those that come with Weft."),
    "suggest": ("sizes:suggest", "What would have been enough for a job that has finished."),
}
SECRETS: Commands = {
    "ls": ("secrets:list_secrets", "List the stored secrets and their keys."),
    "set": ("secrets:set_secret", "Store a secret."),
    "rm": ("secrets:remove_secrets", "Remove secrets."),
}
CLUSTERS: Commands = {
    "": ("clusters:list_clusters", "The clusters that were added to the server."),
    "add": ("clusters:add", "Add a Kubernetes cluster."),
    "rm": ("clusters:remove", "Let go of clusters."),
}
DATA: Commands = {
    "": ("data:ls", "The datasets: their newest versions, and who reads them."),
    "ls": ("data:ls", "List datasets."),
    "add": ("data:add", "Declare a dataset and read its source."),
    "show": ("data:show", "Everything about a dataset on one page."),
    "refresh": ("data:refresh", "Read a dataset's source again."),
    "warm": ("data:warm", "Bring a dataset to nodes before jobs read it there."),
    "verify": ("data:verify", "Prove every byte of a version."),
    "pull": ("data:pull", "Fetch a version's files into a folder."),
    "lineage": ("data:lineage", "What a version was made from, and what was made from it."),
    "rm": ("data:remove", "Delete datasets that no job reads."),
}
GROUPS = {"data": DATA, "nodes": NODES, "clusters": CLUSTERS, "sizes": SIZES, "secrets": SECRETS}
GROUP_HELP = {"secrets": "Values that jobs use by reference, never by content."}
"""For groups that are no command themselves."""


def build(argv: Sequence[str]) -> App:
    """The commands. The one that is typed brings its own help; for the others a line is enough."""
    app = _app("weft", "Machine-learning jobs: run them, follow them, lose nothing.")
    _register(app, COMMANDS, argv[:1])
    for name, commands in GROUPS.items():
        itself = commands.get("")
        group = _app(name, itself[1] if itself is not None else GROUP_HELP[name])
        typed = name in argv[:1]
        _register(group, commands, argv[1:2] if typed else [])
        if typed and itself is not None:
            module, _, function = itself[0].partition(":")
            group.default(getattr(import_module(f"weft.cli.commands.{module}"), function))
        app.command(group)
    return app


def _app(name: str, help: str) -> App:
    return App(
        name=name,
        help=help,
        help_format="plaintext",
        version_flags=[],
        default_parameter=Parameter(negative="", show_default=False),
    )


def _register(app: App, commands: Commands, typed: Sequence[str]) -> None:
    for name, (place, summary) in commands.items():
        if not name:
            continue
        options = {} if name in typed else {"help": summary}
        app.command(f"weft.cli.commands.{place}", name=name, **options)


def dispatch(argv: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a log may hold what this terminal cannot show
    try:
        code = _run(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output (`head`) has gone: nobody is left to tell, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _run(argv: Sequence[str]) -> int:
    before, after = split_rest(argv)
    # The parser takes - for an option.
    before = [STANDARD_INPUT[-1] if argument == "-" else argument for argument in before]
    try:
        command, bound, extra = build(before).parse_args(before, exit_on_error=False, print_error=False)
    except CycloptsError as problem:
        terminal.error(_said(problem, before), next=_usage_hint(before))
        return 2
    kwargs: dict[str, Any] = {"rest": after} if "rest" in extra else {}
    if after and not kwargs:
        terminal.error(f"{before[0] if before else 'weft'}: takes nothing after --")
        return 2
    try:
        try:
            return command(*bound.args, **bound.kwargs, **kwargs) or 0
        except ApiError as problem:
            if problem.status != 404 or "job" not in bound.arguments or problem.title != "No such job":
                raise
            # Nothing was printed yet. Commands that change jobs want whole names: they take `jobs`.
            from weft.cli.jobname import only_job

            bound.arguments["job"] = only_job(bound.arguments["job"], problem)
            return command(*bound.args, **bound.kwargs, **kwargs) or 0
    except BadOption as problem:
        terminal.error(str(problem), next=f"weft {before[0]} --help")
        return 2
    except WeftError as problem:
        terminal.error(str(problem), next=problem.next)
    except BrokenPipeError:
        raise
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        terminal.error(f"{where}{problem.strerror or problem}")
    return 1


def split_rest(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """What stands before the first `--` is ours; what stands after it belongs to the user's program."""
    tokens = list(argv)
    if "--" not in tokens:
        return tokens, ()
    place = tokens.index("--")
    return tokens[:place], tuple(tokens[place + 1 :])


def _said(problem: CycloptsError, argv: Sequence[str]) -> str:
    if isinstance(problem, UnusedCliTokensError) and argv:
        from difflib import get_close_matches

        first = (problem.unused_tokens or [""])[0]
        near = get_close_matches(first, GROUPS.get(argv[0], {}), n=1)
        hint = f"; did you mean weft {argv[0]} {near[0]}?" if near else ""
        return f"weft {argv[0]}: {first} is not understood{hint}"
    return str(problem).partition(" Available commands")[0].rstrip(".")


def _usage_hint(argv: Sequence[str]) -> str:
    command = argv[0] if argv and argv[0] in (*COMMANDS, *GROUPS) else ""
    if command == "run":
        return "options of your own program go after --: weft run train.py -- --lr 0.1   (weft run --help)"
    return f"weft {command} --help".replace("  ", " ")
