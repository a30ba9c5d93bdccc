# completed.bash COMPLETION PROGRAM WORD...: what bash offers for the last word.
source "$1"
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_ddptrain_complete "${COMP_WORDS[0]}"
printf '%s\n' "${COMPREPLY[@]}"
