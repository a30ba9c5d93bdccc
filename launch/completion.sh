# Completion of flags and of their values, for bash and zsh: source launch/completion.sh
#
# The flags come from --help of the program (ddptrain: --help all), once per program and shell.

if [[ -n ${ZSH_VERSION-} ]]; then
  autoload -U +X compinit bashcompinit
  (( $+functions[compdef] )) || compinit -u
  bashcompinit
fi

declare -A _ddptrain_helps

# _ddptrain_flags PROGRAM [SUBCOMMAND]: from --help, a line per name of a flag and what its value looks like.
_ddptrain_flags() {
  local topic=''
  [[ ${1##*/} == ddptrain ]] && topic=all
  if [[ -z ${_ddptrain_helps[$*]-} ]]; then
    _ddptrain_helps[$*]=$(COLUMNS=100 "$@" --help ${topic:+"$topic"} 2>/dev/null | awk '/^  ? ? ?-/ {
      for (last = 1; $(last + 1) ~ /^-/; ++last);  # "-d,--dtype float|bf16" or "-h, --help"
      for (i = 1; i <= last; ++i) {
        count = split($i, names, ",")
        for (j = 1; j <= count; ++j) if (names[j] != "") print names[j], $(last + 1)
      }
    }')
  fi
  printf '%s\n' "${_ddptrain_helps[$*]}"
}

_ddptrain_complete() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} program=$1 subcommand='' words i
  [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD - 2]} # bash splits --flag=value
  [[ $current == = ]] && current=''
  COMPREPLY=()
  case ${program##*/} in
    ddpbench)
      if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W 'p2p allreduce reduce-scatter all-gather broadcast reduce all-to-all send-receive
          split overlap gemm memory doctor step --help --version' -- "$current"))
        return
      fi
      subcommand=${COMP_WORDS[1]}
      [[ $subcommand == step ]] && program=${program%ddpbench}ddptrain subcommand=''
      ;;
    supervise) # the command that it starts has flags of its own
      for ((i = 2; i < COMP_CWORD; ++i)); do
        [[ ${COMP_WORDS[i]} != -* && ${COMP_WORDS[i - 1]} != --* ]] && return
      done
      ;;
  esac
  if [[ $current == -* ]]; then
    words=$(_ddptrain_flags "$program" ${subcommand:+"$subcommand"} | cut -d ' ' -f 1)
  elif [[ $before == -* ]]; then # a value: one of auto|cpu|cuda=auto, or of {bf16,fp32}
    words=$(_ddptrain_flags "$program" ${subcommand:+"$subcommand"} | sed -nE "s/^$before //p" | sed 's/=.*//' |
      grep -E '^\{|\|' | tr -d '{}[]' | tr '|,' '\n\n' | grep -E '^[a-z0-9]')
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}

complete -o default -F _ddptrain_complete ddptrain ddpbench ddptopo ddpsweep ddpreport ddpplan supervise tensorboard-events
