# Completion of bash, from what `--help` says.
_tessera() {
  local cur prev words cword
  _init_completion || return
  local command= i
  for ((i = 1; i < cword; i++)); do
    [[ ${words[i]} == -- ]] && { _command_offset $((i + 1)); return; }
    [[ -z $command && ${words[i]} != -* ]] && command=${words[i]}
  done
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$("$1" $command --help 2>/dev/null | grep -oE -- '--[a-z][a-z-]*' | sort -u)" -- "$cur"))
  elif [[ -z $command ]]; then
    COMPREPLY=($(compgen -W "$("$1" --help 2>/dev/null | sed -n '/^Subcommands:/,$s/^  \([a-z-]*\) .*/\1/p')" -- "$cur"))
  else
    _filedir
  fi
}
complete -F _tessera tessera
