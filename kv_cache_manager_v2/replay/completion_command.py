"""The command ``completion``: a script that lets a shell complete kvcm's commands, options and choices. All else are names of files."""

import argparse
import sys
from typing import Final

from .exit_codes import EXIT_OK

COMPLETION_HELP: Final = "print a script for completion in a shell: source <(kvcm completion bash)"
_FISH: Final = "complete -c kvcm -n '__fish_seen_subcommand_from {command}' {option}"


def add_completion_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))


def run_completion_command(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """``options.parsers``: of all commands, by name."""
    words = {name: _words_of(command) for name, command in options.parsers.items()}
    if options.shell == "fish":
        lines = [f"complete -c kvcm -n __fish_use_subcommand -f -a '{' '.join(words)}'"]
        for name, by_option in words.items():
            for option, choices in by_option.items():
                value = f" -x -a '{' '.join(choices)}'" if len(choices) > 0 else ""
                lines.append(_FISH.format(command=name, option=f"-l {option[2:]}{value}" if option != "" else f"-a '{' '.join(choices)}'"))
    else:
        lines = ["autoload -U +X bashcompinit && bashcompinit"] if options.shell == "zsh" else []
        lines += ["_kvcm() {", "  local words=", '  case "$COMP_CWORD:${COMP_WORDS[1]}:${COMP_WORDS[COMP_CWORD-1]}" in']
        lines.append(f"    1:*) words='{' '.join(words)}';;")
        for name, by_option in words.items():
            for option, choices in by_option.items():
                if option != "" and len(choices) > 0:
                    lines.append(f"    *:{name}:{option}) words='{' '.join(choices)}';;")
            others = [*by_option.get("", []), *[option for option in by_option if option != ""]]
            lines.append(f"    *:{name}:*) words='{' '.join(others)}';;")
        lines += ["  esac", '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))', "}"]
        lines.append("complete -o default -F _kvcm kvcm")
    sys.stdout.write("\n".join(lines) + "\n")
    return EXIT_OK


def _words_of(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The choices of each long option; those of arguments without one under the empty name."""
    words: dict[str, list[str]] = {}
    for action in parser._actions:
        choices = [str(choice) for choice in action.choices or ()]
        names = [name for name in action.option_strings if name.startswith("--")]
        if len(names) > 0:
            words[names[0]] = choices
        elif len(choices) > 0:
            words[""] = choices
    return words
