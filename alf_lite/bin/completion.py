"""Completes commands, flags and their values: ``alf_lite completion bash``.

The shell asks this program at every Tab, so that commands, flags and confs are those
that there are.
"""

from __future__ import annotations

import shlex

from absl.flags import FlagValues

from alf_lite.bin import command
from alf_lite.bin.program import Flag, Program
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.tools.invocation import SCRIPT

# Each hands over the line up to the cursor and offers the words that come back. If none
# does, the shell completes names of files.
_SCRIPTS = {
    # Bash takes --conf=NAME for three words, of which it replaces the last.
    "bash": """\
_NAME() {
    local IFS=$'\\n' word="${COMP_WORDS[COMP_CWORD]}" line="${COMP_LINE:0:COMP_POINT}"
    COMPREPLY=($(NAME completion --line="$line" 2>/dev/null))
    if [[ $word == "=" || ${COMP_WORDS[COMP_CWORD-1]} == "=" ]]; then
        COMPREPLY=("${COMPREPLY[@]#*=}")
    fi
    [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _NAME NAME
""",
    "zsh": """\
#compdef NAME
_NAME() {
    local -a found
    found=("${(@f)$(NAME completion --line="$LBUFFER" 2>/dev/null)}")
    if [[ -n $found ]]; then
        compadd -Q -S '' -- ${(M)found:#*=}
        compadd -Q -- ${found:#*=}
    else
        compset -P '*='
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _NAME NAME
""",
    "fish": """\
complete -c NAME -a '(NAME completion --line=(commandline -cp) 2>/dev/null)'
""",
}
_WHERE = {
    "bash": 'eval "$(NAME completion bash)"     # in ~/.bashrc',
    "zsh": 'eval "$(NAME completion zsh)"      # in ~/.zshrc',
    "fish": "NAME completion fish | source   # in ~/.config/fish/config.fish",
}


FLAGS = (
    Flag("shell", "Print the script for bash, zsh or fish.", default=[]),
    Flag("line", "Print what may come next in this line; it is what the script asks."),
)


def complete(values: FlagValues) -> int:
    """Prints the script for a shell, or what completes a line."""
    if values.line is not None:
        print("\n".join(candidates(values.line)))
        return 0
    shells = values.shell
    if len(shells) != 1 or shells[0] not in _SCRIPTS:
        given = f"got {' '.join(shells)}" if shells else "none is given"
        hint = did_you_mean(shells[0], _SCRIPTS) if shells else ""
        lines = "\n".join(f"  {_WHERE[s].replace('NAME', SCRIPT)}" for s in _WHERE)
        raise ConfigError(
            f"expected one shell of bash, zsh and fish, {given}.{hint}\n{lines}"
        )
    print(_SCRIPTS[shells[0]].replace("NAME", SCRIPT), end="")
    return 0


def candidates(line: str) -> list[str]:
    """The words that may stand where ``line`` ends, in place of its last one."""
    words = _split(line)[1:]
    if not words:
        return []
    *before, last = words
    if not before:
        names = [*command.command_names(), "--help", "--version"]
        return [name for name in names if name.startswith(last)]
    if before[0] not in command.command_names() or "--" in before:
        return []
    name, equals, value = last.partition("=")
    chosen = command.load(before[0])
    values = chosen.define_flags()
    if equals and name[2:] in values:
        offered = _values(name[2:], values)
        return [f"{name}={v}" for v in offered if v.startswith(value)]
    if last.startswith("-"):
        known = [f"--{name}{'' if values[name].boolean else '='}" for name in values]
        return [flag for flag in [*known, "--help"] if flag.startswith(last)]
    return [word for word in chosen.operands if word.startswith(last)]


def _split(line: str) -> list[str]:
    """The words as a shell reads them; the last may be empty or not complete yet."""
    for closing in ("", '"', "'"):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        return [*words, ""] if not closing and line[-1:].isspace() else words
    return []


def _values(name: str, values: FlagValues) -> list[str]:
    """What a flag may be set to, as far as it is known."""
    if name in ("conf", "gin_file"):
        from alf_lite.config.names import packaged_confs

        return packaged_confs()
    if name == "checkpoint":
        return ["latest", "best"]
    if name == "device":
        return ["cpu", "cuda", "mps"]
    return list(getattr(values[name].parser, "enum_values", ()) or ())


PROGRAM = Program(
    name="completion",
    summary="Completes commands, flags and confs at the Tab key: bash, zsh, fish.",
    examples=("bash     # the script", "bash >> ~/.bashrc"),
    flags=FLAGS,
    run=complete,
    operand="shell",
    operands=tuple(_SCRIPTS),
)

main = PROGRAM.main


if __name__ == "__main__":
    raise SystemExit(main())
